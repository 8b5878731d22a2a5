package whole

import (
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
)

// TestMembersOfManySessions: asking for the members does not go through all sessions while the state is
// locked, as the digest of the state does.
func TestMembersOfManySessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sessions = 20_000
		m := startMembers(t, 1, nil)
		h := testhooks.Of(m.servers[0])
		for i := range sessions {
			opened := h.Propose(fsm.OpenSession(1, int64(i+1), 3_600_000, [16]byte{1}))
			if i%1000 == 999 {
				check(t, <-opened)
			}
		}
		synctest.Wait() // until all are opened
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 10 {
			if n := len(m.servers[0].Members()); n != 1 {
				t.Errorf("%d members", n)
			}
		}
		runtime.ReadMemStats(&after)
		if bytes := after.TotalAlloc - before.TotalAlloc; bytes > sessions {
			t.Errorf("10 calls with %d sessions allocate %d bytes", sessions, bytes)
		}
	})
}
