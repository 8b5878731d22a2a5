package cluster

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
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

// TestFaultAtStart has one write fail while a member starts: Open returns, and it
// or the member names the store and the fault.
func TestFaultAtStart(t *testing.T) {
	fault := errors.New("the disk is broken")
	for _, formed := range []bool{false, true} {
		for n := 1; n <= 4; n++ {
			t.Run(fmt.Sprintf("write %d, formed %v", n, formed), func(t *testing.T) {
				cfg := testConfig("")
				cfg.Memory = NewMemory()
				if formed {
					openReady(t, cfg)
				}
				var writes atomic.Int64
				cfg.Memory.SetFault(func() error {
					if writes.Add(1) == int64(n) {
						return fault
					}
					return nil
				})
				ended := make(chan error, 1)
				go func() {
					m, err := Open(cfg, fsm.NewReplica())
					if err == nil {
						select {
						case err = <-m.Err():
						case <-m.Ready():
						}
						m.Close()
					}
					ended <- err
				}()
				select {
				case err := <-ended:
					if err == nil && writes.Load() < int64(n) { // a start has fewer writes
						return
					}
					if err == nil || !errors.Is(err, fault) || !strings.Contains(err.Error(), "memory") {
						t.Errorf("the fault is %v", err)
					}
				case <-time.After(10 * time.Second):
					t.Fatal("it hangs")
				}
			})
		}
	}
}
