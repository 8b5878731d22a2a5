package cluster

import (
	"sync"

	"github.com/hashicorp/raft"
)

// transport is Raft's own, but for two faults.
//
// There is a deadlock in its pipelines: replication stops reading answers at
// the first refusal, and when that comes while it sends, the sending waits for
// room that nobody makes. Then this leader would never send to that member
// again, and Raft's shutdown would wait for ever.
//
// And heartbeats are handled beside all else, so that they need not wait for
// the disk. But one of a newer term sets the term, which waits for the disk:
// when that is done, this member may long be in a later term, even lead it, and
// goes back to the older one (hashicorp/raft, issue 695).
type transport struct {
	*raft.NetworkTransport
	m    *Member
	rpcs chan raft.RPC // for Raft's main goroutine
}

func newTransport(m *Member, layer raft.StreamLayer) transport {
	t := transport{m: m, rpcs: make(chan raft.RPC), NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: layer, MaxPool: 3, Timeout: peerTimeout, Logger: raftLogger(m.cfg.Log), MsgpackUseNewTimeFormat: true,
	})}
	m.wg.Go(func() {
		for {
			select {
			case rpc := <-t.NetworkTransport.Consumer():
				t.pass(rpc)
			case <-m.peers.ctx.Done():
				return
			}
		}
	})
	return t
}

// pass gives a message to Raft's main goroutine.
func (t transport) pass(rpc raft.RPC) {
	select {
	case t.rpcs <- rpc:
	case <-t.m.peers.ctx.Done():
		rpc.Respond(nil, ErrClosed)
	}
}

// Consumer implements raft.Transport.
func (t transport) Consumer() <-chan raft.RPC { return t.rpcs }

// SetHeartbeatHandler implements raft.Transport: a heartbeat that changes
// nothing is handled at once, and any other in its turn.
func (t transport) SetHeartbeatHandler(handle func(raft.RPC)) {
	t.NetworkTransport.SetHeartbeatHandler(func(rpc raft.RPC) {
		q, ok := rpc.Command.(*raft.AppendEntriesRequest)
		if ok && q.Term == t.m.raft.CurrentTerm() && t.m.raft.State() == raft.Follower {
			handle(rpc)
		} else {
			t.pass(rpc)
		}
	})
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
