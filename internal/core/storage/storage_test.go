package storage

import (
	"testing"

	"github.com/hashicorp/raft"
)

// noops are entries without content.
func noops(first, last, term uint64) (logs []*raft.Log) {
	for i := first; i <= last; i++ {
		logs = append(logs, &raft.Log{Index: i, Term: term, Type: raft.LogNoop})
	}
	return logs
}

// TestReconcileLog: entries behind the leader's snapshot stay, as they may have been
// acknowledged, and those that the snapshot takes the place of go.
func TestReconcileLog(t *testing.T) {
	for _, test := range []struct {
		name        string
		log         []*raft.Log
		first, last uint64 // that are left
	}{
		{"empty", nil, 0, 0},
		{"shorter", noops(3, 9, 1), 0, 0},
		{"the same entry, and more", noops(3, 13, 2), 3, 13},
		{"the same entry at the end", noops(3, 10, 2), 3, 10},
		{"another entry, and more", noops(3, 13, 1), 10, 13},
		{"another entry at the end", noops(3, 10, 1), 10, 10},
		{"another entry first", noops(10, 10, 1), 10, 10},
		{"another entry of a later term", noops(3, 12, 3), 10, 12},
		{"all behind", noops(11, 13, 2), 11, 13},
	} {
		log := raft.NewInmemStore()
		check(t, log.StoreLogs(test.log))
		err := reconcileLog(log, raft.SnapshotMeta{Index: 10, Term: 2})
		first, _ := log.FirstIndex()
		last, _ := log.LastIndex()
		if err != nil || first != test.first || last != test.last {
			t.Errorf("%s: %d to %d are left, want %d to %d; %v", test.name, first, last, test.first, test.last, err)
		}
	}
}
