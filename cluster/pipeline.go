package cluster

import (
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// transport is Raft's own, but for two faults of Raft that show there.
type transport struct {
	*raft.NetworkTransport
	m *Member
}

// InstallSnapshot implements raft.Transport. Behind the snapshot it sends an
// entry in the place of that at its end, without content: that state is in the
// snapshot. It tells Raft there the end's term, which it does not take from the
// snapshot if its log is as long or longer; with another term in that place
// it would refuse all that comes next, and get the snapshot again and again.
func (t transport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, q *raft.InstallSnapshotRequest, r *raft.InstallSnapshotResponse, data io.Reader) error {
	err := t.NetworkTransport.InstallSnapshot(id, target, q, r, data)
	if err != nil || !r.Success {
		return err
	}
	// If this fails, what comes next is refused, and the snapshot sent again.
	t.AppendEntries(id, target, &raft.AppendEntriesRequest{
		RPCHeader: q.RPCHeader, Term: q.Term,
		Entries: []*raft.Log{{Index: q.LastLogIndex, Term: q.LastLogTerm, Type: raft.LogNoop}},
	}, new(raft.AppendEntriesResponse))
	return nil
}

// AppendEntriesPipeline implements raft.Transport. Replication stops reading
// answers at the first refusal, and when that comes while it sends, the sending
// waits for room that nobody makes. Then this leader would never send to that
// member again, and Raft's shutdown would wait for ever.
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
