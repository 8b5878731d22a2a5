package engine

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// member is an Engine with a peer port.
type member struct{ *Engine }

// newMember returns a member that does not run yet.
func newMember(id uint64, addr string, network peer.Network) member {
	gate := new(peer.Gate)
	gate.Open(0x1234)
	began := time.Now().Add(-time.Millisecond)
	replica, contacts := fsm.NewReplica(), election.NewContacts(id, timing.For(timing.DefaultElectionTimeout))
	return member{New(Config{
		ID: id, Port: peer.NewPort(network, id, addr, gate, testkit.Quiet), Contacts: contacts, Digests: election.NewDigests(id, replica), Leader: new(election.KnownLeader),
		Now:           func() timing.Moment { return contacts.Moment(time.Since(began).Milliseconds()) },
		SnapshotBytes: 1 << 30, Trace: noTrace{}, Log: testkit.Quiet,
	}, lifecycle.NewLifecycle(), replica)}
}

type noTrace struct{}

func (noTrace) Visible(uint64, uint64, []byte) {}
func (noTrace) Restored(uint64)                {}

// start starts it on a storage.
func (m member) start(s *storage.Storage) error {
	m.Open(s)
	if err := m.cfg.Port.Open(); err != nil {
		return err
	}
	if err := m.Start(); err != nil {
		return err
	}
	m.cfg.Port.Start()
	return nil
}

func (m member) Close() error {
	select {
	case <-m.Stop:
	default:
		close(m.Stop)
	}
	err := m.Engine.Close()
	m.Running.Wait()
	return errors.Join(err, m.disk.Storage.Close())
}

// Kill is like Close but nothing is written from now on.
func (m member) Kill() error {
	m.Killed.Store(true)
	return m.Close()
}

// loneLeader starts the only voter of a cluster, on a disk in memory, until the test ends.
func loneLeader(t *testing.T) member {
	t.Helper()
	m, s := newMember(1, "a:1", memnet.New().Host("a")), storage.NewMemory().Open()
	if err := s.Bootstrap([]proto.Peer{{ID: 1, Addr: "a:1"}}); err != nil {
		t.Fatal(err)
	}
	if err := m.start(s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	m.Campaign(time.Second)
	testkit.Eventually(t, "a leader", func() bool { return m.Role() == Leader })
	return m
}

// write has it write entries.
func (m member) write(t *testing.T, n int) {
	t.Helper()
	for range n {
		entry := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing())
		if err := m.Propose(fsm.EndEntry(entry, &fsm.Envelope{Origin: 9, Count: 1}), 0)(); err != nil {
			t.Fatal(err)
		}
	}
}

// openTransport opens a peer port with Raft's transport on it, but without Raft, until the test ends. Votes
// for it are noted in contacts.
func openTransport(t *testing.T, network *memnet.Network, host string) openedTransport {
	t.Helper()
	return openTransportOn(t, network.Host(host), 1, host)
}

func openTransportOn(t *testing.T, network peer.Network, id uint64, host string) openedTransport {
	t.Helper()
	o := openUnwatched(t, network, id, host)
	o.wg.Go(o.conns.Run)
	return o
}

// openUnwatched opens one that never takes the other side for dead by itself, so a test in real time may take as long as it likes.
func openUnwatched(t *testing.T, network peer.Network, id uint64, host string) (o openedTransport) {
	t.Helper()
	x := newMember(id, host+":1", network)
	o.contacts, o.transport = x.cfg.Contacts, x.transport
	if err := x.cfg.Port.Open(); err != nil {
		t.Fatal(err)
	}
	o.takes, o.taken = new(atomic.Pointer[func(net.Conn)]), new(atomic.Int32)
	o.setTake(o.transport.take)
	x.cfg.Port.Serve[peer.KindRaft] = func(c net.Conn) {
		o.taken.Add(1)
		defer o.taken.Add(-1)
		(*o.takes.Load())(c)
	}
	x.cfg.Port.Start()
	o.end = sync.OnceFunc(func() { x.Engine.Close() })
	t.Cleanup(o.end)
	return o
}

// openTransports opens those of a leader and a follower.
func openTransports(t *testing.T) (leader, follower openedTransport) {
	t.Helper()
	network := memnet.New()
	return openTransport(t, network, "leader"), openTransport(t, network, "follower")
}

// answers has answer be Raft of this transport until the test ends.
func (o openedTransport) answers(t *testing.T, answer func(rpc raft.RPC)) {
	go func() {
		for {
			select {
			case rpc := <-o.transport.Consumer():
				answer(rpc)
			case <-t.Context().Done():
				return
			}
		}
	}()
}

// succeed answers a message with entries.
func succeed(rpc raft.RPC) { rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil) }

// streamOf opens a stream from a leader to the member 2 at follower:1.
func streamOf(t *testing.T, leader openedTransport) *stream {
	t.Helper()
	var p raft.AppendPipeline
	testkit.Eventually(t, "a stream", func() bool {
		c, err := leader.dial("follower:1")
		if err != nil {
			t.Fatal(err)
		}
		leader.putIdle("follower:1", c)
		if p, err = leader.transport.AppendEntriesPipeline("2", "follower:1"); err != nil && err != raft.ErrPipelineReplicationNotSupported {
			t.Fatal(err)
		}
		return err == nil
	})
	return p.(*stream)
}

type openedTransport struct {
	*transport
	contacts *election.Contacts
	end      func() // closes it; that happens at the end of the test, too
	takes    *atomic.Pointer[func(net.Conn)]
	taken    *atomic.Int32 // how many connections are handled
}

// setTake has f handle the connections that come.
func (o openedTransport) setTake(f func(net.Conn)) { o.takes.Store(&f) }

// takeAnswers is Raft, which takes the answers that come over a stream, until the test ends.
func takeAnswers(t *testing.T, s *stream, took func(raft.AppendFuture)) {
	go func() {
		for {
			select {
			case f := <-s.Consumer():
				took(f)
			case <-t.Context().Done():
				return
			}
		}
	}()
}

// add sends a message over a stream.
func (s *stream) add(t *testing.T, q *raft.AppendEntriesRequest) {
	t.Helper()
	if _, err := s.AppendEntries(q, new(raft.AppendEntriesResponse)); err != nil {
		t.Fatal(err)
	}
}

// noops returns empty entries.
func noops(first, last, term uint64) (logs []*raft.Log) {
	for i := first; i <= last; i++ {
		logs = append(logs, &raft.Log{Index: i, Term: term, Type: raft.LogNoop})
	}
	return logs
}

// stuckSpool does nothing until hold is closed.
type stuckSpool struct {
	storage.Spool
	hold chan struct{}
}

func (s stuckSpool) Write(p []byte) (int, error) {
	<-s.hold
	return s.Spool.Write(p)
}
