package cluster

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
)

// contacts is what a member knows about the others: which of them can be reached,
// who leads, and who accepts this member as the leader. It has no goroutine and
// reads no clock; pulse.go has both. The methods that other types call are safe for
// concurrent use; those that only its own methods call need c.mu held.
//
// It uses two clocks. Whether this member surely leads is measured by the real
// clock. How long another member has been silent is measured by running time, which
// stops while this process is paused: a paused process hears from nobody, which says
// nothing about the others.
type contacts struct {
	self uint64
	times
	round atomic.Uint64 // number of the newest question whether this member still leads; see ask

	gaps atomic.Int64 // how often a leader's heartbeat has come late, or over another connection than before

	mu      sync.Mutex
	ran     int64 // running time in ms; see tick
	ticked  int64 // when tick was last called, by the real clock
	members []proto.Peer
	peers   map[uint64]*peer
	heard   heard
	newer   uint64 // the newest term for which another member has refused a heartbeat of this one
	deposed int64  // since when Raft has been leading in spite of a later term; 0 if it is not

	// The state of this member is at least as new as the leader's was at current. When
	// the entry at index aim is applied here, current becomes aimed. Both are running
	// times. See keepUp.
	current int64
	aim     uint64
	aimed   int64

	agreed news // another member has agreed to a round
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
	followed moment // when the last heartbeat or vote request was sent that it accepted
	reached  int64  // when the last message was sent that it answered, or its last heartbeat came, in running time
	refused  bool   // the last connection attempt was refused, and nothing has come from it since
	said     state  // its last answer to a question
	saidAt   int64  // when that question was sent, by the real clock
	cameAt   int64  // when that answer came, by the real clock
	agreed   uint64 // the newest round to which it has agreed
	asking   bool   // a question to it is under way
	askedAt  int64  // when the last question was begun, by the real clock
}

// heard is what the last heartbeat of the newest known leader said.
type heard struct {
	id, term uint64
	ran      int64         // when it came, in running time
	led      int64         // when the leader was last confirmed by a majority, in running time
	stalled  time.Duration // how long the leader's disk had been blocking a write
	applied  uint64        // index of the last entry that the leader had applied, or notBegun
	asked    int64         // a time, in running time, up to which the leader knew what was committed
	conn     any           // the connection that it came over
	ended    int64         // when that connection ended, by the real clock; 0 while it is open
}

// notBegun is sent in place of the last applied entry by a leader that has not applied all that
// earlier leaders left to it, or may have been replaced. It does not know what is committed.
const notBegun = math.MaxUint64

// state is a member's answer to a question (kindReach) of another member.
type state struct {
	leads     bool
	lost      bool // it has lost its leader, or its leader's disk is stuck
	candidate bool
	term      uint64 // the newest that it knows
	// The term and index at the end of its log.
	lastTerm, lastIndex uint64
	stalled             time.Duration // how long its disk has been blocking a write
	saving              time.Duration // how long its disk has been blocking a write of a snapshot; not sent
	applied             uint64        // index of the last entry that it has applied; not sent
	begun               bool          // it leads, and has applied all that earlier leaders left to it; not sent
	dropped             bool          // its newest list takes its vote away, and may not be committed; not sent
}

const stateLen = 1 + 3*8 + 4

func (s *state) append(b []byte) []byte {
	var flags byte
	for i, is := range []bool{s.leads, s.lost, s.candidate} {
		if is {
			flags |= 1 << i
		}
	}
	b = append(b, flags)
	for _, v := range []uint64{s.term, s.lastTerm, s.lastIndex} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return binary.BigEndian.AppendUint32(b, millis(s.stalled))
}

func decodeState(b []byte) state {
	return state{
		leads: b[0]&1 != 0, lost: b[0]&2 != 0, candidate: b[0]&4 != 0,
		term: binary.BigEndian.Uint64(b[1:]), lastTerm: binary.BigEndian.Uint64(b[9:]), lastIndex: binary.BigEndian.Uint64(b[17:]),
		stalled: duration(binary.BigEndian.Uint32(b[25:])),
	}
}

// millis encodes a duration in 32 bits; see duration.
func millis(d time.Duration) uint32 {
	return uint32(min(max(d.Milliseconds(), 0), math.MaxUint32))
}

func duration(ms uint32) time.Duration { return time.Duration(ms) * time.Millisecond }

func newContacts(self uint64, t times) *contacts {
	return &contacts{self: self, times: t, peers: map[uint64]*peer{}}
}

// tick advances running time by the time since the last tick, but by at most a
// quarter of the election timeout: if more has passed, the process was paused.
func (c *contacts) tick(now int64) moment {
	c.ran, c.ticked = c.ranAt(now), now
	return moment{now, c.ran}
}

func (c *contacts) ranAt(now int64) int64 {
	return c.ran + min(max(now-c.ticked, 0), timing.Late(c.silence.Milliseconds()))
}

// moment returns now by both clocks.
func (c *contacts) moment(now int64) moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return moment{now, c.ranAt(now)}
}

// setMembers replaces the list of members.
func (c *contacts) setMembers(members []proto.Peer) {
	c.members = members
	for _, x := range members {
		if x.ID != c.self {
			c.peer(x.ID)
		}
	}
	for id := range c.peers {
		if find(members, id) == nil {
			delete(c.peers, id)
		}
	}
}

// peer returns what is known about another member. The silence of a new one counts
// from now.
func (c *contacts) peer(id uint64) *peer {
	p := c.peers[id]
	if p == nil {
		p = &peer{followed: moment{never, never}, reached: c.ran, saidAt: never, askedAt: never}
		c.peers[id] = p
	}
	return p
}

// followed notes that another member accepted a heartbeat of this one, or voted for
// it; asked is when this member sent the heartbeat or the vote request.
func (c *contacts) followed(id uint64, asked moment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peer(id)
	p.followed = moment{max(p.followed.now, asked.now), max(p.followed.ran, asked.ran)}
	c.reachedLocked(p, asked)
}

// ask begins a round, which finds out whether this member still leads now. Clocks could
// not tell whether a heartbeat was sent before or after this call, so rounds are numbered.
func (c *contacts) ask() (round uint64) { return c.round.Add(1) }

// agree notes that another member has accepted this one as the leader, by a heartbeat that
// was sent after the round had begun.
func (c *contacts) agree(id, round uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peer(id)
	p.agreed = max(p.agreed, round)
	c.agreed.raise()
}

// hasAgreed reports whether a majority of members has agreed to the round, and otherwise
// returns a channel that is closed when another member has. The member with the id asker,
// which may be 0, has agreed by asking.
func (c *contacts) hasAgreed(round, asker uint64, members []proto.Peer) (bool, <-chan struct{}) {
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
	return false, c.agreed.wait()
}

func (c *contacts) reachedLocked(p *peer, asked moment) {
	p.reached = max(p.reached, asked.ran)
	p.refused = false
}

// outdated notes that another member refused a heartbeat of this one, since it has begun a
// later term. Raft may not have noticed: its main goroutine may be waiting for a stuck disk, and
// the new leader's own heartbeats may not arrive here. outdated reports whether that is news.
func (c *contacts) outdated(term uint64) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	news = term > c.newer
	c.newer = max(c.newer, term)
	return news
}

// leads reports whether this member leads, and knows of no later term, in which another may.
func (c *contacts) leads(own *state) bool {
	return own.leads && max(c.heard.term, c.newer) <= own.term
}

// lives notes that another member has given a sign of life on one of Raft's connections since
// raftConns.watchConns last looked. On a slow link its answers to heartbeats can be late, since they
// and the heartbeats wait behind other messages.
func (c *contacts) lives(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[id]; p != nil {
		c.reachedLocked(p, moment{ran: c.ran - c.silence.Milliseconds()/looks})
	}
}

// refused notes that another member's address refused a connection.
func (c *contacts) refused(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peer(id).refused = true
}

// answered notes another member's answer to a question that was sent at asked.
func (c *contacts) answered(id uint64, asked moment, now int64, s state) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peer(id)
	p.said, p.saidAt, p.cameAt = s, max(p.saidAt, asked.now), now
	c.reachedLocked(p, asked)
}

// hear notes a heartbeat, unless it is of an old term. It reports whether something
// has changed since the previous one: the leader's term, the connection, or whether
// the leader's disk is stuck. ledAgo is how long ago a majority confirmed the
// leader; newest is the newest term that this member knows.
func (c *contacts) hear(now int64, h heard, ledAgo time.Duration, newest uint64) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick(now)
	if h.term < newest || h.term < c.heard.term {
		return false
	}
	news = h.conn != c.heard.conn || h.term != c.heard.term || h.stalled >= c.silence != (c.heard.stalled >= c.silence)
	if h.conn != c.heard.conn || c.ran-c.heard.ran >= timing.Late(c.silence.Milliseconds()) {
		c.gaps.Add(1)
	}
	h.ran, h.led = c.ran, c.ran-ledAgo.Milliseconds()
	if h.stalled < c.silence/2 {
		ledAgo -= c.silence // on a slow link the answers that confirm it are late
	}
	h.asked -= max(0, ledAgo).Milliseconds() // it may have been replaced since; a stuck one does not notice
	c.heard = h
	if p := c.peers[h.id]; p != nil {
		c.reachedLocked(p, moment{ran: c.ran})
	}
	return news
}

// hungUp notes that a connection for heartbeats has ended. It reports whether it was
// that of the newest leader.
func (c *contacts) hungUp(conn any, now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heard.conn != conn {
		return false
	}
	c.heard.conn, c.heard.ended = nil, now
	return true
}

// majority returns the latest time t such that at(p) >= t for a majority of the
// voters. This member, if it is a voter, counts as having any t.
func (c *contacts) majority(at func(p *peer) int64) int64 {
	most := voters(c.members)/2 + 1
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
		return never
	}
	slices.Sort(times)
	return times[len(times)-most]
}

// lastFollowed returns the latest time, by the real clock, since which a majority of
// members has accepted a message that this member sent as the leader or a candidate.
func (c *contacts) lastFollowed(now int64, members []proto.Peer) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setMembers(members)
	return min(now, c.majority(func(p *peer) int64 { return p.followed.now }))
}

// ledAgo returns how long ago, in running time, a majority accepted this member as
// the leader.
func (c *contacts) ledAgo() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.majority(func(p *peer) int64 { return p.followed.ran })
	return time.Duration(max(0, c.ran-at)) * time.Millisecond
}

// knows reports whether this member, which leads in term, can tell others what is committed: it has
// heard of no later term, and its process was not paused since a majority accepted it. In running
// time that would seem to be a moment ago.
func (c *contacts) knows(now int64, term uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	accepted := now - min(now, c.majority(func(p *peer) int64 { return p.followed.now }))
	ran := c.ranAt(now)
	ran -= min(ran, c.majority(func(p *peer) int64 { return p.followed.ran }))
	return c.leads(&state{leads: true, term: term}) && accepted-ran < c.silence.Milliseconds()/2
}

// follows reports whether another member has accepted this one as the leader within the last
// election timeout.
func (c *contacts) follows(id uint64, now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peers[id]
	return p != nil && now-p.followed.now < c.silence.Milliseconds()
}

// present counts the other members that accepted this one as the leader within the
// last election timeout.
func (c *contacts) present(now int64) (followers, observers int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.members {
		p := c.peers[x.ID]
		switch {
		case p == nil || now-p.followed.now > c.silence.Milliseconds():
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
func (c *contacts) lost(newest uint64) bool {
	h := &c.heard
	if h.id == 0 || h.term < newest || c.ran-h.ran >= c.silence.Milliseconds() {
		return true
	}
	p := c.peers[h.id]
	return h.ended != 0 && p != nil && (p.refused || p.saidAt >= h.ended && !p.said.leads)
}

// useless reports whether the current leader should be replaced because its disk is
// stuck.
func (c *contacts) useless() bool { return c.heard.stalled >= c.silence }

// state completes this member's answer to a question: s holds all but what its
// contacts say.
func (c *contacts) state(s state) state {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.leads = c.leads(&s)
	s.lost = !s.leads && (c.lost(s.term) || c.useless())
	s.candidate = s.candidate && c.heard.term < s.term // Raft does not always notice that another was elected
	return s
}

// keepUp advances current after this member has applied entries up to applied.
func (c *contacts) keepUp(applied uint64) {
	for range 2 { // the next aim may already be reached too
		if applied >= c.aim {
			c.current = max(c.current, c.aimed)
			if c.heard.applied != notBegun {
				c.aim, c.aimed = c.heard.applied, c.heard.asked
			}
		}
	}
}

// caughtUp notes that everything committed at ran, a running time, is applied here.
func (c *contacts) caughtUp(ran int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = max(c.current, ran)
}

// behind reports whether the state of this member may be older than reads are promised to be.
func (c *contacts) behind(now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.behindAt(c.ranAt(now))
}

func (c *contacts) behindAt(ran int64) bool {
	return ran-c.current >= (unheardLimit * c.silence).Milliseconds()
}

// verdict is a member's view of its cluster at one look.
type verdict struct {
	leads      bool // this member leads, and has heard of no later term
	lost       bool // this member knows no leader
	noMajority bool // a majority cannot be reached
	stuck      bool // this member's disk is stuck, but there is a working leader
	deposed    bool // Raft goes on leading although it should have noticed a later term
	behind     bool // this member's state is too old to serve reads from
	disputed   bool // members' states differ, and nobody knows which are right; see digests
}

// look evaluates the contacts. It returns the verdict, which members to ask for their
// state, whether this member must stand for election now, and when to look again. own
// is this member's state.
func (c *contacts) look(now int64, members []proto.Peer, own state) (v verdict, ask []proto.Peer, stand bool, again time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick(now)
	c.setMembers(members)
	if c.term != 0 && own.term > c.term {
		c.begun = now
	}
	c.term = own.term
	leads := c.leads(&own)
	switch {
	case !own.leads || leads:
		c.deposed = 0
	case c.deposed == 0:
		c.deposed = now
	default:
		v.deposed = now-c.deposed >= c.sure.Milliseconds()
	}
	if leads || c.heard.term >= own.term {
		c.begun, c.stood, c.tries = 0, 0, 0 // that election was won
	}
	c.keepUp(own.applied)
	if leads && own.begun { // nobody else can have committed anything while a majority accepted this leader
		c.current = max(c.current, min(c.ran, c.majority(func(p *peer) int64 { return p.followed.ran })))
	}
	v.behind = c.behindAt(c.ran)
	v.leads, v.lost = leads, !leads && c.lost(own.term)
	elect := v.lost || !leads && c.useless()
	if !elect {
		c.eligible, c.resort = 0, 0
	}

	reached := c.majority(func(p *peer) int64 { return p.reached })
	if !leads {
		reached = max(reached, c.heard.led)
	}
	silent := c.ran - min(c.ran, reached)
	if elect || !leads && c.heard.ended != 0 || silent >= c.silence.Milliseconds()/2 {
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
	v.noMajority = silent >= c.silence.Milliseconds() || c.refusedByMost(now, leads || v.lost)
	v.stuck = max(own.stalled, own.saving) >= c.silence && !leads && !elect

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
		again = timing.Redial(c.silence)
	}
	if left := unheardLimit*c.silence - time.Duration(c.ran-c.current)*time.Millisecond; left > 0 {
		again = min(again, left)
	}
	return v, ask, stand, again
}

// refusedByMost reports whether so many members have been refusing connections that
// the others are no majority, for longer than a restart takes. It does not count
// while counts is false.
func (c *contacts) refusedByMost(now int64, counts bool) bool {
	there := 0
	for _, x := range c.members {
		if !x.Observer && (x.ID == c.self || !c.peer(x.ID).refused) {
			there++
		}
	}
	if !counts || len(c.members) == 0 || there > voters(c.members)/2 {
		c.gone = 0
		return false
	}
	if c.gone == 0 {
		c.gone = now
	}
	return now-c.gone >= c.sure.Milliseconds()
}

// missing lists the other voters that this member has not reached lately, for messages.
func (c *contacts) missing() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	for _, x := range c.members {
		if p := c.peers[x.ID]; !x.Observer && x.ID != c.self && p != nil && (p.refused || c.ran-p.reached >= c.sure.Milliseconds()) {
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
func (c *contacts) mayStand(now int64, own state) bool {
	self := find(c.members, c.self)
	votes := self != nil && !self.Observer
	if self == nil && !own.dropped || own.stalled >= c.silence/2 {
		c.eligible = 0
		return false
	}
	sure := c.sure.Milliseconds()
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
		running = running || s.candidate || s.term > own.term
		if s.leads && s.term >= own.term && s.stalled < c.silence { // its heartbeat will come soon
			c.eligible = 0
			return false
		}
		if !s.lost || s.stalled >= c.silence/2 {
			continue
		}
		agree++
		longest = longest && (own.lastTerm > s.lastTerm || own.lastTerm == s.lastTerm && own.lastIndex > s.lastIndex)
		if s.lastTerm > own.lastTerm || s.lastTerm == own.lastTerm && (s.lastIndex > own.lastIndex || s.lastIndex == own.lastIndex && x.ID < c.self) {
			before++
		}
	}
	if agree <= voters(c.members)/2 || !votes && !own.dropped && !longest {
		c.eligible = 0
		return false
	}
	if c.eligible == 0 {
		c.eligible = now
	}
	from, gap := c.eligible, sure/2
	switch {
	case !votes && !own.dropped: // the others go first, and may need several attempts, during which their disks may seem stuck
		if c.resort == 0 {
			c.resort = now
		}
		from = max(from, c.resort+10*c.silence.Milliseconds())
	case !votes:
		from += c.silence.Milliseconds()
	}
	switch {
	case running: // give the other candidate time to win
		from += sure
	case unheard: // a member that has not answered yet may know of a leader
		from += c.beat.Milliseconds()
	}
	if last := max(c.stood, c.begun); last != 0 { // the previous election may still be won: disks may be slow
		write := c.silence.Milliseconds() / 2 // the longest time that one is given
		patience, apart := write, sure/4
		if gap = write; c.tries >= 2 {
			// A member hears of another's election only after two of its writes, and counts its own wait from then. So
			// those with shorter logs wait longer: otherwise they would stand first every time.
			patience = write * int64(min(c.tries, mostPatience))
			apart, gap = write, patience+electionWrites*write
		}
		from = max(from, last+patience+spread(c.self, own.term, apart))
	}
	if now < from+int64(before)*gap {
		return false
	}
	c.stood, c.tries = now, c.tries+1
	return true
}

// spread returns a time from 0 to most which differs between members and terms as if it were random,
// so that two that disturb each other in one election do not do so in the next ones too.
func spread(id, term uint64, most int64) int64 {
	return rand.New(rand.NewPCG(id, term)).Int64N(most + 1)
}

// questionDone notes that a question to another member was answered or has failed.
func (c *contacts) questionDone(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[id]; p != nil {
		p.asking = false
	}
}

// troubled reports whether the leader or the majority seems lost.
func (c *contacts) troubled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trouble != 0
}

// again returns the time between two looks, or two questions to the same member:
// short at first when trouble begins, then longer, up to the heartbeat interval.
func (c *contacts) again(now int64) time.Duration {
	if c.trouble == 0 {
		return c.beat
	}
	return min(c.beat, max(hurryGap, time.Duration(now-c.trouble)*time.Millisecond/4))
}
