package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestHandOverTooLate: HandOver on a leader that has not noticed yet that it was
// replaced returns when it notices.
func TestHandOverTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		lead := leadOf(t, f)
		m, other := f.running[lead], f.running[(lead+1)%3]
		write := make(chan struct{})
		f.disks[lead].SetFault(func() error { <-write; return nil })
		f.propose(lead, 99) // holds Raft up there
		for i := range 3 {
			f.net.Cut(string(rune('a'+lead)), string(rune('a'+i)), true)
		}
		until(t, "another leader", func() bool { id := other.leader.Get().ID; return id != 0 && id != m.cfg.ID })
		f.net.Heal()
		time.AfterFunc(m.contacts.Lease, func() { close(write) })
		if err := m.engine.HandOver(m.peers.Ctx); err != nil {
			t.Error(err)
		}
		if l, _ := m.engine.Leader(); l == 0 || l == m.cfg.ID {
			t.Errorf("%d leads", l)
		}
	})
}

// TestHandOverBesideStuckRaft: Raft's main goroutine waits for the leader's disk, and so does every transfer
// that it is asked for. Who hands over does not.
func TestHandOverBesideStuckRaft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.first = true
		lead := f.all(nil)
		stuck := make(chan struct{})
		defer close(stuck)
		f.disks[lead].SetFault(func() error { <-stuck; return nil })
		f.propose(lead, 99)
		time.Sleep(10 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- f.running[lead].engine.HandOver(ctx) }()
		if time.Sleep(30 * time.Second); len(ended) == 0 {
			t.Error("it hands over for ever")
		}
	})
}

// TestHandOverFails: if the chosen member cannot become the leader, since it is stuck when it stores
// its term, and cut off then, the old leader or the third member accepts entries again soon, and
// not only after Raft's own timeout.
func TestHandOverFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		lead := leadOf(t, f)
		m, to := f.running[lead], (lead+1)%3
		time.Sleep(time.Second) // so that the next thing it stores is its term
		stuck := make(chan struct{})
		defer close(stuck)
		f.disks[to].SetFault(func() error {
			time.Sleep(time.Millisecond) // it has said that it will stand
			f.cutOff(to, true)
			<-stuck
			return nil
		})
		began := time.Now()
		if err := m.engine.HandOver(m.peers.Ctx, uint64(to+1)); err == nil {
			t.Error("a member whose disk is stuck has become the leader")
		}
		f.writes(lead, 1)
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("an entry waited %v", took)
		}
	})
}

// TestHandOverToLiveMember: a leader does not hand over to a member that is down,
// although its log is as long as the others'.
func TestHandOverToLiveMember(t *testing.T) {
	for _, down := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			f := startedFleet(t, 1)
			lead := leadOf(t, f)
			time.Sleep(time.Second) // so that all have the whole log
			dead := (lead + down) % 3
			f.net.Kill(string(rune('a' + dead)))
			f.stop(dead)
			m := f.running[lead]
			if err := m.engine.HandOver(m.peers.Ctx); err != nil {
				t.Errorf("server %d does not hand over while server %d is down: %v", lead+1, dead+1, err)
			}
		})
	}
}

// TestHandOverToCandidate: a leader hands over to a member that Raft still calls a
// candidate in the election which this leader won.
func TestHandOverToCandidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, elected := lostElection(t)
		if s := m.engine.Role(); s != engine.Candidate {
			t.Fatalf("Raft has the loser as a %s", s)
		}
		if err := elected.engine.HandOver(elected.peers.Ctx, m.cfg.ID); err != nil {
			t.Error(err)
		}
	})
}

// TestAwaitReturnEnds: nothing waits for an absent member after a change of the leader, the
// removal of the member, or the end of the leader.
func TestAwaitReturnEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		lead := f.all(nil)
		waiting := func(want int) {
			t.Helper()
			time.Sleep(timing.StreamKeepAlive + time.Second) // so that Raft has noticed
			synctest.Wait()
			if n := running("(*transport).awaitReturn("); n != want {
				t.Errorf("%d goroutines wait, want %d", n, want)
			}
		}
		waiting(0)
		absent, other := (lead+1)%4, (lead+2)%4
		f.stop(absent)
		waiting(1)
		for range 3 {
			f.handTo(other)
			lead, other = other, lead
			waiting(1)
		}
		if _, err := f.running[lead].membership.Change(request.Request{Remove: uint64(absent + 1)}); err != nil {
			t.Fatal(err)
		}
		waiting(0)
		f.stop(other)
		waiting(1)
		f.stop(lead)
		waiting(0)
	})
}

// TestTransferredIsKnown: who has asked a leader to hand over, and is told that it has, is not told that the old one leads.
func TestTransferredIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 1)
		for range 300 { // one in 50 fails if HandOver waits for Raft alone
			lead := leaderOf(t, f.running)
			to := uint64((lead+1)%3 + 1)
			if r, err := f.running[lead].membership.Change(request.Request{Transfer: &to}); err == nil && r.Status.Leader == uint64(lead+1) {
				t.Fatal("the old leader is named")
			}
			time.Sleep(300 * time.Millisecond)
		}
	})
}

// TestTransferUnknown: leadership is transferred to a member whose disk is slow while it stands for election. It may lead after the
// answer.
func TestTransferUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 3)
		to := (lead + 1) % 3
		var slow atomic.Bool
		slow.Store(true)
		m := f.running[to]
		f.disks[to].SetFault(func() error {
			if m.engine.Role() == engine.Candidate && slow.CompareAndSwap(true, false) {
				time.Sleep(1600 * time.Millisecond)
			}
			return nil
		})
		id := uint64(to + 1)
		if err := f.ask(lead, request.Request{Transfer: &id}); !errors.Is(err, request.ErrUnknownOutcome) {
			t.Error(err)
		}
	})
}

// TestRemoveLeaderUnknown: the leader is to be removed, and the disks of the others are slow while they stand for election. One of
// them may lead after the answer.
func TestRemoveLeaderUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, lead := fleetOf(t, 3)
		time.Sleep(5 * time.Second)
		for i := range 3 {
			var slow atomic.Bool
			slow.Store(i != lead)
			m := f.running[i]
			f.disks[i].SetFault(func() error {
				if m.engine.Role() == engine.Candidate && slow.CompareAndSwap(true, false) {
					time.Sleep(1600 * time.Millisecond)
				}
				return nil
			})
		}
		if err := f.ask(lead, request.Request{Remove: uint64(lead + 1)}); !errors.Is(err, request.ErrUnknownOutcome) {
			t.Error(err)
		}
	})
}

// TestRemoveLeaderAndNearest: a client's reconfig removes the leader, and the member that answers it first. So that this one need not
// hand over as well, and perhaps to the former leader, another one leads next. If no voter would stay one, the leader refuses.
func TestRemoveLeaderAndNearest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 6)
		config := f.found(4)
		for _, m := range f.running[:4] {
			<-m.Ready()
		}
		lead := leaderOf(t, f.running[:4])
		near := (lead + 1) % 4
		ends := []string{hostOf(f.running[lead]), hostOf(f.running[near])}
		f.net.SetDelay(func(a, b string) time.Duration {
			if slices.Contains(ends, a) && slices.Contains(ends, b) {
				return 200 * time.Microsecond
			}
			return 5 * time.Millisecond
		})
		time.Sleep(5 * time.Second)
		m, null := f.running[(lead+2)%4], proto.Path{Path: jute.Null}
		term := m.engine.Term()
		q := proto.ReconfigRequest{Joining: null, Leaving: null, NewMembers: proto.Path{Path: "server.5=e:1:1;2181,server.6=f:1:1;2181"}, ConfigID: -1}
		f.open(4, config(4))
		f.open(5, config(5))
		if code, known := m.Reconfigure(q.Append(nil), 10*time.Second); code != proto.NewConfigNoQuorum || !known {
			t.Errorf("only new servers: %v, known: %v", code, known)
		}
		q.NewMembers, q.Leaving.Path = null, fmt.Sprintf("%d,%d", lead+1, near+1)
		code, known := m.Reconfigure(q.Append(nil), 10*time.Second)
		if is := m.engine.Term(); code != proto.OK || !known || is != term+1 {
			t.Errorf("without the leader and the nearest: %v, known: %v, from term %d to %d", code, known, term, is)
		}
	})
}

// TestReplaceLeader: a client's reconfig replaces a voter by an empty server with its id. If that is the leader, another one leads first.
// If the leader leaves in the same request, the one that is to be replaced does not lead next, although it answers first.
func TestReplaceLeader(t *testing.T) {
	for _, itself := range []bool{true, false} {
		testkit.Bubble(t, map[bool]string{true: "itself", false: "the nearest"}[itself], func(t *testing.T) {
			f, lead := fleetOf(t, 4)
			replaced, leaving := lead, []uint64{uint64(lead + 1)}
			if !itself {
				replaced = (lead + 1) % 4
				leaving = append(leaving, uint64(replaced+1))
			}
			ends := []string{hostOf(f.running[lead]), hostOf(f.running[(lead+1)%4])}
			f.net.SetDelay(func(a, b string) time.Duration {
				if slices.Contains(ends, a) && slices.Contains(ends, b) {
					return 200 * time.Microsecond
				}
				return 5 * time.Millisecond
			})
			empty := proto.Peer{ID: uint64(replaced + 1), Addr: "z:1"}
			other := newFleet(t, 1)
			other.net, other.peers = f.net, map[uint64]string{empty.ID: empty.Addr}
			cfg := other.config(0)
			cfg.ID, cfg.Network, cfg.Peers, cfg.Addr = empty.ID, f.net.Host("z"), nil, empty.Addr
			other.open(0, cfg)
			time.Sleep(8 * time.Second)
			m := f.running[(lead+2)%4]
			term := m.engine.Term()
			q := &request.Reconfig{Joining: []proto.Peer{empty}, Leaving: leaving, Version: m.membership.ConfigVersion(), WaitMs: 5000}
			if err := f.ask((lead+2)%4, request.Request{Reconfig: q}); err != nil {
				t.Error(err)
			}
			is := m.engine.Members()
			if x := election.Find(is, empty.ID); x == nil || x.Addr != empty.Addr || len(is) != 5-len(leaving) || m.engine.Term() != term+1 {
				t.Errorf("the members are %v, from term %d to %d", is, term, m.engine.Term())
			}
		})
	}
}

// TestTransferOvertaken: leadership is transferred over a slow link, and a third member is elected meanwhile. The message arrives
// all the same.
func TestTransferOvertaken(t *testing.T) {
	for after := 500 * time.Millisecond; after < 700*time.Millisecond; after += 5 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			f, lead := fleetOf(t, 3)
			to, third := (lead+1)%3, (lead+2)%3
			time.Sleep(5 * time.Second)
			from, dest := hostOf(f.running[lead]), hostOf(f.running[to])
			f.net.SetDelay(func(a, b string) time.Duration {
				if a == from && b == dest {
					return 400 * time.Millisecond
				}
				return time.Millisecond
			})
			time.AfterFunc(after, func() { f.running[third].engine.Campaign(time.Second) })
			id := uint64(to + 1)
			_, err := f.running[lead].membership.Change(request.Request{Transfer: &id})
			if err == nil || errors.As(err, new(request.Unsure)) {
				return
			}
			for range 100 {
				if time.Sleep(10 * time.Millisecond); f.running[to].Role() == "leader" {
					t.Fatalf("%v: %v, and then server %d leads", after, err, id)
				}
			}
		})
	}
}
