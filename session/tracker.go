package session

import (
	"maps"
	"math"
	"slices"
)

// Tracker tells which sessions have not been heard of for their timeout. It
// works in buckets of one tick, as ZooKeeper's ExpiryQueue: a deadline is
// rounded up to the next multiple of the tick, so a session ends between its
// timeout and one tick more after it was last heard of, and never early.
//
// Times are milliseconds of any clock that does not go back. It needs a lock
// around it.
type Tracker struct {
	tick     int64
	sessions map[int64]*tracked
	buckets  map[int64]map[int64]struct{} // deadline -> sessions
}

type tracked struct {
	session   *Session // as it was opened or resumed last
	deadline  int64
	closing   bool  // reported late; its end is on its way through the log
	confirmed int64 // when it was heard of last, as far as whoever ends sessions knows
}

// NewTracker returns a tracker with buckets of tickMs.
func NewTracker(tickMs int64) *Tracker {
	return &Tracker{tickMs, map[int64]*tracked{}, map[int64]map[int64]struct{}{}}
}

// Add begins to track a session that was opened or resumed at now, with the
// timeout and owner that it has since then. A session that was reported late is
// not late any more. Add returns the session's deadline.
func (t *Tracker) Add(opened *Session, now int64) int64 {
	s := t.sessions[opened.ID]
	if s == nil {
		s = &tracked{confirmed: math.MinInt64 / 2}
		t.sessions[opened.ID] = s
	}
	s.session = opened
	t.move(s, t.deadline(now, s.timeout()))
	return s.deadline
}

func (s *tracked) timeout() int64 { return int64(s.session.Timeout) }

// Touch notes that a session was heard of at now. It reports false if the
// session is not tracked or was reported late.
func (t *Tracker) Touch(id int64, now int64) bool {
	s := t.sessions[id]
	if s == nil || s.closing {
		return false
	}
	if d := t.deadline(now, s.timeout()); d > s.deadline { // rarely: most touches fall into the same bucket
		t.move(s, d)
	}
	return true
}

// Confirm notes that the server that ends sessions knows that this one was heard
// of at at.
func (t *Tracker) Confirm(id int64, at int64) {
	if s := t.sessions[id]; s != nil {
		s.confirmed = max(s.confirmed, at)
	}
}

// Safe reports whether a session that was heard of at now will live for two
// thirds of its timeout and for slackMs more, or was confirmed since now.
func (t *Tracker) Safe(id int64, now, slackMs int64) bool {
	s := t.sessions[id]
	return s != nil && s.confirmed >= now-max(0, s.timeout()/3-slackMs)
}

func (t *Tracker) deadline(now, timeout int64) int64 { return ((now+timeout)/t.tick + 1) * t.tick }

func (t *Tracker) move(s *tracked, deadline int64) {
	t.leave(s)
	s.deadline, s.closing = deadline, false
	b := t.buckets[deadline]
	if b == nil {
		b = map[int64]struct{}{}
		t.buckets[deadline] = b
	}
	b[s.session.ID] = struct{}{}
}

func (t *Tracker) leave(s *tracked) {
	if b := t.buckets[s.deadline]; b != nil {
		if delete(b, s.session.ID); len(b) == 0 {
			delete(t.buckets, s.deadline)
		}
	}
}

// Remove forgets a session.
func (t *Tracker) Remove(id int64) {
	if s := t.sessions[id]; s != nil {
		t.leave(s)
		delete(t.sessions, id)
	}
}

// Len is the number of sessions tracked.
func (t *Tracker) Len() int { return len(t.sessions) }

// Late returns the sessions whose time was over at now, in order of their ids,
// each once. They are as Add got them: who ends one must see that its owner is
// still the same, since a connection that has resumed it meanwhile was not silent.
func (t *Tracker) Late(now int64) []*Session {
	var late []*Session
	for deadline, b := range t.buckets {
		if deadline > now {
			continue
		}
		for id := range b {
			s := t.sessions[id]
			s.closing = true
			late = append(late, s.session)
		}
		delete(t.buckets, deadline)
	}
	return Sorted(late)
}

// Next returns the earliest deadline, and false if nothing is tracked.
func (t *Tracker) Next() (deadline int64, ok bool) {
	for d := range t.buckets {
		if !ok || d < deadline {
			deadline, ok = d, true
		}
	}
	return deadline, ok
}

// Bucket is sessions whose time is over at the same moment.
type Bucket struct {
	Deadline int64 // ms
	Sessions []int64
}

// Buckets returns the sessions by their deadlines, both in order. Those that
// were reported late are in none.
func (t *Tracker) Buckets() []Bucket {
	buckets := make([]Bucket, 0, len(t.buckets))
	for _, deadline := range slices.Sorted(maps.Keys(t.buckets)) {
		buckets = append(buckets, Bucket{deadline, slices.Sorted(maps.Keys(t.buckets[deadline]))})
	}
	return buckets
}

// Extend gives every session ms more, for a time in which nobody could be heard.
func (t *Tracker) Extend(ms int64) {
	ms = (ms + t.tick - 1) / t.tick * t.tick
	moved := make(map[int64]map[int64]struct{}, len(t.buckets))
	for d, b := range t.buckets {
		moved[d+ms] = b
	}
	t.buckets = moved
	for _, s := range t.sessions {
		s.deadline += ms
	}
}

// Retry has a session that Late reported be reported again from now on, since
// nobody knows what came of its end. It stays late: its end may still come. Retry
// does nothing if the session was added again since then.
func (t *Tracker) Retry(late *Session, now int64) {
	if s := t.sessions[late.ID]; s != nil && s.closing && s.session == late {
		t.move(s, t.deadline(now, 0))
		s.closing = true
	}
}

// Spare takes back a session that Late reported, since its end was refused: it is
// not late any more, but is reported again from now on if nothing is heard of it.
// Spare does nothing if the session was added again since then.
func (t *Tracker) Spare(late *Session, now int64) {
	if s := t.sessions[late.ID]; s != nil && s.closing && s.session == late {
		t.move(s, t.deadline(now, 0))
	}
}
