package engine

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestTransportRestart: a vote request to a restarted member succeeds even if all
// idle connections are to its previous run.
func TestTransportRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		candidate := openTransport(t, net, "candidate")
		requestVote := func() {
			var r raft.RequestVoteResponse
			if err := candidate.transport.RequestVote("2", "voter:1", &raft.RequestVoteRequest{}, &r); err != nil || !r.Granted {
				t.Errorf("%+v, %v", r, err)
			}
		}
		for range 3 { // starts of the voter
			voter := openTransport(t, net, "voter")
			var all sync.WaitGroup
			var requests []raft.RPC
			for range maxIdle { // all at once, so that each has a connection
				all.Go(requestVote)
				requests = append(requests, testkit.Receive(t, "a vote request", voter.transport.Consumer()))
			}
			for _, rpc := range requests {
				rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
			}
			all.Wait()
			net.Kill("voter")
			voter.end()
		}
	})
}

// TestLongMessages: a message is no longer than maxEntryBytes, unless it has a single entry,
// and Raft goes on behind the last entry that was sent. It never says that more is committed
// than the receiver has compared with the leader's log.
func TestLongMessages(t *testing.T) {
	const half = maxEntryBytes / 2
	for _, x := range []struct {
		sizes []int
		want  []int // entries in each message
	}{
		{nil, []int{0}},
		{[]int{1}, []int{1}},
		{[]int{3 * half}, []int{1}},
		{[]int{half, half}, []int{2}},
		{[]int{half, half, 1}, []int{2, 1}},
		{[]int{1, 3 * half, 1, 1}, []int{1, 1, 2}},
		{[]int{3 * half, 3 * half, 3 * half}, []int{1, 1, 1}},
	} {
		for _, piped := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				leader, follower := openTransports(t)
				var got []*raft.AppendEntriesRequest
				follower.answers(t, func(rpc raft.RPC) {
					got = append(got, rpc.Command.(*raft.AppendEntriesRequest))
					succeed(rpc)
				})
				whole := raft.AppendEntriesRequest{Term: 9, PrevLogEntry: 10, PrevLogTerm: 1, LeaderCommitIndex: 12}
				for i, size := range x.sizes {
					whole.Entries = append(whole.Entries, &raft.Log{Index: uint64(11 + i), Term: uint64(2 + i), Data: make([]byte, size)})
				}
				last := uint64(10 + len(x.sizes))
				if piped {
					p := streamOf(t, leader)
					reached := uint64(10)
					takeAnswers(t, p, func(f raft.AppendFuture) { // as Raft does
						if n := len(f.Request().Entries); n > 0 && f.Response().Success {
							reached = f.Request().Entries[n-1].Index
						}
					})
					q := whole
					p.add(t, &q)
					if len(q.Entries) != len(whole.Entries) {
						t.Error("Raft would send entries again that are on their way")
					}
					synctest.Wait()
					if reached != last {
						t.Errorf("Raft knows of entries up to %d, want %d", reached, last)
					}
					p.Close()
				} else {
					for next := uint64(10); next < last || len(got) == 0; { // as Raft does
						q := whole
						if n := next - 10; n > 0 {
							q.PrevLogEntry, q.PrevLogTerm, q.Entries = next, whole.Entries[n-1].Term, whole.Entries[n:]
						}
						if err := leader.transport.AppendEntries("2", "follower:1", &q, new(raft.AppendEntriesResponse)); err != nil {
							t.Fatal(err)
						}
						if n := len(q.Entries); n > 0 {
							next = q.Entries[n-1].Index
						}
					}
				}
				prev, prevTerm := uint64(10), uint64(1)
				for i, q := range got {
					if i >= len(x.want) || len(q.Entries) != x.want[i] || q.Term != 9 || q.PrevLogEntry != prev || q.PrevLogTerm != prevTerm {
						t.Fatalf("%v, piped %v: message %d has %d entries after %d", x.sizes, piped, i, len(q.Entries), q.PrevLogEntry)
					}
					for _, e := range q.Entries {
						prev, prevTerm = e.Index, e.Term
					}
					if want := min(12, prev); q.LeaderCommitIndex != want {
						t.Errorf("%v, piped %v: message %d commits up to %d, want %d", x.sizes, piped, i, q.LeaderCommitIndex, want)
					}
				}
				if len(got) != len(x.want) {
					t.Errorf("%v, piped %v: %d messages", x.sizes, piped, len(got))
				}
			})
		}
	}
}

// TestWaitingIsBounded: while Raft's main goroutine is busy, few messages of a member wait for
// it, only the newest of those with entries, and vote requests only for an election timeout.
func TestWaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		one, other, busy := openTransport(t, net, "one"), openTransportOn(t, net.Host("other"), 2, "other"), openTransport(t, net, "busy")
		const sent = 20
		failed := map[string]*atomic.Int64{}
		send := func(what string, from openedTransport, entries []*raft.Log) {
			failed[what] = new(atomic.Int64)
			for range sent {
				from.wg.Go(func() {
					q := raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 5, PrevLogTerm: 1, Entries: entries}
					if from.appendEntries("3", "busy:1", &q, new(raft.AppendEntriesResponse)) != nil {
						failed[what].Add(1)
					}
				})
				synctest.Wait()
			}
		}
		expect := func(what string, want int64) {
			t.Helper()
			synctest.Wait()
			if n := failed[what].Load(); n != want {
				t.Errorf("%d messages of %s have been refused, want %d", n, what, want)
			}
		}
		send("one, with entries", one, noops(6, 6, 1))
		expect("one, with entries", sent-1)
		send("other, without", other, nil)
		expect("other, without", sent-mostWaiting)
		send("one, without", one, nil)
		expect("one, with entries", sent)
		time.Sleep(10 * one.ElectionTimeout)
		expect("one, without", sent-mostWaiting)
		expect("other, without", sent-mostWaiting)

		began := time.Now()
		if err := other.transport.RequestVote("3", "busy:1", new(raft.RequestVoteRequest), new(raft.RequestVoteResponse)); err == nil {
			t.Error("a vote was answered")
		}
		if took := time.Since(began); took > other.ElectionTimeout {
			t.Errorf("a vote request waited %v", took)
		}
		for range 2 * mostWaiting {
			rpc := testkit.Receive(t, "a message", busy.transport.Consumer())
			rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
		}
		expect("one, without", sent-mostWaiting)
		expect("other, without", sent-mostWaiting)
		if len(busy.waiting) > 0 {
			t.Errorf("%d members are remembered", len(busy.waiting))
		}
	})
}

// slowClose is a network whose connections end some ms after Close is called, as when the goroutine that closes them
// has to wait until it runs.
type slowClose struct{ peer.Network }

func (s slowClose) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := s.Network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return slowClosed{c}, nil
}

type slowClosed struct{ net.Conn }

func (c slowClosed) Close() error {
	time.Sleep(5 * time.Millisecond)
	return c.Conn.Close()
}

// TestRedialInFlight: redial closes an idle connection of the pool that a message has just been written to.
func TestRedialInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		leader, follower := openTransportOn(t, slowClose{network.Host("leader")}, 1, "leader"), openTransport(t, network, "follower")
		follower.answers(t, func(rpc raft.RPC) { time.Sleep(20 * time.Millisecond); succeed(rpc) })
		for range 2 {
			if err := leader.appendEntries("2", "follower:1", &raft.AppendEntriesRequest{Term: 1}, new(raft.AppendEntriesResponse)); err != nil {
				t.Error(err)
			}
			leader.conns.Redial("follower:1", true)
		}
		time.Sleep(time.Second)
	})
}

// TestLongMessageAfterRedial: redial has closed the idle connections, which have been kept. A long message goes over
// a new one.
func TestLongMessageAfterRedial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader, follower := openTransports(t)
		follower.answers(t, succeed)
		var asking sync.WaitGroup
		for range maxIdle {
			asking.Go(func() {
				leader.appendEntries("2", "follower:1", &raft.AppendEntriesRequest{Term: 1}, new(raft.AppendEntriesResponse))
			})
		}
		asking.Wait()
		leader.conns.Redial("follower:1", true)
		time.Sleep(time.Second)
		q := entryAt(2, 1)
		q.Entries[0].Data = make([]byte, 600<<10)
		if err := leader.appendEntries("2", "follower:1", q, new(raft.AppendEntriesResponse)); err != nil {
			t.Error(err)
		}
	})
}
