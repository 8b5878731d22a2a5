package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// watchLeadership starts the leader's duties when this member begins to lead, and
// stops them when it no longer does.
func (m *Member) watchLeadership() {
	var stop chan struct{}
	var duties sync.WaitGroup
	resign := func() {
		m.setLeading(0)
		if stop != nil {
			close(stop)
			duties.Wait()
			stop = nil
		}
	}
	defer resign()
	for {
		select {
		case leading := <-m.engine.LeadershipChanges():
			resign()
			m.wake.Raise() // so that the other members learn it at once
			if !leading {
				continue
			}
			term, ok := m.engine.LeaderTerm()
			if !ok {
				continue // LeadershipChanges will report it next
			}
			asked := m.pulse.moment()
			// Apply everything of earlier terms, so that all sessions that were
			// opened then are known before their timeouts start.
			if !m.inTerm(term, func() error { return m.engine.Barrier(0) }) {
				continue
			}
			// The cluster is new or restored, and its log does not name its id yet. The leader writes that before anybody serves.
			if m.identified() == 0 && !m.inTerm(term, m.identify) {
				continue
			}
			m.pulse.digests.BeginTerm()
			m.cfg.Trace.Leads(term)
			m.setLeading(term)
			m.trackAll()
			stop = make(chan struct{})
			until := stop
			if m.peers != nil {
				m.Running.Go(func() { m.engine.SpreadCommitIndex(term, until) })
			}
			m.Running.Go(func() { m.reap(until) })
			duties.Go(func() { m.lead(term, until) })
			if self, is := m.membership.AppliedMember(m.cfg.ID); (!is || self.Observer) && m.peers != nil {
				m.Running.Go(func() { m.engine.HandOver(m.peers.Ctx) }) // after an error it leads on
			}
			m.pulse.gain(asked)
		case <-m.Stop:
			return
		}
	}
}

// inTerm does something, and does it again if it was refused since this member was handing over its leadership. It gives up, and
// returns false, if that fails otherwise, or this member no longer leads in term by then.
func (m *Member) inTerm(term uint64, do func() error) bool {
	for {
		err := do()
		if err != engine.ErrHandingOver { // otherwise it may go on leading
			return err == nil
		}
		if now, leads := m.engine.LeaderTerm(); !leads || now != term {
			return false
		}
		select {
		case <-time.After(timing.RetryAfter):
		case <-m.Stop:
			return false
		}
	}
}

// identify writes the first entry of a cluster's log that clients can notice: what Restored, Describe
// and Identify do. It does not go through the proposer, which gives up what it holds when no
// majority can be reached. Its origin is 0, which is no member: several may write this entry, one
// after the other.
func (m *Member) identify() error {
	entry := fsm.AppendCommand(fsm.BeginEntry(nil), fsm.Restored())
	e := fsm.Envelope{Time: m.timeOfDay(), Settings: m.proposer.Settings, Count: 2}
	m.replica.View(func(v *fsm.View) {
		e.Batch = propose.NextNumber(propose.FirstNumber(e.Time), v.LastBatch(e.Origin))
		if missing := v.Undescribed(m.cfg.Described(), 0); len(missing) > 0 {
			entry = fsm.AppendCommand(entry, fsm.Describe(missing, 0))
			e.Count++
		}
	})
	entry = fsm.AppendCommand(entry, fsm.Identify(uint64(m.engine.Storage().Identity().Cluster)))
	return m.engine.Propose(fsm.EndEntry(entry, &e), 0)()
}

// identified returns the cluster that the replicated state belongs to; 0 if its log does not
// say so yet.
func (m *Member) identified() (of request.ClusterID) {
	m.replica.View(func(v *fsm.View) { of = request.ClusterID(v.Cluster()) })
	return of
}

// setLeading notes that this member is ready to lead in term, or, if term is 0, that it does not lead.
func (m *Member) setLeading(term uint64) {
	m.proposer.Sizes.Lead(term != 0)
	m.leader.ReadyTerm.Store(term)
}

// lead expires late sessions, until stop is closed.
func (m *Member) lead(term uint64, stop <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	disputed := false
	for {
		select {
		case <-stop:
			return
		case <-m.liveness.Sooner:
		case <-timer.C:
		}
		late, tracker, next := m.liveness.TakeLate()
		was := disputed
		if disputed = m.pulse.verdict.Load().Disputed; disputed && len(late) > 0 || was && !disputed {
			late = nil
			m.trackAll() // no member has served their clients
		}
		for _, s := range late {
			m.proposer.Do(fsm.ExpireSession(s, term), m.expiry(tracker, s), stop)
			m.logExpired(s)
		}
		timer.Reset(time.Duration(next-m.nowMs()) * time.Millisecond)
	}
}

func (m *Member) logExpired(s *session.Session) {
	m.cfg.Log.Info("session expired", "session", session.FormatID(s.ID), "timeoutMs", s.Timeout)
}

// expiry is told the outcome of a command that expires a session, which tracker found late.
func (m *Member) expiry(tracker *session.Tracker, late *session.Session) propose.Outcome {
	return func(r *fsm.Result) {
		if r != nil && r.Code == proto.OK {
			m.liveness.Expired.Add(1)
			return
		}
		// If it was refused, the session had already ended, was resumed by a client, or this member no longer led: the session
		// may then be touched again. If it was lost, it must not be, since the command may still be applied.
		m.liveness.Retry(tracker, late, r != nil)
	}
}

// ErrNoSession is returned if a session does not exist, or has ended.
var ErrNoSession = errors.New("no such session")

// errResumed means that a session did not expire because a client has just resumed it.
var errResumed = errors.New("the session was resumed")

// Expire expires a session now, as if its timeout had passed, and returns when its
// ephemeral znodes are deleted here. It returns ErrNoSession if there is no such
// session. After any other error, among them that of ctx, the session may have ended or not.
func (m *Member) Expire(ctx context.Context, id int64) error {
	for {
		var s *session.Session
		m.replica.View(func(v *fsm.View) { s = v.Sessions().Get(id) })
		if s == nil {
			return ErrNoSession
		}
		done := make(propose.Result, 1)
		m.Propose(fsm.ExpireSession(s, 0), propose.Outcome(func(r *fsm.Result) {
			switch {
			case r == nil:
				done.Lost()
			case r.Code == proto.OK:
				m.liveness.Expired.Add(1)
				done <- nil
			default:
				done <- errResumed // or the session has ended otherwise, which Expire checks
			}
		}), ctx.Done())
		m.logExpired(s)
		select {
		case err := <-done:
			if err != errResumed {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reap periodically deletes empty containers and expired TTL znodes, until stop is closed.
func (m *Member) reap(stop <-chan struct{}) {
	each := time.NewTicker(m.cfg.ReapInterval)
	defer each.Stop()
	for {
		select {
		case <-each.C:
		case <-stop:
			return
		}
		var paths []string
		m.replica.Browse(func(v *fsm.View, step func()) { paths = v.Tree().Reapable(m.timeOfDay(), step) })
		slices.Sort(paths)
		for some := range slices.Chunk(paths, reapAtOnce) {
			// The conditions are checked again when the command is applied: a znode that has got a child stays.
			done := make(propose.Result, len(some))
			for _, p := range some {
				m.proposer.Do(fsm.Reap(p), done, stop)
			}
			for range some {
				select {
				case <-done:
				case <-stop:
					return
				}
			}
		}
	}
}

// reapAtOnce is how many znodes are reaped in a row, before others' commands get their turn.
const reapAtOnce = 1000
