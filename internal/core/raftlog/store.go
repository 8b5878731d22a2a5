package raftlog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// errBroken marks errors of writes that follow a failed one. The first failure was reported, so that Raft need not log
// the same at each attempt of the leader.
var errBroken = errors.New("cluster: an earlier write has failed")

// errSuperseded is why a snapshot of this member's own is given up.
var errSuperseded = errors.New("cluster: the leader has sent a newer snapshot")

// ErrNeedless is why a snapshot of the leader's is not installed.
var ErrNeedless = errors.New("cluster: this member has all that the snapshot covers")

// GuardedStore is a disk's log and stable store. It turns a failed write, or damage that is read, into a fault of this
// member (see lifecycle.Lifecycle.Errs). Raft by itself panics when it cannot store its term, and starts one election after
// another when it cannot store its log. A leader that cannot read its log, or its snapshot, would lead on, and the
// members that need it would never catch up.
type GuardedStore struct {
	raft.LogStore
	raft.StableStore
	*Disk
	Cut <-chan struct{} // closed when nothing can be sent any more; nil if there is nobody to send to
}

func (s GuardedStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s GuardedStore) StoreLogs(logs []*raft.Log) error {
	if s.Killed.Load() {
		return lifecycle.ErrClosed
	}
	if err := s.follows(logs[0].Index); err != nil {
		return err
	}
	began, before := time.Now(), s.Broken.Load()
	err := s.Stall.During(s.Now(), func() error { return s.LogStore.StoreLogs(logs) })
	if err != nil {
		s.CannotWrite(s.Storage, err)
		if before {
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		return err
	}
	s.Work.Writes.Since(began)
	for _, l := range logs {
		s.Lists.note(l, storage.ServerID(s.ID))
	}
	return nil
}

// GetLog implements raft.LogStore. Raft reads the whole log with it when it starts.
func (s GuardedStore) GetLog(index uint64, l *raft.Log) error {
	err := s.LogStore.GetLog(index, l)
	if err == nil {
		s.Lists.note(l, storage.ServerID(s.ID))
	} else if !errors.Is(err, raft.ErrLogNotFound) {
		s.CannotRead(s.Storage, err)
	}
	return err
}

// follows returns an error if an entry with this index would leave a gap in the log, or between the newest snapshot and
// the log. If the log is empty, it also refuses an entry before the end of that snapshot: the entry has come late, and the
// one after the snapshot's end, which the leader sends next, would leave a gap.
func (s GuardedStore) follows(index uint64) error {
	last, err := s.LastIndex()
	if err != nil {
		return err
	}
	if last == 0 {
		newest, err := s.newestSnapshot()
		if err != nil {
			return err
		}
		if last = newest.Index; index < last && last <= s.LastApplied() {
			return fmt.Errorf("cluster: entry %d is before the end of the snapshot, %d", index, last)
		}
	}
	if index > last+1 {
		return fmt.Errorf("cluster: entry %d does not follow entry %d", index, last)
	}
	return nil
}

func (s GuardedStore) newestSnapshot() (raft.SnapshotMeta, error) {
	newest, err := s.NewestSnapshot()
	if err != nil {
		s.CannotRead(s.Storage, fmt.Errorf("snapshot: %w", err))
	}
	return newest, err
}

// NewestSnapshot is [storage.Storage.NewestSnapshot], which reads files.
func (d *Disk) NewestSnapshot() (newest raft.SnapshotMeta, err error) {
	err = d.Stall.During(d.Now(), func() error {
		newest, err = d.Storage.NewestSnapshot()
		return err
	})
	return newest, err
}

// DeleteRange keeps the last entry that the newest snapshot covers. When the log
// continues after the snapshot, Raft looks for that entry's term in the log only, and
// without the term it refuses what the leader sends next.
//
// It deletes no entry that has been applied here and is not in a snapshot. Only a leader that
// lacks what was acknowledged would have it replaced, and there must be none. If there is,
// this member ends and keeps what it has.
func (s GuardedStore) DeleteRange(first, last uint64) error {
	if s.Killed.Load() {
		return lifecycle.ErrClosed
	}
	newest, err := s.newestSnapshot()
	if err != nil {
		return err
	}
	if at := max(first, newest.Index+1); at <= min(last, s.LastApplied()) {
		err := fmt.Errorf("%s: the leader has another entry %d than the one that this member has applied: %w", s.Storage.Name, at, election.ErrDiffers)
		s.Fail(err)
		return err
	}
	if last == newest.Index {
		replaced, err := s.endsWithOther(newest)
		if err != nil {
			return err
		}
		if !replaced {
			last--
		}
	}
	if first > last {
		return nil
	}
	err = s.Stall.During(s.Now(), func() error { return s.LogStore.DeleteRange(first, last) })
	if err != nil {
		s.CannotWrite(s.Storage, err)
		return err
	}
	s.Lists.deleted(first, last)
	return nil
}

// endsWithOther reports whether the log ends where the snapshot newest does, but with an
// entry of another term. That entry was never committed. Raft deletes it only to store
// the leader's in its place, and no store takes an entry with an index that it has.
func (s GuardedStore) endsWithOther(newest raft.SnapshotMeta) (bool, error) {
	if end, err := s.LastIndex(); err != nil || end != newest.Index || end == 0 {
		return false, err
	}
	var l raft.Log
	err := s.GetLog(newest.Index, &l)
	return l.Term != newest.Term, err
}

// hasAll reports whether this member has all that a snapshot of the leader's covers, in its log or in its own newest snapshot:
// the leader's has come late. Raft would install it, and take the list of members in it for the newest one, even if the log
// has a later one. If the own one ends later, but only barriers are between them, Raft would also take back what it has
// applied, and end the process when it does not find the entries after that in the log.
//
// Raft's main goroutine asks it before it installs a snapshot (see WatchedSnapshots). Until then it may store the entries that
// the snapshot covers.
func (d *Disk) hasAll(index, term uint64) bool {
	var end raft.Log
	if d.Storage.Log.GetLog(index, &end) == nil {
		return end.Term == term
	}
	newest, err := d.NewestSnapshot()
	if err != nil || newest.Index == 0 || newest.Index > d.LastApplied() {
		return false
	}
	return newest.Index > index || newest.Index == index && newest.Term == term
}

func (s GuardedStore) Set(key, val []byte) error {
	return s.stable(func() error { return s.StableStore.Set(key, val) })
}

func (s GuardedStore) SetUint64(key []byte, val uint64) error {
	if string(key) == storage.TermKey {
		// While Raft starts, it stores the term that it has just read. If that
		// failed, stable would wait for Close, which nobody can call before Start
		// returns.
		if stored, err := s.Storage.Term(); err == nil && stored == val {
			return nil
		}
	}
	return s.stable(func() error { return s.StableStore.SetUint64(key, val) })
}

func (s GuardedStore) stable(store func() error) error {
	err := lifecycle.ErrClosed
	if !s.Killed.Load() {
		err = s.Stall.During(s.Now(), store)
	}
	if err == nil {
		return nil
	}
	s.CannotWrite(s.Storage, err)
	// The owner of this member closes it because of the fault. Block until then:
	// Raft must not continue with a term or vote that is not stored, and it would
	// panic on an error. Wait also until nothing can be sent any more, since a vote
	// that is sent but not stored could be given twice.
	<-s.Stop
	if s.Cut != nil {
		<-s.Cut
	}
	return nil
}

// RecentLog is Raft's log. It keeps the newest entries also in memory. A leader that sends an
// entry, and a follower that applies it, takes it from there instead of reading it from the
// log and comparing its checksums. raft.LogCache limits only their number.
type RecentLog struct {
	raft.LogStore
	life    *lifecycle.Lifecycle
	Started atomic.Bool // Raft has started

	mu    sync.RWMutex
	kept  []*raft.Log // in the order in which they were stored
	bytes int         // of their data
}

// The newest entry is kept whatever its size.
const (
	RecentEntries = 16
	recentBytes   = 8 << 20
)

// NewRecentLog returns the RecentLog of a log.
func NewRecentLog(log raft.LogStore, l *lifecycle.Lifecycle) *RecentLog {
	return &RecentLog{LogStore: log, life: l}
}

// GetLog implements raft.LogStore. If an entry cannot be read, this member has failed, and its owner closes it. GetLog waits
// for that, and ends Raft's goroutine, which would panic if it is about to apply the entry.
func (r *RecentLog) GetLog(index uint64, l *raft.Log) error {
	r.mu.RLock()
	for _, x := range slices.Backward(r.kept) {
		if x.Index == index {
			*l = *x
			r.mu.RUnlock()
			return nil
		}
	}
	r.mu.RUnlock()
	err := r.LogStore.GetLog(index, l)
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) && r.Started.Load() && r.life.Failed.Load() {
		<-r.life.Stop
		runtime.Goexit()
	}
	return err
}

// Last returns the newest entry, or nil if it is not kept.
func (r *RecentLog) Last() *raft.Log {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.kept) == 0 {
		return nil
	}
	return r.kept[len(r.kept)-1]
}

func (r *RecentLog) StoreLog(l *raft.Log) error { return r.StoreLogs([]*raft.Log{l}) }

func (r *RecentLog) StoreLogs(logs []*raft.Log) error {
	if err := r.LogStore.StoreLogs(logs); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range logs {
		r.kept, r.bytes = append(r.kept, l), r.bytes+len(l.Data)
	}
	drop := 0
	for n := len(r.kept); n-drop > RecentEntries || r.bytes > recentBytes && n-drop > 1; drop++ {
		r.bytes -= len(r.kept[drop].Data)
	}
	r.kept = slices.Delete(r.kept, 0, drop)
	return nil
}

func (r *RecentLog) DeleteRange(first, last uint64) error {
	r.Forget()
	return r.LogStore.DeleteRange(first, last)
}

// Forget has all entries read from the log again.
func (r *RecentLog) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept, r.bytes = nil, 0
}

// WatchedSnapshots is a snapshot store that measures how long snapshots take. That one of the leader's cannot be written is
// this member's fault. The store gives up a snapshot that one of the leader's supersedes, and one of the leader's that
// this member does not need.
//
// A disk that is stuck while a snapshot is written counts as stuck, as for the log. A slow one gets on: what counts is how
// long it needs for one part of the snapshot, not for all of it.
type WatchedSnapshots struct {
	raft.SnapshotStore
	*Disk
	ElectionTimeout time.Duration
}

// MaxSnapshotPart is how many bytes of a snapshot the disk is given at once. It counts as stuck if it
// needs longer than an election timeout for them.
const MaxSnapshotPart = 512 << 10

// write has the disk do a part of a snapshot, for which it syncs so many files, one after the other.
func (s WatchedSnapshots) write(syncs int, f func() error) error {
	at := s.Now()
	at.Running += int64(syncs-1) * s.ElectionTimeout.Milliseconds()
	err := s.Snapshots.During(at, f)
	// Raft only returns the error to the leader, which would send the snapshot for ever. If only a file descriptor
	// is missing, it may.
	if err != nil && s.Saving.Installing.Load() && !storage.OutOfFiles(err) {
		s.CannotWrite(s.Storage, err)
	}
	return err
}

func (s WatchedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	if s.Saving.Installing.Load() && s.hasAll(index, term) {
		return nil, ErrNeedless
	}
	w := watchedSink{store: s, began: time.Now()}
	err := s.write(storage.SnapshotSyncs, func() (err error) {
		w.SnapshotSink, err = s.SnapshotStore.Create(version, index, term, c, configurationIndex, trans)
		return err
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (s WatchedSnapshots) List() ([]*raft.SnapshotMeta, error) {
	list, err := s.SnapshotStore.List()
	if err != nil {
		s.CannotRead(s.Storage, fmt.Errorf("snapshot: %w", err))
	}
	return list, err
}

// Open implements raft.SnapshotStore. A snapshot that is not there may have been replaced by a newer one
// meanwhile, unless it is still the newest.
func (s WatchedSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, state, err := s.SnapshotStore.Open(id)
	replaced := false
	if errors.Is(err, fs.ErrNotExist) {
		list, _ := s.List()
		replaced = len(list) == 0 || list[0].ID != id
	}
	if err != nil && !replaced {
		s.CannotRead(s.Storage, fmt.Errorf("snapshot %s: %w", id, err))
	}
	return meta, state, err
}

type watchedSink struct {
	raft.SnapshotSink
	store WatchedSnapshots
	began time.Time
}

func (s watchedSink) Write(p []byte) (n int, err error) {
	for part := range slices.Chunk(p, MaxSnapshotPart) {
		if s.store.Saving.Superseded.Load() {
			return n, errSuperseded
		}
		err := s.store.write(1, func() error {
			m, err := s.SnapshotSink.Write(part)
			n += m
			return err
		})
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func (s watchedSink) Close() error {
	err := s.store.write(storage.SnapshotSyncs, s.SnapshotSink.Close)
	if err == nil {
		s.store.Work.Snapshots.Since(s.began)
	}
	return err
}
