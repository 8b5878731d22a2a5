package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestWork: each member counts what it has written, and the one that a command came to
// counts the command.
func TestWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(testkit.Log))
		time.Sleep(time.Second) // until each member knows of the last commit
		from := (lead + 1) % 3
		var before [3]Work
		for i, m := range members {
			before[i] = m.Work()
		}
		const writes = 5
		for range writes {
			written(t, members[from], time.Minute)
		}
		time.Sleep(time.Second) // likewise
		for i, m := range members {
			w, b := m.Work(), before[i]
			// A member that the majority does not need may store several entries at once.
			if n := w.LogWrites.Count - b.LogWrites.Count; n > writes || n < 1 {
				t.Errorf("member %d, with %d as the leader: %d writes to the log for %d entries", i, lead, n, writes)
			}
			want := int64(0)
			if i == from {
				want = writes
			}
			if w.Entries-b.Entries != want || w.Commands-b.Commands != want {
				t.Errorf("member %d: %d entries with %d commands, want %d", i, w.Entries-b.Entries, w.Commands-b.Commands, want)
			}
			if w.Commit != b.Commit+writes {
				t.Errorf("member %d: entry %d is committed, after %d and %d more", i, w.Commit, b.Commit, writes)
			}
		}
	})
}
