package cluster

import (
	"testing"
	"testing/synctest"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestLogEndsAtSnapshot: a member whose log ends before its snapshot reports the
// snapshot's end as the end of its log, which decides who stands for election first.
func TestLogEndsAtSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(testkit.Log))
		m := members[(lead+1)%3]
		done := make(result, 1)
		m.Propose(someWrite(), done, nil)
		<-done
		if err := m.raft.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		for _, m := range members {
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
		}
		log := m.cfg.Memory.Open().Log
		first, _ := log.FirstIndex()
		last, _ := log.LastIndex()
		if err := log.DeleteRange(first, last); err != nil {
			t.Fatal(err)
		}

		again, err := openMember(m.cfg, fsm.NewReplica())
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		newest, err := again.raft.storage.NewestSnapshot()
		if err != nil || newest.Index == 0 {
			t.Fatalf("snapshot %+v, %v", newest, err)
		}
		s := again.pulse.state()
		s.lastIndex, s.lastTerm = again.raft.logEnd()
		if s.lastIndex != newest.Index || s.lastTerm != newest.Term {
			t.Errorf("its log ends at %d in term %d, its snapshot at %d in term %d", s.lastIndex, s.lastTerm, newest.Index, newest.Term)
		}
	})
}
