package cluster

import (
	"strconv"
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
// committed before is applied here. It gets false when this member was not in
// touch with a majority for an election timeout, when no leader was known for
// as long as an election may take, or none has heard for as long whom this
// member heard: then clients go to another server. Only the newest value is kept.
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
const unheardLimit = 4

// watchLeader follows who leads, and decides whether this member serves.
func (m *Member) watchLeader() {
	defer m.wg.Done()
	seen := make(chan raft.Observation, 16)
	o := raft.NewObserver(seen, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	m.raft.RegisterObserver(o)
	defer m.raft.DeregisterObserver(o)
	var (
		serving = false
		giveUp  <-chan time.Time        // runs while there is no leader
		caught  chan struct{}           // closed when this member caught up with the leader
		grace   = 2 * m.electionTimeout // an election, and a second one should the votes be split
		deaf    <-chan time.Time        // runs while the leader does not hear of whom this member heard
		look    <-chan time.Time        // runs while this member serves: is there a majority?
		asked   = int64(never)          // when the others were, whether they are there
		ours    bool                    // this member has begun to lead
		unheard = unheardLimit * m.electionTimeout
	)
	for {
		addr, id := m.raft.LeaderWithID()
		n, _ := strconv.ParseUint(string(id), 10, 64)
		m.leadMu.Lock()
		changed := m.current.id != n || m.current.addr != string(addr)
		if changed {
			close(m.current.changed)
			m.current.id, m.current.addr, m.current.changed = n, string(addr), make(chan struct{})
		}
		m.leadMu.Unlock()
		ours = ours && n == m.cfg.ID
		if changed {
			m.cfg.Log.Info("leader", "id", n, "address", string(addr))
		}
		switch {
		case n != 0:
			giveUp = nil
			if !serving && caught == nil && (n != m.cfg.ID || ours) {
				done := make(chan struct{})
				caught = done
				m.wg.Go(func() { m.catchUp(done) })
			}
		case serving && giveUp == nil:
			giveUp = time.After(grace)
		}
		now, away, lost := false, "", false
		select {
		case <-seen:
		case <-caught:
			caught, now = nil, true
		case <-m.leads:
			now, ours = true, true
		case <-giveUp:
			away = "no leader"
		case since := <-m.unheard:
			if deaf = nil; since != heard {
				deaf = time.After(unheard - m.since(since))
			}
		case <-deaf:
			deaf = time.After(unheard)
			if n != m.cfg.ID {
				away = "the leader does not hear this member"
			}
		case <-look:
			var again time.Duration
			if again, lost = m.outOfTouch(&asked); lost {
				away = "no majority in reach"
			}
			look = time.After(again)
		case <-m.stop:
			return
		}
		if away != "" && serving {
			serving, giveUp, look = false, nil, nil
			m.cfg.Log.Warn(away + ": clients are sent away")
			m.setServing(false)
			if n == 0 || lost { // else what was sent goes its way
				m.leadMu.Lock()
				close(m.current.suspended)
				m.current.suspended = make(chan struct{})
				m.leadMu.Unlock()
			}
		}
		if now && !serving {
			serving = true
			if deaf != nil { // that was of clients before
				deaf = time.After(unheard)
			}
			if m.peers != nil {
				look = time.After(m.electionTimeout / 2)
			}
			m.readyOnce.Do(func() { close(m.ready) })
			m.setServing(true)
		}
	}
}

// catchUp closes done when all that was committed when it began is applied here.
func (m *Member) catchUp(done chan struct{}) {
	for {
		w := make(result, 1)
		m.Propose(fsm.Nothing(), w, nil)
		if <-w == nil {
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
