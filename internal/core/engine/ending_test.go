package engine

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/lifecycle"
)

// TestNothingIsDoneAtTheEnd: a leader that is to end applies nothing more. Raft, which still runs, takes the entries for
// applied; the engine does not.
func TestNothingIsDoneAtTheEnd(t *testing.T) {
	m := loneLeader(t)
	m.write(t, 1)
	was := m.StateIndex()
	close(m.Stop)
	entry := fsm.EndEntry(fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing()), &fsm.Envelope{Origin: 9, Count: 1})
	proposed, passed := m.Propose(entry, 0)(), m.Barrier(0)
	if now := m.StateIndex(); now != was {
		t.Fatalf("entry %d is applied", now)
	}
	if proposed != lifecycle.ErrClosed || passed != lifecycle.ErrClosed {
		t.Errorf("the write ends with %v, and the barrier with %v, before the entries are applied", proposed, passed)
	}
}
