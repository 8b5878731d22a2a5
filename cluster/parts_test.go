package cluster

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
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

// TestAnswersNotRead: when another member sends, but does not read what this one answers, the
// connection ends after an election timeout. Several answers wait for each other meanwhile.
func TestAnswersNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := newWires().open(t, 3, nil)
		m := members[(lead+1)%3] // refuses entries
		near, far := net.Pipe()
		served := make(chan struct{})
		go func() {
			m.serveForward(far)
			close(served)
		}()
		e := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Nothing())
		e = fsm.EndEntry(e, &fsm.Envelope{Origin: 2, Batch: 1, Count: 1})
		began := time.Now()
		for range 3 {
			if err := writeMessage(near, msgBatch, e); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait() // the refusals wait to be read
		writeMessage(near, msgAlive, nil)
		<-served
		if took := time.Since(began); took > m.contacts.silence {
			t.Errorf("it ends after %v", took)
		}
		near.Close()
	})
}
