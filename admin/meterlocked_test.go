package admin

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/proto"
)

// manyLocks is a server with many locks, each in a directory of its own. It measures for how long
// a reader holds the state, in which nothing can be applied.
type manyLocks struct {
	source
	before func()        // is called before the next View, as if it was applied while the meter was at work
	locked time.Duration // the longest time
}

func (s *manyLocks) View(f func(report.State)) {
	if do := s.before; do != nil {
		s.before = nil
		do()
	}
	began := time.Now()
	f(s)
	s.locked = max(s.locked, time.Since(began))
}

func (s *manyLocks) Children(string, int) ([]string, int, bool) {
	return []string{"_c_x-lock-0000000000"}, 1, true
}

// TestFullMeterLocksBriefly: a meter that knows as many directories as it may, all with a holder, does
// not keep the state locked for as long as it takes to look at all of them for each event that
// has waited: while it measured earlier ones, 2000 more were applied.
func TestFullMeterLocksBriefly(t *testing.T) {
	const events = 2000
	locked := func(dirs int) time.Duration {
		s := &manyLocks{}
		l := newLockMeter(s)
		defer l.close()
		scrape := func() { l.collect(make(chan prometheus.Metric, 100)) }
		scrape()
		for i := range dirs {
			s.f.Changed(created(fmt.Sprintf("/locks/%d/_c_x-lock-0000000000", i)))
			if i%100 == 0 {
				scrape()
			}
		}
		scrape()
		l.mu.Lock()
		s.locked = 0
		s.f.Changed([]proto.Change{{Kind: proto.NodeDeleted, Path: "/locks/0/_c_x-lock-0000000000", Session: 1}})
		s.f.Changed(created("/more/x/_c_x-lock-0000000000")) // takes its place, and so is to be read
		s.before = func() {
			for i := range events {
				s.f.Changed(created(fmt.Sprintf("/more/%d/_c_x-lock-0000000000", i)))
			}
		}
		l.run.measure()
		l.mu.Unlock()
		return s.locked
	}
	few, many := locked(meterDirs/2), locked(meterDirs)
	t.Logf("%d locks: the state is locked for %v; %d locks: %v", meterDirs/2, few, meterDirs, many)
	if many > 10*few && many > time.Second/4 {
		t.Errorf("nothing is applied for %v", many)
	}
}
