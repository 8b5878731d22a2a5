package cluster

import (
	"math"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/raft"
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
	w := &m.watched
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range members {
		switch {
		case x.ID == m.cfg.ID:
			q.Observer = !x.Voter
		case w.since.IsZero() || w.silent[serverID(x.ID)]:
		case x.Voter:
			q.Followers++
		default:
			q.Observers++
		}
	}
	q.Voters = voters(members)
	if !w.since.IsZero() {
		q.Leads = time.Since(w.since)
	}
	q.Last, q.Min, q.Max = w.last, w.min, w.max
	return q, true
}

// ResetProposals forgets the lengths of proposals.
func (m *Member) ResetProposals() {
	m.watched.mu.Lock()
	defer m.watched.mu.Unlock()
	m.watched.last, m.watched.min, m.watched.max = -1, -1, -1
}

// watched is what a member sees of the cluster, the leader more than others.
type watched struct {
	mu             sync.Mutex
	since          time.Time               // when this member began to lead; zero if it does not
	silent         map[raft.ServerID]bool  // members whose heartbeats fail
	follow         map[raft.ServerID]int64 // when members were asked last who then took this one for the leader
	reached        map[raft.ServerID]int64 // when members were asked last who then were there
	asking         map[raft.ServerID]bool  // those that are asked just now
	last, min, max int64
}

func (w *watched) init() {
	w.silent, w.follow = map[raft.ServerID]bool{}, map[raft.ServerID]int64{}
	w.reached, w.asking = map[raft.ServerID]int64{}, map[raft.ServerID]bool{}
}

// followed notes that another member, when it was asked, took this one for the
// leader, or voted for it.
func (w *watched) followed(id raft.ServerID, asked int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.follow[id] = max(w.follow[id], asked)
}

// surelyLeads reports whether this member leads, and was not replaced longer than
// an election timeout ago: since then most of those who vote took it for the
// leader. Raft itself learns that late if the disk holds it up, or if this
// process stood still.
func (m *Member) surelyLeads() bool {
	if m.raft.State() != raft.Leader {
		return false
	}
	if m.since(m.contact.Load()) > m.electionTimeout {
		m.contact.Store(m.newestContact())
	}
	return m.since(m.contact.Load()) <= m.electionTimeout
}

// newestContact is when most of those who vote were asked last who then took
// this member for the leader, itself among them.
func (m *Member) newestContact() int64 {
	return m.majority(m.watched.follow)
}

// never is a time of nowMs.
const never = math.MinInt64 / 2 / int64(time.Millisecond)

// lead begins anew, or ends.
func (w *watched) lead(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = time.Time{}
	if yes {
		w.since = time.Now()
		w.last, w.min, w.max = -1, -1, -1
	}
}

func (w *watched) proposed(bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = int64(bytes)
	w.max = max(w.max, w.last)
	if w.min < 0 || w.last < w.min {
		w.min = w.last
	}
}

// observe learns from Raft whose heartbeats fail. Raft calls it, and waits.
func (w *watched) observe(o *raft.Observation) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch o := o.Data.(type) {
	case raft.FailedHeartbeatObservation:
		w.silent[o.PeerID] = true
	case raft.ResumedHeartbeatObservation:
		delete(w.silent, o.PeerID)
	case raft.PeerObservation: // it is heard of from now on, or no member any more
		delete(w.silent, o.Peer.ID)
	}
	return false // nothing for a channel
}
