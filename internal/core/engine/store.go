package engine

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
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
)

// guardedStore turns a failed write, or damage that is read, into a fault of this member (see [Member.Err]).
// Raft by itself panics when it cannot store its term, and starts one election after
// another when it cannot store its log. A leader that cannot read its log, or its snapshot, would lead on, and the
// members that need it would never catch up.
type guardedStore struct {
	raft.LogStore
	raft.StableStore
	*Lifecycle
	disk   *disk
	now    func() timing.Moment
	passed func() uint64   // index of the last entry that Raft has had applied here
	cut    <-chan struct{} // closed when nothing can be sent any more; nil if there is nobody to send to
}

// newGuardedStore returns a store that writes to d.
func newGuardedStore(d *disk, l *Lifecycle, now func() timing.Moment, passed func() uint64, cut <-chan struct{}) guardedStore {
	return guardedStore{d.storage.Log, d.storage.Stable, l, d, now, passed, cut}
}

func (s guardedStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s guardedStore) StoreLogs(logs []*raft.Log) error {
	if s.Killed.Load() {
		return ErrClosed
	}
	if err := s.follows(logs[0].Index); err != nil {
		return err
	}
	began, before := time.Now(), s.Broken.Load()
	err := s.disk.stall.write(s.now(), func() error { return s.LogStore.StoreLogs(logs) })
	if err != nil {
		s.CannotWrite(s.disk.storage, err)
		if before {
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		return err
	}
	s.disk.work.writes.Since(began)
	for _, l := range logs {
		s.disk.lists.note(l, storage.ServerID(s.disk.id))
	}
	return nil
}

// GetLog implements raft.LogStore. Raft reads the whole log with it when it starts.
func (s guardedStore) GetLog(index uint64, l *raft.Log) error {
	err := s.LogStore.GetLog(index, l)
	if err == nil {
		s.disk.lists.note(l, storage.ServerID(s.disk.id))
	} else if !errors.Is(err, raft.ErrLogNotFound) {
		s.CannotRead(s.disk.storage, err)
	}
	return err
}

// follows returns an error if an entry with this index would leave a gap in the log, or between the newest snapshot and
// the log. If the log is empty, it also refuses an entry before the end of that snapshot: the entry has come late, and the
// one after the snapshot's end, which the leader sends next, would leave a gap.
func (s guardedStore) follows(index uint64) error {
	last, err := s.LastIndex()
	if err != nil {
		return err
	}
	if last == 0 {
		newest, err := s.newestSnapshot()
		if err != nil {
			return err
		}
		if last = newest.Index; index < last && last <= s.passed() {
			return fmt.Errorf("cluster: entry %d is before the end of the snapshot, %d", index, last)
		}
	}
	if index > last+1 {
		return fmt.Errorf("cluster: entry %d does not follow entry %d", index, last)
	}
	return nil
}

func (s guardedStore) newestSnapshot() (raft.SnapshotMeta, error) {
	newest, err := s.disk.newestSnapshot(s.now())
	if err != nil {
		s.CannotRead(s.disk.storage, fmt.Errorf("snapshot: %w", err))
	}
	return newest, err
}

// newestSnapshot is [storage.Storage.NewestSnapshot], which reads files.
func (d *disk) newestSnapshot(now timing.Moment) (newest raft.SnapshotMeta, err error) {
	err = d.stall.write(now, func() error {
		newest, err = d.storage.NewestSnapshot()
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
func (s guardedStore) DeleteRange(first, last uint64) error {
	if s.Killed.Load() {
		return ErrClosed
	}
	newest, err := s.newestSnapshot()
	if err != nil {
		return err
	}
	if at := max(first, newest.Index+1); at <= min(last, s.passed()) {
		err := fmt.Errorf("%s: the leader has another entry %d than the one that this member has applied: %w", s.disk.storage.Name, at, election.ErrDiffers)
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
	err = s.disk.stall.write(s.now(), func() error { return s.LogStore.DeleteRange(first, last) })
	if err != nil {
		s.CannotWrite(s.disk.storage, err)
		return err
	}
	s.disk.lists.deleted(first, last)
	return nil
}

// endsWithOther reports whether the log ends where the snapshot newest does, but with an
// entry of another term. That entry was never committed. Raft deletes it only to store
// the leader's in its place, and no store takes an entry with an index that it has.
func (s guardedStore) endsWithOther(newest raft.SnapshotMeta) (bool, error) {
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
// It is asked when the snapshot has come, and again before Raft's main goroutine installs it (see watchedSnapshots): that may
// have been storing the entries that the snapshot covers.
func (d *disk) hasAll(now timing.Moment, applied, index, term uint64) bool {
	var end raft.Log
	if d.storage.Log.GetLog(index, &end) == nil {
		return end.Term == term
	}
	newest, err := d.newestSnapshot(now)
	if err != nil || newest.Index == 0 || newest.Index > applied {
		return false
	}
	return newest.Index > index || newest.Index == index && newest.Term == term
}

func (s guardedStore) Set(key, val []byte) error {
	return s.stable(func() error { return s.StableStore.Set(key, val) })
}

// begin notes that a term begins, if it is that which is to be stored.
func (s guardedStore) begin(key []byte, val uint64) {
	if string(key) == storage.TermKey {
		s.disk.terms.begin(val)
	}
}

func (s guardedStore) SetUint64(key []byte, val uint64) error {
	s.begin(key, val)
	if string(key) == storage.TermKey {
		// While Raft starts, it stores the term that it has just read. If that
		// failed, stable would wait for Close, which nobody can call before Start
		// returns.
		if stored, err := s.disk.storage.Term(); err == nil && stored == val {
			return nil
		}
	}
	return s.stable(func() error { return s.StableStore.SetUint64(key, val) })
}

func (s guardedStore) stable(store func() error) error {
	err := ErrClosed
	if !s.Killed.Load() {
		err = s.disk.stall.write(s.now(), store)
	}
	if err == nil {
		return nil
	}
	s.CannotWrite(s.disk.storage, err)
	// The owner of this member closes it because of the fault. Block until then:
	// Raft must not continue with a term or vote that is not stored, and it would
	// panic on an error. Wait also until nothing can be sent any more, since a vote
	// that is sent but not stored could be given twice.
	<-s.Stop
	if s.cut != nil {
		<-s.cut
	}
	return nil
}

// recentLog is Raft's log. It keeps the newest entries also in memory. A leader that sends an
// entry, and a follower that applies it, takes it from there instead of reading it from the
// log and comparing its checksums. raft.LogCache limits only their number.
type recentLog struct {
	raft.LogStore
	life    *Lifecycle
	started atomic.Bool // Raft has started

	mu    sync.RWMutex
	kept  []*raft.Log // in the order in which they were stored
	bytes int         // of their data
}

// The newest entry is kept whatever its size.
const (
	RecentEntries = 16
	recentBytes   = 8 << 20
)

func newRecentLog(log raft.LogStore, l *Lifecycle) *recentLog {
	return &recentLog{LogStore: log, life: l}
}

// GetLog implements raft.LogStore. If an entry cannot be read, this member has failed, and its owner closes it. GetLog waits
// for that, and ends Raft's goroutine, which would panic if it is about to apply the entry.
func (r *recentLog) GetLog(index uint64, l *raft.Log) error {
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
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) && r.started.Load() && r.life.Over.Load() {
		<-r.life.Stop
		runtime.Goexit()
	}
	return err
}

// last returns the newest entry, or nil if it is not kept.
func (r *recentLog) last() *raft.Log {
	if r == nil {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.kept) == 0 {
		return nil
	}
	return r.kept[len(r.kept)-1]
}

// StoreLog implements raft.LogStore.
func (r *recentLog) StoreLog(l *raft.Log) error { return r.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (r *recentLog) StoreLogs(logs []*raft.Log) error {
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

// DeleteRange implements raft.LogStore.
func (r *recentLog) DeleteRange(first, last uint64) error {
	r.forget()
	return r.LogStore.DeleteRange(first, last)
}

// forget has all entries read from the log again.
func (r *recentLog) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept, r.bytes = nil, 0
}

// watchedSnapshots is a snapshot store that measures how long snapshots take, and notes why
// one could not be written. It gives up a snapshot that one of the leader's supersedes, and one of the leader's that
// this member does not need.
//
// A disk that is stuck while a snapshot is written counts as stuck, as for the log. A slow one gets on: what counts is how
// long it needs for one part of the snapshot, not for all of it.
type watchedSnapshots struct {
	raft.SnapshotStore
	*Lifecycle
	disk    *disk
	now     func() timing.Moment
	passed  func() uint64 // see guardedStore
	silence time.Duration // see times
}

// MaxSnapshotPart is how many bytes of a snapshot the disk is given at once. It counts as stuck if it
// needs longer than an election timeout for them.
const MaxSnapshotPart = 512 << 10

// write has the disk do a part of a snapshot, for which it syncs so many files, one after the other.
func (s watchedSnapshots) write(syncs int, f func() error) error {
	at := s.now()
	at.Running += int64(syncs-1) * s.silence.Milliseconds()
	err := s.disk.snapshots.write(at, f)
	if err != nil {
		s.disk.unwritten.Store(&err)
	}
	return err
}

func (s watchedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	if s.disk.saving.installing.Load() && s.disk.hasAll(s.now(), s.passed(), index, term) {
		return nil, errNeedless
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

// List implements raft.SnapshotStore.
func (s watchedSnapshots) List() ([]*raft.SnapshotMeta, error) {
	list, err := s.SnapshotStore.List()
	if err != nil {
		s.CannotRead(s.disk.storage, fmt.Errorf("snapshot: %w", err))
	}
	return list, err
}

// Open implements raft.SnapshotStore. A snapshot that is not there may have been replaced by a newer one
// meanwhile, unless it is still the newest.
func (s watchedSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, state, err := s.SnapshotStore.Open(id)
	replaced := false
	if errors.Is(err, fs.ErrNotExist) {
		list, _ := s.List()
		replaced = len(list) == 0 || list[0].ID != id
	}
	if err != nil && !replaced {
		s.CannotRead(s.disk.storage, fmt.Errorf("snapshot %s: %w", id, err))
	}
	return meta, state, err
}

type watchedSink struct {
	raft.SnapshotSink
	store watchedSnapshots
	began time.Time
}

func (s watchedSink) Write(p []byte) (n int, err error) {
	for part := range slices.Chunk(p, MaxSnapshotPart) {
		if s.store.disk.saving.superseded.Load() {
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
		s.store.disk.work.snapshots.Since(s.began)
	}
	return err
}
