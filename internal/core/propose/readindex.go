package propose

// A read-only command (a sync) must be answered from a state that has everything that was
// acknowledged when it arrived. That needs no entry in the log (Raft's ReadIndex, section
// 6.4 of its thesis): the leader takes its commit index, makes sure that it was still the
// leader then, and the member of the client waits until it has applied the log up to that
// index.

// ReadIndex answers, on the leader, how far the log must be applied. It has no goroutine.
// Its methods are safe for concurrent use.
type ReadIndex struct{ *Parts }

// Get returns an index such that a member that has applied the entry there has applied
// everything that was committed when Get was called. It returns false if this member does
// not lead, or no longer, or does not know yet what is committed, or if over is closed.
//
// asker is the member that asks, if it is another one, and if it knew no later term than
// this member's when it asked; otherwise 0.
func (r *ReadIndex) Get(asker uint64, over <-chan struct{}) (uint64, bool) {
	// This order matters. The term comes first, so that the check at the end covers all of
	// this. The round begins last: whoever agrees to it had voted for no later leader when
	// the index was read, and neither had this member, or it would not lead. If a majority
	// has not, nobody else can have committed anything by then.
	lead := r.Leader.Get()
	term, leads := r.Engine.LeaderTerm()
	// Until an entry of its own term is committed, a leader's commit index may be behind
	// what earlier leaders have committed.
	if !leads || r.Leader.Begun.Load() != term {
		return 0, false
	}
	commit := r.Engine.Committed()
	round := r.Contacts.BeginRound()
	for looked := false; ; looked = true {
		agreed, news := r.Contacts.HasMajority(round, asker, r.Engine.Members())
		if agreed {
			break
		}
		if !looked {
			r.Look.Raise() // sends heartbeats; pulse.run repeats them
		}
		select {
		case <-news:
		case <-lead.Changed:
			return 0, false
		case <-over:
			return 0, false
		case <-r.Stop:
			return 0, false
		}
	}
	if now, leads := r.Engine.LeaderTerm(); !leads || now != term {
		return 0, false
	}
	return r.Engine.StateIndexAt(commit)
}

// Answer answers the question of another member, which knew no term after newest. If
// newest is not after this member's term, the question itself shows that the asker had
// voted for no later leader; but only for this question, since others may have been
// asked later.
func (r *ReadIndex) Answer(asker, newest uint64, gone <-chan struct{}) (uint64, bool) {
	if newest > r.Engine.Term() {
		return 0, false
	}
	return r.Get(asker, gone)
}
