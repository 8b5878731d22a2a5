package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// grown returns a cluster to whose first member two others were added after 200 writes, and which
// then lost its disk, and the leader's index.
func grown(t *testing.T) (f *fleet, lead int) {
	t.Helper()
	f = newFleet(t, 3)
	config := f.found(1)
	until(t, "a leader", func() bool { return f.running[0].Role() == "leader" })
	f.writes(0, 200)
	for i := 1; i < 3; i++ {
		cfg := config(i)
		cfg.Join = "a:1"
		f.open(i, cfg)
	}
	f.whole()
	f.lose(0)
	return f, leadOf(t, f)
}

// openSlowly opens a member without data, whose disk is slow once it is in the cluster, while slow is true, and waits until it
// has its first entries.
func (f *fleet) openSlowly(i int, cfg Config) (m *Member, slow *atomic.Bool) {
	f.t.Helper()
	slow = new(atomic.Bool)
	slowly(f.disks[i], slow)
	m = f.open(i, cfg)
	until(f.t, "the first entries", func() bool {
		slow.Store(slow.Load() || m.pulse.gate.IsOpen())
		return m.engine.LastIndex() > 1
	})
	return m, slow
}

// awaitVoters waits until, by the list of the member with index i, there are n members, all with a vote.
func (f *fleet) awaitVoters(i, n int) {
	f.t.Helper()
	until(f.t, "another voter", func() bool {
		s := f.running[i].membership.Status()
		return len(s.Members) == n && election.CountVoters(s.Members) == n
	})
}

// lacks counts the acknowledged writes that a member does not have.
func lacks(m *Member, acked []int64) (n int) {
	m.replica.View(func(v *fsm.View) {
		for _, id := range acked {
			if v.Sessions().Get(id) == nil {
				n++
			}
		}
	})
	return n
}

// TestOnlyVoterOfThePast: the first member of a cluster loses its disk. While it gets the log again,
// its list of members is the one in which it was alone; it must not lead by itself.
func TestOnlyVoterOfThePast(t *testing.T) {
	for _, restart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f, lead := grown(t)
			f.writes(lead, 10)
			again := f.joins(0, lead)
			m, slow := f.openSlowly(0, again)
			if s := f.running[lead].membership.Status(); m.engine.LastIndex() > 150 {
				t.Fatalf("it has %d of %d entries", m.engine.LastIndex(), s.Index)
			}
			f.cutOff(0, true)
			slow.Store(false)
			if restart {
				f.stop(0)
				m = f.open(0, again)
			}
			time.Sleep(2 * time.Minute)
			if m.Role() == "leader" || m.engine.LastIndex() > 150 {
				t.Errorf("it is %s, with %d entries", m.Role(), m.engine.LastIndex())
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
		waits := func(i int) (d time.Duration) {
			f.running[i].engine.Configure(func(c *raft.ReloadableConfig) { d = c.HeartbeatTimeout })
			return d
		}
		until(t, "the end of catching up, with Raft's usual timeouts", func() bool { return !f.running[other].engine.Abstains() && waits(other) == waits(lead) })
		f.stop(lead)
		f.stop(other)
		f.start(other) // which has its data and needs no leader to catch up
		leadOf(t, f)
		f.start(lead)
		f.whole()
		f.check()
	})
}

// TestVoteOfThePast: a member that has lost its disk, and gets the log again, does not vote for a
// member with a list of the past, which was cut off or removed before the list changed, and would
// have a majority by that list.
func TestVoteOfThePast(t *testing.T) {
	for _, removed := range []bool{false, true} {
		testkit.Bubble(t, fmt.Sprintf("removed=%v", removed), func(t *testing.T) { voteOfThePast(t, removed) })
	}
}

func voteOfThePast(t *testing.T, removed bool) {
	size := 5
	if removed {
		size = 4
	}
	f := newFleet(t, size)
	f.found(3)
	lead := leaderOf(t, f.running[:3])
	old, lost := (lead+1)%3, (lead+2)%3
	fill(t, f.running[lead], "n", 9, 900_000) // each is a message of its own when a member gets the log
	until(t, "all entries", func() bool { return f.running[old].engine.LastApplied() == f.running[lead].engine.LastIndex() })

	// One member is cut off. Meanwhile others are added, and writes are acknowledged.
	for x := range size {
		if x != old {
			f.cutBetween(old, x, true)
		}
	}
	for fresh := 3; fresh < size; fresh++ {
		cfg := f.joins(fresh, lead)
		f.open(fresh, cfg)
		f.awaitVoters(lead, fresh+1)
	}
	if removed {
		f.tell(lead, request.Request{Remove: uint64(old + 1)})
	}
	f.writes(lead, 5)

	// Another loses its disk, and comes back.
	f.lose(lost)
	var slow atomic.Bool
	slow.Store(true)
	slowly(f.disks[lost], &slow)
	m := f.start(lost)
	until(t, "the demotion", m.pulse.gate.IsOpen)
	// Now it is cut off from those who lead, and the first one reaches it again.
	for x := range size {
		f.cutBetween(lost, x, x != old)
	}
	slow.Store(false)
	f.writes(lead, 5)
	end := time.Now().Add(time.Minute)
	for time.Now().Before(end) && f.running[old].Role() != "leader" {
		time.Sleep(100 * time.Millisecond)
	}
	if f.running[old].Role() == "leader" {
		t.Errorf("server %d leads in term %d with the vote of server %d, which has lost its disk and has no vote", old+1, f.running[old].engine.Term(), lost+1)
		t.Errorf("at the same time server %d is %s in term %d", lead+1, f.running[lead].Role(), f.running[lead].engine.Term())
		one, other := f.write(old), f.write(lead)
		t.Errorf("acknowledged by server %d: %v, by server %d: %v", old+1, one, lead+1, other)
	}
	for i := range size {
		for j := range i {
			f.cutBetween(i, j, false)
		}
	}
	time.Sleep(time.Minute)
	for i, m := range f.running {
		if err := fault(m, 0); err != nil && i != old {
			t.Errorf("server %d ends: %v", i+1, err)
		}
		lacks := lacks(m, f.acked)
		if lacks > 0 && i != old {
			t.Errorf("server %d lacks %d acknowledged writes", i+1, lacks)
		}
	}
}

// TestRestartBehind: a member that is started while it is behind does not stand by Raft's own timeout,
// however soon Raft makes its timer.
func TestRestartBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := grown(t)
		again := f.joins(0, lead)
		_, slow := f.openSlowly(0, again)
		f.cutOff(0, true)
		slow.Store(false)
		for n := range 50 {
			f.stop(0)
			m := f.open(0, again)
			time.Sleep(30 * time.Second)
			if m.engine.Role() != engine.Follower {
				s := m.membership.Status()
				t.Errorf("start %d: behind %v, state %v, %+v", n, m.engine.Abstains(), m.engine.Role(), s)
				t.Fatalf("it acknowledges a write by itself: %v; so does the leader of the others: %v", f.write(0), f.write(lead))
			}
		}
	})
}

// refusing is a network on which one address refuses connections while no is true.
type refusing struct {
	peer.Network
	addr string
	no   *atomic.Bool
}

func (r refusing) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if addr == r.addr && r.no.Load() {
		return nil, &net.OpError{Op: "dial", Net: "memnet", Err: syscall.ECONNREFUSED}
	}
	return r.Network.Dial(ctx, addr)
}

// TestFollowsLeaderOfThePast: a member that has lost its disk has forgotten its term, too. It does not
// follow a leader of a term before that in which it was taken in: that one would count it for its
// majority, while another leads.
func TestFollowsLeaderOfThePast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		var no atomic.Bool
		first := map[uint64]string{1: f.peers[1], 2: f.peers[2], 3: f.peers[3]}
		config := func(i int) Config {
			cfg := f.config(i)
			cfg.Peers = listOf(first)
			if i > 0 {
				cfg.Network = refusing{cfg.Network, "a:1", &no}
			}
			return cfg
		}
		paused := config(0)
		paused.ElectionTimeout = 30 * time.Second // in this time it takes itself for the leader, like a process that was paused
		f.open(0, paused)
		f.open(1, config(1))
		f.open(2, config(2))
		until(t, "a leader", func() bool {
			return f.running[0].Role() == "leader" || f.running[1].Role() == "leader" || f.running[2].Role() == "leader"
		})
		f.handTo(0)
		f.writes(0, 50)
		for i := 1; i < 3; i++ {
			until(t, "all entries", func() bool { return f.running[i].engine.LastApplied() == f.running[0].engine.LastIndex() })
		}
		// The leader's connections break. The others are refused at once; it hears nothing.
		no.Store(true)
		for _, x := range []string{"b", "c", "d"} {
			f.net.Cut("a", x, true)
			f.net.Cut(x, "a", true)
		}
		for _, at := range []string{"b", "c"} {
			f.net.HangUp(at, "a")
		}
		next := 1 + leaderOf(t, f.running[1:3])
		lost := 3 - next
		// The operator replaces the first server.
		cfg := f.joins(3, next)
		cfg.Network = refusing{cfg.Network, "a:1", &no}
		f.open(3, cfg)
		f.awaitVoters(next, 4)
		f.tell(next, request.Request{Remove: 1})
		f.write(next)
		// Another one loses its disk.
		f.lose(lost)
		time.Sleep(f.running[next].contacts.ElectionTimeout) // it does not seem to follow any more
		var known atomic.Pointer[Member]
		f.disks[lost].SetFault(func() error {
			if m := known.Load(); m != nil && m.membership.HasAsked() { // it stores that it was taken in
				f.cutBetween(lost, next, true)
				f.cutBetween(lost, 3, true)
			}
			return nil
		})
		m := f.open(lost, config(lost))
		known.Store(m)
		until(t, "the demotion", m.pulse.gate.IsOpen)
		f.writes(next, 1)
		f.cutBetween(lost, 0, false)
		no.Store(false)
		term := f.running[0].engine.Term()
		if one := f.write(0); one && f.running[0].engine.Term() == term {
			t.Errorf("server 1 acknowledges a write in term %d, and server %d one in term %d", term, next+1, f.running[next].engine.Term())
		}
	})
}

// TestAstrayByListOfThePast: the first servers of a cluster were replaced, and their ids and addresses
// are those of another cluster now. A member that gets the log again, and loses the leader meanwhile,
// does not take itself for the one with the wrong directory.
func TestAstrayByListOfThePast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 5)
		f.found(3)
		until(t, "a cluster", func() bool {
			return f.running[0].Role() != "looking" && f.running[1].Role() != "looking" && f.running[2].Role() != "looking"
		})
		f.writes(2, 100)
		for i := 3; i < 5; i++ {
			cfg := f.joins(i, 2)
			f.open(i, cfg)
			f.awaitVoters(i, i+1)
		}
		for id := uint64(1); id < 3; id++ {
			until(t, "the removal", func() bool {
				_, err := request.Ask(t.Context(), f.net.Host("operator"), "c:1", request.Request{Remove: id})
				return err == nil
			})
		}
		time.Sleep(10 * time.Second)
		f.lose(0)
		f.lose(1)
		for i := range 2 {
			cfg := f.config(i)
			cfg.Peers = listOf(map[uint64]string{1: "a:1", 2: "b:1"})
			f.open(i, cfg)
		}
		until(t, "the other cluster", func() bool {
			return f.running[0].Role() != "looking" && f.running[1].Role() != "looking"
		})
		f.write(2)
		f.lose(2)
		cfg := f.config(2)
		cfg.Peers = listOf(map[uint64]string{3: "c:1", 4: "d:1", 5: "e:1"})
		m, slow := f.openSlowly(2, cfg)
		f.cutBetween(2, 3, true)
		f.cutBetween(2, 4, true)
		slow.Store(false)
		if err := fault(m, 30*time.Second); err != nil {
			t.Errorf("server 3 ends: %v", err)
		}
	})
}

// TestAbsentVoterKnowsNotTheCandidate: a voter was down while a member was replaced by another one. It is
// not in the list of the one that was down, which votes for it all the same: the two are a majority, and
// one of them has everything.
func TestAbsentVoterKnowsNotTheCandidate(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, lost := range []bool{false, true} {
		testkit.Bubble(t, fmt.Sprintf("lost=%v", lost), func(t *testing.T) {
			f, config, lead := threeOfFour(t)
			f.writes(lead, 20)
			old, absent := (lead+1)%3, (lead+2)%3
			until(t, "all entries", func() bool { return f.running[absent].engine.LastApplied() == f.running[lead].engine.LastIndex() })
			f.stop(absent) // for a repair, say
			// Meanwhile another member is replaced by server 4.
			cfg := f.joins(3, lead)
			f.open(3, cfg)
			f.awaitVoters(3, 4)
			f.tell(lead, request.Request{Remove: uint64(old + 1)})
			f.writes(lead, 1)
			time.Sleep(time.Minute)
			f.stop(old)
			// The leader goes, and the other one is back: two of three.
			if lost {
				f.lose(lead) // the first disk that is lost at all
			} else {
				f.stop(lead)
			}
			m := f.open(absent, config(absent))
			if lost {
				f.open(lead, config(lead))
			}
			time.Sleep(10 * time.Minute)
			if !f.write(3) && !f.write(absent) {
				a := m.membership.Status()
				b := f.running[3].membership.Status()
				t.Errorf("two of three voters have been up and connected for ten minutes, with all data, and there is no leader:\nserver %d: %s, term %d, %v\nserver 4: %s, term %d, %v", absent+1, a.Role, a.Term, a.Members, b.Role, b.Term, b.Members)
			}
			if lost && !f.running[lead].pulse.gate.IsOpen() {
				t.Errorf("and server %d, which has lost its disk, waits for them: %s", lead+1, f.running[lead].membership.Waiting())
			}
		})
	}
}

// TestVoteGivenBackInAbsence: a member loses its disk, and gets its data and its vote back. One of the
// others was restarted meanwhile, and its newest list is the one in which that member had no vote. Then
// the third loses its disk. The two have everything, and the one votes for the other.
func TestVoteGivenBackInAbsence(t *testing.T) {
	testkit.SlowUnderRace(t)
	for try := range 15 { // the absence must begin while the vote is being given back
		stuck := false
		synctest.Test(t, func(t *testing.T) {
			f, a := fleetOf(t, 3)
			b, c := (a+1)%3, (a+2)%3
			f.lose(c)
			var slow atomic.Bool
			f.disks[c].SetFault(func() error {
				if slow.Load() {
					time.Sleep(300 * time.Millisecond)
				}
				return nil
			})
			m := f.open(c, f.config(c))
			until(t, "the demotion", func() bool {
				slow.Store(slow.Load() || m.pulse.gate.IsOpen())
				return m.pulse.gate.IsOpen()
			})
			time.Sleep(time.Duration(try) * 50 * time.Millisecond)
			f.stop(b)
			slow.Store(false)
			time.Sleep(1500 * time.Millisecond)
			s := f.running[a].membership.Status()
			if x := election.Find(s.Members, uint64(c+1)); x.Observer {
				return
			}
			for range 3 {
				f.write(a)
			}
			time.Sleep(5 * time.Second)
			s = f.running[a].membership.Status()
			is, _ := m.engine.Storage().Rejoining()
			if is || m.engine.Abstains() {
				return
			}
			f.lose(a)
			f.open(b, f.config(b))
			f.open(a, f.config(a))
			time.Sleep(10 * time.Minute)
			if !f.write(c) && !f.write(b) {
				stuck = true
				x := m.membership.Status()
				y := f.running[b].membership.Status()
				t.Errorf("two of three voters have been up and connected for ten minutes, with all data, and there is no leader:\nserver %d: %s, term %d, %v\nserver %d: %s, term %d, %v\nserver %d waits: %s", c+1, x.Role, x.Term, x.Members, b+1, y.Role, y.Term, y.Members, a+1, f.running[a].membership.Waiting())
			}
		})
		if stuck {
			return
		}
	}
}

// TestVoteConfirmedToAnother: server 1 was elected at address a:1, while server 2 was down, and has
// acknowledged writes with server 3. Then its host is gone, and server 2 is started on its data with that
// address. Server 3 does not confirm to server 2, in the same term, the vote that it gave to server 1.
func TestVoteConfirmedToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := fleetOf(t, 3)
		for try := 0; ; try++ {
			if try == 50 {
				t.Fatal("server 1 was never elected")
			}
			lead := leadOf(t, f)
			f.writes(lead, 1)
			time.Sleep(10 * time.Second)
			before := f.running[1].engine.Term()
			f.stop(1)
			f.stop(0)
			f.stop(2)
			f.start(0)
			f.start(2)
			if lead = leadOf(t, f); lead == 0 && f.running[0].engine.Term() == before+1 {
				break
			}
			f.start(1)
			f.whole()
		}
		term := f.running[0].engine.Term()
		began := len(f.acked)
		f.writes(0, 20)
		f.stop(0) // for good
		moved := f.config(1)
		moved.Peers, moved.Addr, moved.Network = nil, "a:1", f.net.Host("a")
		m := f.open(1, moved)
		time.Sleep(time.Minute)
		s := m.membership.Status()
		if m.Role() == "leader" && s.Term == term {
			t.Errorf("server 2 leads in term %d, in which server 1 has led", term)
		}
		wrote := f.write(1)
		lacks := lacks(m, f.acked[began:])
		if wrote && lacks > 0 {
			t.Errorf("it acknowledges a write, and lacks %d of the writes that server 1 has acknowledged", lacks)
		}
		t.Logf("role %s, term %d, faults: %v, %v", m.Role(), s.Term, fault(m, 0), fault(f.running[2], 0))
	})
}

// TestRefusedAfterOwnSnapshot: a follower whose own snapshot has left nothing of its log but the end has no room for the next entry.
// When it has been started again, the leader, which has all of the log, does not go back through it, one entry at a time.
func TestRefusedAfterOwnSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 20)
		lead := leadOf(t, f)
		c := (lead + 1) % 3
		f.net.SetDelay(func(string, string) time.Duration { return 5 * time.Millisecond }) // otherwise what is refused would be sent again without end at one time
		if err := f.running[c].engine.TakeSnapshot(); err != nil {
			t.Fatal(err)
		}
		f.disks[c].SetFault(func() error { return errors.New("disk full") })
		f.write(lead)
		until(t, "its fault", f.running[c].Failed.Load)
		time.Sleep(100 * time.Millisecond)
		f.stop(c)
		f.disks[c].SetFault(nil)
		f.start(c)
		f.whole()
	})
}

// TestVoteOverSlowLink: a member that has lost its disk gets its vote back over links that are as slow as they may be, with a
// short election timeout.
func TestVoteOverSlowLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.change = func(c *Config) { c.ElectionTimeout = 400 * time.Millisecond }
		f.all(nil)
		f.net.SetDelay(func(string, string) time.Duration { return 48 * time.Millisecond })
		f.lose(2)
		f.start(2)
		f.whole()
	})
}
