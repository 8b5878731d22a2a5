package cluster

import (
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Quorum is what monitoring wants to know of a cluster.
type Quorum struct {
	Voters    int           // members that vote
	Observer  bool          // this member does not
	PeerPort  int           // of this member
	Followers int           // of a leader: those that it hears of, with a vote
	Observers int           // likewise, without one
	Leads     time.Duration // how long this member does; 0 if it does not
	// Bytes of the entries that this member has proposed as the leader: the last,
	// the shortest and the longest; -1 if there is none.
	Last, Min, Max int64
}

// Quorum tells about the cluster; false if this server is alone.
func (m *Member) Quorum() (Quorum, bool) {
	if m.peers == nil {
		return Quorum{}, false
	}
	var q Quorum
	if _, port, err := net.SplitHostPort(m.cfg.addr()); err == nil {
		q.PeerPort, _ = strconv.Atoi(port)
	}
	members, _ := m.members() // none if this member is closed
	if self := find(members, m.cfg.ID); self != nil {
		q.Observer = !self.Voter
	}
	q.Voters = voters(members)
	p := &m.proposals
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.since.IsZero() {
		q.Leads = time.Since(p.since)
		q.Followers, q.Observers = m.contacts.present(m.nowMs())
	}
	q.Last, q.Min, q.Max = p.last, p.min, p.max
	return q, true
}

// ResetProposals forgets the lengths of proposals.
func (m *Member) ResetProposals() {
	p := &m.proposals
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.min, p.max = -1, -1, -1
}

// proposals are what a leader has proposed, for monitoring.
type proposals struct {
	mu             sync.Mutex
	since          time.Time // when this member began to lead; zero if it does not
	last, min, max int64     // bytes
}

// lead begins anew, or ends.
func (p *proposals) lead(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = time.Time{}
	if yes {
		p.since = time.Now()
		p.last, p.min, p.max = -1, -1, -1
	}
}

func (p *proposals) proposed(bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = int64(bytes)
	p.max = max(p.max, p.last)
	if p.min < 0 || p.last < p.min {
		p.min = p.last
	}
}

// lease is what this member knows of its own leadership.
type lease struct {
	begun    atomic.Uint64 // the term in which it leads, once all from before it is applied here; else 0
	followed atomic.Int64  // when a majority took it for the leader, at least, in ms of nowMs
	gained   signal        // for watchLeader: it has begun to lead
}

func newLease() *lease {
	l := &lease{gained: newSignal()}
	l.followed.Store(never)
	return l
}

// surelyLeads reports whether this member leads, and cannot have been replaced
// longer ago than [times.sure]: since then a majority took it for the leader. Raft
// itself learns that late if the disk holds it up, or if this process stood still.
func (m *Member) surelyLeads() bool {
	// What earlier leaders left in the log may end sessions: it is applied first.
	if term, leads := m.term(); !leads || m.lease.begun.Load() != term {
		return false
	}
	if m.since(m.lease.followed.Load()) > m.contacts.sure {
		members, err := m.members()
		if err != nil {
			return false
		}
		m.lease.followed.Store(m.contacts.lastFollowed(m.nowMs(), members))
	}
	return m.since(m.lease.followed.Load()) <= m.contacts.sure
}
