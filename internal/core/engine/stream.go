package engine

import (
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/raftwire"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// stream is an AppendPipeline: it has a connection of Raft's messages to itself, from a leader to one
// follower, for one term. It carries messages of two kinds:
//
//   - Raft's AppendEntries, each of which the follower answers;
//   - how far the log is committed, from SpreadCommitIndex, which needs no answer: the follower
//     handles the messages in order, so it has accepted the entry or has refused one before it.
//
// The leader's end has one goroutine, and the follower's two. docs/decisions/025 compares that with
// Raft's own pipeline.
//
// Raft calls AppendEntries from one goroutine. The other methods are safe for concurrent use.
type stream struct {
	t         *transport
	to        raft.ServerID
	conn      *peer.Conn
	answers   chan raft.AppendFuture
	room      wake.Signal // raised when a message has been answered; for AppendEntries
	ended     chan struct{}
	endOnce   sync.Once // closes ended
	closed    chan struct{}
	closeOnce sync.Once // closes closed

	turn wake.Turn // held while a message is written
	out  []byte    // the message; whoever has the turn uses it

	mu              sync.Mutex
	term            uint64       // of the messages; 0 before the first one
	sent            []*entryCall // not answered yet, the oldest first
	announced       knowledge    // what the follower knows once it accepts the newest message that it has to answer
	announcedAt     time.Time    // when that message was sent
	announcedCommit uint64       // the highest that any message has said
	commitIndex     uint64       // the log is committed up to this index
	commitTerm      uint64       // of the entry there
}

// knowledge is what a follower knows from a message that it has accepted.
type knowledge struct {
	end    uint64 // its log is the leader's up to this index
	commit uint64
	doubts uint64 // the value of transport.doubts before the message was sent
}

// entryCall is a message that the follower answers. It is a [raft.AppendFuture].
type entryCall struct {
	start time.Time
	q     *raft.AppendEntriesRequest
	r     *raft.AppendEntriesResponse
}

func (c *entryCall) Error() error                          { return nil }
func (c *entryCall) Start() time.Time                      { return c.start }
func (c *entryCall) Request() *raft.AppendEntriesRequest   { return c.q }
func (c *entryCall) Response() *raft.AppendEntriesResponse { return c.r }

// While as many messages as mostUnanswered are unanswered, AppendEntries waits, and entries
// gather for the next message.
const mostUnanswered = 2

// AppendEntriesPipeline implements raft.Transport by a [stream], made of an idle connection, if another one is left for single
// messages. Otherwise Raft sends only those until a further connection has been made.
//
// With Raft's own pipeline there would be a deadlock: its replication stops reading answers at the first refusal. If it is
// sending at that time, and the pipeline is full, it blocks: this leader would never send to that member again, and Raft's
// shutdown would hang.
func (t *transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	c := t.takeIdle(target, 1)
	if c == nil {
		t.dialAnother(target)
		return nil, raft.ErrPipelineReplicationNotSupported // for now
	}
	c.Pipelined.Store(true)
	c.AwaitsNothing.Store(true)
	s := &stream{
		t: t, to: id, conn: c, answers: make(chan raft.AppendFuture),
		room: wake.NewSignal(), ended: make(chan struct{}), closed: make(chan struct{}), turn: wake.NewTurn(),
	}
	t.wg.Go(s.read)
	return s, nil
}

// stream returns the open stream to a member over which something was sent, or nil.
func (t *transport) stream(id raft.ServerID) *stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.streams[id]
}

// AppendEntries implements raft.AppendPipeline. If the message has no entries, and the follower
// has accepted all messages that it answers, the newest of which said the same, nothing is sent, and
// there is no future. (So 50 to 100 ms after the last write Raft's message confirms what announceCommit
// has said without an answer.) Raft does not look at that: it takes the futures from Consumer.
//
// Invariant: a message that is left out would change nothing, on either side. A stream
// serves one leader in one term, so the leader's log only grows, and one run of one
// follower, since a restart breaks the connection. A follower gives up entries only for a
// leader of a later term, and forgets the commit index only when it restarts. In both
// cases transport.doubts changes, with the next heartbeat, and the message is sent: the
// leader learns of the later term or of the broken connection. Neither side needs these
// messages to know that the other is alive: for that there are heartbeats, those of
// pulse.go and Raft's own, which are not sent through a stream.
//
// A message that is too long is sent in parts. Raft sees the answer to each of them.
func (s *stream) AppendEntries(q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	rest := *q
	for {
		part := rest
		part.Entries = shorten(&part)
		n := len(part.Entries)
		if n == len(rest.Entries) {
			return s.send(&part, r)
		}
		if _, err := s.send(&part, new(raft.AppendEntriesResponse)); err != nil {
			return nil, err
		}
		last := part.Entries[n-1]
		rest.PrevLogEntry, rest.PrevLogTerm, rest.Entries = last.Index, last.Term, rest.Entries[n:]
	}
}

func (s *stream) send(q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if s.t.termEnded(q.Term) {
		s.end()
		return nil, errTermEnded
	}
	q.LeaderCommitIndex = s.t.engine.log.Committed(q.LeaderCommitIndex)
	end := q.PrevLogEntry + uint64(len(q.Entries))
	s.turn.Take()
	s.mu.Lock()
	q.LeaderCommitIndex = max(q.LeaderCommitIndex, min(s.commitIndex, end))
	tells := knowledge{end, q.LeaderCommitIndex, s.t.doubts.Load()}
	now := time.Now()
	if s.hasEnded() || len(q.Entries) == 0 && tells == s.announced && len(s.sent) == 0 && now.Sub(s.announcedAt) < timing.StreamKeepAlive {
		s.mu.Unlock()
		s.turn.Give()
		s.sendCommit()
		return nil, s.err()
	}
	call := &entryCall{now, q, r}
	first := s.term == 0
	s.term, s.announced, s.announcedAt, s.announcedCommit, s.sent = q.Term, tells, now, tells.commit, append(s.sent, call)
	s.conn.Moves() // before AwaitsNothing: until now this side did not wait for the follower
	s.conn.AwaitsNothing.Store(false)
	s.mu.Unlock()
	if first {
		s.t.mu.Lock()
		s.t.streams[s.to] = s
		s.t.mu.Unlock()
	}
	s.write(raftwire.Append(s.out, q), s.conn.Write)
	s.turn.Give()
	s.sendCommit()
	for {
		s.mu.Lock()
		n := len(s.sent)
		s.mu.Unlock()
		if n < mostUnanswered {
			return call, s.err()
		}
		select {
		case <-s.room:
		case <-s.ended:
			return nil, net.ErrClosed
		}
	}
}

// write sends a message in the given way. The caller has the turn.
func (s *stream) write(message []byte, by func([]byte) (int, error)) {
	if _, err := by(message); err != nil {
		s.end()
	}
	if s.out = message[:0]; cap(s.out) > timing.MaxWrite {
		s.out = nil
	}
}

// announceCommit has the follower told that the log is committed up to index, an entry of entryTerm, by
// the next message with entries or by one of its own. It reports whether that is so: it is not if
// the stream is closed or of another term.
func (s *stream) announceCommit(term, index, entryTerm uint64) bool {
	s.mu.Lock()
	ok := s.term == term && !s.hasEnded()
	if ok && index > s.commitIndex {
		s.commitIndex, s.commitTerm = index, entryTerm
	}
	s.mu.Unlock()
	if ok {
		s.sendCommit()
	}
	return ok
}

// sendCommit sends what announceCommit has noted. If the entry has not been sent yet, that will say it. Whoever has
// the turn calls sendCommit afterwards.
func (s *stream) sendCommit() {
	for s.owesCommit() && s.turn.TryTake() {
		s.mu.Lock()
		index, term := s.commitIndex, s.commitTerm
		owes := s.owesCommitLocked()
		if owes {
			s.announcedCommit = index
		}
		q := &raft.AppendEntriesRequest{Term: s.term, PrevLogEntry: index, PrevLogTerm: term, LeaderCommitIndex: index}
		s.mu.Unlock()
		if owes {
			s.write(raftwire.AppendCommit(s.out, q), s.conn.Tell)
		}
		s.turn.Give()
	}
}

func (s *stream) owesCommit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owesCommitLocked()
}

func (s *stream) owesCommitLocked() bool {
	return s.announcedCommit < s.commitIndex && s.commitIndex <= s.announced.end && !s.hasEnded()
}

func (s *stream) Consumer() <-chan raft.AppendFuture { return s.answers }

func (s *stream) Close() error {
	s.closeOnce.Do(func() { close(s.closed) })
	s.end()
	if wake.Closed(s.t.life.Stop) {
		// raftlog.RecentLog.GetLog may have ended the goroutine with which Raft sends. Then the one that takes the
		// answers ends only when it gets a refusal.
		s.t.wg.Go(func() {
			select {
			case s.answers <- &entryCall{q: new(raft.AppendEntriesRequest), r: new(raft.AppendEntriesResponse)}:
			case <-s.t.engine.down:
			}
		})
	}
	return nil
}

// end closes the connection. Raft notices when it sends the next message, if it does not wait
// for an answer: then it gets one.
func (s *stream) end() {
	s.endOnce.Do(func() {
		close(s.ended)
		s.t.mu.Lock()
		if s.t.streams[s.to] == s {
			delete(s.t.streams, s.to)
		}
		s.t.mu.Unlock()
		s.t.wg.Go(func() { s.conn.Close() }) // as in peer.Conns.Run; wg is not at zero yet, since read ends later
	})
}

func (s *stream) hasEnded() bool { return wake.Closed(s.ended) }

func (s *stream) err() error {
	if s.hasEnded() {
		return net.ErrClosed
	}
	return nil
}

// read passes the answers on to Raft. It ends with the connection, or with an answer that is a
// refusal: Raft takes no others after one, and is unblocked if it is sending.
func (s *stream) read() {
	defer s.end() // unblocks Raft if it is sending
	for {
		var r raft.AppendEntriesResponse // no success if the connection has failed
		raftwire.ReadAnswer(s.conn, &r)
		s.mu.Lock()
		var call *entryCall
		if len(s.sent) > 0 {
			call = s.sent[0]
			s.sent = s.sent[1:]
			s.conn.AwaitsNothing.Store(len(s.sent) == 0)
		}
		s.mu.Unlock()
		if call == nil { // the follower has closed the connection, or answers what was not asked
			return
		}
		if *call.r = r; r.Success {
			s.t.engine.log.Acks.Accepted(s.to, call.q)
		}
		s.room.Raise()
		select {
		case s.answers <- call:
		case <-s.closed:
			return
		}
		if !r.Success {
			return
		}
	}
}
