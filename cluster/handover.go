package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// handOverTimeout is how long a leader tries to hand over.
const handOverTimeout = 1500 * time.Millisecond

// handOver makes another member the leader, so that nobody waits for an
// election: the one of that id or, if it is 0, any that is fit to. It returns
// when another leads, and not when this one ceases to: the other may lose its
// election, and the next is won sooner with this member's vote. If this one
// leads again, it tries once more.
func (m *Member) handOver(to uint64) error {
	ctx, cancel := context.WithTimeout(m.peers.ctx, handOverTimeout)
	defer cancel()
	began := false // a transfer
	defer func() {
		if began && m.raft.State() == raft.Leader {
			m.stepDown() // Raft would take no entry until its own timeout
		}
	}()
	for {
		changed := m.leader.get().changed
		_, lead := m.raft.LeaderWithID()
		switch {
		case lead == serverID(m.cfg.ID):
			successor, err := m.successor(ctx, to)
			if err == nil {
				began = true
				// What comes of it is not asked for: Raft never says if it is
				// shut down before it looks at it.
				m.raft.LeadershipTransferToServer(serverID(successor.ID), raft.ServerAddress(successor.Addr))
			} else if !errors.Is(err, ErrNotLeader) {
				return err
			}
		case lead == "":
		case to == 0 || lead == serverID(to):
			return nil
		default:
			return fmt.Errorf("server %s leads instead", lead)
		}
		select {
		case <-changed:
		case <-time.After(m.contacts.sure):
		case <-ctx.Done():
			return errors.New("nobody has taken over in time")
		}
	}
}

// successor finds a voting member that is there and has this leader's log: the one of
// that id or, if it is 0, the first to say so. It fails with [ErrNotLeader] if this
// member leads no more. Raft would take one that has most of the log, also if it
// is down.
func (m *Member) successor(ctx context.Context, id uint64) (MemberInfo, error) {
	members, err := m.members()
	if err != nil {
		return MemberInfo{}, err
	}
	type answer struct {
		from MemberInfo
		err  error
	}
	asked, answers := 0, make(chan answer, len(members))
	for _, x := range members {
		if !x.Voter || x.ID == m.cfg.ID || id != 0 && x.ID != id {
			continue
		}
		asked++
		m.wg.Go(func() {
			answers <- answer{x, m.hasLog(ctx, serverID(x.ID), raft.ServerAddress(x.Addr))}
		})
	}
	nobody := errors.New("nobody can take over")
	for range asked {
		select {
		case a := <-answers:
			if a.err == nil || errors.Is(a.err, ErrNotLeader) {
				return a.from, a.err
			}
		case <-ctx.Done():
			return MemberInfo{}, nobody
		}
	}
	return MemberInfo{}, nobody
}

// hasLog waits until another member has this leader's log as far as it goes now.
func (m *Member) hasLog(ctx context.Context, id raft.ServerID, addr raft.ServerAddress) error {
	term, leads := m.term()
	var last raft.Log
	if err := m.storage.Log.GetLog(m.raft.LastIndex(), &last); err != nil || !leads {
		return errors.Join(err, ErrNotLeader)
	}
	for {
		q := raft.AppendEntriesRequest{RPCHeader: m.rpcHeader(), Term: term, PrevLogEntry: last.Index, PrevLogTerm: last.Term}
		var r raft.AppendEntriesResponse
		switch err := m.transport.AppendEntries(id, addr, &q, &r); {
		case err != nil || r.Success:
			return err
		case r.Term > term: // Raft may not have told this member yet
			return ErrNotLeader
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
