package storage

import (
	"errors"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestNothingIsWrittenAfterAFault has one write fail: all later ones fail with the
// same fault, and change nothing.
func TestNothingIsWrittenAfterAFault(t *testing.T) {
	fault := errors.New("the disk is broken")
	for n := range 4 {
		memory := NewMemory()
		writes := 0
		memory.SetFault(func() error {
			if writes++; writes == n+1 {
				return fault
			}
			return nil
		})
		s := &latchedStore{LogStore: memory.log, StableStore: memory.log}
		for i, write := range []func() error{
			func() error { return s.StoreLog(&raft.Log{Index: 1, Term: 1}) },
			func() error { return s.Set([]byte("key"), []byte("value")) },
			func() error { return s.SetUint64([]byte("number"), 1) },
			func() error { return s.StoreLogs(noops(2, 3, 1)) },
			func() error { return s.DeleteRange(1, 1) },
		} {
			if err := write(); (err == nil) != (i < n) || i >= n && err != fault {
				t.Errorf("write %d fails, write %d: %v", n, i, err)
			}
		}
		if writes != n+1 {
			t.Errorf("write %d fails, and %d are done", n, writes)
		}
		if first, err := s.FirstIndex(); first != min(1, uint64(n)) || err != nil {
			t.Errorf("write %d fails, and the log begins at %d: %v", n, first, err)
		}
	}
}

// failingDisk has writes fail as long as *fault is not nil.
type failingDisk struct {
	diskStore
	fault *error
}

func (d failingDisk) open(dir string, readOnly bool) (raftStore, error) {
	s, err := d.diskStore.open(dir, readOnly)
	return failingStore{s, d.fault}, err
}

type failingStore struct {
	raftStore
	fault *error
}

func (s failingStore) StoreLogs(logs []*raft.Log) error {
	if *s.fault != nil {
		return *s.fault
	}
	return s.raftStore.StoreLogs(logs)
}

// TestStorageIsLatched has a write fail on a disk that works again afterwards:
// nothing is written until the data directory is opened anew.
func TestStorageIsLatched(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		var fault error
		dir, broken := testkit.MemoryDir(t), errors.New("the disk is broken")
		disk.diskStore = failingDisk{disk.diskStore, &fault}
		m := start(t, disk.mustOpen(t, dir))
		fault = broken
		entries := noops(m.index+1, m.index+2, m.term)
		if err := m.s.Log.StoreLogs(entries); err != broken {
			t.Errorf("the write: %v", err)
		}
		fault = nil
		for name, err := range map[string]error{
			"the log":  m.s.Log.StoreLogs(entries),
			"the term": m.s.Stable.SetUint64([]byte(TermKey), 9),
			"the vote": m.s.Stable.Set([]byte(voteCandidateKey), []byte("b")),
			"a range":  m.s.Log.DeleteRange(1, 1),
		} {
			if err != broken {
				t.Errorf("%s: %v", name, err)
			}
		}
		m.stop()
		if r := disk.mustCheck(t, dir); r.FirstIndex != 1 || r.LastIndex != m.index {
			t.Errorf("%+v", r)
		}
		start(t, disk.mustOpen(t, dir)).stop()
	})
}
