package cluster

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// TestRestoredLosesPending: what is in a snapshot is never applied here, so who
// waits for it must not wait on, nor what waits behind it.
func TestRestoredLosesPending(t *testing.T) {
	m := &Member{replica: fsm.NewReplica()}
	m.pending.init()
	w := make(result, 1)
	done := m.pending.add(1, []fsm.Waiter{w})
	observer{m}.Restored()
	select {
	case <-done:
	default:
		t.Error("the entry is still on its way")
	}
	select {
	case err := <-w:
		if err == nil {
			t.Error("it is said to be done")
		}
	default:
		t.Error("who waits is not told")
	}
	if left := m.pending.take(1); left != nil {
		t.Errorf("%d wait still", len(left))
	}
}
