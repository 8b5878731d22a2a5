package cluster

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/memnet"
)

// TestTransportRestart: a member that was restarted is asked for its vote with
// success, though all connections that are kept to it are those to the one before.
func TestTransportRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		candidate := openTransport(t, net, "candidate")
		ask := func() {
			var r raft.RequestVoteResponse
			if err := candidate.transport.RequestVote("2", "voter:1", &raft.RequestVoteRequest{}, &r); err != nil || !r.Granted {
				t.Errorf("%+v, %v", r, err)
			}
		}
		for range 3 { // starts of the voter
			voter := openTransport(t, net, "voter")
			var all sync.WaitGroup
			var asked []raft.RPC
			for range maxPool { // all at once, so that each has a connection
				all.Go(ask)
				asked = append(asked, <-voter.transport.Consumer())
			}
			for _, rpc := range asked {
				rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
			}
			all.Wait()
			net.Kill("voter")
			closeTransport(voter)
		}
		closeTransport(candidate)
	})
}
