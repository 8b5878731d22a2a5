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

// TestHandOverWhileTheyRestart: both followers are being restarted, and are back long before
// handing over gives up (handOverTimeout). It asks each of them only once, so it fails at once.
func TestHandOverWhileTheyRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		for i := range 3 {
			f.open(i, f.config(i))
		}
		f.whole()
		lead := leadOf(t, f)
		for i := range 3 {
			if i != lead {
				f.stop(i)
			}
		}
		handed, began := make(chan error), time.Now()
		go func() { handed <- f.running[lead].HandOver(t.Context()) }()
		time.Sleep(100 * time.Millisecond)
		for i := range 3 {
			if i != lead {
				f.open(i, f.config(i))
			}
		}
		if err := <-handed; err != nil {
			t.Errorf("%v: %v, although both were back after 100 ms", time.Since(began), err)
		}
	})
}
