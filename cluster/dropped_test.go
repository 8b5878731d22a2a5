package cluster

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestLists: which of a log's lists takes a vote away, whatever is stored, read and deleted.
func TestLists(t *testing.T) {
	entry := func(index uint64, votes bool) *raft.Log {
		s := raft.Server{ID: "7", Suffrage: raft.Nonvoter}
		if votes {
			s.Suffrage = raft.Voter
		}
		return &raft.Log{Index: index, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{s}})}
	}
	is := func(x *lists, newest, before list) {
		t.Helper()
		if x.newest != newest || x.before != before {
			t.Errorf("%+v, then %+v", x.before, x.newest)
		}
	}
	var x lists
	for _, l := range []*raft.Log{entry(9, false), entry(2, false), entry(5, true), entry(9, false), entry(5, true), {Index: 10}} {
		x.note(l, "7")
	}
	is(&x, list{9, false}, list{5, true})
	x.deleted(1, 4)
	is(&x, list{9, false}, list{5, true})
	x.deleted(9, 12)
	is(&x, list{5, true}, list{})
	x.note(entry(9, true), "7")
	x.note(entry(11, false), "7")
	is(&x, list{11, false}, list{9, true})
	x.deleted(9, 12)
	is(&x, list{}, list{})
}

// TestLeaderLostWhileRemovingJoined is TestLeaderLostWhileRemoving for a voter that has joined by a snapshot,
// and has lost power with the others. What it has applied is then the state of that snapshot, in which it has
// no vote yet.
func TestLeaderLostWhileRemovingJoined(t *testing.T) {
	for _, how := range []string{"remove", "demote"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 4)
				config := f.found(3)
				lead := leadOf(t, f)
				f.writes(lead, 20)
				f.snapshot(3)
				// Server 4 joins, and gets the snapshot.
				cfg := config(3)
				cfg.Join = "a:1"
				f.open(3, cfg)
				until(t, "another voter", func() bool {
					s, _ := f.running[3].Status()
					return len(s.Members) == 4 && voters(s.Members) == 4
				})
				f.writes(lead, 3)
				time.Sleep(time.Minute)
				if newest, _ := f.running[3].raft.storage.NewestSnapshot(); newest.Index == 0 {
					t.Fatal("it has joined without a snapshot")
				}
				f.loseLeaderWhileRemoving(lead, 3, how, true, config)
			})
		})
	}
}

// slowApplier applies the next entry in three seconds once slow is true.
type slowApplier struct{ slow, waits atomic.Bool }

func (*slowApplier) Changed(*fsm.View, []proto.Change) {}
func (*slowApplier) Answered()                         {}
func (*slowApplier) Restoring()                        {}
func (*slowApplier) Restored()                         {}
func (*slowApplier) Failed(error)                      {}
func (o *slowApplier) Applied(index, term uint64, bytes int) {
	if o.slow.CompareAndSwap(true, false) {
		o.waits.Store(true)
		time.Sleep(3 * time.Second)
	}
}

// TestRemovedDoesNotStand: a member knows that the list without it is committed, but applies entries
// slowly, and has not applied that one, when the leader is lost. It does not stand for election: Raft
// would not notice that it must step down.
func TestRemovedDoesNotStand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		var o slowApplier
		replica := fsm.NewReplica()
		replica.Observe(&o)
		x, err := openMember(f.config(0), replica)
		if err != nil {
			t.Fatal(err)
		}
		f.running[0] = x
		for i := 1; i < 4; i++ {
			f.start(i)
		}
		f.whole()
		f.handTo(1)
		time.Sleep(10 * time.Second)
		o.slow.Store(true)
		f.write(1)
		until(t, "the slow entry", o.waits.Load)
		if _, err := Ask(t.Context(), f.net.Host("operator"), "b:1", Request{Remove: 1}); err != nil {
			t.Fatal(err)
		}
		until(t, "the commit", func() bool { return x.raft.CommitIndex() >= f.running[1].raft.CommitIndex() })
		f.stop(1)
		for _, i := range []int{2, 3} { // so that they need long for an election
			f.disks[i].SetFault(func() error { time.Sleep(900 * time.Millisecond); return nil })
		}
		for range 20_000 {
			time.Sleep(time.Millisecond)
			x.contacts.mu.Lock()
			stood := x.contacts.stood
			x.contacts.mu.Unlock()
			if stood > 0 {
				t.Fatal("it stands")
			}
		}
	})
}

// TestObserverDoesNotStand: three voters, and an observer with a lower id, lose power. Their logs have no
// snapshot, and a write to their disks takes 20 or 80 ms. Two of the voters and the observer come back. The
// observer never had a vote, and does not stand in the way of the voters' election.
func TestObserverDoesNotStand(t *testing.T) {
	for _, c := range []struct {
		observer bool
		write    time.Duration
		starts   int
	}{{false, 20 * time.Millisecond, 40}, {true, 20 * time.Millisecond, 40}, {false, 80 * time.Millisecond, 3}, {true, 80 * time.Millisecond, 3}} {
		observer := c.observer
		t.Run(fmt.Sprintf("observer=%v,write=%v", observer, c.write), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 4)
				config := func(i int) Config {
					cfg := f.config(i)
					observe(&cfg, 1)
					return cfg
				}
				for i := range 4 {
					f.open(i, config(i))
				}
				lead := leadOf(t, f)
				f.writes(lead, 20)
				time.Sleep(10 * time.Second)
				for i := range 4 {
					f.stop(i)
					f.disks[i].SetFault(func() error { time.Sleep(c.write); return nil })
				}
				var worst time.Duration
				for range c.starts {
					began := time.Now()
					if observer {
						f.open(0, config(0))
					}
					f.open(1, config(1))
					f.open(2, config(2))
					for !f.write(1) && !f.write(2) && time.Since(began) < 10*time.Minute {
					}
					worst = max(worst, time.Since(began))
					for i := range 4 {
						f.stop(i)
					}
				}
				if worst > 10*time.Second {
					t.Errorf("two of three voters are up and connected, and nothing is acknowledged for %v", worst)
				}
			})
		})
	}
}
