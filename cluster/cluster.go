package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
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
		Lifecycle: engine.NewLifecycle(), clock: newClock(cfg.TimeOfDay), cfg: cfg, replica: replica, ended: make(chan struct{}), leader: newKnownLeader(),
		contacts: election.NewContacts(cfg.ID, timing.For(cmp.Or(cfg.ElectionTimeout, timing.DefaultElectionTimeout))),
	}
	gate, digests, now := new(peer.Gate), election.NewDigests(cfg.ID, replica), func() timing.Moment { return m.contacts.Moment(m.nowMs()) }
	if cfg.clustered() {
		m.peers = peer.NewPort(cfg.Network, cfg.ID, cfg.addr(), gate, cfg.Log)
	}
	m.engine = engine.New(engine.Config{
		ID: cfg.ID, Port: m.peers, Contacts: m.contacts, Digests: digests, Now: now,
		SnapshotBytes: cfg.SnapshotBytes, DiskFirst: cfg.DiskFirst, Trace: cfg.Trace, Log: cfg.Log,
	}, m.Lifecycle, replica)
	m.liveness = newLiveness(cfg.Tick, m.contacts.Lease, cfg.clustered(), m.nowMs)
	m.liveness.trace = cfg.Trace
	m.pulse = newPulse(m.Lifecycle, m.clock, &m.cfg, m.engine, m.contacts, digests, replica, gate, m.peers)
	m.lease = newLease(m.pulse)
	m.membership = newMembership(&m.cfg, replica, m.leader, m.pulse)
	m.readIndex = &readIndex{m.pulse, m.leader}
	m.proposer = newProposer(&m.cfg, replica, m.readIndex, m.engine.Room)
	m.service = newService(m.pulse, &m.cfg, m.leader, m.lease, m.proposer)
	if m.peers != nil {
		maps.Copy(m.peers.Serve, map[byte]func(net.Conn){
			peer.KindForward: m.serveForward,
			peer.KindAdmin:   m.membership.serve,
			peer.KindState:   m.pulse.tellState,
			peer.KindBeat:    func(c net.Conn) { m.pulse.takeBeats(c, timing.Never) }, // the first one may have been sent long ago
			peer.KindRebeat:  func(c net.Conn) { m.pulse.takeBeats(c, c.(peer.Incoming).WelcomedAfter) },
		})
		m.peers.Called = m.membership.former.called
		m.peers.RunningTime = func() int64 { return now().Running }
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
		s, err = storage.Open(cfg.Dir, cfg.LogStore, cfg.ID, cfg.Log, engine.Logger(cfg.Log))
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
	m.engine.Open(s)
	m.cfg.Trace.Opened(s)
	begin, err := m.startRaft()
	if err != nil {
		return errors.Join(err, m.engine.Close(), s.Close())
	}
	m.Running.Go(m.proposer.run)
	m.Running.Go(m.watchLeadership)
	m.Running.Go(m.service.run)
	m.Running.Go(m.sendTouches)
	if m.peers != nil {
		if begin != nil {
			m.Running.Go(begin)
		}
		m.peers.Start()
		m.Running.Go(m.pulse.run)
		m.Running.Go(m.membership.watch)
	}
	return nil
}

// startRaft starts Raft on the storage. It returns what belong does.
func (m *Member) startRaft() (begin func(), err error) {
	if err := m.checkStored(m.membership.configured); err != nil {
		return nil, err
	}
	if m.peers != nil {
		if err := m.peers.Open(); err != nil {
			return nil, err
		}
	}
	if begin, err = m.belong(m.cfg.first()); err != nil {
		return nil, fmt.Errorf("%s: %w", m.engine.Storage().Name, err)
	}
	return begin, m.engine.Start()
}

// belong finds out which cluster the storage belongs to, if it can be told without the other
// members. It returns what has to run once Raft is started: nil if this member is in its
// cluster, and has its vote if it is to have one.
func (m *Member) belong(first []proto.Peer) (begin func(), err error) {
	s, former := m.engine.Storage(), m.membership.former
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
	if len(m.engine.Storage().Members) == 0 {
		if len(configured) == 0 && m.cfg.Join == "" {
			m.cfg.Log.Warn("waiting to be added to a cluster", "id", m.cfg.ID, "address", m.cfg.Addr)
		}
		return nil
	}
	stored, where := m.engine.Storage().Members, m.engine.Storage().Name
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
		close(m.Stop)
	})
	if !first {
		<-m.ended
		return m.result
	}
	err := m.engine.Close()
	m.Running.Wait()
	m.result = errors.Join(err, m.engine.Storage().Close())
	close(m.ended)
	return m.result
}

// Kill is like Close but simulates the death of the process: nothing is written from now on.
func (m *Member) Kill() error {
	m.Killed.Store(true)
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
				o.m.pulse.look()
			}
		case proto.SessionOpened, proto.SessionResumed:
			o.m.liveness.add(v.Sessions().Get(c.Session))
		case proto.SessionClosed:
			o.m.liveness.remove(c.Session)
		}
	}
}

func (observer) Applied(uint64, uint64, int) {}

func (observer) Answered() {}

func (observer) Restoring() {}

func (o observer) Restored() {
	o.m.trackAll()
	o.m.proposer.pending.restored()
}

func (observer) Failed(error) {} // the engine reports it
