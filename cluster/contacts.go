package cluster

import (
	"encoding/binary"
	"math"
	"slices"
	"sync"
	"time"
)

// contacts is what a member knows of the others: whether they are there, who
// leads, and who takes this member for the leader. It has no goroutine and reads
// no clock; pulse.go has both. Its methods are safe for concurrent use.
//
// Two clocks are kept apart. Whether this member surely leads is measured by the
// real one. How long another member has been silent is measured by the time in
// which this process ran: while it is paused it hears nobody, which says nothing
// about the others.
type contacts struct {
	self uint64
	times

	mu      sync.Mutex
	ran     int64 // ms in which this process ran; see tick
	ticked  int64 // when tick was called last
	members []MemberInfo
	peers   map[uint64]*peer
	heard   heard

	current int64  // what the leader had applied then is applied here, by the time that this process ran
	aim     uint64 // an index that the leader had applied
	aimed   int64  // and not yet all of it was known to the leader before then

	trouble  int64  // since when something is wrong with the leader or the majority; 0 if nothing is
	gone     int64  // since when the connections to a majority are refused; 0 if they are not
	eligible int64  // since when this member may stand for election; 0 if it may not
	tries    int    // how often it has stood since there was a leader
	stood    int64  // when it stood last
	term     uint64 // the newest at the last look
	begun    int64  // when that one began; 0 if it did before this member was started
}

// times are the patience of a member, all derived from the election timeout.
type times struct {
	silence time.Duration // how long another member, or the majority, may be silent: the election timeout
	sure    time.Duration // how long a leader counts as one after a majority has said so
	beat    time.Duration // between two heartbeats
}

func timesFor(electionTimeout time.Duration) times {
	return times{
		silence: electionTimeout,
		sure:    min(300*time.Millisecond, electionTimeout/2),
		beat:    max(min(100*time.Millisecond, electionTimeout/4), time.Millisecond),
	}
}

// moment is one instant by both clocks, in ms.
type moment struct{ now, ran int64 }

// peer is another member.
type peer struct {
	followed moment // when the last question was sent to which it answered that it follows this member
	reached  int64  // when the last question was sent that it answered, by the time this process ran
	refused  bool   // the last connection was refused, and it has not been heard since
	said     state  // its last answer to a question
	saidAt   int64  // when that was asked, by the real clock
	cameAt   int64  // when that answer came, by the real clock
	asking   bool   // a question to it is under way
	askedAt  int64  // when the last question began, by the real clock
}

// heard is what the heartbeats of the newest leader say.
type heard struct {
	id, term uint64
	ran      int64 // when the last one came
	led      int64 // when the leader was last sure of a majority, in ms that this process ran
	stalled  time.Duration
	applied  uint64 // index of the last entry that the leader has applied
	asked    int64  // the leader had not sent that before, by the time that this process ran
	conn     any    // the connection that they come over
	ended    int64  // when that ended, by the real clock; 0 while it is open
}

// state is how a member answers another that asks whether it is there.
type state struct {
	leads, lost, candidate bool
	term                   uint64 // the newest that it knows
	lastTerm, lastIndex    uint64 // of its log
	stalled                time.Duration
	applied                uint64 // index of the last entry that it has applied; not told to others
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

// millis is a duration as 32 bits.
func millis(d time.Duration) uint32 {
	return uint32(min(max(d.Milliseconds(), 0), math.MaxUint32))
}

func duration(ms uint32) time.Duration { return time.Duration(ms) * time.Millisecond }

// never is a time long before any other, of either clock.
const never = math.MinInt64 / 2 / int64(time.Millisecond)

func newContacts(self uint64, t times) *contacts {
	return &contacts{self: self, times: t, peers: map[uint64]*peer{}}
}

// tick counts the time since the last tick, up to a quarter of the election
// timeout: anything longer means that the process was paused.
func (c *contacts) tick(now int64) moment {
	c.ran, c.ticked = c.ranAt(now), now
	return moment{now, c.ran}
}

func (c *contacts) ranAt(now int64) int64 {
	return c.ran + min(max(now-c.ticked, 0), c.silence.Milliseconds()/4)
}

// moment is now by both clocks.
func (c *contacts) moment(now int64) moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return moment{now, c.ranAt(now)}
}

// setMembers replaces the members with those of a configuration.
func (c *contacts) setMembers(members []MemberInfo) {
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

// peer returns what is known of another member. Its silence is counted from when
// this member first learns of it.
func (c *contacts) peer(id uint64) *peer {
	p := c.peers[id]
	if p == nil {
		p = &peer{followed: moment{never, never}, reached: c.ran, saidAt: never, askedAt: never}
		c.peers[id] = p
	}
	return p
}

// followed notes that another member, when it was asked, took this one for the
// leader, or voted for it.
func (c *contacts) followed(id uint64, asked moment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peer(id)
	p.followed = moment{max(p.followed.now, asked.now), max(p.followed.ran, asked.ran)}
	c.reachedLocked(p, asked)
}

func (c *contacts) reachedLocked(p *peer, asked moment) {
	p.reached = max(p.reached, asked.ran)
	p.refused = false
}

// refused notes that nobody listens where another member should be.
func (c *contacts) refused(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peer(id).refused = true
}

// answered notes what another member said when it was asked.
func (c *contacts) answered(id uint64, asked moment, now int64, s state) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peer(id)
	p.said, p.saidAt, p.cameAt = s, max(p.saidAt, asked.now), now
	c.reachedLocked(p, asked)
}

// hear notes a heartbeat. It reports whether it comes from
// another leader than the one before, or over another connection. newest is the
// newest term that this member knows.
func (c *contacts) hear(now int64, h heard, ledAgo time.Duration, newest uint64) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick(now)
	if h.term < newest || h.term < c.heard.term {
		return false
	}
	news = h.conn != c.heard.conn || h.term != c.heard.term || h.stalled >= c.silence != (c.heard.stalled >= c.silence)
	h.ran, h.led = c.ran, c.ran-ledAgo.Milliseconds()
	c.heard = h
	if p := c.peers[h.id]; p != nil {
		c.reachedLocked(p, moment{ran: c.ran})
	}
	return news
}

// hungUp notes that a connection that heartbeats came over has ended. It reports
// whether it was that of the newest leader.
func (c *contacts) hungUp(conn any, now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heard.conn != conn {
		return false
	}
	c.heard.conn, c.heard.ended = nil, now
	return true
}

// majority is the latest time that at has reached for a majority of the voters, if
// this member, which counts too, always has.
func (c *contacts) majority(at func(p *peer) int64) int64 {
	most := voters(c.members)/2 + 1
	var times []int64
	for _, x := range c.members {
		switch {
		case !x.Voter:
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

// lastFollowed is when the last questions were sent to which a majority of members
// answered that it follows this one, by the real clock.
func (c *contacts) lastFollowed(now int64, members []MemberInfo) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setMembers(members)
	return min(now, c.majority(func(p *peer) int64 { return p.followed.now }))
}

// ledAgo is how long ago a majority followed this member, without the time in which
// this process was paused.
func (c *contacts) ledAgo() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.majority(func(p *peer) int64 { return p.followed.ran })
	return time.Duration(max(0, c.ran-at)) * time.Millisecond
}

// present counts the others that followed this member within the election timeout.
func (c *contacts) present(now int64) (followers, observers int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.members {
		p := c.peers[x.ID]
		switch {
		case p == nil || now-p.followed.now > c.silence.Milliseconds():
		case x.Voter:
			followers++
		default:
			observers++
		}
	}
	return followers, observers
}

// lost reports whether this member, which does not lead, is without a leader: it
// knows none in the newest term, or has not heard it for the election timeout;
// or, at once, its connection has ended, and it refuses another one or says that
// it does not lead.
func (c *contacts) lost(newest uint64) bool {
	h := &c.heard
	if h.id == 0 || h.term < newest || c.ran-h.ran >= c.silence.Milliseconds() {
		return true
	}
	p := c.peers[h.id]
	return h.ended != 0 && p != nil && (p.refused || p.saidAt >= h.ended && !p.said.leads)
}

// useless reports whether another leader would be better than the one that is
// heard: it cannot write.
func (c *contacts) useless() bool { return c.heard.stalled >= c.silence }

// state completes this member's answer to another that asks: s holds what it knows
// apart from its contacts.
func (c *contacts) state(s state) state {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.leads = s.leads && c.heard.term <= s.term
	s.lost = !s.leads && (c.lost(s.term) || c.useless())
	s.candidate = s.candidate && c.heard.term < s.term // Raft does not always notice that another was elected
	return s
}

// keepUp notes what this member has applied.
func (c *contacts) keepUp(applied uint64) {
	for range 2 { // the next aim may have been reached too
		if applied >= c.aim {
			c.current = max(c.current, c.aimed)
			c.aim, c.aimed = c.heard.applied, c.heard.asked
		}
	}
}

// caughtUp notes that all that was committed at a time, by the time that this process
// ran, is applied here.
func (c *contacts) caughtUp(ran int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = max(c.current, ran)
}

// behind reports whether what this member, which does not lead, has applied may be
// older than promised.
func (c *contacts) behind(now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.behindAt(c.ranAt(now))
}

func (c *contacts) behindAt(ran int64) bool {
	return ran-c.current >= (unheardLimit * c.silence).Milliseconds()
}

// verdict is what a look at the contacts leads to.
type verdict struct {
	leads      bool // this member does, and no other with a later term is heard
	lost       bool // there is no leader, as far as this member knows
	noMajority bool // no majority is in reach
	stuck      bool // this member cannot write, and the others go on without it
	behind     bool // what this member has applied is too old to answer from
}

// look judges how things are, and says which of the others to ask, whether this
// member is to stand for election now, and when to look again. own is this
// member's state.
func (c *contacts) look(now int64, members []MemberInfo, own state) (v verdict, ask []MemberInfo, stand bool, again time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick(now)
	c.setMembers(members)
	if c.term != 0 && own.term > c.term {
		c.begun = now
	}
	c.term = own.term
	leads := own.leads && c.heard.term <= own.term
	if leads || c.heard.term >= own.term {
		c.begun, c.stood, c.tries = 0, 0, 0 // that election was won
	}
	if c.keepUp(own.applied); leads {
		c.current = c.ran
	}
	v.behind = c.behindAt(c.ran)
	v.leads, v.lost = leads, !leads && c.lost(own.term)
	elect := v.lost || !leads && c.useless()
	if !elect {
		c.eligible = 0
	}

	touch := c.majority(func(p *peer) int64 { return p.reached })
	if !leads {
		touch = max(touch, c.heard.led)
	}
	silent := c.ran - min(c.ran, touch)
	if elect || !leads && c.heard.ended != 0 || silent >= c.silence.Milliseconds()/2 {
		if c.trouble == 0 {
			c.trouble = now
			if !leads { // a leader keeps them true by its heartbeats
				for _, p := range c.peers {
					p.refused = false
				}
			}
		}
	} else {
		c.trouble = 0
	}
	v.noMajority = silent >= c.silence.Milliseconds() || c.refusedByMost(now, leads || v.lost)
	v.stuck = own.stalled >= c.silence && !leads && !elect

	if c.trouble != 0 {
		again := c.again(now).Milliseconds()
		for _, x := range members {
			if x.ID == c.self || !x.Voter {
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
		again = c.silence / 8
	}
	if left := unheardLimit*c.silence - time.Duration(c.ran-c.current)*time.Millisecond; left > 0 {
		again = min(again, left)
	}
	return v, ask, stand, again
}

// refusedByMost reports whether connections to a majority have been refused for
// a while: a member that is only restarted is back sooner.
func (c *contacts) refusedByMost(now int64, counts bool) bool {
	there := 0
	for _, x := range c.members {
		if x.Voter && (x.ID == c.self || !c.peer(x.ID).refused) {
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

// mayStand reports whether this member is to stand for election now: a majority
// has lost the leader too, and can write. Of those the one with the longest log
// stands first, of several the one with the lowest id, and the others wait for it.
func (c *contacts) mayStand(now int64, own state) bool {
	self := find(c.members, c.self)
	if self == nil || !self.Voter || own.stalled >= c.silence/2 {
		c.eligible = 0
		return false
	}
	sure := c.sure.Milliseconds()
	agree, before, running, unheard := 1, 0, false, false
	for _, x := range c.members {
		if !x.Voter || x.ID == c.self {
			continue
		}
		p := c.peer(x.ID)
		if p.saidAt < c.trouble || now-p.cameAt > sure {
			unheard = unheard || !p.refused
			continue
		}
		s := &p.said
		running = running || s.candidate || s.term > own.term
		if s.leads && s.term >= own.term && s.stalled < c.silence { // it will be heard soon
			c.eligible = 0
			return false
		}
		if !s.lost || s.stalled >= c.silence/2 {
			continue
		}
		agree++
		if s.lastTerm > own.lastTerm || s.lastTerm == own.lastTerm && (s.lastIndex > own.lastIndex || s.lastIndex == own.lastIndex && x.ID < c.self) {
			before++
		}
	}
	if agree <= voters(c.members)/2 {
		c.eligible = 0
		return false
	}
	if c.eligible == 0 {
		c.eligible = now
	}
	from, gap := c.eligible, sure/2
	switch {
	case running: // that election may still be won
		from += sure
	case unheard: // a member that has not answered yet may know of a leader
		from += c.beat.Milliseconds()
	}
	if last := max(c.stood, c.begun); last != 0 { // so may the last one here; disks may be slow
		patience := c.silence.Milliseconds()
		if gap = patience / 2; c.tries < 2 {
			patience = gap
		}
		from = max(from, last+patience+int64(c.self*7919+own.term*104729)%(sure/4+1))
	}
	if now < from+int64(before)*gap {
		return false
	}
	c.stood, c.tries = now, c.tries+1
	return true
}

// asked notes that a question to another member is over.
func (c *contacts) asked(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[id]; p != nil {
		p.asking = false
	}
}

// troubled reports whether something is wrong with the leader or the majority.
func (c *contacts) troubled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trouble != 0
}

// again is how long after one look or question the next is due: soon while what
// is wrong has only begun.
func (c *contacts) again(now int64) time.Duration {
	if c.trouble == 0 {
		return c.beat
	}
	return min(c.beat, max(hurryGap, time.Duration(now-c.trouble)*time.Millisecond/4))
}
