package cluster

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestTouchBesideLongEntry: while a member sends the leader a long entry over a slow link, its
// clients' touches get there too and are confirmed, so their sessions do not expire. In the
// second case, what was written before a touch is on its way for longer than the member waits
// for an answer, which has to count all the same.
func TestTouchBesideLongEntry(t *testing.T) {
	for _, x := range []struct {
		name  string
		slow  func(n *wires, from, to string)
		entry int
		most  time.Duration // for a touch
	}{
		{"slow writes", func(n *wires, _, _ string) { n.rate.Store(1 << 20) }, 8 << 20, 200 * time.Millisecond},
		{"long buffers", func(n *wires, from, to string) { n.SetBandwidth(from, to, 150<<10) }, 4 << 20, 4 * time.Second},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newWires()
				members, lead := net.open(t, 3, func(c *Config) { c.SnapshotBytes = 1 << 30 })
				m := members[(lead+1)%3]
				openSession(t, m, 7, 4*time.Second, members)
				fill(t, m, "first", 1, 1) // opens its session
				x.slow(net, hostOf(m), hostOf(members[lead]))
				done := make(chan struct{})
				go func() {
					defer close(done)
					fill(t, m, "long", 1, x.entry)
				}()
				for began, over := time.Now(), false; !over; {
					asked := time.Now()
					if !m.Touch(7, nil) {
						t.Errorf("the session has expired after %v", time.Since(began))
						<-done
						return
					}
					if took := time.Since(asked); took > x.most {
						t.Errorf("a touch is confirmed after %v", took)
					}
					select {
					case <-done:
						if took := time.Since(began); took < 8*time.Second {
							t.Errorf("the entry took only %v", took)
						}
						over = true
					case <-time.After(500 * time.Millisecond):
					}
				}
			})
		})
	}
}
