package engine

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/stopwatch"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// disk is this server's storage, and what is observed of it. It knows nothing of Raft, which writes
// to it through [guardedStore] and [watchedSnapshots]. It is safe for concurrent use once storage is set.
type disk struct {
	id        uint64 // of this server
	storage   *storage.Storage
	terms     terms
	stall     stall // of what an election waits for too
	snapshots stall // of writing snapshots of this member's own; see Engine.SnapshotStall
	work      struct{ writes, snapshots stopwatch.Stopwatch }
	lists     lists // of members, in the log
	saving    saving
	unwritten atomic.Pointer[error] // why a snapshot could not be written, the last time
}

// saving keeps this member's own snapshots and the leader's apart. If the leader's was installed while Raft was taking one
// of its own, Raft would think that its own, which is complete later, is the newest. As a leader it would then send the
// empty entry at the end of the other one (see transport.InstallSnapshot) as the entry that follows its own one.
type saving struct {
	turn       wake.Turn   // held while Raft takes or installs a snapshot
	superseded atomic.Bool // a snapshot of the leader's waits for the turn, and covers all that this member has
	installing atomic.Bool // a snapshot of the leader's is being installed
}

// terms keeps Raft's main goroutine from beginning a term while a heartbeat is being
// handled in another goroutine.
type terms struct {
	newest atomic.Uint64 // the newest term that Raft has begun
	turn   wake.Turn     // held while a heartbeat is handled or newest is advanced
}

func newTerms() terms { return terms{turn: wake.NewTurn()} }

// during calls f, with no new term beginning meanwhile, and returns its result. It
// returns false without calling f if term is not the newest.
func (t *terms) during(term uint64, f func() bool) bool {
	t.turn.Take()
	defer t.turn.Give()
	return term == t.newest.Load() && f()
}

// begin is called before Raft stores a term.
func (t *terms) begin(term uint64) {
	if term <= t.newest.Load() { // has begun already
		return
	}
	t.turn.Take()
	t.newest.Store(term)
	t.turn.Give()
}

// stall measures how long the disk has been keeping this member waiting, in running time (see
// contacts): Raft's main goroutine, and those that delete from the log, or write or receive a
// snapshot. A disk that is stuck there may let nothing else be written, and without snapshots the log has no end.
type stall struct {
	mu    sync.Mutex
	began []int64 // moment.ran when each operation in progress began, also when it is part of another
}

// write runs f, which waits for the disk and begins at the given moment. With a later moment, f is
// given the time until then.
func (s *stall) write(at timing.Moment, f func() error) error {
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

// length returns how long the longest operation in progress has been taking, 0 if there is none.
func (s *stall) length(at timing.Moment) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.began) == 0 {
		return 0
	}
	return time.Duration(max(0, at.Running-slices.Min(s.began))) * time.Millisecond
}
