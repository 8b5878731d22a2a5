package propose

// A read-only command (a sync) must be answered from a state that has everything that was
// acknowledged when it arrived. That needs no entry in the log (Raft's ReadIndex, section
// 6.4 of its thesis): the leader takes its commit index, makes sure that it was still the
// leader then, and the member of the client waits until it has applied the log up to that
// index.

// ReadIndex returns, on the leader, an index such that a member that has applied the entry there has applied
// everything that was committed when ReadIndex was called. It returns 0 if this member does
// not lead, or no longer, or does not know yet what is committed, or if over is closed.
//
// asker is the member that asks, if it is another one, and otherwise 0; newest is the newest term that
// it knew when it asked. If that is not after this member's term, the question itself shows that the
// asker had voted for no later leader; but only for this question, since others may have been asked later.
func (p *Proposer) ReadIndex(asker, newest uint64, over <-chan struct{}) uint64 {
	// This order matters. The term comes first, so that the check at the end covers all of
	// this. The round begins last: whoever agrees to it had voted for no later leader when
	// the index was read, and neither had this member, or it would not lead. If a majority
	// has not, nobody else can have committed anything by then.
	lead := p.Leader.Get()
	term, leads := p.Engine.LeaderTerm()
	// Until an entry of its own term is committed, a leader's commit index may be behind
	// what earlier leaders have committed.
	if !leads || p.Leader.ReadyTerm.Load() != term || newest > term {
		return 0
	}
	commit := p.Engine.Committed()
	round := p.Contacts.BeginRound()
	for looked := false; ; looked = true {
		agreed, news := p.Contacts.HasMajority(round, asker, p.Engine.Members())
		if agreed {
			break
		}
		if !looked {
			p.Look.Raise() // sends heartbeats; pulse.run of package cluster repeats them
		}
		select {
		case <-news:
		case <-lead.Changed:
			return 0
		case <-over:
			return 0
		case <-p.Stop:
			return 0
		}
	}
	index, ok := p.Engine.StateIndexAt(commit)
	if now, leads := p.Engine.LeaderTerm(); !ok || !leads || now != term {
		return 0
	}
	return index
}
