package cluster

import (
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// lease is what this member knows about its own leadership. It has no goroutine. Its
// methods are safe for concurrent use.
type lease struct {
	*pulse

	start  atomic.Int64 // from when the lease runs, by nowMs: election.Contacts.LeaseStart
	gained wake.Signal  // for service.run: this member has begun to lead; see gain
}

func newLease(p *pulse) *lease {
	l := &lease{pulse: p, gained: wake.NewSignal()}
	l.start.Store(timing.Never)
	return l
}

// gain tells service.run that this member has begun to lead. Everything that was
// committed at asked, when it was already the leader, is applied here. The contacts
// must know that first: their state can still be that of a member which had no leader
// for long, and service.run would disconnect the clients at once.
func (l *lease) gain(asked timing.Moment) {
	l.contacts.CaughtUp(asked.Running)
	l.gained.Raise()
}

// surelyLeads reports whether this member leads and a majority has accepted it as
// the leader within the last [timing.Times], so that it was not replaced before then.
// The engine's own state is not enough: it notices late that it was replaced if the disk
// blocks it or this process was paused.
func (l *lease) surelyLeads() bool {
	// Entries that earlier leaders left in the log may close sessions, so they must
	// have been applied.
	if term, leads := l.engine.LeaderTerm(); !leads || l.leader.Begun.Load() != term {
		return false
	}
	if l.since(l.start.Load()) > l.contacts.Lease {
		l.start.Store(l.contacts.LeaseStart(l.nowMs(), l.engine.Members()))
	}
	return l.since(l.start.Load()) <= l.contacts.Lease
}
