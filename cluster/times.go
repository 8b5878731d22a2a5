package cluster

import (
	"math"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/timing"
)

// defaultElectionTimeout tolerates the pauses of a busy machine. Clients usually
// wait less when a leader dies: if its connections break, the others act at once.
const defaultElectionTimeout = 2 * time.Second

// times are a member's time limits, all derived from the election timeout.
type times struct {
	silence time.Duration // how long the leader, or a majority, may be silent: the election timeout
	sure    time.Duration // how long a leader is sure that it leads after a majority confirmed it
	beat    time.Duration // between two heartbeats
}

func timesFor(electionTimeout time.Duration) times {
	return times{
		silence: electionTimeout,
		sure:    timing.Sure(electionTimeout),
		beat:    timing.Beat(electionTimeout),
	}
}

// moment is one instant, in ms, by the real clock and in running time.
type moment struct{ now, ran int64 }

// never is a time long before any other, by either clock.
const never = math.MinInt64 / 2 / int64(time.Millisecond)

// Timeouts of the peer port.
const (
	helloTimeout = 5 * time.Second // for a connection's first bytes
	peerTimeout  = 3 * time.Second // for connecting, or one message
)

// unheardLimit is for how many election timeouts a member may keep serving clients
// while the leader does not receive its touches, or while its state gets older.
const unheardLimit = 2

// hurryGap is the least time between two messages of touches when a client is
// waiting, so that one message serves many waiting clients.
const hurryGap = 5 * time.Millisecond

// retryAfter is the pause before something that failed is tried again for the first time.
const retryAfter = 20 * time.Millisecond

// retryAgain returns the pause before something that has failed so many times in a row with the same leader is tried again.
func retryAgain(failed int) time.Duration { return retryAfter << min(failed-1, 4) }

// Limits of what is watched for an election timeout.
const (
	looks    = 4        // how often a connection is looked at in that time; see watchConns
	oneWrite = 64 << 10 // bytes that may take that long to be sent
)

// tellAgain is how long messages may be left out of a [stream]. It is limited only to find out whether
// the connection still works before an entry needs it.
const tellAgain = 2 * time.Second
