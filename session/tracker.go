package session

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/lockkeeper/lockkeeper/internal/core/timing"
)

// Tracker finds the sessions that are late: not touched for their timeout. Like
// ZooKeeper's ExpiryQueue, it rounds each deadline up to the next multiple of a tick, and
// keeps the sessions with the same deadline in one bucket. So a session becomes late
// after its timeout, and at most one tick after that.
//
// Times are in milliseconds, of any clock that does not go backwards. A Tracker is not
// safe for concurrent use.
type Tracker struct {
	tick     int64
	stood    int64 // how long did not count; deadlines leave it out
	sessions map[int64]*tracked
	buckets  map[int64]map[int64]struct{} // deadline to sessions, without those reported late
}

type tracked struct {
	session   *Session // as last opened or resumed
	deadline  int64
	late      bool  // was reported late, so touches do not count
	confirmed int64 // time of the last touch that the leader is known to have received
}

// NewTracker returns a tracker with a tick of tickMs.
func NewTracker(tickMs int64) *Tracker {
	return &Tracker{tick: tickMs, sessions: map[int64]*tracked{}, buckets: map[int64]map[int64]struct{}{}}
}

// Add starts to track a session that was opened or resumed at the time now, and returns
// its deadline. If the session was tracked before, Add replaces it; if it was reported
// late, it no longer is.
func (t *Tracker) Add(opened *Session, now int64) int64 {
	s := t.sessions[opened.ID]
	if s == nil {
		s = &tracked{confirmed: math.MinInt64 / 2}
		t.sessions[opened.ID] = s
	}
	s.session = opened
	t.move(s, t.deadline(now, s.timeout()))
	return s.deadline + t.stood
}

func (s *tracked) timeout() int64 { return int64(s.session.Timeout) }

// Touch records that a request of the session's client arrived at the time now. It
// returns false, without effect, if the session is not tracked or was reported late.
func (t *Tracker) Touch(id int64, now int64) bool {
	s := t.sessions[id]
	if s == nil || s.late {
		return false
	}
	if d := t.deadline(now, s.timeout()); d > s.deadline { // most touches do not change the deadline
		t.move(s, d)
	}
	return true
}

// Confirm records that the leader, which expires sessions, has received a touch of this
// session at the time at.
func (t *Tracker) Confirm(id int64, at int64) {
	if s := t.sessions[id]; s != nil {
		s.confirmed = max(s.confirmed, at)
	}
}

// Safe reports whether a client that has sent a request at the time now can rely on its
// session. It can if the touches confirmed so far keep the leader from expiring the session
// until two thirds of its timeout, and slackMs, have passed since now. It can also if a
// touch at now or later is confirmed.
func (t *Tracker) Safe(id int64, now, slackMs int64) bool {
	s := t.sessions[id]
	return s != nil && s.confirmed >= now-timing.Unreported(s.timeout(), slackMs)
}

func (t *Tracker) deadline(now, timeout int64) int64 {
	return ((now-t.stood+timeout)/t.tick + 1) * t.tick
}

// move gives a session another deadline, after which it is not late.
func (t *Tracker) move(s *tracked, deadline int64) {
	t.removeFromBucket(s)
	s.deadline, s.late = deadline, false
	b := t.buckets[deadline]
	if b == nil {
		b = map[int64]struct{}{}
		t.buckets[deadline] = b
	}
	b[s.session.ID] = struct{}{}
}

func (t *Tracker) removeFromBucket(s *tracked) {
	if b := t.buckets[s.deadline]; b != nil {
		if delete(b, s.session.ID); len(b) == 0 {
			delete(t.buckets, s.deadline)
		}
	}
}

// Remove stops tracking a session.
func (t *Tracker) Remove(id int64) {
	if s := t.sessions[id]; s != nil {
		t.removeFromBucket(s)
		delete(t.sessions, id)
	}
}

// Len returns the number of sessions that are tracked, including those reported late.
func (t *Tracker) Len() int { return len(t.sessions) }

// Late returns the sessions whose deadline is now or earlier, in order of their ids. It
// reports each session once, until [Tracker.Retry] or [Tracker.Spare]. The sessions are
// those passed to Add: whoever expires one must check that its owner is still the same,
// because if another connection has resumed it meanwhile, its client is alive.
func (t *Tracker) Late(now int64) []*Session {
	var late []*Session
	for deadline, b := range t.buckets {
		if deadline+t.stood > now {
			continue
		}
		for id := range b {
			s := t.sessions[id]
			s.late = true
			late = append(late, s.session)
		}
		delete(t.buckets, deadline)
	}
	slices.SortFunc(late, func(a, b *Session) int { return cmp.Compare(a.ID, b.ID) })
	return late
}

// Next returns the earliest deadline. ok is false if there is none.
func (t *Tracker) Next() (deadline int64, ok bool) {
	for d := range t.buckets {
		if !ok || d+t.stood < deadline {
			deadline, ok = d+t.stood, true
		}
	}
	return deadline, ok
}

// Bucket is the sessions with the same deadline.
type Bucket struct {
	Deadline int64 // ms
	Sessions []int64
}

// Each calls f with each session and its deadline, in no particular order, except for those that Late
// has reported and will not report again. The tracker may change meanwhile.
func (t *Tracker) Each(f func(id, deadline int64)) {
	for id, s := range t.sessions {
		if _, waits := t.buckets[s.deadline][id]; waits {
			f(id, s.deadline+t.stood)
		}
	}
}

// Buckets returns sessions, by deadline, in order of their deadlines, and those with the same
// deadline in order of their ids. It sorts them.
func Buckets(sessions map[int64][]int64) []Bucket {
	buckets := make([]Bucket, 0, len(sessions))
	for _, deadline := range slices.Sorted(maps.Keys(sessions)) {
		slices.Sort(sessions[deadline])
		buckets = append(buckets, Bucket{deadline, sessions[deadline]})
	}
	return buckets
}

// Awake notices a pause of this process before now, and postpones all deadlines. looked is when it last looked for late sessions,
// which it does every watch while there are any sessions; 0 for never. If that was more than twice watch ago, it was paused. What
// clients sent during a pause may still be unread in its sockets. So only half a tick of the time since looked counts, which does no
// harm: a session timeout is at least two ticks, and clients send three times within it. Awake returns looked or, after a pause, now.
func (t *Tracker) Awake(now, looked, watch int64) int64 {
	if slept := now - looked; slept > 2*watch && looked != 0 {
		t.stood += slept - t.tick/2
		return now
	}
	return looked
}

// Advance brings all deadlines nearer by ms, as if that time had passed since now. Sessions for
// which alive returns true are touched instead. It returns the sessions that are late then, in no
// particular order: their deadlines have come, or their timeouts are shorter than ms. It does not
// report them in the sense of Late, which returns them next. No deadline becomes earlier than now.
func (t *Tracker) Advance(now, ms int64, alive func(id int64) bool) (late []int64) {
	soonest := now - t.stood
	for id, s := range t.sessions {
		deadline, touched := max(soonest, s.deadline-ms), alive(id)
		switch {
		case s.late:
			late = append(late, id)
		case touched:
			t.Touch(id, now)
		case deadline == soonest || s.timeout() < ms:
			late = append(late, id)
			t.move(s, soonest)
		default:
			t.move(s, deadline)
		}
	}
	return late
}

// Retry makes Late report a session again, at the next tick after now. It is for an
// expiry whose outcome is unknown. The session stays late, because it may be closed at any
// time, and touches still do not count. Retry does nothing if the session has been added
// again.
func (t *Tracker) Retry(late *Session, now int64) {
	if s := t.sessions[late.ID]; s != nil && s.late && s.session == late {
		t.move(s, t.deadline(now, 0))
		s.late = true
	}
}

// Spare undoes Late for a session whose expiry was refused: it is not late any more, but
// becomes late at the next tick after now unless it is touched. Spare does nothing if the
// session has been added again.
func (t *Tracker) Spare(late *Session, now int64) {
	if s := t.sessions[late.ID]; s != nil && s.late && s.session == late {
		t.move(s, t.deadline(now, 0))
	}
}
