package cluster

import (
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestTransportRestart: a vote request to a restarted member succeeds even if all
// pooled connections are to its previous run.
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
			for range maxPool { // all at once, so that each has a connection
				all.Go(requestVote)
				requests = append(requests, receive(t, "a vote request", voter.transport.Consumer()))
			}
			for _, rpc := range requests {
				rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
			}
			all.Wait()
			net.Kill("voter")
			closeTransport(voter)
		}
		closeTransport(candidate)
	})
}

// TestReturn: a member that was down or cut off for long serves, and counts for the majority,
// soon after it has returned.
func TestReturn(t *testing.T) {
	for _, crash := range []bool{true, false} {
		most := 50 * time.Millisecond
		if !crash {
			most = time.Second // until TCP sends again what the cut has swallowed
		}
		synctest.Test(t, func(t *testing.T) {
			network := memnet.New()
			members, lead := threeMembers(t, network, new(testkit.Log))
			i, j := (lead+1)%3, (lead+2)%3
			host := func(i int) string { return string(rune('a' + i)) }
			cut := func(i int, is bool) {
				for k := range 3 {
					network.Cut(host(i), host(k), is && i != k)
					network.Cut(host(k), host(i), is && i != k)
				}
			}
			for range 3 {
				cfg := members[i].cfg
				if crash {
					network.Kill(host(i))
					if err := members[i].Kill(); err != nil {
						t.Fatal(err)
					}
				} else {
					cut(i, true)
				}
				for range 12 {
					written(t, members[lead], 50*time.Millisecond)
					time.Sleep(time.Second)
				}
				began := time.Now()
				if crash {
					m, err := openMember(cfg, fsm.NewReplica())
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { m.Close() })
					members[i] = m
				} else {
					cut(i, false)
				}
				<-members[i].Ready()
				if took := time.Since(began); took > 300*time.Millisecond {
					t.Errorf("a member that has returned serves after %v", took)
				}
				time.Sleep(time.Until(began.Add(300 * time.Millisecond)))
				cut(j, true)
				written(t, members[lead], most)
				cut(j, false)
				time.Sleep(10 * time.Second)
			}
		})
	}
}

// written has a leader commit a write, within most.
func written(t *testing.T, m *Member, most time.Duration) {
	t.Helper()
	began, done := time.Now(), make(result, 1)
	m.Propose(someWrite(), done, nil)
	<-done
	if took := time.Since(began); took > most {
		t.Errorf("a write took %v", took)
	}
}

// TestVotesFollow: a member that votes for this one counts as following it from when
// the request was sent; one that refuses its vote does not.
func TestVotesFollow(t *testing.T) {
	for _, granted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			net := memnet.New()
			candidate, voter := openTransport(t, net, "candidate"), openTransport(t, net, "voter")
			sent := candidate.now()
			go func() {
				rpc := <-voter.transport.Consumer()
				time.Sleep(50 * time.Millisecond)
				rpc.Respond(&raft.RequestVoteResponse{Granted: granted}, nil)
			}()
			var r raft.RequestVoteResponse
			if err := candidate.transport.RequestVote("2", "voter:1", &raft.RequestVoteRequest{}, &r); err != nil || r.Granted != granted {
				t.Errorf("%+v, %v", r, err)
			}
			want := moment{never, never}
			if granted {
				want = sent
			}
			if got := candidate.contacts.peer(2).followed; got != want {
				t.Errorf("granted %v: followed at %v, want %v", granted, got, want)
			}
			closeTransport(voter)
			closeTransport(candidate)
		})
	}
}

// TestTerms: no term begins while a heartbeat is being handled, and after one has
// begun no heartbeat of an earlier term is handled.
func TestTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		terms := terms{turn: newTurn()}
		terms.begin(4)
		handled, done := make(chan struct{}), make(chan bool)
		go func() {
			done <- terms.during(4, func() bool {
				terms.begin(4) // as Raft does when it was a candidate in this term
				<-handled
				return terms.newest.Load() == 4
			})
		}()
		synctest.Wait()
		go func() {
			terms.begin(5)
			done <- true
		}()
		synctest.Wait()
		if now := terms.newest.Load(); now != 4 {
			t.Errorf("term %d has begun meanwhile", now)
		}
		close(handled)
		for range 2 {
			if !<-done {
				t.Error("the heartbeat was not handled")
			}
		}
		for term, want := range map[uint64]bool{4: false, 5: true, 6: false} {
			if got := terms.during(term, func() bool { return true }); got != want {
				t.Errorf("a heartbeat of term %d: %v", term, got)
			}
		}
	})
}

// TestAwaitReturnEnds: nothing waits for an absent member after a change of the leader, the
// removal of the member, or the end of the leader.
func TestAwaitReturnEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := startMembers(t, memnet.New(), new(testkit.Log), 4, time.Second)
		waiting := func(want int) {
			t.Helper()
			time.Sleep(tellAgain + time.Second) // so that Raft has noticed
			synctest.Wait()
			stacks := make([]byte, 4<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			if n := strings.Count(string(stacks), "(*transport).awaitReturn("); n != want {
				t.Errorf("%d goroutines wait, want %d", n, want)
			}
		}
		waiting(0)
		absent, other := (lead+1)%4, (lead+2)%4
		if err := members[absent].Kill(); err != nil {
			t.Fatal(err)
		}
		waiting(1)
		for range 3 {
			if err := members[lead].membership.handover.to(members[lead].peers.ctx, members[other].cfg.ID); err != nil {
				t.Fatal(err)
			}
			lead, other = other, lead
			waiting(1)
		}
		if _, err := members[lead].Change(Request{Remove: members[absent].cfg.ID}); err != nil {
			t.Fatal(err)
		}
		waiting(0)
		if err := members[other].Kill(); err != nil {
			t.Fatal(err)
		}
		waiting(1)
		if err := members[lead].Kill(); err != nil {
			t.Fatal(err)
		}
		waiting(0)
	})
}
