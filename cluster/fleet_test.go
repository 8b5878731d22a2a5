package cluster

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/core/membership"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// There are three ways to have members in a test: a fleet of whole ones (wired, or over wires, if their connections matter), a
// base to build one part of a member on, and a scriptedLeader, which sends one member what leaders may send.

// until waits for a condition.
var until = testkit.Eventually

// openMembers opens the members of a cluster, each configured as change says, if that is not nil.
func openMembers(t *testing.T, count int, host func(string) peer.Network, change func(*Config)) (members []*Member, lead int) {
	t.Helper()
	peers := addresses(count)
	for id := uint64(1); id <= uint64(count); id++ {
		cfg := memberConfig(id, peers, host(peers[id][:1]))
		if change != nil {
			change(&cfg)
		}
		m, err := openMember(cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		members = append(members, m)
	}
	for _, m := range members {
		<-m.Ready()
		// A member that started late has found the cluster running, and gets its vote when it
		// has caught up.
		until(t, "every member's vote", func() bool {
			return election.CountVoters(m.engine.Members()) == count
		})
	}
	return members, leaderOf(t, members)
}

// leaderOf waits for a leader among the members that run, and returns its index.
func leaderOf(t *testing.T, members []*Member) (lead int) {
	t.Helper()
	until(t, "a leader", func() bool {
		lead = slices.IndexFunc(members, func(m *Member) bool { return m != nil && m.Role() == "leader" })
		return lead >= 0
	})
	return lead
}

// fleet is a cluster whose members a test starts, stops and deprives of their disks. Its
// writes are sessions, which are never closed.
type fleet struct {
	t       *testing.T
	net     *memnet.Network
	log     testkit.Log
	level   slog.Level // what has at least this level is in log; WARN unless it is set
	peers   map[uint64]string
	disks   []*storage.Memory
	running []*Member     // nil if it is down
	acked   []int64       // sessions
	first   bool          // Config.DiskFirst
	change  func(*Config) // of each member, unless it is nil
	asked   int64
}

func newFleet(t *testing.T, size int) *fleet {
	f := &fleet{t: t, net: memnet.New(), level: slog.LevelWarn, peers: addresses(size), running: make([]*Member, size)}
	for range size {
		f.disks = append(f.disks, storage.NewMemory())
	}
	t.Cleanup(func() {
		for i := range f.running {
			f.stop(i)
		}
	})
	return f
}

// listOf returns the members with these addresses, by id.
func listOf(addrs map[uint64]string) (list []proto.Peer) {
	for id, addr := range addrs {
		list = append(list, proto.Peer{ID: id, Addr: addr})
	}
	return list
}

// observe makes a configuration say that the servers with these ids do not vote.
func observe(cfg *Config, ids ...uint64) {
	cfg.Observer = slices.Contains(ids, cfg.ID)
	for i := range cfg.Peers {
		cfg.Peers[i].Observer = slices.Contains(ids, cfg.Peers[i].ID)
	}
}

func (f *fleet) config(i int) Config {
	id := uint64(i + 1)
	host, _, _ := net.SplitHostPort(f.peers[id])
	cfg := memberConfig(id, f.peers, f.net.Host(host))
	cfg.Memory, cfg.DiskFirst = f.disks[i], f.first
	cfg.Log = f.log.Logger(f.level)
	if f.change != nil {
		f.change(&cfg)
	}
	return cfg
}

// joins is the configuration of a server that joins through the member with index via, or waits to be added if via is negative.
func (f *fleet) joins(i, via int) Config {
	cfg := f.config(i)
	if cfg.Peers, cfg.Addr = nil, f.peers[cfg.ID]; via >= 0 {
		cfg.Join = f.peers[uint64(via+1)]
	}
	return cfg
}

// ask has an operator ask the member with index i.
func (f *fleet) ask(i int, q request.Request) error {
	_, err := request.Ask(f.t.Context(), f.net.Host("operator"), f.peers[uint64(i+1)], q)
	return err
}

// tell is ask for what must succeed.
func (f *fleet) tell(i int, q request.Request) {
	f.t.Helper()
	if err := f.ask(i, q); err != nil {
		f.t.Fatal(err)
	}
}

// place returns the member with this id in the list of the one with index i; nil if there is none.
func (f *fleet) place(i int, id uint64) *proto.Peer {
	s := f.running[i].membership.Status()
	return election.Find(s.Members, id)
}

func (f *fleet) start(i int) *Member {
	f.t.Helper()
	return f.open(i, f.config(i))
}

func (f *fleet) open(i int, cfg Config) *Member {
	f.t.Helper()
	m, err := openMember(cfg, fsm.NewReplica())
	if err != nil {
		f.t.Fatal(err)
	}
	f.running[i] = m
	return m
}

// found starts the first n servers as the members of a new cluster. It returns how servers are
// configured: those beyond n have only the address of their peer port.
func (f *fleet) found(n int) (config func(i int) Config) {
	f.t.Helper()
	config = func(i int) Config {
		if i >= n {
			return f.joins(i, -1)
		}
		cfg := f.config(i)
		cfg.Peers = slices.DeleteFunc(cfg.Peers, func(x proto.Peer) bool { return x.ID > uint64(n) })
		return cfg
	}
	for i := range n {
		f.open(i, config(i))
	}
	return config
}

// stop ends a member without handing over, as a crash does.
func (f *fleet) stop(i int) {
	if m := f.running[i]; m != nil {
		f.running[i] = nil
		m.Kill()
	}
}

// handTo has a member lead.
func (f *fleet) handTo(i int) {
	f.t.Helper()
	until(f.t, "the handover", func() bool {
		if f.running[i].Role() == "leader" {
			return true
		}
		id := uint64(i + 1)
		request.Ask(f.t.Context(), f.net.Host("operator"), f.peers[id], request.Request{Transfer: &id})
		return false
	})
}

// lose stops a member and takes its disk.
func (f *fleet) lose(i int) {
	f.stop(i)
	f.disks[i] = storage.NewMemory()
}

// write opens a session through a member, and reports whether that was acknowledged within
// some seconds.
func (f *fleet) write(i int) bool {
	m := f.running[i]
	if m == nil {
		return false
	}
	f.asked++
	done, cancel := make(propose.Result, 1), make(chan struct{})
	m.Propose(fsm.OpenSession(uint64(f.asked), f.asked, 1<<30, session.Password{}), done, cancel)
	select {
	case err := <-done:
		if err == nil {
			f.acked = append(f.acked, f.asked)
		}
		return err == nil
	case <-time.After(5 * time.Second):
		close(cancel)
		go func() { <-done }()
		return false
	}
}

// writes writes through a member until n writes have been acknowledged.
func (f *fleet) writes(i, n int) {
	for range n {
		for !f.write(i) {
		}
	}
}

// snapshot has the first n members take snapshots of the same state.
func (f *fleet) snapshot(n int) {
	f.t.Helper()
	until(f.t, "all entries", func() bool {
		return !slices.ContainsFunc(f.running[:n], func(m *Member) bool { return m.engine.LastApplied() != f.running[0].engine.LastApplied() })
	})
	for _, m := range f.running[:n] {
		if err := m.engine.TakeSnapshot(); err != nil {
			f.t.Fatal(err)
		}
	}
}

// whole waits until all members are in the same cluster, with their votes and the same state.
func (f *fleet) whole() {
	f.t.Helper()
	until(f.t, "the whole cluster", func() bool {
		// A leader that is ready has applied all that was acknowledged before.
		if !slices.ContainsFunc(f.running, func(m *Member) bool { return m != nil && m.pulse.leader.ReadyTerm.Load() != 0 }) {
			return false
		}
		var states []string
		for _, m := range f.running {
			if m == nil {
				f.t.Fatal("a member is down")
			}
			s := m.membership.Status()
			if s.Leader == 0 || !s.Formed || len(s.Members) != len(f.running) || slices.ContainsFunc(s.Members, func(x proto.Peer) bool { return x.Observer }) {
				return false
			}
			states = append(states, fmt.Sprint(s.Cluster, s.Index, s.Digest, m.identified()))
		}
		return len(slices.Compact(states)) == 1
	})
}

// check fails if an acknowledged write is missing on a member that runs.
func (f *fleet) check() {
	f.t.Helper()
	for i, m := range f.running {
		if m == nil {
			continue
		}
		m.replica.View(func(v *fsm.View) {
			for _, id := range f.acked {
				if v.Sessions().Get(id) == nil {
					f.t.Errorf("member %d has lost the acknowledged write %d", i+1, id)
					break
				}
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

// restored gives a member's disk a snapshot that ends with the entry index, and has these sessions.
func (f *fleet) restored(i int, index uint64, sessions ...int64) {
	f.t.Helper()
	m := fsm.NewMachine()
	for _, id := range sessions {
		m.Sessions().Open(session.Session{ID: id, Timeout: 1 << 30})
	}
	if err := m.Restart(index, fsm.Members(storage.Configuration(ptr(f.config(i)).First()))); err != nil {
		f.t.Fatal(err)
	}
	f.restoredAt(i, m)
}

// restoredAt gives a member's disk a snapshot with the state m, as [Restore] does with a
// directory.
func (f *fleet) restoredAt(i int, m *fsm.Machine) {
	f.t.Helper()
	s := f.disks[i].Open()
	first := ptr(f.config(i)).First()
	_, trans := raft.NewInmemTransport("")
	sink, err := s.Snapshots.Create(raft.SnapshotVersionMax, m.Index(), 1, storage.Configuration(first), m.Index(), trans)
	if err == nil {
		err = errors.Join(s.Stable.SetUint64([]byte(storage.TermKey), 1), m.Snapshot().Write(sink), sink.Close())
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// startedFleet returns a cluster of three members that has acknowledged some writes.
func startedFleet(t *testing.T, writes int) *fleet {
	t.Helper()
	f := newFleet(t, 3)
	f.all(nil)
	f.writes(0, writes)
	f.ready()
	return f
}

// ready waits until all members are ready: from then on they propose nothing of their own.
func (f *fleet) ready() {
	for _, m := range f.running {
		<-m.Ready()
	}
}

// leadOf waits for a leader, and returns its index.
func leadOf(t *testing.T, f *fleet) (lead int) {
	t.Helper()
	return leaderOf(t, f.running)
}

// fault waits up to d, and a second, for a member's fault; it returns nil if there is none.
func fault(m *Member, d time.Duration) error {
	d += time.Second
	select {
	case err := <-m.Err():
		return err
	case <-time.After(d):
		return nil
	}
}

// fleetOf starts a cluster of n members that has acknowledged some writes, and returns it and its leader.
func fleetOf(t *testing.T, n int) (*fleet, int) {
	t.Helper()
	f := newFleet(t, n)
	f.found(n)
	f.whole()
	lead := leadOf(t, f)
	f.writes(lead, 20)
	f.ready()
	return f, lead
}

// cutOff cuts or heals all ways between a member of the fleet and the others.
func (f *fleet) cutOff(i int, cut bool) {
	a := string(rune('a' + i))
	for j := range f.running {
		if b := string(rune('a' + j)); a != b {
			f.net.Cut(a, b, cut)
			f.net.Cut(b, a, cut)
		}
	}
}

// cutBetween cuts or heals both ways between two members of the fleet.
func (f *fleet) cutBetween(i, j int, cut bool) {
	a, b := string(rune('a'+i)), string(rune('a'+j))
	f.net.Cut(a, b, cut)
	f.net.Cut(b, a, cut)
}

// slowly makes a disk take two seconds for each write while slow is true.
func slowly(disk *storage.Memory, slow *atomic.Bool) {
	disk.SetFault(func() error {
		if slow.Load() {
			time.Sleep(2 * time.Second)
		}
		return nil
	})
}

// corrupt makes a member's state another one than its log says.
func (f *fleet) corrupt(i int, id int64) {
	f.running[i].replica.View(func(v *fsm.View) { v.Sessions().Open(session.Session{ID: id, Timeout: 1 << 30}) })
}

// base is what the tests of a single part build that part from: Raft on storage in
// memory, and a peer port on host a. Of all members only this one, with id 1, runs
// Raft, so it leads if it is the only voter. The others are scripted (see answer).
type base struct {
	*lifecycle.Lifecycle
	cfg     *Config
	net     *memnet.Network
	replica *fsm.Replica
	leader  *election.KnownLeader
	pulse   *pulse // not running; it has the other parts
}

// newBase starts a base, in a bubble of synctest. Without members, Raft has no configuration
// yet.
func newBase(t *testing.T, members ...proto.Peer) *base {
	t.Helper()
	network := memnet.New()
	cfg := &Config{
		Server: membership.Server{ID: 1, Addr: "a:1"}, Network: network.Host("a"), ElectionTimeout: time.Second, SnapshotBytes: 1 << 30,
		Log: testkit.Quiet, Probes: Probes{DiskFirst: true, Trace: untraced{}},
	}
	p := newPulse(cfg, fsm.NewReplica())
	b := &base{Lifecycle: p.Lifecycle, cfg: cfg, net: network, replica: p.replica, leader: p.leader, pulse: p}
	if err := p.peers.Open(); err != nil {
		t.Fatal(err)
	}
	e := p.engine
	disk := storage.NewMemory().Open()
	if len(members) > 0 {
		if err := disk.Bootstrap(members); err != nil {
			t.Fatal(err)
		}
		p.gate.Open(testCluster)
	}
	e.Open(disk)
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	e.Configure(func(c *raft.ReloadableConfig) { c.HeartbeatTimeout, c.ElectionTimeout = time.Hour, time.Hour })
	t.Cleanup(func() {
		close(b.Stop)
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		b.Running.Wait()
	})
	if election.CountVoters(members) == 1 {
		e.Campaign(time.Second)
		until(t, "Raft leads", func() bool { return e.Role() == engine.Leader })
		b.leader.Set(1, "a:1")
		synctest.Wait() // until this member has applied its first entry
	}
	return b
}

// answer opens the peer port of another member, which handles connections of one kind
// with serve.
func (b *base) answer(t *testing.T, host string, kind byte, serve func(c net.Conn)) {
	t.Helper()
	p := peer.NewPort(b.net.Host(host), uint64(host[0]-'a'+1), host+":1", openGate(), b.cfg.Log)
	p.Serve = map[byte]func(net.Conn){kind: serve}
	if err := p.Open(); err != nil {
		t.Fatal(err)
	}
	p.Start()
	t.Cleanup(func() {
		p.Close()
		p.Wait()
	})
}

// testCluster is the cluster of members that do not form one by themselves.
const testCluster = request.ClusterID(0x1234)

// openGate returns a gate that is open for that cluster.
func openGate() *peer.Gate {
	g := new(peer.Gate)
	g.Open(testCluster)
	return g
}

// callPeer connects to a peer port as a member of a cluster does.
func callPeer(network peer.Network, addr string, kind byte, of request.ClusterID) (net.Conn, error) {
	c, err := network.Dial(context.Background(), addr)
	if err != nil {
		return nil, err
	}
	return peer.Greet(c, addr, &peer.Hello{Kind: kind, Cluster: of}, nil)
}

// answerRequests is answer for requests about the members.
func (b *base) answerRequests(t *testing.T, host string, reply func(q request.Request) request.Reply) {
	t.Helper()
	b.answer(t, host, peer.KindAdmin, func(c net.Conn) {
		defer c.Close()
		var q request.Request
		if json.NewDecoder(c).Decode(&q) == nil {
			json.NewEncoder(c).Encode(reply(q))
		}
	})
}

// noObserver is an [fsm.Observer] that does nothing.
type noObserver struct{}

func (noObserver) Applied(uint64, uint64, int)       {}
func (noObserver) Changed(*fsm.View, []proto.Change) {}
func (noObserver) Answered()                         {}
func (noObserver) Restoring()                        {}
func (noObserver) Restored()                         {}
func (noObserver) Failed(error)                      {}

// someWrite is a command that goes through the log. It changes nothing but the zxid.
func someWrite() *fsm.Command { return fsm.Reap("/none") }

// readFull reads n bytes, or returns nil if the connection ends before.
func readFull(c net.Conn, n int) []byte {
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		return nil
	}
	return b
}

func (b *base) proposer() *propose.Proposer {
	if term, leads := b.pulse.engine.LeaderTerm(); leads {
		b.pulse.leader.ReadyTerm.Store(term)
	}
	k := b.pulse
	return propose.New(&propose.Parts{
		Lifecycle: b.Lifecycle, ID: 1, Engine: k.engine, Contacts: k.contacts, Leader: b.leader, Replica: b.replica, Port: k.peers,
		Look: k.wake, TimeOfDay: k.timeOfDay,
	})
}

// tick keeps running time going, as a pulse does that runs, until the test ends.
func (b *base) tick() {
	c := b.pulse.contacts
	b.Running.Go(func() {
		for {
			members := b.pulse.engine.Members()
			c.Look(b.pulse.nowMs(), members, b.pulse.state())
			select {
			case <-time.After(c.Beat):
			case <-b.Stop:
				return
			}
		}
	})
}

// stuck makes the disk of member i write nothing until the returned function is called, after which
// what waits for it is written, or is lost.
func (f *fleet) stuck(i int) (end func(lost error)) {
	over := make(chan error)
	f.disks[i].SetFault(func() error { return <-over })
	return func(lost error) {
		if lost == nil {
			f.disks[i].SetFault(nil)
		}
		for {
			select {
			case over <- lost:
				synctest.Wait()
			default:
				return
			}
		}
	}
}

// propose proposes a session through a member. The channel gets nil when it is acknowledged.
func (f *fleet) propose(i int, id int64) propose.Result {
	w := make(propose.Result, 1)
	f.running[i].Propose(fsm.OpenSession(uint64(id), id, 1<<30, session.Password{}), w, nil)
	return w
}

// openWith is open for a member whose storage is changed before it starts.
func (f *fleet) openWith(i int, cfg Config, change func(*storage.Storage)) *Member {
	f.t.Helper()
	m := New(cfg, fsm.NewReplica())
	s := cfg.Memory.Open()
	change(s)
	if err := m.startOn(s); err != nil {
		f.t.Fatal(err)
	}
	f.running[i] = m
	return m
}

// sees counts how often each member stops serving.
func (f *fleet) sees(stops []atomic.Int64) {
	for i, m := range f.running {
		go func() {
			was := false
			for {
				select {
				case yes := <-m.Serving():
					if was && !yes {
						stops[i].Add(1)
					}
					was = yes
				case <-m.Stop:
					return
				}
			}
		}()
	}
}

// mixed gives the members restored snapshots that end with these entries, and makes them members of one cluster all the
// same, as an operator does who copies meta.json from one directory to the others.
func (f *fleet) mixed(ends ...uint64) {
	f.t.Helper()
	f.asked = 100
	for i, end := range ends {
		f.restored(i, end, int64(end))
		if err := f.disks[i].Open().SetIdentity(storage.Identity{Cluster: testCluster, Agreed: true}); err != nil {
			f.t.Fatal(err)
		}
	}
}

// ledBy starts all servers, again and again until server i wins the first election. known is that
// server while it is started.
func (f *fleet) ledBy(i int, known *atomic.Pointer[Member], config func(i int) Config) {
	f.t.Helper()
	for range 30 {
		known.Store(f.open(i, config(i)))
		for x := range f.running {
			if x != i {
				f.open(x, config(x))
			}
		}
		leader := -1
		until(f.t, "a leader", func() bool {
			leader = slices.IndexFunc(f.running, func(m *Member) bool { return m.engine.Role() == engine.Leader })
			return leader >= 0
		})
		if leader == i {
			return
		}
		known.Store(nil)
		for x := range f.running {
			f.stop(x)
		}
	}
	f.t.Fatalf("server %d never won the first election", i+1)
}

// openMember creates a member and starts it.
func openMember(cfg Config, replica *fsm.Replica) (*Member, error) {
	m := New(cfg, replica)
	if err := m.Start(); err != nil {
		return nil, err
	}
	return m, nil
}

func testConfig(dir string) Config {
	return Config{Server: membership.Server{ID: 1}, Dir: dir, Tick: time.Second, ReapInterval: time.Minute, SnapshotBytes: 1 << 20, Log: testkit.Quiet}
}

// addresses returns the peer ports of servers with the ids 1 to count, on the hosts a, b and so on.
func addresses(count int) map[uint64]string {
	peers := map[uint64]string{}
	for i := range count {
		peers[uint64(i+1)] = string(rune('a'+i)) + ":1"
	}
	return peers
}

// memberConfig is testConfig for a member of a cluster, with a disk in memory.
func memberConfig(id uint64, peers map[uint64]string, network peer.Network) Config {
	cfg := testConfig("")
	cfg.ID, cfg.Peers, cfg.Network, cfg.Memory = id, listOf(peers), network, storage.NewMemory()
	return cfg
}

// openReady opens a member, waits until it leads, and closes it.
func openReady(t *testing.T, cfg Config) {
	t.Helper()
	m, err := openMember(cfg, fsm.NewReplica())
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.Ready():
	case err := <-m.Err():
		t.Error(err)
	case <-time.After(time.Minute):
		t.Error("never ready")
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func hostOf(m *Member) string { return m.cfg.Address()[:1] }

// loneMember is alone, and expires sessions within 10 ms after their timeout.
func loneMember(t *testing.T) *Member {
	t.Helper()
	m := alone(t, func(cfg *Config, _ *storage.Storage) { cfg.Tick = 10 * time.Millisecond })
	until(t, "the entry with the cluster's id", func() bool { return m.identified() != 0 })
	return m
}

func (m *Member) hasSession(id int64) (has bool) {
	m.replica.View(func(v *fsm.View) { has = v.Sessions().Get(id) != nil })
	return has
}

// foundLate reports whether a session that exists was reported late.
func (m *Member) foundLate(id int64) bool {
	return !slices.ContainsFunc(m.Deadlines(), func(b session.Bucket) bool { return slices.Contains(b.Sessions, id) })
}

// outcome is a Waiter that sends the result of a command; nil means Lost.
type outcome chan *fsm.Result

func (o outcome) Done(_ *fsm.View, r *fsm.Result) { c := *r; o <- &c }
func (o outcome) Lost()                           { o <- nil }

// did proposes a command, whose outcome must become known, and returns how long that takes.
func did(t *testing.T, m *Member, c *fsm.Command) time.Duration {
	t.Helper()
	began, done := time.Now(), make(propose.Result, 1)
	m.Propose(c, done, nil)
	if err := <-done; err != nil {
		t.Error(err)
	}
	return time.Since(began)
}

// written has a leader commit a write, within most.
func written(t *testing.T, m *Member, most time.Duration) {
	t.Helper()
	if took := did(t, m, someWrite()); took > most {
		t.Errorf("a write took %v", took)
	}
}

// openSession opens a session through m and waits until the other members have it.
func openSession(t *testing.T, m *Member, id int64, timeout time.Duration, others []*Member) {
	t.Helper()
	must(t, m, fsm.OpenSession(1, id, int32(timeout.Milliseconds()), session.Password{}))
	for _, o := range others {
		until(t, "the session on every member", func() bool { return o.hasSession(id) })
	}
}

// must proposes a command, which has to succeed.
func must(t *testing.T, m *Member, c *fsm.Command) {
	t.Helper()
	done := make(outcome, 1)
	m.Propose(c, done, nil)
	if r := <-done; r == nil || r.Code != proto.OK {
		t.Fatalf("%+v", r)
	}
}

// create creates a znode with so many bytes of data.
func create(t *testing.T, m *Member, bytes int) {
	t.Helper()
	q := proto.CreateRequest{Path: "/n", Data: make([]byte, bytes), ACL: proto.OpenACL, Flags: proto.FlagSequential}
	must(t, m, fsm.OpenSession(1, 7, 40_000, session.Password{}))
	must(t, m, &fsm.Command{Op: proto.OpCreate, Session: 7, Conn: 1, Body: q.Append(nil)})
}

// keepWriting has clients write through a member, with a pause after each write, until stop is closed.
func keepWriting(m *Member, clients int, pause time.Duration, stop <-chan struct{}) (wait func()) {
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for {
				w := make(propose.Result, 1)
				m.Propose(someWrite(), w, stop)
				select {
				case <-w:
				case <-stop:
					return
				}
				time.Sleep(pause)
			}
		})
	}
	return wg.Wait
}

// stopMember closes a member, unless it is closed, and returns a function that starts it again.
func stopMember(t *testing.T, m *Member) (again func() *Member) {
	t.Helper()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	return func() *Member {
		m, err := openMember(m.cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m
	}
}

// stopUntilSnapshot closes a member, writes 8 MB through the leader, and leaves the leader
// only a snapshot to send. It returns a function that starts the member again.
func stopUntilSnapshot(t *testing.T, stopped, leader *Member) (again func() *Member) {
	t.Helper()
	again = stopMember(t, stopped)
	fill(t, leader, "long", 40, 200_000)
	time.Sleep(time.Second) // for the snapshots that are due
	fill(t, leader, "last", 1, 1)
	onlySnapshot(t, leader)
	return again
}

// onlySnapshot leaves a member only a snapshot to send to members that lag.
func onlySnapshot(t *testing.T, m *Member) {
	t.Helper()
	if err := m.engine.Configure(func(c *raft.ReloadableConfig) { c.TrailingLogs = 1 }); err != nil {
		t.Fatal(err)
	}
	if err := m.engine.TakeSnapshot(); err != nil {
		t.Fatal(err)
	}
}

// fillsIn is the session in which fill creates znodes.
func fillsIn(m *Member) int64 { return 70 + int64(m.cfg.ID) }

// fill creates znodes with so many bytes each, through a member, so that snapshots are long.
func fill(t *testing.T, m *Member, prefix string, znodes, size int) {
	t.Helper()
	id := fillsIn(m)
	if !m.hasSession(id) {
		must(t, m, fsm.OpenSession(1, id, 30_000_000, session.Password{}))
	}
	for i := range znodes {
		data := make([]byte, size)
		rand.NewChaCha8(sha256.Sum256(fmt.Append(nil, prefix, i))).Read(data) // others for each: snapshots are compressed
		q := proto.CreateRequest{Path: fmt.Sprint("/", prefix, i), Data: data, ACL: proto.OpenACL}
		must(t, m, &fsm.Command{Op: proto.OpCreate, Session: id, Conn: 1, Body: q.Append(nil)})
	}
}

// bothDiskOrders runs a test twice: with leaders whose Raft waits for their own disks before they send an
// entry, and with leaders that send it first. Only the former are kept by a stuck disk from noticing their successors.
func bothDiskOrders(t *testing.T, size int, test func(t *testing.T, f *fleet, lead int)) {
	for _, first := range []bool{true, false} {
		testkit.Bubble(t, fmt.Sprint("disk first ", first), func(t *testing.T) {
			f := newFleet(t, size)
			f.first = first
			test(t, f, f.all(nil))
		})
	}
}

// cutWhenDone is a waiter that calls cut in the moment in which its command is answered.
type cutWhenDone struct {
	propose.Result
	cut func()
}

func (c cutWhenDone) Done(v *fsm.View, r *fsm.Result) { c.cut(); c.Result.Done(v, r) }

// listed reports whether a leader's log ends with a list of members, after the entry last. Raft sends it
// a moment before it takes it for its newest one.
func listed(m *Member, last uint64) bool {
	end := m.engine.LastIndex()
	l, err := m.engine.Entry(end)
	return end > last && err == nil && l.Type == raft.LogConfiguration
}

// ready waits for a member to be ready, for that long, and reports whether it is.
func ready(m *Member, most time.Duration) bool {
	select {
	case <-m.Ready():
		return true
	case <-time.After(most):
		return false
	}
}

// observed starts a member whose changes go to an observer, too.
func (f *fleet) observed(i int, o fsm.Observer) *Member {
	f.t.Helper()
	replica := fsm.NewReplica()
	replica.Observe(o)
	m, err := openMember(f.config(i), replica)
	if err != nil {
		f.t.Fatal(err)
	}
	f.running[i] = m
	return m
}

// running counts the calls of a function, as stacks show them, in all goroutines.
func running(call string) int {
	stacks := make([]byte, 4<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), call)
}

// crashAtList has the disks of these members wait with the leader's next list of members, after the entry last, until they
// crash, or that one does not lead.
func (f *fleet) crashAtList(leader *Member, last uint64, which ...int) (crash *atomic.Bool) {
	crash = new(atomic.Bool)
	for _, i := range which {
		f.disks[i].SetFault(func() error {
			for listed(leader, last) && leader.engine.Role() == engine.Leader && !crash.Load() {
				time.Sleep(time.Millisecond)
			}
			if crash.Load() {
				return errors.New("crashed")
			}
			return nil
		})
	}
	return crash
}

// acknowledges checks that one of these members, which are up and connected, acknowledges a write.
func (f *fleet) acknowledges(which ...int) {
	f.t.Helper()
	if slices.ContainsFunc(which, f.write) {
		return
	}
	f.t.Error("a majority has been up and connected for long, with all data, and nothing is acknowledged")
	for _, i := range which {
		if m := f.running[i]; m != nil {
			s := m.membership.Status()
			f.t.Errorf("server %d: %s, Raft %v, term %d, log %d, commit %d, applied %d, %v", i+1, s.Role, m.engine.Role(), s.Term, m.engine.LastIndex(), m.engine.Committed(), m.engine.LastApplied(), s.Members)
		}
	}
}

// anotherLeads waits for a leader beside this one, and returns how long that took, at most most.
func (f *fleet) anotherLeads(than int, most time.Duration) time.Duration {
	began := time.Now()
	leads := func(m *Member) bool { return m != nil && m != f.running[than] && m.engine.Role() == engine.Leader }
	for !slices.ContainsFunc(f.running, leads) && time.Since(began) < most {
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}

// stands reports whether this member stands for election.
func (m *Member) stands() bool { return m.engine.Role() == engine.Candidate }

// all starts all members, configured as change says if that is not nil, and returns the leader.
func (f *fleet) all(change func(*Config)) (lead int) {
	f.t.Helper()
	for i := range f.running {
		cfg := f.config(i)
		if change != nil {
			change(&cfg)
		}
		f.open(i, cfg)
	}
	f.whole()
	f.ready()
	return leadOf(f.t, f)
}

// alone starts a standalone member with a disk in memory, configured as change says if that is not nil, until the test ends.
func alone(t *testing.T, change func(cfg *Config, s *storage.Storage)) *Member {
	t.Helper()
	cfg := testConfig("")
	cfg.Memory = storage.NewMemory()
	s := cfg.Memory.Open()
	if change != nil {
		change(&cfg, s)
	}
	m := New(cfg, fsm.NewReplica())
	if err := m.startOn(s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	<-m.Ready()
	return m
}

// served keeps whether a member serves clients.
func served(m *Member) *atomic.Bool {
	serves := new(atomic.Bool)
	go func() {
		for {
			select {
			case yes := <-m.Serving():
				serves.Store(yes)
			case <-m.Stop:
				return
			}
		}
	}()
	return serves
}

// catchesUp checks that a member that is started again has all entries within most. Meanwhile, now and then is called.
func catchesUp(t *testing.T, leader *Member, again func() *Member, most time.Duration, now func(at time.Duration)) *Member {
	t.Helper()
	want, began := leader.engine.StateIndex(), time.Now()
	late := again()
	for late.engine.StateIndex() < want && time.Since(began) < 4*most {
		time.Sleep(10 * time.Millisecond)
		now(time.Since(began))
	}
	if took := time.Since(began); took > most {
		t.Errorf("it has %d of %d after %v, should have all after %v", late.engine.StateIndex(), want, took, most)
	}
	return late
}

// beginTerm has this member begin a later term.
func (m *Member) beginTerm(term uint64) { m.engine.AdvanceTerm(term, time.Second) }

// mutual lets in whom ca has signed, and shows own.
func mutual(ca *testkit.CA, own tls.Certificate) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: ca.Pool, ClientCAs: ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert}
}

// unharmed checks that no member that runs has failed.
func (f *fleet) unharmed() {
	f.t.Helper()
	for i, m := range f.running {
		if m == nil {
			continue
		}
		if err := fault(m, 0); err != nil {
			f.t.Errorf("member %d: %v", i+1, err)
		}
	}
}
