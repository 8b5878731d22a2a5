package stopwatch

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestStopwatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Stopwatch
		for _, took := range []time.Duration{0, unit, unit + 1, time.Second, time.Minute} {
			began := time.Now()
			time.Sleep(took)
			s.Since(began)
		}
		d := s.Durations()
		if want := time.Minute + time.Second + 2*unit + 1; d.Count != 5 || d.Sum != want {
			t.Errorf("%d in %v, want 5 in %v", d.Count, d.Sum, want)
		}
		for most, want := range map[time.Duration]int64{unit: 2, 2 * unit: 3, unit << 13: 3, unit << 14: 4, unit << 15: 4} {
			if d.Buckets[most] != want {
				t.Errorf("%d took at most %v, want %d", d.Buckets[most], most, want)
			}
		}
	})
}
