package cluster

import (
	"log/slog"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/memnet"
)

// openTransport opens a peer port with Raft's transport on it, but without Raft. Votes
// for it are noted in contacts.
func openTransport(t *testing.T, network *memnet.Network, host string) (o openedTransport) {
	t.Helper()
	o.contacts = newContacts(1, timesFor(defaultElectionTimeout))
	clock := newClock(nil)
	peers := newPeerPort(network.Host(host), host+":1", slog.New(slog.DiscardHandler))
	peers.serve = map[byte]func(net.Conn){kindRaft: peers.toRaft}
	if err := peers.open(); err != nil {
		t.Fatal(err)
	}
	o.transport = newTransport(newNode(1), peers, func() moment { return o.contacts.moment(clock.nowMs()) }, o.contacts.followed)
	o.transport.open()
	peers.wg.Go(peers.accept)
	return o
}

type openedTransport struct {
	*transport
	contacts *contacts
}

func closeTransport(o openedTransport) {
	o.peers.close()
	o.peers.wg.Wait()
	o.transport.Close()
	o.wg.Wait()
}

// TestPipelineRefused: sending into a pipeline does not block forever when the other
// side has refused an entry and answers are no longer read.
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

// TestHeartbeatOfNewTerm: a heartbeat of a new term that waits for the disk does
// not take a member back from a term after that.
func TestHeartbeatOfNewTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(lines))
		other, m := members[(lead+1)%3], members[(lead+2)%3]
		hold, first := make(chan struct{}), true
		m.cfg.Memory.SetFault(func() error {
			if first {
				first = false
				<-hold
			}
			return nil
		})
		term := m.raft.CurrentTerm()
		head := func(m *Member) raft.RPCHeader {
			return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(serverID(m.cfg.ID)), Addr: m.transport.EncodePeer("", m.transport.LocalAddr())}
		}
		var sent sync.WaitGroup
		sent.Go(func() {
			other.transport.AppendEntries(serverID(m.cfg.ID), m.transport.LocalAddr(), &raft.AppendEntriesRequest{RPCHeader: head(other), Term: term + 5}, new(raft.AppendEntriesResponse))
		})
		synctest.Wait()
		sent.Go(func() {
			other.transport.RequestVote(serverID(m.cfg.ID), m.transport.LocalAddr(),
				&raft.RequestVoteRequest{RPCHeader: head(other), Term: term + 6, LeadershipTransfer: true}, new(raft.RequestVoteResponse))
		})
		synctest.Wait()
		reached := m.raft.CurrentTerm()
		close(hold)
		sent.Wait()
		if got := m.raft.CurrentTerm(); got < reached || got < term+6 {
			t.Errorf("term %d, after %d", got, reached)
		}
	})
}

// TestVoteNotStored: a member that cannot store its vote does not send it, not even
// while it closes.
func TestVoteNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(lines))
		other, m := members[(lead+1)%3], members[(lead+2)%3]
		m.cfg.Memory.SetFault(func() error { return syscall.ENOSPC })
		var r raft.RequestVoteResponse
		var sent sync.WaitGroup
		sent.Go(func() {
			last := other.raft.LastIndex()
			other.transport.NetworkTransport.RequestVote(serverID(m.cfg.ID), m.transport.LocalAddr(), &raft.RequestVoteRequest{
				RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(serverID(other.cfg.ID)), Addr: other.transport.EncodePeer("", other.transport.LocalAddr())},
				Term:      m.raft.CurrentTerm() + 1, LastLogIndex: last + 1, LastLogTerm: m.raft.CurrentTerm(), LeadershipTransfer: true,
			}, &r)
		})
		synctest.Wait()
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		sent.Wait()
		if r.Granted {
			t.Error("it has voted, and nothing is stored")
		}
	})
}
