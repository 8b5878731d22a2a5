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
	ElectionTimeout time.Duration // how long the leader, or a majority, may be silent
	Lease           time.Duration // how long a leader is sure that it leads after a majority accepted it
	Beat            time.Duration // between two heartbeats
}

// For returns the times that follow from an election timeout.
func For(electionTimeout time.Duration) Times {
	return Times{
		ElectionTimeout: electionTimeout,
		Lease:           Lease(electionTimeout),
		Beat:            Beat(electionTimeout),
	}
}

// Moment is one instant by two clocks, in ms: the real one, and running time, which stops while the process is paused.
type Moment struct{ Real, Running int64 }

// Never is a time long before any other, by either clock.
const Never = math.MinInt64 / 2 / int64(time.Millisecond)

// Timeouts of the peer port.
const (
	HelloTimeout = 5 * time.Second // for a connection's first bytes
	PeerTimeout  = 3 * time.Second // for connecting, or one message
)

// UnheardLimit is how many election timeouts a member may go on serving clients
// while the leader does not receive its touches, or while its state gets older.
const UnheardLimit = 2

// HurryGap is the least time between two messages of touches while a client waits for one,
// so that one message serves many waiting clients.
const HurryGap = 5 * time.Millisecond

// RetryAfter is the pause before the first retry of something that failed.
const RetryAfter = 20 * time.Millisecond

// RetryBackoff returns the pause before the next retry of something that has failed so many times in a row with the same leader.
func RetryBackoff(failed int) time.Duration { return RetryAfter << min(failed-1, 4) }

// Limits for a connection within an election timeout.
const (
	LooksPerTimeout = 4        // how often peer.Conns.Run looks at a connection in that time
	MaxWrite        = 64 << 10 // the most bytes that may take that long to be sent
)

// StreamKeepAlive is how long a stream of entries may send nothing: then it sends a message without
// entries, to find out whether the connection still works before an entry needs it.
const StreamKeepAlive = 2 * time.Second
