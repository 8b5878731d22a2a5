package cluster

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// pipeline is an AppendPipeline that closes the underlying one when the follower refuses
// an entry, and that does not send a message that tells the follower nothing; see
// [transport.AppendEntriesPipeline].
type pipeline struct {
	raft.AppendPipeline
	answers chan raft.AppendFuture
	done    chan struct{} // closed by Close
	once    sync.Once

	t    *transport
	to   raft.ServerID
	open atomic.Int64 // messages that the follower has not accepted, or not yet
	// Only AppendEntries uses these.
	told   knowledge // by the newest message
	toldAt time.Time // when that was sent
}

// knowledge is what a follower knows from a message that it has accepted.
type knowledge struct {
	end    uint64 // its log is the leader's up to this index
	commit uint64
	doubts uint64 // the value of transport.doubts before the message was sent
}

// tellAgain is how long messages may be left out. It is limited only to find out whether
// the connection still works before an entry needs it.
const tellAgain = 2 * time.Second

// AppendEntries implements raft.AppendPipeline. Raft may call it from one goroutine only,
// as it does. If the message has no entries, and the follower has accepted all messages
// before it, the newest of which told it the same, nothing is sent, and there is no future.
// Raft does not look at that: it takes the futures from Consumer.
//
// Invariant: a message that is left out would change nothing, on either side. A pipeline
// serves one leader in one term, so the leader's log only grows, and one run of one
// follower, since a restart breaks the connection. A follower gives up entries only for a
// leader of a later term, and forgets the commit index only when it restarts. In both
// cases transport.doubts changes, with the next heartbeat, and the message is sent: the
// leader learns of the later term or of the broken connection. Neither side needs these
// messages to know that the other is alive: for that there are heartbeats, those of
// pulse.go and Raft's own, which are not sent through a pipeline.
//
// A message that is too long is sent in parts. Raft sees the answer to each of them.
func (p *pipeline) AppendEntries(q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	rest := *q
	for {
		part := rest
		part.Entries = shorten(&part)
		n := len(part.Entries)
		if n == len(rest.Entries) {
			return p.send(&part, r)
		}
		if _, err := p.send(&part, new(raft.AppendEntriesResponse)); err != nil {
			return nil, err
		}
		last := part.Entries[n-1]
		rest.PrevLogEntry, rest.PrevLogTerm, rest.Entries = last.Index, last.Term, rest.Entries[n:]
	}
}

func (p *pipeline) send(q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	q.LeaderCommitIndex = p.t.raft.log.committed(q.LeaderCommitIndex)
	tells := knowledge{q.PrevLogEntry + uint64(len(q.Entries)), q.LeaderCommitIndex, p.t.doubts.Load()}
	if len(q.Entries) == 0 && tells == p.told && p.open.Load() == 0 && time.Since(p.toldAt) < tellAgain {
		return nil, nil
	}
	p.told, p.toldAt = tells, time.Now()
	p.open.Add(1) // and never lower if this fails or is refused: then Raft closes the pipeline
	return p.AppendPipeline.AppendEntries(q, r)
}

func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.done) })
	return p.AppendPipeline.Close()
}

// forward passes the answers on to Raft until the pipeline is closed.
func (p *pipeline) forward() {
	for {
		var f raft.AppendFuture
		select {
		case f = <-p.AppendPipeline.Consumer():
		case <-p.done:
			return
		}
		if f.Response().Success {
			p.t.raft.log.acks.accepted(p.to, f.Request())
		}
		select {
		case p.answers <- f:
		case <-p.done:
			return
		}
		if !f.Response().Success { // refused, or failed
			p.AppendPipeline.Close() // unblocks Raft if it is sending
			continue
		}
		p.open.Add(-1)
	}
}
