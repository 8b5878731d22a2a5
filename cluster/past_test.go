package cluster

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/storage"
)

// slowly makes a disk take two seconds for each write while slow is true.
func slowly(disk *storage.Memory, slow *atomic.Bool) {
	disk.SetFault(func() error {
		if slow.Load() {
			time.Sleep(2 * time.Second)
		}
		return nil
	})
}

// cutOff cuts or heals all ways between a member of the fleet and the others.
func (f *fleet) cutOff(i int, cut bool) {
	a := string(rune('a' + i))
	for j := range f.running {
		if b := string(rune('a' + j)); a != b {
			f.net.Cut(a, b, cut)
			f.net.Cut(b, a, cut)
		}
	}
}

// TestOnlyVoterOfThePast: the first member of a cluster loses its disk. While it gets the log again,
// its list of members is the one in which it was alone; it must not lead by itself.
func TestOnlyVoterOfThePast(t *testing.T) {
	for _, restart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 3)
			alone := f.config(0)
			alone.Peers = map[uint64]string{1: "a:1"}
			f.open(0, alone)
			until(t, "a leader", func() bool { return f.running[0].Role() == "leader" })
			for range 200 {
				for !f.write(0) {
				}
			}
			for i := 1; i < 3; i++ {
				cfg := f.config(i)
				cfg.Peers, cfg.Addr, cfg.Join = nil, f.peers[uint64(i+1)], "a:1"
				f.open(i, cfg)
			}
			f.whole()
			f.lose(0)
			lead := leadOf(t, f)
			for range 10 {
				for !f.write(lead) {
				}
			}
			var slow atomic.Bool
			again := f.config(0)
			again.Peers, again.Addr, again.Join = nil, "a:1", f.peers[uint64(lead+1)]
			slowly(f.disks[0], &slow)
			m := f.open(0, again)
			until(t, "the first entries", func() bool {
				slow.Store(slow.Load() || m.membership.gate.lifted())
				return m.raft.LastIndex() > 1
			})
			if s, _ := f.running[lead].Status(); m.raft.LastIndex() > 150 {
				t.Fatalf("it has %d of %d entries", m.raft.LastIndex(), s.Index)
			}
			f.cutOff(0, true)
			slow.Store(false)
			if restart {
				f.stop(0)
				m = f.open(0, again)
			}
			time.Sleep(2 * time.Minute)
			if m.Role() == "leader" || m.raft.LastIndex() > 150 {
				t.Errorf("it is %s, with %d entries", m.Role(), m.raft.LastIndex())
			}
			f.cutOff(0, false)
			f.whole()
			f.check()
		})
	}
}

// TestCaughtUp: a member that has joined can be elected once it has caught up.
func TestCaughtUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 20)
		lead := leadOf(t, f)
		other := (lead + 1) % 3
		f.lose(other)
		f.start(other)
		f.whole()
		until(t, "the end of catching up", func() bool { return f.running[other].raft.since.Load() == 0 })
		if c := f.running[other].raft.ReloadableConfig(); c.HeartbeatTimeout != f.running[lead].raft.ReloadableConfig().HeartbeatTimeout {
			t.Errorf("Raft waits for %v", c.HeartbeatTimeout)
		}
		f.stop(lead)
		f.stop(other)
		f.start(other) // which has its data and needs no leader to catch up
		leadOf(t, f)
		f.start(lead)
		f.whole()
		f.check()
	})
}

// TestAppliedIsNotReplaced: a member ends, and keeps its log, rather than replace an entry that it
// has applied.
func TestAppliedIsNotReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 20)
		m := f.running[0]
		s := newGuardedStore(m.raft, m.lifecycle, m.pulse.moment, nil)
		last := m.raft.LastIndex()
		until(t, "all entries", func() bool { return m.raft.AppliedIndex() == last })
		if err := s.DeleteRange(last-3, last); !errors.Is(err, ErrDiffers) {
			t.Errorf("applied entries were deleted: %v", err)
		}
		if err := fault(m, 0); !errors.Is(err, ErrDiffers) || !strings.Contains(err.Error(), fmt.Sprintf("another entry %d ", last-3)) {
			t.Errorf("its fault is %v", err)
		}
		if end, err := s.LastIndex(); end != last || err != nil {
			t.Errorf("the log ends at %d of %d, %v", end, last, err)
		}
	})
}
