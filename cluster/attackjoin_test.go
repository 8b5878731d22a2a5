package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// joining are the configurations of servers that are in the list, and have a Join as well.
func joining(f *fleet, i int) Config {
	cfg := f.config(i)
	cfg.Join = f.peers[1]
	return cfg
}

func joiningFleet(t *testing.T, n int) (f *fleet, lead int) {
	f = newFleet(t, n)
	for i := range n {
		f.open(i, joining(f, i))
	}
	f.whole()
	return f, leadOf(t, f)
}

// TestRemovedBeforeItsPlace: a member of the list has lost its disk and has learned that the cluster still has it. An
// operator removes it while the leader has its request. It does not add itself again.
func TestRemovedBeforeItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := joiningFleet(t, 3)
		other := (lead + 1) % 3
		id := uint64(other + 1)
		f.lose(other)
		time.Sleep(time.Minute)
		changing := f.running[lead].membership.changing
		changing.take()
		removed := make(chan error, 1)
		go func() {
			_, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], Request{Remove: id})
			removed <- err
		}()
		time.Sleep(time.Second)
		m := f.open(other, joining(f, other))
		time.Sleep(4 * time.Second)
		if m.membership.gate.lifted() {
			t.Fatal("it has an answer")
		}
		changing.give()
		if err := <-removed; err != nil {
			t.Fatal(err)
		}
		if err := fault(m, 5*time.Minute); !errors.Is(err, ErrRemoved) {
			t.Errorf("its fault is %v", err)
		}
		if s, _ := f.running[lead].Status(); find(s.Members, id) != nil {
			t.Errorf("it has added itself again: %v", s.Members)
		}
	})
}

// TestRemovedBeforeItsRequest: a member of the list has lost its disk, has learned that the cluster still has it, and
// its disk is slow. An operator removes it before it has asked for its place. It does not add itself again.
func TestRemovedBeforeItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := joiningFleet(t, 3)
		other := (lead + 1) % 3
		id := uint64(other + 1)
		f.lose(other)
		time.Sleep(time.Minute)
		f.disks[other].SetFault(func() error {
			time.Sleep(2 * time.Second)
			return nil
		})
		m := f.open(other, joining(f, other))
		until(t, "what it says of the cluster", func() bool { return len(f.log.Matching("this member's data is empty")) > 0 })
		if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], Request{Remove: id}); err != nil {
			t.Fatal(err)
		}
		if m.membership.former.asked.Load() != 0 {
			t.Fatal("it has asked")
		}
		if err := fault(m, 5*time.Minute); !errors.Is(err, ErrRemoved) {
			t.Errorf("its fault is %v", err)
		}
		if s, _ := f.running[lead].Status(); find(s.Members, id) != nil {
			t.Errorf("it has added itself again: %v", s.Members)
		}
	})
}

// TestRemovedBeforeAnswerListed is TestRemovedBeforeAnswer for a server in the list. That may learn in another way that it was
// added, since it also asks others: then it is tried again.
func TestRemovedBeforeAnswerListed(t *testing.T) {
	for range 20 {
		if removedBeforeAnswer(t) {
			return
		}
	}
	t.Fatal("it always has an answer")
}

// removedBeforeAnswer reports whether the server had no answer.
func removedBeforeAnswer(t *testing.T) (unanswered bool) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := joiningFleet(t, 4)
		other := (lead + 1) % 4
		id, at := uint64(other+1), f.peers[uint64(lead+1)]
		if _, err := Ask(t.Context(), f.net.Host("operator"), at, Request{Remove: id}); err != nil {
			t.Fatal(err)
		}
		fault(f.running[other], time.Minute)
		f.lose(other)
		time.Sleep(time.Minute)
		cfg := joining(f, other)
		cfg.Network = &muting{Network: cfg.Network}
		m := f.open(other, cfg)
		until(t, "the addition", func() bool {
			s, _ := f.running[lead].Status()
			return find(s.Members, id) != nil
		})
		time.Sleep(time.Second)
		if m.membership.gate.lifted() {
			return
		}
		unanswered = true
		if _, err := Ask(t.Context(), f.net.Host("operator"), at, Request{Remove: id}); err != nil {
			t.Fatal(err)
		}
		if err := fault(m, 5*time.Minute); !errors.Is(err, ErrRemoved) {
			t.Errorf("its fault is %v", err)
		}
		if s, _ := f.running[lead].Status(); find(s.Members, id) != nil {
			t.Errorf("it has added itself again: %v", s.Members)
		}
	})
	return unanswered
}

// TestRemovedBeforeRestart: a server that has stored that it belongs to the cluster, but nothing else, is removed while
// it is down.
func TestRemovedBeforeRestart(t *testing.T) {
	for _, agreed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f, lead := joiningFleet(t, 3)
			other := (lead + 1) % 3
			id := uint64(other + 1)
			f.lose(other)
			s := f.disks[other].Open()
			if err := errors.Join(s.SetRejoining(true), s.SetIdentity(storage.Identity{Cluster: f.running[lead].membership.gate.cluster(), Agreed: agreed, Since: 3})); err != nil {
				t.Fatal(err)
			}
			s.Close()
			if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], Request{Remove: id}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			m := f.open(other, joining(f, other))
			if err := fault(m, 5*time.Minute); !errors.Is(err, ErrRemoved) {
				t.Errorf("agreed %v: its fault is %v", agreed, err)
			}
			if s, _ := f.running[lead].Status(); find(s.Members, id) != nil {
				t.Errorf("agreed %v: it has added itself again: %v", agreed, s.Members)
			}
		})
	}
}

// TestJoinsClusterAtReusedAddress: a member that has lost its disk sees, besides members of its cluster that it does not
// reach, a cluster of its own at the address of a member that is gone.
func TestJoinsClusterAtReusedAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := joiningFleet(t, 3)
		f.stop(0)
		f.write(1)
		f.lose(1)
		f.lose(0)
		cfg := f.config(0) // another cluster, of one
		cfg.Peers = []proto.Peer{{ID: 1, Addr: f.peers[1]}}
		one := f.open(0, cfg)
		f.net.Cut("b", "c", true)
		f.net.Cut("c", "b", true)
		m := f.open(1, joining(f, 1))
		time.Sleep(time.Minute)
		if m.membership.gate.lifted() {
			t.Errorf("it belongs to cluster %v; that of server 3, of which it was, is %v", m.membership.gate.cluster(), f.running[2].membership.gate.cluster())
		}
		t.Log(one.membership.gate.cluster())
	})
}

// TestRemovedAndRestarted: a removed server of the list that has lost its disk asks to join, is removed again before it
// has its answer, and is started again by its supervisor, with what it has stored.
func TestRemovedAndRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := joiningFleet(t, 4)
		other := (lead + 1) % 4
		id, at := uint64(other+1), f.peers[uint64(lead+1)]
		f.lose(other)
		time.Sleep(time.Minute)
		cfg := joining(f, other)
		cfg.Network = &muting{Network: cfg.Network}
		m := f.open(other, cfg)
		time.Sleep(2 * time.Second)
		if m.membership.gate.lifted() {
			t.Fatal("it has an answer")
		}
		if _, err := Ask(t.Context(), f.net.Host("operator"), at, Request{Remove: id}); err != nil {
			t.Fatal(err)
		}
		if err := fault(m, 5*time.Minute); !errors.Is(err, ErrRemoved) {
			t.Errorf("its fault is %v", err)
		}
		f.stop(other)
		m = f.open(other, joining(f, other))
		time.Sleep(time.Minute)
		s, _ := f.running[lead].Status()
		t.Logf("after a restart its fault is %v, and the members are %v", fault(m, time.Second), s.Members)
	})
}

// inCluster returns the clusters that the members with these indexes are in.
func (f *fleet) inCluster(is ...int) (of []ClusterID) {
	for _, i := range is {
		of = append(of, f.running[i].membership.gate.cluster())
	}
	return of
}

// foreign starts a cluster of one, server id at the address of the member with index i, whose disk is lost.
func (f *fleet) foreign(i int, peers ...proto.Peer) ClusterID {
	f.t.Helper()
	f.lose(i)
	cfg := f.config(i)
	cfg.Peers = peers
	m := f.open(i, cfg)
	until(f.t, "the other cluster", func() bool { return m.membership.gate.lifted() })
	return m.membership.gate.cluster()
}

// TestJoinWithoutStatus: the leader's answer whether it has a server lacks its status, as that of an earlier build.
func TestJoinWithoutStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t)
		b.cfg.Peers, b.cfg.Join = listOf(map[uint64]string{1: "a:1", 2: "b:1"}), "b:1"
		b.answerRequests(t, "b", func(q Request) Reply {
			if q.Status {
				return Reply{Status: &Status{ID: 2, Formed: true, Cluster: testCluster}}
			}
			if q.Add != nil {
				t.Error("it asks for a place")
			}
			return Reply{} // it does not know member 1
		})
		m := b.membership()
		b.startFormer(m)
		time.Sleep(10 * time.Second)
		if m.gate.lifted() {
			t.Error("it takes part in a cluster")
		}
	})
}

// TestAccounted: what servers of its list say that keeps a server from joining a cluster which does not have it.
func TestAccounted(t *testing.T) {
	list := []proto.Peer{{ID: 1, Addr: "a:1"}, {ID: 2, Addr: "b:1"}, {ID: 3, Addr: "c:1"}}
	for _, x := range []struct {
		name    string
		members []proto.Peer // of the cluster of server 2, which does not have server 1
		third   *Status      // what server 3 says; nil if it does not answer
		joins   bool
	}{
		{"server 3 is a member", list[1:], nil, true},
		{"another server 3 is a member", []proto.Peer{list[1], {ID: 3, Addr: "z:1"}}, nil, false},
		{"server 3 has moved, and answers", []proto.Peer{list[1], {ID: 3, Addr: "z:1"}}, &Status{ID: 3, Formed: true, Cluster: testCluster}, true},
		{"server 3 is no member", list[1:2], nil, false},
		{"server 3 is in no cluster", list[1:2], &Status{ID: 3}, true},
		{"server 3 is in another cluster", list[1:2], &Status{ID: 3, Formed: true, Cluster: testCluster + 1}, false},
		{"another server answers", list[1:2], &Status{ID: 4, Formed: true, Cluster: testCluster}, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBase(t)
				b.cfg.Peers, b.cfg.Join = list, "b:1"
				b.answerRequests(t, "b", func(q Request) Reply { return Reply{Status: &Status{ID: 2, Formed: true, Cluster: testCluster}} })
				if x.third != nil {
					b.answerRequests(t, "c", func(q Request) Reply { return Reply{Status: x.third} })
				}
				m := b.membership()
				m.former.begin(beginning{list: list, first: b.cfg.first()})
				m.former.others.began = never
				if err := m.former.accounted(x.members, "b:1", testCluster); (err == nil) != x.joins {
					t.Error(err)
				}
			})
		})
	}
}

// TestJoinsWhileOwnComesBack: a member of servers 1, 2 and 3 has lost its disk. At the address of server 1 is another
// cluster now, and server 3 is reached again while it asks there.
func TestJoinsWhileOwnComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := joiningFleet(t, 3)
		f.lose(1)
		other := f.foreign(0, proto.Peer{ID: 1, Addr: f.peers[1]})
		f.net.SetDelay(func(from, to string) time.Duration {
			if from == "a" && to == "b" {
				return 400 * time.Millisecond
			}
			return 0
		})
		f.cutBetween(1, 2, true)
		m := f.open(1, joining(f, 1))
		time.Sleep(1100 * time.Millisecond)
		f.cutBetween(1, 2, false)
		time.Sleep(time.Minute)
		if of := m.membership.gate.cluster(); of != 0 {
			t.Errorf("it is in cluster %v; the other one is %v, its own %v", of, other, f.running[2].membership.gate.cluster())
		}
	})
}

// TestJoinsOtherServer3 is TestJoinsClusterAtReusedAddress with a cluster that has a server 3 elsewhere.
func TestJoinsOtherServer3(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := joiningFleet(t, 3)
		f.lose(1)
		f.lose(0)
		list := []proto.Peer{{ID: 1, Addr: f.peers[1]}, {ID: 3, Addr: "z:1"}}
		third := f.config(2)
		third.Peers, third.Memory, third.Network = list, nil, f.net.Host("z")
		z, err := openMember(third, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		defer z.Kill()
		other := f.foreign(0, list...)
		f.cutBetween(1, 2, true)
		m := f.open(1, joining(f, 1))
		time.Sleep(time.Minute)
		if of := m.membership.gate.cluster(); of != 0 {
			t.Errorf("it is in cluster %v; the other one is %v, its own %v", of, other, f.running[2].membership.gate.cluster())
		}
	})
}

// replaced is a fleet of five: servers 1 to 3 have formed the cluster, 4 and 5 were added, and those in out removed.
func replaced(t *testing.T, out ...int) *fleet {
	t.Helper()
	f := newFleet(t, 5)
	for i := range 3 {
		cfg := joining(f, i)
		cfg.Peers = cfg.Peers[:0:0]
		for j := range 3 {
			cfg.Peers = append(cfg.Peers, proto.Peer{ID: uint64(j + 1), Addr: f.peers[uint64(j+1)]})
		}
		f.open(i, cfg)
	}
	for i := 3; i < 5; i++ {
		cfg := f.config(i)
		cfg.Peers, cfg.Addr, cfg.Join = nil, f.peers[uint64(i+1)], f.peers[1]
		f.open(i, cfg)
	}
	f.whole()
	for _, i := range out {
		if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[5], Request{Remove: uint64(i + 1)}); err != nil {
			t.Fatal(err)
		}
		fault(f.running[i], time.Minute)
		f.stop(i)
	}
	return f
}

// inList is the configuration of server i of replaced.
func inList(f *fleet, i int, join string) Config {
	cfg := f.config(i)
	cfg.Join = join
	cfg.Peers = listOf(map[uint64]string{1: f.peers[1], 2: f.peers[2], 3: f.peers[3]})
	return cfg
}

// TestRemovedOnesAndLostDisk: of servers 1 to 3, which have formed the cluster, 1 and 3 were removed, and come back
// empty. At the same time server 2, a member, loses its disk. All of the list are empty, and form no other cluster.
func TestRemovedOnesAndLostDisk(t *testing.T) {
	for last := range 3 {
		synctest.Test(t, func(t *testing.T) {
			f := replaced(t, 0, 2)
			of := f.running[3].membership.gate.cluster()
			f.lose(1)
			for k := range 3 {
				i := (last + 1 + k) % 3
				f.lose(i)
				f.open(i, inList(f, i, f.peers[1]))
				time.Sleep(5 * time.Second)
			}
			time.Sleep(time.Minute)
			for i := range 3 {
				if is := f.running[i].membership.gate.cluster(); is != 0 && is != of {
					t.Errorf("server %d, started last, is in %v; cluster %v exists", last+1, f.inCluster(0, 1, 2), of)
					break
				}
			}
			f.writes(3, 1)
		})
	}
}

// TestWaitsQuietly: a server that has lost its disk is called by its cluster, and waits for servers of its list that
// were removed. It does not ask them, nor log that, many times a second.
func TestWaitsQuietly(t *testing.T) {
	for _, join := range []string{"", "a:1"} {
		synctest.Test(t, func(t *testing.T) {
			f := replaced(t, 0, 2)
			f.lose(1)
			cfg := inList(f, 1, join)
			cfg.Log = f.log.Logger(slog.LevelInfo)
			f.open(1, cfg)
			time.Sleep(time.Minute)
			if n := f.log.Count("not in the cluster yet"); n > 100 {
				t.Errorf("it has logged %d times in a minute that it is in no cluster", n)
			}
		})
	}
}

// TestAllReplacedAndSlow: all of the list were replaced, and come back empty. The first packets to the server at their
// Join are lost.
func TestAllReplacedAndSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := replaced(t, 0, 1, 2)
		of := f.running[3].membership.gate.cluster()
		for i := range 3 {
			f.cutBetween(i, 3, true)
		}
		for i := range 3 {
			f.lose(i)
			f.open(i, inList(f, i, f.peers[4]))
		}
		time.Sleep(4 * time.Second)
		for i := range 3 {
			f.cutBetween(i, 3, false)
		}
		time.Sleep(time.Minute)
		for i := range 3 {
			if is := f.running[i].membership.gate.cluster(); is != 0 && is != of {
				t.Errorf("servers 1 to 3 are in %v; cluster %v exists", f.inCluster(0, 1, 2), of)
				break
			}
		}
	})
}

// TestAllReplacedAndOneWithoutJoin: all of the list were replaced, and come back empty; the one that proposes has no Join.
func TestAllReplacedAndOneWithoutJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := replaced(t, 0, 1, 2)
		of := f.running[3].membership.gate.cluster()
		for i := range 3 {
			f.lose(i)
			f.open(i, inList(f, i, []string{"", f.peers[4], f.peers[4]}[i]))
		}
		time.Sleep(time.Minute)
		for i := range 3 {
			if is := f.running[i].membership.gate.cluster(); is != 0 && is != of {
				t.Errorf("servers 1 to 3 are in %v; cluster %v exists", f.inCluster(0, 1, 2), of)
				break
			}
		}
	})
}

// TestFirstLostAfterGrowth: a single server, whose Join is itself, has become one of three. It loses its disk before its
// flags name the others.
func TestFirstLostAfterGrowth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		alone := func() Config {
			cfg := f.config(0)
			cfg.Peers, cfg.Join = cfg.Peers[:0:0], f.peers[1]
			cfg.Peers = append(cfg.Peers, proto.Peer{ID: 1, Addr: f.peers[1]})
			return cfg
		}
		f.open(0, alone())
		for i := 1; i < 3; i++ {
			f.open(i, joining(f, i))
		}
		f.whole()
		f.lose(0)
		m := f.open(0, alone())
		time.Sleep(time.Minute)
		if of := m.membership.gate.cluster(); of != 0 && of != f.running[1].membership.gate.cluster() {
			t.Errorf("it is in cluster %v, the others in %v", of, f.inCluster(1, 2))
		}
	})
}

// TestListOfThePast: server 2 of a cluster whose first members were 1 and 2 loses its disk. Server 1 was removed, and
// its address is another cluster's now.
func TestListOfThePast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		two := func(i int) Config {
			cfg := f.config(i)
			cfg.Peers, cfg.Join = listOf(map[uint64]string{1: f.peers[1], 2: f.peers[2]}), f.peers[1]
			return cfg
		}
		for i := range 2 {
			f.open(i, two(i))
		}
		for i := 2; i < 4; i++ {
			cfg := f.config(i)
			cfg.Peers, cfg.Addr, cfg.Join = nil, f.peers[uint64(i+1)], f.peers[1]
			f.open(i, cfg)
		}
		f.whole()
		if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[3], Request{Remove: 1}); err != nil {
			t.Fatal(err)
		}
		fault(f.running[0], time.Minute)
		other := f.foreign(0, proto.Peer{ID: 1, Addr: f.peers[1]})
		f.lose(1)
		time.Sleep(10 * time.Second)
		m := f.open(1, two(1))
		time.Sleep(time.Minute)
		if of := m.membership.gate.cluster(); of == other {
			t.Errorf("it has joined cluster %v, and is a member of %v", of, f.inCluster(2, 3))
		}
	})
}

// TestJoinNamesAnotherCluster: servers 1 to 3 were replaced. At the address of server 1 is another cluster now, and
// server 2 comes back empty with a Join to its own.
func TestJoinNamesAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := replaced(t, 0, 1, 2)
		other := f.foreign(0, proto.Peer{ID: 1, Addr: f.peers[1]})
		for i := 1; i < 3; i++ {
			f.lose(i)
			f.open(i, inList(f, i, f.peers[4]))
		}
		time.Sleep(time.Minute)
		for i := 1; i < 3; i++ {
			if of := f.running[i].membership.gate.cluster(); of == other {
				t.Errorf("server %d is in cluster %v, the one at its Join in %v", i+1, of, f.running[3].membership.gate.cluster())
			}
		}
	})
}

// TestFormAndJoinInAnyOrder is TestFormInAnyOrder with a Join, with removals, slow links and cuts. A removed server comes
// back empty.
func TestFormAndJoinInAnyOrder(t *testing.T) {
	testkit.SlowUnderRace(t)
	runs := 40
	if testkit.Thorough && !testkit.Race {
		runs = 400
	}
	seed := testkit.Seed(t)
	for run := range runs {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, uint64(run)))
			size := 3 + 2*r.IntN(2)
			f := newFleet(t, size)
			slow := r.IntN(3) == 0
			f.net.SetDelay(func(from, to string) time.Duration {
				if slow {
					return 30 * time.Millisecond
				}
				return 0
			})
			f.net.Cut("a", "y", true)
			f.net.Cut("b", "y", true)
			join := []string{"a:1", "b:1", "c:1", "y:1", "z:1", "own"}[r.IntN(6)] // nobody is at y, which is silent, or at z
			listed := size
			if size == 5 && r.IntN(2) == 0 { // the others have the same flags, and are not in the list
				listed, join = 3, "c:1"
			}
			open := func(i int) {
				cfg := joining(f, i)
				if cfg.Join = join; join == "own" {
					cfg.Join = f.peers[uint64(i+1)]
				}
				cfg.Peers = slices.DeleteFunc(cfg.Peers, func(x proto.Peer) bool { return x.ID > uint64(listed) })
				if i >= listed {
					cfg.Peers, cfg.Addr = nil, f.peers[uint64(i+1)]
				}
				f.open(i, cfg)
			}
			var lost []int // whose disk is lost, until all are well again
			var did []string
			note := func(what string, i int) { did = append(did, fmt.Sprint(what, " ", i+1)) }
			for range 10 + r.IntN(40) {
				i, j := r.IntN(size), r.IntN(size)
				switch n := r.IntN(13); {
				case n < 4 && f.running[i] == nil:
					open(i)
					note("start", i)
				case n < 6:
					f.stop(i)
					note("stop", i)
				case n == 6 && (len(lost) < (listed-1)/2 || slices.Contains(lost, i)):
					f.lose(i)
					if !slices.Contains(lost, i) {
						lost = append(lost, i)
					}
					note("lose", i)
				case n == 7 && !slices.Contains(f.running, nil):
					f.net.Heal()
					f.whole()
					lost = nil
					did = append(did, "all well")
				case n == 8 && (len(lost) < (listed-1)/2 || slices.Contains(lost, i)) && f.running[j] != nil && i != j:
					_, err := f.running[j].Ask(t.Context(), Request{Remove: uint64(i + 1)})
					note(fmt.Sprintf("remove (%v)", err), i)
					// Whether it was removed or not, it comes back empty.
					f.lose(i)
					if !slices.Contains(lost, i) {
						lost = append(lost, i)
					}
				case n == 9 && i != j:
					f.cutBetween(i, j, true)
					note("cut", i)
				case n == 10:
					f.net.Heal()
				default:
					f.write(i)
				}
				time.Sleep(time.Duration(r.IntN(1<<r.IntN(13))) * time.Millisecond)
				var of ClusterID
				for _, m := range f.running {
					if m == nil || !m.membership.gate.lifted() {
						continue
					}
					if is := m.membership.gate.cluster(); of != 0 && is != of {
						t.Errorf("there are two clusters, %v and %v", of, is)
					} else {
						of = is
					}
				}
			}
			f.net.Heal()
			f.net.Cut("a", "y", true)
			for i, m := range f.running {
				if m == nil {
					open(i)
				}
			}
			f.whole()
			f.check()
			for i, m := range f.running {
				select {
				case err := <-m.Err():
					t.Errorf("member %d: %v", i+1, err)
				default:
				}
			}
			if t.Failed() {
				t.Errorf("run %d, %d of %d in the list, join %s: %v", run, listed, size, join, did)
			}
		})
	}
}

// TestOldDirectoryTakesIDBack: server 2 was removed while it waited for its vote, and another server got its id, at
// another address. While that is down, the old one is started again with its old directory. It does not take the id back: it
// has nothing of what the other one has acknowledged.
func TestOldDirectoryTakesIDBack(t *testing.T) {
	for _, flags := range []func(f *fleet, i int) Config{joining, (*fleet).config} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 3)
			for i := range 3 {
				f.open(i, flags(f, i))
			}
			f.whole()
			f.stop(1)
			if err := f.disks[1].Open().SetRejoining(true); err != nil { // as while it waits
				t.Fatal(err)
			}
			operator := f.net.Host("operator")
			if _, err := Ask(t.Context(), operator, f.peers[1], Request{Remove: 2}); err != nil {
				t.Fatal(err)
			}
			cfg := f.config(1)
			cfg.Peers, cfg.Addr, cfg.Join = nil, "z:1", "a:1"
			cfg.Network, cfg.Memory = f.net.Host("z"), storage.NewMemory()
			z, err := openMember(cfg, fsm.NewReplica())
			if err != nil {
				t.Fatal(err)
			}
			until(t, "its vote", func() bool {
				s, err := Ask(t.Context(), operator, f.peers[1], Request{Status: true})
				x := proto.Peer{}
				if err == nil && find(s.Members, 2) != nil {
					x = *find(s.Members, 2)
				}
				return x.Addr == "z:1" && !x.Observer
			})
			f.writes(0, 1)
			time.Sleep(time.Second)
			z.Kill()
			f.open(1, flags(f, 1))
			time.Sleep(time.Minute)
			s, err := Ask(t.Context(), operator, f.peers[1], Request{Status: true})
			if err != nil {
				t.Fatal(err)
			}
			if x := find(s.Members, 2); x == nil || x.Addr != "z:1" {
				t.Errorf("the members are %v", s.Members)
			}
		})
	}
}
