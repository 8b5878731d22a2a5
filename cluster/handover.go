package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/proto"
)

// handOverTimeout is how long a leader tries to hand over.
const handOverTimeout = 1500 * time.Millisecond

// handover makes another member the leader. Its goroutines are those that successor
// starts; they end with the attempt. It has no state, and its methods are safe for
// concurrent use.
type handover struct {
	*pulse
	leader *knownLeader
}

// to makes the member with the given id the leader, or any suitable one if id is 0, so
// that clients need not wait for an election timeout. It returns only when another
// member leads, not already when this one stops leading: the other may lose its
// election, and the next one is won sooner with this member's vote. If this member
// leads again, it retries, until ctx ends or handOverTimeout has passed.
func (h *handover) to(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, handOverTimeout)
	defer cancel()
	// This member stores the next leader's term behind what is pending, and only then knows that leader.
	soon, done := context.WithTimeout(ctx, h.contacts.Lease)
	h.engine.Drain(soon)
	done()
	began := false // whether a transfer was started
	defer func() {
		if began && h.engine.Role() == engine.Leader {
			h.stepDown() // otherwise Raft would accept no entries until its own timeout
		}
	}()
	for {
		changed := h.leader.get().changed
		lead, _ := h.engine.Leader()
		switch {
		case lead == h.id:
			successor, err := h.successor(ctx, id)
			if err == nil {
				began = true
				h.engine.HandOver(successor)
			} else if !errors.Is(err, engine.ErrNotLeader) {
				return err
			}
		case lead == 0:
		case id == 0 || lead == id:
			return nil
		default:
			return fmt.Errorf("server %d leads instead", lead)
		}
		select {
		case <-changed:
		case <-time.After(h.contacts.Lease):
		case <-ctx.Done():
			return errors.New("no other member has become the leader in time")
		}
	}
}

// successor finds a voter that is up and has all of this leader's log: the one with
// the given id or, if id is 0, the first to answer. It returns [engine.ErrNotLeader] if this
// member no longer leads. Raft's own choice, the member with most of the log, may be
// down.
func (h *handover) successor(ctx context.Context, id uint64) (proto.Peer, error) {
	members, err := h.engine.Members()
	if err != nil {
		return proto.Peer{}, err
	}
	type answer struct {
		from proto.Peer
		err  error
	}
	asked, answers := 0, make(chan answer, len(members))
	for _, x := range members {
		if x.Observer || x.ID == h.id || id != 0 && x.ID != id {
			continue
		}
		asked++
		h.Running.Go(func() {
			answers <- answer{x, h.engine.HasLog(ctx, x)}
		})
	}
	nobody := errors.New("no other member can become the leader")
	for range asked {
		select {
		case a := <-answers:
			if a.err == nil || errors.Is(a.err, engine.ErrNotLeader) {
				return a.from, a.err
			}
		case <-ctx.Done():
			return proto.Peer{}, nobody
		}
	}
	return proto.Peer{}, nobody
}
