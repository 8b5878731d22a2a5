package cluster

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/session"
)

// liveness knows when each session was last heard of, and so when it is late. On the
// leader its deadlines count; any other member also collects what the leader has to
// be told of. It has no goroutine, and its methods are safe for concurrent use.
//
// Times are in ms, by a clock that does not jump.
type liveness struct {
	tick    time.Duration // of session expiry
	sure    time.Duration // see [times.sure]
	tells   bool          // there are other members
	now     func() int64
	expired atomic.Int64 // sessions that this member has ended

	sooner signal // for the leader: a deadline is before the next look
	news   signal // for the sender of touches: there is the first one to tell
	hurry  signal // likewise: somebody waits until the leader knows of one

	mu        sync.Mutex
	tracker   *session.Tracker // of the replicated sessions
	due       int64            // when the leader looks for late sessions next
	confirmed chan struct{}    // closed and replaced when the leader knows of more touches
	touched   map[int64]int64  // sessions that the leader is to be told of, and when they were heard of
	since     int64            // when the first of them was
}

func newLiveness(tick, sure time.Duration, tells bool, now func() int64) *liveness {
	l := &liveness{
		tick: tick, sure: sure, tells: tells, now: now,
		sooner: newSignal(), news: newSignal(), hurry: newSignal(),
		confirmed: make(chan struct{}), touched: map[int64]int64{},
	}
	l.tracker = l.newTracker()
	return l
}

func (l *liveness) newTracker() *session.Tracker {
	return session.NewTracker(max(1, l.tick.Milliseconds()))
}

// touch notes that a session was heard of, and reports whether it is alive; false
// too if over or stop is closed. If the session could end, by what the leader knows,
// while its client trusts in it, touch waits until the leader knows more, unless
// this member surely leads.
func (l *liveness) touch(id int64, surelyLeads func() bool, over, stop <-chan struct{}) bool {
	now, slack := l.now(), l.sure.Milliseconds()
	l.mu.Lock()
	l.note(id, now)
	for waits := false; ; waits = true {
		alive, confirmed := l.tracker.Touch(id, now), l.confirmed
		safe := !l.tells || surelyLeads() || l.tracker.Safe(id, now, slack)
		l.mu.Unlock()
		if !alive || safe {
			return alive
		}
		if !waits {
			l.hurry.raise()
		}
		select {
		case <-confirmed:
		case <-over:
			return false
		case <-stop:
			return false
		}
		l.mu.Lock()
	}
}

// note keeps a touch for the leader. The caller has l.mu.
func (l *liveness) note(id, at int64) {
	if !l.tells {
		return
	}
	if len(l.touched) == 0 {
		l.since = l.now()
		l.news.raise()
	}
	l.touched[id] = at
}

// collecting returns when the first touch was noted that the leader is to be told of.
func (l *liveness) collecting() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since
}

// take returns the touches that the leader is to be told of, with their times, and
// when the first of them was noted; it begins to collect anew.
func (l *liveness) take() (touches map[int64]int64, since int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	touches, since = l.touched, l.since
	l.touched = map[int64]int64{}
	if len(touches) == 0 {
		since = l.now()
	}
	return touches, since
}

// confirm notes that the leader knows of touches, except of the sessions that it is
// unsure about: it is told of these once more.
func (l *liveness) confirm(touches map[int64]int64, unsure []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range unsure {
		at, is := touches[id]
		if _, newer := l.touched[id]; is && !newer && l.tracker.Touch(id, at) {
			l.note(id, at)
		}
		delete(touches, id)
	}
	for id, at := range touches {
		l.tracker.Confirm(id, at)
	}
	close(l.confirmed)
	l.confirmed = make(chan struct{})
}

// touchLen is the length of a touch in a message: the session, and how many ms ago it
// was heard of.
const touchLen = 8 + 4

// hear notes the touches that another member has sent, and appends to unsure the
// sessions that cannot be vouched for: those that were found late, whose end is on
// its way, and those that are not known, any more or yet.
func (l *liveness) hear(touches, unsure []byte) []byte {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for t := touches; len(t) >= touchLen; t = t[touchLen:] {
		if !l.tracker.Touch(int64(binary.BigEndian.Uint64(t)), now-int64(binary.BigEndian.Uint32(t[8:]))) {
			unsure = append(unsure, t[:8]...)
		}
	}
	return unsure
}

// add times a session that was opened or resumed.
func (l *liveness) add(s *session.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tracker.Add(s, l.now()) < l.due {
		l.sooner.raise()
	}
}

// remove forgets a session that has ended.
func (l *liveness) remove(id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tracker.Remove(id)
}

// restart forgets all that is known, and gives each of these sessions its whole time.
func (l *liveness) restart(sessions []*session.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tracker = l.newTracker()
	for _, s := range sessions {
		l.tracker.Add(s, l.now())
	}
}

// deadlines returns when sessions are to end if nothing more is heard of them, the
// earliest first.
func (l *liveness) deadlines() []session.Bucket {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tracker.Buckets()
}

// watchful is how many ms the leader sleeps at most while there are sessions. If it
// wakes up later than planned by as much again, the process was paused. A shorter
// pause is not noticed. That does no harm: a timeout is two ticks at least, and
// clients speak three times in it.
func (l *liveness) watchful() int64 {
	return max(l.tick/4, 100*time.Millisecond).Milliseconds()
}

// nextLook returns when to look for late sessions next, which is no later than the
// next deadline, and how long that is from now. It counts from the last look, so that
// a pause since then is noticed too.
func (l *liveness) nextLook(looked int64) (due int64, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	due, ok := l.tracker.Next()
	if !ok {
		due = l.now() + time.Hour.Milliseconds()
	} else {
		due = min(due, looked+l.watchful())
	}
	l.due = due
	return due, time.Duration(due-l.now()) * time.Millisecond
}

// late returns the sessions whose time is over, the tracker that found them, and
// when it looked; due is when it was to look.
func (l *liveness) late(due int64) (late []*session.Session, tracker *session.Tracker, looked int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if stood := now - due; stood > l.watchful() {
		// This process stood still, perhaps since the last look. What its clients
		// sent meanwhile lies unread in its sockets, so nobody is late for that time.
		l.tracker.Extend(stood + l.watchful())
	}
	return l.tracker.Late(now), l.tracker, now
}

// spare lets a session be heard of again that tracker found late; the tracker may
// have been replaced by then.
func (l *liveness) spare(tracker *session.Tracker, s *session.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	tracker.Spare(s, l.now())
	l.sooner.raise()
}

// retry lets a session be found late again that tracker found late.
func (l *liveness) retry(tracker *session.Tracker, s *session.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	tracker.Retry(s, l.now())
	l.sooner.raise()
}
