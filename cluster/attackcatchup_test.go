package cluster

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// TestSnapshotOlderThanState: answers of a follower are lost while the leader takes a snapshot, which ends between what the leader
// knows the follower to have and what that has applied. Then the follower refuses this snapshot, and must not need
// it.
func TestSnapshotOlderThanState(t *testing.T) {
	for _, own := range []bool{false, true} { // the follower has taken a snapshot too, and has nothing of the log before it
		t.Run(fmt.Sprint("own ", own), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startedFleet(t, 20)
				lead := leadOf(t, f)
				c := (lead + 1) % 3
				l, x := f.running[lead].raft, f.running[c].raft
				snapshot := func(n *node) {
					if err := n.Snapshot().Error(); err != nil {
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
					return x.AppliedIndex() == l.LastIndex()
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
		})
	}
}

// TestFailedIsQuiet: a follower that could not write, and that nobody closes, does not log at each attempt of the leader that it still cannot.
func TestFailedIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 20)
		f.whole()
		lead := leadOf(t, f)
		c := (lead + 1) % 3
		f.disks[c].SetFault(func() error { return errors.New("disk full") })
		f.write(lead)
		until(t, "its fault", f.running[c].over.Load)
		time.Sleep(5 * time.Minute)
		if n := strings.Count(f.log.String(), "disk full"); n > 1 {
			t.Errorf("it was logged %d times that its disk is full", n)
		}
	})
}

// TestClusterIsGone: a server that has lost its disk waits to be taken in, and its cluster is emptied and formed anew meanwhile. It cannot know
// that, and says what to do.
func TestClusterIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		f.whole()
		lead := leadOf(t, f)
		c, other := (lead+1)%3, (lead+2)%3
		f.lose(c)
		f.start(c) // so soon, it is refused at first
		time.Sleep(100 * time.Millisecond)
		f.lose(other)
		time.Sleep(5 * time.Second)
		f.lose(lead)
		f.start(lead)
		f.start(other)
		time.Sleep(time.Minute)
		if why := f.running[0].Waiting() + f.running[1].Waiting() + f.running[2].Waiting(); !strings.Contains(why, "start this server again") {
			t.Fatal(why)
		}
		f.stop(c)
		f.start(c)
		until(t, "the new cluster", func() bool { return f.write(c) })
	})
}

// TestReturnIsNotLogged: nobody logs, at the default level, that a follower was stopped, and that it needs a snapshot when it is started again.
func TestReturnIsNotLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		open := func(i int) {
			cfg := f.config(i)
			cfg.SnapshotBytes = 100 * entryCost
			f.open(i, cfg)
		}
		for i := range 3 {
			open(i)
		}
		f.whole()
		before := f.log.String()
		lead := leadOf(t, f)
		c := (lead + 1) % 3
		f.stop(c)
		f.writes(lead, 500)
		open(c)
		f.whole()
		if after := f.log.String(); after != before {
			t.Error(strings.TrimPrefix(after, before))
		}
	})
}

// TestLeaderLostAfterSnapshot: a follower's log ends with entries that were never committed, where the leader's snapshot ends. The leader is lost
// while the follower installs that, and the next one has all of its log. The two are a majority, also if the
// follower is started again.
func TestLeaderLostAfterSnapshot(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint("again ", again), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startedFleet(t, 20)
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
				if err := f.running[lead].raft.Snapshot().Error(); err != nil {
					t.Fatal(err)
				}
				newest, err := f.running[lead].raft.storage.NewestSnapshot()
				if err != nil {
					t.Fatal(err)
				}
				if err := log.StoreLogs(noops(end.Index+1, newest.Index+3, end.Term)); err != nil {
					t.Fatal(err)
				}
				var has atomic.Bool
				f.disks[c].SetFault(func() error {
					if is, err := f.running[c].raft.storage.NewestSnapshot(); err == nil && is.Index == newest.Index && !has.Load() {
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
				until(t, "a write", func() bool { return f.write(other) })
				f.net.Heal()
				f.start(lead)
				f.whole()
				f.check()
			})
		})
	}
}
