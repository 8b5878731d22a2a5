package storage

import (
	"sync"

	"github.com/hashicorp/raft"
)

// latchedStore writes nothing after a write has failed: every later one returns
// the same error. A database whose sync failed does not know what the disk
// holds. Its next write could overwrite pages that the disk still needs after a
// loss of power.
type latchedStore struct {
	raft.LogStore
	raft.StableStore
	mu    sync.Mutex
	fault error // of the first write that failed
}

func (s *latchedStore) write(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault == nil {
		s.fault = f()
	}
	return s.fault
}

func (s *latchedStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s *latchedStore) StoreLogs(logs []*raft.Log) error {
	return s.write(func() error { return s.LogStore.StoreLogs(logs) })
}

func (s *latchedStore) DeleteRange(first, last uint64) error {
	return s.write(func() error { return s.LogStore.DeleteRange(first, last) })
}

func (s *latchedStore) Set(key, val []byte) error {
	return s.write(func() error { return s.StableStore.Set(key, val) })
}

func (s *latchedStore) SetUint64(key []byte, val uint64) error {
	return s.write(func() error { return s.StableStore.SetUint64(key, val) })
}
