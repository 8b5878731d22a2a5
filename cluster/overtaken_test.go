package cluster

import (
	"errors"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/storage"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestOvertaken puts beside a snapshot what a crash leaves of the log while the
// leader's snapshot takes its place: an older log, or one of another term. It
// must go, and what is appended after must follow the snapshot without a gap.
func TestOvertaken(t *testing.T) {
	for name, logs := range map[string]func(snapshot uint64) []*raft.Log{
		"older": func(uint64) []*raft.Log {
			return []*raft.Log{{Index: 1, Term: 1, Type: raft.LogNoop}, {Index: 2, Term: 1, Type: raft.LogNoop}}
		},
		"of another term": func(snapshot uint64) (all []*raft.Log) {
			for i := uint64(1); i <= snapshot+3; i++ {
				all = append(all, &raft.Log{Index: i, Term: 1, Type: raft.LogNoop})
			}
			return all
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t.TempDir())
			cfg.SnapshotBytes = 1
			write := func(n int) {
				replica := fsm.NewReplica()
				m, err := Open(cfg, replica)
				if err != nil {
					t.Fatal(err)
				}
				<-m.Ready()
				for range n {
					done := make(result, 1)
					m.Propose(fsm.OpenSession(1, 0, 1000, session.Password{1}), done, nil)
					if err := <-done; err != nil {
						t.Fatal(err)
					}
				}
				if err := m.Close(); err != nil {
					t.Fatal(err)
				}
			}
			write(20)
			cfg.SnapshotBytes = 1 << 30
			before, err := storage.Check(cfg.Dir)
			if err != nil || before.SnapshotIndex == 0 {
				t.Fatalf("%+v, %v", before, err)
			}
			s, err := storage.Open(cfg.Dir, cfg.ID, cfg.Log, hclog.NewNullLogger())
			if err != nil {
				t.Fatal(err)
			}
			err = errors.Join(s.Log.DeleteRange(before.FirstIndex, before.LastIndex), s.Log.StoreLogs(logs(before.SnapshotIndex)), s.Close())
			if err != nil {
				t.Fatal(err)
			}
			r, err := storage.Check(cfg.Dir)
			if err != nil || r.FirstIndex != 0 || r.SnapshotIndex != before.SnapshotIndex {
				t.Fatalf("%+v, %v", r, err)
			}
			write(5)
			after, err := storage.Check(cfg.Dir)
			if err != nil || after.Sessions != r.Sessions+5 || after.FirstIndex != r.SnapshotIndex+1 {
				t.Errorf("%+v, before %+v, %v", after, r, err)
			}
		})
	}
}
