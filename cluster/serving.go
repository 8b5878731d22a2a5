package cluster

import (
	"sync"
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

// knownLeader follows who leads. Its methods are safe for concurrent use; watchLeader
// is the only one that changes it.
type knownLeader struct {
	mu  sync.Mutex
	now leaderInfo
}

func newKnownLeader() knownLeader {
	return knownLeader{now: leaderInfo{changed: make(chan struct{}), suspended: make(chan struct{})}}
}

func (k *knownLeader) get() leaderInfo {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

// set reports whether another member leads than before.
func (k *knownLeader) set(id uint64, addr string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.now.id == id && k.now.addr == addr {
		return false
	}
	close(k.now.changed)
	k.now.id, k.now.addr, k.now.changed = id, addr, make(chan struct{})
	return true
}

// suspend has all that waits for the leader give up.
func (k *knownLeader) suspend() {
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.now.suspended)
	k.now.suspended = make(chan struct{})
}

// Leader is the id of the member that leads, 0 if none is known to.
func (m *Member) Leader() uint64 { return m.leader.get().id }

// service is whether clients can be served.
type service struct {
	changes chan bool     // the newest value
	ready   chan struct{} // closed when they can for the first time
	once    sync.Once     // of that
	unheard chan int64    // from sendTouches: since when the leader has not heard what this member did, in ms of nowMs; or allHeard
}

func newService() service {
	return service{changes: make(chan bool, 1), ready: make(chan struct{}), unheard: make(chan int64)}
}

// set gives the newest value to whoever asked for changes. Only watchLeader calls it.
func (s *service) set(serves bool, stop <-chan struct{}) {
	if serves {
		s.once.Do(func() { close(s.ready) })
	}
	for {
		select {
		case s.changes <- serves:
			return
		case <-s.changes:
		case <-stop:
			return
		}
	}
}

// Serving gets true when clients can be served: there is a leader, and what was
// committed before is applied here. It gets false, so that clients go to another
// server, when no majority was in reach for an election timeout or connections to
// a majority are refused, when no leader was known for an election timeout or
// did not hear this member for two, when what is applied here is older than two,
// and when this member's disk has been stuck for one while the others go on. Only
// the newest value is kept.
func (m *Member) Serving() <-chan bool { return m.service.changes }

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
		serving   = false
		served    int64                // since when, in ms of nowMs
		giveUp    <-chan time.Time     // runs while there is no leader
		gaveUp    time.Duration        // since when, as ran says
		caught    chan struct{}        // closed when this member caught up with the leader
		grace     = m.contacts.silence // for an election
		late      <-chan time.Time     // runs while the leader does not learn which sessions this member has heard from
		lateSince time.Duration        // since when, as ran says
		// The time in which this process ran.
		ran     = func() time.Duration { return time.Duration(m.moment().ran) * time.Millisecond }
		ours    bool // this member has begun to lead
		unheard = unheardLimit * m.contacts.silence
	)
	for {
		seen := *m.outlook.verdict.Load()
		addr, id := m.raft.LeaderWithID()
		n := memberID(id)
		ours = ours && n == m.cfg.ID
		if m.peers != nil && (seen.lost || n == m.cfg.ID && !seen.leads) {
			n, addr = 0, "" // Raft will learn it later
		}
		if m.leader.set(n, string(addr)) {
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
			case <-m.outlook.changed:
			case <-caught:
				caught, now = nil, can
			case <-m.lease.gained:
				now, ours = can, true
			case <-giveUp:
				if left := grace - (ran() - gaveUp); left > 0 { // this process stood still
					giveUp = time.After(left)
				} else {
					away = "no leader"
				}
			case since := <-m.service.unheard:
				if late = nil; since != allHeard {
					ago := m.since(max(since, served)) // what is older is of clients before
					late, lateSince = time.After(unheard-ago), ran()-ago
				}
			case <-late:
				if left := unheard - (ran() - lateSince); left > 0 { // likewise
					late = time.After(left)
				} else if late, lateSince = time.After(unheard), ran(); n != m.cfg.ID {
					away = "the leader does not hear this member"
				}
			case <-m.stop:
				return
			}
		}
		if away != "" && serving {
			serving, giveUp = false, nil
			m.service.set(false, m.stop) // before anything that may block, as the log may
			m.cfg.Log.Warn(away + ": clients are sent away")
			if n == 0 || lost { // otherwise let requests already sent complete
				m.leader.suspend()
			}
		}
		if now && !serving {
			serving = true
			served = m.nowMs()
			if late != nil { // likewise
				late, lateSince = time.After(unheard), ran()
			}
			m.service.set(true, m.stop)
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
