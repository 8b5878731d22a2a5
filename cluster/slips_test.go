package cluster

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/session"
)

// The tests in this file are of slips and rare orders that readers of the code have found.

// leadOf waits for a leader, and returns its index.
func leadOf(t *testing.T, f *fleet) (lead int) {
	t.Helper()
	return leaderOf(t, f.running)
}

// corrupt makes a member's state another one than its log says.
func (f *fleet) corrupt(i int, id int64) {
	f.running[i].replica.View(func(v *fsm.View) { v.Sessions().Open(session.Session{ID: id, Timeout: 1 << 30}) })
}

// fault waits up to d, and a second, for a member's fault; it returns nil if there is none.
func fault(m *Member, d time.Duration) error {
	d += time.Second
	select {
	case err := <-m.Err():
		return err
	case <-time.After(d):
		return nil
	}
}

// TestNotRemovedByStrangers: a member does not end as removed because a server of another cluster,
// at the address of a member that is down, does not know it.
func TestNotRemovedByStrangers(t *testing.T) {
	for _, how := range []string{"a server of another cluster is at the address", "an emptied member is started with a list of only itself"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startedFleet(t, 3)
				lead := leadOf(t, f)
				// b is the lost one, c the one that is left.
				b, c := (lead+1)%3, (lead+2)%3
				f.lose(b)
				if strings.HasPrefix(how, "an emptied") {
					cfg := f.config(b)
					cfg.Peers = listOf(map[uint64]string{uint64(b + 1): f.peers[uint64(b+1)]})
					f.open(b, cfg)
				} else {
					cfg := f.config(b)
					cfg.ID, cfg.Peers, cfg.Addr = 7, listOf(map[uint64]string{7: f.peers[uint64(b+1)]}), f.peers[uint64(b+1)]
					f.open(b, cfg)
				}
				until(t, "the other cluster", func() bool { return f.running[b].Role() == "leader" })
				if !f.write(lead) || !f.write(c) {
					t.Fatal("no write")
				}
				// The leader is restarted, e.g. by a reboot that takes ten seconds.
				f.stop(lead)
				err := fault(f.running[c], 10*time.Second)
				if err != nil {
					t.Errorf("member %d stops: %v", c+1, err)
				}
				f.start(lead)
				time.Sleep(10 * time.Second)
				if !f.write(lead) && err == nil {
					t.Error("no write afterwards")
				}
			})
		})
	}
}

// TestAsksAllForItsVote: a member that waits for its vote gets it although the member through
// which it has joined is down.
func TestAsksAllForItsVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 5)
		for i := range 5 {
			f.start(i)
		}
		f.whole()
		f.running[0].Change(Request{Transfer: ptr(uint64(3))})
		until(t, "a leader", func() bool { return leadOf(t, f) != 0 })
		f.write(3)
		f.lose(4)
		var slow atomic.Bool
		slow.Store(true)
		var m atomic.Pointer[Member]
		f.disks[4].SetFault(func() error {
			if slow.Load() && m.Load() != nil && m.Load().membership.gate.lifted() {
				time.Sleep(3 * time.Second)
			}
			return nil
		})
		m.Store(f.start(4))
		time.Sleep(5 * time.Second)
		lead := leadOf(t, f)
		s, _ := f.running[lead].Status()
		f.stop(0) // down for good, say
		slow.Store(false)
		time.Sleep(time.Minute)
		s, _ = f.running[leadOf(t, f)].Status()
		if find(s.Members, 5).Observer {
			t.Errorf("with four of five members up: %v", s.Members)
		}
		// Restart does not help.
		f.stop(4)
		f.start(4)
		time.Sleep(time.Minute)
		s, _ = f.running[leadOf(t, f)].Status()
		if find(s.Members, 5).Observer {
			t.Errorf("after a restart: %v", s.Members)
		}
		// Now a second one goes: 3 of 5 members are up.
		f.stop(1)
		time.Sleep(time.Minute)
		if !f.write(2) && !f.write(3) {
			t.Error("three of five members are up, and there is no majority")
		}
	})
}

// TestWrongListOnce: a server that was started with the address of a member of another cluster in
// its list forms its own cluster when the list is right.
func TestWrongListOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := startedFleet(t, 1)
		f := newFleet(t, 3)
		f.net = old.net
		f.peers = map[uint64]string{1: "p:1", 2: "q:1", 3: "r:1"}
		cfg := f.config(0)
		cfg.Peers = listOf(map[uint64]string{1: "p:1", 2: "q:1", 3: "c:1"}) // c:1 is member 3 of the old cluster
		f.open(0, cfg)
		time.Sleep(20 * time.Second)
		f.stop(0)
		for i := range 3 { // with the right list
			f.start(i)
		}
		f.whole()
	})
}

// TestDifferenceOfOneThatIsDown: a member that has differed and is down does not count against a
// leader whose state is right, nor for it: when the third one differs too, neither of the two ends, and neither serves.
func TestDifferenceOfOneThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 3)
		lead := leadOf(t, f)
		b, c := (lead+1)%3, (lead+2)%3
		f.corrupt(c, 1<<40)
		f.write(lead)
		if err := fault(f.running[c], 10*time.Second); !errors.Is(err, ErrDiffers) {
			t.Fatal(err)
		}
		f.stop(c) // left down, as the operations page says
		time.Sleep(time.Minute)
		f.corrupt(b, 1<<41)
		f.write(lead)
		time.Sleep(10 * time.Second)
		for _, i := range []int{lead, b} {
			if err := fault(f.running[i], 0); err != nil {
				t.Errorf("member %d ends: %v", i+1, err)
			}
			if f.running[i].Waiting() == "" {
				t.Errorf("member %d serves", i+1)
			}
		}
	})
}

// TestDifferenceOfAnEarlierTerm: a leader does not show a difference that it has seen when it led
// before.
func TestDifferenceOfAnEarlierTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 3)
		lead := leadOf(t, f)
		b, c := (lead+1)%3, (lead+2)%3
		f.corrupt(c, 1<<40)
		f.write(lead)
		if err := fault(f.running[c], 10*time.Second); !errors.Is(err, ErrDiffers) {
			t.Fatal(err)
		}
		f.stop(c)
		f.running[lead].Change(Request{Transfer: ptr(uint64(b + 1))})
		until(t, "the other leader", func() bool { return leadOf(t, f) == b })
		f.lose(c)
		f.start(c)
		f.whole()
		f.stop(c) // maintenance, much later
		f.running[b].Change(Request{Transfer: ptr(uint64(lead + 1))})
		until(t, "the first leader", func() bool { return leadOf(t, f) == lead })
		time.Sleep(time.Minute)
		if s, _ := f.running[lead].Status(); s.Differs != nil {
			t.Errorf("differs: %v", s.Differs)
		}
	})
}

// TestRemovedBeforeData: a server that is removed before it has stored an entry ends, and does not
// add itself again when it is started again.
func TestRemovedBeforeData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 3)
		lead := leadOf(t, f)
		disk := storage.NewMemory()
		var m atomic.Pointer[Member]
		var slow atomic.Bool
		slow.Store(true)
		disk.SetFault(func() error {
			for slow.Load() && m.Load() != nil && m.Load().membership.gate.lifted() {
				if m.Load().killed.Load() {
					return errors.New("killed")
				}
				time.Sleep(100 * time.Millisecond)
			}
			return nil
		})
		cfg := f.config(0)
		cfg.ID, cfg.Peers, cfg.Addr, cfg.Join, cfg.Memory, cfg.Network = 4, nil, "d:1", "a:1", disk, f.net.Host("d")
		x := New(cfg, fsm.NewReplica())
		m.Store(x)
		if err := x.Start(); err != nil {
			t.Fatal(err)
		}
		until(t, "added", func() bool {
			s, _ := f.running[lead].Status()
			return find(s.Members, 4) != nil && x.membership.gate.lifted()
		})
		time.Sleep(time.Second)
		if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], Request{Remove: 4}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := fault(x, 5*time.Minute); err == nil {
			t.Error("it does not end")
		}
		x.Kill()
		slow.Store(false)
		m.Store(nil)
		y, err := openMember(cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if s, _ := f.running[lead].Status(); find(s.Members, 4) != nil {
			t.Errorf("after its restart it is a member again: %v", s.Members)
		}
		y.Kill()
	})
}

// startStuck starts a member that has no data and, as soon as it is added, stores nothing more
// until it is killed.
func (f *fleet) startStuck(i int, cfg Config) *Member {
	f.t.Helper()
	var m atomic.Pointer[Member]
	f.disks[i].SetFault(func() error {
		for m.Load() != nil && m.Load().membership.gate.lifted() {
			if m.Load().killed.Load() {
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
	until(f.t, "added", x.membership.gate.lifted)
	return x
}

// TestVoteOwed: a voter without a list that ends after its vote was taken away, and before it has
// stored an entry, still gets its vote back.
func TestVoteOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 3)
		lead := leadOf(t, f)
		c := (lead + 2) % 3
		f.lose(c)
		cfg := f.config(c)
		cfg.Peers, cfg.Addr = nil, f.peers[uint64(c+1)]
		x := f.startStuck(c, cfg)
		x.Kill()
		time.Sleep(5 * time.Second) // its request for its vote is over
		f.disks[c].SetFault(nil)
		f.open(c, cfg)
		time.Sleep(2 * time.Minute)
		s, _ := f.running[lead].Status()
		if find(s.Members, uint64(c+1)).Observer {
			t.Errorf("after its restart: %v", s.Members)
		}
		f.stop(c)
		f.open(c, cfg)
		time.Sleep(time.Minute)
		s, _ = f.running[lead].Status()
		if find(s.Members, uint64(c+1)).Observer {
			t.Errorf("after another restart: %v", s.Members)
		}
		f.stop((lead + 1) % 3)
		time.Sleep(30 * time.Second)
		if !f.write(lead) {
			t.Error("no write with two of three members up")
		}
	})
}

// TestAboutToJoin: a member that is about to join does not end because one of its addresses leads
// to another cluster.
func TestAboutToJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 3)
		other := newFleet(t, 1)
		other.net, other.peers = f.net, map[uint64]string{1: "z:1"}
		other.start(0)
		f.lose(2)
		if err := f.disks[2].Open().SetRejoining(true); err != nil {
			t.Fatal(err)
		}
		id := f.running[0].membership.gate.cluster()
		if err := f.disks[2].Open().SetIdentity(storage.Identity{Cluster: id, Agreed: true}); err != nil { // as join does it
			t.Fatal(err)
		}
		cfg := f.config(2)
		cfg.Network = detour{cfg.Network, map[string]string{"a:1": "z:1"}}
		m := f.open(2, cfg)
		if err := fault(m, time.Minute); err != nil {
			t.Error(err)
		}
	})
}

// TestListedRemovedBeforeData is the same for a member with a list that has lost its disk.
func TestListedRemovedBeforeData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 3)
		lead := leadOf(t, f)
		c := (lead + 2) % 3
		f.lose(c)
		x := f.startStuck(c, f.config(c))
		time.Sleep(time.Second)
		if _, err := Ask(t.Context(), f.net.Host("operator"), f.peers[uint64(lead+1)], Request{Remove: uint64(c + 1)}); err != nil {
			t.Fatal(err)
		}
		if err := fault(x, 2*time.Minute); err == nil {
			t.Error("it does not end")
		}
		x.Kill()
	})
}

// TestAddedByNobody: a leader loses its majority while it adds a server, and crashes; the others
// never hear of that. The server does not take this for its removal, and joins through the next leader.
func TestAddedByNobody(t *testing.T) {
	for n := range int32(6) {
		t.Run(fmt.Sprintf("cut at write %d", n+1), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startedFleet(t, 3)
				lead := leadOf(t, f)
				cut := func(yes bool) {
					for i := range f.running {
						if a, b := string(rune('a'+lead)), string(rune('a'+i)); a != b {
							f.net.Cut(a, b, yes)
							f.net.Cut(b, a, yes)
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
				cfg := f.config(0)
				cfg.ID, cfg.Peers, cfg.Addr, cfg.Join, cfg.Memory, cfg.Network = 4, nil, "d:1", f.peers[uint64(lead+1)], storage.NewMemory(), f.net.Host("d")
				x, err := openMember(cfg, fsm.NewReplica())
				if err != nil {
					t.Fatal(err)
				}
				defer x.Kill()
				time.Sleep(5 * time.Second)
				f.stop(lead)
				cut(false)
				f.disks[lead].SetFault(nil)
				time.Sleep(5 * time.Second)
				f.start(lead)
				if err := fault(x, time.Minute); err != nil {
					t.Fatal(err)
				}
				s, err := f.running[leadOf(t, f)].Status()
				if err != nil || find(s.Members, 4) == nil || find(s.Members, 4).Observer {
					t.Errorf("the members are %v, %v", s.Members, err)
				}
			})
		})
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
			before := f.running[1].raft.CurrentTerm()
			f.stop(1)
			f.stop(0)
			f.stop(2)
			f.start(0)
			f.start(2)
			if lead = leadOf(t, f); lead == 0 && f.running[0].raft.CurrentTerm() == before+1 {
				break
			}
			f.start(1)
			f.whole()
		}
		term := f.running[0].raft.CurrentTerm()
		began := len(f.acked)
		f.writes(0, 20)
		f.stop(0) // for good
		moved := f.config(1)
		moved.Peers, moved.Addr, moved.Network = nil, "a:1", f.net.Host("a")
		m := f.open(1, moved)
		time.Sleep(time.Minute)
		s, _ := m.Status()
		if m.Role() == "leader" && s.Term == term {
			t.Errorf("server 2 leads in term %d, in which server 1 has led", term)
		}
		wrote := f.write(1)
		lacks := 0
		m.replica.View(func(v *fsm.View) {
			for _, id := range f.acked[began:] {
				if v.Sessions().Get(id) == nil {
					lacks++
				}
			}
		})
		if wrote && lacks > 0 {
			t.Errorf("it acknowledges a write, and lacks %d of the writes that server 1 has acknowledged", lacks)
		}
		t.Logf("role %s, term %d, faults: %v, %v", m.Role(), s.Term, fault(m, 0), fault(f.running[2], 0))
	})
}

// TestDifferenceWhileOneLags: the leader of three has a wrong state. The disk of one of the others is stuck for
// some seconds, but that one answers heartbeats, and can tell later who is wrong. No member whose state is right
// stops.
func TestDifferenceWhileOneLags(t *testing.T) {
	for _, stuck := range []time.Duration{3 * time.Second, 6 * time.Second, 20 * time.Second} {
		t.Run(stuck.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startedFleet(t, 3)
				lead := leadOf(t, f)
				a, b := (lead+1)%3, (lead+2)%3
				release := make(chan struct{})
				f.disks[b].SetFault(func() error { <-release; return nil })
				f.corrupt(lead, 1<<40)
				if !f.write(a) {
					t.Error("no write")
				}
				began, released := time.Now(), false
				stopped := map[int]error{}
				for time.Since(began) < time.Minute {
					time.Sleep(100 * time.Millisecond)
					for i, m := range f.running {
						if m == nil {
							continue
						}
						select {
						case stopped[i] = <-m.Err():
							f.stop(i)
						default:
						}
					}
					if !released && time.Since(began) > stuck {
						released = true
						f.disks[b].SetFault(nil)
						close(release)
					}
				}
				for _, x := range []int{a, b} {
					if err := stopped[x]; err != nil {
						t.Errorf("stuck for %v: member %d, whose state is right, stops: %v", stuck, x+1, err)
					}
				}
				if stopped[lead] == nil {
					t.Errorf("stuck for %v: the leader, whose state is wrong, goes on", stuck)
				}
			})
		})
	}
}
