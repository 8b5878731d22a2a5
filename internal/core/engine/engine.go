package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/raftlog"
	"github.com/lockkeeper/lockkeeper/internal/core/stopwatch"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// Engine is this server's Raft. Open comes first, then Start; before that has returned, only Storage, Role and LastApplied may be
// called. Its methods are safe for concurrent use.
type Engine struct {
	*lifecycle.Lifecycle
	cfg            Config
	replica        *fsm.Replica
	raft           *raft.Raft // nil until Start has started it
	disk           *raftlog.Disk
	log            *raftlog.AsyncLog // on storage, once Raft is started
	leaderCommit   raftlog.LeaderCommit
	recent         *raftlog.RecentLog // on log
	known          raftlog.Commits    // what is committed, as far as others may know it
	applied        raftlog.Commits    // what is applied here
	compactor      *compactor         // the length of the log
	transport      *transport         // nil on a standalone server
	membersChanged wake.Signal        // for SpreadCommitIndex
	down           chan struct{}      // closed when Raft has shut down
	abstainUntil   atomic.Uint64      // index; see AbstainUntil
	adding         atomic.Uint64      // see Adding
	raftTimeout    time.Duration      // Raft's own election timeout, a last resort: heartbeats detect failures much sooner
	reload         sync.Mutex         // held while Raft's configuration is replaced
}

// Config says how to run an [Engine].
type Config struct {
	ID       uint64                // of this server
	Port     *peer.Port            // over which the members talk to each other; nil on a standalone server
	Contacts *election.Contacts    // are told who votes for this member, and who lives
	Digests  *election.Digests     // are told of snapshots that are installed
	Leader   *election.KnownLeader // whom this member knows to lead; HandOver waits until that is another one
	Now      func() timing.Moment  // by the clocks of the contacts
	// SnapshotBytes is how long the log must be, in bytes, before a snapshot is taken.
	SnapshotBytes int64
	// DiskFirst has this member, as the leader, write an entry to its disk before it sends it to the others. For tests.
	DiskFirst bool
	Trace     raftlog.Trace
	Log       *slog.Logger
}

// New returns an Engine that applies its log to replica. It adds its kinds of connections to those that cfg.Port serves.
func New(cfg Config, life *lifecycle.Lifecycle, replica *fsm.Replica) *Engine {
	e := &Engine{
		Lifecycle: life, cfg: cfg, replica: replica, log: raftlog.NewAsyncLog(),
		membersChanged: wake.NewSignal(), down: make(chan struct{}),
	}
	e.disk = raftlog.NewDisk(cfg.ID, life, cfg.Now, e.LastApplied)
	e.log.Servers, e.log.Leads = e.servers, func() bool { return e.Role() == Leader }
	e.compactor = newCompactor(e)
	if cfg.Port != nil {
		e.transport = newTransport(e)
		cfg.Port.Serve[peer.KindRaft] = e.transport.take
	}
	return e
}

// Open gives the Engine the storage that it is to use.
func (e *Engine) Open(s *storage.Storage) { e.disk.Storage = s }

// Start starts Raft. The storage must belong to a cluster, or be empty. The port must be open, and not started.
func (e *Engine) Start() error {
	e.replica.Observe(observer{e}) // first: it must hear of the state that the storage has
	c := raft.DefaultConfig()
	c.LocalID = storage.ServerID(e.disk.ID)
	c.Logger = raftlog.Logger(e.cfg.Log)
	c.NoLegacyTelemetry = true
	// Raft must not take snapshots on its own: compactor.run decides when one is
	// due, and before each one how many entries to keep for followers that lag.
	c.SnapshotThreshold = math.MaxUint64
	c.TrailingLogs = 1
	// A leader that is no voter any more becomes a follower, and finds out by itself whether it
	// was removed. Raft would end, and this member would not know it.
	c.ShutdownOnRemove = false
	// Raft reads so many entries for one message, however long they are.
	c.MaxAppendEntries = raftlog.RecentEntries
	var (
		trans raft.Transport  = newLoneTransport(raft.ServerAddress(LoneAddress(e.disk.ID)))
		cut   <-chan struct{} // see raftlog.GuardedStore
	)
	if t := e.transport; t != nil {
		e.raftTimeout = max(5*t.ElectionTimeout, 10*time.Second)
		c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = e.raftTimeout, e.raftTimeout, e.raftTimeout
		t.wg.Go(t.conns.Run)
		trans, cut = t, t.peers.Closed
	}
	where := func(err error) error { return fmt.Errorf("%s: %w", e.disk.Storage.Name, err) }
	term, err := e.disk.Storage.Term()
	if err != nil {
		return where(err)
	}
	e.disk.Terms.Begin(term)
	if since := e.disk.Storage.Identity().Since; since > 0 {
		end, err := e.disk.Storage.LastIndex()
		if err != nil {
			return where(err)
		}
		if end < since { // as AbstainUntil does it, but before Raft looks at its timeouts
			e.abstainUntil.Store(since)
			c.HeartbeatTimeout, c.ElectionTimeout = noTimeout, noTimeout
		}
	}
	e.log.GuardedStore = raftlog.GuardedStore{LogStore: e.disk.Storage.Log, StableStore: e.disk.Storage.Stable, Disk: e.disk, Cut: cut}
	e.log.Sync = e.cfg.DiskFirst || e.transport == nil
	if state := e.disk.Storage.TakeState(); state != nil {
		e.replica.Load(state)
		c.NoSnapshotRestoreOnStart = true
	}
	e.recent = raftlog.NewRecentLog(e.log, e.Lifecycle)
	machine := &raftlog.GatedFSM{Replica: e.replica, Log: e.log, Known: &e.known, Digests: e.cfg.Digests, Trace: e.cfg.Trace}
	snapshots := raftlog.WatchedSnapshots{SnapshotStore: e.disk.Storage.Snapshots, Disk: e.disk, ElectionTimeout: e.cfg.Contacts.ElectionTimeout}
	if e.raft, err = newRaft(c, machine, e.recent, e.log, snapshots, trans); err != nil {
		return where(err)
	}
	e.recent.Started.Store(true)
	e.Running.Go(e.compactor.run)
	if e.transport != nil {
		e.Running.Go(e.log.Run)
	}
	return nil
}

// newRaft is raft.NewRaft, which panics if it cannot read an entry. None of its goroutines runs yet then.
func newRaft(c *raft.Config, machine raft.FSM, log raft.LogStore, stable raft.StableStore, snapshots raft.SnapshotStore, trans raft.Transport) (r *raft.Raft, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = p.(error)
		}
	}()
	return raft.NewRaft(c, machine, log, stable, snapshots, trans)
}

// Close stops Raft, also if Start has failed or was not called, and closes the port, over which Raft may be waiting for another
// member. It is called once, and after Stop is closed unless Start has failed.
func (e *Engine) Close() (err error) {
	var down raft.Future
	if e.raft != nil {
		down = e.raft.Shutdown()
	}
	if e.transport != nil {
		e.transport.peers.Close()
	}
	if down != nil {
		err = down.Error()
	}
	close(e.down)
	if e.transport != nil {
		e.transport.peers.Wait()
		e.transport.wg.Wait()
	}
	return err
}

type observer struct{ *Engine }

func (o observer) Changed(_ *fsm.View, changes []proto.Change) {
	for i := range changes {
		if c := &changes[i]; c.Kind == proto.NodeDataChanged && c.Path == znode.ConfigPath {
			o.membersChanged.Raise()
		}
	}
}

func (o observer) Applied(index, term uint64, bytes int) {
	o.applied.Set(index, term)
	o.compactor.grew(bytes)
}

func (observer) Answered() {}

func (observer) Restoring() {}

func (o observer) Restored() {
	o.replica.View(func(v *fsm.View) { o.applied.Set(v.Index(), 0) })
	if o.raft != nil && !o.Killed.Load() { // while Raft starts, the storage has already done this
		if err := o.disk.Storage.ReconcileLog(); err != nil {
			o.CannotWrite(o.disk.Storage, err)
		}
		o.recent.Forget() // the log in the storage was changed
	}
}

func (o observer) Failed(err error) { o.Fail(fmt.Errorf("%s: %w", o.disk.Storage.Name, err)) }

// Storage is what Open was given.
func (e *Engine) Storage() *storage.Storage { return e.disk.Storage }

// Role is what Raft takes this member for.
type Role raft.RaftState

const (
	Follower  = Role(raft.Follower)
	Candidate = Role(raft.Candidate)
	Leader    = Role(raft.Leader)
	Ended     = Role(raft.Shutdown)
)

func (r Role) String() string { return raft.RaftState(r).String() }

// Role returns this member's role; it is a follower while Start runs. Raft notices late that a leader was replaced.
func (e *Engine) Role() Role {
	if e.raft == nil {
		return Follower
	}
	return Role(e.raft.State())
}

// Term returns this member's current term.
func (e *Engine) Term() uint64 { return e.raft.CurrentTerm() }

// NewestTerm is Term, or a later one that is being stored. It is what others are told.
func (e *Engine) NewestTerm() uint64 { return e.disk.Terms.Newest.Load() }

// LeaderTerm returns the term in which this member leads; if it does not lead, that is the current term, and the result is false.
func (e *Engine) LeaderTerm() (term uint64, leads bool) {
	term = e.Term()
	leads = e.Role() == Leader
	return term, leads && e.Term() == term // terms only rise, so it led in between
}

// Leader returns whom Raft takes for the leader; the id is 0 if it knows none.
func (e *Engine) Leader() (id uint64, addr string) {
	a, i := e.raft.LeaderWithID()
	return storage.MemberID(i), string(a)
}

// LeadershipChanges receives true when this member begins to lead, and false when it stops. It is one channel, for one receiver,
// and has only the newest value.
func (e *Engine) LeadershipChanges() <-chan bool { return e.raft.LeaderCh() }

// Members returns the members in the newest list in this member's log,
// committed or not, sorted by id.
func (e *Engine) Members() []proto.Peer {
	return storage.Peers(raft.Configuration{Servers: e.servers()})
}

// servers is Members as Raft has them.
func (e *Engine) servers() []raft.Server {
	if e.raft == nil { // while Start runs
		return nil
	}
	return e.raft.GetConfiguration().Configuration().Servers // which never fails
}

// idOf returns the id of the member that should be at an address; 0 if none should.
func (e *Engine) idOf(addr string) uint64 {
	for _, s := range e.servers() {
		if string(s.Address) == addr {
			return storage.MemberID(s.ID)
		}
	}
	return 0
}

// LastIndex returns the index of the last entry in this member's log, or that its newest snapshot covers.
func (e *Engine) LastIndex() uint64 { return e.raft.LastIndex() }

// LogEnd returns the index and term of the last entry in this member's log, or of its
// newest snapshot if the log ends before that. It does not wait for the disk: if the entry is not kept in
// memory, Raft knows its term, but gives that only as one of its statistics, which takes long.
func (e *Engine) LogEnd() (index, term uint64) {
	if l := e.recent.Last(); l != nil && l.Index == e.LastIndex() {
		return l.Index, l.Term
	}
	stats := e.raft.Stats()
	number := func(key string) uint64 {
		n, _ := strconv.ParseUint(stats[key], 10, 64)
		return n
	}
	index, term = number("last_log_index"), number("last_log_term")
	if snapshot := number("last_snapshot_index"); snapshot > index {
		index, term = snapshot, number("last_snapshot_term")
	}
	return index, term
}

// Committed returns the commit index, as far as the log is committed whatever happens to this process: a leader counts among the
// majority only with what its disk has written (section 10.2.1 of Raft's thesis).
func (e *Engine) Committed() uint64 { return e.log.Committed(e.raft.CommitIndex()) }

// StateIndex returns the index of the last entry that was applied to the state. LastApplied may be higher, by entries of Raft's
// own, such as no-ops and barriers.
func (e *Engine) StateIndex() uint64 { return e.applied.Newest() }

// StateNews is StateIndex, with a channel that is closed when there is a newer one.
func (e *Engine) StateNews() (index uint64, news <-chan struct{}) {
	index, _, news = e.applied.Get()
	return index, news
}

// LastApplied is Raft's lastApplied; 0 while Start runs.
func (e *Engine) LastApplied() uint64 {
	if e.raft == nil {
		return 0
	}
	return e.raft.AppliedIndex()
}

// AwaitCommitted waits for a moment until what the leader has said to be committed is applied here; see raftlog.LeaderCommit.
func (e *Engine) AwaitCommitted(over <-chan struct{}) { e.leaderCommit.Await(&e.applied, over) }

// StateIndexAt returns the index of the last entry, not after index, that changes the state. When a
// member has applied that one, its state is as of index: the entries between are Raft's own,
// such as that with which a leader begins, and a member does not notice when it passes them. It returns false if the
// log cannot be read.
func (e *Engine) StateIndexAt(index uint64) (uint64, bool) {
	for applied := e.StateIndex(); index > applied; index-- {
		var l raft.Log
		switch err := e.log.GetLog(index, &l); {
		case errors.Is(err, raft.ErrLogNotFound): // it is part of a snapshot of what is applied here
			return e.StateIndex(), true
		case err != nil:
			return 0, false
		}
		if l.Type == raft.LogCommand || l.Type == raft.LogConfiguration && e.transport != nil {
			break
		}
	}
	return index, true
}

// Full returns nil if there is room in the log for another entry. There is none while a snapshot
// is being taken and the log written since is already long enough for another one; the channel is
// closed when that has changed.
func (e *Engine) Full() <-chan struct{} { return e.compactor.room() }

// DiskStall returns how long the disk has been keeping this member waiting.
func (e *Engine) DiskStall(at timing.Moment) time.Duration { return e.disk.Stall.Length(at) }

// SnapshotStall is DiskStall for a snapshot of this member's own, beside which it can do everything but shorten its log.
func (e *Engine) SnapshotStall(at timing.Moment) time.Duration { return e.disk.Snapshots.Length(at) }

// LogWriteTimes tells how long it took to write the log.
func (e *Engine) LogWriteTimes() stopwatch.Durations { return e.disk.Work.Writes.Durations() }

// SnapshotTimes tells how long it took to take snapshots.
func (e *Engine) SnapshotTimes() stopwatch.Durations { return e.disk.Work.Snapshots.Durations() }

// Propose has Raft append an entry to the log if this member leads. Entries that are proposed one after the other keep their
// order. It gives up when Raft's main goroutine has not taken the entry within patience; 0 is for ever. result waits until the entry
// is applied here, or this member does not lead any more. It returns lifecycle.ErrClosed, an error of which [NotLeading] is true, or another one; the entry may be applied in spite of an error.
func (e *Engine) Propose(entry []byte, patience time.Duration) (result func() error) {
	f := e.raft.Apply(entry, patience)
	return func() error { return e.answer(f) }
}

// Barrier waits until everything is applied that is in the log now, and an entry of this leader's term is committed. Its errors are
// those of Propose.
func (e *Engine) Barrier(patience time.Duration) error { return e.answer(e.raft.Barrier(patience)) }

// ErrHandingOver is returned during a leadership transfer (section 3.10 of Raft's thesis). This member may go on leading.
var ErrHandingOver = raft.ErrLeadershipTransferInProgress

// ErrNotLeader is returned if this member does not lead any more.
var ErrNotLeader = errors.New("cluster: this member does not lead")

// NotLeading reports whether an error says that this member does not lead, or hands over.
func NotLeading(err error) bool {
	return errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrLeadershipLost) || errors.Is(err, ErrHandingOver) || errors.Is(err, ErrNotLeader)
}

// answer waits for the result of a request to Raft. It returns ErrClosed once the member is to end: from then on Raft takes
// entries for applied that raftlog.GatedFSM has held back.
func (e *Engine) answer(f raft.Future) error {
	endWith(f, e.down)
	err := f.Error()
	if wake.Closed(e.Stop) {
		return lifecycle.ErrClosed
	}
	return err
}

// endWith makes a future fail when down is closed. Raft never completes the
// futures of entries that are committed but not applied when it shuts down. They
// have a field for a shutdown channel, but Raft leaves it unset, so endWith sets it.
func endWith(f raft.Future, down chan struct{}) {
	if v := reflect.ValueOf(f); v.Kind() == reflect.Pointer {
		if end := v.Elem().FieldByName("ShutdownCh"); end.CanSet() {
			end.Set(reflect.ValueOf(down))
		}
	}
}

// Bootstrap makes these the members of a new cluster, in which this server is.
func (e *Engine) Bootstrap(first []proto.Peer) error {
	return e.raft.BootstrapCluster(storage.Configuration(first)).Error()
}

// changeTimeout is how long Raft may be busy before a change of the members is given up.
const changeTimeout = 10 * time.Second

// Add makes x a member, or gives one its vote or another address, as x says; a voter cannot become an observer by it. Like Demote
// and Remove, it returns when the change is committed, with the errors of Propose.
func (e *Engine) Add(x proto.Peer) error {
	if is := election.Find(e.Members(), x.ID); is == nil || is.Observer && !x.Observer {
		e.adding.Store(x.ID)
		defer e.adding.Store(0)
	}
	change := e.raft.AddVoter
	if x.Observer {
		change = e.raft.AddNonvoter
	}
	return e.answer(change(storage.ServerID(x.ID), raft.ServerAddress(x.Addr), 0, changeTimeout))
}

// Adding returns the server that Add is adding, or giving its vote; 0 if there is none.
func (e *Engine) Adding() uint64 { return e.adding.Load() }

// Demote takes a member's vote away.
func (e *Engine) Demote(id uint64) error {
	return e.answer(e.raft.DemoteVoter(storage.ServerID(id), 0, changeTimeout))
}

// Remove removes a member. It returns the index of the entry that does so.
func (e *Engine) Remove(id uint64) (index uint64, err error) {
	f := e.raft.RemoveServer(storage.ServerID(id), 0, changeTimeout)
	if err := e.answer(f); err != nil {
		return 0, err
	}
	return f.Index(), nil
}

// noTimeout is a timeout of Raft's that does not pass.
const noTimeout = 100 * 365 * 24 * time.Hour

// AbstainUntil keeps this member out of elections until its log has reached index: it neither
// stands nor votes. Until then it knows less than it did before it lost its data, and its list
// of members is one of the past, in which it may be the only voter, or decide with others whose
// list is old, too.
func (e *Engine) AbstainUntil(index uint64) {
	e.abstainUntil.Store(index)
	e.timeouts(noTimeout)
}

// Abstains reports whether this member must keep out of elections; see AbstainUntil.
func (e *Engine) Abstains() bool {
	until := e.abstainUntil.Load()
	return until > 0 && e.LastIndex() < until
}

// EndAbstention ends AbstainUntil if the log has reached the index.
func (e *Engine) EndAbstention() {
	if e.abstainUntil.Load() > 0 && !e.Abstains() {
		e.abstainUntil.Store(0)
		e.timeouts(e.raftTimeout)
	}
}

// timeouts sets how long Raft itself waits for the leader, and for the end of an election.
func (e *Engine) timeouts(d time.Duration) {
	e.Configure(func(c *raft.ReloadableConfig) { c.HeartbeatTimeout, c.ElectionTimeout = d, d }) // which does not fail
}

// Configure changes Raft's configuration.
func (e *Engine) Configure(change func(*raft.ReloadableConfig)) error {
	e.reload.Lock()
	defer e.reload.Unlock()
	c := e.raft.ReloadableConfig()
	change(&c)
	return e.raft.ReloadConfig(c)
}

// LosesVote reports whether the newest list takes this member's vote away and is not known here to be
// committed.
func (e *Engine) LosesVote() bool {
	applied := e.StateIndex()
	voted := e.replica.Votes(e.disk.ID) // as of that entry or a later one
	return e.disk.Lists.LoseVote(applied, voted, func() uint64 { return max(e.raft.CommitIndex(), e.LastApplied()) })
}

// A leader's heartbeats, which are not Raft's empty AppendEntries, are sent by others, who tell the Engine how they go: it watches
// its own connections to the member, and what it has left out because the member knew it.

// BeatSent says that a heartbeat is about to be sent to an address.
func (e *Engine) BeatSent(addr string) { e.transport.conns.BeatSent(addr) }

// Reconnected says that the heartbeat was not answered in time, and that there is a new connection for the next one. What has lost
// the old one may have lost others, so the Engine closes those that nothing has moved on since.
func (e *Engine) Reconnected(addr string) { e.transport.conns.Redial(addr, true) }

// BeatAnswered says that the member there has answered. If that came late, the Engine closes connections on which nothing has moved
// since. doubtful is whether the member may no longer be as it was when it last accepted a message: it answers over a new
// connection, so it may have restarted, or it has begun a later term than this member's.
func (e *Engine) BeatAnswered(id uint64, addr string, late, doubtful bool) {
	if doubtful {
		e.transport.doubts.Add(1)
	}
	if late {
		e.transport.conns.Redial(addr, false)
	}
	e.HasReturned(id)
}

// HasReturned ends the pause after a failure to send something to a member: that has answered a heartbeat, or was removed, or this
// member does not lead any more.
func (e *Engine) HasReturned(id uint64) { e.transport.hasReturned(id) }
