package cluster

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
)

// MemberInfo is one member of the cluster.
type MemberInfo struct {
	ID    uint64 `json:"id"`
	Addr  string `json:"address"` // of its peer port
	Voter bool   `json:"voter"`   // false for an observer
}

// Status is what a member knows of its cluster.
type Status struct {
	ID      uint64       `json:"id"`     // of the member that says so
	Leader  uint64       `json:"leader"` // 0 if none is known to
	Role    string       `json:"role"`   // leader, follower, observer, looking, standalone
	Term    uint64       `json:"term"`
	Index   uint64       `json:"index"` // of the last entry applied
	Zxid    int64        `json:"zxid"`
	Digest  string       `json:"digest"`  // of the state at Index
	Members []MemberInfo `json:"members"` // by id
	Formed  bool         `json:"formed"`  // it has been in a cluster that works
	// Configured are the members of the cluster that it is to form, if it is new.
	Configured []MemberInfo `json:"configured,omitempty"`
}

// membership is what this member keeps beside Raft's configuration.
type membership struct {
	configured []MemberInfo // the members of a new cluster, by Config
	changed    signal       // for tellCommits: the members are others
	changing   turn         // of whoever changes the members
}

func newMembership() membership { return membership{changed: newSignal(), changing: newTurn()} }

// Status tells what this member knows of its cluster.
func (m *Member) Status() (Status, error) {
	members, err := m.members()
	if err != nil {
		return Status{}, err
	}
	s := Status{ID: m.cfg.ID, Leader: m.Leader(), Term: m.raft.CurrentTerm(), Role: m.Role(), Members: members, Formed: m.raft.LastIndex() > 1, Configured: m.membership.configured}
	m.replica.View(func(v *fsm.View) {
		s.Index, s.Zxid, s.Digest = v.Index(), v.Zxid(), fmt.Sprintf("%016x", v.Digest())
	})
	return s, nil
}

// members are those of the newest configuration that this member knows of,
// committed or not, by id.
func (m *Member) members() ([]MemberInfo, error) {
	f := m.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, err
	}
	return infos(f.Configuration()), nil
}

func infos(c raft.Configuration) (members []MemberInfo) {
	for _, s := range c.Servers {
		id, _ := strconv.ParseUint(string(s.ID), 10, 64)
		members = append(members, MemberInfo{id, string(s.Address), s.Suffrage == raft.Voter})
	}
	slices.SortFunc(members, func(a, b MemberInfo) int { return cmp.Compare(a.ID, b.ID) })
	return members
}

// find returns the member with that id, nil if there is none.
func find(members []MemberInfo, id uint64) *MemberInfo {
	for i := range members {
		if members[i].ID == id {
			return &members[i]
		}
	}
	return nil
}

func voters(members []MemberInfo) (n int) {
	for _, x := range members {
		if x.Voter {
			n++
		}
	}
	return n
}

// Role is this member's part: leader, follower, observer, looking (for a
// leader), or standalone.
func (m *Member) Role() string {
	if m.peers == nil {
		return "standalone"
	}
	switch lead := m.Leader(); {
	case lead == 0:
		return "looking"
	case lead == m.cfg.ID:
		return "leader"
	}
	if members, err := m.members(); err == nil {
		if self := find(members, m.cfg.ID); self != nil && !self.Voter {
			return "observer"
		}
	}
	return "follower"
}

// Request asks for a change of the members, or about them. One of its fields is
// set.
type Request struct {
	Status   bool        `json:"status,omitempty"`
	Add      *MemberInfo `json:"add,omitempty"`      // or change whether it votes
	Remove   uint64      `json:"remove,omitempty"`   // the member's id
	Transfer *uint64     `json:"transfer,omitempty"` // leadership to this member; 0 is any
	Reconfig *Reconfig   `json:"reconfig,omitempty"`
	Knows    uint64      `json:"knows,omitempty"` // whether the cluster has a member of that id
}

// Reconfig is a change of several members, as ZooKeeper's operation of that
// name has it.
type Reconfig struct {
	Joining []MemberInfo `json:"joining,omitempty"` // taken in, or changed
	Leaving []uint64     `json:"leaving,omitempty"` // who is not there has left
	Whole   bool         `json:"whole,omitempty"`   // who is not joining is leaving
	Version int64        `json:"version"`           // that the configuration must have, a zxid; -1 is any
	WaitMs  int64        `json:"waitMs,omitempty"`  // for one who is to vote to catch up
}

// Reply answers a Request.
type Reply struct {
	Status *Status    `json:"status,omitempty"`
	Known  bool       `json:"known,omitempty"` // to Knows
	Error  string     `json:"error,omitempty"`
	Code   proto.Code `json:"code,omitempty"`   // of the error, where ZooKeeper has one
	Lead   bool       `json:"lead,omitempty"`   // the error is that this member does not lead
	Leader string     `json:"leader,omitempty"` // whom to ask instead, if that is known: its peer port
}

// ErrNotLeader says that this member cannot change the members, since it does not lead.
var ErrNotLeader = errors.New("cluster: not the leader")

// ErrRemoved says that this member is not one of its cluster any more.
var ErrRemoved = errors.New("removed from its cluster")

// refusal is a change that cannot be made, with ZooKeeper's code for that.
type refusal struct {
	code proto.Code
	text string
}

func (r *refusal) Error() string { return r.text }

func refuse(code proto.Code, format string, args ...any) error {
	return &refusal{code, fmt.Sprintf(format, args...)}
}

// Times of requests about the members.
const (
	adminTimeout = 10 * time.Second // for one change
	askAgain     = 50 * time.Millisecond
)

// Change carries out a request. All but Status must go to the leader.
func (m *Member) Change(q Request) (Reply, error) {
	switch {
	case q.Status:
		s, err := m.Status()
		return Reply{Status: &s}, err
	case m.Leader() != m.cfg.ID:
		return Reply{}, ErrNotLeader
	}
	// What earlier leaders changed is known after this, and whether this
	// member still leads.
	if err := m.answer(m.raft.Barrier(adminTimeout)); err != nil {
		return Reply{}, leaderError(err)
	}
	if q.Knows != 0 {
		known, err := m.knows(q.Knows)
		return Reply{Known: known}, err
	}
	if !m.membership.changing.tryTake() {
		if q.Reconfig != nil {
			return Reply{}, refuse(proto.ReconfigInProgress, "another change of the members is under way")
		}
		m.membership.changing.take() // one after the other; each has its time
	}
	defer m.membership.changing.give()
	members, err := m.members()
	if err != nil {
		return Reply{}, err
	}
	switch {
	case q.Add != nil:
		err = m.reconfigure(members, []MemberInfo{*q.Add}, nil, byOperator)
	case q.Remove != 0:
		if find(members, q.Remove) == nil {
			return Reply{}, refuse(proto.BadArguments, "server %d is no member", q.Remove)
		}
		err = m.reconfigure(members, nil, []uint64{q.Remove}, byOperator)
	case q.Reconfig != nil:
		r := q.Reconfig
		if version := m.configVersion(); r.Version != -1 && r.Version != version {
			return Reply{}, refuse(proto.BadVersion, "the members are those of version %x, not %x", version, r.Version)
		}
		leaving := r.Leaving
		if r.Whole {
			for _, x := range members {
				if find(r.Joining, x.ID) == nil {
					leaving = append(leaving, x.ID)
				}
			}
		}
		need := requirements{min(time.Duration(r.WaitMs)*time.Millisecond, adminTimeout), 2, true} // as in ZooKeeper
		if m.cfg.AllowSingleVoter {
			need.voters = 1
		}
		err = m.reconfigure(members, r.Joining, leaving, need)
	case q.Transfer != nil:
		err = m.transfer(members, *q.Transfer)
	default:
		err = errors.New("nothing was asked for")
	}
	if err != nil {
		return Reply{}, err
	}
	s, err := m.Status()
	return Reply{Status: &s}, err
}

func leaderError(err error) error {
	for _, e := range []error{raft.ErrNotLeader, raft.ErrLeadershipLost, raft.ErrLeadershipTransferInProgress} {
		if errors.Is(err, e) {
			return ErrNotLeader
		}
	}
	return err
}

// knows tells whether there is a member of that id, or is about to be one or
// none any more: only what is committed is certain.
func (m *Member) knows(id uint64) (bool, error) {
	members, err := m.members()
	if err != nil || find(members, id) != nil {
		return err == nil, err
	}
	known := false
	m.replica.View(func(v *fsm.View) { _, known = v.Member(id) })
	return known, nil
}

func (m *Member) configVersion() (zxid int64) {
	m.replica.View(func(v *fsm.View) { zxid = v.MembersZxid() })
	return zxid
}

// requirements are the conditions of a change of the members.
type requirements struct {
	patience time.Duration // for a new voter to catch up
	voters   int           // that have to be left
	// majority allows new voters that are down or lag, if a majority of those who
	// vote after the change is up.
	majority bool
}

// byOperator are those of a change that an operator or a new member asks for.
var byOperator = requirements{adminTimeout, 1, false}

// reconfigure takes members in and lets others go, one after the other, once it
// is clear that all of that can be done. A leader that is to go, or not to vote
// any more, hands over first and changes nothing.
func (m *Member) reconfigure(members, joining []MemberInfo, leaving []uint64, need requirements) error {
	var before []uint64 // who has to leave before others join
	leaving = slices.DeleteFunc(slices.Clone(leaving), func(id uint64) bool {
		is, back := find(members, id), find(joining, id)
		return is == nil || back != nil && back.Addr == is.Addr
	})
	for _, id := range leaving {
		if is := find(members, id); slices.ContainsFunc(joining, func(x MemberInfo) bool { return x.ID == id || x.Addr == is.Addr }) {
			before = append(before, id)
		}
	}
	after := slices.DeleteFunc(slices.Clone(members), func(x MemberInfo) bool { return slices.Contains(leaving, x.ID) })
	for _, x := range joining {
		if err := checkMember(x); err != nil {
			return err
		}
		for _, y := range after {
			switch {
			case x.ID == y.ID && x.Addr != y.Addr && !m.moved(x):
				return refuse(proto.BadArguments, "server %d is at %s: remove it before one at %s takes its id", x.ID, y.Addr, x.Addr)
			case x.ID != y.ID && x.Addr == y.Addr:
				return refuse(proto.BadArguments, "%s is the address of server %d: remove that first", x.Addr, y.ID)
			}
		}
		if y := find(after, x.ID); y != nil {
			*y = x
		} else {
			after = append(after, x)
		}
	}
	if n := voters(after); n < need.voters {
		return refuse(proto.BadArguments, "%d voting members would be left, and at least %d are needed", n, need.voters)
	}
	var absent []uint64
	if need.majority {
		var err error
		if absent, err = m.absent(after); err != nil {
			return err
		}
	}
	if self := find(after, m.cfg.ID); self == nil || !self.Voter {
		if err := m.handOver(0); err != nil {
			return refuse(proto.NewConfigNoQuorum, "no other member can lead in place of server %d: %v", m.cfg.ID, err)
		}
		return ErrNotLeader
	}
	for _, id := range before {
		if err := m.removeMember(*find(members, id)); err != nil {
			return err
		}
	}
	var last []MemberInfo // voters that the change does not wait for
	for _, x := range joining {
		is := find(members, x.ID)
		if slices.Contains(before, x.ID) {
			is = nil
		}
		if x.Voter && slices.Contains(absent, x.ID) && (is == nil || !is.Voter) {
			last = append(last, x)
			continue
		}
		err := m.addMember(is, x, need.patience)
		if need.majority && errors.As(err, new(lags)) {
			last = append(last, x)
		} else if err != nil {
			return err
		}
	}
	for _, id := range leaving {
		if !slices.Contains(before, id) {
			if err := m.removeMember(*find(members, id)); err != nil {
				return err
			}
		}
	}
	// Each of these is one more to wait for from now on, so they come last.
	for _, x := range last {
		if err := m.giveVote(x, min(need.patience, 4*m.contacts.sure)); err != nil {
			return err
		}
		m.cfg.Log.Warn("a member has a vote and is not there, or lags", "id", x.ID, "address", x.Addr)
	}
	return nil
}

// absent finds out which of the members that are to vote cannot be reached. It
// refuses if there is no majority without them.
func (m *Member) absent(after []MemberInfo) (ids []uint64, err error) {
	ctx, cancel := context.WithTimeout(m.peers.ctx, peerTimeout)
	defer cancel()
	var mu sync.Mutex
	var asked sync.WaitGroup
	there := 0
	for _, x := range after {
		if !x.Voter {
			continue
		}
		asked.Go(func() {
			_, err := m.statusOf(ctx, x)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				there++
			case unreachable(err):
				ids = append(ids, x.ID)
			}
		})
	}
	asked.Wait()
	if n := voters(after); there <= n/2 {
		return nil, refuse(proto.NewConfigNoQuorum, "only %d of the %d who would vote after that can be reached", there, n)
	}
	return ids, nil
}

// giveVote makes a member vote, once enough others know the members before that.
func (m *Member) giveVote(x MemberInfo, patience time.Duration) error {
	add := func(all []MemberInfo) []MemberInfo { return append(without(x.ID)(all), x) }
	if err := m.settle(patience, add); err != nil {
		return err
	}
	return leaderError(m.answer(m.raft.AddVoter(serverID(x.ID), raft.ServerAddress(x.Addr), 0, adminTimeout)))
}

// lags is the error of a member that is to vote and did not catch up in time.
type lags struct{ error }

func (l lags) Unwrap() error { return l.error }

// settle waits until most of those who vote after a change have the members as
// they are before it. A voter refuses a candidate that has no vote in the newest
// members that it knows of: if too few knew, and this leader were lost, nobody
// could be elected any more.
func (m *Member) settle(patience time.Duration, change func(voters []MemberInfo) []MemberInfo) error {
	ctx, cancel := context.WithTimeout(m.peers.ctx, patience)
	defer cancel()
	for {
		now, err := m.members()
		if err != nil {
			return err
		}
		vote := change(slices.DeleteFunc(slices.Clone(now), func(x MemberInfo) bool { return !x.Voter }))
		knows := make(chan bool, len(vote))
		round, done := context.WithTimeout(ctx, peerTimeout)
		for _, x := range vote {
			m.wg.Go(func() {
				s, err := m.statusOf(round, x)
				knows <- err == nil && slices.Equal(s.Members, now)
			})
		}
		know := 0
		for range vote {
			if <-knows {
				know++
			}
			if know > len(vote)/2 {
				done()
				return nil
			}
		}
		done()
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return refuse(proto.NewConfigNoQuorum, "%d of the %d who would vote after that can be reached and know the members", know, len(vote))
		}
	}
}

// without takes a member out of a list.
func without(id uint64) func([]MemberInfo) []MemberInfo {
	return func(all []MemberInfo) []MemberInfo {
		return slices.DeleteFunc(all, func(x MemberInfo) bool { return x.ID == id })
	}
}

// moved reports whether a member is at the address that x names, with its data:
// then it is not one more, nor one that forgot what it promised. For this member
// that is another name of the address that it has.
func (m *Member) moved(x MemberInfo) bool {
	ctx, cancel := context.WithTimeout(m.peers.ctx, peerTimeout)
	defer cancel()
	s, err := m.askStatus(ctx, x)
	if x.ID != m.cfg.ID || err != nil {
		return err == nil && s.Formed
	}
	members, err := m.members()
	term, leads := m.term()
	return err == nil && leads && s.Role == "leader" && s.Term == term && slices.Equal(s.Members, members)
}

func (m *Member) removeMember(x MemberInfo) error {
	if err := m.settle(adminTimeout, without(x.ID)); err != nil {
		return err
	}
	f := m.raft.RemoveServer(serverID(x.ID), 0, adminTimeout)
	if err := m.answer(f); err != nil {
		return leaderError(err)
	}
	m.cfg.Log.Info("member removed", "id", x.ID)
	m.wg.Go(func() { m.sendToRemoved(x, f.Index()) })
	return nil
}

func checkMember(x MemberInfo) error {
	if x.ID == 0 || x.ID > 254 {
		return refuse(proto.BadArguments, "server id %d is not in 1 to 254", x.ID)
	}
	if host, port, err := net.SplitHostPort(x.Addr); err != nil || host == "" || port == "" {
		return refuse(proto.BadArguments, "%q is no HOST:PORT", x.Addr)
	}
	return nil
}

// addMember adds a member, or changes whether it votes. One that is to vote
// catches up first: until it has, it would be one more to wait for.
func (m *Member) addMember(is *MemberInfo, x MemberInfo, patience time.Duration) error {
	id, addr := serverID(x.ID), raft.ServerAddress(x.Addr)
	if is != nil && is.Addr != x.Addr {
		change := m.raft.AddNonvoter
		if is.Voter {
			change = m.raft.AddVoter
		}
		if err := m.answer(change(id, addr, 0, adminTimeout)); err != nil {
			return leaderError(err)
		}
		m.cfg.Log.Info("member moved", "id", x.ID, "from", is.Addr, "to", x.Addr)
	}
	if is != nil && is.Voter {
		if x.Voter {
			return nil
		}
		if err := m.settle(patience, without(x.ID)); err != nil {
			return err
		}
		return leaderError(m.answer(m.raft.DemoteVoter(id, 0, adminTimeout)))
	}
	ctx, cancel := context.WithTimeout(m.peers.ctx, patience)
	defer cancel()
	switch _, err := m.statusOf(ctx, x); {
	case err == nil:
	case !x.Voter && unreachable(err): // nobody waits for it, so it may come later
		m.cfg.Log.Warn("taking in an observer that cannot be reached", "id", x.ID, "error", err)
	default:
		return refuse(proto.NewConfigNoQuorum, "server %d cannot be taken in: %v", x.ID, err)
	}
	if is == nil {
		if err := m.settle(patience, func(all []MemberInfo) []MemberInfo { return all }); err != nil {
			return err
		}
		if err := m.answer(m.raft.AddNonvoter(id, addr, 0, adminTimeout)); err != nil {
			return leaderError(err)
		}
	}
	if !x.Voter {
		return nil
	}
	var goal uint64
	m.replica.View(func(v *fsm.View) { goal = v.Index() })
	for {
		s, err := m.statusOf(ctx, x)
		if err == nil && s.Index >= goal {
			return m.giveVote(x, patience)
		}
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return lags{refuse(proto.NewConfigNoQuorum, "server %d is an observer for now, since it did not catch up within %v: add it again", x.ID, patience)}
		}
	}
}

// statusOf asks another member, or one that is to be, for its status.
func (m *Member) statusOf(ctx context.Context, x MemberInfo) (*Status, error) {
	if x.ID == m.cfg.ID {
		s, err := m.Status()
		return &s, err
	}
	return m.askStatus(ctx, x)
}

// askStatus asks whoever is at a member's address for its status.
func (m *Member) askStatus(ctx context.Context, x MemberInfo) (*Status, error) {
	r, err := ask(ctx, m.peers.network, x.Addr, Request{Status: true})
	switch {
	case err != nil:
		return nil, err
	case r.Status == nil:
		return nil, fmt.Errorf("%s: %s", x.Addr, r.Error)
	case r.Status.ID != x.ID:
		return nil, fmt.Errorf("%s is the address of a server %d", x.Addr, r.Status.ID)
	}
	return r.Status, nil
}

func (m *Member) transfer(members []MemberInfo, id uint64) error {
	if id == 0 {
		if voters(members) == 1 {
			return refuse(proto.BadArguments, "there is no other voting member")
		}
		return m.handOver(0)
	}
	to := find(members, id)
	switch {
	case to == nil || !to.Voter:
		return refuse(proto.BadArguments, "server %d is no voting member", id)
	case id == m.cfg.ID:
		return nil
	}
	return m.handOver(id)
}

// serveAdmin answers one request.
func (m *Member) serveAdmin(c net.Conn) {
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * adminTimeout))
	line, err := bufio.NewReaderSize(c, 64<<10).ReadSlice('\n')
	if err != nil {
		return
	}
	var q Request
	var r Reply
	if err = json.Unmarshal(line, &q); err == nil {
		r, err = m.Change(q)
	}
	if err != nil {
		r = Reply{Error: err.Error()}
		var refused *refusal
		switch {
		case errors.As(err, &refused):
			r.Code = refused.code
		case errors.Is(err, ErrNotLeader):
			r.Lead, r.Leader = true, m.leader.get().addr
		}
	}
	json.NewEncoder(c).Encode(r) // an error means that nobody waits for it
}

// Ask sends a request to the member whose peer port is at addr, and to the
// leader if that one does not lead. While nobody leads it waits, at most half a
// minute. A nil network is TCP.
func Ask(ctx context.Context, network Network, addr string, q Request) (*Status, error) {
	r, err := askLeader(ctx, network, addr, q)
	return r.Status, err
}

func askLeader(ctx context.Context, network Network, addr string, q Request) (Reply, error) {
	if network == nil {
		network = TCP{}
	}
	ctx, cancel := context.WithTimeout(ctx, 3*adminTimeout)
	defer cancel()
	for to := addr; ; {
		r, err := ask(ctx, network, to, q)
		switch {
		case err != nil && (to == addr || !unreachable(err)):
			return r, err
		case err == nil && r.Error == "":
			return r, nil
		case err == nil && !r.Lead:
			return r, &refusal{r.Code, fmt.Sprintf("%s: %s", to, r.Error)}
		}
		if r.Leader != "" && r.Leader != to {
			to = r.Leader
			continue
		}
		to = addr // who leads changes just now
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return r, fmt.Errorf("%s: no member leads", addr)
		}
	}
}

// unreachable reports whether there was no connection.
func unreachable(err error) bool { return errors.As(err, new(*net.OpError)) }

func ask(ctx context.Context, network Network, addr string, q Request) (r Reply, err error) {
	dial, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	c, err := hello(dial, network, addr, kindAdmin)
	if err != nil {
		if !unreachable(err) { // which names its address
			err = fmt.Errorf("%s: %w", addr, err)
		}
		return r, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	c.SetDeadline(time.Now().Add(2 * adminTimeout))
	if err := json.NewEncoder(c).Encode(q); err != nil {
		return r, fmt.Errorf("%s: %w", addr, err)
	}
	if err := json.NewDecoder(bufio.NewReader(c)).Decode(&r); err != nil {
		return r, fmt.Errorf("%s: %w", addr, err)
	}
	return r, nil
}

// watchMembership finds out whether this member was removed, while it has
// reason to ask: it knows no leader. Its own log cannot tell: it may end before
// its removal, one that is taken in reads about times when it was no member, and
// one that was removed still gets it for a moment (see sendToRemoved).
func (m *Member) watchMembership() {
	ctx := m.peers.ctx
	every := 250 * time.Millisecond
	for {
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return
		}
		members, err := m.members()
		if err != nil || len(members) == 0 { // not taken in yet
			continue
		}
		if m.Leader() != 0 {
			every = 250 * time.Millisecond
			continue
		}
		every = min(2*every, 5*time.Second)
		for _, x := range members {
			if x.ID == m.cfg.ID {
				continue
			}
			// The leader itself has to say so: it alone knows.
			r, err := ask(ctx, m.peers.network, x.Addr, Request{Knows: m.cfg.ID})
			if err == nil && r.Lead && r.Leader != "" {
				r, err = ask(ctx, m.peers.network, r.Leader, Request{Knows: m.cfg.ID})
			}
			if err != nil || r.Error != "" {
				continue
			}
			if !r.Known {
				m.cfg.Log.Info("removed from the cluster", "id", m.cfg.ID, "by", x.Addr)
				m.fail(fmt.Errorf("server %d was %w: to have it back, empty %s and join again", m.cfg.ID, ErrRemoved, m.storage.Name))
				return
			}
			break
		}
	}
}
