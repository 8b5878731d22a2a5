package cluster

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// late makes a member apply entries some time after another one.
type late struct {
	mu sync.Mutex
	at map[uint64]time.Time // when the other one has applied an entry
	by atomic.Int64         // how much later
}

type onTime struct {
	noObserver
	*late
}

func (o onTime) Applied(index, _ uint64, _ int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.at[index] = time.Now()
}

type tooLate struct {
	noObserver
	*late
}

func (o tooLate) Applied(index, _ uint64, _ int) {
	o.mu.Lock()
	at := o.at[index]
	o.mu.Unlock()
	if by := time.Duration(o.by.Load()); by > 0 {
		time.Sleep(time.Until(at.Add(by)))
	}
}

// TestLagsAgainAtOnce: a member that lags has caught up with what was committed when it began to, shortly before its state is too
// old once more, or after that. In the first case it may begin to serve clients, and has to notice at the next look that it lags.
func TestLagsAgainAtOnce(t *testing.T) {
	for _, less := range []time.Duration{-time.Second, 20 * time.Millisecond, 60 * time.Millisecond} {
		testkit.Bubble(t, less.String(), func(t *testing.T) {
			f, l := newFleet(t, 3), &late{at: map[uint64]time.Time{}}
			f.observed(0, onTime{late: l})
			m := f.observed(1, tooLate{late: l})
			f.start(2)
			f.whole()
			f.ready()
			if m.Role() == "leader" {
				if err := m.HandOver(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			lead := leadOf(t, f)
			var serves atomic.Bool
			go func() {
				for {
					select {
					case is := <-m.Serving():
						if serves.Store(is); is && m.contacts.Behind(m.nowMs()) {
							t.Error("it begins to serve although it lags")
						}
					case <-m.Stop:
						return
					}
				}
			}()
			time.Sleep(5 * time.Second)
			l.by.Store(int64(2*m.contacts.ElectionTimeout - less))
			var since time.Time // it serves clients from a state that is too old
			for began := time.Now(); time.Since(began) < 8*m.contacts.ElectionTimeout; time.Sleep(20 * time.Millisecond) {
				f.propose(lead, 99)
				switch behind := serves.Load() && m.contacts.Behind(m.nowMs()); {
				case !behind:
					since = time.Time{}
				case since.IsZero():
					since = time.Now()
				case time.Since(since) > m.contacts.ElectionTimeout/4:
					t.Fatalf("after %v it serves although it lags", time.Since(began))
				}
			}
			l.by.Store(0)
		})
	}
}
