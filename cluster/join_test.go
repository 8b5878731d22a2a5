package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/membership"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// The tests in this file are of servers without data that ask for a place in a cluster, or for their vote.

// TestRemovedWhileJoining: a member that has lost its disk and is removed before it has its
// vote back does not add itself again, and ends; meanwhile it is in no other change's way.
func TestRemovedWhileJoining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 3)
		other := (lead + 1) % 3
		f.lose(other)
		for range 2000 {
			f.running[lead].Propose(fsm.Nothing(), make(propose.Result, 1), nil)
		}
		for range 2 * membership.NearlyCaughtUp {
			f.write(lead)
		}
		var slow atomic.Bool
		slow.Store(true)
		slowly(f.disks[other], &slow) // it catches up, but not soon
		m := f.start(other)
		time.Sleep(30 * time.Second)
		ask := func(q request.Request) error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := request.Ask(ctx, f.net.Host("operator"), f.peers[uint64(lead+1)], q)
			return err
		}
		refused := 0
		for range 30 {
			if err := ask(request.Request{Reconfig: &request.Reconfig{Version: -1, Joining: []proto.Peer{{ID: uint64(lead + 1), Addr: f.peers[uint64(lead+1)]}}, WaitMs: 100}}); err != nil {
				refused++
			}
			time.Sleep(time.Second)
		}
		if refused > 3 {
			t.Errorf("%d of 30 changes were refused while a member waits for its vote", refused)
		}
		if err := ask(request.Request{Remove: uint64(other + 1)}); err != nil {
			t.Fatal(err)
		}
		slow.Store(false)
		err := testkit.Receive(t, "its fault", m.Err())
		if !errors.Is(err, request.ErrRemoved) && !strings.Contains(err.Error(), "not a member") {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if s := f.running[lead].membership.Status(); len(s.Members) != 2 {
			t.Errorf("the members are %v", s.Members)
		}
		f.stop(other)
	})
}

// TestListedMemberRemoved: a member of the list has lost its disk, and is removed before it has its place again. It does not add
// itself once more, and ends.
func TestListedMemberRemoved(t *testing.T) {
	// stored is how a server is removed that is down and has stored something before.
	stored := func(agreed bool) func(*testing.T, *fleet, int, int) {
		return func(t *testing.T, f *fleet, lead, other int) {
			s := f.disks[other].Open()
			if err := errors.Join(s.SetRejoining(true), s.SetIdentity(storage.Identity{Cluster: f.running[lead].pulse.gate.Cluster(), Agreed: agreed, Since: 3}), s.Close()); err != nil {
				t.Fatal(err)
			}
			f.tell(lead, request.Request{Remove: uint64(other + 1)})
			time.Sleep(time.Minute)
			f.start(other)
		}
	}
	for name, remove := range map[string]func(t *testing.T, f *fleet, lead, other int){
		"while the leader has its request": func(t *testing.T, f *fleet, lead, other int) {
			changing := f.running[lead].membership
			changing.Hold()
			removed := make(chan error, 1)
			go func() { removed <- f.ask(lead, request.Request{Remove: uint64(other + 1)}) }()
			time.Sleep(time.Second)
			m := f.start(other)
			time.Sleep(4 * time.Second)
			if m.pulse.gate.IsOpen() {
				t.Fatal("it has an answer")
			}
			changing.Release()
			if err := <-removed; err != nil {
				t.Fatal(err)
			}
		},
		"before its request": func(t *testing.T, f *fleet, lead, other int) {
			f.disks[other].SetFault(func() error {
				time.Sleep(2 * time.Second)
				return nil
			})
			m := f.start(other)
			until(t, "what it says of the cluster", func() bool { return f.log.Count("this member's data is empty") > 0 })
			f.tell(lead, request.Request{Remove: uint64(other + 1)})
			if m.membership.HasAsked() {
				t.Fatal("it has asked")
			}
		},
		"when it belongs to the cluster, and has no entry": stored(true),
		"when it has only the proposal":                    stored(false),
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			f, lead := fleetOf(t, 3)
			other := (lead + 1) % 3
			f.lose(other)
			time.Sleep(time.Minute)
			remove(t, f, lead, other)
			if err := fault(f.running[other], 5*time.Minute); !errors.Is(err, request.ErrRemoved) {
				t.Errorf("its fault is %v", err)
			}
			if x := f.place(lead, uint64(other+1)); x != nil {
				t.Errorf("it has added itself again: %v", x)
			}
		})
	}
}

// TestRemovedAnyTime: a server that joins, or a member of the list that has lost its disk, is removed at any time. Either it was
// none then, or it ends and does not come back. In between the leader may be lost.
func TestRemovedAnyTime(t *testing.T) {
	testkit.SlowUnderRace(t)
	for ms := 0; ms < 2500; ms += 100 {
		for _, how := range []string{"joins", "joins, and the leader is lost", "listed"} {
			synctest.Test(t, func(t *testing.T) {
				f, config, lead := threeOfFour(t)
				f.net.SetDelay(func(string, string) time.Duration { return 20 * time.Millisecond })
				i, via := 3, (lead+1)%3
				cfg := f.joins(3, via)
				if how == "listed" {
					i = (lead + 2) % 3
					f.lose(i)
					cfg = config(i)
				}
				id := uint64(i + 1)
				m := f.open(i, cfg)
				time.Sleep(time.Duration(ms) * time.Millisecond)
				if strings.HasSuffix(how, "lost") {
					f.stop(lead)
				}
				err := f.ask(via, request.Request{Remove: id})
				knew := how != "listed" || f.log.Count("this member's data is empty") > 0
				time.Sleep(time.Minute)
				switch in := f.place(via, id) != nil; {
				case err == nil && in && knew, err != nil && !in:
					t.Errorf("%s, %d ms: removed: %v; member: %v; it waits: %s", how, ms, err, in, m.Waiting())
				case err == nil && how != "listed" && !errors.Is(fault(m, 0), request.ErrRemoved):
					t.Errorf("%s, %d ms: it does not end; it waits: %s", how, ms, m.Waiting())
				}
			})
		}
	}
}

// TestJoinWithoutStatus: the leader's answer whether it has a server lacks its status, as that of an earlier build.
func TestJoinWithoutStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBase(t)
		b.cfg.Peers, b.cfg.Addr, b.cfg.Join = nil, "a:1", "b:1"
		b.answerRequests(t, "b", func(q request.Request) request.Reply {
			if q.Status {
				return request.Reply{Status: &request.Status{ID: 2, Formed: true, Cluster: testCluster}}
			}
			if q.Add != nil {
				t.Error("it asks for a place")
			}
			return request.Reply{} // it does not know member 1
		})
		m := b.membership()
		b.startFormer(t, m)
		time.Sleep(10 * time.Second)
		if m.Gate.IsOpen() {
			t.Error("it takes part in a cluster")
		}
	})
}

// TestAsksAllForItsVote: a member that waits for its vote gets it although the member through
// which it has joined is down.
func TestAsksAllForItsVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := fleetOf(t, 5)
		f.running[0].membership.Change(request.Request{Transfer: ptr(uint64(3))})
		until(t, "a leader", func() bool { return leadOf(t, f) != 0 })
		f.write(3)
		f.lose(4)
		var slow atomic.Bool
		slow.Store(true)
		var m atomic.Pointer[Member]
		f.disks[4].SetFault(func() error {
			if slow.Load() && m.Load() != nil && m.Load().pulse.gate.IsOpen() {
				time.Sleep(3 * time.Second)
			}
			return nil
		})
		m.Store(f.start(4))
		time.Sleep(5 * time.Second)
		f.stop(0) // down for good, say
		slow.Store(false)
		time.Sleep(time.Minute)
		if f.place(leadOf(t, f), 5).Observer {
			t.Error("with four of five members up, it has no vote")
		}
		// Restart does not help.
		f.stop(4)
		f.start(4)
		time.Sleep(time.Minute)
		if f.place(leadOf(t, f), 5).Observer {
			t.Error("after a restart, it has no vote")
		}
		// Now a second one goes: 3 of 5 members are up.
		f.stop(1)
		time.Sleep(time.Minute)
		if !f.write(2) && !f.write(3) {
			t.Error("three of five members are up, and there is no majority")
		}
	})
}

// TestRejoinsBesideLostMember: a member that has lost its disk gets its vote back, although the first server of its list is cut
// off from the leader, but not from it, or takes all connections and answers nothing.
func TestRejoinsBesideLostMember(t *testing.T) {
	for _, how := range []string{"cut off", "paused"} {
		testkit.Bubble(t, how, func(t *testing.T) {
			f, _ := fleetOf(t, 5)
			f.handTo(1)
			f.write(1)
			f.lose(2)
			if how == "paused" {
				f.net.Pause("a", true)
				defer f.net.Pause("a", false)
			} else {
				for _, i := range []int{1, 3, 4} {
					f.cutBetween(0, i, true)
				}
			}
			time.Sleep(20 * time.Second)
			f.start(2)
			until(t, "its request", func() bool { return f.running[2].membership.HasAsked() })
			time.Sleep(2 * time.Second)
			if f.place(1, 3).Observer || !f.running[2].pulse.gate.IsOpen() {
				t.Error("it has no vote")
			}
		})
	}
}

// TestRemovedBeforeData: a server that is removed before it has stored an entry ends, and does not
// add itself again when it is started again.
func TestRemovedBeforeData(t *testing.T) {
	for _, observer := range []bool{false, true} {
		for _, listed := range []bool{false, true} {
			testkit.Bubble(t, fmt.Sprintf("observer %v, listed %v", observer, listed), func(t *testing.T) {
				f := newFleet(t, 4)
				flags := f.joins(3, 0)
				flags.Observer = observer
				if !listed {
					f.found(3)
				} else {
					for i := range 4 {
						cfg := f.config(i)
						if observer {
							observe(&cfg, 4)
						}
						f.open(i, cfg)
						flags = cfg
					}
				}
				until(t, "a write", func() bool { return f.write(0) && (!listed || f.place(0, 4) != nil) })
				f.lose(3)
				time.Sleep(f.running[0].contacts.ElectionTimeout) // it does not seem to follow any more
				m := f.startStuck(3, flags)
				time.Sleep(time.Second)
				f.tell(0, request.Request{Remove: 4})
				if err := fault(m, 5*time.Minute); err == nil {
					t.Error("it does not end")
				}
				m.Kill()
				f.disks[3].SetFault(nil)
				f.open(3, flags)
				time.Sleep(time.Minute)
				if x := f.place(0, 4); x != nil {
					t.Errorf("after its restart it is a member again: %v", x)
				}
			})
		}
	}
}

// startStuck starts a member that has no data and, as soon as it is added, stores nothing more
// until it is killed.
func (f *fleet) startStuck(i int, cfg Config) *Member {
	f.t.Helper()
	var m atomic.Pointer[Member]
	f.disks[i].SetFault(func() error {
		for m.Load() != nil && m.Load().pulse.gate.IsOpen() {
			if m.Load().Killed.Load() {
				return errors.New("killed")
			}
			time.Sleep(100 * time.Millisecond)
		}
		return nil
	})
	x := New(cfg, fsm.NewReplica())
	m.Store(x)
	if err := x.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.running[i] = x
	until(f.t, "added", x.pulse.gate.IsOpen)
	return x
}

// TestAddedByNobody: a leader loses its majority while it adds a server, and crashes; the others
// never hear of that. The server does not take this for its removal, and joins through the next leader.
func TestAddedByNobody(t *testing.T) {
	for n := range int32(6) {
		testkit.Bubble(t, fmt.Sprintf("cut at write %d", n+1), func(t *testing.T) {
			f, config, lead := threeOfFour(t)
			f.writes(lead, 3)
			cut := func(yes bool) {
				for i := range 3 {
					if i != lead {
						f.cutBetween(lead, i, yes)
					}
				}
			}
			var writes atomic.Int32
			f.disks[lead].SetFault(func() error {
				if writes.Add(1) == n+1 {
					cut(true)
				}
				return nil
			})
			m := f.open(3, f.joins(3, lead))
			time.Sleep(5 * time.Second)
			f.stop(lead)
			cut(false)
			f.disks[lead].SetFault(nil)
			time.Sleep(5 * time.Second)
			f.open(lead, config(lead))
			if err := fault(m, time.Minute); err != nil {
				t.Fatal(err)
			}
			if x := f.place(leadOf(t, f), 4); x == nil || x.Observer {
				t.Errorf("it is %v", x)
			}
		})
	}
}

// TestWaitingForALeader: a member that has lost its disk says what it waits for while the others have no leader.
func TestWaitingForALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 0)
		for i := range 3 {
			f.stop(i)
		}
		f.lose(0)
		f.start(0)
		f.start(1)
		time.Sleep(10 * time.Second)
		if why := f.running[0].Waiting(); !strings.Contains(why, "waiting for the leader of the cluster that b:1 belongs to") {
			t.Errorf("it waits for %q", why)
		}
		if why := f.running[1].Waiting(); !strings.HasPrefix(why, "no majority can be reached without server ") {
			t.Errorf("the one with its disk waits for %q", why)
		}
	})
}

// TestVoteForgottenOnceAsked: a voter that has lost its disk, and is started with only the address of
// its peer port, gets its vote back although its first attempt to join does not end well: the leader
// has taken its vote away, and then the member's disk is slow once, or it crashes, before or after it has stored that it
// belongs to the cluster, or the answer is lost.
func TestVoteForgottenOnceAsked(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, how := range []string{"slow disk", "crash", "crash once taken in", "lost answer"} {
		testkit.Bubble(t, how, func(t *testing.T) {
			f, lead := fleetOf(t, 3)
			c := (lead + 2) % 3
			id := uint64(c + 1)
			f.lose(c)
			time.Sleep(f.running[lead].contacts.ElectionTimeout) // it does not seem to follow any more
			cfg := f.joins(c, -1)
			var known atomic.Pointer[Member]
			switch how {
			case "slow disk": // one write takes 3 s
				var once atomic.Bool
				f.disks[c].SetFault(func() error {
					if m := known.Load(); m != nil && m.membership.HasAsked() && once.CompareAndSwap(false, true) {
						time.Sleep(3 * time.Second)
					}
					return nil
				})
			case "crash", "crash once taken in":
				f.disks[c].SetFault(func() error {
					m := known.Load()
					for m != nil && m.membership.HasAsked() && (how == "crash" || m.pulse.gate.IsOpen()) {
						if m.Killed.Load() {
							return errors.New("crashed")
						}
						time.Sleep(time.Millisecond)
					}
					return nil
				})
			case "lost answer":
				broken := make(chan struct{})
				close(broken)
				cfg.Network = &muting{Network: cfg.Network, broken: broken}
			}
			m := f.open(c, cfg)
			known.Store(m)
			until(t, "the demotion", func() bool {
				return f.place(lead, id).Observer && (how != "crash once taken in" || m.pulse.gate.IsOpen())
			})
			if strings.HasPrefix(how, "crash") {
				f.stop(c)
				known.Store(nil)
				f.disks[c].SetFault(nil)
				f.open(c, cfg)
			}
			time.Sleep(5 * time.Minute)
			f.hasVote(lead, c, cfg)
		})
	}
}

// TestJoinsThroughOthers: a member that has lost its disk comes back although the first member of its
// list is cut off from the others, but not from it.
func TestJoinsThroughOthers(t *testing.T) {
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
		s := f.running[lead].membership.Status()
		if !m.pulse.gate.IsOpen() || election.Find(s.Members, 5).Observer {
			t.Errorf("after ten minutes: in the cluster %v, members %v, why: %s", m.pulse.gate.IsOpen(), s.Members, m.membership.Waiting())
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

// hasVote fails unless the member has its vote, and still has it after a restart: then the leader and it
// acknowledge a write without the third of the three members.
func (f *fleet) hasVote(lead, c int, cfg Config) {
	f.t.Helper()
	id, other := uint64(c+1), 3-lead-c
	if f.place(lead, id).Observer {
		f.t.Errorf("server %d has all data, and no vote", id)
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
				if join {
					return f.joins(c, lead)
				}
				return f.config(c)
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
	peer.Network
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
	late atomic.Bool
}

func (c *delayed) Write(b []byte) (int, error) {
	if !bytes.Contains(b, []byte(`"add":`)) || !c.n.sent.CompareAndSwap(false, true) {
		return c.Conn.Write(b)
	}
	c.late.Store(true)
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
	if c.late.Load() {
		c.Conn.SetReadDeadline(time.Unix(1, 0)) // for the reader on this side
		return nil
	}
	return c.Conn.Close()
}

// elsewhere is the network of a host whose server listens on all its addresses, whatever address it was given.
type elsewhere struct {
	peer.Network
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
			if join {
				cfg = f.joins(c, lead)
			}
			cfg.Network, cfg.Memory = elsewhere{f.net.Host("z"), "z:1"}, storage.NewMemory()
			observe(&cfg, cfg.ID)
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
		term := f.running[lead].engine.Term()
		cfg := f.config(lead)
		cfg.Network, cfg.Memory = elsewhere{f.net.Host("z"), "z:1"}, storage.NewMemory()
		m, err := openMember(cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if s := f.running[lead].membership.Status(); s.Role != "leader" || s.Term != term {
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
		cfg := f.joins(c, j)
		m := f.startStuck(c, cfg)
		m.Kill()
		f.disks[c].SetFault(nil)
		f.stop(j)
		m = f.open(c, cfg)
		time.Sleep(time.Minute)
		s := f.running[lead].membership.Status()
		if !m.pulse.gate.IsOpen() || election.Find(s.Members, id).Observer {
			t.Errorf("server %d, of %v, waits: %s", id, s.Members, m.membership.Waiting())
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
			f.startStuck(c, f.config(c)).Kill()
			time.Sleep(10 * time.Second)
			f.disks[c].SetFault(nil)
			cfg := f.config(c)
			if !listed {
				cfg = f.joins(c, -1)
			}
			observe(&cfg, id)
			f.open(c, cfg)
			time.Sleep(time.Minute)
			if s := f.running[lead].membership.Status(); !election.Find(s.Members, id).Observer {
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
		config := func() Config { return f.joins(c, -1) }
		f.lose(c)
		time.Sleep(f.running[lead].contacts.ElectionTimeout) // it does not seem to follow any more
		changing := f.running[lead].membership
		var known, kept atomic.Bool
		f.disks[c].SetFault(func() error { // once it has lost its vote, another change keeps it from getting it back
			if known.Load() && f.place(lead, uint64(c+1)).Observer && kept.CompareAndSwap(false, true) {
				changing.Hold()
			}
			return nil
		})
		m := f.open(c, config())
		known.Store(true)
		until(t, "its word that it waits", func() bool {
			s := m.membership.Status()
			return s.NoVote == "waits for its vote"
		})
		f.lose(c)
		changing.Release()
		m = f.open(c, config())
		time.Sleep(time.Minute)
		if s := m.membership.Status(); !strings.HasPrefix(s.NoVote, "has no vote") {
			t.Errorf("its status does not say that it has no vote: %q, %v", s.NoVote, s.Members)
		}
		f.tell(lead, request.Request{Add: &proto.Peer{ID: uint64(c + 1), Addr: f.peers[uint64(c+1)]}})
		until(t, "its word that it has its vote", func() bool {
			s := m.membership.Status()
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
		cfg := f.joins(c, -1)
		cfg.Observer = true
		m := f.open(c, cfg)
		time.Sleep(time.Minute)
		if s := f.running[lead].membership.Status(); !m.pulse.gate.IsOpen() || !election.Find(s.Members, id).Observer {
			t.Errorf("server %d is started as an observer: %v, it waits: %s", id, s.Members, m.membership.Waiting())
		}
	})
}

// muting is a network on which no answer comes to the first request for a place in the cluster that is sent to the
// address to, or anywhere if that is empty.
type muting struct {
	peer.Network
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

// TestRemovedBeforeSecondRequest: a server is added, and an operator removes it before the connection breaks on which it
// waits for the answer, so that it sends the same request again. It is not added once more, whichever member leads by
// then, and whatever that has seen of the addition and the removal.
func TestRemovedBeforeSecondRequest(t *testing.T) {
	for _, x := range []struct {
		name        string
		never       bool // the connection does not break
		hands       bool // another member leads when the second request comes
		cutOff      bool // that one has got both changes in a snapshot
		cutOffLater bool // that one has got the removal in a snapshot
		restarted   bool // that one was started with a snapshot that covers both
		another     bool // another server has had the id since
	}{
		{name: "no second request", never: true},
		{name: "same leader"},
		{name: "another leader", hands: true},
		{name: "a leader with a snapshot", hands: true, cutOffLater: true},
		{name: "a leader with both in a snapshot", hands: true, cutOff: true},
		{name: "a leader that was restarted", hands: true, restarted: true},
		{name: "another server with the id", another: true},
	} {
		testkit.Bubble(t, x.name, func(t *testing.T) {
			f, config, lead := threeOfFour(t)
			next := (lead + 1) % 3
			third := 3 - lead - next
			f.cutOff(next, x.cutOff)
			cfg := f.joins(3, third)
			n := &muting{Network: cfg.Network, to: f.peers[uint64(lead+1)], broken: make(chan struct{})}
			cfg.Network = n
			m := f.open(3, cfg)
			until(t, "the addition", func() bool {
				for i, m := range f.running[:3] {
					if s := m.membership.Status(); election.Find(s.Members, 4) == nil && (i != next || !x.cutOff) {
						return false
					}
				}
				return true
			})
			f.cutOff(next, x.cutOff || x.cutOffLater)
			f.tell(lead, request.Request{Remove: 4})
			if x.another {
				f.tell(lead, request.Request{Add: &proto.Peer{ID: 4, Addr: "e:1", Observer: true}})
				f.tell(lead, request.Request{Remove: 4})
			}
			if x.restarted { // on a real disk, from which it reads its snapshot in another way
				cfg := config(next)
				cfg.Memory, cfg.Dir = nil, t.TempDir()
				f.stop(next)
				f.open(next, cfg)
				until(t, "the vote", func() bool {
					s := f.running[lead].membership.Status()
					return f.running[next].leader.Get().ID != 0 && election.CountVoters(s.Members) == 3
				})
				f.writes(lead, 20)
				f.snapshot(3)
				f.stop(next)
				f.open(next, cfg)
			}
			if x.cutOff || x.cutOffLater {
				f.writes(lead, 20)
				if err := f.running[lead].engine.TakeSnapshot(); err != nil {
					t.Fatal(err)
				}
				f.cutOff(next, false)
				until(t, "the snapshot", func() bool { return f.hasSnapshot(next) })
			}
			if x.hands {
				f.handTo(next)
				lead = next
			}
			if m.pulse.gate.IsOpen() {
				t.Fatal("it has an answer")
			}
			if !x.never {
				close(n.broken)
			}
			if err := fault(m, 5*time.Minute); !errors.Is(err, request.ErrRemoved) {
				t.Errorf("its fault is %v", err)
			}
			if f.place(lead, 4) != nil {
				t.Error("it was added again")
			}
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
			q := &request.Reconfig{Joining: joining, Leaving: []uint64{id}, Version: -1, WaitMs: 1000}
			err := f.ask(lead, request.Request{Reconfig: q})
			if err == nil {
				t.Fatal("it was done")
			}
			time.Sleep(time.Minute)
			if s := f.running[lead].membership.Status(); len(s.Members) != 3 {
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
		f, _, lead := threeOfFour(t)
		f.writes(lead, 1)
		f.stop(2)
		if lead == 2 {
			lead = leadOf(t, f)
		}
		cfg := f.joins(3, lead)
		cfg.ID = 3
		m := f.open(3, cfg)
		time.Sleep(20 * time.Second)
		f.tell(lead, request.Request{Remove: 3})
		if err := fault(m, time.Minute); err != nil {
			t.Errorf("the new server, which never was a member, ends: %v", err)
		}
		s := f.running[lead].membership.Status()
		if len(s.Members) != 3 {
			t.Errorf("the members: %v", s.Members)
		}
	})
}

// TestAddThatIsUndone: a server was started with only the address of its peer port and waits to be added. An
// operator adds it; the leader's list reaches only the leader and that server's port, and all lose power but the
// server. The others come back, then the old leader, whose list is undone. The server was never a member. It goes on
// waiting, and the operator, whose command has failed, adds it again.
func TestAddThatIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, config, lead := threeOfFour(t)
		f.writes(lead, 1)
		x := f.open(3, config(3))
		time.Sleep(10 * time.Second)
		leader := f.running[lead]
		last := leader.engine.LastIndex()
		stored := func() bool {
			end, _ := leader.engine.Storage().Log.LastIndex()
			for ; end > last; end-- {
				if l, err := leader.engine.Entry(end); err == nil && l.Type == raft.LogConfiguration {
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
				for stored() && leader.engine.Role() == engine.Leader && !crash.Load() {
					time.Sleep(time.Millisecond)
				}
				if crash.Load() {
					return errors.New("crashed")
				}
				return nil
			})
		}
		ctx, interrupt := context.WithCancel(t.Context())
		go request.Ask(ctx, f.net.Host("operator"), f.peers[uint64(lead+1)], request.Request{Add: &proto.Peer{ID: 4, Addr: f.peers[4]}})
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
		if s := f.running[next].membership.Status(); len(s.Members) != 3 {
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
		testkit.Bubble(t, how, func(t *testing.T) {
			f := newFleet(t, 4)
			config := func(i int) Config {
				cfg := f.joins(i, -1)
				if i < 3 {
					cfg.Peers = listOf(map[uint64]string{1: f.peers[1], 2: f.peers[2], 3: f.peers[3]})
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
				_, err := request.Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], request.Request{Add: &proto.Peer{ID: 4, Addr: addr}})
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
			s, x := f.running[3].membership.Status(), f.place(lead, 4)
			if !s.Formed || x == nil || x.Observer {
				t.Errorf("after five minutes: formed %v, waiting %q, %v", s.Formed, s.Waiting, x)
			}
		})
	}
}

// TestOtherNameIsNotUndone: a member that has lost its disk asks for its vote, and its request waits for another change of
// the members: an operator gives it another name as its address. The operator's change is acknowledged, and stays.
func TestOtherNameIsNotUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		alias := map[string]string{"na:1": "a:1", "nb:1": "b:1", "nc:1": "c:1"}
		f.change = func(c *Config) { c.Network = detour{c.Network, alias} }
		lead := f.all(nil)
		c := (lead + 1) % 3
		id := uint64(c + 1)
		m := f.running[lead].membership
		// As if it had lost its disk, and was stopped when it had caught up, before it got its vote back.
		if _, err := m.Change(request.Request{Add: &proto.Peer{ID: id, Addr: f.peers[id], Observer: true}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		f.stop(c)
		if err := f.disks[c].Open().SetRejoining(true); err != nil {
			t.Fatal(err)
		}
		m.Hold() // some other change
		done := make(chan error, 1)
		go func() {
			_, err := m.Change(request.Request{Add: &proto.Peer{ID: id, Addr: "n" + f.peers[id]}})
			done <- err
		}()
		time.Sleep(time.Second)
		f.start(c) // it asks for its vote again
		time.Sleep(2 * time.Second)
		m.Release()
		t.Log(<-done)
		time.Sleep(time.Minute)
		if x := f.place(lead, id); x.Addr != "n"+f.peers[id] {
			t.Errorf("the operator's address is gone: %v", x)
		}
	})
}

// resolving is the network of a host that resolves names. What they lead to changes.
type resolving struct {
	peer.Network
	names *sync.Map
}

func (r resolving) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if to, ok := r.names.Load(addr); ok {
		addr = to.(string)
	}
	return r.Network.Dial(ctx, addr)
}

// named returns a fleet on whose hosts the names lead where dns says.
func named(t *testing.T, size int) (f *fleet, dns *sync.Map) {
	f, dns = newFleet(t, size), new(sync.Map)
	f.change = func(cfg *Config) { cfg.Network = resolving{cfg.Network, dns} }
	return f, dns
}

// TestNameLeadsElsewhere: the name of a member that is up, and has answered all heartbeats, is made to lead to another
// host, where an empty server is started with its command line. The member keeps its vote.
func TestNameLeadsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, dns := named(t, 3)
		lead := f.all(nil)
		f.writes(0, 5)
		c := (lead + 2) % 3
		id := uint64(c + 1)
		dns.Store(f.peers[id], "z:1")
		cfg := f.config(c)
		cfg.Network, cfg.Memory = resolving{elsewhere{f.net.Host("z"), "z:1"}, dns}, storage.NewMemory()
		m, err := openMember(cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		s := f.running[lead].membership.Status()
		zs := m.membership.Status()
		cs := f.running[c].membership.Status()
		t.Logf("leader: %v; old: %s index %d of %d; new: %s index %d", s.Members, cs.Role, cs.Index, s.Index, zs.Role, zs.Index)
		if election.Find(s.Members, id).Observer && zs.Index == 0 {
			t.Error("the old server, which is up and gets the log, has no vote, and the new one, in its place, gets no log")
		}
		m.Kill() // the operator has seen the mistake
		dns.Delete(f.peers[id])
		time.Sleep(5 * time.Minute)
		if s := f.running[lead].membership.Status(); election.Find(s.Members, id).Observer {
			t.Errorf("server %d has all data, and no vote: %v", id, s.Members)
		}
	})
}
