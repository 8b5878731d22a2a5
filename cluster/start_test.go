package cluster

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// openMember creates a member and starts it.
func openMember(cfg Config, replica *fsm.Replica) (*Member, error) {
	m := New(cfg, replica)
	if err := m.Start(); err != nil {
		return nil, err
	}
	return m, nil
}

// TestFaultAtStart: if a write fails while a member starts, Start returns, and its
// error or the member's fault names the storage and the cause.
func TestFaultAtStart(t *testing.T) {
	fault := errors.New("the disk is broken")
	for _, formed := range []bool{false, true} {
		for n := 1; n <= 4; n++ {
			t.Run(fmt.Sprintf("write %d, formed %v", n, formed), func(t *testing.T) {
				cfg := testConfig("")
				cfg.Memory = storage.NewMemory()
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
					m, err := openMember(cfg, fsm.NewReplica())
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

func testConfig(dir string) Config {
	return Config{ID: 1, Dir: dir, Tick: time.Second, ReapInterval: time.Minute, SnapshotBytes: 1 << 20, Log: testkit.Quiet}
}

// addresses returns the peer ports of servers with the ids 1 to count, on the hosts a, b and so on.
func addresses(count int) map[uint64]string {
	peers := map[uint64]string{}
	for i := range count {
		peers[uint64(i+1)] = string(rune('a'+i)) + ":1"
	}
	return peers
}

// memberConfig is testConfig for a member of a cluster, with a disk in memory.
func memberConfig(id uint64, peers map[uint64]string, network Network) Config {
	cfg := testConfig("")
	cfg.ID, cfg.Peers, cfg.Network, cfg.Memory = id, listOf(peers), network, storage.NewMemory()
	return cfg
}

// openReady opens a member, waits until it leads, and closes it.
func openReady(t *testing.T, cfg Config) {
	t.Helper()
	m, err := openMember(cfg, fsm.NewReplica())
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.Ready():
	case err := <-m.Err():
		t.Error(err)
	case <-time.After(time.Minute):
		t.Error("never ready")
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// TestStartsSoon: members of a new cluster that start at the same time soon serve clients
// and have their votes.
func TestStartsSoon(t *testing.T) {
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			threeMembers(t, memnet.New(), new(testkit.Log))
			if took := time.Since(began); took > 500*time.Millisecond {
				t.Errorf("they are ready after %v", took)
			}
		})
	}
}
