package cluster

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// Trace is told what a member does, at the moment when it does it, so that the automata in package spec can compare that
// with their models. Its methods are called concurrently, some with locks held: they must not block, nor call the member.
type Trace interface {
	// Opened is called with the member's storage before anything is read from it. It may wrap the storage's parts, to
	// see what is written.
	Opened(*storage.Storage)
	// Visible says that the entry at index is about to be applied here; entry is nil if it is a list of members.
	Visible(index, term uint64, entry []byte)
	// Restored says that the state is now that of a snapshot, which ends at index.
	Restored(index uint64)
	// Leads says that this member leads in term, has applied all entries of earlier terms, and is about to give all
	// sessions their full timeouts.
	Leads(term uint64)
	// Anew says that all sessions are forgotten. Those that exist after the entry at index begin their timeouts anew, each
	// with Restarts.
	Anew(index uint64)
	// Session says what happens to a session here: its timeout is given for Restarts and Late, and how long ago the
	// client's request came for Touched, Heard and Answered.
	Session(step SessionStep, id int64, timeout, ago time.Duration)
}

// SessionStep is what happens to a session on a member.
type SessionStep int

const (
	Touched  SessionStep = iota // a client's request is about to be carried out here
	Heard                       // another member has reported a touch, which restarts the timeout here
	Restarts                    // its full timeout begins here: it was opened or resumed, or see Anew
	Answered                    // a write or sync of its client is about to be answered
	Late                        // as the leader, this member is about to propose its expiry
	Ended                       // its end was applied here
)

// untraced is the Trace of a member that has none.
type untraced struct{}

func (untraced) Opened(*storage.Storage)                                  {}
func (untraced) Visible(uint64, uint64, []byte)                           {}
func (untraced) Restored(uint64)                                          {}
func (untraced) Leads(uint64)                                             {}
func (untraced) Anew(uint64)                                              {}
func (untraced) Session(SessionStep, int64, time.Duration, time.Duration) {}
