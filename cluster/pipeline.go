package cluster

import (
	"sync"

	"github.com/hashicorp/raft"
)

// transport is Raft's own, but for a deadlock in its pipelines: replication
// stops reading answers at the first refusal, and when that comes while it
// sends, the sending waits for room that nobody makes. Then this leader would
// never send to that member again, and Raft's shutdown would wait for ever.
type transport struct {
	*raft.NetworkTransport
	m *Member
}

// AppendEntriesPipeline implements raft.Transport.
func (t transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	inner, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	p := &pipeline{AppendPipeline: inner, answers: make(chan raft.AppendFuture), done: make(chan struct{})}
	t.m.wg.Go(p.forward)
	return p, nil
}

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
