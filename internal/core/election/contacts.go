package election

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"

	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// Contacts is what a member knows about the others: which of them can be reached,
// who leads, and who accepts this member as the leader. It has no goroutine and
// reads no clock; pulse.go has both. The methods that other types call are safe for
// concurrent use; those that only its own methods call need c.mu held.
//
// It uses two clocks. Whether this member surely leads is measured by the real
// clock. How long another member has been silent is measured by running time, which
// stops while this process is paused: a paused process hears from nobody, which says
// nothing about the others.
type Contacts struct {
	self uint64
	timing.Times
	asks atomic.Uint64 // number of the newest question whether this member still leads; see Ask

	Gaps atomic.Int64 // how often a leader's heartbeat has come late, or over another connection than before

	mu      sync.Mutex
	ran     int64 // running time in ms; see tick
	ticked  int64 // when tick was last called, by the real clock
	members []proto.Peer
	peers   map[uint64]*peer
	heard   Heartbeat
	newer   uint64 // the newest term for which another member has refused a heartbeat of this one
	deposed int64  // since when Raft has been leading in spite of a later term; 0 if it is not

	// The state of this member is at least as new as the leader's was at current. When
	// the entry at index aim is applied here, current becomes aimed. Both are running
	// times. See keepUp.
	current int64
	aim     uint64
	aimed   int64

	agreed wake.Broadcast // another member has agreed to a round
	candidacy
}

// candidacy is what a member goes by that may have to stand for election. The contacts' mutex
// guards it.
type candidacy struct {
	trouble  int64  // since when the leader or the majority seems lost; 0 if neither does
	gone     int64  // since when a majority has been refusing connections; 0 if it is not
	eligible int64  // since when this member may stand for election; 0 if it may not
	resort   int64  // when it first could have, as an observer, since there was a leader; 0 if it could not
	tries    int    // how often it has stood since there was a leader
	stood    int64  // when it last stood; 0 if it has not since there was a leader
	term     uint64 // the newest term at the last look
	begun    int64  // when that term was first seen; 0 if it began before this member started, or has a leader
}

// peer is what is known about another member. Where an answer proves something, the
// time at which the question was sent counts, since the answer may have been delayed.
type peer struct {
	followed timing.Moment // when the last heartbeat or vote request was sent that it accepted
	reached  int64         // when the last message was sent that it answered, or its last heartbeat came, in running time
	refused  bool          // the last connection attempt was refused, and nothing has come from it since
	said     State         // its last answer to a question
	saidAt   int64         // when that question was sent, by the real clock
	cameAt   int64         // when that answer came, by the real clock
	agreed   uint64        // the newest round to which it has agreed
	asking   bool          // a question to it is under way
	askedAt  int64         // when the last question was begun, by the real clock
}

// Heartbeat is what the last heartbeat of the newest known leader said.
type Heartbeat struct {
	ID, Term uint64
	ran      int64         // when it came, in running time
	led      int64         // when the leader was last confirmed by a majority, in running time
	Stalled  time.Duration // how long the leader's disk had been blocking a write
	Applied  uint64        // index of the last entry that the leader had applied, or NotBegun
	Asked    int64         // a time, in running time, up to which the leader knew what was committed
	Conn     any           // the connection that it came over
	ended    int64         // when that connection ended, by the real clock; 0 while it is open
}

// NotBegun is sent in place of the last applied entry by a leader that has not applied all that
// earlier leaders left to it, or may have been replaced. It does not know what is committed.
const NotBegun = math.MaxUint64

// State is a member's answer to a question (kindReach) of another member.
type State struct {
	Leads     bool
	Lost      bool // it has lost its leader, or its leader's disk is stuck
	Candidate bool
	Term      uint64 // the newest that it knows
	// The term and index at the end of its log.
	LastTerm, LastIndex uint64
	Stalled             time.Duration // how long its disk has been blocking a write
	Saving              time.Duration // how long its disk has been blocking a write of a snapshot; not sent
	Applied             uint64        // index of the last entry that it has applied; not sent
	Begun               bool          // it leads, and has applied all that earlier leaders left to it; not sent
	Dropped             bool          // its newest list takes its vote away, and may not be committed; not sent
}

// StateLen is the length of an encoded State in bytes.
const StateLen = 1 + 3*8 + 4

// Append appends what other members are told of s.
func (s *State) Append(b []byte) []byte {
	var flags byte
	for i, is := range []bool{s.Leads, s.Lost, s.Candidate} {
		if is {
			flags |= 1 << i
		}
	}
	b = append(b, flags)
	for _, v := range []uint64{s.Term, s.LastTerm, s.LastIndex} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return binary.BigEndian.AppendUint32(b, Millis(s.Stalled))
}

// DecodeState is the inverse of State.Append; b has StateLen bytes.
func DecodeState(b []byte) State {
	return State{
		Leads: b[0]&1 != 0, Lost: b[0]&2 != 0, Candidate: b[0]&4 != 0,
		Term: binary.BigEndian.Uint64(b[1:]), LastTerm: binary.BigEndian.Uint64(b[9:]), LastIndex: binary.BigEndian.Uint64(b[17:]),
		Stalled: FromMillis(binary.BigEndian.Uint32(b[25:])),
	}
}

// Millis encodes a duration in 32 bits; see FromMillis.
func Millis(d time.Duration) uint32 {
	return uint32(min(max(d.Milliseconds(), 0), math.MaxUint32))
}

// FromMillis returns the duration that Millis has encoded.
func FromMillis(ms uint32) time.Duration { return time.Duration(ms) * time.Millisecond }

// NewContacts returns the contacts of the member with the id self, which knows no other member yet.
func NewContacts(self uint64, t timing.Times) *Contacts {
	return &Contacts{self: self, Times: t, peers: map[uint64]*peer{}}
}

// tick advances running time by the time since the last tick, but by at most a
// quarter of the election timeout: if more has passed, the process was paused.
func (c *Contacts) tick(now int64) timing.Moment {
	c.ran, c.ticked = c.ranAt(now), now
	return timing.Moment{Real: now, Running: c.ran}
}

func (c *Contacts) ranAt(now int64) int64 {
	return c.ran + min(max(now-c.ticked, 0), timing.Late(c.ElectionTimeout.Milliseconds()))
}

// Moment returns now by both clocks.
func (c *Contacts) Moment(now int64) timing.Moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return timing.Moment{Real: now, Running: c.ranAt(now)}
}

// setMembers replaces the list of members.
func (c *Contacts) setMembers(members []proto.Peer) {
	c.members = members
	for _, x := range members {
		if x.ID != c.self {
			c.peer(x.ID)
		}
	}
	for id := range c.peers {
		if Find(members, id) == nil {
			delete(c.peers, id)
		}
	}
}

// peer returns what is known about another member. The silence of a new one counts
// from now.
func (c *Contacts) peer(id uint64) *peer {
	p := c.peers[id]
	if p == nil {
		p = &peer{followed: timing.Moment{Real: timing.Never, Running: timing.Never}, reached: c.ran, saidAt: timing.Never, askedAt: timing.Never}
		c.peers[id] = p
	}
	return p
}

// Followed notes that another member accepted a heartbeat of this one, or voted for
// it; asked is when this member sent the heartbeat or the vote request.
func (c *Contacts) Followed(id uint64, asked timing.Moment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peer(id)
	p.followed = timing.Moment{Real: max(p.followed.Real, asked.Real), Running: max(p.followed.Running, asked.Running)}
	c.reachedLocked(p, asked)
}

// Ask begins a round, which finds out whether this member still leads now. Clocks could
// not tell whether a heartbeat was sent before or after this call, so rounds are numbered.
func (c *Contacts) Ask() (round uint64) { return c.asks.Add(1) }

// Round returns the newest round.
func (c *Contacts) Round() uint64 { return c.asks.Load() }

// Agree notes that another member has accepted this one as the leader, by a heartbeat that
// was sent after the round had begun.
func (c *Contacts) Agree(id, round uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peer(id)
	p.agreed = max(p.agreed, round)
	c.agreed.Raise()
}

// HasAgreed reports whether a majority of members has agreed to the round, and otherwise
// returns a channel that is closed when another member has. The member with the id asker,
// which may be 0, has agreed by asking.
func (c *Contacts) HasAgreed(round, asker uint64, members []proto.Peer) (bool, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setMembers(members)
	by := c.peers[asker]
	if c.majority(func(p *peer) int64 {
		if p == by {
			return int64(round)
		}
		return int64(p.agreed)
	}) >= int64(round) {
		return true, nil
	}
	return false, c.agreed.Wait()
}

func (c *Contacts) reachedLocked(p *peer, asked timing.Moment) {
	p.reached = max(p.reached, asked.Running)
	p.refused = false
}

// Outdated notes that another member refused a heartbeat of this one, since it has begun a
// later term. Raft may not have noticed: its main goroutine may be waiting for a stuck disk, and
// the new leader's own heartbeats may not arrive here. Outdated reports whether that is news.
func (c *Contacts) Outdated(term uint64) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	news = term > c.newer
	c.newer = max(c.newer, term)
	return news
}

// leads reports whether this member leads, and knows of no later term, in which another may.
func (c *Contacts) leads(own *State) bool {
	return own.Leads && max(c.heard.Term, c.newer) <= own.Term
}

// Lives notes that another member has given a sign of life on one of Raft's connections since
// the last look at its connections. On a slow link its answers to heartbeats can be late, since they
// and the heartbeats wait behind other messages.
func (c *Contacts) Lives(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[id]; p != nil {
		c.reachedLocked(p, timing.Moment{Running: c.ran - c.ElectionTimeout.Milliseconds()/timing.LooksPerTimeout})
	}
}

// Refused notes that another member's address refused a connection.
func (c *Contacts) Refused(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peer(id).refused = true
}

// Answered notes another member's answer to a question that was sent at asked.
func (c *Contacts) Answered(id uint64, asked timing.Moment, now int64, s State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peer(id)
	p.said, p.saidAt, p.cameAt = s, max(p.saidAt, asked.Real), now
	c.reachedLocked(p, asked)
}

// Hear notes a heartbeat, unless it is of an old term. It reports whether something
// has changed since the previous one: the leader's term, the connection, or whether
// the leader's disk is stuck. ledAgo is how long ago a majority confirmed the
// leader; newest is the newest term that this member knows.
func (c *Contacts) Hear(now int64, h Heartbeat, ledAgo time.Duration, newest uint64) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick(now)
	if h.Term < newest || h.Term < c.heard.Term {
		return false
	}
	news = h.Conn != c.heard.Conn || h.Term != c.heard.Term || h.Stalled >= c.ElectionTimeout != (c.heard.Stalled >= c.ElectionTimeout)
	if h.Conn != c.heard.Conn || c.ran-c.heard.ran >= timing.Late(c.ElectionTimeout.Milliseconds()) {
		c.Gaps.Add(1)
	}
	h.ran, h.led = c.ran, c.ran-ledAgo.Milliseconds()
	if h.Stalled < c.ElectionTimeout/2 {
		ledAgo -= c.ElectionTimeout // on a slow link the answers that confirm it are late
	}
	h.Asked -= max(0, ledAgo).Milliseconds() // it may have been replaced since; a stuck one does not notice
	c.heard = h
	if p := c.peers[h.ID]; p != nil {
		c.reachedLocked(p, timing.Moment{Running: c.ran})
	}
	return news
}

// HungUp notes that a connection for heartbeats has ended. It reports whether it was
// that of the newest leader.
func (c *Contacts) HungUp(conn any, now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heard.Conn != conn {
		return false
	}
	c.heard.Conn, c.heard.ended = nil, now
	return true
}

// majority returns the latest time t such that at(p) >= t for a majority of the
// voters. This member, if it is a voter, counts as having any t.
func (c *Contacts) majority(at func(p *peer) int64) int64 {
	most := Voters(c.members)/2 + 1
	var times []int64
	for _, x := range c.members {
		switch {
		case x.Observer:
		case x.ID == c.self:
			most--
		default:
			times = append(times, at(c.peer(x.ID)))
		}
	}
	switch {
	case most == 0:
		return math.MaxInt64
	case len(times) < most:
		return timing.Never
	}
	slices.Sort(times)
	return times[len(times)-most]
}

// LastFollowed returns the latest time, by the real clock, since which a majority of
// members has accepted a message that this member sent as the leader or a candidate.
func (c *Contacts) LastFollowed(now int64, members []proto.Peer) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setMembers(members)
	return min(now, c.majority(func(p *peer) int64 { return p.followed.Real }))
}

// LedAgo returns how long ago, in running time, a majority accepted this member as
// the leader.
func (c *Contacts) LedAgo() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.majority(func(p *peer) int64 { return p.followed.Running })
	return time.Duration(max(0, c.ran-at)) * time.Millisecond
}

// Knows reports whether this member, which leads in term, can tell others what is committed: it has
// heard of no later term, and its process was not paused since a majority accepted it. In running
// time that would seem to be a moment ago.
func (c *Contacts) Knows(now int64, term uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	accepted := now - min(now, c.majority(func(p *peer) int64 { return p.followed.Real }))
	ran := c.ranAt(now)
	ran -= min(ran, c.majority(func(p *peer) int64 { return p.followed.Running }))
	return c.leads(&State{Leads: true, Term: term}) && accepted-ran < c.ElectionTimeout.Milliseconds()/2
}

// Follows reports whether another member has accepted this one as the leader within the last
// election timeout.
func (c *Contacts) Follows(id uint64, now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peers[id]
	return p != nil && now-p.followed.Real < c.ElectionTimeout.Milliseconds()
}

// Present counts the other members that accepted this one as the leader within the
// last election timeout.
func (c *Contacts) Present(now int64) (followers, observers int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.members {
		p := c.peers[x.ID]
		switch {
		case p == nil || now-p.followed.Real > c.ElectionTimeout.Milliseconds():
		case !x.Observer:
			followers++
		default:
			observers++
		}
	}
	return followers, observers
}

// lost reports whether this member, which does not lead, has lost its leader. Either
// it knows no leader in the newest term, or the leader has been silent for the
// election timeout; or the leader's connection has ended, and since then the leader
// has refused a new one or said that it no longer leads. The last case needs no
// waiting.
func (c *Contacts) lost(newest uint64) bool {
	h := &c.heard
	if h.ID == 0 || h.Term < newest || c.ran-h.ran >= c.ElectionTimeout.Milliseconds() {
		return true
	}
	p := c.peers[h.ID]
	return h.ended != 0 && p != nil && (p.refused || p.saidAt >= h.ended && !p.said.Leads)
}

// useless reports whether the current leader should be replaced because its disk is
// stuck.
func (c *Contacts) useless() bool { return c.heard.Stalled >= c.ElectionTimeout }

// Complete completes this member's answer to a question: s holds all but what its
// contacts say.
func (c *Contacts) Complete(s State) State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Leads = c.leads(&s)
	s.Lost = !s.Leads && (c.lost(s.Term) || c.useless())
	s.Candidate = s.Candidate && c.heard.Term < s.Term // Raft does not always notice that another was elected
	return s
}

// keepUp advances current after this member has applied entries up to applied.
func (c *Contacts) keepUp(applied uint64) {
	for range 2 { // the next aim may already be reached too
		if applied >= c.aim {
			c.current = max(c.current, c.aimed)
			if c.heard.Applied != NotBegun {
				c.aim, c.aimed = c.heard.Applied, c.heard.Asked
			}
		}
	}
}

// CaughtUp notes that everything committed at ran, a running time, is applied here.
func (c *Contacts) CaughtUp(ran int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = max(c.current, ran)
}

// Behind reports whether the state of this member may be older than reads are promised to be.
func (c *Contacts) Behind(now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.behindAt(c.ranAt(now))
}

func (c *Contacts) behindAt(ran int64) bool {
	return ran-c.current >= (timing.UnheardLimit * c.ElectionTimeout).Milliseconds()
}

// Verdict is a member's view of its cluster at one look.
type Verdict struct {
	Leads      bool // this member leads, and has heard of no later term
	Lost       bool // this member knows no leader
	NoMajority bool // a majority cannot be reached
	Stuck      bool // this member's disk is stuck, but there is a working leader
	Deposed    bool // Raft goes on leading although it should have noticed a later term
	Behind     bool // this member's state is too old to serve reads from
	Disputed   bool // members' states differ, and nobody knows which are right; see digests
}

// Look evaluates the contacts. It returns the verdict, which members to ask for their
// state, whether this member must stand for election now, and when to look again. own
// is this member's state.
func (c *Contacts) Look(now int64, members []proto.Peer, own State) (v Verdict, ask []proto.Peer, stand bool, again time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick(now)
	c.setMembers(members)
	if c.term != 0 && own.Term > c.term {
		c.begun = now
	}
	c.term = own.Term
	leads := c.leads(&own)
	switch {
	case !own.Leads || leads:
		c.deposed = 0
	case c.deposed == 0:
		c.deposed = now
	default:
		v.Deposed = now-c.deposed >= c.Lease.Milliseconds()
	}
	if leads || c.heard.Term >= own.Term {
		c.begun, c.stood, c.tries = 0, 0, 0 // that election was won
	}
	c.keepUp(own.Applied)
	if leads && own.Begun { // nobody else can have committed anything while a majority accepted this leader
		c.current = max(c.current, min(c.ran, c.majority(func(p *peer) int64 { return p.followed.Running })))
	}
	v.Behind = c.behindAt(c.ran)
	v.Leads, v.Lost = leads, !leads && c.lost(own.Term)
	elect := v.Lost || !leads && c.useless()
	if !elect {
		c.eligible, c.resort = 0, 0
	}

	reached := c.majority(func(p *peer) int64 { return p.reached })
	if !leads {
		reached = max(reached, c.heard.led)
	}
	silent := c.ran - min(c.ran, reached)
	if elect || !leads && c.heard.ended != 0 || silent >= c.ElectionTimeout.Milliseconds()/2 {
		if c.trouble == 0 {
			c.trouble = now
			if !leads { // a leader's heartbeats keep these up to date
				for _, p := range c.peers {
					p.refused = false
				}
			}
		}
	} else {
		c.trouble = 0
	}
	v.NoMajority = silent >= c.ElectionTimeout.Milliseconds() || c.refusedByMost(now, leads || v.Lost)
	v.Stuck = max(own.Stalled, own.Saving) >= c.ElectionTimeout && !leads && !elect

	if c.trouble != 0 {
		again := c.again(now).Milliseconds()
		for _, x := range members {
			if x.ID == c.self || x.Observer {
				continue
			}
			if p := c.peer(x.ID); !p.asking && now-p.askedAt >= again {
				p.asking, p.askedAt = true, now
				ask = append(ask, x)
			}
		}
	}
	stand = elect && c.mayStand(now, own)
	if again = c.again(now); !leads && c.trouble == 0 {
		again = timing.Redial(c.ElectionTimeout)
	}
	if left := timing.UnheardLimit*c.ElectionTimeout - time.Duration(c.ran-c.current)*time.Millisecond; left > 0 {
		again = min(again, left)
	}
	return v, ask, stand, again
}

// refusedByMost reports whether so many members have been refusing connections that
// the others are no majority, for longer than a restart takes. It does not count
// while counts is false.
func (c *Contacts) refusedByMost(now int64, counts bool) bool {
	there := 0
	for _, x := range c.members {
		if !x.Observer && (x.ID == c.self || !c.peer(x.ID).refused) {
			there++
		}
	}
	if !counts || len(c.members) == 0 || there > Voters(c.members)/2 {
		c.gone = 0
		return false
	}
	if c.gone == 0 {
		c.gone = now
	}
	return now-c.gone >= c.Lease.Milliseconds()
}

// Missing lists the other voters that this member has not reached lately, for messages.
func (c *Contacts) Missing() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	for _, x := range c.members {
		if p := c.peers[x.ID]; !x.Observer && x.ID != c.self && p != nil && (p.refused || c.ran-p.reached >= c.Lease.Milliseconds()) {
			list = append(list, fmt.Sprintf("server %d at %s", x.ID, x.Addr))
		}
	}
	return strings.Join(list, ", ")
}

const (
	electionWrites = 4 // how many writes to disks, one after the other, an election waits for
	mostPatience   = 5 // for how many of them a member waits at most before it stands again
)

// mayStand reports whether this member must stand for election now. A majority must
// have lost the leader and have working disks. To avoid split votes, the members of
// that majority stand one after another, the one with the longest log first; among
// equal logs, the lowest id goes first.
//
// A member whose newest list takes its vote away stands too as long as that list may not be
// committed: it may be the only one that has the list, and with its longer log it refuses all
// others. It leaves the others an election timeout, since mostly they can do without it. Its own vote
// does not count. Once it leads, the list is committed, and it steps down.
//
// So does an observer, as a last resort, if its log ends later than those of all voters that answer: another member's newest list may make
// it a voter, whose vote is needed, and which it refuses. It hands over as soon as it leads (see lead).
func (c *Contacts) mayStand(now int64, own State) bool {
	self := Find(c.members, c.self)
	votes := self != nil && !self.Observer
	if self == nil && !own.Dropped || own.Stalled >= c.ElectionTimeout/2 {
		c.eligible = 0
		return false
	}
	sure := c.Lease.Milliseconds()
	agree, before, running, unheard := 0, 0, false, false
	longest := true // its log ends later than those of all voters that answer
	if votes {
		agree = 1
	}
	for _, x := range c.members {
		if x.Observer || x.ID == c.self {
			continue
		}
		p := c.peer(x.ID)
		if p.saidAt < c.trouble || now-p.cameAt > sure {
			unheard = unheard || !p.refused
			continue
		}
		s := &p.said
		running = running || s.Candidate || s.Term > own.Term
		if s.Leads && s.Term >= own.Term && s.Stalled < c.ElectionTimeout { // its heartbeat will come soon
			c.eligible = 0
			return false
		}
		if !s.Lost || s.Stalled >= c.ElectionTimeout/2 {
			continue
		}
		agree++
		longest = longest && (own.LastTerm > s.LastTerm || own.LastTerm == s.LastTerm && own.LastIndex > s.LastIndex)
		if s.LastTerm > own.LastTerm || s.LastTerm == own.LastTerm && (s.LastIndex > own.LastIndex || s.LastIndex == own.LastIndex && x.ID < c.self) {
			before++
		}
	}
	if agree <= Voters(c.members)/2 || !votes && !own.Dropped && !longest {
		c.eligible = 0
		return false
	}
	if c.eligible == 0 {
		c.eligible = now
	}
	from, gap := c.eligible, sure/2
	switch {
	case !votes && !own.Dropped: // the others go first, and may need several attempts, during which their disks may seem stuck
		if c.resort == 0 {
			c.resort = now
		}
		from = max(from, c.resort+10*c.ElectionTimeout.Milliseconds())
	case !votes:
		from += c.ElectionTimeout.Milliseconds()
	}
	switch {
	case running: // give the other candidate time to win
		from += sure
	case unheard: // a member that has not answered yet may know of a leader
		from += c.Beat.Milliseconds()
	}
	if last := max(c.stood, c.begun); last != 0 { // the previous election may still be won: disks may be slow
		write := c.ElectionTimeout.Milliseconds() / 2 // the longest time that one is given
		patience, apart := write, sure/4
		if gap = write; c.tries >= 2 {
			// A member hears of another's election only after two of its writes, and counts its own wait from then. So
			// those with shorter logs wait longer: otherwise they would stand first every time.
			patience = write * int64(min(c.tries, mostPatience))
			apart, gap = write, patience+electionWrites*write
		}
		from = max(from, last+patience+spread(c.self, own.Term, apart))
	}
	if now < from+int64(before)*gap {
		return false
	}
	c.stood, c.tries = now, c.tries+1
	return true
}

// HasStood reports whether this member has stood for election since it last had a leader.
func (c *Contacts) HasStood() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stood > 0
}

// spread returns a time from 0 to most which differs between members and terms as if it were random,
// so that two that disturb each other in one election do not do so in the next ones too.
func spread(id, term uint64, most int64) int64 {
	return rand.New(rand.NewPCG(id, term)).Int64N(most + 1)
}

// QuestionDone notes that a question to another member was answered or has failed.
func (c *Contacts) QuestionDone(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[id]; p != nil {
		p.asking = false
	}
}

// Troubled reports whether the leader or the majority seems lost.
func (c *Contacts) Troubled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trouble != 0
}

// again returns the time between two looks, or two questions to the same member:
// short at first when trouble begins, then longer, up to the heartbeat interval.
func (c *Contacts) again(now int64) time.Duration {
	if c.trouble == 0 {
		return c.Beat
	}
	return min(c.Beat, max(timing.HurryGap, time.Duration(now-c.trouble)*time.Millisecond/4))
}
