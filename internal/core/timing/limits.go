package timing

import (
	"math"
	"time"
)

// DefaultElectionTimeout tolerates the pauses of a busy machine. Clients usually
// wait less when a leader dies: if its connections break, the others act at once.
const DefaultElectionTimeout = 2 * time.Second

// Times are a member's time limits, all derived from the election timeout.
type Times struct {
	Silence time.Duration // how long the leader, or a majority, may be silent: the election timeout
	Sure    time.Duration // how long a leader is sure that it leads after a majority confirmed it
	Beat    time.Duration // between two heartbeats
}

// For returns the times that follow from an election timeout.
func For(electionTimeout time.Duration) Times {
	return Times{
		Silence: electionTimeout,
		Sure:    Sure(electionTimeout),
		Beat:    Beat(electionTimeout),
	}
}

// Moment is one instant, in ms, by the real clock and in running time.
type Moment struct{ Now, Ran int64 }

// Never is a time long before any other, by either clock.
const Never = math.MinInt64 / 2 / int64(time.Millisecond)

// Timeouts of the peer port.
const (
	HelloTimeout = 5 * time.Second // for a connection's first bytes
	PeerTimeout  = 3 * time.Second // for connecting, or one message
)

// UnheardLimit is for how many election timeouts a member may keep serving clients
// while the leader does not receive its touches, or while its state gets older.
const UnheardLimit = 2

// HurryGap is the least time between two messages of touches when a client is
// waiting, so that one message serves many waiting clients.
const HurryGap = 5 * time.Millisecond

// RetryAfter is the pause before something that failed is tried again for the first time.
const RetryAfter = 20 * time.Millisecond

// RetryAgain returns the pause before something that has failed so many times in a row with the same leader is tried again.
func RetryAgain(failed int) time.Duration { return RetryAfter << min(failed-1, 4) }

// Limits of what is watched for an election timeout.
const (
	Looks    = 4        // how often a connection is looked at in that time; see watchConns
	OneWrite = 64 << 10 // bytes that may take that long to be sent
)

// TellAgain is how long messages may be left out of a stream of entries. It is limited only to find out whether
// the connection still works before an entry needs it.
const TellAgain = 2 * time.Second
