package alive

import (
	"encoding/binary"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
	"github.com/lockkeeper/lockkeeper/session"
)

// Liveness records when each session was last touched, and so when it expires. Its methods are safe for concurrent use.
//
// Times are in ms of a monotonic clock, unless they are said to be in running time.
type Liveness struct {
	tick    time.Duration // granularity of session expiry
	watch   int64         // the longest time that the leader sleeps between two looks while there are sessions
	lease   time.Duration // see [timing.Lease]
	tells   bool          // there are other members, so touches are reported to the leader
	now     func() int64
	running func() int64 // running time: see [timing.Moment]
	trace   Trace
	Expired atomic.Int64 // number of sessions that this member has expired

	Sooner wake.Signal // for Member.lead of package cluster: a session may expire before the next check
	News   wake.Signal // for Member.sendTouches of package cluster: touched is no longer empty
	Hurry  wake.Signal // for that, too: a caller of Touch is blocked until the leader has confirmed

	mu        sync.Mutex
	tracker   *session.Tracker // of the replicated sessions
	looked    int64            // when the leader last looked for late sessions, or a pause ended; 0 before the first Restart
	due       int64            // when its next look is planned
	confirmed wake.Broadcast   // the leader has confirmed touches
	touched   map[int64]int64  // touches to report to the leader: session id to time
	since     int64            // when the first of them was noted, in running time
	muted     map[int64]bool   // see Advance; usually nil
}

// NewLiveness returns one without sessions. tells is whether there are other members.
func NewLiveness(tick, lease time.Duration, tells bool, now, running func() int64, trace Trace) *Liveness {
	l := &Liveness{
		tick: tick, watch: timing.Watch(tick).Milliseconds(), lease: lease, tells: tells, now: now, running: running, trace: trace,
		Sooner: wake.NewSignal(), News: wake.NewSignal(), Hurry: wake.NewSignal(),
		touched: map[int64]int64{},
	}
	l.tracker = l.newTracker()
	return l
}

func (l *Liveness) newTracker() *session.Tracker {
	return session.NewTracker(max(1, l.tick.Milliseconds()))
}

// Touch notes that a session's client has sent something, and reports whether the
// session is alive; it also returns false when over or stop is closed. If the leader,
// by what it has confirmed so far, could expire the session while its client still
// relies on it, Touch blocks until the leader has confirmed more, unless this member
// surely leads.
func (l *Liveness) Touch(id int64, holdsLease func() bool, over, stop <-chan struct{}) bool {
	now, slack := l.now(), l.lease.Milliseconds()
	l.mu.Lock()
	l.looked = l.tracker.Awake(now, l.looked, l.watch)
	l.note(id, now)
	for waits := false; ; waits = true {
		alive, confirmed := l.tracker.Touch(id, now), l.confirmed.Wait()
		safe := !l.tells || holdsLease() || l.tracker.Safe(id, now, slack)
		if alive && safe {
			l.trace.Session(Touched, id, 0, time.Duration(l.now()-now)*time.Millisecond)
		}
		l.mu.Unlock()
		if !alive || safe {
			return alive
		}
		if !waits {
			l.Hurry.Raise()
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

// note keeps a touch to be reported to the leader. The caller holds l.mu.
func (l *Liveness) note(id, at int64) {
	if !l.tells {
		return
	}
	if len(l.touched) == 0 {
		l.since = l.running()
		l.News.Raise()
	}
	l.touched[id] = at
}

// Take removes and returns the touches to be reported, and when the first of them was noted, in running time; if there are
// none, since is now.
func (l *Liveness) Take() (touches map[int64]int64, since int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	touches, since = l.touched, l.since
	l.touched = map[int64]int64{}
	if len(touches) == 0 {
		since = l.running()
	}
	return touches, since
}

// Confirm notes that the leader has received touches. It could not vouch for the
// unsure sessions: those that are alive here are reported to it again.
func (l *Liveness) Confirm(touches map[int64]int64, unsure []int64) {
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
	l.confirmed.Raise()
}

// TouchLen is the length of a touch in a message: the session id, and how many ms
// ago the touch was.
const TouchLen = 8 + 4

// TouchesNow encodes touches of sessions at this moment.
func TouchesNow(sessions []int64) []byte {
	b := make([]byte, 0, TouchLen*len(sessions))
	for _, id := range sessions {
		b = binary.BigEndian.AppendUint64(b, uint64(id))
		b = binary.BigEndian.AppendUint32(b, 0)
	}
	return b
}

// Hear notes the touches that another member has reported. It appends to unsure the
// ids of the sessions that it cannot vouch for: those already found late, whose
// expiry has been proposed, and those that do not exist here, any more or yet.
func (l *Liveness) Hear(touches, unsure []byte) []byte {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looked = l.tracker.Awake(now, l.looked, l.watch)
	for t := touches; len(t) >= TouchLen; t = t[TouchLen:] {
		id, ago := int64(binary.BigEndian.Uint64(t)), int64(binary.BigEndian.Uint32(t[8:]))
		switch {
		case l.muted[id]:
		case l.tracker.Touch(id, now-ago):
			l.trace.Session(Heard, id, 0, time.Duration(l.now()-now+ago)*time.Millisecond)
		default:
			unsure = append(unsure, t[:8]...)
		}
	}
	return unsure
}

// Add starts the timeout of a session that was opened or resumed.
func (l *Liveness) Add(s *session.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.muted, s.ID)
	l.trace.Session(Restarts, s.ID, time.Duration(s.Timeout)*time.Millisecond, 0)
	now := l.moment()
	if deadline := l.tracker.Add(s, now); min(deadline, now+l.watch) < l.due {
		l.Sooner.Raise()
	}
}

// Remove forgets a session that was closed.
func (l *Liveness) Remove(id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trace.Session(Ended, id, 0, 0)
	l.tracker.Remove(id)
	delete(l.muted, id)
}

// Restart forgets everything and starts the full timeout of each of the sessions, which exist after the entry at index.
func (l *Liveness) Restart(index uint64, sessions iter.Seq[*session.Session]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trace.Anew(index)
	l.tracker, l.muted, l.looked = l.newTracker(), nil, l.now()
	for s := range sessions {
		l.trace.Session(Restarts, s.ID, time.Duration(s.Timeout)*time.Millisecond, 0)
		l.tracker.Add(s, l.now())
	}
	l.Sooner.Raise()
}

// Deadlines returns when sessions expire unless they are touched, the earliest first.
// Others may use l meanwhile, as in [fsm.Replica.Browse].
func (l *Liveness) Deadlines() []session.Bucket {
	sessions, step := map[int64][]int64{}, fsm.Paced(l.mu.Unlock, l.mu.Lock)
	l.mu.Lock()
	l.tracker.Each(func(id, deadline int64) {
		sessions[deadline] = append(sessions[deadline], id)
		step()
	})
	l.mu.Unlock()
	return session.Buckets(sessions)
}

// Advance lets ms count as passed for the sessions. If touched is true, those that are connected count as touched now. It returns
// those that are late, in no particular order. Touches of before it, which another member may still have to
// report, would take it back. So none are heard for sessions that are not connected, until they are
// resumed.
func (l *Liveness) Advance(ms int64, connected func(id int64) bool, touched bool) (late []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.muted = map[int64]bool{}
	late = l.tracker.Advance(l.moment(), ms, func(id int64) bool {
		is := connected(id)
		if !is {
			l.muted[id] = true
		}
		return is && touched
	})
	l.Sooner.Raise()
	return late
}

// moment returns now, and notices a pause before it. The caller holds l.mu.
func (l *Liveness) moment() int64 {
	now := l.now()
	l.looked = l.tracker.Awake(now, l.looked, l.watch)
	return now
}

// TakeLate returns the sessions that have timed out, the tracker that found them, and for when the next look is planned, which is
// no later than the next deadline. The leader looks when that time has come, or Sooner is raised.
func (l *Liveness) TakeLate() (late []*session.Session, tracker *session.Tracker, next int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.moment()
	late = l.tracker.Late(now)
	for _, s := range late {
		l.trace.Session(Late, s.ID, time.Duration(s.Timeout)*time.Millisecond, 0)
	}
	// The next look is planned from now, not from when the caller is done with the late ones, so that a pause in between shows, too.
	l.looked, l.due = now, now+l.watch
	if first, ok := l.tracker.Next(); ok {
		l.due = min(first, l.due)
	} else {
		l.due = now + time.Hour.Milliseconds()
	}
	return late, l.tracker, l.due
}

// Retry lets a session that tracker found late be found late again. If spare is true, it may be touched until then. tracker may
// have been replaced meanwhile.
func (l *Liveness) Retry(tracker *session.Tracker, s *session.Session, spare bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if spare {
		tracker.Spare(s, l.moment())
	} else {
		tracker.Retry(s, l.moment())
	}
	l.Sooner.Raise()
}

// For tests of other packages:

// Safe reports whether the leader has confirmed that a session which was touched at a time is alive for slack after that.
func (l *Liveness) Safe(id, at, slack int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tracker.Safe(id, at, slack)
}

// LateAt returns the sessions that will be late at a time if they are not touched, which counts as having found them, and the tracker.
func (l *Liveness) LateAt(at int64) ([]*session.Session, *session.Tracker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tracker.Late(at), l.tracker
}
