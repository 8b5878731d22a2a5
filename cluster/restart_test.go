package cluster

import (
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/proto"
)

// stuckReport says where two members stand that should have a leader.
func stuckReport(t *testing.T, f *fleet, is ...int) {
	for _, i := range is {
		if m := f.running[i]; m != nil {
			s, _ := m.Status()
			t.Errorf("server %d: %s, Raft %v, term %d, log %d, commit %d, applied %d, %v", i+1, s.Role, m.raft.State(), s.Term, m.raft.LastIndex(), m.raft.CommitIndex(), m.raft.AppliedIndex(), s.Members)
		}
	}
}

// ledBy starts the servers which, again and again until server i wins the first election. known is that
// server while it is started.
func (f *fleet) ledBy(i int, known *atomic.Pointer[Member], which []int, config func(i int) Config) {
	f.t.Helper()
	for range 30 {
		known.Store(f.open(i, config(i)))
		for _, x := range which {
			if x != i {
				f.open(x, config(x))
			}
		}
		leader := -1
		until(f.t, "a leader", func() bool {
			leader = slices.IndexFunc(which, func(x int) bool { return f.running[x].raft.State() == raft.Leader })
			return leader >= 0
		})
		if which[leader] == i {
			return
		}
		known.Store(nil)
		for _, x := range which {
			f.stop(x)
		}
	}
	f.t.Fatalf("server %d never won the first election", i+1)
}

// TestCrashAfterElectionAfterRestart: a member of three was replaced by a new one, server 4, after the others
// have taken a snapshot. Then all lose power, and only server 4 and one of the others come back. They elect a
// leader, and server 4 crashes once more while it writes the leader's first entry (or the link fails just
// then), and comes back at once. The leader sends it no heartbeats, since it has not applied the entry that
// added it, and Raft no entries, since it waits for the answer to a heartbeat.
func TestCrashAfterElectionAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		config := f.found(3)
		lead := leadOf(t, f)
		f.writes(lead, 20)
		f.snapshot(3)
		old := (lead + 1) % 3
		join := config(3)
		join.Peers, join.Addr, join.Join = nil, f.peers[4], f.peers[uint64(lead+1)]
		f.open(3, join)
		until(t, "another voter", func() bool {
			s, _ := f.running[3].Status()
			return len(s.Members) == 4 && voters(s.Members) == 4
		})
		if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], Request{Remove: uint64(old + 1)}); err != nil {
			t.Fatal(err)
		}
		f.writes(lead, 3)
		time.Sleep(10 * time.Second)
		for i := range 4 {
			f.stop(i)
		}
		var known atomic.Pointer[Member]
		var writing, crash atomic.Bool
		f.disks[3].SetFault(func() error {
			m := known.Load()
			for m != nil && m.raft.Raft != nil && m.raft.State() == raft.Leader {
				writing.Store(true)
				if crash.Load() {
					return errors.New("crashed")
				}
				time.Sleep(time.Millisecond)
			}
			return nil
		})
		f.ledBy(lead, &known, []int{lead, 3}, func(i int) Config {
			if i == 3 {
				return join
			}
			return config(i)
		})
		until(t, "the first entry", writing.Load)
		crash.Store(true)
		f.stop(3)
		time.Sleep(200 * time.Millisecond)
		f.disks[3].SetFault(nil)
		f.open(3, join)
		time.Sleep(10 * time.Minute)
		if !f.write(lead) && !f.write(3) {
			t.Error("two of three voters have been up and connected for ten minutes, with all data, and nothing is acknowledged")
			stuckReport(t, f, lead, 3)
		}
	})
}

// TestObserverOwedNoVote: a server was started with the address of a cluster that did not take it in, and is
// started again as an observer. It does not become a voter.
func TestObserverOwedNoVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		f.found(3)
		lead := leadOf(t, f)
		f.writes(lead, 1)
		// Another change is under way, so the first attempt fails.
		f.running[lead].membership.changing.take()
		cfg := f.config(3)
		cfg.Peers, cfg.Addr, cfg.Join = nil, f.peers[4], f.peers[uint64(lead+1)]
		m := f.open(3, cfg)
		until(t, "the question", func() bool { return m.membership.former.asked.Load() != 0 })
		time.Sleep(time.Second)
		f.stop(3)
		time.Sleep(time.Minute)
		f.running[lead].membership.changing.give()
		// The operator corrects the command line.
		observe(&cfg, 4)
		f.open(3, cfg)
		time.Sleep(time.Minute)
		if s, _ := f.running[lead].Status(); find(s.Members, 4) == nil || !find(s.Members, 4).Observer {
			t.Errorf("server 4 is started as an observer: %v", s.Members)
		}
	})
}

// TestFormedAfterWrongCluster: a new server was given the address of another cluster to join, which has
// refused it. Then it is started with the right list, and crashes while the cluster is formed.
func TestFormedAfterWrongCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 3) // the wrong cluster
		addrs := map[uint64]string{1: "p:1", 2: "q:1", 3: "r:1"}
		disks := []*storage.Memory{storage.NewMemory(), storage.NewMemory(), storage.NewMemory()}
		config := func(i int) Config {
			cfg := f.config(0)
			cfg.ID, cfg.Peers, cfg.Memory = uint64(i+1), listOf(addrs), disks[i]
			cfg.Network = f.net.Host(strings.TrimSuffix(addrs[uint64(i+1)], ":1"))
			return cfg
		}
		open := func(cfg Config) *Member {
			m := &fleet{t: t, running: make([]*Member, 1)}
			x := m.open(0, cfg)
			t.Cleanup(func() { m.stop(0) })
			return x
		}
		wrong := config(0)
		wrong.Peers, wrong.Addr, wrong.Join = nil, addrs[1], f.peers[uint64(lead+1)]
		m := open(wrong)
		time.Sleep(time.Minute)
		if m.membership.gate.lifted() {
			t.Fatal("it was taken in")
		}
		m.Kill()
		var known atomic.Pointer[Member]
		disks[0].SetFault(func() error {
			if m := known.Load(); m != nil && m.raft.storage.Identity().Agreed {
				return errors.New("crashed")
			}
			return nil
		})
		m = open(config(0))
		known.Store(m)
		others := []*Member{open(config(1)), open(config(2))}
		until(t, "the crash", func() bool { return m.raft.storage.Identity().Agreed })
		time.Sleep(100 * time.Millisecond)
		m.Kill()
		disks[0].SetFault(nil)
		m = open(config(0))
		time.Sleep(10 * time.Minute)
		for i, m := range append(others, m) {
			if !m.membership.gate.lifted() {
				s, _ := m.Status()
				t.Errorf("after ten minutes, member %d of 3 is in no cluster: %s", i, s.Waiting)
			}
		}
		for _, m := range others {
			m.Kill()
		}
		m.Kill()
	})
}

// listed reports whether a leader's log ends with a list of members, after the entry last. Raft sends it
// a moment before it takes it for its newest one.
func listed(m *Member, last uint64) bool {
	var l raft.Log
	end := m.raft.LastIndex()
	return end > last && m.raft.log.GetLog(end, &l) == nil && l.Type == raft.LogConfiguration
}

// TestElectedAsObserver: a voter stands for election while its disk writes the list in which it has no vote.
// It is elected, and that must not be the end of its Raft.
func TestElectedAsObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := fleetOf(t, 4)
		f.handTo(3)
		lead := 3
		x, others := 0, []int{1, 2}
		time.Sleep(10 * time.Second)
		leader, m := f.running[lead], f.running[x]
		last := leader.raft.LastIndex()
		var crash, release, writing atomic.Bool
		for _, i := range others {
			f.disks[i].SetFault(func() error {
				for listed(leader, last) && leader.raft.State() == raft.Leader && !crash.Load() {
					time.Sleep(time.Millisecond)
				}
				if crash.Load() {
					return errors.New("crashed")
				}
				return nil
			})
		}
		f.disks[x].SetFault(func() error {
			for listed(leader, last) && !release.Load() {
				writing.Store(true)
				time.Sleep(time.Millisecond)
			}
			return nil
		})
		go Ask(t.Context(), f.net.Host("operator"), "d:1", Request{Add: &proto.Peer{ID: 1, Addr: "a:1", Observer: true}})
		until(t, "the list", writing.Load)
		crash.Store(true)
		f.stop(lead)
		for _, i := range others {
			f.stop(i)
			f.disks[i].SetFault(nil)
			f.start(i)
		}
		for range 900 {
			m.contacts.mu.Lock()
			stood := m.contacts.stood
			m.contacts.mu.Unlock()
			if stood > 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(20 * time.Millisecond)
		release.Store(true)
		time.Sleep(time.Minute)
		if m.raft.State() == raft.Shutdown {
			t.Errorf("its Raft has shut down; its fault: %v", fault(m, 0))
		}
		f.start(lead)
		time.Sleep(10 * time.Minute)
		if !f.write(1) && !f.write(2) && !f.write(3) {
			t.Error("nothing is acknowledged after ten minutes")
		}
		until(t, "its state", func() bool {
			s, _ := m.Status()
			y, _ := f.running[1].Status()
			return s.Index == y.Index
		})
	})
}

// TestAllUpAfterRestart is TestCrashAfterElectionAfterRestart for a cluster that has grown from one server,
// whose snapshot is of the time before the others were added. All three are up and connected at the end.
// With "link", no process ends: the leader's connections break once, and are refused for 200 ms.
func TestAllUpAfterRestart(t *testing.T) {
	for _, how := range []string{"crash", "link"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { allUpAfterRestart(t, how) })
		})
	}
}

func allUpAfterRestart(t *testing.T, how string) {
	f := newFleet(t, 3)
	alone := f.found(1)(0)
	until(t, "a leader", func() bool { return f.running[0].Role() == "leader" })
	f.writes(0, 20)
	if err := f.running[0].raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	config := func(i int) Config {
		cfg := f.config(i)
		cfg.Peers, cfg.Addr, cfg.Join = nil, f.peers[uint64(i+1)], "a:1"
		return cfg
	}
	for i := 1; i < 3; i++ {
		f.open(i, config(i))
	}
	f.whole()
	time.Sleep(10 * time.Second)
	for i := range 3 {
		f.stop(i)
	}
	var known atomic.Pointer[Member]
	var writing [3]atomic.Bool
	var crash atomic.Bool
	for i := 1; i < 3; i++ {
		f.disks[i].SetFault(func() error {
			for m := known.Load(); m != nil && known.Load() != nil && m.raft.Raft != nil && m.raft.State() == raft.Leader; {
				writing[i].Store(true)
				if crash.Load() {
					return errors.New("crashed")
				}
				time.Sleep(time.Millisecond)
			}
			return nil
		})
	}
	var no atomic.Bool
	alone.Network = refusing{refusing{alone.Network, "b:1", &no}, "c:1", &no}
	f.ledBy(0, &known, []int{0, 1, 2}, func(i int) Config {
		if i == 0 {
			return alone
		}
		return config(i)
	})
	until(t, "the first entry", func() bool { return writing[1].Load() && writing[2].Load() })
	if how == "crash" {
		crash.Store(true)
		f.stop(1)
		f.stop(2)
		time.Sleep(200 * time.Millisecond)
		for i := 1; i < 3; i++ {
			f.disks[i].SetFault(nil)
			f.open(i, config(i))
		}
	} else {
		no.Store(true)
		m := known.Load()
		m.peers.mu.Lock()
		var ended []net.Conn
		for c := range m.peers.conns {
			ended = append(ended, c)
		}
		m.peers.mu.Unlock()
		for _, c := range ended {
			c.Close()
		}
		time.Sleep(200 * time.Millisecond)
		no.Store(false)
		known.Store(nil) // the disks are fast again
		for i := 1; i < 3; i++ {
			f.disks[i].SetFault(nil)
		}
	}
	time.Sleep(10 * time.Minute)
	if !f.write(0) && !f.write(1) && !f.write(2) {
		t.Error("all three voters have been up and connected for ten minutes, with all data, and nothing is acknowledged")
		stuckReport(t, f, 0, 1, 2)
	}
}

// TestLeaderLostWhileRemoving: the leader removes or demotes a voter, and is lost when that one has the new
// list and the others do not have it yet. Those that remain of four voters (a member of three is being
// replaced) are a majority of the old list and of the new one. (Those that remain of three are none of the
// new one, which has two: then the leader has to come back.)
func TestLeaderLostWhileRemoving(t *testing.T) {
	for _, how := range []string{"remove", "demote"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { leaderLostWhileRemoving(t, 4, how) })
		})
	}
}

func leaderLostWhileRemoving(t *testing.T, size int, how string) {
	f, lead := fleetOf(t, size)
	x := (lead + 1) % size
	f.loseLeaderWhileRemoving(lead, x, how, false, f.config)
}

// loseLeaderWhileRemoving has the leader remove or demote member x, and takes the power when only x has the
// new list. All but the leader come back; x itself had not lost its power unless restarts is true.
// Something must be acknowledged then.
func (f *fleet) loseLeaderWhileRemoving(lead, x int, how string, restarts bool, config func(i int) Config) {
	t := f.t
	t.Helper()
	id := uint64(x + 1)
	var others, up []int
	for i := range f.running {
		if i != lead {
			up = append(up, i)
		}
		if i != lead && i != x {
			others = append(others, i)
		}
	}
	leader := f.running[lead]
	changed := func(m *Member) bool {
		all, err := m.raft.members()
		is := find(all, id)
		return err == nil && len(all) > 0 && (is == nil || is.Observer)
	}
	last := leader.raft.LastIndex()
	var crash atomic.Bool
	for _, i := range others {
		f.disks[i].SetFault(func() error {
			for listed(leader, last) && leader.raft.State() == raft.Leader && !crash.Load() {
				time.Sleep(time.Millisecond)
			}
			if crash.Load() {
				return errors.New("crashed")
			}
			return nil
		})
	}
	q := Request{Remove: id}
	if how == "demote" {
		q = Request{Add: &proto.Peer{ID: id, Addr: f.peers[id], Observer: true}}
	}
	go Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], q)
	until(t, "the list on the member", func() bool { return changed(f.running[x]) })
	// A loss of power. All but the leader come back.
	crash.Store(true)
	f.stop(lead)
	for _, i := range others {
		f.stop(i)
		f.disks[i].SetFault(nil)
		f.open(i, config(i))
	}
	if restarts {
		f.stop(x)
		f.open(x, config(x))
	}
	time.Sleep(10 * time.Minute)
	for _, i := range up {
		if f.write(i) {
			return
		}
	}
	t.Errorf("all but the leader have been up and connected for ten minutes, with all data, and nothing is acknowledged")
	stuckReport(t, f, up...)
}

// TestLeaderLostWhileRemovingAfterSnapshot is TestLeaderLostWhileRemoving for a voter whose log once had a
// list in which it had no vote: it was added as an observer, was down when a reconfig made it a voter (as in
// ZooKeeper, new voters may be down), and has got the leader's snapshot since then, which took the place of
// its log. The lists that it has noted are still those of that log.
func TestLeaderLostWhileRemovingAfterSnapshot(t *testing.T) {
	for _, how := range []string{"remove", "demote"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 4)
				config := f.found(3)
				f.open(3, config(3))
				lead := leadOf(t, f)
				ask := func(q Request) {
					t.Helper()
					if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], q); err != nil {
						t.Fatal(err)
					}
				}
				ask(Request{Add: &proto.Peer{ID: 4, Addr: f.peers[4], Observer: true}})
				until(t, "the observer", func() bool { return f.running[3].raft.AppliedIndex() == f.running[lead].raft.AppliedIndex() })
				show := func(when string) {
					n := f.running[3].raft
					n.lists.mu.Lock()
					defer n.lists.mu.Unlock()
					first, _ := n.storage.Log.FirstIndex()
					last, _ := n.storage.Log.LastIndex()
					t.Logf("%s: lists noted by server 4: %+v, then %+v; log %d to %d", when, n.lists.before, n.lists.newest, first, last)
				}
				show("added")
				f.stop(3)
				ask(Request{Reconfig: &Reconfig{Joining: []proto.Peer{{ID: 4, Addr: f.peers[4]}}, Version: -1, WaitMs: 5000}})
				f.writes(lead, 20)
				f.snapshot(3)
				f.open(3, config(3))
				// As compactor.run does before each snapshot of its own: thousands of entries, usually.
				if err := f.running[3].raft.configure(func(r *raft.ReloadableConfig) { r.TrailingLogs = 1000 }); err != nil {
					t.Fatal(err)
				}
				show("started")
				until(t, "the voter", func() bool {
					s, _ := f.running[3].Status()
					return voters(s.Members) == 4 && s.Index == f.running[lead].raft.AppliedIndex()
				})
				f.writes(lead, 3)
				time.Sleep(time.Minute)
				if newest, _ := f.running[3].raft.storage.NewestSnapshot(); newest.Index == 0 {
					t.Fatal("it has come back without a snapshot")
				}
				show("back")
				f.loseLeaderWhileRemoving(lead, 3, how, false, config)
			})
		})
	}
}
