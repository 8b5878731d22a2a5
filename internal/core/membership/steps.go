package membership

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/proto"
)

// requirements are the conditions for a change of the members.
type requirements struct {
	patience time.Duration // how long to wait for a new voter to catch up
	voters   int           // least number of voters after the change
	// allowsAbsent allows new voters that are down or lag, if a majority of the voters
	// after the change is up.
	allowsAbsent bool
	run          uint64 // of the server that asks for its own place; 0 means an operator's request
}

// byOperator are the requirements for a change that an operator or a new member
// requests.
var byOperator = requirements{patience: request.AdminTimeout, voters: 1}

// planned is a change of the members that is possible.
type planned struct {
	before  []proto.Peer // those to remove before others are added with their id or address, in this order
	rest    []proto.Peer // the other members before the change
	leaving []proto.Peer // those of rest to remove when others are added, in this order
	after   []proto.Peer // the members after the change
}

// plan checks that a whole change is possible.
func (m *Membership) plan(members, joining []proto.Peer, leaving []uint64, need requirements) (p planned, err error) {
	for _, x := range members {
		back := election.Find(joining, x.ID)
		switch {
		case !slices.Contains(leaving, x.ID) || back != nil && back.Addr == x.Addr:
			p.after = append(p.after, x)
		case slices.ContainsFunc(joining, func(y proto.Peer) bool { return y.ID == x.ID || y.Addr == x.Addr }):
			p.before = append(p.before, x)
		default:
			p.leaving = append(p.leaving, x)
		}
	}
	p.rest = slices.Concat(p.after, p.leaving)
	now := m.Now().Real
	turn := func(x proto.Peer) int { // first those that are down: the others may be needed for a majority until they have gone
		if m.Contacts.Follows(x.ID, now) {
			return len(leaving) + slices.Index(leaving, x.ID)
		}
		return slices.Index(leaving, x.ID)
	}
	for _, out := range [][]proto.Peer{p.before, p.leaving} {
		slices.SortFunc(out, func(x, y proto.Peer) int { return turn(x) - turn(y) })
	}
	for _, x := range joining {
		if err := checkMember(x); err != nil {
			return p, err
		}
		for _, y := range p.after {
			switch {
			// Only an operator can know that no other server with this id runs, or comes back: one that asks for
			// its own place may have been removed, and replaced at another address.
			case x.ID == y.ID && x.Addr != y.Addr && (need.run != 0 || !m.moved(y, x)):
				return p, request.Refuse(proto.BadArguments, "server %d is at %s: remove it before one at %s takes its id", x.ID, y.Addr, x.Addr)
			case x.ID != y.ID && x.Addr == y.Addr:
				return p, request.Refuse(proto.BadArguments, "%s is the address of server %d: remove that first", x.Addr, y.ID)
			}
		}
		if y := election.Find(p.after, x.ID); y != nil {
			*y = x
		} else {
			p.after = append(p.after, x)
		}
	}
	if n := election.CountVoters(p.after); n < need.voters {
		return p, request.Refuse(proto.BadArguments, "%d voting members would be left, and at least %d are needed", n, need.voters)
	}
	return p, nil
}

// reconfigure adds and removes members, one at a time, after checking that the whole
// change is possible. If the leader itself is to be removed, replaced by an empty server, or to lose its vote, it
// only hands over leadership and returns request.ErrHandedOver, so that the new leader is asked
// to make the change.
func (m *Membership) reconfigure(members, joining []proto.Peer, leaving []uint64, need requirements) error {
	p, err := m.plan(members, joining, leaving, need)
	if err != nil {
		return err
	}
	var absent []uint64
	if need.allowsAbsent {
		added := slices.DeleteFunc(slices.Clone(joining), func(x proto.Peer) bool {
			is := election.Find(p.rest, x.ID)
			return is != nil && !is.Observer
		})
		if absent, err = m.absent(p.after, added); err != nil {
			return err
		}
	}
	if self := election.Find(p.after, m.ID); self == nil || self.Observer || election.Find(p.before, m.ID) != nil {
		if err := m.checkQuorumAfter(p.after); err != nil {
			return err // a leader that has to refuse that as well need not take over
		}
		var keep []uint64 // the voters that keep their votes and their data; any other one would have to hand over as well
		for _, x := range members {
			if stays := election.Find(p.after, x.ID); !x.Observer && stays != nil && !stays.Observer && election.Find(p.before, x.ID) == nil {
				keep = append(keep, x.ID)
			}
		}
		if len(keep) == 0 {
			return request.Refuse(proto.NewConfigNoQuorum, "no voting member would stay one with its data: add the new ones before the others leave")
		}
		err := m.Engine.HandOver(m.Port.Ctx, keep...)
		lead, _ := m.Engine.Leader()
		switch {
		case err == nil || lead != 0 && lead != m.ID:
			return request.ErrHandedOver
		case err == engine.ErrMayHandOver:
			return err // so the outcome is unknown
		}
		return request.Refuse(proto.NewConfigNoQuorum, "no other member can lead in place of server %d: %v", m.ID, err)
	}
	return m.carryOut(p, joining, absent, need)
}

// carryOut makes the steps of a change, which adds or changes those in joining. absent are voters after it that are down or lag.
// If it fails after a step, its outcome is unknown, also if a later step was refused. There is one exception: if a server is added
// alone, and stays an observer, a client is refused as in ZooKeeper. Others are if the server lags, and the error says that it stays.
func (m *Membership) carryOut(p planned, joining []proto.Peer, absent []uint64, need requirements) (err error) {
	before := m.Engine.Members()
	defer func() {
		alone := (need.allowsAbsent || errors.As(err, new(lags))) && len(p.before)+len(p.leaving) == 0 && len(joining) == 1
		if alone {
			is := election.Find(p.rest, joining[0].ID)
			alone = is == nil || is.Addr == joining[0].Addr
		}
		if err != nil && !alone && !slices.Equal(m.Engine.Members(), before) {
			err = request.Unsure{Err: err}
		}
	}()
	for _, x := range p.before {
		if err := m.removeMember(x); err != nil {
			return err
		}
	}
	var last []proto.Peer // new voters that are down or lag
	for _, x := range joining {
		is := election.Find(p.rest, x.ID)
		if !x.Observer && slices.Contains(absent, x.ID) && (is == nil || is.Observer) {
			last = append(last, x)
			continue
		}
		err := m.addMember(is, x, need)
		if need.allowsAbsent && errors.As(err, new(lags)) {
			last = append(last, x)
		} else if err != nil {
			return err
		}
	}
	for _, x := range p.leaving {
		if err := m.removeMember(x); err != nil {
			return err
		}
	}
	// These come last: each of them makes the majority larger without being up.
	for _, x := range last {
		if err := m.promote(x, last...); err != nil {
			return err
		}
		m.Log.Warn("a member was made a voter although it is down or lags", "id", x.ID, "address", x.Addr)
	}
	return nil
}

// absent returns the voters in after, the members after a change, that cannot be reached or
// are not in this cluster. It fails if the others are no majority, or if another
// server answers in place of one of those in added, which are to be added or to get a vote: such
// a change must fail before its first step, which may be the removal of a member.
func (m *Membership) absent(after, added []proto.Peer) (ids []uint64, err error) {
	ctx, cancel := context.WithTimeout(m.Port.Ctx, timing.PeerTimeout)
	defer cancel()
	asked := slices.DeleteFunc(slices.Clone(after), func(x proto.Peer) bool { return x.Observer && election.Find(added, x.ID) == nil })
	var there []uint64
	for _, x := range request.Poll(asked, func(x proto.Peer) (*request.Status, error) { return m.statusOf(ctx, x) }) {
		isNew := election.Find(added, x.ID) != nil
		switch {
		case x.Err == nil && isNew && m.foreign(x.Status) != nil:
			return nil, m.foreign(x.Status)
		case x.Err == nil && !isNew && x.Status.Cluster != m.Gate.Cluster():
			ids = append(ids, x.ID)
		case x.Err == nil && !x.Observer:
			there = append(there, x.ID)
		case x.Err == nil:
		case request.Unreachable(x.Err):
			ids = append(ids, x.ID)
		case isNew:
			return nil, cannotBeAdded(x.ID, x.Err)
		}
	}
	if len(there) <= election.CountVoters(after)/2 {
		return nil, noQuorum(after, there, "can be reached")
	}
	return ids, nil
}

// checkQuorumAfter returns an error unless a majority of the voters in after, the members after a step of a change, are there: otherwise nothing could
// be committed after it, nor a leader be elected. Present voters must have this leader's log: one that lags, or whose disk is
// stuck, would hold up all writes, and one that is not in this cluster has lost its disk, or its address is another server's.
// New ones must answer. Those in lagging do not count. checkQuorumAfter also returns [request.ErrNotLeader] if this leader's term has ended.
func (m *Membership) checkQuorumAfter(after []proto.Peer, lagging ...proto.Peer) error {
	now := m.Engine.Members()
	ctx, cancel := context.WithTimeout(m.Port.Ctx, timing.PeerTimeout)
	defer cancel()
	asked, answers := 0, make(chan uint64, len(after)) // the ids of those that are there; 0 for one that is not
	for _, x := range after {
		if !x.Observer && election.Find(lagging, x.ID) == nil {
			is := election.Find(now, x.ID) // x may also have an address for clients
			asked++
			m.Running.Go(func() {
				var err error
				switch {
				case x.ID == m.ID:
				case is != nil && is.Addr == x.Addr && !is.Observer:
					err = m.Engine.AwaitReplicated(ctx, x)
				default:
					_, err = m.statusOf(ctx, x)
				}
				if err != nil {
					x.ID = 0
				}
				answers <- x.ID
			})
		}
	}
	var there []uint64
	for ; asked > 0 && ctx.Err() == nil; asked-- {
		select {
		case id := <-answers:
			if id != 0 {
				there = append(there, id)
			}
		case <-ctx.Done(): // a stuck disk answers much later
		}
		if len(there) > election.CountVoters(after)/2 {
			return m.stillLeads()
		}
	}
	return cmp.Or(m.stillLeads(), noQuorum(after, there, "can be reached and have caught up"))
}

// noQuorum is the error that too few of the voters after a change do what they have to. It names
// the others: those that are not in there.
func noQuorum(after []proto.Peer, there []uint64, do string) error {
	missing := slices.DeleteFunc(slices.Clone(after), func(x proto.Peer) bool { return x.Observer || slices.Contains(there, x.ID) })
	return request.Refuse(proto.NewConfigNoQuorum, "only %d of the %d voters after the change %s; missing: %s", len(there), election.CountVoters(after), do, election.Named(missing))
}

// promote makes a member a voter.
func (m *Membership) promote(x proto.Peer, lagging ...proto.Peer) error {
	if err := m.checkQuorumAfter(append(election.Without(m.Engine.Members(), x.ID), x), lagging...); err != nil {
		return err
	}
	return leaderError(m.Engine.Add(x))
}

// lags is the error for a new voter that did not catch up in time.
type lags struct{ error }

func (l lags) Unwrap() error { return l.error }

// moved reports whether the member was now runs at x's address, with its
// data, so that only its address needs to be changed. A server there with empty data
// has forgotten its votes and must be added as a new member. Two servers with copies of the
// data could both vote in one term, so nothing but the server at x's address may answer at
// the old one. For this member, x's address must be another name of its own.
func (m *Membership) moved(was, x proto.Peer) bool {
	ctx, cancel := context.WithTimeout(m.Port.Ctx, timing.PeerTimeout)
	defer cancel()
	s, err := request.StatusOf(ctx, m.Port.Network, x)
	if err != nil || !s.Formed || !s.Data || s.Cluster != m.Gate.Cluster() {
		return false
	}
	old, err := m.statusOf(ctx, was)
	return err != nil || old.Run == s.Run
}

func (m *Membership) removeMember(x proto.Peer) error {
	if err := m.checkQuorumAfter(election.Without(m.Engine.Members(), x.ID)); err != nil {
		return err
	}
	index, err := m.Engine.Remove(x.ID)
	if err != nil {
		return leaderError(err)
	}
	m.Log.Info("member removed", "id", x.ID)
	m.Running.Go(func() { m.Engine.SendToRemoved(x, index) })
	return nil
}

func checkMember(x proto.Peer) error {
	if x.ID == 0 || x.ID > request.MaxID {
		return request.Refuse(proto.BadArguments, "server id %d is not in 1 to %d", x.ID, request.MaxID)
	}
	if host, port, err := net.SplitHostPort(x.Addr); err != nil || host == "" || port == "" {
		return request.Refuse(proto.BadArguments, "%q is not of the form HOST:PORT", x.Addr)
	}
	return nil
}

// addMember adds x as a member or changes its address or vote; is describes it so far
// and is nil if it is new. A new voter is an observer until it has caught up, so that
// commits need not wait for it.
func (m *Membership) addMember(is *proto.Peer, x proto.Peer, need requirements) error {
	if is != nil && is.Addr != x.Addr {
		if err := m.stillLeads(); err != nil {
			return err
		}
		if err := m.Engine.Add(proto.Peer{ID: x.ID, Addr: x.Addr, Observer: is.Observer}); err != nil {
			return leaderError(err)
		}
		m.Log.Info("member moved", "id", x.ID, "from", is.Addr, "to", x.Addr)
	}
	if is != nil && !is.Observer {
		if !x.Observer {
			return nil
		}
		if err := m.checkQuorumAfter(election.Without(m.Engine.Members(), x.ID)); err != nil {
			return err
		}
		if need.run != 0 {
			if err := m.mayAsk(is, x, need.run); err != nil { // that may have taken long
				return err
			}
		}
		return leaderError(m.Engine.Demote(x.ID))
	}
	ctx, cancel := context.WithTimeout(m.Port.Ctx, need.patience)
	defer cancel()
	switch s, err := m.statusOf(ctx, x); {
	case err == nil && m.foreign(s) != nil:
		return m.foreign(s)
	case err == nil:
	case x.Observer && request.Unreachable(err): // nothing depends on an observer, so it may be started later
		m.Log.Warn("adding an observer that cannot be reached", "id", x.ID, "error", err)
	default:
		return cannotBeAdded(x.ID, err)
	}
	if is == nil {
		if err := m.stillLeads(); err != nil {
			return err
		}
		if err := m.Engine.Add(proto.Peer{ID: x.ID, Addr: x.Addr, Observer: true}); err != nil {
			return leaderError(err)
		}
	}
	if x.Observer {
		return nil
	}
	goal := m.Engine.StateIndex()
	for wait := request.AskSoon; ; wait = min(2*wait, request.AskAgain) {
		s, err := m.statusOf(ctx, x)
		if err == nil && need.run != 0 && s.Run != need.run {
			return anotherRun(x)
		}
		if err == nil && s.Index >= goal {
			return m.promote(x)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return lags{request.Refuse(proto.NewConfigNoQuorum, "server %d is an observer for now, since it did not catch up within %v: add it again", x.ID, need.patience)}
		}
	}
}

func cannotBeAdded(id uint64, err error) error {
	return request.Refuse(proto.NewConfigNoQuorum, "server %d cannot be added: %v", id, err)
}

// foreign returns an error if the server with this status belongs to another cluster, or was restored to begin one: it never
// joins, and the index of its snapshot does not say that it has caught up.
func (m *Membership) foreign(s *request.Status) error {
	switch {
	case !s.Formed && s.Data:
		return request.Refuse(proto.BadArguments, "server %d has data that was restored from a snapshot: empty its directory before it joins", s.ID)
	case !s.Formed || s.Cluster == m.Gate.Cluster():
		return nil
	}
	return request.Refuse(proto.BadArguments, "server %d belongs to cluster %v, not to this one, %v: empty its directory before it joins", s.ID, s.Cluster, m.Gate.Cluster())
}

// transfer hands leadership over to the member with this id, or to any voter if id is 0.
func (m *Membership) transfer(members []proto.Peer, id uint64) error {
	switch to := election.Find(members, id); {
	case id == 0 && election.CountVoters(members) == 1:
		return request.Refuse(proto.BadArguments, "there is no other voting member")
	case id == 0:
	case to == nil:
		return request.NotMember(id)
	case to.Observer:
		return request.Refuse(proto.BadArguments, "server %d is not a voting member", id)
	case id == m.ID:
		return nil
	}
	var one []uint64
	if id != 0 {
		one = append(one, id)
	}
	err := m.Engine.HandOver(m.Port.Ctx, one...)
	if err == engine.ErrMayHandOver {
		err = request.Unsure{Err: err}
	}
	return err
}
