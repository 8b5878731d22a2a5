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

// handOver makes the member with id to the leader, or any suitable one if to is 0, so
// that clients need not wait for an election timeout. It returns only when another
// member leads, not already when this one stops leading: the other may lose its
// election, and the next one is won sooner with this member's vote. If this member
// leads again, it retries.
func (m *Member) handOver(to uint64) error {
	ctx, cancel := context.WithTimeout(m.peers.ctx, handOverTimeout)
	defer cancel()
	began := false // whether a transfer was started
	defer func() {
		if began && m.raft.State() == raft.Leader {
			m.pulse.stepDown() // otherwise Raft would accept no entries until its own timeout
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
				// Do not wait for the future: Raft never completes it if it shuts
				// down first.
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
			return errors.New("no other member has become the leader in time")
		}
	}
}

// successor finds a voter that is up and has all of this leader's log: the one with
// the given id or, if id is 0, the first to answer. It returns [ErrNotLeader] if this
// member no longer leads. Raft's own choice, the member with most of the log, may be
// down.
func (m *Member) successor(ctx context.Context, id uint64) (MemberInfo, error) {
	members, err := m.raft.members()
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
	nobody := errors.New("no other member can become the leader")
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

// hasLog waits until another member has this leader's log up to its current end.
func (m *Member) hasLog(ctx context.Context, id raft.ServerID, addr raft.ServerAddress) error {
	term, leads := m.raft.term()
	var last raft.Log
	if err := m.raft.storage.Log.GetLog(m.raft.LastIndex(), &last); err != nil || !leads {
		return errors.Join(err, ErrNotLeader)
	}
	for {
		q := raft.AppendEntriesRequest{RPCHeader: m.transport.header(), Term: term, PrevLogEntry: last.Index, PrevLogTerm: last.Term}
		var r raft.AppendEntriesResponse
		switch err := m.transport.AppendEntries(id, addr, &q, &r); {
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
