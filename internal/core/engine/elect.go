package engine

import (
	"context"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Raft holds no elections on its own here, and ends no leadership. It is made to by messages, as if another member had sent
// them.

// Stand has this member stand for election, by the message with which a
// leader hands over: then the others vote for it even if they still know a leader. It gives up after patience.
func (e *Engine) Stand(patience time.Duration) {
	e.endElection(patience)
	e.cfg.Log.Info("standing for election", "term", e.Term())
	e.transport.give(&raft.TimeoutNowRequest{RPCHeader: e.transport.header()}, patience)
}

// endElection ends this member's candidacy in an election, before it is given TimeoutNow
// again. A candidate that stood because of that message remains one in Raft until its own
// long timeout, even if another member was elected, and until then ignores the next
// TimeoutNow. It gives up after patience.
func (e *Engine) endElection(patience time.Duration) {
	if e.Role() == Candidate {
		e.StepDown(patience)
	}
}

// StepDown turns a leader or a candidate into a follower, by giving Raft a vote
// request of a later term. The request comes with an empty log, so it gets no vote. It
// gives up after patience.
func (e *Engine) StepDown(patience time.Duration) {
	if e.Role() != Follower {
		e.transport.give(&raft.RequestVoteRequest{RPCHeader: e.transport.header(), Term: e.Term() + 1, LeadershipTransfer: true}, patience)
	}
}

// Adopt has Raft store a term, of which another member is the leader, before it hears from that:
// then no earlier leader can count on this member. It does so by a vote request, and Raft may
// give this member its vote, so that nobody else gets it. Adopt gives up after patience, and
// reports whether Raft has the term.
func (e *Engine) Adopt(term uint64, patience time.Duration) bool {
	if e.Term() < term {
		e.transport.give(&raft.RequestVoteRequest{RPCHeader: e.transport.header(), Term: term, LeadershipTransfer: true}, patience)
	}
	return e.Term() >= term
}

// HandOver begins to make another member the leader. If it does not lead soon, the caller must call StepDown: Raft accepts no
// entries until then, or until its own timeout.
func (e *Engine) HandOver(to proto.Peer) {
	// Do not wait for the future: Raft never completes it if it shuts down first.
	e.raft.LeadershipTransferToServer(storage.ServerID(to.ID), raft.ServerAddress(to.Addr))
}

// Drain waits until this leader's disk has all that it has sent to others, or ctx is done. It stores the next leader's term only
// behind that.
func (e *Engine) Drain(ctx context.Context) { e.log.drain(ctx) }

// HasLog waits until another member has this leader's log up to its current end. It returns an error of the connection, of
// ctx, or [ErrNotLeader].
func (e *Engine) HasLog(ctx context.Context, x proto.Peer) error {
	term, leads := e.Leads()
	var last raft.Log
	if err := e.log.GetLog(e.LastIndex(), &last); err != nil || !leads {
		return ErrNotLeader
	}
	for {
		r, err := e.transport.compare(storage.ServerID(x.ID), raft.ServerAddress(x.Addr), e.transport.header(), term, last.Index, last.Term)
		switch {
		case err != nil || r.Success:
			return err
		case r.Term > term: // Raft may not have noticed yet
			return ErrNotLeader
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
