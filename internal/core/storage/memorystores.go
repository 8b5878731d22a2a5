package storage

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// memoryLog is Raft's own store in memory, except that it accepts only what the stores on
// disk accept (see orderedLog). Raft deletes the entries before its own snapshot at the
// same time as it deletes the log for one that the leader sent. Raft's own store would
// then report the highest possible number as its last index, and loop over all numbers up
// to that when it next deletes the log.
type memoryLog struct {
	*raft.InmemStore
	writing sync.Mutex
}

// StoreLog implements raft.LogStore.
func (l *memoryLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (l *memoryLog) StoreLogs(logs []*raft.Log) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	return orderedLog{l.InmemStore}.StoreLogs(logs)
}

// DeleteRange implements raft.LogStore.
func (l *memoryLog) DeleteRange(first, last uint64) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	return orderedLog{l.InmemStore}.DeleteRange(first, last)
}

// memorySnapshots keeps the newest snapshot in memory. Raft's own store in memory
// lists a snapshot from its first byte on: after a crash while one was being
// received, the member would start with a part of the state.
type memorySnapshots struct {
	fault  atomic.Pointer[func() error] // see Memory.SetSnapshotFault
	mu     sync.Mutex
	newest *memorySnapshot // complete, or nil
}

// fails calls the fault, if there is one.
func (s *memorySnapshots) fails() error {
	if fault := s.fault.Load(); fault != nil {
		return (*fault)()
	}
	return nil
}

// memorySnapshot is a snapshot, or one that is being written (raft.SnapshotSink).
type memorySnapshot struct {
	store    *memorySnapshots
	meta     raft.SnapshotMeta
	contents bytes.Buffer
}

// Create implements raft.SnapshotStore.
func (s *memorySnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, configIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if err := s.fails(); err != nil {
		return nil, err
	}
	return &memorySnapshot{store: s, meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d", term, index), Index: index, Term: term, Configuration: c, ConfigurationIndex: configIndex,
	}}, nil
}

// List implements raft.SnapshotStore.
func (s *memorySnapshots) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil {
		return nil, nil
	}
	meta := s.newest.meta
	return []*raft.SnapshotMeta{&meta}, nil
}

// Open implements raft.SnapshotStore.
func (s *memorySnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil || s.newest.meta.ID != id {
		return nil, nil, fmt.Errorf("there is no snapshot %s", id)
	}
	meta := s.newest.meta
	return &meta, io.NopCloser(bytes.NewReader(s.newest.contents.Bytes())), nil
}

func (m *memorySnapshot) ID() string    { return m.meta.ID }
func (m *memorySnapshot) Cancel() error { return nil }

// Write implements io.Writer.
func (m *memorySnapshot) Write(p []byte) (int, error) {
	if err := m.store.fails(); err != nil {
		return 0, err
	}
	return m.contents.Write(p)
}

// Close makes the snapshot the newest, unless a newer one has come from the
// leader meanwhile.
func (m *memorySnapshot) Close() error {
	if err := m.store.fails(); err != nil {
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
