package cluster

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// leaderInfo is who leads, as far as this member knows.
type leaderInfo struct {
	id        uint64 // 0 if nobody is known to
	addr      string
	changed   chan struct{} // closed when that changes
	suspended chan struct{} // closed when this member stops serving
}

func (m *Member) leader() leaderInfo {
	m.leadMu.Lock()
	defer m.leadMu.Unlock()
	return m.current
}

// Leader is the id of the member that leads, 0 if none is known to.
func (m *Member) Leader() uint64 { return m.leader().id }

// Serving gets true when clients can be served: there is a leader, and what was
// committed before is applied here. It gets false, so that clients go to another
// server, when no majority was in reach for an election timeout or connections to
// a majority are refused, when no leader was known for an election timeout or
// did not hear this member for two, when what is applied here is older than two,
// and when this member's disk has been stuck for one while the others go on. Only
// the newest value is kept.
func (m *Member) Serving() <-chan bool { return m.serving }

func (m *Member) setServing(yes bool) {
	for {
		select {
		case m.serving <- yes:
			return
		case <-m.serving:
		case <-m.stop:
			return
		}
	}
}

// unheardLimit is for how many election timeouts a member answers clients that
// the leader does not hear of: no longer than one that has lost its leader.
const unheardLimit = 2

// watchLeader follows who leads, and decides whether this member serves.
func (m *Member) watchLeader() {
	defer m.wg.Done()
	news := make(chan raft.Observation, 16)
	o := raft.NewObserver(news, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	m.raft.RegisterObserver(o)
	defer m.raft.DeregisterObserver(o)
	var (
		serving  = false
		served   int64                // since when, in ms of nowMs
		giveUp   <-chan time.Time     // runs while there is no leader
		gaveUp   time.Duration        // since when, as ran says
		caught   chan struct{}        // closed when this member caught up with the leader
		grace    = m.contacts.silence // for an election
		deaf     <-chan time.Time     // runs while the leader does not learn which sessions this member has heard from
		deafened time.Duration        // since when, as ran says
		// The time in which this process ran.
		ran     = func() time.Duration { return time.Duration(m.moment().ran) * time.Millisecond }
		ours    bool // this member has begun to lead
		unheard = unheardLimit * m.contacts.silence
	)
	for {
		seen := m.verdict.Load().(verdict)
		addr, id := m.raft.LeaderWithID()
		n := memberID(id)
		ours = ours && n == m.cfg.ID
		if m.peers != nil && (seen.lost || n == m.cfg.ID && !seen.leads) {
			n, addr = 0, "" // Raft will learn it later
		}
		m.leadMu.Lock()
		changed := m.current.id != n || m.current.addr != string(addr)
		if changed {
			close(m.current.changed)
			m.current.id, m.current.addr, m.current.changed = n, string(addr), make(chan struct{})
		}
		m.leadMu.Unlock()
		if changed {
			m.cfg.Log.Info("leader", "id", n, "address", string(addr))
		}
		away, lost := "", false
		switch {
		case seen.noMajority:
			away, lost = "no majority in reach", true
		case seen.stuck:
			away, lost = "the disk is stuck", true
		case serving && n != m.cfg.ID && m.peers != nil && m.contacts.behind(m.nowMs()):
			away = "this member lags behind the leader"
		}
		switch {
		case n != 0:
			giveUp = nil
			if !serving && caught == nil && away == "" && (n != m.cfg.ID || ours) {
				done := make(chan struct{})
				caught = done
				m.wg.Go(func() { m.catchUp(done) })
			}
		case serving && giveUp == nil:
			giveUp, gaveUp = time.After(grace), ran()
		}
		now := false
		if away == "" || !serving {
			can := away == ""
			away = ""
			select {
			case <-news:
			case <-m.judged:
			case <-caught:
				caught, now = nil, can
			case <-m.leads:
				now, ours = can, true
			case <-giveUp:
				if left := grace - (ran() - gaveUp); left > 0 { // this process stood still
					giveUp = time.After(left)
				} else {
					away = "no leader"
				}
			case since := <-m.unheard:
				if deaf = nil; since != allHeard {
					ago := m.since(max(since, served)) // what is older is of clients before
					deaf, deafened = time.After(unheard-ago), ran()-ago
				}
			case <-deaf:
				if left := unheard - (ran() - deafened); left > 0 { // likewise
					deaf = time.After(left)
				} else if deaf, deafened = time.After(unheard), ran(); n != m.cfg.ID {
					away = "the leader does not hear this member"
				}
			case <-m.stop:
				return
			}
		}
		if away != "" && serving {
			serving, giveUp = false, nil
			m.setServing(false) // before anything that may block, as the log may
			m.cfg.Log.Warn(away + ": clients are sent away")
			if n == 0 || lost { // otherwise let requests already sent complete
				m.leadMu.Lock()
				close(m.current.suspended)
				m.current.suspended = make(chan struct{})
				m.leadMu.Unlock()
			}
		}
		if now && !serving {
			serving = true
			served = m.nowMs()
			if deaf != nil { // likewise
				deaf, deafened = time.After(unheard), ran()
			}
			m.readyOnce.Do(func() { close(m.ready) })
			m.setServing(true)
		}
	}
}

// catchUp closes done when all that was committed when it began is applied here.
func (m *Member) catchUp(done chan struct{}) {
	for {
		w, asked := make(result, 1), m.moment()
		m.Propose(fsm.Nothing(), w, nil)
		if <-w == nil {
			m.contacts.caughtUp(asked.ran)
			close(done)
			return
		}
		select {
		case <-m.stop:
			return
		case <-time.After(retryAfter):
		}
	}
}
