package cluster

import (
	"log/slog"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/memnet"
)

// openTransport opens a peer port with Raft's transport on it, but without Raft. Votes
// for it are noted in contacts.
func openTransport(t *testing.T, network *memnet.Network, host string) openedTransport {
	t.Helper()
	return openTransportOn(t, network.Host(host), host)
}

func openTransportOn(t *testing.T, network Network, host string) (o openedTransport) {
	t.Helper()
	o.contacts = newContacts(1, timesFor(defaultElectionTimeout))
	clock := newClock(nil)
	peers := newPeerPort(network, 1, host+":1", lifted(), slog.New(slog.DiscardHandler))
	peers.serve = map[byte]func(net.Conn){kindRaft: peers.toRaft}
	if err := peers.open(); err != nil {
		t.Fatal(err)
	}
	o.transport = newTransport(newLifecycle(), newNode(1), peers, o.contacts.times, func() moment { return o.contacts.moment(clock.nowMs()) }, o.contacts.followed, o.contacts.lives)
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

// TestPipelineRepeatsLittle: what the follower has accepted is sent again only after
// tellAgain, or in doubt.
func TestPipelineRepeatsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		leader, follower := openTransport(t, net, "leader"), openTransport(t, net, "follower")
		stop, hold := make(chan struct{}), make(chan struct{}, 1)
		got := 0
		go func() {
			for {
				select {
				case rpc := <-follower.transport.Consumer():
					got++
					hold <- struct{}{}
					rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
					<-hold
				case <-stop:
					return
				}
			}
		}()
		p, err := leader.transport.AppendEntriesPipeline("2", "follower:1")
		if err != nil {
			t.Fatal(err)
		}
		go func() { // Raft, which takes the answers
			for {
				select {
				case <-p.Consumer():
				case <-stop:
					return
				}
			}
		}()
		send := func(what string, want int, q raft.AppendEntriesRequest) {
			t.Helper()
			synctest.Wait()
			before := got
			if _, err := p.AppendEntries(&q, new(raft.AppendEntriesResponse)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got-before != want {
				t.Errorf("%s: %d messages, want %d", what, got-before, want)
			}
		}
		empty := raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 5, LeaderCommitIndex: 4}
		send("the first message", 1, empty)
		send("the same", 0, empty)
		empty.LeaderCommitIndex = 5
		send("another commit index", 1, empty)
		send("the same", 0, empty)
		entries := empty
		entries.Entries = []*raft.Log{{Index: 6, Term: 1}}
		send("an entry", 1, entries)
		empty.PrevLogEntry = 6
		send("nothing new", 0, empty)
		send("the entry again", 1, entries)
		leader.doubts.Add(1)
		send("in doubt", 1, empty)
		send("the same", 0, empty)
		time.Sleep(tellAgain - time.Millisecond)
		send("the same", 0, empty)
		time.Sleep(time.Millisecond)
		send("after some time", 1, empty)
		empty.LeaderCommitIndex = 6
		hold <- struct{}{} // the follower does not answer
		send("a commit index", 1, empty)
		go p.AppendEntries(&empty, new(raft.AppendEntriesResponse)) // waits for the answer
		synctest.Wait()
		<-hold
		synctest.Wait()
		if got != 8 {
			t.Errorf("%d messages, want 8: one that is not answered must be repeated", got)
		}
		p.Close()
		close(stop)
		closeTransport(leader)
		closeTransport(follower)
	})
}

// TestRestartWhileQuiet: a follower that restarts while nothing is written learns soon what
// is committed.
func TestRestartWhileQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(lines))
		time.Sleep(time.Minute)
		i := (lead + 1) % 3
		for range 3 {
			cfg := members[i].cfg
			if err := members[i].Kill(); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			m, err := openMember(cfg, fsm.NewReplica())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { m.Close() })
			members[i] = m
			<-m.Ready()
			if took := time.Since(began); took > 250*time.Millisecond {
				t.Errorf("a member that has restarted serves after %v", took)
			}
			time.Sleep(time.Minute)
		}
	})
}

// TestLaterTermWhileQuiet: when a follower begins a later term while nothing is written, the
// leader learns that with the next heartbeat, and steps down soon after.
func TestLaterTermWhileQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(lines))
		for range 5 {
			time.Sleep(time.Minute)
			leader, follower := members[lead], members[(lead+1)%3]
			term, _ := leader.raft.term()
			doubts := leader.transport.doubts.Load()
			leads := func() bool {
				now, leads := leader.raft.term()
				return leads && now == term
			}
			follower.transport.give(&raft.RequestVoteRequest{RPCHeader: follower.transport.header(), Term: term + 1, LeadershipTransfer: true}, time.Second)
			time.Sleep(leader.contacts.beat + time.Millisecond)
			if leads() && leader.transport.doubts.Load() == doubts {
				t.Error("the leader has not learned of the term")
			}
			time.Sleep(100 * time.Millisecond) // Raft's time until the next message without entries
			if leads() {
				t.Error("the leader has not stepped down")
			}
			until(t, "a leader", func() bool {
				for i, m := range members {
					if m.Role() == "leader" {
						lead = i
						return true
					}
				}
				return false
			})
		}
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
			other.transport.appendEntries(serverID(m.cfg.ID), m.transport.LocalAddr(), &raft.AppendEntriesRequest{RPCHeader: head(other), Term: term + 5}, new(raft.AppendEntriesResponse))
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
