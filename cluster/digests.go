package cluster

import (
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

// digests compares the states of the members while they run. With each heartbeat the leader
// says which entry it has applied last; each member answers with its digest there, or at an
// entry of an earlier heartbeat if it has not applied this one yet. The leader compares it
// with its own.
//
// It has no goroutine, and waits neither for a disk nor for the replica's lock. Its methods
// are safe for concurrent use.
type digests struct {
	replica *fsm.Replica

	mu      sync.Mutex
	asked   uint64               // index of a heartbeat that this member had not applied when it came
	agreed  map[uint64]uint64    // on the leader: the newest entry at which each member had its digest
	differs map[uint64]different // on the leader, by member
	heard   map[uint64]int64     // on the leader: when each member has answered last, in running time
}

type different struct {
	index uint64
	since int64 // when that was seen, in running time
	last  int64 // when that member answered last with another state
	wrong bool  // it is that member's state which is wrong
}

func newDigests(replica *fsm.Replica) *digests {
	return &digests{replica: replica, agreed: map[uint64]uint64{}, differs: map[uint64]different{}, heard: map[uint64]int64{}}
}

// told returns what to answer to a heartbeat whose sender has applied the entry at index: 0 if
// this member does not know its digest there.
func (d *digests) told(index uint64) (at, digest uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, at := range []uint64{index, d.asked} {
		if digest, ok := d.replica.DigestAt(at); ok {
			d.asked = index
			return at, digest
		}
	}
	if newest, _ := d.replica.Newest(); d.asked <= newest { // else this one may be known sooner
		d.asked = index
	}
	return 0, 0
}

// answered compares what the member with the given id has answered with this leader's own
// digest. It reports whether a new difference was seen, and whether it is this leader's state
// that is wrong, because most voters differ from it. If only a minority differs, it is they
// who are wrong; they are told that when the others have confirmed it, or have not answered
// for patience. answered is called for each answer, also if index is 0.
func (d *digests) answered(id, index, digest uint64, members []proto.Peer, self uint64, ran int64, patience time.Duration) (seen, ownWrong bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heard[id] = ran
	if own, ok := d.replica.DigestAt(index); index != 0 && ok {
		x, known := d.differs[id]
		switch {
		case own == digest:
			d.agreed[id] = max(d.agreed[id], index)
			delete(d.differs, id)
		default:
			seen = !known
			if seen {
				x = different{index: index, since: ran}
			}
			x.last = ran
			d.differs[id] = x
		}
	}
	most := voters(members)/2 + 1
	for id, x := range d.differs {
		if find(members, id) == nil {
			delete(d.differs, id)
			continue
		}
		same, other, later := 0, 0, false
		for _, y := range members {
			that, differs := d.differs[y.ID]
			switch {
			case y.Observer:
			case differs && ran-that.last > patience.Milliseconds(): // it is down
			case differs:
				other++
			case y.ID == self || d.agreed[y.ID] >= x.index:
				same++
			default: // it has not applied that entry yet, and can tell later
				heard, ok := d.heard[y.ID]
				later = later || ok && ran-heard <= patience.Milliseconds()
			}
		}
		if other >= most {
			return seen, true
		}
		if same >= most || !later && ran-x.since > patience.Milliseconds() {
			x.wrong = true
			d.differs[id] = x
		}
	}
	return seen, false
}

// begin forgets what was seen in an earlier term in which this member led.
func (d *digests) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.differs)
	clear(d.agreed)
}

// forget forgets that a member differs: it has answered over a new connection, so it may have
// been started again since then.
func (d *digests) forget(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.differs, id)
}

// wrong returns the entry at which the state of a member is known to be wrong, or 0.
func (d *digests) wrong(id uint64) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if x := d.differs[id]; x.wrong {
		return x.index
	}
	return 0
}

// differences returns the members that differ, in order of their ids.
func (d *digests) differences() (all []Difference) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, x := range d.differs {
		all = append(all, Difference{id, x.index})
	}
	slices.SortFunc(all, func(a, b Difference) int { return int(a.ID) - int(b.ID) })
	return all
}
