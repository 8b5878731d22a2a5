package cluster

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestServesAfterManyCuts: a member whose snapshot was cut off many times in a row gets the next one soon after the last
// cut is healed, as promise 10 says of any cut.
func TestServesAfterManyCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWires()
		members, lead := n.open(t, 3, nil)
		leader, late := members[lead], members[(lead+1)%3]
		again := stopUntilSnapshot(t, late, leader)
		n.SetDelay(func(from, to string) time.Duration { return time.Millisecond })
		n.rate.Store(4 << 20) // the snapshot takes 2 s
		host := hostOf(late)
		late = again()
		members[(lead+1)%3] = late
		for i := range 14 {
			half := make(chan struct{})
			came := func(w *wire) {
				w.mu.Lock()
				is := w.kind == kindRaft && !w.dialed && w.to == host && w.read > 1<<20
				w.mu.Unlock()
				if is {
					n.came.Store(nil)
					close(half)
				}
			}
			n.came.Store(&came)
			waited := time.Now()
			<-half
			t.Logf("%d: the snapshot comes %v after the cut was healed", i, time.Since(waited))
			n.forget(func(w *wire) bool { return w.from == host || w.to == host })
			cutOff(n.Network, members, (lead+1)%3)
			time.Sleep(time.Second)
			n.Heal()
		}
		began := time.Now()
		select {
		case <-late.Ready():
		case <-time.After(2 * time.Minute):
		}
		took, most := time.Since(began), late.contacts.silence*5/2+3*time.Second
		if took > most {
			t.Errorf("after the last cut it serves within %v, should within %v", took, most)
		}
	})
}
