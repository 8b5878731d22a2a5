package cluster

import (
	"errors"
	"fmt"
	"maps"
	"net"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/alive"
	"github.com/lockkeeper/lockkeeper/internal/core/membership"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/raftlog"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// New returns a member that applies its log to replica, which must be fresh.
// [Member.Start] must be called before any other method.
func New(cfg Config, replica *fsm.Replica) *Member {
	if cfg.Trace == nil {
		cfg.Trace = untraced{}
	}
	m := &Member{cfg: cfg, pulse: newPulse(&cfg, replica), closing: wake.NewTurn()}
	m.liveness = alive.NewLiveness(cfg.Tick, m.contacts.Lease, cfg.Clustered(), m.nowMs, func() int64 { return m.moment().Running }, cfg.Trace)
	m.membership = membership.New(&membership.Parts{
		Server: &m.cfg.Server, AllowSingleVoter: cfg.AllowSingleVoter, Answers: cfg.Answers, Log: cfg.Log,
		Lifecycle: m.Lifecycle, Engine: m.engine, Contacts: m.contacts, Digests: m.digests, Leader: m.leader, Replica: replica,
		Gate: m.gate, Port: m.peers, Look: m.wake, Now: m.moment,
	})
	m.proposer = propose.New(&propose.Parts{
		Lifecycle: m.Lifecycle, ID: cfg.ID, Engine: m.engine, Contacts: m.contacts, Leader: m.leader, Replica: replica, Port: m.peers,
		Look: m.wake, TimeOfDay: m.timeOfDay, Settings: cfg.Settings,
	})
	m.service = newService(m.pulse, m.proposer)
	if m.peers != nil {
		maps.Copy(m.peers.Serve, map[byte]func(net.Conn){
			peer.KindForward: m.serveForward,
			peer.KindAdmin:   m.membership.Serve,
			peer.KindState:   m.pulse.tellState,
			peer.KindBeat:    func(c net.Conn) { m.pulse.takeBeats(c, timing.Never) }, // the first one may have been sent long ago
			peer.KindRebeat:  func(c net.Conn) { m.pulse.takeBeats(c, c.(peer.Incoming).WelcomedAfter) },
		})
		m.peers.Called = m.membership.Called
		m.peers.RunningTime = func() int64 { return m.moment().Running }
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
		s, err = storage.Open(cfg.Dir, cfg.LogStore, cfg.ID, cfg.Log, raftlog.Logger(cfg.Log))
	case cfg.Memory != nil:
		s = cfg.Memory.Open()
	default:
		s = storage.NewMemory().Open()
	}
	if errors.Is(err, storage.ErrDamaged) {
		remedy := storage.RemedyAlone
		if m.cfg.Clustered() {
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
	m.replica.Complete(m.proposer.Complete)
	m.engine.Open(s)
	m.cfg.Trace.Opened(s)
	begin, err := m.startEngine()
	if err != nil {
		return errors.Join(err, m.engine.Close(), s.Close())
	}
	m.Running.Go(m.proposer.Run)
	m.Running.Go(m.watchLeadership)
	m.Running.Go(m.service.run)
	m.Running.Go(m.sendTouches)
	if m.peers != nil {
		if begin != nil {
			m.Running.Go(begin)
		}
		m.peers.Start()
		m.Running.Go(m.pulse.run)
		m.Running.Go(m.membership.Watch)
	}
	return nil
}

// startEngine opens the port and starts the engine. It returns what Membership.Belong does.
func (m *Member) startEngine() (begin func(), err error) {
	if err := m.membership.CheckStored(); err != nil {
		return nil, err
	}
	if m.peers != nil {
		if err := m.peers.Open(); err != nil {
			return nil, err
		}
	}
	if begin, err = m.membership.Belong(); err != nil {
		return nil, fmt.Errorf("%s: %w", m.engine.Storage().Name, err)
	}
	return begin, m.engine.Start()
}

// Close stops the member and waits for its goroutines. It does not hand over leadership; see
// [Member.HandOver]. Pending commands are reported as Lost. It may be called more than once: each call returns when the
// member is closed.
func (m *Member) Close() error {
	m.closing.Take()
	defer m.closing.Give()
	if !wake.Closed(m.Stop) {
		close(m.Stop)
		err := m.engine.Close()
		m.Running.Wait()
		m.result = errors.Join(err, m.engine.Storage().Close())
	}
	return m.result
}

// Kill is like Close but simulates the death of the process: nothing is written from now on.
func (m *Member) Kill() error {
	m.Killed.Store(true)
	return m.Close()
}

// Restore makes cfg.Dir, which must be empty or not exist, the data directory of a server
// that begins with the state m: of a standalone server, or of a member of the new cluster
// that cfg.Peers lists. It does not start the server. m must not be used afterwards.
//
// Every member of a cluster is restored from the same state and with the same Peers and
// Observers. They then agree from the beginning, as if they had all taken the same
// snapshot of one log. Their zxids continue far above that of m (see [fsm.Machine.Restart]).
func Restore(cfg Config, m *fsm.Machine) error {
	first := cfg.First()
	if len(first) == 0 {
		return errors.New("cluster: a server that joins a cluster gets its state from there")
	}
	return raftlog.Restore(cfg.Dir, cfg.LogStore, cfg.ID, first, m, cfg.Log)
}

// observer implements [fsm.Observer]. It updates the member's parts when entries
// are applied or a snapshot is restored.
type observer struct{ m *Member }

func (o observer) Changed(v *fsm.View, changes []proto.Change) {
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case proto.NodeDataChanged:
			if c.Path == znode.ConfigPath {
				o.m.wake.Raise()
			}
		case proto.SessionOpened, proto.SessionResumed:
			o.m.liveness.Add(v.Sessions().Get(c.Session))
		case proto.SessionClosed:
			o.m.liveness.Remove(c.Session)
		}
	}
}

func (observer) Applied(uint64, uint64, int) {}

func (observer) Answered() {}

func (observer) Restoring() {}

func (o observer) Restored() {
	o.m.trackAll()
	o.m.proposer.Restored()
}

func (observer) Failed(error) {} // the engine reports it
