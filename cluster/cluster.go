package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// Config says how to run a [Member].
type Config struct {
	ID uint64 // of this server, 1 to 254

	// Peers are the members of a new cluster, in any order, with what /zookeeper/config is to
	// show of them. A server without Peers, Addr and Join is standalone.
	Peers []proto.Peer
	// Addr is the address at which the other members reach this server's peer
	// port; by default it is the one in Peers. A server with an Addr, but without
	// Peers and Join, waits until an operator adds it to a cluster.
	Addr string
	// Join is the address of the peer port of any member of a running cluster;
	// this server asks to be added to that cluster.
	Join string
	// Observer is whether a server that is not in Peers is started as an observer.
	Observer bool
	// ClientAddr and ElectionPort are what /zookeeper/config is to show of a server that is not
	// in Peers; empty if nothing.
	ClientAddr   string
	ElectionPort int

	Network Network // how members reach each other; nil means TCP
	// ElectionTimeout is how long the leader, or a majority, may be silent
	// before a member gives it up; 0 means 2 s.
	ElectionTimeout time.Duration

	Dir      string           // where to keep the log; empty means Memory
	LogStore storage.LogStore // how; empty means as it is there, or the first of storage.LogStores
	Memory   *storage.Memory  // used if Dir is empty; nil means a new one

	Tick          time.Duration // granularity of session expiry
	ReapInterval  time.Duration // how often expired container and TTL znodes are deleted
	SnapshotBytes int64         // take a snapshot after this much log
	// DiskFirst has this member, as the leader of a cluster, write an entry to its disk before
	// it sends it to the others, so that each write waits for two disks in a row.
	DiskFirst bool
	Settings  fsm.Settings
	Log       *slog.Logger
	// AllowSingleVoter lets a client's reconfig leave a single voter.
	AllowSingleVoter bool
	// TimeOfDay is the wall clock, used to stamp entries and to expire TTL
	// znodes; nil means time.Now. Timers and sessions do not depend on it.
	TimeOfDay func() time.Time
	// About returns what this member's status says about its server; nil if it says nothing. It
	// is not called before Start.
	About func() About
}

// Member is this server's part in the cluster. Its methods are safe for concurrent use.
type Member struct {
	*lifecycle
	*clock
	cfg     Config
	replica *fsm.Replica
	raft    *node

	proposer  *proposer  // what this member proposes
	known     *commits   // what is committed, as far as others may know it
	commits   *commits   // what is applied here
	compactor *compactor // the length of the log
	liveness  *liveness  // of sessions

	leader    *knownLeader // who leads
	lease     *lease       // whether it is surely this member
	readIndex *readIndex   // whether it still is, and what is committed
	service   *service     // whether this member serves

	peers      *peerPort  // nil on a standalone server
	transport  *transport // for Raft, on peers; nil too
	contacts   *contacts  // what is known about the other members
	pulse      *pulse     // heartbeats, and what they say
	notifier   *notifier  // tells the other members what is committed
	membership *membership
}

// lifecycle stops a member and reports its first fault.
type lifecycle struct {
	stop   chan struct{}  // closed by Close and Kill
	once   sync.Once      // for stopping
	killed atomic.Bool    // by Kill: nothing may be written any more
	broken atomic.Bool    // something could not be written
	wg     sync.WaitGroup // of the member's goroutines

	failed sync.Once
	errs   chan error // gets the first fault
}

func newLifecycle() *lifecycle {
	return &lifecycle{stop: make(chan struct{}), errs: make(chan error, 1)}
}

// fail reports a fault after which this member cannot go on.
func (l *lifecycle) fail(err error) {
	l.failed.Do(func() { l.errs <- err })
}

// ErrClosed is returned when the member has been closed.
var ErrClosed = errors.New("cluster: closed")

// New returns a member that applies its log to replica, which must be fresh.
// [Member.Start] must be called before any other method.
func New(cfg Config, replica *fsm.Replica) *Member {
	m := &Member{
		lifecycle: newLifecycle(), clock: newClock(cfg.TimeOfDay), cfg: cfg, replica: replica, raft: newNode(cfg.ID),
		known: newCommits(), commits: newCommits(), leader: newKnownLeader(),
		contacts: newContacts(cfg.ID, timesFor(cmp.Or(cfg.ElectionTimeout, defaultElectionTimeout))),
	}
	m.compactor = newCompactor(m.stop, &m.cfg, m.raft, replica)
	m.liveness = newLiveness(cfg.Tick, m.contacts.sure, cfg.clustered(), m.nowMs)
	m.lease = newLease(m.clock, m.raft, m.contacts)
	gate := new(gate)
	if cfg.clustered() {
		m.peers = newPeerPort(cfg.Network, cfg.ID, cfg.addr(), gate, cfg.Log)
		m.transport = newTransport(m.lifecycle, m.raft, m.peers, m.contacts.times, func() moment { return m.contacts.moment(m.nowMs()) }, m.contacts.followed, m.contacts.lives)
	}
	m.pulse = newPulse(m.lifecycle, m.clock, cfg.Log, m.raft, m.contacts, m.commits, newDigests(replica), gate, m.peers, m.transport)
	m.notifier = newNotifier(m.lifecycle, m.raft, m.transport, m.known)
	m.membership = newMembership(&m.cfg, replica, m.leader, m.pulse)
	m.readIndex = newReadIndex(&m.cfg, m.lease, m.leader, m.pulse)
	m.proposer = newProposer(m.lifecycle, m.clock, &m.cfg, m.raft, replica, m.leader, m.readIndex, m.peers, m.compactor.await)
	m.service = newService(m.lifecycle, m.clock, &m.cfg, m.pulse, m.leader, m.lease, m.proposer)
	if m.peers != nil {
		m.peers.serve = map[byte]func(net.Conn){
			kindRaft:    m.peers.toRaft,
			kindStream:  m.transport.takeStream,
			kindForward: m.serveForward,
			kindAdmin:   m.membership.serve,
			kindReach:   m.pulse.tellState,
			kindBeat:    m.pulse.takeBeats,
			kindRebeat:  m.pulse.takeRebeats,
		}
		m.peers.idOf, m.peers.called, m.peers.term = m.membership.idOf, m.membership.former.called, m.raft.terms.newest.Load
		m.peers.ran = func() int64 { return m.pulse.moment().ran }
	}
	return m
}

// Start opens the member's storage and peer port and starts its part in the
// cluster. An error names the file or address concerned; the member must not be
// closed after one.
func (m *Member) Start() (err error) {
	m.replica.Observe(observer{m})
	m.replica.Complete(m.proposer.complete)
	switch cfg := &m.cfg; {
	case cfg.Dir != "":
		m.raft.storage, err = storage.Open(cfg.Dir, cfg.LogStore, cfg.ID, cfg.Log, raftLogger(cfg.Log))
	case cfg.Memory != nil:
		m.raft.storage = cfg.Memory.Open()
	default:
		m.raft.storage = storage.NewMemory().Open()
	}
	if errors.Is(err, storage.ErrDamaged) {
		remedy := storage.RemedyAlone
		if m.cfg.clustered() {
			remedy = storage.RemedyMember
		}
		return fmt.Errorf("%w; %s", err, remedy)
	}
	if err != nil {
		return err
	}
	if err := m.startRaft(); err != nil {
		if m.peers != nil {
			m.peers.close()
			if m.transport.NetworkTransport != nil {
				m.transport.Close()
				m.transport.wg.Wait()
			}
		}
		return errors.Join(err, m.raft.storage.Close())
	}
	m.wg.Go(m.proposer.run)
	m.wg.Go(m.compactor.run)
	m.wg.Go(m.watchLeadership)
	m.wg.Go(m.service.run)
	m.wg.Go(m.sendTouches)
	if m.peers != nil {
		m.wg.Go(m.pulse.run)
		m.wg.Go(m.membership.watch)
	}
	return nil
}

func (m *Member) startRaft() error {
	c := raft.DefaultConfig()
	c.LocalID = serverID(m.cfg.ID)
	c.Logger = raftLogger(m.cfg.Log)
	c.NoLegacyTelemetry = true
	// Raft must not take snapshots on its own: compactor.run decides when one is
	// due, and before each one how many entries to keep for followers that lag.
	c.SnapshotThreshold = math.MaxUint64
	c.TrailingLogs = 1
	// A leader that is no voter any more becomes a follower, and finds out by itself whether it
	// was removed (see membership.watch). Raft would end, and this member would not know it.
	c.ShutdownOnRemove = false
	// Raft reads so many entries for one message, however long they are.
	c.MaxAppendEntries = recentEntries

	var (
		trans raft.Transport
		cut   <-chan struct{} // see guardedStore
		first = m.cfg.first()
	)
	if err := m.checkStored(m.membership.configured); err != nil {
		return err
	}
	if !m.cfg.clustered() {
		trans = newLoneTransport(first.Servers[0].Address)
	} else {
		m.raft.last = max(5*m.contacts.silence, 10*time.Second)
		c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = m.raft.last, m.raft.last, m.raft.last
		if err := m.peers.open(); err != nil {
			return err
		}
		m.transport.open()
		trans, cut = m.transport, m.peers.cut
	}
	where := func(err error) error { return fmt.Errorf("%s: %w", m.raft.storage.Name, err) }
	begin, err := m.belong(first)
	if err != nil {
		return where(err)
	}
	term, err := m.raft.storage.Term()
	if err != nil {
		return where(err)
	}
	m.raft.terms.begin(term)
	if since := m.raft.storage.Identity().Since; since > 0 {
		end, err := m.raft.storage.LastIndex()
		if err != nil {
			return where(err)
		}
		if end < since { // as catchUp does it, but before Raft looks at its timeouts
			m.raft.since.Store(since)
			c.HeartbeatTimeout, c.ElectionTimeout = noTimeout, noTimeout
		}
	}
	m.raft.log.guardedStore = newGuardedStore(m.raft, m.lifecycle, m.pulse.moment, cut)
	m.raft.log.off = m.cfg.DiskFirst || !m.cfg.clustered()
	if state := m.raft.storage.TakeState(); state != nil {
		m.replica.Load(state)
		c.NoSnapshotRestoreOnStart = true
	}
	logs := raft.LogStore(m.raft.log)
	if m.peers != nil {
		m.raft.recent = newRecentLog(m.raft.log)
		logs = m.raft.recent
	}
	machine := &gatedFSM{Replica: m.replica, log: m.raft.log, known: m.known}
	if m.raft.Raft, err = raft.NewRaft(c, machine, logs, m.raft.log, watchedSnapshots{m.raft.storage.Snapshots, m.raft}, trans); err != nil {
		return err
	}
	if m.peers == nil {
		return nil
	}
	if begin != nil {
		m.wg.Go(begin)
	}
	m.wg.Go(m.raft.log.run)
	m.peers.wg.Go(m.peers.accept)
	return nil
}

// belong finds out which cluster the storage belongs to, if it can be told without the other
// members. It returns what has to run once Raft is started: nil if this member is in its
// cluster, and has its vote if it is to have one.
func (m *Member) belong(first raft.Configuration) (begin func(), err error) {
	s, former := m.raft.storage, m.membership.former
	empty, err := s.Empty()
	if err != nil {
		return nil, err
	}
	list := m.membership.configured
	if !empty {
		list, first = infos(s.Members), raft.Configuration{}
	}
	of := s.Identity()
	if err := of.Check(s.LogOf()); err != nil {
		return nil, err
	}
	rejoining, err := s.Rejoining()
	if err != nil {
		return nil, err
	}
	// Nobody else can be asked which cluster this is, if there is only this server. But a list in which it
	// is alone may be one of the past.
	alone := len(list) == 1 && list[0].ID == m.cfg.ID
	named := m.membership.configured
	whole := alone && len(named) == 1 && named[0].ID == m.cfg.ID && !named[0].Observer && !rejoining
	switch log := s.LogOf(); {
	case of.Agreed:
	case empty:
		if alone {
			of = storage.Identity{Cluster: ClusterID(newRun()), Agreed: true, First: first}
			err = errors.Join(s.SetRejoining(false), s.SetIdentity(of))
		}
	case whole:
		if of = (storage.Identity{Cluster: log, Agreed: true}); log == 0 {
			of.Cluster = ClusterID(newRun())
		}
		err = s.SetIdentity(of)
	case rejoining && log == 0 && slices.ContainsFunc(list, func(x proto.Peer) bool { return x.ID == m.cfg.ID && !x.Observer }):
		err = errors.New("it is from before clusters had ids, and this server was getting its data back from others when it was stopped: empty the directory, and start the server again")
	case alone && !rejoining:
		err = errors.New("in its list of members this server is alone, and that may be a list of the past; start it with --peers and only itself if it is the whole cluster; otherwise empty the directory, so that it gets its data from the others")
	case log != 0:
		err = fmt.Errorf("its log is of cluster %v, but its meta.json, which says so too, was lost; restore that, or empty the directory and start the server again, so that it gets its data from the others", log)
	}
	if err != nil {
		return nil, err
	}
	if empty && of.Agreed && len(of.First.Servers) > 0 { // also after a crash in the middle
		if err := s.Bootstrap(of.First); err != nil {
			return nil, err
		}
		empty = false
	}
	switch {
	case empty && of.Agreed: // it was about to join
		former.begin(list, raft.Configuration{})
		return former.run, nil
	case !of.Agreed:
		former.begin(list, first)
		return former.run, nil
	}
	m.membership.gate.lift(of.Cluster)
	if owed, err := former.owed(); err != nil || !owed {
		return nil, err
	}
	return func() { former.awaitVote("") }, nil
}

// first returns the first configuration of a new cluster. It is empty if this server is
// to be added to a cluster.
func (c *Config) first() (first raft.Configuration) {
	if !c.clustered() {
		lone := raft.ServerAddress(fmt.Sprintf("server-%d", c.ID))
		first.Servers = []raft.Server{{ID: serverID(c.ID), Address: lone}}
	}
	for _, x := range slices.SortedFunc(slices.Values(c.Peers), func(a, b proto.Peer) int { return cmp.Compare(a.ID, b.ID) }) {
		s := raft.Server{ID: serverID(x.ID), Address: raft.ServerAddress(x.Addr)}
		if x.Observer {
			s.Suffrage = raft.Nonvoter
		}
		first.Servers = append(first.Servers, s)
	}
	return first
}

// clustered reports whether the member has a peer port, that is, is not standalone.
func (c *Config) clustered() bool { return len(c.Peers) > 0 || c.Join != "" || c.Addr != "" }

// checkStored compares the members in the storage with the configured ones. It
// fails if a standalone server's storage is opened as a cluster member's or the
// reverse. Any other difference is only logged: the stored members are in force.
func (m *Member) checkStored(configured []proto.Peer) error {
	if len(m.raft.storage.Members.Servers) == 0 {
		if len(configured) == 0 && m.cfg.Join == "" {
			m.cfg.Log.Warn("waiting to be added to a cluster", "id", m.cfg.ID, "address", m.cfg.Addr)
		}
		return nil
	}
	stored, where := infos(m.raft.storage.Members), m.raft.storage.Name
	_, _, err := net.SplitHostPort(stored[0].Addr)
	switch standalone := err != nil; {
	case standalone && m.cfg.clustered():
		return fmt.Errorf("%s belongs to a standalone server, which cannot become a cluster member; start with an empty one", where)
	case !standalone && !m.cfg.clustered():
		return fmt.Errorf("%s belongs to a member of a cluster of %d; start it with its peers, or with the address of its peer port", where, len(stored))
	case standalone:
		return nil
	}
	if len(m.cfg.Peers) > 0 && !slices.Equal(stored, configured) {
		m.cfg.Log.Warn("ignoring the configured peers: the stored list of members differs and is used", "data", where, "members", stored, "configured", configured)
	} else if self := find(stored, m.cfg.ID); self != nil && self.Addr != m.cfg.addr() {
		m.cfg.Log.Warn("the other members know this server by another address", "known", self.Addr, "configured", m.cfg.addr())
	}
	return nil
}

// self is what the configuration says of this server.
func (c *Config) self() proto.Peer {
	self := proto.Peer{ID: c.ID, Observer: c.Observer, ClientAddr: c.ClientAddr, ElectionPort: c.ElectionPort}
	if x := find(c.Peers, c.ID); x != nil {
		self = *x
	}
	self.Addr = cmp.Or(c.Addr, self.Addr)
	return self
}

// votes reports whether this member is configured as a voter.
func (c *Config) votes() bool { return !c.self().Observer }

func (c *Config) addr() string { return c.self().Addr }

// known returns the members of which the configuration says how clients are to see them.
func (c *Config) known() []proto.Peer {
	all := append(slices.DeleteFunc(slices.Clone(c.Peers), func(x proto.Peer) bool { return x.ID == c.ID }), c.self())
	return slices.DeleteFunc(all, func(x proto.Peer) bool { return x.ClientAddr == "" && x.ElectionPort == 0 })
}

// defaultElectionTimeout tolerates the pauses of a busy machine. Clients usually
// wait less when a leader dies: if its connections break, the others act at once.
const defaultElectionTimeout = 2 * time.Second

// loneTransport is the transport of a standalone server. It delivers a single
// message, TimeoutNow, which makes Raft start an election at once instead of first
// waiting for a leader.
type loneTransport struct {
	*raft.InmemTransport
	incoming chan raft.RPC
}

func newLoneTransport(addr raft.ServerAddress) *loneTransport {
	_, t := raft.NewInmemTransport(addr)
	incoming := make(chan raft.RPC, 1)
	incoming <- raft.RPC{
		Command:  &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}},
		RespChan: make(chan raft.RPCResponse, 1),
	}
	return &loneTransport{t, incoming}
}

func (t *loneTransport) Consumer() <-chan raft.RPC { return t.incoming }

// Ready is closed when this member can serve for the first time: it knows a leader
// and has applied everything committed until then.
func (m *Member) Ready() <-chan struct{} { return m.service.ready }

// Err receives the first fatal fault, such as a disk that cannot be written. The
// caller must then close the member.
func (m *Member) Err() <-chan error { return m.errs }

// Close stops the member and waits for its goroutines. It does not hand over leadership; see
// [Member.HandOver]. Pending commands are reported as Lost.
func (m *Member) Close() error {
	var err error
	m.once.Do(func() {
		close(m.stop)
		m.compactor.close()
		down := m.raft.Shutdown()
		if m.peers != nil {
			m.peers.close() // unblocks goroutines that wait for other members
			m.transport.Close()
		}
		err = down.Error()
		close(m.raft.down)
		if m.peers != nil {
			m.peers.wg.Wait()
			m.transport.wg.Wait()
		}
		m.wg.Wait()
		err = errors.Join(err, m.raft.storage.Close())
	})
	return err
}

// Kill is like Close but simulates the death of the process: nothing is written from now on.
func (m *Member) Kill() error {
	m.killed.Store(true)
	return m.Close()
}

// observer implements [fsm.Observer]. It updates the member's parts when entries
// are applied or a snapshot is restored.
type observer struct{ m *Member }

func (o observer) Changed(v *fsm.View, changes []proto.Change) {
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case proto.NodeDataChanged:
			if c.Path == znode.ConfigPath {
				o.m.notifier.changed.raise()
				o.m.pulse.look()
			}
		case proto.SessionOpened, proto.SessionResumed:
			o.m.liveness.add(v.Sessions().Get(c.Session))
		case proto.SessionClosed:
			o.m.liveness.remove(c.Session)
		}
	}
}

func (o observer) Applied(index, term uint64, bytes int) {
	o.m.commits.set(index, term)
	o.m.compactor.grew(bytes)
}

func (observer) Answered() {}

func (observer) Restoring() {}

func (o observer) Restored() {
	o.m.trackAll()
	o.m.replica.View(func(v *fsm.View) { o.m.commits.set(v.Index(), 0) })
	o.m.proposer.pending.restored()
	if o.m.raft.Raft != nil && !o.m.killed.Load() { // while Raft starts, the storage has already done this
		if err := o.m.raft.storage.ReconcileLog(); err != nil {
			o.m.cannotWrite(o.m.raft.storage, err)
		}
		if recent := o.m.raft.recent; recent != nil {
			recent.forget() // the log in the storage was changed
		}
	}
}

func (o observer) Failed(err error) { o.m.fail(fmt.Errorf("%s: %w", o.m.raft.storage.Name, err)) }

// trackAll restarts the timeout of every session. It holds the replica's lock so
// that no session is opened or closed meanwhile.
func (m *Member) trackAll() {
	m.replica.View(func(v *fsm.View) { m.liveness.restart(v.Sessions().Snapshot()) })
}
