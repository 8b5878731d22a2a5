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

// ErrDiffers is the fault of a member whose state is not what the log makes of it, or whose
// log is not that of the others.
var ErrDiffers = errors.New("it stops serving and keeps its files; see \"Two members differ\" in docs/operations.md")

// Digests compares the states of the members while they run. With each heartbeat the leader
// asks for the digest at an entry that it has applied: it asks all members for the same one, and takes
// another one some times a second. Each member answers with its digest there, or at an entry of an earlier heartbeat if
// it has not applied this one yet.
//
// A member is wrong if most voters have another digest than it, and all the same one, at one entry. Nothing else
// is a proof. While two members differ and no majority says which of them is wrong, nobody ends; after patience,
// nobody serves either, until a majority has the same state again (docs/decisions/026-nobody-serves-in-doubt.md).
//
// It has no goroutine, and waits neither for a disk nor for the replica's lock. Its methods
// are safe for concurrent use.
type Digests struct {
	self    uint64
	replica *fsm.Replica

	mu       sync.Mutex
	asked    uint64 // index of a heartbeat that this member had not applied when it came
	copied   uint64 // this state is a copy of another member's up to this entry, and was not found right at a later one; or 0
	settled  uint64 // the newest entry at which most voters, or all members, had the same state, as far as this member has heard
	disputed uint64 // nobody serves, since members differ at this entry, until a later one is settled; or 0

	// On the leader, of its term:
	ballots []ballot // the newest ones, oldest first
	members map[uint64]*compared
	next    int64        // when it asks for another entry, in running time: each member is to hear of each one
	recount bool         // look must look at all ballots, also those of which nothing new was said
	list    []proto.Peer // with which it has looked last
	doubted uint64       // the newest entry at which members differ, if that is after settled; or 0
	since   int64        // members have differed since then without a majority for one state, in running time
}

// ballot is what the members have said of one entry.
type ballot struct {
	index uint64
	said  map[uint64]uint64 // digests, by member
	news  bool              // look has not seen all of them
}

// compared is what the leader knows of another member, since that has answered over a new connection. Before that it may
// have been another process.
type compared struct {
	copied  uint64 // its own digests.copied
	right   uint64 // the newest entry at which it had the same state as most voters; or 0
	differs uint64 // the first entry at which it differed from the leader, and it has differed since; or 0
	wrong   uint64 // an entry at which it is known to be wrong; or 0
}

// Question is what a heartbeat says of states. Right and Wrong are of the member that it is sent to.
type Question struct {
	Index    uint64 // the entry whose digest the leader asks for; or 0
	Settled  uint64 // see digests
	Disputed uint64 // see digests
	Wrong    uint64 // an entry at which the member is known to be wrong; or 0
	Right    uint64 // the newest entry at which it is known to be right; or 0
}

// DigestAnswer is the answer to a question.
type DigestAnswer struct {
	Index, Digest uint64 // Index is 0 if the member does not know its digest
	Copied        uint64 // see digests
	Disputed      uint64 // see digests
}

// maxBallots is how many entries the leader remembers that it has asked for: those of at least two election timeouts. A
// member that is later than that does not serve (see contacts.behind).
const maxBallots = 32

// NewDigests returns the digests of the member with the id self.
func NewDigests(self uint64, replica *fsm.Replica) *Digests {
	return &Digests{self: self, replica: replica, members: map[uint64]*compared{}}
}

// Answer returns what to answer to a heartbeat that asks for the entry at index.
func (d *Digests) Answer(index uint64) DigestAnswer {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, at := range []uint64{index, d.asked} {
		if digest, ok := d.replica.DigestAt(at); ok {
			d.asked = index
			return DigestAnswer{at, digest, d.copied, d.disputed}
		}
	}
	if newest, _ := d.replica.Newest(); d.asked <= newest { // else this one may be known sooner
		d.asked = index
	}
	return DigestAnswer{0, 0, d.copied, d.disputed}
}

// Restored notes that this member has restored another member's snapshot, which ends at index. While it is restoring one, index
// is math.MaxUint64: it answers with the new state before it can say where that ends. Restored returns what held before.
func (d *Digests) Restored(index uint64) (was uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was, d.copied = d.copied, index
	return was
}

// Heard notes what a heartbeat says. It reports whether this member now may serve, or may no longer.
func (d *Digests) Heard(q Question) (news bool) {
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
	d.clear()
	return d.disputed != was
}

// clear ends what is settled by now.
func (d *Digests) clear() {
	if d.settled >= d.disputed {
		d.disputed = 0
	}
	if d.settled >= d.doubted {
		d.doubted = 0
	}
}

// Question returns what a heartbeat to a member says.
func (d *Digests) Question(to uint64) Question {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := Question{Index: d.newest(), Settled: d.settled, Disputed: d.disputed}
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

// Answered notes what another member answers to a heartbeat. It reports whether the first difference from this leader was seen,
// and whether that or a dispute is news.
func (d *Digests) Answered(id uint64, a DigestAnswer) (differs, news bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.disputed
	d.disputed = max(d.disputed, a.Disputed) // this leader may have forgotten it by a restart
	d.clear()
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
	b := &d.ballots[i]
	b.said[id], b.news = a.Digest, true
	if a.Digest == b.said[d.self] {
		x.differs = 0
		return false, news
	}
	if x.differs != 0 {
		return false, news
	}
	x.differs = a.Index
	return true, true
}

// Look decides what the answers mean. leads is whether this member leads, and has applied what earlier leaders left. look returns
// the entry at which this member itself is known to be wrong, or 0, and whether a dispute has begun. It is called again and
// again: each time, it begins to ask for the newest entry.
func (d *Digests) Look(members []proto.Peer, leads bool, ran int64, patience time.Duration) (ownWrong uint64, begun bool) {
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
	if index, digest := d.replica.Newest(); index > d.newest() && ran >= d.next {
		d.next = ran + patience.Milliseconds()/8
		d.ballots = append(d.ballots, ballot{index, map[uint64]uint64{d.self: digest}, true})
		d.ballots = d.ballots[max(0, len(d.ballots)-maxBallots):]
	}
	all, settled := d.recount || !slices.Equal(members, d.list), d.settled
	d.recount, d.list = false, members
	for i := range d.ballots {
		b := &d.ballots[i]
		if !b.news && !all {
			continue
		}
		b.news = false
		right, ok := d.right(b, members)
		switch {
		case ok:
			d.settled = max(d.settled, b.index)
			for id, digest := range b.said {
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
				d.since = ran
			}
			d.doubted = max(d.doubted, b.index)
		case !slices.ContainsFunc(members, func(x proto.Peer) bool { _, ok := b.said[x.ID]; return !ok }):
			d.settled = max(d.settled, b.index) // copies or not: nobody has another state. It proves no later state right
		}
	}
	if d.settled > settled {
		d.since = ran
	}
	d.clear()
	if d.doubted != 0 && (d.disputed != 0 || ran-d.since >= patience.Milliseconds()) {
		begun = d.disputed == 0
		d.disputed = d.doubted // the newest: other members may have heard of a majority at an earlier one
	}
	return ownWrong, begun
}

// split reports whether members have said different digests.
func (d *Digests) split(b *ballot) bool {
	for _, digest := range b.said {
		if digest != b.said[d.self] {
			return true
		}
	}
	return false
}

// right returns the digest that most voters have at an entry. A voter whose state is a copy of another's says only what that
// one says, so it does not count until it was found right without that, at an entry after the copy's end.
func (d *Digests) right(b *ballot, members []proto.Peer) (digest uint64, ok bool) {
	for _, digest := range b.said {
		n := 0
		for _, x := range members {
			that, ok := b.said[x.ID]
			copied := d.copied
			if y := d.members[x.ID]; y != nil {
				copied = y.copied
			}
			if ok && that == digest && !x.Observer && copied == 0 {
				n++
			}
		}
		if n > Voters(members)/2 {
			return digest, true
		}
	}
	return 0, false
}

// Begin forgets what was seen in an earlier term in which this member led.
func (d *Digests) Begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ballots, d.doubted = nil, 0
	clear(d.members)
}

// Forget forgets what a member has said: it has answered over a new connection, so it may have
// been started again since then.
func (d *Digests) Forget(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(id)
}

func (d *Digests) drop(id uint64) {
	delete(d.members, id)
	d.recount = true
	for _, b := range d.ballots {
		delete(b.said, id)
	}
}

// Dispute returns the entry at which members differ, so that nobody serves, or 0.
func (d *Digests) Dispute() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.disputed
}

// Differences returns the members that differ, in order of their ids.
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

// Difference says that the state of a member differs from the leader's.
type Difference struct {
	ID    uint64 `json:"id"`    // of the member
	Index uint64 `json:"index"` // of the first entry at which that was seen
}
