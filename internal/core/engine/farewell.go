package engine

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Raft stops sending to a removed member at once, without telling it that its removal
// is committed. Requests of its clients would stay unanswered, including a reconfig
// with which one of them removed it. So the leader keeps sending it committed entries
// for a moment, and the removed member serves its clients meanwhile, as a removed
// ZooKeeper server does until it is stopped.

// Farewell is how long a removed member still gets the log. Nothing waits for it, and
// it ends early if the leader changes.
const Farewell = 2 * time.Second

// SendToRemoved sends the log to member x, which the entry at index has removed.
func (e *Engine) SendToRemoved(x proto.Peer, index uint64) {
	term, leads := e.LeaderTerm()
	prev := &raft.Log{Index: index - 1}
	if !leads || e.log.GetLog(prev.Index, prev) != nil {
		return
	}
	began, met := time.Now(), false
	for time.Since(began) < Farewell {
		if now, leads := e.LeaderTerm(); !leads || now != term {
			return
		}
		if election.Find(e.Members(), x.ID) != nil {
			return // it was added again
		}
		last, _, news := e.applied.Get()
		q := raft.AppendEntriesRequest{Term: term, PrevLogEntry: prev.Index, PrevLogTerm: prev.Term}
		for i := prev.Index + 1; i <= last && len(q.Entries) < 64; i++ {
			l := new(raft.Log)
			if e.log.GetLog(i, l) != nil {
				return // truncated meanwhile
			}
			q.Entries = append(q.Entries, l)
		}
		q.LeaderCommitIndex = prev.Index + uint64(len(q.Entries))
		var r raft.AppendEntriesResponse
		if err := e.transport.appendEntries(storage.ServerID(x.ID), raft.ServerAddress(x.Addr), &q, &r); err != nil {
			return
		}
		wait := e.cfg.Contacts.Beat
		switch {
		case r.Success:
			met = true
			if n := len(q.Entries); n > 0 {
				prev = q.Entries[n-1]
			}
			if prev.Index < last {
				continue
			}
		case met || time.Since(began) > e.cfg.Contacts.Lease:
			return // it has started over, or lags too far
		default:
			// Raft's last entries for it are still on their way, or were lost with
			// the connection: continue from the end of the member's log.
			news, wait = nil, 5*time.Millisecond
			if has := min(r.LastLog, prev.Index-1); e.log.GetLog(has, prev) != nil {
				return
			}
		}
		select {
		case <-news:
		case <-time.After(wait):
		case <-e.Stop:
			return
		}
	}
}
