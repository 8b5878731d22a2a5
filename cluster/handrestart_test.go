package cluster

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestHandOverAfterRestarts: in a healthy cluster of three, whose members were restarted one after the
// other, the leader can always hand over.
func TestHandOverAfterRestarts(t *testing.T) {
	for range 12 {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 3)
			for i := range 3 {
				f.open(i, f.config(i))
			}
			f.whole()
			for n := range 12 {
				i := n % 3
				lead := leadOf(t, f)
				for !f.write(lead) {
				}
				m := f.running[i]
				if err := m.HandOver(t.Context()); err != nil {
					t.Errorf("restart %d: %v", n, err)
				}
				f.stop(i)
				f.open(i, f.config(i))
				f.whole()
				if n%2 == 0 {
					time.Sleep(time.Duration(n) * time.Second / 3)
				}
			}
		})
	}
}
