package membership

import (
	"context"
	"errors"

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/proto"
)

// knows reports whether there is a member with this id, in the newest or in the last
// applied configuration. A change between the two may still be undone, so in doubt
// the answer is yes. It is sure if the server that asks, at the address at, is that member: another
// server may have its id, whose own place it is to take.
func (m *Membership) knows(id uint64, at string, run uint64) request.Reply {
	members := m.Engine.Members()
	x, known := m.AppliedMember(id)
	s := m.Status() // after that: see Request.AskedAt
	r := request.Reply{Known: known, Surely: known && m.same(x, at, run), Status: &s}
	if x := election.Find(members, id); x != nil {
		r.Known, r.Votes = true, !x.Observer
	}
	return r
}

// same reports whether the given run of a server that says that it is at an address is the one at
// x's address, of which its own may be another name.
func (m *Membership) same(x proto.Peer, at string, run uint64) bool {
	if x.Addr == at || run == 0 {
		return x.Addr == at
	}
	_, err := m.sender(x, run)
	return err == nil
}

// useListedAddr makes a request of a server for its own place name the address that is in the list, if the
// server is there: its own may be another name of that. If an operator changes that address while the request
// waits, plan refuses the request, and the server asks again.
func (m *Membership) useListedAddr(q *request.Request) {
	if q.Add == nil || q.Run == 0 {
		return
	}
	if is := election.Find(m.Engine.Members(), q.Add.ID); is != nil && is.Addr != q.Add.Addr && m.same(*is, q.Add.Addr, q.Run) {
		x := *q.Add
		x.Addr = is.Addr
		q.Add = &x
	}
}

// checkRejoin checks the request of a member that asks for its own place: x describes it, first without
// its vote, and then with it. It reports whether nothing is left to do. It does not hold
// Membership.changing, so that a member which asks again and again, and has not caught up
// yet, is in nobody's way.
func (m *Membership) checkRejoin(x *proto.Peer, run uint64) (done bool, err error) {
	if x == nil || run == 0 {
		return false, errors.New("the request is incomplete")
	}
	is := election.Find(m.Engine.Members(), x.ID)
	// A change may have been appended since, and may still be undone.
	applied, known := m.AppliedMember(x.ID)
	switch {
	case (is != nil) != known || known && is.Observer != applied.Observer:
		return false, request.ErrOtherChange
	case is == nil:
		return false, request.NotMember(x.ID)
	case *is == *x:
		return true, nil
	case x.Observer:
		return false, nil // mayAsk follows
	}
	s, err := m.sender(*x, run)
	if err != nil {
		return false, err
	}
	if goal := m.Engine.StateIndex(); s.Index < goal && goal-s.Index > NearlyCaughtUp {
		return false, request.Refuse(proto.NewConfigNoQuorum, "server %d has not caught up: it is at entry %d of %d", x.ID, s.Index, goal)
	}
	return false, nil
}

// sender returns the status of the server at x's address, where the given run of it must answer,
// which has sent a request. What a run that has ended has sent can arrive late, and a server may
// have been started elsewhere with the id and the address of another.
func (m *Membership) sender(x proto.Peer, run uint64) (*request.Status, error) {
	ctx, cancel := context.WithTimeout(m.Port.Ctx, timing.PeerTimeout)
	defer cancel()
	s, err := request.StatusOf(ctx, m.Port.Network, x) // also if it has this member's id
	switch {
	case err != nil:
		return nil, request.Refuse(proto.NewConfigNoQuorum, "server %d asks for its place, and cannot be asked itself: %v", x.ID, err)
	case s.Run != run:
		return nil, anotherRun(x)
	}
	return s, nil
}

// anotherRun is the answer to the request of a server for its place, if another run answers there.
func anotherRun(x proto.Peer) error {
	return request.Refuse(proto.BadArguments, "the server that runs as server %d at %s is another one than that which asks for its place: it was started again, or this is a second server with its id and address", x.ID, x.Addr)
}

// mayAsk returns an error unless the given run of server x may ask for the place that x describes; is describes that which it
// has, and is nil if it has none.
// A voter loses its vote only if it has no data. While Membership.changing is held, such a server
// gets none: it joins only when its request is done. And it loses it only when this leader's
// heartbeats are not answered any more: over connections that are older than another server at its
// address, the voter itself may still answer them.
func (m *Membership) mayAsk(is *proto.Peer, x proto.Peer, run uint64) error {
	s, err := m.sender(x, run)
	switch {
	case err != nil || is == nil || is.Observer || !x.Observer:
		return err
	case s.Formed || s.Data:
		return request.Refuse(proto.BadArguments, "server %d has data, and keeps its vote", x.ID)
	case is.Addr == x.Addr && m.Contacts.Follows(x.ID, m.Now().Real):
		return request.Refuse(proto.NewConfigNoQuorum, "server %d still follows this leader, although a server without data answers at %s: has its process ended? It keeps its vote for now", x.ID, x.Addr)
	}
	return nil
}

// NearlyCaughtUp is by how many entries a member may lag that asks for its vote.
const NearlyCaughtUp = 1000
