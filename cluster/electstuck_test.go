package cluster

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// TestElectionBesideStuckSnapshot: of three members, the leader ends while another one's disk is stuck in a snapshot.
// That member's log and its vote can be written, so there is a majority for the third one.
func TestElectionBesideStuckSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		var stuck atomic.Pointer[Member]
		f := newFleet(t, 3)
		reached := make(chan struct{}, 100)
		for i := range f.running {
			cfg := f.config(i)
			cfg.SnapshotBytes = 20 * entryCost
			var m *Member
			m = f.openWith(i, cfg, func(s *storage.Storage) {
				s.Snapshots = heldSnapshots{s.Snapshots, func(step string, _ int) {
					if step == "write" && m != nil && stuck.Load() == m {
						reached <- struct{}{}
						<-release
					}
				}}
			})
		}
		f.whole()
		lead := leadOf(t, f)
		held, third := (lead+1)%3, (lead+2)%3
		stuck.Store(f.running[held])
		stop := make(chan struct{})
		wait := keepWriting(f.running[lead], 3, stop)
		receive(t, "the snapshot", reached)
		close(stop)
		wait()
		time.Sleep(3 * time.Second)
		f.stop(lead)
		began := time.Now()
		for f.running[third].raft.State() != raft.Leader && f.running[held].raft.State() != raft.Leader && time.Since(began) < 5*time.Minute {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("nobody led after %v, although two of three logs can be written", took)
		}
	})
}
