package propose

import (
	"sync"
	"sync/atomic"
	"time"
)

// Sizes records the sizes of what this member proposes as the leader.
type Sizes struct {
	mu             sync.Mutex
	since          time.Time // when this member began to lead; zero if it does not lead
	last, min, max int64     // bytes

	Entries, Commands atomic.Int64 // proposed, also while another member leads
}

// Lead notes that this member begins or stops leading.
func (p *Sizes) Lead(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = time.Time{}
	if yes {
		p.since = time.Now()
		p.last, p.min, p.max = -1, -1, -1
	}
}

// Reset forgets the sizes.
func (p *Sizes) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.min, p.max = -1, -1, -1
}

// Proposed notes the size of an entry.
func (p *Sizes) Proposed(bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = int64(bytes)
	p.max = max(p.max, p.last)
	if p.min < 0 || p.last < p.min {
		p.min = p.last
	}
}

// Get returns the sizes of the last, the shortest and the longest entry, -1 if there is none, and when this member began to lead, if it
// leads.
func (p *Sizes) Get() (last, least, most int64, since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last, p.min, p.max, p.since
}
