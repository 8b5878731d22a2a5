package cluster

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// The tests in this file are of servers that ask for a place in the cluster, or for their vote.

// hasVote fails unless the member has its vote, and still has it after a restart: then the leader and it
// acknowledge a write without the third of the three members.
func (f *fleet) hasVote(lead, c int, cfg Config) {
	f.t.Helper()
	id, other := uint64(c+1), 3-lead-c
	if s, _ := f.running[lead].Status(); find(s.Members, id).Observer {
		f.t.Errorf("server %d has all data, and no vote: %v", id, s.Members)
	}
	f.stop(c)
	f.open(c, cfg)
	time.Sleep(time.Minute)
	f.stop(other)
	time.Sleep(time.Minute)
	if !f.write(lead) {
		f.t.Error("two of the three are up and connected with all data, and nothing is acknowledged")
	}
}

// TestDelayedDemotion: a voter that has lost its disk asks for a place without a vote. What it sends is lost
// on the network at first, and TCP sends it again some seconds later. Meanwhile the process is restarted,
// asks again, catches up and gets its vote back. Then the first request arrives, and changes nothing.
func TestDelayedDemotion(t *testing.T) {
	for _, join := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f, lead := fleetOf(t, 3)
			c := (lead + 2) % 3
			config := func() Config {
				cfg := f.config(c)
				if join {
					cfg.Peers, cfg.Addr, cfg.Join = nil, f.peers[uint64(c+1)], f.peers[uint64(lead+1)]
				}
				return cfg
			}
			f.lose(c)
			cfg := config()
			n := &delaying{Network: cfg.Network, by: 6 * time.Second}
			cfg.Network = n
			f.open(c, cfg)
			until(t, "the request", n.sent.Load)
			time.Sleep(time.Second)
			f.stop(c)
			f.open(c, config())
			f.whole()
			if n.arrived.Load() {
				t.Fatal("too late")
			}
			until(t, "the first request", n.arrived.Load)
			time.Sleep(5 * time.Minute)
			f.hasVote(lead, c, config())
		})
	}
}

// delaying is a network on which the first request for a place in the cluster arrives late. That its
// sender closes the connection meanwhile follows what was sent.
type delaying struct {
	Network
	sent, arrived atomic.Bool
	by            time.Duration
}

func (n *delaying) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := n.Network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &delayed{Conn: c, n: n}, nil
}

type delayed struct {
	net.Conn
	n    *delaying
	late bool
}

func (c *delayed) Write(b []byte) (int, error) {
	if !bytes.Contains(b, []byte(`"add":`)) || !c.n.sent.CompareAndSwap(false, true) {
		return c.Conn.Write(b)
	}
	c.late = true
	b = bytes.Clone(b)
	go func() {
		time.Sleep(c.n.by)
		c.Conn.SetDeadline(time.Time{})
		c.Conn.Write(b)
		c.n.arrived.Store(true)
		time.Sleep(time.Second)
		c.Conn.Close()
	}()
	return len(b), nil
}

func (c *delayed) Close() error {
	if c.late {
		c.Conn.SetReadDeadline(time.Unix(1, 0)) // for the reader on this side
		return nil
	}
	return c.Conn.Close()
}

// elsewhere is the network of a host whose server listens on all its addresses, whatever address it was given.
type elsewhere struct {
	Network
	addr string
}

func (e elsewhere) Listen(string) (net.Listener, error) { return e.Network.Listen(e.addr) }

// TestDemotedByCopyOfCommandLine: an empty server is started on a new host with the id and the addresses of a
// member that is up, as an observer. The member keeps its vote.
func TestDemotedByCopyOfCommandLine(t *testing.T) {
	for _, join := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f, lead := fleetOf(t, 3)
			c := (lead + 2) % 3
			cfg := f.config(c)
			cfg.Network, cfg.Memory = elsewhere{f.net.Host("z"), "z:1"}, storage.NewMemory()
			observe(&cfg, cfg.ID)
			if join {
				cfg.Peers, cfg.Addr, cfg.Join = nil, f.peers[cfg.ID], f.peers[uint64(lead+1)]
			}
			m, err := openMember(cfg, fsm.NewReplica())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			m.Kill() // the operator has seen the mistake
			time.Sleep(5 * time.Minute)
			f.hasVote(lead, c, f.config(c))
		})
	}
}

// TestCopyOfLeadersCommandLine: an empty server is started on a new host with the id and the addresses of the
// leader, which does not hand over leadership for it.
func TestCopyOfLeadersCommandLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 3)
		term := f.running[lead].raft.CurrentTerm()
		cfg := f.config(lead)
		cfg.Network, cfg.Memory = elsewhere{f.net.Host("z"), "z:1"}, storage.NewMemory()
		m, err := openMember(cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if s, _ := f.running[lead].Status(); s.Role != "leader" || s.Term != term {
			t.Errorf("server %d is %s in term %d, not leader in term %d", lead+1, s.Role, s.Term, term)
		}
		m.Kill()
	})
}

// TestTakenInAsksOthers: a voter that has lost its disk is taken in, and restarted before it has an entry.
// Meanwhile the member whose address it was given is stopped. It comes back through the others.
func TestTakenInAsksOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 5)
		c, j, other := (lead+1)%5, (lead+2)%5, (lead+3)%5
		id := uint64(c + 1)
		f.lose(c)
		cfg := f.config(c)
		cfg.Peers, cfg.Addr, cfg.Join = nil, f.peers[id], f.peers[uint64(j+1)]
		var known atomic.Pointer[Member]
		f.disks[c].SetFault(func() error {
			for m := known.Load(); m != nil && m.membership.gate.lifted(); time.Sleep(time.Millisecond) {
				if m.killed.Load() {
					return errors.New("killed")
				}
			}
			return nil
		})
		m := f.open(c, cfg)
		known.Store(m)
		until(t, "the demotion", m.membership.gate.lifted)
		f.stop(c)
		f.disks[c].SetFault(nil)
		f.stop(j)
		m = f.open(c, cfg)
		time.Sleep(time.Minute)
		s, _ := f.running[lead].Status()
		if !m.membership.gate.lifted() || find(s.Members, id).Observer {
			t.Errorf("server %d, of %v, waits: %s", id, s.Members, m.membership.former.waiting())
		}
		f.stop(other)
		time.Sleep(time.Minute)
		if !f.write(lead) {
			t.Error("three of the five are up and connected, and nothing is acknowledged")
		}
	})
}

// TestObserverOwedVote is TestObserverOwedNoVote for a member that was taken in already: it has lost its disk,
// and before it has its vote back, it is started again as an observer. It does not become a voter.
func TestObserverOwedVote(t *testing.T) {
	for _, listed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f, lead := fleetOf(t, 3)
			c := (lead + 2) % 3
			id := uint64(c + 1)
			f.lose(c)
			var slow atomic.Bool // it has much to catch up with
			slowly(f.disks[c], &slow)
			m := f.start(c)
			until(t, "the demotion", func() bool {
				slow.Store(slow.Load() || m.membership.gate.lifted())
				return m.raft.LastIndex() > 0
			})
			f.stop(c)
			time.Sleep(10 * time.Second)
			slow.Store(false)
			cfg := f.config(c)
			observe(&cfg, id)
			if !listed {
				cfg.Peers, cfg.Addr = nil, f.peers[id]
			}
			f.open(c, cfg)
			time.Sleep(time.Minute)
			if s, _ := f.running[lead].Status(); !find(s.Members, id).Observer {
				t.Errorf("server %d is started as an observer: %v", id, s.Members)
			}
		})
	}
}

// TestLosesDiskTwice: a voter that was started with only the address of its peer port loses its disk, and, before it
// has its vote back, the new disk too. Nobody knows any more that it is owed a vote, and its status says so. An
// operator gives it the vote back.
func TestLosesDiskTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 3)
		c := (lead + 2) % 3
		config := func() Config {
			cfg := f.config(c)
			cfg.Peers, cfg.Addr = nil, f.peers[cfg.ID]
			return cfg
		}
		f.lose(c)
		time.Sleep(f.running[lead].contacts.silence) // it does not seem to follow any more
		var slow atomic.Bool                         // it has much to catch up with
		slowly(f.disks[c], &slow)
		m := f.open(c, config())
		until(t, "the demotion", func() bool {
			slow.Store(slow.Load() || m.membership.gate.lifted())
			return m.membership.gate.lifted()
		})
		until(t, "its word that it waits", func() bool {
			s, _ := m.Status()
			return s.NoVote == "waits for its vote"
		})
		f.lose(c)
		m = f.open(c, config())
		time.Sleep(time.Minute)
		if s, _ := m.Status(); !strings.HasPrefix(s.NoVote, "has no vote") {
			t.Errorf("its status does not say that it has no vote: %q, %v", s.NoVote, s.Members)
		}
		x := &proto.Peer{ID: uint64(c + 1), Addr: f.peers[uint64(c+1)]}
		if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], Request{Add: x}); err != nil {
			t.Fatal(err)
		}
		until(t, "its word that it has its vote", func() bool {
			s, _ := m.Status()
			return s.NoVote == ""
		})
		f.hasVote(lead, c, config())
	})
}

// TestLostDiskOfObserver: a voter loses its disk, and is started as an observer with only the address of its
// peer port. It stays an observer.
func TestLostDiskOfObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 3)
		c := (lead + 2) % 3
		id := uint64(c + 1)
		f.lose(c)
		cfg := f.config(c)
		cfg.Peers, cfg.Addr, cfg.Observer = nil, f.peers[id], true
		m := f.open(c, cfg)
		time.Sleep(time.Minute)
		if s, _ := f.running[lead].Status(); !m.membership.gate.lifted() || !find(s.Members, id).Observer {
			t.Errorf("server %d is started as an observer: %v, it waits: %s", id, s.Members, m.membership.former.waiting())
		}
	})
}

// TestHeartbeatIsNoProof: a server asks to be added, which another change delays. Meanwhile a heartbeat comes: from a
// leader of its cluster whose list is never committed, or of another cluster that its host was in. It does not
// take this for its having been added, nor the next answer for its removal, and joins.
func TestHeartbeatIsNoProof(t *testing.T) {
	for _, other := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 4)
			f.found(3)
			lead := leadOf(t, f)
			f.running[lead].membership.changing.take()
			cfg := f.config(3)
			cfg.Peers, cfg.Addr, cfg.Join = nil, "d:1", f.peers[uint64(lead+1)]
			m := f.open(3, cfg)
			until(t, "the question", func() bool { return m.membership.former.asked.Load() != 0 })
			h := &hello{kind: kindBeat, cluster: f.running[lead].membership.gate.cluster(), from: 9, to: 4, term: 99, addr: "x:1"}
			if other {
				h.cluster++
			}
			c, err := f.net.Host("x").Dial(t.Context(), "d:1")
			if err != nil {
				t.Fatal(err)
			}
			g, err := greetPeer(c, "d:1", h, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := g.hear(); err == nil || m.membership.former.caller.Load() == nil {
				t.Fatalf("it has not noticed the heartbeat: %v", err)
			}
			g.Close()
			time.Sleep(15 * time.Second)
			f.running[lead].membership.changing.give()
			if err := fault(m, time.Minute); err != nil {
				t.Errorf("server 4, which was not added, ends: %v", err)
			}
			if s, _ := f.running[lead].Status(); find(s.Members, 4) == nil {
				t.Errorf("it has not joined: %v", s.Members)
			}
		})
	}
}

// muting is a network on which no answer comes to the first request for a place in the cluster that is sent to the
// address to, or anywhere if that is empty.
type muting struct {
	Network
	to     string
	sent   atomic.Bool
	broken chan struct{} // the connection of that request breaks when this is closed; nil means never
}

func (n *muting) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := n.Network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &muted{Conn: c, n: n, to: addr, closed: make(chan struct{})}, nil
}

type muted struct {
	net.Conn
	n      *muting
	to     string
	mute   bool
	once   sync.Once
	closed chan struct{}
}

func (c *muted) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(`"add":`)) && (c.n.to == "" || c.n.to == c.to) && c.n.sent.CompareAndSwap(false, true) {
		c.mute = true
	}
	return c.Conn.Write(b)
}

func (c *muted) Read(b []byte) (int, error) {
	if c.mute {
		select {
		case <-c.closed:
		case <-c.n.broken:
			return 0, &net.OpError{Op: "read", Err: errors.New("reset")}
		}
	}
	return c.Conn.Read(b)
}

func (c *muted) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// TestRemovedBeforeAnswer: a server is added, but has no answer to its request, and an operator removes it again.
// It does not add itself once more.
func TestRemovedBeforeAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		f.found(3)
		lead := leadOf(t, f)
		cfg := f.config(3)
		cfg.Peers, cfg.Addr, cfg.Join = nil, "d:1", f.peers[uint64(lead+1)]
		n := &muting{Network: cfg.Network}
		cfg.Network = n
		m := f.open(3, cfg)
		until(t, "the addition", func() bool {
			s, _ := f.running[lead].Status()
			return find(s.Members, 4) != nil
		})
		time.Sleep(time.Second)
		if m.membership.gate.lifted() {
			t.Fatal("it has an answer")
		}
		if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], Request{Remove: 4}); err != nil {
			t.Fatal(err)
		}
		if err := fault(m, 5*time.Minute); !errors.Is(err, ErrRemoved) {
			t.Errorf("its fault is %v", err)
		}
		if s, _ := f.running[lead].Status(); find(s.Members, 4) != nil {
			t.Errorf("it has added itself again: %v", s.Members)
		}
	})
}

// TestRemovedBeforeSecondRequest: a server is added, and an operator removes it before the connection breaks on which it
// waits for the answer, so that it sends the same request again. It is not added once more, whichever member leads by
// then, and whatever that has seen of the addition and the removal.
func TestRemovedBeforeSecondRequest(t *testing.T) {
	for _, x := range []struct {
		name        string
		hands       bool // another member leads when the second request comes
		cutOff      bool // that one has got both changes in a snapshot
		cutOffLater bool // that one has got the removal in a snapshot
		restarted   bool // that one was started with a snapshot that covers both
		another     bool // another server has had the id since
	}{
		{name: "same leader"},
		{name: "another leader", hands: true},
		{name: "a leader with a snapshot", hands: true, cutOffLater: true},
		{name: "a leader with both in a snapshot", hands: true, cutOff: true},
		{name: "a leader that was restarted", hands: true, restarted: true},
		{name: "another server with the id", another: true},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 4)
				config := f.found(3)
				lead := leadOf(t, f)
				next := (lead + 1) % 3
				third := 3 - lead - next
				operator := func(q Request) {
					if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], q); err != nil {
						t.Fatal(err)
					}
				}
				f.cutOff(next, x.cutOff)
				cfg := f.config(3)
				cfg.Peers, cfg.Addr, cfg.Join = nil, "d:1", f.peers[uint64(third+1)]
				n := &muting{Network: cfg.Network, to: f.peers[uint64(lead+1)], broken: make(chan struct{})}
				cfg.Network = n
				m := f.open(3, cfg)
				until(t, "the addition", func() bool {
					for i, m := range f.running[:3] {
						if s, _ := m.Status(); find(s.Members, 4) == nil && (i != next || !x.cutOff) {
							return false
						}
					}
					return true
				})
				f.cutOff(next, x.cutOff || x.cutOffLater)
				operator(Request{Remove: 4})
				if x.another {
					operator(Request{Add: &proto.Peer{ID: 4, Addr: "e:1", Observer: true}})
					operator(Request{Remove: 4})
				}
				if x.restarted { // on a real disk, from which it reads its snapshot in another way
					cfg := config(next)
					cfg.Memory, cfg.Dir = nil, t.TempDir()
					f.stop(next)
					f.open(next, cfg)
					until(t, "the vote", func() bool {
						s, _ := f.running[lead].Status()
						return f.running[next].Leader() != 0 && voters(s.Members) == 3
					})
					f.writes(lead, 20)
					f.snapshot(3)
					f.stop(next)
					f.open(next, cfg)
				}
				if x.cutOff || x.cutOffLater {
					f.writes(lead, 20)
					if err := f.running[lead].raft.Snapshot().Error(); err != nil {
						t.Fatal(err)
					}
					f.cutOff(next, false)
					until(t, "the snapshot", func() bool {
						newest, _ := f.running[next].raft.storage.NewestSnapshot()
						return newest.Index > 0
					})
				}
				if x.hands {
					f.handTo(next)
					lead = next
				}
				close(n.broken)
				if err := fault(m, 5*time.Minute); !errors.Is(err, ErrRemoved) {
					t.Errorf("its fault is %v", err)
				}
				if s, _ := f.running[lead].Status(); find(s.Members, 4) != nil {
					t.Errorf("it was added again: %v", s.Members)
				}
			})
		})
	}
}

// TestRefusedReconfigRemovesNobody: a reconfig replaces server 3 by a server 9 at the same address, or removes it
// and adds an observer, while another server answers there. It is refused, and nobody is removed.
func TestRefusedReconfigRemovesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 3)
		c := (lead + 2) % 3
		id := uint64(c + 1)
		other := newFleet(t, 1)
		other.net, other.peers = f.net, map[uint64]string{7: "w:1"}
		cfg := other.config(0)
		cfg.ID, cfg.Network, cfg.Peers = 7, f.net.Host("w"), listOf(other.peers)
		other.open(0, cfg)
		for _, joining := range [][]proto.Peer{
			{{ID: 9, Addr: f.peers[id]}},
			{{ID: 9, Addr: f.peers[id], Observer: true}},
			{{ID: 9, Addr: "w:1", Observer: true}, {ID: id, Addr: "z:1"}},
		} {
			q := &Reconfig{Joining: joining, Leaving: []uint64{id}, Version: -1, WaitMs: 1000}
			_, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], Request{Reconfig: q})
			if err == nil {
				t.Fatal("it was done")
			}
			time.Sleep(time.Minute)
			if s, _ := f.running[lead].Status(); len(s.Members) != 3 {
				t.Errorf("the reconfig was refused (%v), and the members are %v", err, s.Members)
			}
		}
	})
}

// TestJoinsWithIDOfMember: a new server is started with --join, with the id of a member whose host is lost, before
// that is removed. It is told that it gets the id when the other is removed, and waits. The operator removes the
// old one. The new one, which never was a member, joins; it does not end as removed.
func TestJoinsWithIDOfMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		f.found(3)
		lead := leadOf(t, f)
		f.writes(lead, 1)
		f.stop(2)
		if lead == 2 {
			lead = leadOf(t, f)
		}
		cfg := f.config(3)
		cfg.ID, cfg.Peers, cfg.Addr, cfg.Join = 3, nil, f.peers[4], f.peers[uint64(lead+1)]
		m := f.open(3, cfg)
		time.Sleep(20 * time.Second)
		if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], Request{Remove: 3}); err != nil {
			t.Fatal(err)
		}
		if err := fault(m, time.Minute); err != nil {
			t.Errorf("the new server, which never was a member, ends: %v", err)
		}
		s, err := f.running[lead].Status()
		if err != nil || len(s.Members) != 3 {
			t.Errorf("the members: %v, %v", s.Members, err)
		}
	})
}

// TestAddThatIsUndone: a server was started with only the address of its peer port and waits to be added. An
// operator adds it; the leader's list reaches only the leader and that server's port, and all lose power but the
// server. The others come back, then the old leader, whose list is undone. The server was never a member. It goes on
// waiting, and the operator, whose command has failed, adds it again.
func TestAddThatIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		config := f.found(3)
		lead := leadOf(t, f)
		f.writes(lead, 1)
		x := f.open(3, config(3))
		time.Sleep(10 * time.Second)
		leader := f.running[lead]
		last := leader.raft.LastIndex()
		stored := func() bool {
			end, _ := leader.raft.storage.Log.LastIndex()
			for ; end > last; end-- {
				var l raft.Log
				if leader.raft.log.GetLog(end, &l) == nil && l.Type == raft.LogConfiguration {
					return true
				}
			}
			return false
		}
		var crash atomic.Bool
		for i := range 3 {
			if i == lead {
				continue
			}
			f.disks[i].SetFault(func() error {
				for stored() && leader.raft.State() == raft.Leader && !crash.Load() {
					time.Sleep(time.Millisecond)
				}
				if crash.Load() {
					return errors.New("crashed")
				}
				return nil
			})
		}
		ctx, interrupt := context.WithCancel(t.Context())
		go Ask(ctx, f.net.Host("operator"), f.peers[uint64(lead+1)], Request{Add: &proto.Peer{ID: 4, Addr: f.peers[4]}})
		until(t, "the list on the leader", func() bool { return stored() })
		time.Sleep(time.Second)
		crash.Store(true)
		interrupt() // the operator sees that the leader is gone
		f.stop(lead)
		for i := range 3 {
			if i != lead {
				f.stop(i)
				f.disks[i].SetFault(nil)
				f.open(i, config(i))
			}
		}
		next := leadOf(t, f)
		if s, _ := f.running[next].Status(); len(s.Members) != 3 {
			t.Fatal("the list has reached the others")
		}
		f.writes(next, 1)
		f.open(lead, config(lead))
		if err := fault(x, time.Minute); err != nil {
			t.Errorf("the server that waits to be added ends: %v", err)
		}
	})
}

// TestAddedByOtherName: an operator adds a waiting server, or one has lost its disk, by another name of its
// address (a DNS name, where the server was started with --peer-listen IP:PORT). Everybody reaches it by both.
func TestAddedByOtherName(t *testing.T) {
	if testkit.Race {
		t.Skip("Raft has a data race when a follower's address changes")
	}
	for _, how := range []string{"added", "lost disk"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 4)
				first := map[uint64]string{1: f.peers[1], 2: f.peers[2], 3: f.peers[3]}
				config := func(i int) Config {
					cfg := f.config(i)
					if cfg.Peers = listOf(first); i == 3 {
						cfg.Peers, cfg.Addr = nil, f.peers[4]
					}
					cfg.Network = detour{cfg.Network, map[string]string{"name:1": "d:1"}}
					return cfg
				}
				for i := range 4 {
					f.open(i, config(i))
				}
				lead := leadOf(t, f)
				f.writes(lead, 5)
				ask := func(addr string) {
					_, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], Request{Add: &proto.Peer{ID: 4, Addr: addr}})
					t.Logf("add at %s: %v", addr, err)
				}
				if how == "added" {
					ask("name:1")
				} else {
					ask("d:1")
					time.Sleep(time.Second)
					ask("name:1") // as a reconfig may
					time.Sleep(time.Second)
					f.lose(3)
					f.open(3, config(3))
				}
				time.Sleep(5 * time.Minute)
				s, _ := f.running[3].Status()
				l, _ := f.running[lead].Status()
				if !s.Formed || find(l.Members, 4) == nil || find(l.Members, 4).Observer {
					t.Errorf("after five minutes: formed %v, waiting %q, %v", s.Formed, s.Waiting, l.Members)
				}
			})
		})
	}
}

// TestOtherNameIsNotUndone: a member that has lost its disk asks for its vote, and its request waits for another change of
// the members: an operator gives it another name as its address. The operator's change is acknowledged, and stays.
func TestOtherNameIsNotUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		alias := map[string]string{"na:1": "a:1", "nb:1": "b:1", "nc:1": "c:1"}
		config := func(i int) Config {
			cfg := f.config(i)
			cfg.Network = detour{cfg.Network, alias}
			return cfg
		}
		for i := range 3 {
			f.open(i, config(i))
		}
		f.whole()
		lead := leadOf(t, f)
		c := (lead + 1) % 3
		id := uint64(c + 1)
		m := f.running[lead].membership
		// As if it had lost its disk, and was stopped when it had caught up, before it got its vote back.
		if _, err := m.change(Request{Add: &proto.Peer{ID: id, Addr: f.peers[id], Observer: true}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		f.stop(c)
		if err := f.disks[c].Open().SetRejoining(true); err != nil {
			t.Fatal(err)
		}
		m.changing.take() // some other change
		done := make(chan error, 1)
		go func() {
			_, err := m.change(Request{Add: &proto.Peer{ID: id, Addr: "n" + f.peers[id]}})
			done <- err
		}()
		time.Sleep(time.Second)
		f.open(c, config(c)) // it asks for its vote again
		time.Sleep(2 * time.Second)
		m.changing.give()
		t.Log(<-done)
		time.Sleep(time.Minute)
		s, _ := m.status()
		if find(s.Members, id).Addr != "n"+f.peers[id] {
			t.Errorf("the operator's address is gone: %v", s.Members)
		}
	})
}

// names is what some names lead to, which changes.
type names struct {
	mu sync.Mutex
	to map[string]string
}

func (n *names) set(name, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.to[name] = to
}

// resolving is the network of a host that resolves names.
type resolving struct {
	Network
	*names
}

func (r resolving) Dial(ctx context.Context, addr string) (net.Conn, error) {
	r.mu.Lock()
	if to, ok := r.to[addr]; ok {
		addr = to
	}
	r.mu.Unlock()
	return r.Network.Dial(ctx, addr)
}

// TestNameLeadsElsewhere: the name of a member that is up, and has answered all heartbeats, is made to lead to another
// host, where an empty server is started with its command line. The member keeps its vote.
func TestNameLeadsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		dns := &names{to: map[string]string{}}
		for i := range 3 {
			cfg := f.config(i)
			cfg.Network = resolving{cfg.Network, dns}
			f.open(i, cfg)
		}
		f.whole()
		for range 5 {
			f.write(0)
		}
		lead := leadOf(t, f)
		c := (lead + 2) % 3
		id := uint64(c + 1)
		dns.set(f.peers[id], "z:1")
		cfg := f.config(c)
		cfg.Network, cfg.Memory = resolving{elsewhere{f.net.Host("z"), "z:1"}, dns}, storage.NewMemory()
		m, err := openMember(cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		s, _ := f.running[lead].Status()
		zs, _ := m.Status()
		cs, _ := f.running[c].Status()
		t.Logf("leader: %v; old: %s index %d of %d; new: %s index %d", s.Members, cs.Role, cs.Index, s.Index, zs.Role, zs.Index)
		if find(s.Members, id).Observer && zs.Index == 0 {
			t.Error("the old server, which is up and gets the log, has no vote, and the new one, in its place, gets no log")
		}
		m.Kill() // the operator has seen the mistake
		dns.set(f.peers[id], f.peers[id])
		time.Sleep(5 * time.Minute)
		if s, _ := f.running[lead].Status(); find(s.Members, id).Observer {
			t.Errorf("server %d has all data, and no vote: %v", id, s.Members)
		}
	})
}
