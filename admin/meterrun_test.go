package admin

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/proto"
)

// source is a server in whose state nothing happens by itself.
type source struct {
	report.Server
	f      report.Follower
	stop   atomic.Int64
	exists map[string]bool
}

func (s *source) Follow(f report.Follower) (func(), bool) {
	s.f = f
	return func() { s.stop.Add(1) }, true
}

func (s *source) View(f func(report.Children))                    { f(s.children) }
func (s *source) Ephemerals(int) ([]string, bool)                 { return nil, true }
func (s *source) children(at string, _ int) ([]string, int, bool) { return nil, 0, s.exists[at] }

func created(paths ...string) (all []proto.Change) {
	for _, at := range paths {
		all = append(all, proto.Change{Kind: proto.NodeCreated, Path: at})
	}
	return all
}

// TestMeterFallsBehind checks that a meter that cannot keep up gives up, keeps nothing, and begins
// anew at the next scrape.
func TestMeterFallsBehind(t *testing.T) {
	s := &source{exists: map[string]bool{"/l": true}}
	l := newLockMeter(s)
	scrape := func() {
		all := make(chan prometheus.Metric, 100)
		l.collect(all)
	}
	scrape()
	first := l.run
	l.mu.Lock() // nothing is measured meanwhile
	for i := range meterEvents + 10 {
		s.f.Changed(created(fmt.Sprintf("/l/_c_%032x-lock-%010d", i, i)))
	}
	if first.whole.Err() == nil || len(first.events) != 0 {
		t.Errorf("it goes on: %v, %d events", first.whole.Err() == nil, len(first.events))
	}
	l.mu.Unlock()
	scrape()
	if l.run == nil || l.run == first || l.run.whole.Err() != nil || !l.run.found {
		t.Errorf("%+v after %+v", l.run, first)
	}
	l.close()
	if n := s.stop.Load(); n != 2 || l.run != nil {
		t.Errorf("followed %d times to the end, %+v", n, l.run)
	}
}
