package cluster

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/stopwatch"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// service decides whether this member serves clients. Its goroutines are run, which
// ends with the member, and catchUp, which run starts.
type service struct {
	*pulse
	proposer *propose.Proposer

	changes        chan bool     // holds the newest value until Serving's reader takes it
	ready          chan struct{} // closed when clients can be served for the first time
	once           sync.Once     // for closing ready
	elections      stopwatch.Stopwatch
	unheard        atomic.Int64 // since when, in running time, the leader has not received this member's touches, or allHeard
	unheardChanged wake.Signal  // for run

	// Only run uses these.
	serving    bool
	began      int64            // when serving began, in running time
	giveUp     countdown        // runs while serving without a leader: the time for electing one
	late       countdown        // runs while the leader has not received this member's touches
	alone      time.Time        // when the last leader was lost, or this service was made
	lostLeader uint64           // the id of the leader that was lost last
	judge      <-chan time.Time // when to say so; nil if there is nothing to say
	leaderless bool             // it was logged that there is no leader, and not yet that there is one
	warned     bool             // it was logged that this member cannot serve, and not yet that it can
}

func newService(p *pulse, proposer *propose.Proposer) *service {
	ran := func() time.Duration { return time.Duration(p.moment().Running) * time.Millisecond }
	return &service{
		pulse: p, proposer: proposer,
		changes: make(chan bool, 1), ready: make(chan struct{}), unheardChanged: wake.NewSignal(), alone: time.Now(),
		giveUp: countdown{length: p.contacts.ElectionTimeout, ran: ran}, late: countdown{length: timing.UnheardLimit * p.contacts.ElectionTimeout, ran: ran},
	}
}

// set replaces the value in changes. Only run calls it.
func (s *service) set(serves bool) {
	if serves {
		s.once.Do(func() { close(s.ready) })
	}
	select {
	case <-s.changes:
	default:
	}
	s.changes <- serves // nobody else sends, so there is room
}

// A countdown ends when a length of running time has passed, which stops while this
// process is paused.
type countdown struct {
	length time.Duration
	ran    func() time.Duration // running time
	began  time.Duration        // when it was started, in running time
	timer  <-chan time.Time     // nil if it is stopped
}

// start starts it again, as if it had begun ago.
func (c *countdown) start(ago time.Duration) {
	c.timer, c.began = time.After(c.length-ago), c.ran()-ago
}

func (c *countdown) stop() { c.timer = nil }

// ended is called when the timer fires, and reports whether the time has passed. If
// not, since this process was paused, the timer runs for the rest.
func (c *countdown) ended() bool {
	left := c.length - (c.ran() - c.began)
	if left > 0 {
		c.timer = time.After(left)
	}
	return left <= 0
}

// noteLeader notes who leads, as far as the engine and the pulse know. It returns the leader's id, 0 if none is known.
func (s *service) noteLeader(seen election.Verdict) uint64 {
	leader, addr := s.engine.Leader()
	if s.peers != nil && (seen.NoLeader || leader == s.id && !seen.Leads) {
		leader, addr = 0, "" // the engine will notice later
	}
	was := s.leader.Get()
	if !s.leader.Set(leader, addr) {
		return leader
	}
	if s.peers != nil && leader != 0 {
		if was.ID != 0 {
			s.alone = time.Now() // there is another one already
		}
		s.elections.Since(s.alone)
	}
	s.alone = time.Now()
	if leader != 0 {
		s.log.Info("leader", "id", leader, "address", addr)
	} else {
		s.log.Info("no leader is known", "was", was.ID)
	}
	if was.ID != 0 && was.ID != s.id && s.judge == nil {
		s.lostLeader, s.judge = was.ID, time.After(s.contacts.Lease)
	}
	if leader != 0 && s.leaderless {
		s.leaderless = false
		s.log.Warn("there is a leader again", "id", leader, "address", addr)
	}
	return leader
}

// sayLost logs that the leader is gone or has handed over, unless it leads again. A member that has
// failed, or was removed, has said what is the matter with it.
func (s *service) sayLost() {
	if s.Failed.Load() {
		return
	}
	switch now := s.leader.Get(); now.ID {
	case s.lostLeader:
	case 0:
		s.leaderless = true
		s.log.Warn("the leader is gone, and there is no other yet", "was", s.lostLeader)
	default:
		s.log.Warn("the leader has changed", "was", s.lostLeader, "leader", now.ID, "address", now.Addr)
	}
}

// run keeps track of the leader and decides whether this member serves clients.
func (s *service) run() {
	news, stop := s.engine.WatchLeader()
	defer stop()
	var (
		caught  chan struct{} // closed by catchUp; nil if it is not running
		applied bool          // since the last turn, catchUp or pulse.gain has applied what was committed when it began
	)
	for {
		seen := *s.verdict.Load()
		leader := s.noteLeader(seen)
		reason, lost := s.hindered(seen)
		if s.serving && reason != "" {
			s.disconnect(reason, lost || leader == 0)
			continue
		}
		able := reason == "" && leader != 0 && (leader != s.id || s.leads())
		if able && applied && !s.serving && !s.behind() { // it may have taken long
			s.serve()
		}
		applied = false
		switch {
		case leader != 0:
			s.giveUp.stop()
			if able && !s.serving && caught == nil {
				done := make(chan struct{})
				caught = done
				s.Running.Go(func() { s.catchUp(done) })
			}
		case s.serving && s.giveUp.timer == nil:
			s.giveUp.start(0)
		}
		if seen.NoMajority && !s.serving && !s.warned {
			if missing := s.contacts.Missing(); missing != "" { // else it is in no cluster yet
				s.warned = true
				s.log.Warn(noMajority+": serving no clients", "missing", missing)
			}
		}
		select {
		case <-news:
		case <-s.changed:
		case <-caught:
			caught, applied = nil, true
		case <-s.gained:
			applied = true
		case <-s.judge:
			s.judge = nil
			s.sayLost()
		case <-s.giveUp.timer:
			if s.giveUp.ended() {
				s.disconnect("no leader", true)
			}
		case <-s.unheardChanged:
			since := s.unheard.Load()
			if s.late.stop(); since != allHeard {
				s.late.start(time.Duration(s.moment().Running-max(since, s.began)) * time.Millisecond) // older touches are of earlier clients
			}
		case <-s.late.timer:
			if s.late.ended() {
				if s.late.start(0); s.serving && leader != s.id {
					s.disconnect("the leader does not receive this member's touches", leader == 0)
				}
			}
		case <-s.Stop:
			return
		}
	}
}

const noMajority = "no majority can be reached"

// hindered returns why this member must not serve, which is empty if it may, and whether commands
// that wait for the leader must be given up too.
func (s *service) hindered(seen election.Verdict) (reason string, lost bool) {
	switch {
	case seen.NoMajority:
		return noMajority, true
	case s.Failed.Load():
		return "this member has ended", true
	case seen.Stuck:
		return "the disk is stuck", true
	case seen.Disputed:
		return "the states of members differ, and no majority has the same one", true
	case s.serving && s.behind():
		return "this member lags behind the leader", false
	}
	return "", false
}

func (s *service) behind() bool { return s.peers != nil && s.contacts.Behind(s.nowMs()) }

// disconnect stops serving. With suspend, commands that wait for the leader are given up; otherwise requests already sent
// may complete.
func (s *service) disconnect(reason string, suspend bool) {
	s.serving, s.warned = false, true
	s.giveUp.stop()
	s.set(false)
	var args []any
	if reason == noMajority {
		args = []any{"missing", s.contacts.Missing()}
	}
	s.log.Warn(reason+": disconnecting clients", args...)
	if suspend {
		s.leader.Suspend()
	}
}

// serve begins to serve.
func (s *service) serve() {
	s.serving, s.began = true, s.moment().Running
	if s.late.timer != nil {
		s.late.start(0) // the overdue touches are of earlier clients
	}
	s.set(true)
	level := slog.LevelInfo
	if s.warned {
		s.warned = false
		level = slog.LevelWarn // as the warning before
	}
	s.log.Log(context.Background(), level, "serving clients")
}

// catchUp closes done when everything that was committed when it began is applied
// here. It proposes a command that does nothing, and retries until it is answered.
func (s *service) catchUp(done chan struct{}) {
	for {
		asked := s.moment()
		if s.proposer.Await(fsm.Nothing(), nil) == nil {
			s.contacts.CaughtUp(asked.Running)
			close(done)
			return
		}
		select {
		case <-s.Stop:
			return
		case <-time.After(timing.RetryAfter):
		}
	}
}

// setUnheard notes that the leader has not received this member's touches since the given running time, or with allHeard that
// it has received all.
func (s *service) setUnheard(since int64) {
	s.unheard.Store(since)
	s.unheardChanged.Raise()
}

const allHeard = -1
