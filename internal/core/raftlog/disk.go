package raftlog

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/core/stopwatch"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// Disk is this server's storage, and what is observed of it: how long it keeps Raft waiting, and which terms and lists of
// members come to it. Raft writes to it through [GuardedStore] and [WatchedSnapshots]. It is safe for concurrent use once Storage is set.
type Disk struct {
	*lifecycle.Lifecycle
	ID          uint64 // of this server
	Now         func() timing.Moment
	LastApplied func() uint64 // index of the last entry that Raft has had applied here
	Storage     *storage.Storage
	Terms       Terms
	Stall       Stall // of what an election waits for too
	Snapshots   Stall // of writing snapshots of this member's own; see Engine.SnapshotStall
	Work        struct{ Writes, Snapshots stopwatch.Stopwatch }
	Lists       Lists // of members, in the log
	Saving      Saving
}

// NewDisk returns that of the server with this id.
func NewDisk(id uint64, l *lifecycle.Lifecycle, now func() timing.Moment, lastApplied func() uint64) *Disk {
	return &Disk{Lifecycle: l, ID: id, Now: now, LastApplied: lastApplied, Terms: Terms{Turn: wake.NewTurn()}, Saving: Saving{Turn: wake.NewTurn()}}
}

// Saving keeps this member's own snapshots and the leader's apart. If the leader's was installed while Raft was taking one
// of its own, Raft would think that its own, which is complete later, is the newest. As a leader it would then send the
// empty entry at the end of the other one (see transport.InstallSnapshot) as the entry that follows its own one.
type Saving struct {
	Turn       wake.Turn   // held while Raft takes or installs a snapshot
	Superseded atomic.Bool // a snapshot of the leader's waits for the turn, and covers all that this member has
	Installing atomic.Bool // a snapshot of the leader's is being installed
}

// Terms keeps Raft's main goroutine from beginning a term while a heartbeat is being
// handled in another goroutine.
type Terms struct {
	Newest atomic.Uint64 // the newest term that Raft has begun
	Turn   wake.Turn     // held while a heartbeat is handled or Newest is advanced
}

// During calls f, with no new term beginning meanwhile, and returns its result. It
// returns false without calling f if term is not the newest.
func (t *Terms) During(term uint64, f func() bool) bool {
	t.Turn.Take()
	defer t.Turn.Give()
	return term == t.Newest.Load() && f()
}

// Begin is called before Raft stores a term.
func (t *Terms) Begin(term uint64) {
	if term <= t.Newest.Load() { // has begun already
		return
	}
	t.Turn.Take()
	t.Newest.Store(term)
	t.Turn.Give()
}

// Stall measures how long the disk has been keeping this member waiting, in running time (see
// election.Contacts): Raft's main goroutine, and those that delete from the log, or write or receive a
// snapshot. A disk that is stuck there may let nothing else be written, and without snapshots the log has no end.
type Stall struct {
	mu    sync.Mutex
	began []int64 // timing.Moment.Running when each operation in progress began, also when it is part of another
}

// During runs f, which waits for the disk. at may lie ahead: until then the operation does not count.
func (s *Stall) During(at timing.Moment, f func() error) error {
	s.mu.Lock()
	s.began = append(s.began, at.Running)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		i := slices.Index(s.began, at.Running)
		s.began = slices.Delete(s.began, i, i+1)
		s.mu.Unlock()
	}()
	return f()
}

// Length returns how long the longest operation in progress has been taking, 0 if there is none.
func (s *Stall) Length(at timing.Moment) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.began) == 0 {
		return 0
	}
	return time.Duration(max(0, at.Running-slices.Min(s.began))) * time.Millisecond
}
