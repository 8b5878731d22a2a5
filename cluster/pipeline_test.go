package cluster

import (
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/memnet"
)

// openTransport opens a peer port with Raft's transport on it, and no Raft.
func openTransport(t *testing.T, net *memnet.Network, host string) *Member {
	t.Helper()
	m := &Member{cfg: Config{ID: 1, Addr: host + ":1", Network: net.Host(host), Log: slog.New(slog.DiscardHandler)}, stop: make(chan struct{}), gate: newGate()}
	m.gate.lift()
	if _, err := m.startPeers(raft.DefaultConfig()); err != nil {
		t.Fatal(err)
	}
	m.peers.wg.Go(m.peers.accept)
	return m
}

func closeTransport(m *Member) {
	m.peers.close()
	m.transport.Close()
	m.wg.Wait()
}

// TestPipelineRefused: whoever sends into a pipeline is let go when the other
// side refuses an entry and nobody takes answers any more.
func TestPipelineRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		leader, follower := openTransport(t, net, "leader"), openTransport(t, net, "follower")
		stop := make(chan struct{})
		go func() { // the follower, which refuses all
			for {
				select {
				case rpc := <-follower.transport.Consumer():
					rpc.Respond(&raft.AppendEntriesResponse{}, nil)
				case <-stop:
					return
				}
			}
		}()
		p, err := leader.transport.AppendEntriesPipeline("2", "follower:1")
		if err != nil {
			t.Fatal(err)
		}
		sent := make(chan error, 1)
		go func() {
			for {
				if _, err := p.AppendEntries(&raft.AppendEntriesRequest{}, new(raft.AppendEntriesResponse)); err != nil {
					sent <- err
					return
				}
			}
		}()
		<-p.Consumer() // the refusal, after which Raft takes no more
		synctest.Wait()
		select {
		case <-sent:
		default:
			t.Error("the sender waits for ever")
		}
		p.Close()
		close(stop)
		closeTransport(leader)
		closeTransport(follower)
	})
}
