package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// New returns a member that applies its log to replica, which must be fresh.
// [Member.Start] must be called before any other method.
func New(cfg Config, replica *fsm.Replica) *Member {
	if cfg.Trace == nil {
		cfg.Trace = untraced{}
	}
	m := &Member{
		lifecycle: newLifecycle(), clock: newClock(cfg.TimeOfDay), cfg: cfg, replica: replica, raft: newNode(cfg.ID),
		known: newCommits(), commits: newCommits(), leader: newKnownLeader(),
		contacts: election.NewContacts(cfg.ID, timing.For(cmp.Or(cfg.ElectionTimeout, timing.DefaultElectionTimeout))),
	}
	m.compactor = newCompactor(m.stop, &m.cfg, m.raft, replica)
	m.liveness = newLiveness(cfg.Tick, m.contacts.Lease, cfg.clustered(), m.nowMs)
	m.liveness.trace = cfg.Trace
	m.lease = newLease(m.clock, m.raft, m.contacts)
	gate := new(peer.Gate)
	if cfg.clustered() {
		m.peers = peer.NewPort(cfg.Network, cfg.ID, cfg.addr(), gate, cfg.Log)
		m.transport = newTransport(m.lifecycle, m.raft, m.peers, m.contacts.Times, func() timing.Moment { return m.contacts.Moment(m.nowMs()) }, m.contacts.Accepted, m.contacts.SeenAlive)
	}
	m.pulse = newPulse(m.lifecycle, m.clock, cfg.Log, m.raft, m.contacts, m.commits, replica, gate, m.peers, m.transport)
	m.notifier = newNotifier(m.lifecycle, m.raft, m.transport, m.known)
	m.membership = newMembership(&m.cfg, replica, m.leader, m.pulse)
	m.readIndex = newReadIndex(&m.cfg, m.lease, m.leader, m.pulse)
	m.proposer = newProposer(&m.cfg, replica, m.readIndex, m.compactor.room)
	m.service = newService(m.pulse, &m.cfg, m.leader, m.lease, m.proposer)
	if m.peers != nil {
		m.peers.Serve = map[byte]func(net.Conn){
			peer.KindRaft:    m.transport.conns.take,
			peer.KindStream:  m.transport.takeStream,
			peer.KindForward: m.serveForward,
			peer.KindAdmin:   m.membership.serve,
			peer.KindState:   m.pulse.tellState,
			peer.KindBeat:    func(c net.Conn) { m.pulse.takeBeats(c, timing.Never) }, // the first one may have been sent long ago
			peer.KindRebeat:  func(c net.Conn) { m.pulse.takeBeats(c, c.(peer.Incoming).WelcomedAfter) },
		}
		m.transport.conns.idOf, m.peers.Called, m.peers.Term = m.membership.idOf, m.membership.former.called, m.raft.terms.newest.Load
		m.peers.RunningTime = func() int64 { return m.pulse.moment().Running }
	}
	return m
}

// Start opens the member's storage and peer port and starts its part in the
// cluster. An error names the file or address concerned; the member must not be
// closed after one.
func (m *Member) Start() (err error) {
	var s *storage.Storage
	switch cfg := &m.cfg; {
	case cfg.Dir != "":
		s, err = storage.Open(cfg.Dir, cfg.LogStore, cfg.ID, cfg.Log, raftLogger(cfg.Log))
	case cfg.Memory != nil:
		s = cfg.Memory.Open()
	default:
		s = storage.NewMemory().Open()
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
	return m.startOn(s)
}

// startOn is Start with an opened storage, which it closes if it fails.
func (m *Member) startOn(s *storage.Storage) error {
	m.replica.Observe(observer{m})
	m.replica.Complete(m.proposer.complete)
	m.raft.storage = s
	m.cfg.Trace.Opened(s)
	if err := m.startRaft(); err != nil {
		if m.peers != nil {
			m.peers.Close()
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
	c.LocalID = storage.ServerID(m.cfg.ID)
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
		trans = newLoneTransport(raft.ServerAddress(first[0].Addr))
	} else {
		m.raft.last = max(5*m.contacts.ElectionTimeout, 10*time.Second)
		c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = m.raft.last, m.raft.last, m.raft.last
		if err := m.peers.Open(); err != nil {
			return err
		}
		m.transport.open()
		trans, cut = m.transport, m.peers.Closed
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
	m.raft.log.guardedStore = newGuardedStore(&m.raft.disk, m.lifecycle, m.pulse.moment, m.raft.applied, cut)
	m.raft.log.off = m.cfg.DiskFirst || !m.cfg.clustered()
	if state := m.raft.storage.TakeState(); state != nil {
		m.replica.Load(state)
		c.NoSnapshotRestoreOnStart = true
	}
	m.raft.recent = newRecentLog(m.raft.log, m.lifecycle)
	machine := &gatedFSM{Replica: m.replica, log: m.raft.log, known: m.known, digests: m.pulse.digests, trace: m.cfg.Trace}
	if m.raft.Raft, err = raft.NewRaft(c, machine, m.raft.recent, m.raft.log, watchedSnapshots{m.raft.storage.Snapshots, m.lifecycle, &m.raft.disk, m.pulse.moment, m.raft.applied, m.contacts.ElectionTimeout}, trans); err != nil {
		return err
	}
	m.raft.recent.started.Store(true)
	if m.peers == nil {
		return nil
	}
	if begin != nil {
		m.wg.Go(begin)
	}
	m.wg.Go(m.raft.log.run)
	m.peers.Start()
	return nil
}

// belong finds out which cluster the storage belongs to, if it can be told without the other
// members. It returns what has to run once Raft is started: nil if this member is in its
// cluster, and has its vote if it is to have one.
func (m *Member) belong(first []proto.Peer) (begin func(), err error) {
	s, former := m.raft.storage, m.membership.former
	empty, err := s.Empty()
	if err != nil {
		return nil, err
	}
	list := m.membership.configured
	var restored FirstState
	if !empty {
		list, first = s.Members, nil
		if restored, err = restoredState(s); err != nil {
			return nil, err
		}
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
	case whole && (log != 0 || restored.data()):
		if of = (storage.Identity{Cluster: log, Agreed: true}); log == 0 {
			of.Cluster = ClusterID(newRun())
		}
		err = s.SetIdentity(of)
	case alone && !rejoining:
		err = errors.New("in its list of members this server is alone, and that list may be outdated; start it with --peers and only itself if it is the whole cluster; otherwise empty the directory, so that it gets its data from the others")
	case !restored.data():
		err = fmt.Errorf("its log is of cluster %q, but its meta.json, which says so too, was lost; restore that, or empty the directory and start the server again, so that it gets its data from the others", log)
	}
	if err != nil {
		return nil, err
	}
	if empty && of.Agreed && len(of.First) > 0 { // also after a crash in the middle
		if err := s.Bootstrap(of.First); err != nil {
			return nil, err
		}
		empty = false
	}
	switch {
	case empty && of.Agreed: // it was about to join
		former.beginning = beginning{list: list}
		return former.run, nil
	case !of.Agreed:
		former.beginning = beginning{list, first, restored}
		if of.Cluster != 0 { // perhaps just before this start
			former.accepted.at = time.Now()
		}
		return former.run, nil
	}
	m.membership.gate.Open(of.Cluster)
	if owed, err := former.owed(); err != nil || !owed {
		return nil, err
	}
	return func() { former.awaitVote("") }, nil
}

// restoredState describes the snapshot from which the storage was restored, without the digest of its state. It returns the
// zero value if there is a log too, or if the snapshot is of a cluster.
func restoredState(s *storage.Storage) (FirstState, error) {
	if last, err := s.Log.LastIndex(); err != nil || last > 0 || s.LogOf() != 0 {
		return FirstState{}, err
	}
	newest, err := s.NewestSnapshot()
	return FirstState{Index: newest.Index, Term: newest.Term}, err
}

// checkStored compares the members in the storage with the configured ones. It
// fails if a standalone server's storage is opened as a cluster member's or the
// reverse. Any other difference is only logged: the stored members are in force.
func (m *Member) checkStored(configured []proto.Peer) error {
	if len(m.raft.storage.Members) == 0 {
		if len(configured) == 0 && m.cfg.Join == "" {
			m.cfg.Log.Warn("waiting to be added to a cluster", "id", m.cfg.ID, "address", m.cfg.Addr)
		}
		return nil
	}
	stored, where := m.raft.storage.Members, m.raft.storage.Name
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
	} else if self := election.Find(stored, m.cfg.ID); self != nil && self.Addr != m.cfg.addr() {
		m.cfg.Log.Warn("the other members know this server by another address", "known", self.Addr, "configured", m.cfg.addr())
	}
	return nil
}

// Close stops the member and waits for its goroutines. It does not hand over leadership; see
// [Member.HandOver]. Pending commands are reported as Lost. It may be called more than once: each call returns when the
// member is closed.
func (m *Member) Close() error {
	first := false
	m.once.Do(func() {
		first = true
		close(m.stop)
	})
	if !first {
		<-m.ended
		return m.result
	}
	down := m.raft.Shutdown()
	if m.peers != nil {
		m.peers.Close() // unblocks goroutines that wait for other members
		m.transport.Close()
	}
	err := down.Error()
	close(m.raft.down)
	if m.peers != nil {
		m.peers.Wait()
		m.transport.wg.Wait()
	}
	m.wg.Wait()
	m.result = errors.Join(err, m.raft.storage.Close())
	close(m.ended)
	return m.result
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
				o.m.notifier.changed.Raise()
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
		o.m.raft.recent.forget() // the log in the storage was changed
	}
}

func (o observer) Failed(err error) { o.m.fail(fmt.Errorf("%s: %w", o.m.raft.storage.Name, err)) }
