package cluster

import (
	"errors"
	"io"
	"sync/atomic"
	"syscall"

	"github.com/hashicorp/raft"
)

// transport is Raft's network transport with some methods replaced.
type transport struct {
	*raft.NetworkTransport
	m    *Member
	rpcs chan raft.RPC // for Raft's main goroutine
}

// maxPool is the number of idle connections kept to each member.
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

// SetHeartbeatHandler implements raft.Transport. Raft handles all heartbeats in a
// goroutine of their own, so that they need not wait for the disk. But a heartbeat that
// changes the term could then set an earlier term than the main goroutine has just
// begun, and may even lead in (hashicorp/raft, issue 695). So only heartbeats that
// change nothing are handled like this; the others go to the main goroutine.
func (t transport) SetHeartbeatHandler(handle func(raft.RPC)) {
	t.NetworkTransport.SetHeartbeatHandler(func(rpc raft.RPC) {
		q, ok := rpc.Command.(*raft.AppendEntriesRequest)
		if ok && t.m.raft.terms.during(q.Term, func() bool {
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

// terms keeps Raft's main goroutine from beginning a term while a heartbeat is being
// handled in another goroutine.
type terms struct {
	newest atomic.Uint64 // the newest term that Raft has begun
	turn   turn          // held while a heartbeat is handled or newest is advanced
}

func newTerms() terms { return terms{turn: newTurn()} }

// during calls f, with no new term beginning meanwhile, and returns its result. It
// returns false without calling f if term is not the newest.
func (t *terms) during(term uint64, f func() bool) bool {
	t.turn.take()
	defer t.turn.give()
	return term == t.newest.Load() && f()
}

// begin is called before Raft stores a term.
func (t *terms) begin(term uint64) {
	if term <= t.newest.Load() { // has begun already
		return
	}
	t.turn.take()
	t.newest.Store(term)
	t.turn.give()
}

// renewed retries a call that failed because the other side had closed the
// connection. After a member restarts, the pool still has connections to its previous
// run, which fail only when used; a vote request lost on one can cost an election.
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

// RequestVote implements raft.Transport. It counts a vote for this member as
// accepting it as the leader, in case it is elected.
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

// InstallSnapshot implements raft.Transport. After the snapshot it sends an empty
// entry with the index and term of the last entry that the snapshot covers. If the
// receiver's log is at least as long as the snapshot, Raft there does not take that
// term from the snapshot but looks in its log; with a different term in it, it would
// refuse everything that follows, and be sent the snapshot again and again.
func (t transport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, q *raft.InstallSnapshotRequest, r *raft.InstallSnapshotResponse, data io.Reader) error {
	err := t.NetworkTransport.InstallSnapshot(id, target, q, r, data)
	if err != nil || !r.Success {
		return err
	}
	// If this fails, the next entries are refused and the snapshot is sent again.
	t.AppendEntries(id, target, &raft.AppendEntriesRequest{
		RPCHeader: q.RPCHeader, Term: q.Term,
		Entries: []*raft.Log{{Index: q.LastLogIndex, Term: q.LastLogTerm, Type: raft.LogNoop}},
	}, new(raft.AppendEntriesResponse))
	return nil
}

// AppendEntriesPipeline implements raft.Transport. The returned pipeline avoids a
// deadlock in Raft: its replication stops reading answers at the first refusal. If it
// is sending at that time, and the pipeline is full, it blocks: this leader would
// never send to that member again, and Raft's shutdown would hang.
func (t transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	inner, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	p := &pipeline{AppendPipeline: inner, answers: make(chan raft.AppendFuture), done: make(chan struct{})}
	t.m.wg.Go(p.forward)
	return p, nil
}
