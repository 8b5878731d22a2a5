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

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// fleetOf starts a cluster of n members, and returns it and its leader.
func fleetOf(t *testing.T, n int) (*fleet, int) {
	f := newFleet(t, n)
	for i := range n {
		f.start(i)
	}
	f.whole()
	lead := leadOf(t, f)
	f.writes(lead, 20)
	return f, lead
}

// TestVoteForgottenOnceAsked: a voter that has lost its disk, and is started with only the address of
// its peer port, gets its vote back although its first attempt to join does not end well: the leader
// has taken its vote away, and then the member's disk is slow once, or it crashes, or the answer is lost.
func TestVoteForgottenOnceAsked(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, how := range []string{"slow disk", "crash", "lost answer"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, lead := fleetOf(t, 3)
				c, other := (lead+2)%3, (lead+1)%3
				id := uint64(c + 1)
				demoted := func() bool {
					s, err := f.running[lead].Status()
					return err == nil && find(s.Members, id).Observer
				}
				f.lose(c)
				time.Sleep(f.running[lead].contacts.silence) // it does not seem to follow any more
				cfg := f.config(c)
				cfg.Peers, cfg.Addr = nil, f.peers[id]
				var known atomic.Pointer[Member]
				switch how {
				case "slow disk": // one write takes 3 s
					var once atomic.Bool
					f.disks[c].SetFault(func() error {
						if m := known.Load(); m != nil && m.membership.former.asked.Load() != 0 && once.CompareAndSwap(false, true) {
							time.Sleep(3 * time.Second)
						}
						return nil
					})
				case "crash":
					f.disks[c].SetFault(func() error {
						m := known.Load()
						for m != nil && m.membership.former.asked.Load() != 0 {
							if m.killed.Load() {
								return errors.New("crashed")
							}
							time.Sleep(time.Millisecond)
						}
						return nil
					})
				case "lost answer": // and the connections to the leader end
					cfg.Network = &answerless{Network: cfg.Network, known: &known}
				}
				m := f.open(c, cfg)
				known.Store(m)
				until(t, "the demotion", demoted)
				if how == "crash" {
					f.stop(c)
					known.Store(nil)
					f.disks[c].SetFault(nil)
					f.open(c, cfg)
				}
				time.Sleep(5 * time.Minute)
				s, _ := f.running[lead].Status()
				if find(s.Members, id).Observer {
					t.Errorf("after five minutes in which all are up, it has no vote: %v", s.Members)
				}
				f.stop(c)
				f.open(c, cfg)
				time.Sleep(time.Minute)
				f.stop(other)
				time.Sleep(time.Minute)
				if !f.write(lead) {
					t.Error("two of the three are up and connected, and nothing is acknowledged")
				}
			})
		})
	}
}

// answerless loses the answer to the first request that asks for a place in the cluster.
type answerless struct {
	Network
	known *atomic.Pointer[Member]
	done  atomic.Bool
}

func (n *answerless) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := n.Network.Dial(ctx, addr)
	if m := n.known.Load(); err == nil && m != nil && m.membership.former.asked.Load() != 0 && n.done.CompareAndSwap(false, true) {
		return &deaf{c, 0}, nil
	}
	return c, err
}

type deaf struct {
	net.Conn
	read int
}

func (c *deaf) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.read += n; c.read > helloAnswerLen {
		c.Conn.Close()
		return 0, syscall.ECONNRESET
	}
	return n, err
}

// TestJoinsThroughOthers: a member that has lost its disk comes back although the first member of its
// list is cut off from the others, but not from it.
func TestJoinsThroughOthers(t *testing.T) {
	testkit.SlowUnderRace(t)
	synctest.Test(t, func(t *testing.T) {
		f, _ := fleetOf(t, 5)
		f.lose(4)
		for i := 1; i < 4; i++ {
			f.cutBetween(0, i, true)
		}
		lead := -1
		until(t, "a leader of the others", func() bool {
			for i := 1; i < 4; i++ {
				if f.running[i].Role() == "leader" {
					lead = i
				}
			}
			return lead > 0 && f.write(lead)
		})
		m := f.start(4)
		time.Sleep(10 * time.Minute)
		s, _ := f.running[lead].Status()
		if !m.membership.gate.lifted() || find(s.Members, 5).Observer {
			t.Errorf("after ten minutes: in the cluster %v, members %v, why: %s", m.membership.gate.lifted(), s.Members, m.membership.former.waiting())
		}
		// Now one more stops: three of five are up and connected.
		f.stop((lead-1+1)%3 + 1)
		time.Sleep(time.Minute)
		ok := false
		for i := 1; i < 4; i++ {
			ok = ok || f.write(i)
		}
		if !ok {
			t.Error("three of the five are up and connected, and nothing is acknowledged")
		}
	})
}

// TestRemovedByLeaderOfThePast: a server was removed, and joins again with an empty directory. A leader
// that was replaced and does not know it still sends it heartbeats. It does not take this for its having
// been added, nor the next answer for its removal.
func TestRemovedByLeaderOfThePast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 5)
		var no atomic.Bool
		config := func(i int) Config {
			cfg := f.config(i)
			if i > 0 && i < 4 {
				cfg.Network = refusing{cfg.Network, "a:1", &no}
			}
			return cfg
		}
		for i := range 5 {
			f.open(i, config(i))
		}
		f.whole()
		f.handTo(0)
		f.writes(0, 1)
		f.lose(4)
		time.Sleep(time.Second)
		// The leader's connections to the other three break.
		no.Store(true)
		for i := 1; i < 4; i++ {
			f.cutBetween(0, i, true)
		}
		for _, m := range f.running[1:4] {
			m.peers.mu.Lock()
			var ended []net.Conn
			for c := range m.peers.conns {
				if c.RemoteAddr().String()[0] == 'a' {
					ended = append(ended, c)
				}
			}
			m.peers.mu.Unlock()
			for _, c := range ended {
				c.Close()
			}
		}
		next := 1 + leaderOf(t, f.running[1:4])
		if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(next+1)], Request{Remove: 5}); err != nil {
			t.Fatal(err)
		}
		cfg := f.config(4)
		cfg.Peers, cfg.Addr, cfg.Join = nil, f.peers[5], f.peers[uint64(next+1)]
		// Its link to the new leader fails for half a second, after its first two questions.
		cfg.Network = &flaky{Network: cfg.Network, addr: cfg.Join}
		m := f.open(4, cfg)
		until(t, "a heartbeat, or the end", func() bool { return m.membership.former.caller.Load() != nil || m.membership.gate.lifted() })
		if err := fault(m, 30*time.Second); err != nil {
			t.Errorf("server 5 ends: %v", err)
		}
		if s, _ := f.running[next].Status(); find(s.Members, 5) == nil {
			t.Errorf("it has not joined: %v", s.Members)
		}
	})
}

// flaky is a network on which the connections to an address but the first two fail for half a second.
type flaky struct {
	Network
	addr  string
	n     atomic.Int32
	since atomic.Pointer[time.Time]
}

func (x *flaky) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if addr == x.addr && x.n.Add(1) > 2 {
		now := time.Now()
		x.since.CompareAndSwap(nil, &now)
		if time.Since(*x.since.Load()) < 500*time.Millisecond {
			return nil, &net.OpError{Op: "dial", Net: "memnet", Err: syscall.EHOSTUNREACH}
		}
	}
	return x.Network.Dial(ctx, addr)
}

// TestAbsentVoterKnowsNotTheCandidate: a voter was down while a member was replaced by another one. It is
// not in the list of the one that was down, which votes for it all the same: the two are a majority, and
// one of them has everything.
func TestAbsentVoterKnowsNotTheCandidate(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost=%v", lost), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 4)
				config := f.found(3)
				lead := leadOf(t, f)
				f.writes(lead, 20)
				old, absent := (lead+1)%3, (lead+2)%3
				until(t, "all entries", func() bool { return f.running[absent].raft.AppliedIndex() == f.running[lead].raft.LastIndex() })
				f.stop(absent) // for a repair, say
				// Meanwhile another member is replaced by server 4.
				cfg := f.config(3)
				cfg.Peers, cfg.Addr, cfg.Join = nil, f.peers[4], f.peers[uint64(lead+1)]
				f.open(3, cfg)
				until(t, "another voter", func() bool {
					s, _ := f.running[3].Status()
					return len(s.Members) == 4 && voters(s.Members) == 4
				})
				if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], Request{Remove: uint64(old + 1)}); err != nil {
					t.Fatal(err)
				}
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
					a, _ := m.Status()
					b, _ := f.running[3].Status()
					t.Errorf("two of three voters have been up and connected for ten minutes, with all data, and there is no leader:\nserver %d: %s, term %d, %v\nserver 4: %s, term %d, %v", absent+1, a.Role, a.Term, a.Members, b.Role, b.Term, b.Members)
				}
				if lost && !f.running[lead].membership.gate.lifted() {
					t.Errorf("and server %d, which has lost its disk, waits for them: %s", lead+1, f.running[lead].membership.former.waiting())
				}
			})
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
				slow.Store(slow.Load() || m.membership.gate.lifted())
				return m.membership.gate.lifted()
			})
			time.Sleep(time.Duration(try) * 50 * time.Millisecond)
			f.stop(b)
			slow.Store(false)
			time.Sleep(1500 * time.Millisecond)
			s, _ := f.running[a].Status()
			if x := find(s.Members, uint64(c+1)); x.Observer {
				return
			}
			for range 3 {
				f.write(a)
			}
			time.Sleep(5 * time.Second)
			s, _ = f.running[a].Status()
			is, _ := m.raft.storage.Rejoining()
			if is || m.raft.behind() {
				return
			}
			f.lose(a)
			f.open(b, f.config(b))
			f.open(a, f.config(a))
			time.Sleep(10 * time.Minute)
			if !f.write(c) && !f.write(b) {
				stuck = true
				x, _ := m.Status()
				y, _ := f.running[b].Status()
				t.Errorf("two of three voters have been up and connected for ten minutes, with all data, and there is no leader:\nserver %d: %s, term %d, %v\nserver %d: %s, term %d, %v\nserver %d waits: %s", c+1, x.Role, x.Term, x.Members, b+1, y.Role, y.Term, y.Members, a+1, f.running[a].membership.former.waiting())
			}
		})
		if stuck {
			return
		}
	}
}
