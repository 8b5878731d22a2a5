package cluster

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
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
			until(t, "it serves again", serves.Load)
		})
	}
}

// TestServesOnlyThen: a member has caught up, or has applied what earlier leaders left, and something has happened meanwhile because of
// which it must not begin to serve.
func TestServesOnlyThen(t *testing.T) {
	// begins calls f when a member begins to serve.
	begins := func(m *Member, f func()) {
		go func() {
			for {
				select {
				case is := <-m.Serving():
					if is {
						f()
					}
				case <-m.Stop:
					return
				}
			}
		}()
	}

	// restarted returns three members of which the first leads, and the second, which has just been started again and applies
	// each entry so much later than the first.
	restarted := func(t *testing.T, by time.Duration) (f *fleet, m *Member) {
		f, l := newFleet(t, 3), &late{at: map[uint64]time.Time{}}
		f.observed(0, onTime{late: l})
		f.observed(1, tooLate{late: l})
		f.start(2)
		f.whole()
		f.ready()
		f.handTo(0)
		time.Sleep(5 * time.Second)
		f.stop(1)
		l.by.Store(int64(by))
		f.writes(0, 1)
		return f, f.observed(1, tooLate{late: l})
	}

	// The next leader needs more than two election timeouts to apply what the last one left.
	testkit.Bubble(t, "slow barrier", func(t *testing.T) {
		f, slow := newFleet(t, 3), new(slowObserver)
		f.start(0)
		m := f.observed(1, slow)
		f.start(2)
		f.whole()
		f.ready()
		f.handTo(0)
		time.Sleep(5 * time.Second)
		slow.each.Store(int64(3 * m.contacts.ElectionTimeout))
		f.propose(0, 99)
		time.Sleep(100 * time.Millisecond)
		slow.each.Store(0)
		var serves atomic.Int64
		begins(m, func() {
			if serves.Add(1); m.contacts.Behind(m.nowMs()) {
				t.Error("it begins to serve although it lags")
			}
		})
		synctest.Wait()
		serves.Store(0) // it did when it started
		if err := f.running[0].engine.HandOver(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if n := serves.Load(); n != 1 || m.Role() != "leader" {
			t.Errorf("it began to serve %d times, and is the %s", n, m.Role())
		}
	})

	// It has begun to catch up as a follower, and leads when it has, with entries that it has not applied yet.
	testkit.Bubble(t, "leads meanwhile", func(t *testing.T) {
		f, m := restarted(t, 3*time.Second)
		var served atomic.Bool
		begins(m, func() {
			if served.Store(true); m.Role() == "leader" && m.leader.ReadyTerm.Load() == 0 {
				t.Error("it begins to serve, and has not applied what the last leader left")
			}
		})
		time.Sleep(900 * time.Millisecond)
		f.writes(0, 3)
		if m.leader.Get().ID != 1 || served.Load() {
			t.Fatal("it does not follow, or has caught up already")
		}
		if err := f.running[0].engine.HandOver(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		until(t, "it serves", served.Load)
	})

	// It catches up by what it was told before the leader was lost. The third member cannot vote.
	testkit.Bubble(t, "no leader", func(t *testing.T) {
		f, m := restarted(t, 3400*time.Millisecond)
		time.Sleep(400 * time.Millisecond)
		if m.leader.Get().ID != 1 {
			t.Fatal("it does not follow yet")
		}
		release := make(chan struct{})
		defer func() { f.disks[2].SetFault(nil); close(release) }()
		f.disks[2].SetFault(func() error { <-release; return errors.New("stuck") })
		begins(m, func() {
			if m.leader.Get().ID == 0 {
				t.Error("it begins to serve, and knows no leader")
			}
		})
		f.stop(0)
		time.Sleep(6 * time.Second)
	})

	// It leads, hands over, and leads again, before it has applied what it knew to be committed when it led first.
	testkit.Bubble(t, "leads twice", func(t *testing.T) {
		f, m := restarted(t, 3*time.Second)
		var served atomic.Bool
		begins(m, func() {
			served.Store(true)
			if term, leads := m.engine.LeaderTerm(); leads && m.leader.ReadyTerm.Load() != term {
				t.Errorf("it begins to serve as the leader in term %d, and has applied %d, and entry %d is committed", term, m.engine.StateIndex(), m.engine.LastIndex())
			}
		})
		time.Sleep(900 * time.Millisecond)
		f.writes(0, 3)
		for _, to := range []uint64{2, 1} {
			if err := f.running[2-to].engine.HandOver(t.Context(), to); err != nil {
				t.Fatal(err)
			}
			time.Sleep(200 * time.Millisecond)
		}
		f.writes(0, 3)
		if err := f.running[0].engine.HandOver(t.Context(), 2); err != nil || served.Load() {
			t.Fatal(err, served.Load())
		}
		until(t, "it serves", served.Load)
	})

	// A leader has another state than one member. The third one comes back and shows that the leader is wrong, which ends the dispute.
	testkit.Bubble(t, "failed", func(t *testing.T) {
		f := startedFleet(t, 1)
		lead := leadOf(t, f)
		third, m := (lead+2)%3, f.running[lead]
		f.stop(third)
		f.corrupt(lead, 1<<40)
		f.write(lead)
		until(t, "a dispute", func() bool { return m.pulse.verdict.Load().Disputed })
		time.Sleep(time.Second)
		begins(m, func() {
			if m.Failed.Load() {
				t.Error("it begins to serve, and its state is wrong")
			}
		})
		f.start(third)
		until(t, "its end", m.Failed.Load)
		time.Sleep(10 * time.Second)
	})

	for name, v := range map[string]election.Verdict{
		"no majority": {Leads: true, NoMajority: true}, "disputed": {Leads: true, Disputed: true}, "lost": {NoLeader: true},
		"deposed": {}, "not looked yet": {NoLeader: true},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			b := newBase(t, proto.Peer{ID: 1, Addr: "a:1"})
			s := b.service()
			b.pulse.verdict.Store(&election.Verdict{NoLeader: true})
			b.Running.Go(s.run)
			time.Sleep(time.Second)
			asked := b.pulse.moment()
			if name == "lost" {
				b.pulse.engine.StepDown(time.Second)
				until(t, "a follower", func() bool { return b.pulse.engine.Role() == engine.Follower })
			}
			b.pulse.verdict.Store(&v) // run is not told yet
			b.pulse.gain(asked)
			select {
			case <-s.changes:
				t.Errorf("it begins to serve at %+v", v)
			case <-time.After(100 * time.Millisecond):
			}
			if name == "lost" {
				return
			}
			b.pulse.verdict.Store(&election.Verdict{Leads: true})
			b.pulse.changed.Raise()
			if !testkit.Receive(t, "serving", s.changes) {
				t.Error("it stops")
			}
		})
	}
}
