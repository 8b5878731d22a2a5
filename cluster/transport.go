package cluster

import (
	"errors"
	"io"
	"sync/atomic"
	"syscall"

	"github.com/hashicorp/raft"
)

// transport is Raft's own transport, except for the methods below.
type transport struct {
	*raft.NetworkTransport
	m    *Member
	rpcs chan raft.RPC // for Raft's main goroutine
}

// maxPool is how many idle connections to each member are kept.
const maxPool = 3

func newTransport(m *Member, layer raft.StreamLayer) transport {
	t := transport{m: m, rpcs: make(chan raft.RPC), NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: layer, MaxPool: maxPool, Timeout: peerTimeout, Logger: raftLogger(m.cfg.Log), MsgpackUseNewTimeFormat: true,
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
// nothing is handled at once, and any other in its turn. Raft would handle all
// of them beside all else, so that they need not wait for the disk. But one that
// sets the term could take this member back to it from a later one, which it may
// even lead by then (hashicorp/raft, issue 695).
func (t transport) SetHeartbeatHandler(handle func(raft.RPC)) {
	t.NetworkTransport.SetHeartbeatHandler(func(rpc raft.RPC) {
		q, ok := rpc.Command.(*raft.AppendEntriesRequest)
		if ok && t.m.terms.during(q.Term, func() bool {
			if q.Term != t.m.raft.CurrentTerm() || t.m.raft.State() != raft.Follower {
				return false
			}
			handle(rpc)
			return true
		}) {
			return
		}
		t.pass(rpc)
	})
}

// terms has each heartbeat that is handled beside all else be over before
// Raft's main goroutine begins another term.
type terms struct {
	newest atomic.Uint64 // that Raft has begun
	turn   turn          // of a heartbeat that is handled, or a term that begins, which may wait for the disk
}

func newTerms() terms { return terms{turn: newTurn()} }

// during does f while no later term begins; false if one has begun, or if f is.
func (t *terms) during(term uint64, f func() bool) bool {
	t.turn.take()
	defer t.turn.give()
	return term == t.newest.Load() && f()
}

// begin is called before Raft stores a term.
func (t *terms) begin(term uint64) {
	if term <= t.newest.Load() { // it is during this one
		return
	}
	t.turn.take()
	t.newest.Store(term)
	t.turn.give()
}

// renewed makes a call again while it fails on a connection that the other side
// has closed. Those that are kept from the time before a member was restarted
// are only found out so, and a vote that is lost to them costs an election.
func renewed(call func() error) (err error) {
	for range maxPool + 1 {
		err = call()
		if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			break
		}
	}
	return err
}

// AppendEntries implements raft.Transport.
func (t transport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	return renewed(func() error { return t.NetworkTransport.AppendEntries(id, target, args, resp) })
}

// RequestVote implements raft.Transport. Who votes for this member takes it for
// the leader, should it be elected.
func (t transport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	asked := t.m.moment()
	err := renewed(func() error { return t.NetworkTransport.RequestVote(id, target, args, resp) })
	if err == nil && resp.Granted {
		t.m.contacts.followed(memberID(id), asked)
	}
	return err
}

// RequestPreVote implements raft.WithPreVote.
func (t transport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return renewed(func() error { return t.NetworkTransport.RequestPreVote(id, target, args, resp) })
}

// TimeoutNow implements raft.Transport.
func (t transport) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return renewed(func() error { return t.NetworkTransport.TimeoutNow(id, target, args, resp) })
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

// AppendEntriesPipeline implements raft.Transport, without a deadlock of Raft's
// own: replication stops reading answers at the first refusal, and when that
// comes while it sends, the sending waits for room that nobody makes. Then this
// leader would never send to that member again, and Raft's shutdown would wait
// for ever.
func (t transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	inner, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	p := &pipeline{AppendPipeline: inner, answers: make(chan raft.AppendFuture), done: make(chan struct{})}
	t.m.wg.Go(p.forward)
	return p, nil
}
