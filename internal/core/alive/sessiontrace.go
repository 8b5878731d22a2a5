package alive

import "time"

// Trace is told what happens to sessions here, at the moment when it happens. Its methods are called concurrently, some with
// locks held: they must not block.
type Trace interface {
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
