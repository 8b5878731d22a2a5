package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestServesAfterCutInSnapshot: a member that is cut off while it gets its snapshot serves soon after
// the cut is healed, although its old connections carry nothing any more, as promise 10 says.
func TestServesAfterCutInSnapshot(t *testing.T) {
	testkit.SlowUnderRace(t)
	for _, length := range []time.Duration{0, time.Second, 3 * time.Second, 56 * time.Second} {
		t.Run(length.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newWires()
				members, lead := n.open(t, 3, nil)
				leader, late := members[lead], members[(lead+1)%3]
				again := stopUntilSnapshot(t, late, leader)
				n.SetDelay(func(from, to string) time.Duration { return time.Millisecond })
				n.rate.Store(4 << 20) // the snapshot takes 2 s
				host := hostOf(late)
				half := make(chan struct{})
				came := func(w *wire) {
					w.mu.Lock()
					is := w.kind == kindRaft && !w.dialed && w.to == host && w.read > 2<<20
					w.mu.Unlock()
					if is {
						n.came.Store(nil)
						close(half)
					}
				}
				n.came.Store(&came)
				late = again()
				<-half
				n.forget(func(w *wire) bool { return w.from == host || w.to == host })
				members[(lead+1)%3] = late
				if length > 0 {
					cutOff(n.Network, members, (lead+1)%3)
					time.Sleep(length)
					n.Heal()
				}
				began := time.Now()
				select {
				case <-late.Ready():
				case <-time.After(2 * time.Minute):
				}
				took, most := time.Since(began), late.contacts.silence*5/2+3*time.Second
				t.Log(took)
				if took > most {
					t.Errorf("after a cut of %v it serves within %v, should within %v", length, took, most)
				}
			})
		})
	}
}
