package alive

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/session"
)

// newLiveness returns one whose running time is now.
func newLiveness(tick, sure time.Duration, tells bool, now func() int64) *Liveness {
	return NewLiveness(tick, sure, tells, now, now, noTrace{})
}

// TestTimeStoodStill: a leader whose process was paused does not count the pause
// against sessions, but for half a tick: they have as much time left as before, wherever in the
// pause their deadlines were, and whether the leader was waiting for its next check or
// still busy after the last. If the leader wakes up only a little late, deadlines stay.
func TestTimeStoodStill(t *testing.T) {
	const tick, timeout = 400 * time.Millisecond, 4 * time.Second
	const unnoticed = tick / 2
	for _, busy := range []bool{false, true} {
		for _, before := range []time.Duration{0, 3 * time.Second} { // from when the session was heard of to the pause
			for _, pause := range []time.Duration{unnoticed, 900 * time.Millisecond, 1100 * time.Millisecond, timeout, timeout + tick/2, timeout + tick, timeout + 2*tick, time.Hour} {
				testkit.Bubble(t, fmt.Sprintf("%v after %v busy %v", pause, before, busy), func(t *testing.T) {
					start := time.Now()
					now := func() int64 { return time.Since(start).Milliseconds() }
					l := newLiveness(tick, 0, false, now)
					time.Sleep(tick - time.Millisecond) // so that the deadline is not rounded up
					l.Restart(1, slices.Values([]*session.Session{{ID: 7, Timeout: int32(timeout.Milliseconds())}}))
					due := now()
					wait := func() time.Duration { return time.Duration(due-now()) * time.Millisecond }
					isLate := func() bool {
						var late []*session.Session
						late, _, due = l.TakeLate()
						return len(late) > 0
					}
					// run does what lead does for some time, and reports whether the session is late.
					run := func(d time.Duration) bool {
						for end := time.Now().Add(d); ; {
							if left := time.Until(end); wait() > left {
								time.Sleep(left)
								return false
							}
							time.Sleep(wait())
							if isLate() {
								return true
							}
						}
					}
					if run(before) {
						t.Fatal("the session is late before the pause")
					}
					late := busy && isLate()
					time.Sleep(pause)
					if late || wait() <= 0 && isLate() {
						t.Fatal("the session is late because of time in which nobody could be heard")
					}
					left := timeout - before - time.Millisecond
					left -= unnoticed
					if run(left) {
						t.Fatal("the session has less time than before the pause")
					}
					if !run(3*tick + unnoticed) { // times are rounded up
						t.Error("the session has more time than before the pause")
					}
				})
			}
		}
	}
}

// TestPausesOfShortest: the client of a session sends something three times in its timeout. If the leader's process is
// paused, however long, such a session does not expire, if the timeout is at least the shortest that is granted by default.
// With half a tick it may, before the leader has read what its clients sent meanwhile: Open warns of that.
func TestPausesOfShortest(t *testing.T) {
	const tick = 2 * time.Second
	for _, x := range []struct {
		tick, timeout, pause time.Duration // the shortest pause
		dies                 bool
	}{{tick, timing.Shortest(tick), 0, false}, {tick, tick / 2, 0, true}, {tick / 40, timing.Shortest(tick / 40), 210 * time.Millisecond, false}} {
		tick, died := x.tick, time.Duration(0)
		for pause := x.pause; pause < x.pause+2*x.timeout; pause += 10 * time.Millisecond {
			now := 10*tick - x.timeout - time.Millisecond // so that the deadline is not rounded up
			l := newLiveness(tick, 0, false, func() int64 { return now.Milliseconds() })
			l.Add(&session.Session{ID: 7, Timeout: int32(x.timeout.Milliseconds())})
			now += x.timeout/3 - time.Millisecond
			l.looked = now.Milliseconds()
			l.TakeLate()
			now += pause
			if late, _, _ := l.TakeLate(); len(late) > 0 {
				died = pause
			}
		}
		if died != 0 != x.dies {
			t.Errorf("a session of %v, which is %v old, expires after a pause of %v", x.timeout, x.timeout/3, died)
		}
	}
}

// TestRepeatedPauses: the leader's process stands still again and again, always just longer than goes unnoticed. A
// session whose client is gone ends all the same, even if the process never runs until its next look is due.
func TestRepeatedPauses(t *testing.T) {
	for _, tick := range []time.Duration{2 * time.Second, 400 * time.Millisecond, 150 * time.Millisecond, 50 * time.Millisecond} {
		for _, runs := range []time.Duration{1500 * time.Millisecond, 450 * time.Millisecond, 0} {
			repeatedPauses(t, tick, runs)
		}
	}
}

func repeatedPauses(t *testing.T, tick, runs time.Duration) {
	now := time.Minute
	l := newLiveness(tick, 0, false, func() int64 { return now.Milliseconds() })
	l.Restart(1, slices.Values([]*session.Session{{ID: 7, Timeout: 4000}}))
	began, paused := now, now
	for {
		late, _, next := l.TakeLate()
		if took := now - began; len(late) > 0 {
			return
		} else if took > time.Minute {
			t.Fatalf("tick %v: it has not ended after %v, of which the process runs for %v at a time", tick, took, runs)
		}
		if now = max(now, time.Duration(next)*time.Millisecond); now-paused >= runs {
			now += timing.Watch(tick) + 10*time.Millisecond
			paused = now
		}
	}
}

// TestTouchedBeforeLook: the leader's process is paused for an hour. A touch that waited in a socket, or a resumed session, comes before the
// next look. The session lasts as long as after any touch.
func TestTouchedBeforeLook(t *testing.T) {
	const tick = 2 * time.Second
	s := &session.Session{ID: 7, Timeout: 4000}
	for how, touch := range map[string]func(l *Liveness){
		"a touch":           func(l *Liveness) { l.Touch(7, nil, nil, nil) },
		"a follower's":      func(l *Liveness) { l.Hear(TouchesNow([]int64{7}), nil) },
		"a resumed session": func(l *Liveness) { l.Add(s) },
	} {
		now := time.Minute
		l := newLiveness(tick, 0, false, func() int64 { return now.Milliseconds() })
		l.Restart(1, slices.Values([]*session.Session{s, {ID: 8, Timeout: 40_000}}))
		l.TakeLate()
		now += time.Hour
		woke := now
		touch(l)
		late, _, next := l.TakeLate()
		for ; len(late) == 0; late, _, next = l.TakeLate() {
			now = time.Duration(next) * time.Millisecond
		}
		if took := now - woke; late[0] != s || took < 4*time.Second || took > 4*time.Second+tick {
			t.Errorf("%s: session %d is late after %v", how, late[0].ID, took)
		}
	}
}

// TestFirstSession: the leader's process is paused after the first session was opened, and before the look which that asks for.
func TestFirstSession(t *testing.T) {
	now := int64(1000)
	l := newLiveness(2*time.Second, 0, false, func() int64 { return now })
	l.Restart(1, slices.Values([]*session.Session{}))
	l.TakeLate()
	now += 5000
	l.Add(&session.Session{ID: 7, Timeout: 4000})
	now += 10_000
	if late, _, _ := l.TakeLate(); len(late) > 0 {
		t.Error("the session is late because of time in which nobody could be heard")
	}
}

// TestFirstLongSession: a session of an hour is the first one, so that the next look was planned for when it would end.
func TestFirstLongSession(t *testing.T) {
	now := time.Minute
	l := newLiveness(2*time.Second, 0, false, func() int64 { return now.Milliseconds() })
	l.Restart(1, slices.Values([]*session.Session{}))
	l.TakeLate()
	<-l.Sooner
	now += time.Second
	l.Add(&session.Session{ID: 7, Timeout: int32(time.Hour.Milliseconds())})
	if len(l.Sooner) == 0 {
		t.Error("the leader does not look, so that no pause shows")
	}
}

// touching is a follower's liveness with session 7, which has a timeout of 3 s and a
// touch that the leader has just confirmed, and the result of touching it later.
func touching(t *testing.T, after time.Duration) (l *Liveness, alive chan bool, over chan struct{}) {
	start := time.Now()
	l = newLiveness(500*time.Millisecond, 300*time.Millisecond, true, func() int64 { return time.Since(start).Milliseconds() })
	l.Add(&session.Session{ID: 7, Timeout: 3000})
	l.Confirm(map[int64]int64{7: 0}, nil)
	time.Sleep(after)
	alive, over = make(chan bool, 1), make(chan struct{})
	go func() { alive <- l.Touch(7, func() bool { return false }, over, nil) }()
	synctest.Wait()
	return l, alive, over
}

// TestTouchWaits: touch of a session that the leader may expire soon blocks until the
// leader has confirmed it.
func TestTouchWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, alive, _ := touching(t, 100*time.Millisecond)
		if len(alive) == 0 || !<-alive {
			t.Error("it waits although the leader has just confirmed the session")
		}
		l, alive, _ := touching(t, 2500*time.Millisecond)
		if len(alive) != 0 || len(l.Hurry) == 0 {
			t.Fatal("it does not wait for the leader, or does not hurry")
		}
		touches, _ := l.Take()
		l.Confirm(touches, nil)
		if !<-alive {
			t.Error("the session counts as dead although the leader has confirmed it")
		}
		_, alive, over := touching(t, 2500*time.Millisecond)
		if close(over); <-alive {
			t.Error("touch returns true to a connection that has ended")
		}
	})
}

// TestUnsureTouch: a touch that the leader is unsure about is not confirmed, and is
// reported again.
func TestUnsureTouch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, alive, over := touching(t, 2500*time.Millisecond)
		touches, _ := l.Take()
		at := touches[7]
		time.Sleep(time.Millisecond)
		l.Confirm(touches, []int64{7})
		synctest.Wait()
		if len(alive) != 0 {
			t.Error("it does not wait for the leader to be sure")
		}
		if again, _ := l.Take(); len(again) != 1 || again[7] != at {
			t.Errorf("reported again: %v, should be at %d", again, at)
		}
		close(over)
		<-alive
	})
}

// TestHear: a leader vouches for the sessions that it knows and has not found late.
func TestHear(t *testing.T) {
	now := int64(0)
	l := newLiveness(500*time.Millisecond, 300*time.Millisecond, true, func() int64 { return now })
	for id, timeout := range map[int64]int32{7: 3000, 8: 30_000} {
		l.Add(&session.Session{ID: id, Timeout: timeout})
	}
	touch := func(ids ...int64) []byte { return TouchesNow(ids) }
	if unsure := l.Hear(touch(7, 8, 9), nil); string(unsure) != string(touch(9)[:8]) {
		t.Errorf("unsure of %x", unsure)
	}
	now = 10_000
	l.looked = now
	if late, _, _ := l.TakeLate(); len(late) != 1 || late[0].ID != 7 {
		t.Fatalf("late: %v", late)
	}
	if unsure := l.Hear(touch(7, 8), nil); string(unsure) != string(touch(7)[:8]) {
		t.Errorf("unsure of %x", unsure)
	}
}

type noTrace struct{}

func (noTrace) Anew(uint64)                                              {}
func (noTrace) Session(SessionStep, int64, time.Duration, time.Duration) {}
