package cluster

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestCannotReadWhatItStreams: a follower's disk was stuck for a while. When its leader, whose stream to it is still open, goes on with
// the entries that it has missed, the leader's own disk cannot read them. The leader names the fault, and can be closed.
func TestCannotReadWhatItStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		var bad [3]atomic.Bool
		for i := range bad {
			cfg := f.config(i)
			cfg.Trace = unreadableTrace{bad: &bad[i]}
			f.open(i, cfg)
		}
		f.whole()
		lead := leadOf(t, f)
		f.writes(lead, 5)
		time.Sleep(10 * time.Second)
		late := (lead + 1) % 3
		end := f.stuck(late)
		f.writes(lead, 10*recentEntries)
		bad[lead].Store(true)
		end(nil)
		if err := fault(f.running[lead], 20*time.Second); err == nil || !strings.Contains(err.Error(), "input/output error") {
			t.Errorf("its fault is %v", err)
		}
		closed := make(chan error, 1)
		go func() { closed <- f.running[lead].Close() }()
		select {
		case <-closed:
			f.acknowledges(late, 3-lead-late)
		case <-time.After(time.Hour):
			f.running[lead] = nil // the end of the test would wait for it, too
			t.Error("it cannot be closed")
		}
	})
}
