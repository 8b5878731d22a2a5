package raftlog

import (
	"sync"

	"github.com/hashicorp/raft"
)

// Lists notes where the last two lists of members are in this member's log, committed or not, and
// whether this member has a vote in them. Its methods are safe for concurrent use.
type Lists struct {
	mu             sync.Mutex
	newest, before list
}

type list struct {
	index uint64 // of its entry; 0 if there is none
	votes bool
}

// note is called for every entry that is stored or read, in any order. Raft reads all when it starts.
func (x *Lists) note(l *raft.Log, self raft.ServerID) {
	if l.Type != raft.LogConfiguration {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if l.Index <= x.before.index || l.Index == x.newest.index {
		return
	}
	is := list{index: l.Index}
	for _, s := range raft.DecodeConfiguration(l.Data).Servers {
		if s.ID == self {
			is.votes = s.Suffrage == raft.Voter
		}
	}
	if l.Index < x.newest.index {
		x.before = is
	} else {
		x.before, x.newest = x.newest, is
	}
}

// deleted notes that a part of the log was deleted, which may be its end.
func (x *Lists) deleted(first, last uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for range 2 {
		if first <= x.newest.index && x.newest.index <= last {
			x.newest, x.before = x.before, list{}
		}
	}
}

// LoseVote reports whether the newest list takes this member's vote away and is after committed. voted is whether it has a vote in
// the state after the entry applied, or a later one.
func (x *Lists) LoseVote(applied uint64, voted bool, committed func() uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.before.index > applied { // otherwise it may be older than a snapshot that was received since
		voted = x.before.votes
	}
	return voted && !x.newest.votes && x.newest.index > committed() // read last: a list may be committed meanwhile
}
