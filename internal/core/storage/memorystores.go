package storage

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// memoryLog is Raft's own store in memory, except that it accepts only what the stores on
// disk accept (see orderedLog). Raft deletes the entries before its own snapshot at the
// same time as it deletes the log for one that the leader sent. Raft's own store would
// then report the highest possible number as its last index, and loop over all numbers up
// to that when it next deletes the log.
//
// Before each write it calls the fault, if there is one; see Memory.SetFault.
type memoryLog struct {
	*raft.InmemStore
	fault   fault
	writing sync.Mutex
}

// fault is what is called before a write.
type fault struct{ f atomic.Pointer[func() error] }

func (x *fault) set(f func() error) { x.f.Store(&f) }

func (x *fault) call() error {
	if f := x.f.Load(); f != nil && *f != nil {
		return (*f)()
	}
	return nil
}

func (l *memoryLog) write(f func() error) error {
	if err := l.fault.call(); err != nil {
		return err
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	return f()
}

func (l *memoryLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

func (l *memoryLog) StoreLogs(logs []*raft.Log) error {
	return l.write(func() error { return orderedLog{l.InmemStore}.StoreLogs(logs) })
}

func (l *memoryLog) DeleteRange(first, last uint64) error {
	return l.write(func() error { return orderedLog{l.InmemStore}.DeleteRange(first, last) })
}

func (l *memoryLog) Set(key, val []byte) error {
	return l.write(func() error { return l.InmemStore.Set(key, val) })
}

func (l *memoryLog) SetUint64(key []byte, val uint64) error {
	return l.write(func() error { return l.InmemStore.SetUint64(key, val) })
}

// memorySnapshots keeps the newest snapshot in memory. Raft's own store in memory
// lists a snapshot from its first byte on: after a crash while one was being
// received, the member would start with a part of the state.
type memorySnapshots struct {
	fault  fault // see Memory.SetSnapshotFault
	mu     sync.Mutex
	newest *memorySnapshot // complete, or nil
}

// memorySnapshot is a snapshot, or one that is being written (raft.SnapshotSink).
type memorySnapshot struct {
	store    *memorySnapshots
	meta     raft.SnapshotMeta
	contents bytes.Buffer
}

func (s *memorySnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, configIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if err := s.fault.call(); err != nil {
		return nil, err
	}
	return &memorySnapshot{store: s, meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d", term, index), Index: index, Term: term, Configuration: c, ConfigurationIndex: configIndex,
	}}, nil
}

func (s *memorySnapshots) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil {
		return nil, nil
	}
	meta := s.newest.meta
	return []*raft.SnapshotMeta{&meta}, nil
}

func (s *memorySnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil || s.newest.meta.ID != id {
		return nil, nil, fmt.Errorf("snapshot %s: %w", id, fs.ErrNotExist)
	}
	meta := s.newest.meta
	return &meta, io.NopCloser(bytes.NewReader(s.newest.contents.Bytes())), nil
}

func (m *memorySnapshot) ID() string    { return m.meta.ID }
func (m *memorySnapshot) Cancel() error { return nil }

func (m *memorySnapshot) Write(p []byte) (int, error) {
	if err := m.store.fault.call(); err != nil {
		return 0, err
	}
	return m.contents.Write(p)
}

// Close makes the snapshot the newest, unless a newer one has come from the
// leader meanwhile.
func (m *memorySnapshot) Close() error {
	if err := m.store.fault.call(); err != nil {
		return err
	}
	m.store.mu.Lock()
	defer m.store.mu.Unlock()
	m.meta.Size = int64(m.contents.Len())
	if m.store.newest == nil || m.store.newest.meta.Index <= m.meta.Index {
		m.store.newest = m
	}
	return nil
}
