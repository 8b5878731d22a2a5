package cluster

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// base is what the tests of a single part build that part from: Raft on storage in
// memory, and a peer port on host a. Of all members only this one, with id 1, runs
// Raft, so it leads if it is the only voter. The others are scripted (see answer).
type base struct {
	*lifecycle
	cfg     *Config
	net     *memnet.Network
	replica *fsm.Replica
	leader  *knownLeader
	pulse   *pulse // not running; it has the other parts
}

// newBase starts a base, in a bubble of synctest. Without members, Raft has no configuration
// yet.
func newBase(t *testing.T, members ...proto.Peer) *base {
	t.Helper()
	network := memnet.New()
	b := &base{
		lifecycle: newLifecycle(), net: network, replica: fsm.NewReplica(), leader: newKnownLeader(),
		cfg: &Config{ID: 1, Addr: "a:1", Network: network.Host("a"), Log: testkit.Quiet},
	}
	clock, n, contacts := newClock(nil), newNode(1), newContacts(1, timesFor(time.Second))
	now := func() moment { return contacts.moment(clock.nowMs()) }
	gate := new(gate)
	peers := newPeerPort(b.cfg.Network, 1, "a:1", gate, b.cfg.Log)
	if err := peers.open(); err != nil {
		t.Fatal(err)
	}
	trans := newTransport(b.lifecycle, n, peers, contacts.times, now, contacts.followed, contacts.lives)
	trans.open()
	b.pulse = newPulse(b.lifecycle, clock, b.cfg.Log, n, contacts, newCommits(), newDigests(b.cfg.ID, b.replica), gate, peers, trans)
	b.replica.Observe(committing{b.pulse.commits})

	c := raft.DefaultConfig()
	c.LocalID, c.Logger, c.NoLegacyTelemetry = serverID(1), raftLogger(b.cfg.Log), true
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = time.Hour, time.Hour, time.Hour
	var first raft.Configuration
	for _, x := range members {
		s := raft.Server{ID: serverID(x.ID), Address: raft.ServerAddress(x.Addr)}
		if x.Observer {
			s.Suffrage = raft.Nonvoter
		}
		first.Servers = append(first.Servers, s)
	}
	var alone raft.Transport = newLoneTransport("a:1")
	if voters(members) != 1 {
		_, alone = raft.NewInmemTransport("a:1")
	}
	n.storage = storage.NewMemory().Open()
	if len(members) > 0 {
		if err := n.storage.Bootstrap(first); err != nil {
			t.Fatal(err)
		}
		n.terms.begin(1)
		gate.lift(testCluster)
	}
	n.log.guardedStore, n.log.off = newGuardedStore(&n.disk, b.lifecycle, now, n.applied, nil), true
	var err error
	if n.Raft, err = raft.NewRaft(c, b.replica, n.log, n.log, n.storage.Snapshots, alone); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(b.stop)
		down := n.Shutdown()
		peers.close()
		trans.Close()
		if err := down.Error(); err != nil {
			t.Error(err)
		}
		close(n.down)
		peers.wg.Wait()
		trans.wg.Wait()
		b.wg.Wait()
	})
	if voters(members) == 1 {
		until(t, "Raft leads", func() bool { return n.State() == raft.Leader })
		b.leader.set(1, "a:1")
		synctest.Wait() // until this member has applied its first entry
	}
	return b
}

// answer opens the peer port of another member, which handles connections of one kind
// with serve.
func (b *base) answer(t *testing.T, host string, kind byte, serve func(c net.Conn)) {
	t.Helper()
	p := newPeerPort(b.net.Host(host), uint64(host[0]-'a'+1), host+":1", lifted(), b.cfg.Log)
	p.serve = map[byte]func(net.Conn){kind: serve}
	if err := p.open(); err != nil {
		t.Fatal(err)
	}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		p.close()
		p.wg.Wait()
	})
}

// testCluster is the cluster of members that do not form one by themselves.
const testCluster = ClusterID(0x1234)

// lifted returns a gate that is open for that cluster.
func lifted() *gate {
	g := new(gate)
	g.lift(testCluster)
	return g
}

// callPeer connects to a peer port as a member of a cluster does.
func callPeer(network Network, addr string, kind byte, of ClusterID) (net.Conn, error) {
	c, err := network.Dial(context.Background(), addr)
	if err != nil {
		return nil, err
	}
	return greetPeer(c, addr, &hello{kind: kind, cluster: of}, nil)
}

// answerRequests is answer for requests about the members.
func (b *base) answerRequests(t *testing.T, host string, reply func(q Request) Reply) {
	t.Helper()
	b.answer(t, host, kindAdmin, func(c net.Conn) {
		defer c.Close()
		var q Request
		if json.NewDecoder(c).Decode(&q) == nil {
			json.NewEncoder(c).Encode(reply(q))
		}
	})
}

// answerState is answer for questions.
func (b *base) answerState(t *testing.T, host string, s state) {
	t.Helper()
	b.answer(t, host, kindReach, func(c net.Conn) {
		c.Write(s.append(nil))
		c.Close()
	})
}

// committing is an [fsm.Observer] that only counts what is applied.
type committing struct{ c *commits }

func (o committing) Applied(index, term uint64, _ int) { o.c.set(index, term) }
func (o committing) Changed(*fsm.View, []proto.Change) {}
func (o committing) Answered()                         {}
func (o committing) Restoring()                        {}
func (o committing) Restored()                         {}
func (o committing) Failed(error)                      {}

// someWrite is a command that goes through the log. It changes nothing but the zxid.
func someWrite() *fsm.Command { return fsm.Reap("/none") }

// receive returns what comes from c within a minute, or that c is closed.
func receive[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		t.Fatalf("never came: %s", what)
	}
	return v
}

// readFull reads n bytes, or returns nil if the connection ends before.
func readFull(c net.Conn, n int) []byte {
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		return nil
	}
	return b
}
