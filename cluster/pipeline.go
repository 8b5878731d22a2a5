package cluster

import (
	"sync"

	"github.com/hashicorp/raft"
)

// pipeline is an AppendPipeline that closes the underlying one when the follower
// refuses an entry; see [transport.AppendEntriesPipeline].
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

// forward passes the answers on to Raft until the pipeline is closed.
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
		if !f.Response().Success { // refused, or failed
			p.AppendPipeline.Close() // unblocks Raft if it is sending
		}
	}
}
