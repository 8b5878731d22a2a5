package cluster

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// Touch notes that a session was heard of. It reports false if the session is
// at its end, or over is closed; its connection is of no use then.
//
// A client that is answered trusts in its session for two thirds of its timeout
// from when it asked. If the session could end before that, by what the leader
// knows, Touch waits until the leader knows of this.
func (m *Member) Touch(id int64, over <-chan struct{}) bool {
	return m.liveness.touch(id, m.surelyLeads, over, m.stop)
}

// Deadlines tells when the sessions are to end if nothing more is heard of them:
// in ms since the epoch, the earliest first.
func (m *Member) Deadlines() []session.Bucket {
	buckets := m.liveness.deadlines()
	ahead := m.timeOfDay() - m.nowMs()
	for i := range buckets {
		buckets[i].Deadline += ahead
	}
	return buckets
}

// Expired is how many sessions this member has ended because they were late.
func (m *Member) Expired() int64 { return m.liveness.expired.Load() }

// watchLeadership does the leader's duties while this member leads.
func (m *Member) watchLeadership() {
	defer m.wg.Done()
	var stop chan struct{}
	var done chan struct{}
	resign := func() {
		m.setLeading(0)
		if stop != nil {
			close(stop)
			<-done
			stop = nil
		}
	}
	defer resign()
	for {
		select {
		case leading := <-m.raft.LeaderCh():
			resign()
			m.look() // the others are to hear it at once
			if !leading {
				continue
			}
			term, ok := m.term()
			if !ok {
				continue // and the channel says so next
			}
			// Sessions that earlier terms opened must be known before they are timed.
			if err := m.answer(m.raft.Barrier(0)); err != nil {
				continue
			}
			m.setLeading(term)
			m.trackAll()
			stop, done = make(chan struct{}), make(chan struct{})
			if m.peers != nil {
				stop := stop
				m.wg.Go(func() { m.tellCommits(term, stop) })
			}
			go func(stop, done chan struct{}) {
				defer close(done)
				m.lead(term, stop)
			}(stop, done)
			m.lease.gained.raise()
		case <-m.stop:
			return
		}
	}
}

// term is the term in which this member leads, and false if it does not.
func (m *Member) term() (uint64, bool) {
	term := m.raft.CurrentTerm()
	leads := m.raft.State() == raft.Leader
	return term, leads && m.raft.CurrentTerm() == term // terms only rise, so it led in between
}

// setLeading notes that this member has begun to lead in a term, or with 0 that it
// does not lead any more.
func (m *Member) setLeading(term uint64) {
	m.proposals.lead(term != 0)
	m.lease.begun.Store(term)
}

// lead ends sessions that are late, and now and then reaps container and TTL
// znodes.
func (m *Member) lead(term uint64, stop <-chan struct{}) {
	reap := time.NewTicker(m.cfg.ReapInterval)
	defer reap.Stop()
	looked := m.nowMs()
	due, wait := m.liveness.nextLook(looked)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-stop:
			return
		case <-reap.C:
			m.reap()
			continue
		case <-m.liveness.sooner:
		case <-timer.C:
		}
		var late []*session.Session
		var tracker *session.Tracker
		late, tracker, looked = m.liveness.late(due)
		for _, s := range late {
			m.Propose(fsm.ExpireSession(s, term), expiry{m, tracker, s}, nil)
		}
		for _, s := range late { // the log may block
			m.logExpired(s)
		}
		due, wait = m.liveness.nextLook(looked)
		timer.Reset(wait)
	}
}

func (m *Member) logExpired(s *session.Session) {
	m.cfg.Log.Info("session expired", "session", session.FormatID(s.ID), "timeoutMs", s.Timeout)
}

// expiry waits for the end of a late session.
type expiry struct {
	m       *Member
	tracker *session.Tracker // that found it late; it may be replaced by then
	s       *session.Session // as it was found late
}

// Done counts a session that has ended. If its end was refused, the session has
// ended before, or is timed again for the connection that resumed it, or this
// member has lost its place: then it may be heard of again.
func (e expiry) Done(_ *fsm.View, r *fsm.Result) {
	if r.Code == proto.OK {
		e.m.liveness.expired.Add(1)
		return
	}
	e.m.liveness.spare(e.tracker, e.s)
}

// Lost lets the session be found late again. Its end may still be applied, so
// nobody may be answered for it.
func (e expiry) Lost() { e.m.liveness.retry(e.tracker, e.s) }

// ErrNoSession says that there is no such session, or not any more.
var ErrNoSession = errors.New("no such session")

// errResumed says that a session did not end since a client has just resumed it.
var errResumed = errors.New("the session was resumed")

// Expire ends a session now, as if it had not been heard of for its timeout,
// and returns when its ephemerals are gone. The error is ErrNoSession if there is
// no such session; after another one it may have ended or not.
func (m *Member) Expire(id int64) error {
	for {
		var s *session.Session
		m.replica.View(func(v *fsm.View) { s = v.Sessions().Get(id) })
		if s == nil {
			return ErrNoSession
		}
		done := make(result, 1)
		m.Propose(fsm.ExpireSession(s, 0), ordered{m, done}, nil)
		m.logExpired(s)
		if err := <-done; err != errResumed {
			return err
		}
	}
}

// ordered waits for the end of a session that Expire proposed.
type ordered struct {
	m *Member
	result
}

func (o ordered) Done(v *fsm.View, r *fsm.Result) {
	if r.Code != proto.OK {
		o.result <- errResumed // or it ended otherwise, as Expire will see
		return
	}
	o.m.liveness.expired.Add(1)
	o.result.Done(v, r)
}

// result waits for a command whose reply does not matter.
type result chan error

func (r result) Done(*fsm.View, *fsm.Result) { r <- nil }
func (r result) Lost()                       { r <- ErrClosed }

// reap proposes to delete container and TTL znodes whose time has come. What
// is in the log decides: a znode that gets a child meanwhile stays.
func (m *Member) reap() {
	var paths []string
	m.replica.View(func(v *fsm.View) { paths = v.Tree().Reapable(m.timeOfDay()) })
	for _, p := range paths {
		m.Propose(fsm.Reap(p), make(result, 1), nil)
	}
}
