package engine

import (
	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// Raft tells followers that an entry is committed together with the next entry, or
// after CommitTimeout, 50 to 100 ms later. On an idle cluster a write through a
// follower, and every watch event on one, would wait that long. So the leader tells them at once, once there is
// a stream ([stream.committed]): before it applies the entry itself, it wakes the goroutines that send
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
				e.Running.Go(func() { e.tell(s.ID, term, first, replaced) })
			}
		}
		ended := false
		select {
		case <-e.moved:
		case <-stop:
			ended = true
		}
		if close(replaced); ended {
			return
		}
	}
}

// tell tells one member, always about the newest entry. It begins with the one at first, which is
// of this term. A member to which there is no stream learns it from Raft, within 100 ms; there will be a stream soon.
func (e *Engine) tell(id raft.ServerID, term, first uint64, stop <-chan struct{}) {
	for {
		index, entryTerm, news := e.known.Get()
		if index < first {
			index, entryTerm = first, term
		}
		if stream := e.transport.stream(id); stream != nil && entryTerm != 0 {
			stream.committed(term, index, entryTerm)
		}
		select {
		case <-news:
		case <-stop:
			return
		}
	}
}
