package cluster

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/memnet"
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
				requests = append(requests, <-voter.transport.Consumer())
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
