package cluster

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// Config says how to open a [Member].
type Config struct {
	ID     uint64  // of this server, 1 to 254
	Dir    string  // where to keep the log; if empty, in Memory
	Memory *Memory // used if Dir is empty; nil is a new one

	Tick          time.Duration // of session expiry
	ReapInterval  time.Duration // between looks for container and TTL znodes to delete
	SnapshotBytes int64         // of log, after which a snapshot is taken
	Settings      fsm.Settings
	Log           *slog.Logger
}

// Member is this server's part in the cluster. Its methods may be called at any time.
type Member struct {
	cfg     Config
	replica *fsm.Replica
	raft    *raft.Raft
	stores  *stores
	start   time.Time // sessions are timed from here, by the monotonic clock

	batcher batcher
	pending pending

	trackMu sync.Mutex
	tracker *session.Tracker // mirrors the replicated sessions; consulted while leading
	due     int64            // the deadline that lead sleeps for
	sooner  chan struct{}    // has an element when there is an earlier one
	expired atomic.Int64     // sessions that this member has ended

	ready     chan struct{}
	readyOnce sync.Once
	errs      chan error
	failOnce  sync.Once
	stop      chan struct{} // closed by Close
	stopOnce  sync.Once
	wg        sync.WaitGroup
}

// ErrClosed says that the member was closed.
var ErrClosed = errors.New("cluster: closed")

// Open opens a member, the only one of its cluster, on replica, which must be
// fresh. Errors name the file that they are about.
func Open(cfg Config, replica *fsm.Replica) (*Member, error) {
	m := &Member{
		cfg: cfg, replica: replica, start: time.Now(),
		tracker: session.NewTracker(max(1, cfg.Tick.Milliseconds())),
		sooner:  make(chan struct{}, 1), ready: make(chan struct{}), errs: make(chan error, 1), stop: make(chan struct{}),
	}
	m.batcher.init()
	m.pending.init()
	replica.Observe(observer{m})
	replica.Complete(m.complete)

	var err error
	if cfg.Dir != "" {
		m.stores, err = openDir(cfg.Dir, cfg.ID, cfg.Log)
	} else {
		if cfg.Memory == nil {
			cfg.Memory = NewMemory()
		}
		m.stores = cfg.Memory.stores()
	}
	if err != nil {
		return nil, err
	}
	if err := m.startRaft(); err != nil {
		return nil, errors.Join(err, m.stores.close())
	}
	m.wg.Add(2)
	go m.runBatcher()
	go m.watchLeadership()
	return m, nil
}

func (m *Member) startRaft() error {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(fmt.Sprint(m.cfg.ID))
	c.Logger = raftLogger(m.cfg.Log)
	c.NoLegacyTelemetry = true
	// An entry holds many commands, so a few make a long log; takeSnapshot
	// counts its bytes besides.
	c.SnapshotThreshold = 8192
	// Entries behind a snapshot are for followers that lag, and there are none.
	// They would not be few bytes: an entry can have a megabyte and more.
	c.TrailingLogs = 1

	addr := raft.ServerAddress(fmt.Sprintf("server-%d", m.cfg.ID))
	transport := newLoneTransport(addr)
	store := guardedStore{m.stores.log, m.stores.stable, m}
	alone := raft.Configuration{Servers: []raft.Server{{ID: c.LocalID, Address: addr}}}
	if err := m.stores.bootstrap(alone); err != nil {
		return err
	}
	var err error
	if m.raft, err = raft.NewRaft(c, m.replica, store, store, m.stores.snaps, transport); err != nil {
		return err
	}
	return nil
}

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
func (m *Member) Ready() <-chan struct{} { return m.ready }

// Err gets the first fault after which this member cannot go on. It must then be closed.
func (m *Member) Err() <-chan error { return m.errs }

func (m *Member) fail(err error) {
	m.failOnce.Do(func() {
		m.errs <- err
	})
}

// Close stops the member and waits for its goroutines. Commands that wait are Lost.
func (m *Member) Close() error {
	var err error
	m.stopOnce.Do(func() {
		close(m.stop)
		m.batcher.close()
		err = m.raft.Shutdown().Error()
		m.wg.Wait()
		err = errors.Join(err, m.stores.close())
	})
	return err
}

func (m *Member) nowMs() int64 { return time.Since(m.start).Milliseconds() }

// observer keeps the tracker true to the replicated sessions.
type observer struct{ m *Member }

func (o observer) Changed(v *fsm.View, changes []proto.Change) {
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case proto.SessionOpened, proto.SessionResumed:
			o.m.track(c.Session, v.Sessions().Get(c.Session).Timeout)
		case proto.SessionClosed:
			o.m.trackMu.Lock()
			o.m.tracker.Remove(c.Session)
			o.m.trackMu.Unlock()
		}
	}
}

func (observer) Applied() {}

func (o observer) Restored() { o.m.trackAll() }

func (o observer) Failed(err error) { o.m.fail(fmt.Errorf("%s: %w", o.m.stores.where, err)) }

// trackAll gives every session that exists its whole time again.
func (m *Member) trackAll() {
	m.replica.View(func(v *fsm.View) {
		m.trackMu.Lock()
		defer m.trackMu.Unlock()
		m.tracker = session.NewTracker(max(1, m.cfg.Tick.Milliseconds()))
		for _, s := range v.Sessions().All() {
			m.tracker.Add(s.ID, s.Timeout, m.nowMs())
		}
	})
}

// guardedStore makes a store that cannot be written the end of this member.
// Raft by itself would panic when it cannot store its term, and would stand for
// election again and again when it cannot store its log.
type guardedStore struct {
	raft.LogStore
	raft.StableStore
	m *Member
}

func (s guardedStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s guardedStore) StoreLogs(logs []*raft.Log) error {
	err := s.LogStore.StoreLogs(logs)
	if err != nil {
		s.m.fail(fmt.Errorf("cannot write to %s: %w", s.m.stores.where, err))
	}
	return err
}

func (s guardedStore) Set(key, val []byte) error { return s.stable(s.StableStore.Set(key, val)) }

func (s guardedStore) SetUint64(key []byte, val uint64) error {
	return s.stable(s.StableStore.SetUint64(key, val))
}

func (s guardedStore) stable(err error) error {
	if err == nil {
		return nil
	}
	s.m.fail(fmt.Errorf("cannot write to %s: %w", s.m.stores.where, err))
	// Whoever is told of the fault closes this member. Until then Raft must
	// not go on without its term and vote, and an error would make it panic.
	<-s.m.stop
	return nil
}

// randomUint64 is a start for numbers that must not meet those of an earlier run.
func randomUint64() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.BigEndian.Uint64(b[:])
}
