package cluster

import (
	"time"

	"github.com/hashicorp/raft"
)

// Raft sends a member that was removed nothing more, not even that its removal
// is committed. What its clients had asked it by then would stay without an
// answer, and so would the reconfig by which one of them removed it. So the
// leader goes on for a moment to send it what is committed, and it serves for
// so long, as a removed server of ZooKeeper does until it is stopped.

// farewell is how long a member that was removed still gets the log. Nobody
// waits for it, and when another member comes to lead it is over.
const farewell = 2 * time.Second

// sendToRemoved sends the log to a member that was removed by the entry at index.
func (m *Member) sendToRemoved(x MemberInfo, index uint64) {
	term, leads := m.term()
	prev := &raft.Log{Index: index - 1}
	if !leads || m.storage.Log.GetLog(prev.Index, prev) != nil {
		return
	}
	began, met := time.Now(), false
	for time.Since(began) < farewell {
		if now, leads := m.term(); !leads || now != term {
			return
		}
		if members, err := m.members(); err != nil || find(members, x.ID) != nil {
			return // it is back
		}
		last, _, news := m.commits.get()
		q := raft.AppendEntriesRequest{
			RPCHeader: m.rpcHeader(), Term: term,
			PrevLogEntry: prev.Index, PrevLogTerm: prev.Term,
		}
		for i := prev.Index + 1; i <= last && len(q.Entries) < 64; i++ {
			l := new(raft.Log)
			if m.storage.Log.GetLog(i, l) != nil {
				return // cut off meanwhile
			}
			q.Entries = append(q.Entries, l)
		}
		q.LeaderCommitIndex = prev.Index + uint64(len(q.Entries))
		var r raft.AppendEntriesResponse
		if err := m.transport.AppendEntries(serverID(x.ID), raft.ServerAddress(x.Addr), &q, &r); err != nil {
			return
		}
		wait := m.contacts.beat
		switch {
		case r.Success:
			met = true
			if n := len(q.Entries); n > 0 {
				prev = q.Entries[n-1]
			}
			if prev.Index < last {
				continue
			}
		case met || time.Since(began) > m.contacts.sure:
			return // it began anew, or lags
		default:
			// What Raft sent it last is on its way, or was lost with the
			// connection: then it goes on from what the member has.
			news, wait = nil, 5*time.Millisecond
			if has := min(r.LastLog, prev.Index-1); m.storage.Log.GetLog(has, prev) != nil {
				return
			}
		}
		select {
		case <-news:
		case <-time.After(wait):
		case <-m.stop:
			return
		}
	}
}
