package cluster

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/slowdisk"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestOwnSnapshotEndsLate: while a member takes a snapshot, it gets one of the leader's that ends one entry later. Then it leads, and
// sends its log to a member that has the same as its own snapshot.
func TestOwnSnapshotEndsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 5)
		const lead, late, c = 0, 3, 4
		at := uint64(1 << 60)
		for i := range c {
			f.start(i)
		}
		f.openWith(c, f.config(c), func(s *storage.Storage) { s.Snapshots = slowdisk.SlowAt(s.Snapshots, &at, time.Minute) })
		f.whole()
		f.handTo(lead)
		f.writes(lead, 10)
		f.whole()
		time.Sleep(10 * time.Second)
		l, x := f.running[lead].engine, f.running[c].engine
		at = x.LastApplied()
		ended := make(chan error, 1)
		go func() { ended <- x.TakeSnapshot() }()
		f.cutOff(c, true)
		f.cutOff(late, true)
		time.Sleep(20 * time.Second)
		f.writes(lead, 1)
		if err := l.TakeSnapshot(); err != nil {
			t.Fatal(err)
		}
		if first, err := l.Storage().Log.FirstIndex(); first != at+1 || l.LastApplied() != at+1 || err != nil {
			t.Fatalf("the leader has entries %d to %d, want only %d: %v", first, l.LastApplied(), at+1, err)
		}
		f.cutOff(c, false)
		f.cutBetween(c, late, true)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		until(t, "the snapshot", func() bool { return x.LastApplied() > at })
		if newest := x.Stats()["last_snapshot_index"]; newest != fmt.Sprint(at+1) {
			t.Errorf("Raft takes the snapshot that ends with entry %s for the newest, not that with %d", newest, at+1)
		}
		f.handTo(c)
		f.net.Heal()
		f.whole()
		f.check()
	})
}

// TestSilentDuringSnapshot: a leader that falls silent while it sends a snapshot, or whose
// disk gets stuck then, is replaced like any other, with the vote of the member that
// receives the snapshot.
func TestSilentDuringSnapshot(t *testing.T) {
	for name, stuck := range map[string]bool{"silent": false, "disk stuck": true} {
		testkit.Bubble(t, name, func(t *testing.T) {
			net, leader, other, late := wired(t, nil)
			again := stopUntilSnapshot(t, late, leader)
			half, release := make(chan struct{}), make(chan struct{})
			defer close(release)
			net.when(net.receiving(late, 2<<20), func(w *wire) {
				if !stuck {
					net.Pause(hostOf(leader), true)
					close(half)
					return
				}
				leader.cfg.Memory.SetFault(func() error { <-release; return nil })
				leader.Propose(someWrite(), make(propose.Result, 1), nil)
				close(half)
				select { // nor does the snapshot come any further
				case <-release:
				case <-w.gone:
				}
			})
			late = again()
			<-half
			began := time.Now()
			until(t, "another leader", func() bool { return other.engine.Role() == engine.Leader })
			if took, most := time.Since(began), leader.contacts.ElectionTimeout+time.Second; took > most {
				t.Fatalf("another member leads after %v, should within %v", took, most)
			}
			if !ready(late, 3*late.contacts.ElectionTimeout) {
				t.Error("the late member does not catch up with the next leader")
			}
		})
	}
}

// TestNextLeadersSnapshot: a member that is receiving a snapshot slowly when another member is
// elected gets the snapshot of that one. The earlier leader learns of the election, even if
// only the member that receives the snapshot can tell it.
func TestNextLeadersSnapshot(t *testing.T) {
	for name, cut := range map[string]bool{"all connected": false, "leaders cut off from each other": true} {
		testkit.Bubble(t, name, func(t *testing.T) {
			net, leader, other, late := wired(t, nil)
			again := stopUntilSnapshot(t, late, leader)
			onlySnapshot(t, other)
			term, from := leader.engine.Term(), hostOf(leader)
			half := make(chan struct{})
			var once sync.Once
			receiving := net.receiving(late, 1<<20)
			came := func(w *wire) {
				w.mu.Lock()
				is := w.from == from && receiving(w)
				w.mu.Unlock()
				if is {
					once.Do(func() { close(half) })
					select { // 64 KiB a second
					case <-time.After(time.Second):
					case <-w.gone:
					}
				}
			}
			net.came.Store(&came)
			late = again()
			<-half
			if cut {
				net.cut(leader, other, true)
			}
			other.engine.Campaign(other.contacts.Lease)
			until(t, "the next leader", func() bool { return other.engine.Role() == engine.Leader })
			if !ready(late, 3*late.contacts.ElectionTimeout) {
				t.Error("it does not get the snapshot of the next leader")
			}
			time.Sleep(late.contacts.ElectionTimeout)
			if leader.engine.Role() == engine.Leader && leader.engine.Term() == term {
				t.Error("the earlier leader has not learned of the election")
			}
		})
	}
}

// TestSnapshotOnNarrowLink checks that a member gets its snapshot over a link that is slow and
// narrow, but works.
func TestSnapshotOnNarrowLink(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, x := range []struct {
		rate int64
		trip time.Duration // in ms
	}{{50 << 10, 20}, {80 << 10, 560}, {1 << 20, 800}} {
		testkit.Bubble(t, fmt.Sprint(x.rate>>10, " KiB ", int(x.trip), " ms"), func(t *testing.T) {
			n, leader, late, _ := wired(t, func(c *Config) { c.SnapshotBytes = 1 << 30 })
			again := stopUntilSnapshot(t, late, leader)
			n.SetDelay(func(from, to string) time.Duration { return x.trip / 2 * time.Millisecond })
			n.rate.Store(x.rate)
			time.Sleep(10 * time.Second)
			catchesUp(t, leader, again, 2*time.Duration(8<<20/x.rate+1)*time.Second, func(time.Duration) {})
		})
	}
}

// TestSnapshotBesideLateHeartbeat checks that a member gets its snapshot over a narrow link
// although every 10 s a heartbeat is late or its connection is forgotten.
func TestSnapshotBesideLateHeartbeat(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, how := range []string{"late", "forgotten"} {
		for _, trip := range []time.Duration{2, 400} {
			testkit.Bubble(t, fmt.Sprint(how, " ", int(trip), " ms"), func(t *testing.T) {
				const rate = 80 << 10
				n, leader, late, _ := wired(t, func(c *Config) { c.SnapshotBytes = 1 << 30 })
				again := stopUntilSnapshot(t, late, leader)
				n.SetDelay(func(from, to string) time.Duration { return trip / 2 * time.Millisecond })
				n.rate.Store(rate)
				from, to := hostOf(leader), hostOf(late)
				beats := func(w *wire) bool {
					return w.from == from && w.to == to && (w.kind == peer.KindBeat || w.kind == peer.KindRebeat)
				}
				time.Sleep(10 * time.Second)
				next := 10 * time.Second
				catchesUp(t, leader, again, 2*(8<<20/rate+1)*time.Second, func(at time.Duration) {
					if at < next {
						return
					}
					next = at + 10130*time.Millisecond
					if how == "forgotten" {
						n.forget(beats)
						return
					}
					n.when(func(w *wire) bool { return w.dialed && beats(w) }, func(w *wire) { time.Sleep((520 - trip) * time.Millisecond) })
				})
			})
		}
	}
}
