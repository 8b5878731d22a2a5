package cluster

import (
	"sync"
	"sync/atomic"
	"time"
)

// proposals records the sizes of what this member proposes as the leader.
type proposals struct {
	mu             sync.Mutex
	since          time.Time // when this member began to lead; zero if it does not lead
	last, min, max int64     // bytes

	entries, commands atomic.Int64 // proposed, also as another member
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
