package election

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
)

// ErrDiffers is the error of a member whose state does not follow from its log, or whose log
// differs from that of the others.
var ErrDiffers = errors.New("it stops serving and keeps its files; see \"Two members differ\" in docs/operations.md")

// Digests compares the states of the members while they run. With each heartbeat the leader asks for the digest
// of the state after an entry that it has applied: all members for the same entry, and a newer one a few times a
// second. A member that has not applied that entry yet answers for one of an earlier heartbeat.
//
// A member is wrong if, after one entry, a majority of voters has the same digest and the member has another. Nothing
// else is a proof. While two members differ and no majority says which of them is wrong, no member stops; after
// an election timeout, nobody serves either, until a majority has the same state again
// (docs/decisions/026-nobody-serves-in-doubt.md).
//
// Its methods are safe for concurrent use.
type Digests struct {
	self    uint64
	replica *fsm.Replica

	mu       sync.Mutex
	asked    uint64 // the entry that an earlier heartbeat asked for, to be answered once it is applied
	copied   uint64 // this state was copied from another member up to this entry, and not yet found right after a later one; or 0
	settled  uint64 // the newest entry after which a majority of voters, or all members, had the same state, as far as this member has heard
	disputed uint64 // nobody serves, since members differ after this entry, until a later one is settled; or 0

	// On the leader, of its term:
	ballots      []ballot // the newest ones, oldest first
	members      map[uint64]*compared
	nextAt       int64        // when to ask for a newer entry, in running time: not before each member can have heard of the last one
	recount      bool         // Look must count the ballots again: there are answers that it has not seen
	lastMembers  []proto.Peer // as of the last Look
	doubted      uint64       // the newest entry after which members differ without a majority; 0 once a later one is settled
	doubtedSince int64        // since when they differ so, in running time
}

// ballot holds the members' digests after one entry.
type ballot struct {
	index   uint64
	digests map[uint64]uint64 // by member
}

// compared is what the leader knows of another member since that has answered over a new connection: before, it may
// have been another process.
type compared struct {
	copied  uint64 // its own Digests.copied
	right   uint64 // the newest entry after which it had the state of a majority of voters; or 0
	differs uint64 // the first entry after which it differed from the leader, if it still does; or 0
	wrong   uint64 // an entry after which it is known to be wrong; or 0
}

// DigestQuestion is what a heartbeat to a member says of states.
type DigestQuestion struct {
	Index    uint64 // the entry whose digest the leader asks for; or 0
	Settled  uint64 // see Digests.settled
	Disputed uint64 // see Digests.disputed
	Wrong    uint64 // an entry after which this member is known to be wrong; or 0
	Right    uint64 // the newest entry after which this member is known to be right; or 0
}

// DigestAnswer is the answer to a [DigestQuestion].
type DigestAnswer struct {
	Index, Digest uint64 // both are 0 if the member has no digest for an entry that was asked for
	Copied        uint64 // see Digests.copied
	Disputed      uint64 // see Digests.disputed
}

// maxBallots is for how many entries the leader keeps digests: those of at least two election timeouts. A
// member that is further behind does not serve (see Contacts.Behind).
const maxBallots = 32

// NewDigests returns the digests of the member with the id self.
func NewDigests(self uint64, replica *fsm.Replica) *Digests {
	return &Digests{self: self, replica: replica, members: map[uint64]*compared{}}
}

// Answer returns the answer to a heartbeat that asks for the digest after the entry at index.
func (d *Digests) Answer(index uint64) DigestAnswer {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, at := range []uint64{index, d.asked} {
		if digest, ok := d.replica.DigestAt(at); ok {
			d.asked = index
			return DigestAnswer{at, digest, d.copied, d.disputed}
		}
	}
	if newest, _ := d.replica.Newest(); d.asked <= newest { // otherwise its digest may be known sooner than this one's
		d.asked = index
	}
	return DigestAnswer{0, 0, d.copied, d.disputed}
}

// Restored notes that this member has restored another member's snapshot, which ends at index, and returns the index
// noted before. While it restores one, index is math.MaxUint64: its answers can be about the new state before it can say
// where the snapshot ends.
func (d *Digests) Restored(index uint64) (was uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was, d.copied = d.copied, index
	return was
}

// Heard notes what a leader's heartbeat says of states. It reports whether a dispute has begun or ended, which decides
// whether this member may serve.
func (d *Digests) Heard(q DigestQuestion) (news bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.disputed
	d.settled = max(d.settled, q.Settled)
	if q.Disputed != 0 {
		d.disputed = q.Disputed
	}
	if d.copied < q.Right {
		d.copied = 0
	}
	d.clearSettled()
	return d.disputed != was
}

// clearSettled ends a dispute and a doubt that are settled by now.
func (d *Digests) clearSettled() {
	if d.settled >= d.disputed {
		d.disputed = 0
	}
	if d.settled >= d.doubted {
		d.doubted = 0
	}
}

// Question returns what a heartbeat to a member says of states.
func (d *Digests) Question(to uint64) DigestQuestion {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := DigestQuestion{Index: d.newest(), Settled: d.settled, Disputed: d.disputed}
	if x := d.members[to]; x != nil {
		q.Wrong, q.Right = x.wrong, x.right
	}
	return q
}

// newest returns the newest entry that the leader has asked for, or 0.
func (d *Digests) newest() uint64 {
	if len(d.ballots) == 0 {
		return 0
	}
	return d.ballots[len(d.ballots)-1].index
}

// Answered notes what another member answers to a heartbeat of this leader. differs is whether it is the first answer by which
// that member's state differs; news is whether that is so, or the disputed entry has changed.
func (d *Digests) Answered(id uint64, a DigestAnswer) (differs, news bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.disputed
	d.disputed = max(d.disputed, a.Disputed) // this leader may have been restarted since
	d.clearSettled()
	news = d.disputed != was
	x := d.members[id]
	if x == nil {
		x = &compared{}
		d.members[id] = x
	}
	if x.copied != a.Copied {
		x.copied, d.recount = a.Copied, true
	}
	i, ok := slices.BinarySearchFunc(d.ballots, a.Index, func(b ballot, index uint64) int { return cmp.Compare(b.index, index) })
	if !ok {
		return false, news
	}
	b := d.ballots[i]
	if was, has := b.digests[id]; !has || was != a.Digest {
		b.digests[id], d.recount = a.Digest, true
	}
	switch {
	case a.Digest == b.digests[d.self]:
		x.differs = 0
	case x.differs == 0:
		x.differs = a.Index
		return true, true
	}
	return false, news
}

// Look decides on the leader what the answers mean, and has the next heartbeats ask for a newer entry. leads is whether
// this member leads and has applied all that earlier leaders left to it. ran is the running time, and patience the election
// timeout. Look returns an entry after which this member itself is known to be wrong, or 0, and whether a dispute has begun.
func (d *Digests) Look(members []proto.Peer, leads bool, ran int64, patience time.Duration) (ownWrong uint64, disputeBegan bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !leads {
		return 0, false
	}
	for id := range d.members {
		if Find(members, id) == nil {
			d.drop(id)
		}
	}
	if index, digest := d.replica.Newest(); index > d.newest() && ran >= d.nextAt {
		d.nextAt = ran + patience.Milliseconds()/8
		d.ballots = append(d.ballots, ballot{index, map[uint64]uint64{d.self: digest}})
		d.recount = true
		d.ballots = d.ballots[max(0, len(d.ballots)-maxBallots):]
	}
	count, settled := d.recount || !slices.Equal(members, d.lastMembers), d.settled
	d.recount, d.lastMembers = false, members
	for _, b := range d.ballots {
		if !count {
			break
		}
		right, ok := d.majorityDigest(b, members)
		switch {
		case ok:
			d.settled = max(d.settled, b.index)
			for id, digest := range b.digests {
				switch x := d.members[id]; {
				case digest == right && id != d.self:
					x.right = max(x.right, b.index)
				case digest == right:
					if d.copied != 0 && d.copied < b.index {
						d.copied, d.recount = 0, true
					}
				case id == d.self:
					ownWrong = b.index
				case x.wrong == 0:
					x.wrong = b.index
				}
			}
		case d.split(b):
			if d.doubted == 0 {
				d.doubtedSince = ran
			}
			d.doubted = max(d.doubted, b.index)
		case !slices.ContainsFunc(members, func(x proto.Peer) bool { _, ok := b.digests[x.ID]; return !ok }):
			d.settled = max(d.settled, b.index) // even of copies: nobody has another state. But this proves no later state right
		}
	}
	if d.settled > settled {
		d.doubtedSince = ran
	}
	d.clearSettled()
	if d.doubted != 0 && (d.disputed != 0 || ran-d.doubtedSince >= patience.Milliseconds()) {
		disputeBegan = d.disputed == 0
		d.disputed = d.doubted // the newest: other members may have heard that an earlier one is settled
	}
	return ownWrong, disputeBegan
}

// split reports whether members have different digests.
func (d *Digests) split(b ballot) bool {
	for _, digest := range b.digests {
		if digest != b.digests[d.self] {
			return true
		}
	}
	return false
}

// majorityDigest returns the digest that a majority of voters has. A voter whose state is a copy of another's proves only what that
// one does, so it does not count until the others alone have shown it to be right, after an entry past the copy's end.
func (d *Digests) majorityDigest(b ballot, members []proto.Peer) (digest uint64, ok bool) {
	for _, digest := range b.digests {
		n := 0
		for _, x := range members {
			that, ok := b.digests[x.ID]
			copied := d.copied
			if y := d.members[x.ID]; y != nil {
				copied = y.copied
			}
			if ok && that == digest && !x.Observer && copied == 0 {
				n++
			}
		}
		if n > CountVoters(members)/2 {
			return digest, true
		}
	}
	return 0, false
}

// BeginTerm forgets what was seen in an earlier term in which this member led.
func (d *Digests) BeginTerm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ballots, d.doubted = nil, 0
	clear(d.members)
}

// Forget forgets what a member has answered. It is called when the member answers over a new connection,
// since it may have been restarted.
func (d *Digests) Forget(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(id)
}

func (d *Digests) drop(id uint64) {
	delete(d.members, id)
	d.recount = true
	for _, b := range d.ballots {
		delete(b.digests, id)
	}
}

// Dispute returns the entry after which members differ, so that nobody serves, or 0.
func (d *Digests) Dispute() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.disputed
}

// Differences returns the members whose states differ from this leader's, in order of their ids.
func (d *Digests) Differences() (all []Difference) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, x := range d.members {
		if x.differs != 0 {
			all = append(all, Difference{id, x.differs})
		}
	}
	slices.SortFunc(all, func(a, b Difference) int { return int(a.ID) - int(b.ID) })
	return all
}

// Difference says that a member's state differs from the leader's.
type Difference struct {
	ID    uint64 `json:"id"`    // of the member
	Index uint64 `json:"index"` // of the first entry after which it did
}
