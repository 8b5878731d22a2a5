package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// handOver makes another member the leader, so that nobody waits for an
// election: the one of that id or, if it is 0, any that is fit to. It returns
// when another leads, and not when this one ceases to: the other may lose its
// election, and the next is won sooner with this member's vote. If this one
// leads again, it tries once more.
func (m *Member) handOver(to uint64) error {
	ctx, cancel := context.WithTimeout(m.peers.ctx, 5*m.electionTimeout)
	defer cancel()
	for {
		changed := m.leader().changed
		_, lead := m.raft.LeaderWithID()
		switch {
		case m.raft.State() == raft.Leader:
			heir := m.heir(ctx, to)
			if heir == nil {
				return errors.New("nobody can take over")
			}
			// What comes of it is not asked for: Raft never says if it is
			// shut down before it looks at it.
			m.raft.LeadershipTransferToServer(serverID(heir.ID), raft.ServerAddress(heir.Addr))
		case lead == "" || lead == serverID(m.cfg.ID): // nobody leads
		case to == 0 || lead == serverID(to):
			return nil
		default:
			return fmt.Errorf("server %s leads instead", lead)
		}
		select {
		case <-changed:
		case <-time.After(m.electionTimeout):
		case <-ctx.Done():
			return errors.New("nobody has taken over in time")
		}
	}
}

// heir finds a voting member that is there and has this leader's log: the one of
// that id or, if it is 0, the first to say so. It is nil if none does in time.
// Raft would take one that has most of the log, also if it is down.
func (m *Member) heir(ctx context.Context, id uint64) *MemberInfo {
	members, err := m.members()
	if err != nil {
		return nil
	}
	asked, has := 0, make(chan *MemberInfo, len(members))
	for _, x := range members {
		if !x.Voter || x.ID == m.cfg.ID || id != 0 && x.ID != id {
			continue
		}
		asked++
		m.wg.Go(func() {
			if m.hasLog(ctx, serverID(x.ID), raft.ServerAddress(x.Addr)) == nil {
				has <- &x
			} else {
				has <- nil
			}
		})
	}
	for range asked {
		select {
		case x := <-has:
			if x != nil {
				return x
			}
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// hasLog waits until another member has this leader's log as far as it goes now.
func (m *Member) hasLog(ctx context.Context, id raft.ServerID, addr raft.ServerAddress) error {
	term, leads := m.term()
	var last raft.Log
	if err := m.stores.log.GetLog(m.raft.LastIndex(), &last); err != nil || !leads {
		return errors.Join(err, ErrNotLeader)
	}
	for {
		q := raft.AppendEntriesRequest{RPCHeader: m.rpcHeader(), Term: term, PrevLogEntry: last.Index, PrevLogTerm: last.Term}
		var r raft.AppendEntriesResponse
		if err := m.transport.AppendEntries(id, addr, &q, &r); err != nil || r.Success {
			return err
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
