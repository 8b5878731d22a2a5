package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestSnapshotOlderThanState: answers of a follower are lost while the leader takes a snapshot, which ends between what the leader
// knows the follower to have and what that has applied. Then the follower refuses this snapshot, and must not need
// it.
func TestSnapshotOlderThanState(t *testing.T) {
	for _, own := range []bool{false, true} { // the follower has taken a snapshot too, and has nothing of the log before it
		testkit.Bubble(t, fmt.Sprint("own ", own), func(t *testing.T) {
			f := startedFleet(t, 20)
			lead := leadOf(t, f)
			c := (lead + 1) % 3
			l, x := f.running[lead].engine, f.running[c].engine
			snapshot := func(e *engine.Engine) {
				if err := e.TakeSnapshot(); err != nil {
					t.Fatal(err)
				}
			}
			// Few messages are sent to a follower that does not answer, so this may need several attempts.
			until(t, "a follower that has more than the leader's snapshot", func() bool {
				f.net.Heal()
				f.whole()
				time.Sleep(time.Second)
				f.net.Cut(string(rune('a'+c)), string(rune('a'+lead)), true)
				f.writes(lead, 1)
				snapshot(l)
				f.writes(lead, 1)
				time.Sleep(100 * time.Millisecond)
				return x.LastApplied() == l.LastIndex()
			})
			if own {
				snapshot(x)
			}
			time.Sleep(10 * time.Second)
			f.net.Heal()
			f.writes(lead, 1)
			f.whole()
			if leadOf(t, f) != lead {
				t.Error("another member leads")
			}
		})
	}
}

// TestLeaderLostAfterSnapshot: a follower's log ends with entries that were never committed, where the leader's snapshot ends. The leader is lost
// while the follower installs that, and the next one has all of its log. The two are a majority, also if the
// follower is started again.
func TestLeaderLostAfterSnapshot(t *testing.T) {
	for _, again := range []bool{false, true} {
		testkit.Bubble(t, fmt.Sprint("again ", again), func(t *testing.T) {
			f := startedFleet(t, 20)
			f.net.SetDelay(func(string, string) time.Duration { return 5 * time.Millisecond }) // otherwise what is refused would be sent again without end at one time
			f.whole()
			lead := leadOf(t, f)
			c, other := (lead+1)%3, (lead+2)%3
			f.stop(c)
			log := f.disks[c].Open().Log
			var end raft.Log
			if last, err := log.LastIndex(); err != nil || log.GetLog(last, &end) != nil {
				t.Fatal(last, err)
			}
			f.handTo(other) // the follower's entries are of an earlier term
			f.handTo(lead)
			f.writes(lead, 10)
			time.Sleep(10 * time.Second)
			if err := f.running[lead].engine.TakeSnapshot(); err != nil {
				t.Fatal(err)
			}
			newest, err := f.running[lead].engine.Storage().NewestSnapshot()
			if err != nil {
				t.Fatal(err)
			}
			if err := log.StoreLogs(noops(end.Index+1, newest.Index+3, end.Term)); err != nil {
				t.Fatal(err)
			}
			var has atomic.Bool
			f.disks[c].SetFault(func() error {
				if is, err := f.running[c].engine.Storage().NewestSnapshot(); err == nil && is.Index == newest.Index && !has.Load() {
					f.cutBetween(c, lead, true)
					has.Store(true)
				}
				if again && has.Load() {
					return errors.New("killed")
				}
				return nil
			})
			f.running[c] = New(f.config(c), fsm.NewReplica())
			if err := f.running[c].Start(); err != nil {
				t.Fatal(err)
			}
			until(t, "the snapshot", has.Load)
			f.stop(lead)
			if again {
				f.disks[c].SetFault(nil)
				f.stop(c)
				f.start(c)
			}
			began := time.Now()
			until(t, "a write", func() bool { return f.write(other) })
			if took := time.Since(began); took > 2500*time.Millisecond {
				t.Errorf("no write for %v", took)
			}
			f.net.Heal()
			f.start(lead)
			f.whole()
			f.check()
		})
	}
}

// TestTailRefused: a leader that has taken a snapshot is cut off with entries that nobody else has. When the next leader, whose log begins with
// the first entry, has others in their place, its disk is full. Later it has room, and is started again, and a majority needs it.
func TestTailRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 20)
		c := leadOf(t, f)
		if err := f.running[c].engine.TakeSnapshot(); err != nil {
			t.Fatal(err)
		}
		f.cutOff(c, true)
		f.write(c)
		until(t, "another leader", func() bool { return f.write((c + 1) % 3) })
		time.Sleep(20 * time.Second)
		f.disks[c].SetFault(func() error { return errors.New("disk full") })
		f.net.Heal()
		until(t, "its fault", f.running[c].Failed.Load)
		time.Sleep(100 * time.Millisecond) // until its owner has closed it
		f.stop(c)
		f.disks[c].SetFault(nil)
		f.start(c)
		time.Sleep(10 * time.Second)
		lead := leadOf(t, f)
		third := 3 - c - lead
		f.stop(third)
		until(t, "a write", func() bool { return f.write(lead) })
		f.start(third)
		f.whole()
		f.check()
	})
}

// TestStaleLog: a member whose log has entries that no other member has, and ends
// before, at or after the end of the leader's snapshot, gets the same state as the
// others, even without further snapshots.
func TestStaleLog(t *testing.T) {
	for _, beyond := range []int{-2, -1, 0, 1, 3} {
		testkit.Bubble(t, fmt.Sprint(beyond), func(t *testing.T) {
			f := startedFleet(t, 20)
			f.whole()
			for i := range 3 {
				f.stop(i)
			}
			log := f.disks[2].Open().Log
			last, _ := log.LastIndex()
			var l raft.Log
			if err := log.GetLog(last, &l); err != nil {
				t.Fatal(err)
			}
			f.start(0) // in a later term
			f.start(1)
			f.writes(0, 20)
			f.snapshot(2)
			newest, err := f.running[0].engine.Storage().NewestSnapshot()
			if err != nil || newest.Index < last+5 || newest.Term <= l.Term {
				t.Fatalf("the log ends at %d in term %d, the snapshot at %d in term %d: %v", last, l.Term, newest.Index, newest.Term, err)
			}
			if err := log.StoreLogs(noops(last+1, newest.Index+uint64(beyond), l.Term)); err != nil {
				t.Fatal(err)
			}
			// The same snapshot sent again and again takes time, so that the wait ends.
			f.net.SetDelay(func(string, string) time.Duration { return time.Millisecond })
			if !ready(f.start(2), 10*time.Second) {
				t.Error("it is not ready after ten seconds")
			}
			f.writes(0, 20)
			time.Sleep(time.Second)
			states := map[string]bool{}
			for _, m := range f.running {
				m.replica.View(func(v *fsm.View) {
					states[fmt.Sprintf("index %d, digest %x, %v", v.Index(), v.Digest(), v.Check())] = true
				})
			}
			if len(states) != 1 {
				t.Errorf("states differ: %v", states)
			}
			log = f.running[2].engine.Storage().Log
			first, _ := log.FirstIndex()
			last, _ = log.LastIndex()
			for i := first; i <= last; i++ {
				var here, there raft.Log
				if err := log.GetLog(i, &here); err != nil {
					t.Errorf("entry %d of %d to %d: %v", i, first, last, err)
				}
				if f.running[0].engine.Storage().Log.GetLog(i, &there) == nil && here.Term != there.Term {
					t.Errorf("entry %d is of term %d, the leader's of term %d", i, here.Term, there.Term)
				}
			}
		})
	}
}

// TestHandOverToStuck: the leader is asked again and again to hand over to a member whose disk is stuck. Only a few of its messages wait there.
func TestHandOverToStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, leader, stuck, _ := wired(t, nil)
		time.Sleep(10 * time.Second)
		before := running("transport).take(")
		release := make(chan struct{})
		stuck.cfg.Memory.SetFault(func() error { <-release; return nil })
		fill(t, leader, "x", 1, 1000)
		time.Sleep(5 * time.Second)
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			if err := leader.engine.HandOver(ctx, stuck.cfg.ID); err == nil {
				t.Error("a member with a stuck disk leads")
			}
			cancel()
		}
		if now := running("transport).take("); now > before+14 {
			t.Errorf("%d connections of Raft are open, %d before", now, before)
		}
		stuck.cfg.Memory.SetFault(nil)
		close(release)
		time.Sleep(10 * time.Second)
	})
}

// TestStuckFollower: a member whose disk is stuck for long does not collect the leader's
// messages, and has everything soon after its disk works again.
func TestStuckFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, leader, m, _ := wired(t, nil)
		time.Sleep(10 * time.Second)
		before := running("transport).take(")
		release := make(chan struct{})
		m.cfg.Memory.SetFault(func() error { <-release; return nil })
		for i := range 20 {
			fill(t, leader, string(rune('A'+i)), 1, 900_000)
			time.Sleep(8 * time.Second)
		}
		if now := running("transport).take("); now > before+10 {
			t.Errorf("%d connections of Raft are open, %d before", now, before)
		}
		m.cfg.Memory.SetFault(nil)
		close(release)
		began := time.Now()
		last := leader.engine.StateIndex()
		until(t, "all entries", func() bool { return m.engine.StateIndex() >= last })
		if took := time.Since(began); took > m.contacts.ElectionTimeout {
			t.Errorf("it has them after %v", took)
		}
	})
}

// TestLateMemberOnSlowLink: a member that missed long entries, or needs a snapshot, catches up
// over a link that needs long for them. Then a long entry of its own gets over that link.
func TestLateMemberOnSlowLink(t *testing.T) {
	for _, x := range []struct {
		rate     int64 // bytes a second
		entries  int   // of 900 kB
		snapshot bool
		most     time.Duration
	}{
		{4 << 20, 30, false, 20 * time.Second},
		{150 << 10, 10, false, 80 * time.Second},
		{150 << 10, 0, true, 80 * time.Second}, // it has 8 MB
	} {
		testkit.Bubble(t, fmt.Sprintf("%+v", x), func(t *testing.T) {
			net, leader, late, _ := wired(t, func(c *Config) { c.SnapshotBytes = 1 << 30 })
			term := leader.engine.Term()
			again := stopMember(t, late)
			if x.snapshot {
				again = stopUntilSnapshot(t, late, leader)
			}
			fill(t, leader, "n", x.entries, 900_000)
			net.rate.Store(x.rate)
			late = catchesUp(t, leader, again, x.most, func(time.Duration) {})
			<-late.Ready()
			began := time.Now()
			fill(t, late, "own", 1, 900_000)
			if took, most := time.Since(began), 3*time.Duration(900_000/x.rate+1)*time.Second; took > most {
				t.Errorf("its own entry takes %v", took)
			}
			if leader.engine.Term() != term {
				t.Error("the leader was replaced meanwhile")
			}
		})
	}
}

// TestNeededMemberOnSlowLink: of three members one is down. Another one missed 8 MB, and is behind a slow
// link. It is needed for a majority. The leader's heartbeats wait on the link behind the entries, or behind the
// snapshot.
func TestNeededMemberOnSlowLink(t *testing.T) {
	for rate, snapshot := range map[int]bool{140 << 10: false, 200 << 10: true, 256 << 10: true, 300 << 10: false, 400 << 10: true} {
		testkit.Bubble(t, fmt.Sprintf("%d KiB per s, snapshot %v", rate>>10, snapshot), func(t *testing.T) {
			net, leader, late, third := wired(t, func(c *Config) { c.SnapshotBytes = 1 << 30 })
			var again func() *Member
			if snapshot {
				again = stopUntilSnapshot(t, late, leader)
			} else {
				again = stopMember(t, late)
				fill(t, leader, "n", 9, 900_000)
			}
			net.SetBandwidth(hostOf(leader), hostOf(late), rate)
			net.SetBandwidth(hostOf(late), hostOf(leader), rate)
			stopMember(t, third)
			began, late := time.Now(), again()
			most := 5*time.Duration(8<<20/rate+1)*time.Second + time.Minute
			for done := false; !done; {
				w := make(propose.Result, 1)
				leader.Propose(someWrite(), w, nil)
				select {
				case err := <-w:
					done = err == nil
					time.Sleep(10 * time.Millisecond)
				case <-time.After(most - time.Since(began)):
					t.Errorf("nothing is acknowledged in %v; the late one has %d of %d", time.Since(began), late.engine.StateIndex(), leader.engine.LastIndex())
					leader.Kill()
					late.Kill()
					return
				}
			}
		})
	}
}

// TestReturn: a member that was down or cut off for long serves, and counts for the majority,
// soon after it has returned.
func TestReturn(t *testing.T) {
	for _, crash := range []bool{true, false} {
		most := 50 * time.Millisecond
		if !crash {
			most = time.Second // until TCP sends again what the cut has swallowed
		}
		synctest.Test(t, func(t *testing.T) {
			f := startedFleet(t, 1)
			lead := leadOf(t, f)
			i, j := (lead+1)%3, (lead+2)%3
			for range 3 {
				if crash {
					f.net.Kill(string(rune('a' + i)))
					f.stop(i)
				} else {
					f.cutOff(i, true)
				}
				for range 12 {
					written(t, f.running[lead], 50*time.Millisecond)
					time.Sleep(time.Second)
				}
				began := time.Now()
				if crash {
					f.start(i)
				} else {
					f.cutOff(i, false)
				}
				<-f.running[i].Ready()
				if took := time.Since(began); took > 300*time.Millisecond {
					t.Errorf("a member that has returned serves after %v", took)
				}
				time.Sleep(time.Until(began.Add(300 * time.Millisecond)))
				f.cutOff(j, true)
				written(t, f.running[lead], most)
				f.cutOff(j, false)
				time.Sleep(10 * time.Second)
			}
		})
	}
}

// TestRestartWhileQuiet: a follower that restarts while nothing is written learns soon what
// is committed.
func TestRestartWhileQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		i := (leadOf(t, f) + 1) % 3
		for range 3 {
			time.Sleep(time.Minute)
			f.stop(i)
			if !ready(f.start(i), 250*time.Millisecond) {
				t.Error("a member that has restarted does not serve after 250 ms")
			}
		}
	})
}

// TestFollowerLearnsCommit: a single write through a follower does not wait until Raft
// tells the follower, 50 to 100 ms later, that the entry is committed.
func TestFollowerLearnsCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		for range 100 {
			time.Sleep(time.Second)
			if took := did(t, f.running[(leadOf(t, f)+1)%3], someWrite()); took > 40*time.Millisecond {
				t.Errorf("a write waited %v", took)
			}
		}
	})
}

// slowObserver is slow after each entry, so the next one is applied that much later.
type slowObserver struct {
	noObserver
	each atomic.Int64
}

func (o *slowObserver) Applied(uint64, uint64, int) { time.Sleep(time.Duration(o.each.Load())) }

// TestOthersKnowFirst: the leader tells the others that an entry is committed before it applies the
// entry, and a request that comes to one of them waits for what it has been told, but not for long.
func TestOthersKnowFirst(t *testing.T) {
	const toldWait = 2 * time.Millisecond // for which AwaitCommitted waits at most
	start := func(t *testing.T) (f *fleet, leader, follower *Member, slow *slowObserver) {
		f, slow = startedFleet(t, 5), new(slowObserver)
		lead := leadOf(t, f)
		one := (lead + 1) % 3
		f.stop(one)
		m := f.observed(one, slow)
		f.whole()
		until(t, "a touch", func() bool { return m.Touch(f.acked[0], nil) })
		f.net.SetDelay(func(string, string) time.Duration { return 100 * time.Microsecond })
		time.Sleep(time.Second)
		return f, f.running[lead], m, slow
	}
	testkit.Bubble(t, "before the leader applies it", func(t *testing.T) {
		_, leader, _, _ := start(t)
		known := uint64(0)
		w := make(propose.Result, 1)
		leader.Propose(fsm.OpenSession(98, 98, 1<<30, session.Password{}), cutWhenDone{w, func() { known = leader.engine.Told() }}, nil)
		if err := <-w; err != nil {
			t.Fatal(err)
		}
		if last := leader.engine.StateIndex(); known != last {
			t.Errorf("when entry %d was answered, the others were told of %d", last, known)
		}
	})
	for each, want := range map[time.Duration]bool{toldWait / 2: true, 10 * toldWait: false} {
		testkit.Bubble(t, "a follower is slow by "+each.String(), func(t *testing.T) {
			f, leader, follower, slow := start(t)
			slow.each.Store(int64(each))
			for id := range int64(2) {
				did(t, leader, fsm.OpenSession(uint64(98+id), 98+id, 1<<30, session.Password{}))
			}
			time.Sleep(400 * time.Microsecond) // until the follower has been told of both
			began := time.Now()
			if !follower.Touch(f.acked[0], nil) {
				t.Fatal("no session")
			}
			if took := time.Since(began); took > toldWait || follower.hasSession(99) != want {
				t.Errorf("after %v the follower has the write: %v", took, !want)
			}
			began = time.Now()
			follower.Touch(f.acked[0], nil)
			if took := time.Since(began); took > 0 {
				t.Errorf("the next request waits too, for %v", took)
			}
		})
	}
}

// TestServesAfterCut: a member that was cut off serves soon after the cut is healed, although
// its old connections carry nothing any more, and whether something waited on them or not.
func TestServesAfterCut(t *testing.T) {
	for _, length := range []time.Duration{time.Second, 3 * time.Second, 56 * time.Second} {
		for _, waits := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				net, _, m, _ := wired(t, nil)
				fill(t, m, "n", 1, 1)
				time.Sleep(10 * time.Second)
				net.lose(m)
				if waits {
					m.Propose(someWrite(), make(propose.Result, 1), nil)
					go m.Touch(fillsIn(m), nil)
				}
				time.Sleep(length)
				net.Heal()
				began := time.Now()
				for served := false; !served; {
					w := make(propose.Result, 1)
					m.Propose(someWrite(), w, nil)
					select {
					case err := <-w:
						served = err == nil
					case <-time.After(time.Minute):
						t.Fatalf("after a cut of %v a member does not serve within a minute", length)
					}
				}
				if took, most := time.Since(began), m.contacts.ElectionTimeout*3/2; took > most || length > 3*time.Second && took > m.contacts.ElectionTimeout {
					t.Errorf("after a cut of %v a member serves within %v; waits %v", length, took, waits)
				}
			})
		}
	}
}

// TestServesAfterManyCuts: a member that is cut off while it gets its snapshot, once or many times in a row, serves soon after
// the last cut is healed, although its old connections carry nothing any more, as promise 10 says of any cut.
func TestServesAfterManyCuts(t *testing.T) {
	for _, x := range []struct {
		cuts   int
		length time.Duration
	}{{1, 0}, {1, 3 * time.Second}, {1, 56 * time.Second}, {14, time.Second}} {
		testkit.Bubble(t, fmt.Sprintf("%d of %v", x.cuts, x.length), func(t *testing.T) {
			n, leader, late, _ := wired(t, nil)
			again := stopUntilSnapshot(t, late, leader)
			n.SetDelay(func(from, to string) time.Duration { return time.Millisecond })
			n.rate.Store(4 << 20) // the snapshot takes 2 s
			for i := range x.cuts {
				half := make(chan struct{})
				n.when(n.receiving(late, 1<<20), func(*wire) { close(half) })
				if i == 0 {
					late = again()
				}
				<-half
				n.lose(late)
				time.Sleep(x.length)
				n.Heal()
			}
			if most := late.contacts.ElectionTimeout*5/2 + 3*time.Second; !ready(late, most) {
				t.Errorf("after the last cut it does not serve within %v", most)
			}
		})
	}
}

// noops returns entries without commands.
func noops(first, last, term uint64) (logs []*raft.Log) {
	for i := first; i <= last; i++ {
		logs = append(logs, &raft.Log{Index: i, Term: term, Type: raft.LogNoop})
	}
	return logs
}
