package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/storage"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// Config says how to run a [Member].
type Config struct {
	ID              uint64            // of this server, 1 to 254
	Peers           map[uint64]string // addresses of the peer ports of a new cluster's members, by id; nil is a server alone
	Addr            string            // of this server's peer port, as the others reach it; by default that in Peers. Alone it is for one who is taken in
	Join            string            // the peer port of a member of a running cluster, to be taken in by it
	Observers       []uint64          // ids of members in Peers, or of this one that joins, that do not vote
	Network         Network           // how members reach each other; nil is TCP
	ElectionTimeout time.Duration     // how long a member waits for a silent leader, or a silent majority; 0 is 2 s
	Dir             string            // where to keep the log; if empty, in Memory
	Memory          *storage.Memory   // used if Dir is empty; nil is a new one

	Tick          time.Duration // of session expiry
	ReapInterval  time.Duration // between looks for container and TTL znodes to delete
	SnapshotBytes int64         // of log, after which a snapshot is taken
	Settings      fsm.Settings
	Log           *slog.Logger
	// AllowSingleVoter lets a client's reconfig leave a single member that votes.
	AllowSingleVoter bool
	// TimeOfDay is what entries are stamped with, and what the end of a TTL
	// znode is compared with; nil is time.Now. Timers do not follow it, nor do
	// sessions.
	TimeOfDay func() time.Time
}

// Member is this server's part in the cluster. Its methods are safe for concurrent use.
type Member struct {
	lifecycle
	cfg     Config
	replica *fsm.Replica
	raft    *raft.Raft
	storage *storage.Storage
	start   time.Time // the monotonic clock counts from here

	// What this member proposes.
	batcher batcher
	pending pending
	link    leaderLink // by which it proposes while another member leads

	// What is applied here.
	commits  commits
	log      logLength
	liveness *liveness

	// Who leads, and whether this member serves.
	leader  knownLeader
	lease   *lease
	service service

	// The other members. A standalone server has none of these.
	peers      *peerPort
	transport  transport
	gate       *gate
	membership membership
	contacts   *contacts
	outlook    *outlook
	terms      terms

	// For monitoring.
	stall     stall
	proposals proposals
}

// lifecycle is what ends a member, and what waits for that.
type lifecycle struct {
	stop   chan struct{} // closed by Close
	down   chan struct{} // closed when Raft has ended
	once   sync.Once     // of the end
	killed atomic.Bool
	wg     sync.WaitGroup // of the member's goroutines

	failed sync.Once
	errs   chan error // gets the first fault
}

func newLifecycle() lifecycle {
	return lifecycle{stop: make(chan struct{}), down: make(chan struct{}), errs: make(chan error, 1)}
}

// fail reports a fault after which this member cannot go on.
func (l *lifecycle) fail(err error) {
	l.failed.Do(func() { l.errs <- err })
}

// ErrClosed says that the member was closed.
var ErrClosed = errors.New("cluster: closed")

// New makes a member that keeps replica, which must be fresh. It does nothing before
// [Member.Start]; before that only Start may be called.
func New(cfg Config, replica *fsm.Replica) *Member {
	m := &Member{
		lifecycle: newLifecycle(), cfg: cfg, replica: replica, start: time.Now(),
		link: newLeaderLink(), leader: newKnownLeader(), lease: newLease(), service: newService(),
		gate: newGate(), membership: newMembership(), outlook: newOutlook(), terms: newTerms(),
		contacts: newContacts(cfg.ID, timesFor(cmp.Or(cfg.ElectionTimeout, defaultElectionTimeout))),
	}
	m.liveness = newLiveness(cfg.Tick, m.contacts.sure, cfg.clustered(), m.nowMs)
	if m.cfg.TimeOfDay == nil {
		m.cfg.TimeOfDay = time.Now
	}
	m.batcher.init()
	m.commits.init()
	m.log.init()
	m.ResetProposals()
	return m
}

// Start opens the member's files and its peer port, and has it take part in its
// cluster. Errors name the file or address that they are about; after one there is
// nothing to close.
func (m *Member) Start() (err error) {
	m.replica.Observe(observer{m})
	m.replica.Complete(m.complete)
	switch cfg := &m.cfg; {
	case cfg.Dir != "":
		m.storage, err = storage.Open(cfg.Dir, cfg.ID, cfg.Log, raftLogger(cfg.Log))
	case cfg.Memory != nil:
		m.storage = cfg.Memory.Open()
	default:
		m.storage = storage.NewMemory().Open()
	}
	if err != nil {
		return err
	}
	if err := m.startRaft(); err != nil {
		if m.peers != nil {
			m.peers.close()
		}
		return errors.Join(err, m.storage.Close())
	}
	m.wg.Add(5)
	go m.runBatcher()
	go m.takeSnapshots()
	go m.watchLeadership()
	go m.watchLeader()
	go m.sendTouches()
	if m.peers != nil {
		m.wg.Add(1)
		go m.watchContacts()
		m.wg.Go(m.watchMembership)
	}
	return nil
}

// serverID is how Raft knows a server.
func serverID(id uint64) raft.ServerID { return raft.ServerID(strconv.FormatUint(id, 10)) }

// memberID is the id that Raft knows a server by; 0 if it knows none.
func memberID(id raft.ServerID) uint64 {
	n, _ := strconv.ParseUint(string(id), 10, 64)
	return n
}

func (m *Member) startRaft() error {
	c := raft.DefaultConfig()
	c.LocalID = serverID(m.cfg.ID)
	c.Logger = raftLogger(m.cfg.Log)
	c.NoLegacyTelemetry = true
	// takeSnapshots alone decides when a snapshot is due, and before each one how
	// many entries stay behind it for followers that lag.
	c.SnapshotThreshold = math.MaxUint64
	c.TrailingLogs = 1

	var (
		trans raft.Transport
		first raft.Configuration // of a new cluster
		err   error
	)
	lone := raft.ServerAddress(fmt.Sprintf("server-%d", m.cfg.ID))
	if !m.cfg.clustered() {
		first.Servers = []raft.Server{{ID: c.LocalID, Address: lone}}
	}
	for _, id := range slices.Sorted(maps.Keys(m.cfg.Peers)) {
		s := raft.Server{ID: serverID(id), Address: raft.ServerAddress(m.cfg.Peers[id])}
		if slices.Contains(m.cfg.Observers, id) {
			s.Suffrage = raft.Nonvoter
		}
		first.Servers = append(first.Servers, s)
	}
	m.membership.configured = infos(first)
	if err := m.checkStored(m.membership.configured); err != nil {
		return err
	}
	if !m.cfg.clustered() {
		trans = newLoneTransport(lone)
	} else if trans, err = m.startPeers(c); err != nil {
		return err
	}
	where := func(err error) error { return fmt.Errorf("%s: %w", m.storage.Name, err) }
	fresh, err := m.storage.Empty()
	if err != nil {
		return where(err)
	}
	fresh = fresh && (len(first.Servers) > 0 || m.cfg.Join != "") // else it waits to be added
	if m.peers == nil || fresh && len(first.Servers) == 1 {
		if err := m.storage.Bootstrap(first); err != nil {
			return where(err)
		}
		fresh = false
	}
	rejoining, err := m.storage.Rejoining()
	if err != nil {
		return where(err)
	}
	term, err := m.storage.Term()
	if err != nil {
		return where(err)
	}
	m.terms.begin(term)
	store := guardedStore{m.storage.Log, m.storage.Stable, m}
	if m.raft, err = raft.NewRaft(c, m.replica, store, store, m.storage.Snapshots, trans); err != nil {
		return err
	}
	if m.peers == nil {
		return nil
	}
	switch {
	case fresh:
		m.wg.Go(func() { m.form(first) })
	case rejoining:
		m.gate.lift()
		m.wg.Go(m.resumeRejoin)
	default:
		m.gate.lift()
	}
	m.peers.wg.Go(m.peers.accept)
	return nil
}

// clustered reports whether there is a peer port.
func (c *Config) clustered() bool { return len(c.Peers) > 0 || c.Join != "" || c.Addr != "" }

// checkStored compares the members in the storage, which count, with those of
// the configuration.
func (m *Member) checkStored(configured []MemberInfo) error {
	if len(m.storage.Members.Servers) == 0 {
		if len(configured) == 0 && m.cfg.Join == "" {
			m.cfg.Log.Warn("waiting to be added to a cluster", "id", m.cfg.ID, "address", m.cfg.Addr)
		}
		return nil
	}
	stored, where := infos(m.storage.Members), m.storage.Name
	_, _, err := net.SplitHostPort(stored[0].Addr)
	switch alone := err != nil; {
	case alone && m.cfg.clustered():
		return fmt.Errorf("%s is of a server that is alone, and cannot become a cluster's: start with an empty one", where)
	case !alone && !m.cfg.clustered():
		return fmt.Errorf("%s is of a member of a cluster of %d: start it with its peers, or with its peer port's address", where, len(stored))
	case alone:
		return nil
	}
	if len(m.cfg.Peers) > 0 && !slices.Equal(stored, configured) {
		m.cfg.Log.Warn("the members are those in the data, not those that were configured", "data", where, "members", stored, "configured", configured)
	} else if self := find(stored, m.cfg.ID); self != nil && self.Addr != m.cfg.addr() {
		m.cfg.Log.Warn("the other members know this server by another address", "known", self.Addr, "configured", m.cfg.addr())
	}
	return nil
}

// votes reports whether this member is to vote.
func (c *Config) votes() bool { return !slices.Contains(c.Observers, c.ID) }

func (c *Config) addr() string { return cmp.Or(c.Addr, c.Peers[c.ID]) }

// startPeers opens the peer port, and sets Raft's times for a cluster.
func (m *Member) startPeers(c *raft.Config) (raft.Transport, error) {
	// See pulse.go for what usually acts instead of these.
	last := max(5*m.contacts.silence, 10*time.Second)
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = last, last, last
	addr := m.cfg.addr()
	network := m.cfg.Network
	if network == nil {
		network = TCP{}
	}
	var err error
	if m.peers, err = listenPeers(m, network, addr); err != nil {
		return nil, err
	}
	m.transport = newTransport(m, raftLayer{m.peers, addr})
	return m.transport, nil
}

// defaultElectionTimeout bears the pauses of a busy machine. It is not what
// clients wait when the leader dies: a loss that can be seen is acted on at once.
const defaultElectionTimeout = 2 * time.Second

// loneTransport is that of a member without peers. All that ever comes over it
// is the message that a leader sends when it hands over: a lone member need not
// wait for a leader that never speaks, and so stands for election at once.
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

// Ready is closed when this member can serve: it has a leader and has applied
// what was committed before.
func (m *Member) Ready() <-chan struct{} { return m.service.ready }

// Err gets the first fault after which this member cannot go on. It must then be closed.
func (m *Member) Err() <-chan error { return m.errs }

// Close stops the member and waits for its goroutines. Commands that wait are Lost.
func (m *Member) Close() error { return m.end(true) }

// Kill is Close as the end of the process would be: nobody is made the leader,
// and from now on nothing is written.
func (m *Member) Kill() error {
	m.killed.Store(true)
	return m.end(false)
}

func (m *Member) end(handOver bool) error {
	var err error
	m.once.Do(func() {
		if handOver && m.peers != nil && m.raft.State() == raft.Leader {
			m.handOver(0) // if it cannot, the others elect one
		}
		close(m.stop)
		m.log.close()
		down := m.raft.Shutdown()
		if m.peers != nil {
			m.peers.close() // lets go of whoever waits for another member
			m.transport.Close()
		}
		err = down.Error()
		close(m.down)
		if m.peers != nil {
			m.peers.wg.Wait()
		}
		m.wg.Wait()
		err = errors.Join(err, m.storage.Close())
	})
	return err
}

// answer waits for what comes of something that Raft was asked for.
func (m *Member) answer(f raft.Future) error {
	endWith(f, m.down)
	err := f.Error()
	if err == raft.ErrRaftShutdown {
		return ErrClosed
	}
	return err
}

// endWith has a future fail when down is closed. Raft never answers for entries
// that are committed and not applied when it is shut down. Its futures can wait
// for a channel beside their answer, but it does not set that of these.
func endWith(f raft.Future, down chan struct{}) {
	if v := reflect.ValueOf(f); v.Kind() == reflect.Pointer {
		if end := v.Elem().FieldByName("ShutdownCh"); end.CanSet() {
			end.Set(reflect.ValueOf(down))
		}
	}
}

// nowMs is by a clock that does not jump: durations are measured by it.
func (m *Member) nowMs() int64 { return time.Since(m.start).Milliseconds() }

// since is how long ago a time of nowMs was.
func (m *Member) since(ms int64) time.Duration {
	return time.Duration(m.nowMs()-ms) * time.Millisecond
}

// timeOfDay is in ms since the epoch, and may jump.
func (m *Member) timeOfDay() int64 { return m.cfg.TimeOfDay().UnixMilli() }

// observer keeps the tracker true to the replicated sessions.
type observer struct{ m *Member }

func (o observer) Changed(v *fsm.View, changes []proto.Change) {
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case proto.NodeDataChanged:
			if c.Path == znode.ConfigPath {
				o.m.membership.changed.raise()
				o.m.look()
			}
		case proto.SessionOpened, proto.SessionResumed:
			o.m.liveness.add(v.Sessions().Get(c.Session))
		case proto.SessionClosed:
			o.m.liveness.remove(c.Session)
		}
	}
}

func (o observer) Applied(index, term uint64, bytes int) {
	if o.m.peers != nil {
		o.m.commits.set(index, term)
	}
	o.m.logGrew(bytes)
}

func (observer) Restoring() {}

func (o observer) Restored() {
	o.m.trackAll()
	o.m.replica.View(func(v *fsm.View) { o.m.commits.set(v.Index(), 0) })
	o.m.pending.restored()
	if o.m.raft != nil && !o.m.killed.Load() { // the start has looked at the log
		if err := o.m.storage.ReconcileLog(); err != nil {
			o.m.cannotWrite(err)
		}
	}
}

func (o observer) Failed(err error) { o.m.fail(fmt.Errorf("%s: %w", o.m.storage.Name, err)) }

// trackAll gives every session that exists its whole time again. No entry is applied
// meanwhile, so none is missed or ends.
func (m *Member) trackAll() {
	m.replica.View(func(v *fsm.View) { m.liveness.restart(v.Sessions().All()) })
}
