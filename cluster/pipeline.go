package cluster

import (
	"sync"

	"github.com/hashicorp/raft"
)

// pipeline closes itself at the first refusal.
type pipeline struct {
	raft.AppendPipeline
	answers chan raft.AppendFuture
	done    chan struct{} // closed by Close
	once    sync.Once
}

func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.done) })
	return p.AppendPipeline.Close()
}

func (p *pipeline) forward() {
	for {
		var f raft.AppendFuture
		select {
		case f = <-p.AppendPipeline.Consumer():
		case <-p.done:
			return
		}
		select {
		case p.answers <- f:
		case <-p.done:
			return
		}
		if !f.Response().Success { // as after an error, too
			p.AppendPipeline.Close() // lets go of whoever sends
		}
	}
}
