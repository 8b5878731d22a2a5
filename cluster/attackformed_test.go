package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

// byWord is an operator's word that server id forms the cluster of its list.
func (f *fleet) byWord(id uint64) error {
	_, err := Ask(f.t.Context(), f.net.Host("operator"), f.peers[id], Request{Form: true})
	return err
}

// noSecond fails if one of servers 1 to 3 is in another cluster than of.
func (f *fleet) noSecond(of ClusterID) {
	f.t.Helper()
	for i := range 3 {
		if is := f.running[i].membership.gate.cluster(); is != 0 && is != of {
			f.t.Errorf("servers 1 to 3 are in %v; cluster %v exists", f.inCluster(0, 1, 2), of)
			return
		}
	}
}

// TestWordBesideCluster: servers of a list of the past, with a Join, wait because a cluster that has one of them as a
// member calls that. An operator's word does not make a second cluster of them, whichever of them gets it.
func TestWordBesideCluster(t *testing.T) {
	t.Run("alone in its list", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 3)
			alone := func() Config {
				cfg := f.config(0)
				cfg.Peers, cfg.Join = []proto.Peer{{ID: 1, Addr: f.peers[1]}}, f.peers[1]
				return cfg
			}
			f.open(0, alone())
			for i := 1; i < 3; i++ {
				f.open(i, joining(f, i))
			}
			f.whole()
			of := f.running[1].membership.gate.cluster()
			f.lose(0)
			f.open(0, alone())
			time.Sleep(time.Minute)
			if err := f.byWord(1); err == nil || !strings.Contains(err.Error(), "calls this server as a member") {
				t.Errorf("the operator is told %v", err)
			}
			f.noSecond(of)
		})
	})
	for id := uint64(1); id <= 3; id++ {
		t.Run(fmt.Sprint("to server ", id), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := replaced(t, 0, 2)
				of := f.running[3].membership.gate.cluster()
				for i := range 3 {
					f.lose(i)
					f.open(i, inList(f, i, f.peers[1]))
				}
				time.Sleep(time.Minute)
				if err := f.byWord(id); err == nil || !strings.Contains(err.Error(), "calls this server as a member") {
					t.Errorf("the operator is told %v", err)
				}
				f.noSecond(of)
			})
		})
	}
}

// TestServerAtJoinLeavesItsCluster: servers wait because the server at their Join belongs to another cluster. When that was
// emptied and started to join theirs, they form it; not if it has only lost its disk, and is taken in again.
func TestServerAtJoinLeavesItsCluster(t *testing.T) {
	for _, leaves := range []bool{true, false} {
		t.Run(fmt.Sprint("leaves ", leaves), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 6)
				three := listOf(map[uint64]string{1: f.peers[1], 2: f.peers[2], 3: f.peers[3]})
				others := listOf(map[uint64]string{4: f.peers[4], 5: f.peers[5], 6: f.peers[6]})
				other := func(i int) {
					cfg := f.config(i)
					cfg.Peers = others
					f.open(i, cfg)
				}
				for i := 3; i < 6; i++ {
					other(i)
				}
				for i := range 3 {
					cfg := f.config(i)
					cfg.Peers, cfg.Join = three, f.peers[4]
					f.open(i, cfg)
				}
				time.Sleep(30 * time.Second)
				f.lose(3)
				if !leaves {
					f.cutBetween(3, 4, true)
					f.cutBetween(3, 5, true)
					other(3)
					time.Sleep(8 * time.Second)
					f.net.Heal()
					time.Sleep(30 * time.Second)
					f.noSecond(0)
					return
				}
				cfg := f.config(3)
				cfg.Peers, cfg.Addr, cfg.Join = nil, f.peers[4], f.peers[1]
				f.stop(4)
				f.stop(5)
				f.open(3, cfg)
				time.Sleep(30 * time.Second)
				if of := f.inCluster(0, 1, 2, 3); of[0] == 0 || of[1] != of[0] || of[2] != of[0] || of[3] != of[0] {
					t.Errorf("servers 1 to 4 are in %v: %s", of, f.running[0].Waiting())
				}
			})
		})
	}
}

// TestServerAtJoinStartsTwice: the same server has lost its disk, and is started twice before its cluster takes it in again. It
// does not say all that time that it is in no cluster.
func TestServerAtJoinStartsTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 6)
		list := func(i int, ids ...uint64) Config {
			cfg := f.config(i)
			cfg.Peers = slices.DeleteFunc(cfg.Peers, func(x proto.Peer) bool { return !slices.Contains(ids, x.ID) })
			return cfg
		}
		other := func(i int) { f.open(i, list(i, 4, 5, 6)) }
		for i := 3; i < 6; i++ {
			other(i)
		}
		for i := range 3 {
			cfg := list(i, 1, 2, 3)
			cfg.Join = f.peers[4]
			f.open(i, cfg)
		}
		time.Sleep(30 * time.Second)
		f.lose(3)
		f.cutBetween(3, 4, true)
		f.cutBetween(3, 5, true)
		other(3)
		time.Sleep(2 * time.Second)
		f.stop(3)
		time.Sleep(9 * time.Second)
		other(3)
		time.Sleep(2 * time.Second)
		f.net.Heal()
		time.Sleep(30 * time.Second)
		f.noSecond(0)
	})
}

// TestObserverOnlyJoins: an observer of the list is started with a Join and no list, before the cluster is formed. The voters do
// not wait for it to have their list.
func TestObserverOnlyJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		cfg := f.config(2)
		cfg.Peers, cfg.Addr, cfg.Join, cfg.Observer = nil, f.peers[3], f.peers[1], true
		m := f.open(2, cfg)
		for i := range 2 {
			cfg := f.config(i)
			observe(&cfg, 3)
			f.open(i, cfg)
		}
		time.Sleep(time.Minute)
		if !f.write(0) || !f.write(2) || m.Role() != "observer" {
			t.Errorf("server 1 says %q, the observer %q, whose role is %s", f.running[0].Waiting(), m.Waiting(), m.Role())
		}
	})
}

// TestObserverRemovedBeforeData is TestRemovedBeforeData for a server that is to have no vote, with a list and without.
func TestObserverRemovedBeforeData(t *testing.T) {
	for _, listed := range []bool{false, true} {
		t.Run(fmt.Sprint("listed ", listed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 4)
				flags := func(i int) Config {
					cfg := f.config(i)
					observe(&cfg, 4)
					if i == 3 && !listed {
						cfg.Peers, cfg.Addr, cfg.Join = nil, f.peers[4], f.peers[1]
					}
					return cfg
				}
				for i := range 3 {
					f.open(i, flags(i))
				}
				until(t, "a write", func() bool { return f.write(0) })
				x := f.startStuck(3, flags(3))
				time.Sleep(time.Second)
				if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[1], Request{Remove: 4}); err != nil {
					t.Fatal(err)
				}
				if err := fault(x, 5*time.Minute); err == nil {
					t.Error("it does not end")
				}
				x.Kill()
			})
		})
	}
}

// TestPlainListOfThePast is TestRemovedOnesAndLostDisk without a Join. Server 2, the member, is called before the last one
// of the list is started.
func TestPlainListOfThePast(t *testing.T) {
	for _, last := range []int{0, 2} {
		t.Run(fmt.Sprint("last ", last+1), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := replaced(t, 0, 2)
				of := f.running[3].membership.gate.cluster()
				f.lose(1)
				for k := range 3 {
					i := (last + 1 + k) % 3
					f.lose(i)
					f.open(i, inList(f, i, ""))
					time.Sleep(5 * time.Second)
				}
				time.Sleep(time.Minute)
				f.noSecond(of)
				f.writes(3, 1)
			})
		})
	}
}

// TestVoteOverSlowLink: a member that has lost its disk gets its vote back over links that are as slow as they may be, with a
// short election timeout.
func TestVoteOverSlowLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		open := func(i int) {
			cfg := f.config(i)
			cfg.ElectionTimeout = 400 * time.Millisecond
			f.open(i, cfg)
		}
		for i := range 3 {
			open(i)
		}
		f.whole()
		f.net.SetDelay(func(string, string) time.Duration { return 48 * time.Millisecond })
		f.lose(2)
		open(2)
		f.whole()
	})
}

// counting counts the connections that are made.
type counting struct {
	Network
	made *atomic.Int64
}

func (c counting) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c.made.Add(1)
	return c.Network.Dial(ctx, addr)
}

// TestTwoClustersCall: two clusters take an empty server that waits for the others of its list for a member of
// theirs. It does not ask those others many times a second.
func TestTwoClustersCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two, f := newFleet(t, 3), newFleet(t, 3), newFleet(t, 3)
		one.peers = map[uint64]string{1: "u:1", 2: "b:1", 3: "v:1"}
		two.peers = map[uint64]string{1: "x:1", 2: "b:1", 3: "y:1"}
		two.net, f.net = one.net, one.net
		for _, x := range []*fleet{one, two} {
			for i := range 3 {
				x.start(i)
			}
			x.whole()
			x.stop(1)
			f.net.Cut("u", "b", true) // while the other one is formed
			f.net.Cut("v", "b", true)
		}
		f.net.Heal()
		var made atomic.Int64
		cfg := joining(f, 1)
		cfg.Network = counting{cfg.Network, &made}
		f.open(1, cfg)
		time.Sleep(time.Minute)
		if n := made.Load(); n > 300 {
			t.Errorf("it has made %d connections in a minute", n)
		}
	})
}

// TestRefusedAfterSnapshot: a follower gets a snapshot, and has no room for the first entry after it. When it has
// been started again, the leader does not go back through its own log, one entry at a time.
func TestRefusedAfterSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		open := func(i int) {
			cfg := f.config(i)
			cfg.SnapshotBytes = 1000 * entryCost
			f.open(i, cfg)
		}
		for i := range 3 {
			open(i)
		}
		f.whole()
		lead := leadOf(t, f)
		c := (lead + 1) % 3
		f.stop(c)
		f.writes(lead, 2500)
		var m atomic.Pointer[Member]
		f.disks[c].SetFault(func() error {
			if x := m.Load(); x != nil && x.raft.AppliedIndex() > 1000 {
				return errors.New("disk full")
			}
			return nil
		})
		open(c)
		m.Store(f.running[c])
		until(t, "its fault", m.Load().over.Load)
		time.Sleep(100 * time.Millisecond) // until its owner has closed it
		if at := m.Load().raft.AppliedIndex(); at != m.Load().raft.LastIndex() {
			t.Fatalf("it has applied %d of %d", at, m.Load().raft.LastIndex())
		}
		f.stop(c)
		f.disks[c].SetFault(nil)
		f.net.SetDelay(func(string, string) time.Duration { return 5 * time.Millisecond })
		open(c)
		began := time.Now()
		f.whole()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it has caught up after %v", took)
		}
	})
}

// TestRefusedAfterOwnSnapshot is the same for a follower whose own snapshot has left nothing of its log but the end, while the leader
// has all of it.
func TestRefusedAfterOwnSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 20)
		lead := leadOf(t, f)
		c := (lead + 1) % 3
		if err := f.running[c].raft.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		f.disks[c].SetFault(func() error { return errors.New("disk full") })
		f.write(lead)
		until(t, "its fault", f.running[c].over.Load)
		time.Sleep(100 * time.Millisecond)
		f.stop(c)
		f.disks[c].SetFault(nil)
		f.start(c)
		f.whole()
	})
}

// TestFailedIsNotStuck: a follower that has failed for another reason does not say that its disk is stuck.
func TestFailedIsNotStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		lead := leadOf(t, f)
		f.running[(lead+1)%3].fail(ErrDiffers)
		until(t, "what it says", func() bool { return f.log.Count("disconnecting clients") > 0 })
		if f.log.Count("the disk is stuck") > 0 || f.log.Count("this member has failed: disconnecting clients") == 0 {
			t.Error(f.log.String())
		}
	})
}
