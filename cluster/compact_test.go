package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/memnet"
)

// TestTrailingLog: whatever makes a snapshot due, enough of the log is kept for a
// member that lags a little, and the number of entries is bounded too.
func TestTrailingLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig("")
		cfg.Peers, cfg.Network = map[uint64]string{1: "a:1"}, memnet.New().Host("a")
		cfg.SnapshotBytes = 3 << 20 // more entries than the 8,192 after which Raft would take one
		m, err := openMember(cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		<-m.Ready()
		perSnapshot := uint64(cfg.SnapshotBytes / entryCost) // entries, as short as these
		for i := range 5 * perSnapshot / 2 {
			if i == perSnapshot*9/10 {
				time.Sleep(10 * time.Minute)
				if newest, err := m.raft.storage.NewestSnapshot(); err != nil || newest.Index != 0 {
					t.Errorf("a snapshot of %d entries, before one is due: %v", newest.Index, err)
				}
			}
			done := make(outcome, 1)
			m.Propose(fsm.Nothing(), done, nil)
			if <-done == nil {
				t.Fatal("lost entry", i)
			}
		}
		time.Sleep(10 * time.Minute)
		newest, err := m.raft.storage.NewestSnapshot()
		if err != nil || newest.Index == 0 {
			t.Fatalf("no snapshot: %v", err)
		}
		first, _ := m.raft.storage.Log.FirstIndex()
		last, _ := m.raft.storage.Log.LastIndex()
		if newest.Index-first < perSnapshot*9/10 {
			t.Errorf("the log begins with entry %d, and the snapshot ends at %d", first, newest.Index)
		}
		if last-first > 3*perSnapshot {
			t.Errorf("the log has entries %d to %d", first, last)
		}
	})
}
