package cluster

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// leaderInfo describes the leader, as far as this member knows.
type leaderInfo struct {
	id        uint64 // 0 if none is known
	addr      string
	changed   chan struct{} // closed when id or addr changes
	suspended chan struct{} // closed when commands waiting for the leader must be given up
}

// knownLeader holds the current leaderInfo. Its methods are safe for concurrent use;
// only watchLeader changes it.
type knownLeader struct {
	mu  sync.Mutex
	now leaderInfo
}

func newKnownLeader() *knownLeader {
	return &knownLeader{now: leaderInfo{changed: make(chan struct{}), suspended: make(chan struct{})}}
}

func (k *knownLeader) get() leaderInfo {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

// set replaces the leader, and reports whether it has changed.
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

// suspend makes proposer.run give up all commands that wait for the leader.
func (k *knownLeader) suspend() {
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.now.suspended)
	k.now.suspended = make(chan struct{})
}

// Leader returns the leader's id, or 0 if no leader is known.
func (m *Member) Leader() uint64 { return m.leader.get().id }

// service holds whether clients can be served.
type service struct {
	changes chan bool     // holds the newest value until Serving's reader takes it
	ready   chan struct{} // closed when clients can be served for the first time
	once    sync.Once     // for closing ready
	unheard chan int64    // from sendTouches to watchLeader; see sayUnheard
}

func newService() service {
	return service{changes: make(chan bool, 1), ready: make(chan struct{}), unheard: make(chan int64)}
}

// set replaces the value in changes. Only watchLeader calls it.
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

// Serving receives true when clients can be served: a leader is known, and
// everything committed until then is applied here. It receives false when clients
// have to be disconnected, so that they try another server, because
//   - no majority could be reached for an election timeout, or a majority refuses
//     connections,
//   - no leader was known for an election timeout,
//   - the leader did not receive this member's touches for two election timeouts,
//   - the state here is older than two election timeouts, or
//   - this member's disk has been stuck for an election timeout while the others
//     have a working leader.
//
// The channel holds only the newest value.
func (m *Member) Serving() <-chan bool { return m.service.changes }

// unheardLimit is for how many election timeouts a member may keep serving clients
// while the leader does not receive its touches, or while its state gets older.
const unheardLimit = 2

// watchLeader keeps track of the leader and decides whether this member serves
// clients.
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
		served    int64                // when serving began, by nowMs
		giveUp    <-chan time.Time     // runs while serving without a leader
		gaveUp    time.Duration        // when giveUp was started, in running time
		caught    chan struct{}        // closed by catchUp; nil if it is not running
		grace     = m.contacts.silence // for electing a leader
		late      <-chan time.Time     // runs while the leader has not received this member's touches
		lateSince time.Duration        // since when, in running time
		// Running time, which stops while this process is paused.
		ran     = func() time.Duration { return time.Duration(m.pulse.moment().ran) * time.Millisecond }
		leading bool // this member leads, and has applied what earlier leaders left
		unheard = unheardLimit * m.contacts.silence
	)
	for {
		seen := *m.pulse.verdict.Load()
		addr, id := m.raft.LeaderWithID()
		n := memberID(id)
		leading = leading && n == m.cfg.ID
		if m.peers != nil && (seen.lost || n == m.cfg.ID && !seen.leads) {
			n, addr = 0, "" // Raft will notice later
		}
		if m.leader.set(n, string(addr)) {
			m.cfg.Log.Info("leader", "id", n, "address", string(addr))
		}
		reason, lost := "", false // why not to serve; whether waiting commands must be given up too
		switch {
		case seen.noMajority:
			reason, lost = "no majority can be reached", true
		case seen.stuck:
			reason, lost = "the disk is stuck", true
		case serving && n != m.cfg.ID && m.peers != nil && m.contacts.behind(m.nowMs()):
			reason = "this member lags behind the leader"
		}
		switch {
		case n != 0:
			giveUp = nil
			if !serving && caught == nil && reason == "" && (n != m.cfg.ID || leading) {
				done := make(chan struct{})
				caught = done
				m.wg.Go(func() { m.catchUp(done) })
			}
		case serving && giveUp == nil:
			giveUp, gaveUp = time.After(grace), ran()
		}
		now := false
		if reason == "" || !serving {
			can := reason == ""
			reason = ""
			select {
			case <-news:
			case <-m.pulse.changed:
			case <-caught:
				caught, now = nil, can
			case <-m.lease.gained:
				now, leading = can, true
			case <-giveUp:
				if left := grace - (ran() - gaveUp); left > 0 { // this process was paused
					giveUp = time.After(left)
				} else {
					reason = "no leader"
				}
			case since := <-m.service.unheard:
				if late = nil; since != allHeard {
					ago := m.since(max(since, served)) // older touches are of earlier clients
					late, lateSince = time.After(unheard-ago), ran()-ago
				}
			case <-late:
				if left := unheard - (ran() - lateSince); left > 0 { // this process was paused
					late = time.After(left)
				} else if late, lateSince = time.After(unheard), ran(); n != m.cfg.ID {
					reason = "the leader does not receive this member's touches"
				}
			case <-m.stop:
				return
			}
		}
		if reason != "" && serving {
			serving, giveUp = false, nil
			m.service.set(false, m.stop) // before logging, which may block
			m.cfg.Log.Warn(reason + ": disconnecting clients")
			if n == 0 || lost { // otherwise requests already sent may complete
				m.leader.suspend()
			}
		}
		if now && !serving {
			serving = true
			served = m.nowMs()
			if late != nil { // the overdue touches are of earlier clients
				late, lateSince = time.After(unheard), ran()
			}
			m.service.set(true, m.stop)
		}
	}
}

// catchUp closes done when everything that was committed when it began is applied
// here. It proposes a command that does nothing, and retries until it is applied.
func (m *Member) catchUp(done chan struct{}) {
	for {
		w, asked := make(result, 1), m.pulse.moment()
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
