package cluster

import (
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/memnet"
)

// TestPipelineRefused: whoever sends into a pipeline is let go when the other
// side refuses an entry and nobody takes answers any more.
func TestPipelineRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		open := func(host string) (*Member, transport) {
			m := &Member{cfg: Config{Log: slog.New(slog.DiscardHandler)}, stop: make(chan struct{}), gate: newGate()}
			m.gate.lift()
			addr := host + ":1"
			var err error
			if m.peers, err = listenPeers(m, net.Host(host), addr); err != nil {
				t.Fatal(err)
			}
			m.peers.wg.Go(m.peers.accept)
			m.transport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
				Stream: raftLayer{m.peers, addr}, MaxPool: 3, Timeout: peerTimeout, Logger: raftLogger(m.cfg.Log),
			})
			return m, transport{m.transport, m}
		}
		leader, from := open("leader")
		follower, to := open("follower")
		stop := make(chan struct{})
		go func() { // the follower, which refuses all
			for {
				select {
				case rpc := <-to.Consumer():
					rpc.Respond(&raft.AppendEntriesResponse{}, nil)
				case <-stop:
					return
				}
			}
		}()
		p, err := from.AppendEntriesPipeline("2", "follower:1")
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
		for _, m := range []*Member{leader, follower} {
			m.peers.close()
			m.transport.Close()
			m.wg.Wait()
		}
	})
}
