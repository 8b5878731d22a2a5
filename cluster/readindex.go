package cluster

import (
	"errors"

	"github.com/hashicorp/raft"
)

// A read-only command (a sync) must be answered from a state that has everything that was
// acknowledged when it arrived. That needs no entry in the log (Raft's ReadIndex, section
// 6.4 of its thesis): the leader takes its commit index, makes sure that it was still the
// leader then, and the member of the client waits until it has applied the log up to that
// index.

// readIndex answers, on the leader, how far the log must be applied. It has no goroutine.
// Its methods are safe for concurrent use.
type readIndex struct {
	*pulse
	clustered bool
	lease     *lease
	leader    *knownLeader
}

func newReadIndex(cfg *Config, lease *lease, leader *knownLeader, p *pulse) *readIndex {
	return &readIndex{p, cfg.clustered(), lease, leader}
}

// get returns an index such that a member that has applied the entry there has applied
// everything that was committed when get was called. It returns false if this member does
// not lead, or no longer, or does not know yet what is committed, or if over is closed.
//
// asker is the member that asks, if it is another one, and if it knew no later term than
// this member's when it asked; otherwise 0.
func (r *readIndex) get(asker uint64, over <-chan struct{}) (uint64, bool) {
	// This order matters. The term comes first, so that the check at the end covers all of
	// this. The round begins last: whoever agrees to it had voted for no later leader when
	// the index was read, and neither had this member, or it would not lead. If a majority
	// has not, nobody else can have committed anything by then.
	lead := r.leader.get()
	term, leads := r.raft.term()
	// Until an entry of its own term is committed, a leader's commit index may be behind
	// what earlier leaders have committed.
	if !leads || r.raft.begun.Load() != term {
		return 0, false
	}
	commit := r.raft.log.committed(r.raft.CommitIndex())
	round := r.contacts.BeginRound()
	for looked := false; ; looked = true {
		members, err := r.raft.members()
		if err != nil {
			return 0, false
		}
		agreed, news := r.contacts.HasMajority(round, asker, members)
		if agreed {
			break
		}
		if !looked {
			r.look() // sends heartbeats; pulse.run repeats them
		}
		select {
		case <-news:
		case <-lead.changed:
			return 0, false
		case <-over:
			return 0, false
		case <-r.stop:
			return 0, false
		}
	}
	if now, leads := r.raft.term(); !leads || now != term {
		return 0, false
	}
	return r.visible(commit)
}

// visible returns the index of the last entry, not after index, that changes the state. When a
// member has applied that one, its state is as of index: the entries between are Raft's own,
// such as that with which a leader begins, and a member does not notice when it passes them.
func (r *readIndex) visible(index uint64) (uint64, bool) {
	for applied := r.commits.applied(); index > applied; index-- {
		var l raft.Log
		switch err := r.raft.log.GetLog(index, &l); {
		case errors.Is(err, raft.ErrLogNotFound): // it is part of a snapshot of what is applied here
			return r.commits.applied(), true
		case err != nil:
			return 0, false
		}
		if l.Type == raft.LogCommand || l.Type == raft.LogConfiguration && r.clustered {
			break
		}
	}
	return index, true
}

// answer answers the question of another member, which knew no term after newest. If
// newest is not after this member's term, the question itself shows that the asker had
// voted for no later leader; but only for this question, since others may have been
// asked later.
func (r *readIndex) answer(asker, newest uint64, gone <-chan struct{}) (uint64, bool) {
	if newest > r.raft.CurrentTerm() {
		return 0, false
	}
	return r.get(asker, gone)
}
