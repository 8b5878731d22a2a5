package cluster

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// transport is Raft's network transport with some methods replaced.
type transport struct {
	*raft.NetworkTransport // nil before open
	raft                   *node
	peers                  *peerPort
	rpcs                   chan raft.RPC  // for Raft's main goroutine
	wg                     sync.WaitGroup // of the transport's goroutines
	now                    func() moment
	followed               func(id uint64, asked moment) // called for a vote that this member gets
	// doubts is incremented when another member may no longer be as it was when it last
	// accepted a message: it answers heartbeats over a new connection, so it may have
	// restarted, or it has begun a later term than this member's.
	doubts atomic.Uint64

	mu   sync.Mutex
	away map[uint64]chan struct{} // see awaitReturn; by id, closed by hasReturned
}

// maxPool is the number of idle connections kept to each member.
const maxPool = 3

func newTransport(n *node, peers *peerPort, now func() moment, followed func(id uint64, asked moment)) *transport {
	return &transport{raft: n, peers: peers, rpcs: make(chan raft.RPC), now: now, followed: followed, away: map[uint64]chan struct{}{}}
}

// open starts passing messages on, until the peer port is closed. The peer port must
// be open.
func (t *transport) open() {
	t.NetworkTransport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: raftLayer{t.peers}, MaxPool: maxPool, Timeout: peerTimeout, Logger: raftLogger(t.peers.log), MsgpackUseNewTimeFormat: true,
	})
	t.wg.Go(func() {
		for {
			select {
			case rpc := <-t.NetworkTransport.Consumer():
				t.pass(rpc)
			case <-t.peers.ctx.Done():
				return
			}
		}
	})
}

// header returns the header for Raft messages sent by this member.
func (t *transport) header() raft.RPCHeader {
	id := serverID(t.raft.id)
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: t.EncodePeer(id, t.LocalAddr())}
}

// pass gives a message to Raft's main goroutine.
func (t *transport) pass(rpc raft.RPC) {
	if _, stand := rpc.Command.(*raft.TimeoutNowRequest); stand {
		t.endElection(peerTimeout)
	}
	select {
	case t.rpcs <- rpc:
	case <-t.peers.ctx.Done():
		rpc.Respond(nil, ErrClosed)
	}
}

// give has Raft handle a message as if another member had sent it. It gives up after
// patience.
func (t *transport) give(message any, patience time.Duration) {
	answered := make(chan raft.RPCResponse, 1)
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case t.rpcs <- raft.RPC{Command: message, RespChan: answered}:
	case <-late.C:
		return
	case <-t.peers.ctx.Done():
		return
	}
	select {
	case <-answered:
	case <-late.C:
	case <-t.peers.ctx.Done():
	}
}

// endElection ends this member's candidacy in an election, before it is given TimeoutNow
// again. A candidate that stood because of that message remains one in Raft until its own
// long timeout, even if another member was elected, and until then ignores the next
// TimeoutNow. It gives up after patience.
func (t *transport) endElection(patience time.Duration) {
	if t.raft.State() == raft.Candidate {
		t.stepDown(patience)
	}
}

// stepDown turns a leader or a candidate into a follower, by giving Raft a vote
// request of a later term. The request comes with an empty log, so it gets no vote. It
// gives up after patience.
func (t *transport) stepDown(patience time.Duration) {
	if t.raft.State() != raft.Follower {
		t.give(&raft.RequestVoteRequest{RPCHeader: t.header(), Term: t.raft.CurrentTerm() + 1, LeadershipTransfer: true}, patience)
	}
}

// Consumer implements raft.Transport.
func (t *transport) Consumer() <-chan raft.RPC { return t.rpcs }

// SetHeartbeatHandler implements raft.Transport. Raft handles all heartbeats in a
// goroutine of their own, so that they need not wait for the disk. But a heartbeat that
// changes the term could then set an earlier term than the main goroutine has just
// begun, and may even lead in (hashicorp/raft, issue 695). So only heartbeats that
// change nothing are handled like this; the others go to the main goroutine.
func (t *transport) SetHeartbeatHandler(handle func(raft.RPC)) {
	t.NetworkTransport.SetHeartbeatHandler(func(rpc raft.RPC) {
		q, ok := rpc.Command.(*raft.AppendEntriesRequest)
		if ok && t.raft.terms.during(q.Term, func() bool {
			if q.Term != t.raft.CurrentTerm() || t.raft.State() != raft.Follower {
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

// AppendEntries implements raft.Transport. If it cannot send entries, it returns when the
// member has returned; see awaitReturn.
func (t *transport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := t.appendEntries(id, target, args, resp)
	heartbeat := args.PrevLogEntry == 0 && len(args.Entries) == 0 && args.LeaderCommitIndex == 0
	if err != nil && !heartbeat {
		t.awaitReturn(memberID(id), args.Term)
	}
	return err
}

// appendEntries is AppendEntries for callers that need the error at once.
func (t *transport) appendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	return renewed(func() error { return t.NetworkTransport.AppendEntries(id, target, args, resp) })
}

// awaitReturn blocks until a member answers a heartbeat, or this one stops leading in term,
// or the other is removed or moves. Raft calls it between a failure to replicate to that
// member and the next attempt. By itself it would wait longer after each failure, up to
// 10 s, and send a member that is back nothing for that long: there might be no majority
// without it. Since it fails only once in an absence now, it waits for 10 ms.
func (t *transport) awaitReturn(id, term uint64) {
	t.mu.Lock()
	back := t.away[id]
	if back == nil {
		back = make(chan struct{})
		t.away[id] = back
	}
	t.mu.Unlock()
	// pulse calls hasReturned after either of these has changed.
	if now, leads := t.raft.term(); !leads || now != term {
		return
	}
	if members, err := t.raft.members(); err != nil || find(members, id) == nil {
		return
	}
	select {
	case <-back:
	case <-t.peers.ctx.Done():
	}
}

// hasReturned ends the calls of awaitReturn for a member.
func (t *transport) hasReturned(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if back := t.away[id]; back != nil {
		close(back)
		delete(t.away, id)
	}
}

// RequestVote implements raft.Transport. It counts a vote for this member as
// accepting it as the leader, in case it is elected.
func (t *transport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	asked := t.now()
	err := renewed(func() error { return t.NetworkTransport.RequestVote(id, target, args, resp) })
	if err == nil && resp.Granted {
		t.followed(memberID(id), asked)
	}
	return err
}

// RequestPreVote implements raft.WithPreVote.
func (t *transport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return renewed(func() error { return t.NetworkTransport.RequestPreVote(id, target, args, resp) })
}

// TimeoutNow implements raft.Transport.
func (t *transport) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return renewed(func() error { return t.NetworkTransport.TimeoutNow(id, target, args, resp) })
}

// InstallSnapshot implements raft.Transport. After the snapshot it sends an empty
// entry with the index and term of the last entry that the snapshot covers. If the
// receiver's log is at least as long as the snapshot, Raft there does not take that
// term from the snapshot but looks in its log; with a different term in it, it would
// refuse everything that follows, and be sent the snapshot again and again. A failure is
// returned when the member has returned; see awaitReturn.
func (t *transport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, q *raft.InstallSnapshotRequest, r *raft.InstallSnapshotResponse, data io.Reader) error {
	err := t.NetworkTransport.InstallSnapshot(id, target, q, r, data)
	if err != nil {
		t.awaitReturn(memberID(id), q.Term)
	}
	if err != nil || !r.Success {
		return err
	}
	// If this fails, the next entries are refused and the snapshot is sent again.
	t.appendEntries(id, target, &raft.AppendEntriesRequest{
		RPCHeader: q.RPCHeader, Term: q.Term,
		Entries: []*raft.Log{{Index: q.LastLogIndex, Term: q.LastLogTerm, Type: raft.LogNoop}},
	}, new(raft.AppendEntriesResponse))
	return nil
}

// AppendEntriesPipeline implements raft.Transport. The returned pipeline avoids a
// deadlock in Raft: its replication stops reading answers at the first refusal. If it
// is sending at that time, and the pipeline is full, it blocks: this leader would
// never send to that member again, and Raft's shutdown would hang.
//
// It also leaves out most of the messages without entries that Raft sends every 50 to
// 100 ms; see [pipeline.AppendEntries].
func (t *transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	inner, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	p := &pipeline{AppendPipeline: inner, answers: make(chan raft.AppendFuture), done: make(chan struct{}), doubts: &t.doubts}
	t.wg.Go(p.forward)
	return p, nil
}
