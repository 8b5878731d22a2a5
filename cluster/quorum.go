package cluster

import (
	"sync"
	"time"
)

// Quorum holds figures about the cluster for monitoring.
type Quorum struct {
	Voters    int           // number of voters
	Observer  bool          // whether this member is an observer, that is, does not vote
	PeerPort  int           // this member's peer port
	Followers int           // on the leader: other voters that follow it now
	Observers int           // on the leader: observers that follow it now
	Leads     time.Duration // how long this member has been the leader; 0 if it is not
	// Sizes in bytes of the entries that this member has proposed as the leader: the
	// last, the smallest and the largest; -1 if there are none.
	Last, Min, Max int64
}

// proposals records the sizes of what this member proposes as the leader.
type proposals struct {
	mu             sync.Mutex
	since          time.Time // when this member began to lead; zero if it does not lead
	last, min, max int64     // bytes
}

// lead notes that this member begins or stops leading.
func (p *proposals) lead(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = time.Time{}
	if yes {
		p.since = time.Now()
		p.last, p.min, p.max = -1, -1, -1
	}
}

func (p *proposals) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.min, p.max = -1, -1, -1
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
