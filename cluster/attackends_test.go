package cluster

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/session"
)

// restoredFleet returns three servers that were restored from a state with a session, whose last entry is index.
func restoredFleet(t *testing.T, index uint64) *fleet {
	f := newFleet(t, 3)
	f.acked = append(f.acked, 1<<40)
	for i := range 3 {
		m := fsm.NewMachine()
		if err := m.Restart(index, fsm.Members(ptr(f.config(i)).first())); err != nil {
			t.Fatal(err)
		}
		m.Sessions().Open(session.Session{ID: 1 << 40, Timeout: 1 << 30})
		f.restoredAt(i, m)
		f.start(i)
	}
	return f
}

// TestFirstLeaderOfRestored: the first leader of restored servers, which have no log, is cut off when it stores its first entry. The
// others go on without it, and it comes back, also if it is started again.
func TestFirstLeaderOfRestored(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint("again ", again), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := restoredFleet(t, 2)
				f.net.SetDelay(func(from, to string) time.Duration { return time.Millisecond })
				var first atomic.Int64
				for i, m := range f.running {
					f.disks[i].SetFault(func() error {
						if _, leads := m.raft.term(); leads && first.CompareAndSwap(0, int64(i+1)) {
							f.cutOff(i, true)
						}
						return nil
					})
				}
				until(t, "a leader", func() bool { return first.Load() != 0 })
				c := int(first.Load() - 1)
				until(t, "a write", func() bool { return f.write((c + 1) % 3) })
				time.Sleep(10 * time.Second)
				if again {
					f.stop(c)
				}
				f.net.Heal()
				if again {
					f.start(c)
				}
				time.Sleep(10 * time.Second)
				var at []uint64
				for _, m := range f.running {
					at = append(at, m.raft.LastIndex())
				}
				if at[0] != at[1] || at[0] != at[2] {
					t.Fatalf("10 s after the cut was healed, the members' logs end with %v; the first leader was %d", at, c+1)
				}
				f.whole()
				f.check()
			})
		})
	}
}

// TestStateBeforeFirstEntry: servers that were migrated from another system began with entry 1. One of them lost its disk, got its data
// back from the others, and leads. Then another one loses its disk.
func TestStateBeforeFirstEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := restoredFleet(t, 1)
		f.whole()
		lead := leadOf(t, f)
		for i := range 2 {
			c := (lead + 1 + i) % 3
			f.lose(c)
			f.start(c)
			if err := fault(f.running[c], 20*time.Second); err != nil {
				t.Error(err)
			}
			f.whole()
			f.check()
			f.handTo(c)
		}
	})
}
