package election

import (
	"cmp"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Contacts is what a member knows about the others: which of them can be reached, who leads, and who accepts this member as the
// leader. Its exported methods are safe for concurrent use; the others need c.mu held.
//
// It uses two clocks. This member's lease as the leader is measured by the real clock.
// How long another member has been silent is measured by running time, which stops
// while this process is paused: that nothing comes in then says nothing about the others.
type Contacts struct {
	self uint64
	timing.Times
	rounds atomic.Uint64 // the newest round; see BeginRound

	Gaps atomic.Int64 // how many heartbeats of a leader have come late or over a new connection

	mu           sync.Mutex
	running      int64 // running time in ms when tick was last called
	ticked       int64 // the same by the real clock
	members      []proto.Peer
	peers        map[uint64]*peer
	heard        Heartbeat
	laterTerm    uint64 // the newest term named by a member that refused a heartbeat of this one
	deposedSince int64  // since when Raft goes on leading although this member knows of a later term; 0 if it does not

	// How old reads on this member can be: it has applied all that its leader had applied at currentAsOf. Once it has applied the
	// entry at targetIndex, it has all that the leader had applied at targetAsOf, too. Both are running times. See advance.
	currentAsOf int64
	targetIndex uint64
	targetAsOf  int64

	roundAccepted wake.Broadcast // a member has accepted a round
	candidacy
}

// candidacy is what decides whether a member stands for election. The contacts' mutex guards it.
type candidacy struct {
	troubledSince     int64  // since when the leader or the majority seems lost; 0 if neither does
	majorityGoneSince int64  // since when so many have been refusing connections that the others are no majority; 0 if they are not
	eligibleSince     int64  // since when this member may stand, once its turn comes; 0 if it may not
	lastResortSince   int64  // when it first was eligible as an observer since it last had a leader; 0 if it was not
	tries             int    // how often it has stood since it last had a leader
	lastTerm          uint64 // the newest term at the last look
	lastElection      int64  // when this member last stood, or first saw that term; 0 if neither since it started or last had a leader
}

// peer is what is known about another member. Where an answer proves something, it counts
// from when the question was sent, since the answer may have been delayed.
type peer struct {
	accepted      timing.Moment // when this member sent the last heartbeat or vote request that it accepted
	reached       int64         // in running time: when the last message that it answered was sent, or its last heartbeat came
	refused       bool          // the last connection attempt was refused, and nothing has come from it since
	said          State         // its last answer to a question
	saidAt        int64         // when that question was sent, by the real clock
	answeredAt    int64         // when that answer came, by the real clock
	acceptedRound uint64        // the newest round that it has accepted
	asking        bool          // a question to it is under way
	askedAt       int64         // when the last question was begun, by the real clock
}

// Heartbeat is what a leader's heartbeat says.
type Heartbeat struct {
	ID, Term   uint64
	cameRan    int64         // when it came, in running time
	leaseStart int64         // when a majority last accepted the leader, in running time
	Stalled    time.Duration // how long the leader's disk had been blocking a write
	Applied    uint64        // index of the last entry that the leader had applied, or NoApplied
	AsOf       int64         // a running time of the member that got it: all that the leader had applied by then is in Applied
	Conn       any           // over which it came
	endedAt    int64         // when that connection ended, by the real clock; 0 while it is open
}

// NoApplied is the Heartbeat.Applied of a leader that cannot vouch for what is committed: it has not yet applied all that
// earlier leaders left to it, or may have been replaced.
const NoApplied = math.MaxUint64

// State is what a member knows of itself. Another member asks for it over a connection of
// peer.KindState. What is marked "own" is sent, too, but only its own member uses it.
type State struct {
	Leads       bool
	NeedsLeader bool // it knows no leader, or its leader's disk is stuck
	Candidate   bool
	Term        uint64 // the newest that it knows
	// The term and index at the end of its log.
	LastTerm, LastIndex uint64
	Stalled             time.Duration // how long its disk has been blocking a write
	Saving              time.Duration // how long its disk has been blocking a write of a snapshot; own
	Applied             uint64        // index of the last entry that it has applied; own
	Ready               bool          // it leads, and has applied an entry of its own term, so all that earlier leaders left to it; own
	LosesVote           bool          // its newest list of members, perhaps uncommitted, takes its vote away; own
}

// NewContacts returns the contacts of the member with the id self, which knows no other member yet.
func NewContacts(self uint64, t timing.Times) *Contacts {
	return &Contacts{self: self, Times: t, peers: map[uint64]*peer{}}
}

// tick advances running time to now, but by at most a quarter of the election timeout: if more has
// passed since the last tick, the process was paused.
func (c *Contacts) tick(now int64) { c.running, c.ticked = c.runningAt(now), now }

func (c *Contacts) runningAt(now int64) int64 {
	return c.running + min(max(now-c.ticked, 0), timing.Late(c.ElectionTimeout.Milliseconds()))
}

// Moment returns now by both clocks.
func (c *Contacts) Moment(now int64) timing.Moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return timing.Moment{Real: now, Running: c.runningAt(now)}
}

// setMembers replaces the list of members.
func (c *Contacts) setMembers(members []proto.Peer) {
	c.members = members
	for _, x := range members {
		if x.ID != c.self {
			c.peer(x.ID)
		}
	}
	maps.DeleteFunc(c.peers, func(id uint64, _ *peer) bool { return Find(members, id) == nil })
}

// peer returns what is known about another member. A new one counts as reached now.
func (c *Contacts) peer(id uint64) *peer {
	p := c.peers[id]
	if p == nil {
		p = &peer{accepted: timing.Moment{Real: timing.Never, Running: timing.Never}, reached: c.running, saidAt: timing.Never, askedAt: timing.Never}
		c.peers[id] = p
	}
	return p
}

// Accepted notes that another member accepted a heartbeat of this one, or voted for it. sent is
// when this member sent the heartbeat or the vote request, and round the newest round then; 0 with a vote.
func (c *Contacts) Accepted(id uint64, sent timing.Moment, round uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peer(id)
	p.accepted = timing.Moment{Real: max(p.accepted.Real, sent.Real), Running: max(p.accepted.Running, sent.Running)}
	c.reach(p, sent.Running)
	p.acceptedRound = max(p.acceptedRound, round)
	c.roundAccepted.Raise()
}

// BeginRound begins a round, which finds out for a read index whether this member still leads: a majority
// must accept heartbeats that were sent after this call. Clocks could not tell that, so rounds are numbered.
func (c *Contacts) BeginRound() (round uint64) { return c.rounds.Add(1) }

// Round returns the newest round.
func (c *Contacts) Round() uint64 { return c.rounds.Load() }

// HasMajority reports whether a majority of members has accepted the round, and otherwise
// returns a channel that is closed when another member has. The member with the id asker,
// which may be 0, has accepted it by asking.
func (c *Contacts) HasMajority(round, asker uint64, members []proto.Peer) (bool, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setMembers(members)
	by := c.peers[asker]
	if c.majority(func(p *peer) int64 {
		if p == by {
			return int64(round)
		}
		return int64(p.acceptedRound)
	}) >= int64(round) {
		return true, nil
	}
	return false, c.roundAccepted.Wait()
}

// reach notes that a member was reached at a running time. The caller holds mu.
func (c *Contacts) reach(p *peer, at int64) { p.reached, p.refused = max(p.reached, at), false }

// SawLaterTerm notes that another member refused a heartbeat of this one, since it knows a later
// term, and reports whether that is news. Raft may not have noticed: its main goroutine may be waiting
// for a stuck disk, and the new leader's own heartbeats may not arrive here.
func (c *Contacts) SawLaterTerm(term uint64) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	news = term > c.laterTerm
	c.laterTerm = max(c.laterTerm, term)
	return news
}

// leads reports whether this member leads, and knows of no later term, in which another may lead.
func (c *Contacts) leads(own *State) bool {
	return own.Leads && max(c.heard.Term, c.laterTerm) <= own.Term
}

// SeenAlive notes that another member has given a sign of life on one of Raft's connections since those
// were last looked at. On a slow link its answers to heartbeats are no measure: they, and the heartbeats,
// wait behind other messages.
func (c *Contacts) SeenAlive(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[id]; p != nil {
		c.reach(p, c.running-c.ElectionTimeout.Milliseconds()/timing.LooksPerTimeout)
	}
}

// Refused notes that another member's address refused a connection.
func (c *Contacts) Refused(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peer(id).refused = true
}

// Answered notes another member's answer to a question that was sent at asked. s is nil if the question has failed.
func (c *Contacts) Answered(id uint64, asked timing.Moment, now int64, s *State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peer(id)
	p.asking = false
	if s != nil {
		p.said, p.saidAt, p.answeredAt = *s, max(p.saidAt, asked.Real), now
		c.reach(p, asked.Running)
	}
}

// Heard notes a heartbeat of another member, unless it is of an old term. It reports whether
// it differs from the previous one in the term, in the connection, or in whether the leader's disk is stuck.
// leaseAge is how long ago a majority accepted the leader; newest is the newest term that this
// member knows.
func (c *Contacts) Heard(now int64, h Heartbeat, leaseAge time.Duration, newest uint64) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick(now)
	if h.Term < newest || h.Term < c.heard.Term {
		return false
	}
	news = h.Conn != c.heard.Conn || h.Term != c.heard.Term || h.Stalled >= c.ElectionTimeout != (c.heard.Stalled >= c.ElectionTimeout)
	if h.Conn != c.heard.Conn || c.running-c.heard.cameRan >= timing.Late(c.ElectionTimeout.Milliseconds()) {
		c.Gaps.Add(1)
	}
	h.cameRan, h.leaseStart = c.running, c.running-leaseAge.Milliseconds()
	if h.Stalled < c.ElectionTimeout/2 {
		leaseAge -= c.ElectionTimeout // on a slow link the answers of its majority are late
	}
	h.AsOf -= max(0, leaseAge).Milliseconds() // it may have been replaced since; a stuck one does not notice
	c.heard = h
	if p := c.peers[h.ID]; p != nil {
		c.reach(p, c.running)
	}
	return news
}

// HungUp notes that a connection for heartbeats has ended, and reports whether it was the newest
// leader's.
func (c *Contacts) HungUp(conn any, now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heard.Conn != conn {
		return false
	}
	c.heard.Conn, c.heard.endedAt = nil, now
	return true
}

// majority returns the latest time t such that at(p) >= t for a majority of the
// voters. This member, if it is a voter, counts as having any t.
func (c *Contacts) majority(at func(p *peer) int64) int64 {
	most := CountVoters(c.members)/2 + 1
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

// LeaseStart returns from when, by the real clock, this member's lease as the leader runs: the latest time such that
// a majority of members has accepted a message that this member sent then or later, as the leader or a candidate.
func (c *Contacts) LeaseStart(now int64, members []proto.Peer) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setMembers(members)
	return min(now, c.majority(func(p *peer) int64 { return p.accepted.Real }))
}

// LeaseAge returns how long ago, in running time, a majority accepted this member, which leads in term. It also reports
// whether this member can tell others what is committed: it has heard of no later term, and its process was not paused
// since then. After a pause, the age would be too short.
func (c *Contacts) LeaseAge(now int64, term uint64) (age time.Duration, knowsCommitted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	accepted := now - min(now, c.majority(func(p *peer) int64 { return p.accepted.Real }))
	ran := c.runningAt(now)
	ran -= min(ran, c.majority(func(p *peer) int64 { return p.accepted.Running }))
	knowsCommitted = c.leads(&State{Leads: true, Term: term}) && accepted-ran < c.ElectionTimeout.Milliseconds()/2
	return time.Duration(ran) * time.Millisecond, knowsCommitted
}

// Follows reports whether another member has accepted this one as the leader within the last
// election timeout.
func (c *Contacts) Follows(id uint64, now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peers[id]
	return p != nil && now-p.accepted.Real < c.ElectionTimeout.Milliseconds()
}

// lostLeader reports whether this member, which does not lead, has lost its leader: it knows none in
// the newest term, or the leader has been silent for the election timeout. It need not wait so long if the
// leader's connection has ended, and the leader has since refused a new one or said that it does not lead.
func (c *Contacts) lostLeader(newest uint64) bool {
	h := &c.heard
	if h.ID == 0 || h.Term < newest || c.running-h.cameRan >= c.ElectionTimeout.Milliseconds() {
		return true
	}
	p := c.peers[h.ID]
	return h.endedAt != 0 && p != nil && (p.refused || p.saidAt >= h.endedAt && !p.said.Leads)
}

// leaderStuck reports whether the disk of the current leader is stuck, so that it should be replaced.
func (c *Contacts) leaderStuck() bool { return c.heard.Stalled >= c.ElectionTimeout }

// CompleteState returns this member's state as another is told it. s is the state that Raft knows;
// CompleteState adds what the contacts know better: whether this member leads, needs a leader, or is a candidate.
func (c *Contacts) CompleteState(s State) State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Leads = c.leads(&s)
	s.NeedsLeader = !s.Leads && (c.lostLeader(s.Term) || c.leaderStuck())
	s.Candidate = s.Candidate && c.heard.Term < s.Term // Raft does not always notice that another was elected
	return s
}

// advance advances currentAsOf after this member has applied entries up to applied.
func (c *Contacts) advance(applied uint64) {
	for range 2 { // the next target may already be reached too
		if applied >= c.targetIndex {
			c.currentAsOf = max(c.currentAsOf, c.targetAsOf)
			if c.heard.Applied != NoApplied {
				c.targetIndex, c.targetAsOf = c.heard.Applied, c.heard.AsOf
			}
		}
	}
}

// CaughtUp notes that this member has applied all that was committed at ran, a running time.
func (c *Contacts) CaughtUp(ran int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.currentAsOf = max(c.currentAsOf, ran)
}

// Behind reports whether this member's state may be older than is promised to reads.
func (c *Contacts) Behind(now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.behindAt(c.runningAt(now))
}

func (c *Contacts) behindAt(ran int64) bool {
	return ran-c.currentAsOf >= (timing.UnheardLimit * c.ElectionTimeout).Milliseconds()
}

// Verdict is a member's view of its cluster at one look.
type Verdict struct {
	Leads      bool // this member leads, and has heard of no later term
	NoLeader   bool // this member knows no leader
	NoMajority bool // a majority cannot be reached
	Stuck      bool // this member's disk is stuck, but there is a working leader
	Deposed    bool // Raft goes on leading here although it should have noticed a later term
	Behind     bool // this member's state may be older than is promised to reads
	Disputed   bool // members' states differ, and no majority says which are right; see Digests
}

// Look evaluates what is known at now. It returns the verdict, which members to ask for their state,
// whether this member must stand for election now, and after how long to call Look again. own is this
// member's state as Raft knows it.
func (c *Contacts) Look(now int64, members []proto.Peer, own State) (v Verdict, ask []proto.Peer, stand bool, again time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick(now)
	c.setMembers(members)
	if c.lastTerm != 0 && own.Term > c.lastTerm {
		c.lastElection = now
	}
	c.lastTerm = own.Term
	leads := c.leads(&own)
	switch {
	case !own.Leads || leads:
		c.deposedSince = 0
	case c.deposedSince == 0:
		c.deposedSince = now
	default:
		v.Deposed = now-c.deposedSince >= c.Lease.Milliseconds()
	}
	if leads || c.heard.Term >= own.Term {
		c.lastElection, c.tries = 0, 0 // that election was won
	}
	c.advance(own.Applied)
	if leads && own.Ready { // nobody else can have committed anything while a majority accepted this leader
		c.currentAsOf = max(c.currentAsOf, min(c.running, c.majority(func(p *peer) int64 { return p.accepted.Running })))
	}
	v.Behind = c.behindAt(c.running)
	v.Leads, v.NoLeader = leads, !leads && c.lostLeader(own.Term)
	elect := v.NoLeader || !leads && c.leaderStuck()
	if !elect {
		c.eligibleSince, c.lastResortSince = 0, 0
	}

	reached := c.majority(func(p *peer) int64 { return p.reached })
	if !leads {
		reached = max(reached, c.heard.leaseStart)
	}
	silent := c.running - min(c.running, reached)
	if elect || !leads && c.heard.endedAt != 0 || silent >= c.ElectionTimeout.Milliseconds()/2 {
		if c.troubledSince == 0 {
			c.troubledSince = now
			if !leads { // a leader's heartbeats keep these up to date
				for _, p := range c.peers {
					p.refused = false
				}
			}
		}
	} else {
		c.troubledSince = 0
	}
	v.NoMajority = silent >= c.ElectionTimeout.Milliseconds() || c.refusedByMost(now, leads || v.NoLeader)
	v.Stuck = max(own.Stalled, own.Saving) >= c.ElectionTimeout && !leads && !elect

	if c.troubledSince != 0 {
		interval := c.interval(now).Milliseconds()
		for _, x := range members {
			if x.ID == c.self || x.Observer {
				continue
			}
			if p := c.peer(x.ID); !p.asking && now-p.askedAt >= interval {
				p.asking, p.askedAt = true, now
				ask = append(ask, x)
			}
		}
	}
	stand = elect && c.mustStand(now, own)
	if again = c.interval(now); !leads && c.troubledSince == 0 {
		again = timing.Redial(c.ElectionTimeout)
	}
	if left := timing.UnheardLimit*c.ElectionTimeout - time.Duration(c.running-c.currentAsOf)*time.Millisecond; left > 0 {
		again = min(again, left)
	}
	return v, ask, stand, again
}

// refusedByMost reports whether so many members have been refusing connections that the others
// are no majority, for longer than a restart takes. That time starts anew while counts is false.
func (c *Contacts) refusedByMost(now int64, counts bool) bool {
	there := 0
	for _, x := range c.members {
		if !x.Observer && (x.ID == c.self || !c.peer(x.ID).refused) {
			there++
		}
	}
	if !counts || len(c.members) == 0 || there > CountVoters(c.members)/2 {
		c.majorityGoneSince = 0
		return false
	}
	if c.majorityGoneSince == 0 {
		c.majorityGoneSince = now
	}
	return now-c.majorityGoneSince >= c.Lease.Milliseconds()
}

// Missing lists, for messages, the other voters that this member has not reached lately.
func (c *Contacts) Missing() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Named(slices.DeleteFunc(slices.Clone(c.members), func(x proto.Peer) bool {
		p := c.peers[x.ID]
		return x.Observer || x.ID == c.self || p == nil || !p.refused && c.running-p.reached < c.Lease.Milliseconds()
	}))
}

const (
	electionWrites    = 4 // for how many disk writes, one after the other, an election waits
	maxPatienceWrites = 5 // for the time of how many disk writes a member waits at most before it stands again
)

// mustStand reports whether this member must stand for election now. A majority of voters must
// need a leader and have working disks. To avoid split votes, they stand one after another: the one
// with the longest log first, and of equal logs the one with the lowest id.
//
// A member whose newest list of members takes its vote away stands too while that list may be uncommitted. It first leaves
// the others an election timeout, which is mostly enough for them. Its own vote does not count. So does an observer, as a last
// resort, if its log ends later than those of all voters that answer. docs/raft.md says why.
func (c *Contacts) mustStand(now int64, own State) bool {
	self := Find(c.members, c.self)
	votes := self != nil && !self.Observer
	eligible := c.eligibleSince
	c.eligibleSince = 0 // set again below, unless something speaks against standing
	if self == nil && !own.LosesVote || own.Stalled >= c.ElectionTimeout/2 {
		return false
	}
	lease := c.Lease.Milliseconds()
	willing, before, rival, unheard := 0, 0, false, false
	longest := true // its log ends later than those of all voters that answer
	if votes {
		willing = 1
	}
	for _, x := range c.members {
		if x.Observer || x.ID == c.self {
			continue
		}
		p := c.peer(x.ID)
		if p.saidAt < c.troubledSince || now-p.answeredAt > lease {
			unheard = unheard || !p.refused
			continue
		}
		s := &p.said
		rival = rival || s.Candidate || s.Term > own.Term
		if s.Leads && s.Term >= own.Term && s.Stalled < c.ElectionTimeout { // its heartbeat will come soon
			return false
		}
		if !s.NeedsLeader || s.Stalled >= c.ElectionTimeout/2 {
			continue
		}
		willing++
		longest = longest && (own.LastTerm > s.LastTerm || own.LastTerm == s.LastTerm && own.LastIndex > s.LastIndex)
		if s.LastTerm > own.LastTerm || s.LastTerm == own.LastTerm && (s.LastIndex > own.LastIndex || s.LastIndex == own.LastIndex && x.ID < c.self) {
			before++
		}
	}
	if willing <= CountVoters(c.members)/2 || !votes && !own.LosesVote && !longest {
		return false
	}
	c.eligibleSince = cmp.Or(eligible, now)
	from, gap := c.eligibleSince, lease/2
	switch {
	case !votes && !own.LosesVote: // the others go first, and may need several attempts, during which their disks may seem stuck
		if c.lastResortSince == 0 {
			c.lastResortSince = now
		}
		from = max(from, c.lastResortSince+10*c.ElectionTimeout.Milliseconds())
	case !votes:
		from += c.ElectionTimeout.Milliseconds()
	}
	switch {
	case rival: // give the other candidate time to win
		from += lease
	case unheard: // a member that has not answered yet may know of a leader
		from += c.Beat.Milliseconds()
	}
	if last := c.lastElection; last != 0 { // the previous election may still be won, if disks are slow
		write := c.ElectionTimeout.Milliseconds() / 2 // the most time that is allowed for a disk write
		patience, apart := write, lease/4
		if gap = write; c.tries >= 2 {
			// A member hears of another's election only after two disk writes of that one, and counts its own wait from
			// then. So members with shorter logs wait longer: otherwise they would stand first every time.
			patience = write * int64(min(c.tries, maxPatienceWrites))
			apart, gap = write, patience+electionWrites*write
		}
		from = max(from, last+patience+spread(c.self, own.Term, apart))
	}
	if now < from+int64(before)*gap {
		return false
	}
	c.lastElection, c.tries = now, c.tries+1
	return true
}

// spread returns a pseudorandom time from 0 to most for a member and a term, so that two members that
// split the votes of one election do not split those of the next ones too.
func spread(id, term uint64, most int64) int64 {
	return rand.New(rand.NewPCG(id, term)).Int64N(most + 1)
}

// Troubled reports whether the leader or the majority seems lost.
func (c *Contacts) Troubled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.troubledSince != 0
}

// interval returns the time between two looks, or two questions to the same member: when trouble
// begins it is short, then longer, up to the time between heartbeats.
func (c *Contacts) interval(now int64) time.Duration {
	if c.troubledSince == 0 {
		return c.Beat
	}
	return min(c.Beat, max(timing.HurryGap, time.Duration(now-c.troubledSince)*time.Millisecond/4))
}
