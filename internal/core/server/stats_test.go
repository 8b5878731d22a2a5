package server

import (
	"fmt"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/core/report"
)

// TestLatencyInOrder: the smallest, mean and greatest latency are in order in every text,
// also if all requests took less than a millisecond, and while a request is being counted.
func TestLatencyInOrder(t *testing.T) {
	for _, x := range []struct {
		sum, count, least, greatest int64 // µs
		want                        string
	}{
		{0, 0, -1, 0, "0 0.0 0"},
		{40, 100, 0, 40, "0 0.0004 1"},
		{5000, 2, 1999, 3001, "1 2.5 4"},
		{4000, 2, 2000, 2000, "2 2.0 2"},
		{9000, 1, -1, 0, "0 0.0 0"}, // the sum is counted before the maximum
	} {
		s := &Server{}
		s.stats.latencySum.Store(x.sum)
		s.stats.latencyCount.Store(x.count)
		s.stats.latencyMin.Store(x.least)
		s.stats.latencyMax.Store(x.greatest)
		m := report.Monitor{}
		m.MinLatency, m.AvgLatency, m.MaxLatency = s.stats.latency()
		least, mean, greatest := m.Latency()
		if got := fmt.Sprintf("%d %s %d", least, mean, greatest); got != x.want {
			t.Errorf("%+v: %s", x, got)
		}
		if least, mean, greatest := s.stats.latency(); least > mean || mean > greatest {
			t.Errorf("%+v: %v, %v, %v", x, least, mean, greatest)
		}
	}
}
