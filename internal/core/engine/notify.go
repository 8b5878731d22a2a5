package engine

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// Raft tells followers that an entry is committed together with the next entry, or
// after CommitTimeout, 50 to 100 ms later. On an idle cluster a write through a
// follower, and every watch event on one, would wait that long. So the leader tells them at once, over the
// stream ([stream.announceCommit]): before it applies the entry itself, it wakes the goroutines that send
// the message. Programs that write through one member and read
// through another then find what they wrote more often, although nobody promises it.

// SpreadCommitIndex tells the other members what is committed, from the beginning of this
// member's leadership in term, when an entry of that term is committed, until stop is closed.
func (e *Engine) SpreadCommitIndex(term uint64, stop <-chan struct{}) {
	// The first entries are Raft's own, so they are not among the commits.
	first := e.Committed()
	if now, leads := e.LeaderTerm(); !leads || now != term {
		return // so the entry at first may be of a later term
	}
	for {
		replaced := make(chan struct{}) // closed when the list of members changes
		for _, s := range e.servers() {
			if s.ID != storage.ServerID(e.disk.ID) {
				e.Running.Go(func() { e.tell(s, term, first, replaced) })
			}
		}
		ended := false
		select {
		case <-e.membersChanged:
		case <-stop:
			ended = true
		}
		if close(replaced); ended {
			return
		}
	}
}

// mostTries limits the retries towards a member that does not have the entry yet.
// They take 30 ms in all; soon after, Raft sends its own message.
const mostTries = 4

// tell tells one member, always about the newest entry. It begins with the one at first, which is
// of this term. A member to which there is no stream is told by a message of its own, one at a time:
// there will be one soon. (If Raft alone told it, a member on a slow link would seem to lag.)
func (e *Engine) tell(s raft.Server, term, first uint64, stop <-chan struct{}) {
	last, tries := uint64(0), 0
	for {
		var again <-chan time.Time
		index, entryTerm, news := e.known.Get()
		if index < first {
			index, entryTerm = first, term
		}
		if index <= last || entryTerm == 0 {
			// Nothing new.
		} else if stream := e.transport.stream(s.ID); stream != nil && stream.announceCommit(term, index, entryTerm) {
			last, tries = index, 0
		} else {
			q := raft.AppendEntriesRequest{Term: term, PrevLogEntry: index, PrevLogTerm: entryTerm, LeaderCommitIndex: index}
			var r raft.AppendEntriesResponse
			err := e.transport.appendEntries(s.ID, s.Address, &q, &r)
			if err == nil && !r.Success && tries < mostTries {
				// A majority has the entry, but it is still on its way to this member.
				tries++
				again = time.After(time.Millisecond << tries)
			} else {
				// Success; or the member does not answer or lags, and Raft will tell it.
				last, tries = index, 0
			}
		}
		select {
		case <-news:
		case <-again:
		case <-stop:
			return
		}
	}
}
