package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Raft holds no elections on its own here, and ends no leadership. It is made to by messages, as if another member had sent
// them. None of these methods may be called on a standalone server.

// Campaign has this member stand for election, by the message with which a
// leader hands over (TimeoutNow): then the others vote for it even if they still know a leader. It gives up after patience.
func (e *Engine) Campaign(patience time.Duration) {
	e.endElection(patience)
	e.cfg.Log.Info("standing for election", "term", e.Term())
	e.transport.inject(&raft.TimeoutNowRequest{RPCHeader: e.transport.header()}, patience)
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

// StepDown turns a leader or a candidate into a follower, which begins the next term: Raft is given a vote
// request of that term. The request comes with an empty log, so it gets no vote. It
// gives up after patience.
func (e *Engine) StepDown(patience time.Duration) {
	if e.Role() != Follower {
		e.transport.inject(&raft.RequestVoteRequest{RPCHeader: e.transport.header(), Term: e.Term() + 1, LeadershipTransfer: true}, patience)
	}
}

// AdvanceTerm begins a term as a follower, before this member hears from the leader of that:
// then no earlier leader can count on this member. It does so by a vote request from this member to itself, so nobody else
// gets its vote in that term. It gives up after patience, and reports whether Raft has the term.
func (e *Engine) AdvanceTerm(term uint64, patience time.Duration) bool {
	if e.Term() < term {
		e.transport.inject(&raft.RequestVoteRequest{RPCHeader: e.transport.header(), Term: term, LeadershipTransfer: true}, patience)
	}
	return e.Term() >= term
}

// handOverTimeout is how long a leader tries to hand over.
const handOverTimeout = 1500 * time.Millisecond

// HandOver makes one of the members with these ids the leader, or any suitable one if there are no
// ids, so that clients need not wait for an election timeout. It returns only when another member
// leads, not already when this one stops leading: the other may lose its
// election, and the next one is won sooner with this member's vote. If this member
// leads again, it retries, until ctx ends or handOverTimeout has passed. It returns
// [ErrMayHandOver] if another member may still become the leader.
func (e *Engine) HandOver(ctx context.Context, to ...uint64) error {
	ctx, cancel := context.WithTimeout(ctx, handOverTimeout)
	defer cancel()
	lease := e.cfg.Contacts.Lease
	// This member stores the next leader's term behind what is pending, and only then knows that leader.
	soon, done := context.WithTimeout(ctx, lease)
	e.log.Drain(soon)
	done()
	began := false // whether a transfer was started
	defer func() {
		if began && e.Role() == Leader {
			e.StepDown(lease) // otherwise Raft would accept no entries until its own timeout
		}
	}()
	for {
		changed := e.cfg.Leader.Get().Changed // so whoever asks this member after HandOver is told of the new leader
		lead, _ := e.Leader()
		switch {
		case lead == e.disk.ID:
			successor, err := e.successor(ctx, to)
			if err == nil {
				began = true
				// Do not wait for the future: Raft never completes it if it shuts
				// down first.
				e.raft.LeadershipTransferToServer(storage.ServerID(successor.ID), raft.ServerAddress(successor.Addr))
			} else if began && err != ErrNotLeader {
				return ErrMayHandOver
			} else if err != ErrNotLeader {
				return err
			}
		case lead == 0:
		case len(to) == 0 || slices.Contains(to, lead):
			return nil
		case began: // the message may still be on its way
			return ErrMayHandOver
		default:
			return fmt.Errorf("server %d leads instead", lead)
		}
		select {
		case <-changed:
		case <-time.After(lease):
		case <-ctx.Done():
			return ErrMayHandOver
		}
	}
}

// ErrMayHandOver is returned if a leadership transfer has not ended in time, or another member than those asked for leads first.
var ErrMayHandOver = errors.New("no other member has become the leader in time")

// successor finds a voter that is up and has all of this leader's log: the first to
// answer of those with these ids, or of all if there are none. It returns [ErrNotLeader] if this
// member no longer leads. Raft's own choice, the member with most of the log, may be
// down.
func (e *Engine) successor(ctx context.Context, to []uint64) (proto.Peer, error) {
	members := e.Members()
	type answer struct {
		from proto.Peer
		err  error
	}
	asked, answers := 0, make(chan answer, len(members))
	for _, x := range members {
		if x.Observer || x.ID == e.disk.ID || len(to) > 0 && !slices.Contains(to, x.ID) {
			continue
		}
		asked++
		e.Running.Go(func() { answers <- answer{x, e.AwaitReplicated(ctx, x)} })
	}
	nobody := errors.New("no other member can become the leader")
	for range asked {
		select {
		case a := <-answers:
			if a.err == nil || a.err == ErrNotLeader {
				return a.from, a.err
			}
		case <-ctx.Done():
			return proto.Peer{}, nobody
		}
	}
	return proto.Peer{}, nobody
}

// AwaitReplicated waits until another member has this leader's log up to its current end. It returns an error of the connection, of
// ctx, or [ErrNotLeader].
func (e *Engine) AwaitReplicated(ctx context.Context, x proto.Peer) error {
	term, leads := e.LeaderTerm()
	var last raft.Log
	if err := e.log.GetLog(e.LastIndex(), &last); err != nil || !leads {
		return ErrNotLeader
	}
	for {
		r, err := e.transport.compare(storage.ServerID(x.ID), raft.ServerAddress(x.Addr), term, last.Index, last.Term)
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
