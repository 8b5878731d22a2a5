package storage

import (
	"errors"
	"testing"

	"github.com/hashicorp/raft"
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
		faulty := faultyStore{memory.log, memory}
		s := &latchedStore{LogStore: faulty, StableStore: faulty}
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
