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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Status is what a member knows about its cluster.
type Status struct {
	ID      uint64       `json:"id"`     // of the member itself
	Leader  uint64       `json:"leader"` // 0 if none is known
	Role    string       `json:"role"`   // leader, follower, observer, looking, standalone
	Term    uint64       `json:"term"`
	Index   uint64       `json:"index"` // of the last entry applied
	Zxid    int64        `json:"zxid"`
	Digest  string       `json:"digest"`  // of the state at Index
	Members []proto.Peer `json:"members"` // sorted by id

	// Cluster is the id of its cluster; 0 until it is in one.
	Cluster ClusterID `json:"cluster"`
	Formed  bool      `json:"formed"` // it is in the cluster: it has agreed to the id, or was taken in
	Data    bool      `json:"data"`   // it has a log or a snapshot
	Run     uint64    `json:"run"`    // random, made at each start
	// Configured are the members with which it is to form a cluster; empty once it is in one.
	Configured []proto.Peer `json:"configured,omitempty"`
	Waiting    string       `json:"waiting,omitempty"` // why it is in no cluster yet
	// NoVote says why a member that was not started as an observer has no vote.
	NoVote string `json:"noVote,omitempty"`
	// Differs says, on the leader, which members have another state than it at the same
	// entry of the log. Such a member stops serving.
	Differs []Difference `json:"differs,omitempty"`
	About
}

// About is what a member says about the server that it is part of.
type About struct {
	Version string `json:"version"` // of lockkeeper
	Serving bool   `json:"serving"` // it serves clients
	// ClientPort and SecurePort are where it listens for clients, HOST:PORT; empty if nowhere.
	ClientPort string `json:"clientPort"`
	SecurePort string `json:"secureClientPort"` // for clients that use TLS
}

// Difference says that the state of a member differs from the leader's.
type Difference struct {
	ID    uint64 `json:"id"`    // of the member
	Index uint64 `json:"index"` // of the first entry at which that was seen
}

// membership changes the list of members while this member leads, brings this server
// into its cluster, and notices when it was removed. The list itself is in Raft's
// configuration.
//
// Its goroutines are watch, and those of its former; they end with the member. Those
// that settle starts, and sendToRemoved, end within seconds. Its methods are safe for
// concurrent use.
type membership struct {
	*lifecycle
	cfg        *Config
	configured []proto.Peer // the members of a new cluster, from cfg
	former     *former
	digests    *digests
	raft       *node
	replica    *fsm.Replica
	leader     *knownLeader
	commits    *commits
	contacts   *contacts
	pulse      *pulse
	gate       *gate
	peers      *peerPort // nil on a standalone server
	transport  *transport
	handover   *handover

	changing turn        // held by change while it changes the members
	brief    atomic.Bool // the change under way was asked for by a member that has lost its disk
	asked    uint64      // the term in which the change under way was asked for; guarded by changing
}

func newMembership(cfg *Config, replica *fsm.Replica, leader *knownLeader, p *pulse) *membership {
	m := &membership{
		lifecycle: p.lifecycle, cfg: cfg, configured: infos(cfg.first()), raft: p.raft, replica: replica, leader: leader,
		commits: p.commits, contacts: p.contacts, pulse: p, gate: p.gate, peers: p.peers, transport: p.transport,
		handover: newHandover(p, leader), changing: newTurn(), digests: p.digests,
	}
	m.former = newFormer(m)
	return m
}

// Status returns what this member knows about its cluster.
func (m *Member) Status() (Status, error) { return m.membership.status() }

func (m *membership) status() (Status, error) {
	members, err := m.raft.members()
	if err != nil {
		return Status{}, err
	}
	s := Status{ID: m.cfg.ID, Leader: m.leader.get().id, Term: m.raft.CurrentTerm(), Role: m.role(), Members: members,
		Cluster: m.gate.cluster(), Formed: m.gate.lifted(), Data: m.raft.LastIndex() > 0, Run: m.former.number}
	if !s.Formed {
		s.Configured, s.Waiting = m.former.list, m.former.waiting()
	}
	if s.Role == "observer" && m.cfg.votes() {
		s.NoVote = "has no vote, but was not started as an observer"
		if m.former.awaits.Load() {
			s.NoVote = "waits for its vote"
		}
	}
	if s.Role == "leader" { // what an earlier leader knows may be over
		s.Differs = m.digests.differences()
	}
	if m.cfg.About != nil {
		s.About = m.cfg.About()
	}
	m.replica.View(func(v *fsm.View) {
		s.Index, s.Zxid, s.Digest = v.Index(), v.Zxid(), fmt.Sprintf("%016x", v.Digest())
	})
	return s, nil
}

func infos(c raft.Configuration) (members []proto.Peer) {
	for _, s := range c.Servers {
		id, _ := strconv.ParseUint(string(s.ID), 10, 64)
		members = append(members, proto.Peer{ID: id, Addr: string(s.Address), Observer: s.Suffrage != raft.Voter})
	}
	slices.SortFunc(members, func(a, b proto.Peer) int { return cmp.Compare(a.ID, b.ID) })
	return members
}

// idOf returns the id of the member that should be at an address; 0 if none should.
func (m *membership) idOf(addr string) uint64 {
	members, err := m.raft.members()
	if i := slices.IndexFunc(members, func(x proto.Peer) bool { return x.Addr == addr }); err == nil && i >= 0 {
		return members[i].ID
	}
	return 0
}

// find returns the member with the given id, or nil.
func find(members []proto.Peer, id uint64) *proto.Peer {
	for i := range members {
		if members[i].ID == id {
			return &members[i]
		}
	}
	return nil
}

func voters(members []proto.Peer) (n int) {
	for _, x := range members {
		if !x.Observer {
			n++
		}
	}
	return n
}

// Role returns this member's role: leader, follower, observer, looking (it knows no
// leader) or standalone.
func (m *Member) Role() string { return m.membership.role() }

func (m *membership) role() string {
	if m.peers == nil {
		return "standalone"
	}
	switch lead := m.leader.get().id; {
	case lead == 0:
		return "looking"
	case lead == m.cfg.ID:
		return "leader"
	}
	if members, err := m.raft.members(); err == nil {
		if self := find(members, m.cfg.ID); self != nil && self.Observer {
			return "observer"
		}
	}
	return "follower"
}

// Request asks a member for a change of the members, or for information about them.
// One of its fields is set, besides Back and Cluster.
type Request struct {
	Status   bool        `json:"status,omitempty"`
	Add      *proto.Peer `json:"add,omitempty"`      // a new member, or one whose address or vote changes
	Remove   uint64      `json:"remove,omitempty"`   // the member's id
	Transfer *uint64     `json:"transfer,omitempty"` // leadership to this member; 0 means any
	Reconfig *Reconfig   `json:"reconfig,omitempty"`
	Knows    uint64      `json:"knows,omitempty"`   // whether the cluster has a member with this id
	At       string      `json:"at,omitempty"`      // with Knows: the address of the server that asks
	Propose  *Proposal   `json:"propose,omitempty"` // an id for a new cluster
	Agreed   ClusterID   `json:"agreed,omitzero"`   // the sender has agreed to this id
	Form     bool        `json:"form,omitempty"`    // a new cluster, although not all of its members are there

	// Back restricts Add to a server that is a member already: a removed one must not add
	// itself again.
	Back bool `json:"back,omitempty"`
	// Run is the run (see Status) of a server that asks for a place of its own: the request
	// holds only while that run answers at the server's address. 0 means an operator's word.
	Run uint64 `json:"run,omitempty"`
	// Cluster is the cluster that is meant; 0 means whichever the member belongs to.
	Cluster ClusterID `json:"cluster,omitzero"`
}

// Reconfig is a change of several members at once, like ZooKeeper's reconfig.
type Reconfig struct {
	Joining []proto.Peer `json:"joining,omitempty"` // added or changed
	Leaving []uint64     `json:"leaving,omitempty"` // removed; ids that are no members are ignored
	Whole   bool         `json:"whole,omitempty"`   // members that are not in Joining are removed
	Version int64        `json:"version"`           // the required version of the configuration, a zxid; -1 means any
	WaitMs  int64        `json:"waitMs,omitempty"`  // how long to wait for a new voter to catch up
}

// Reply answers a Request.
type Reply struct {
	Status *Status    `json:"status,omitempty"`
	Known  bool       `json:"known,omitempty"`  // the answer to Knows
	Votes  bool       `json:"votes,omitempty"`  // and whether that member has a vote
	Surely bool       `json:"surely,omitempty"` // and whether it is in a committed list, with the address At
	Error  string     `json:"error,omitempty"`
	Code   proto.Code `json:"code,omitempty"`   // ZooKeeper's code for the error, if there is one
	Begun  bool       `json:"begun,omitempty"`  // the change may have been made, or a part of it
	Lead   bool       `json:"lead,omitempty"`   // the error is that this member is not the leader
	Leader string     `json:"leader,omitempty"` // then the address of the leader's peer port, if known
}

// ErrNotLeader is returned for requests that only the leader can carry out.
var ErrNotLeader = errors.New("cluster: not the leader")

// errHandedOver is ErrNotLeader because the leader has made another member the leader, which is to
// make the change.
var errHandedOver = fmt.Errorf("%w any more", ErrNotLeader)

// ErrNoLeader is returned if no member has led the cluster for as long as a request waits.
var ErrNoLeader = errors.New("no member leads")

// ErrNoMember is the error, in the sense of errors.Is, if a request is about a server that is not a
// member.
var ErrNoMember = errors.New("no such member")

// ErrUnknownOutcome is the error, in the sense of errors.Is, if a change was asked for, and it is
// not known whether it was made, or still will be.
var ErrUnknownOutcome = errors.New("the outcome is unknown")

// ErrRemoved is the fault of a member that was removed from its cluster.
var ErrRemoved = errors.New("removed from its cluster")

// refusal is the error of a change that is not possible, with ZooKeeper's code.
type refusal struct {
	code proto.Code
	text string
}

func (r *refusal) Error() string { return r.text }

func (r *refusal) Is(target error) bool { return target == ErrNoMember && r.code == proto.NoNode }

// begun is the error of a change that may have been made in part or as a whole.
type begun struct{ error }

func (b begun) Unwrap() error { return b.error }

func refuse(code proto.Code, format string, args ...any) error {
	return &refusal{code, fmt.Sprintf(format, args...)}
}

// Times of requests about the members.
const (
	adminTimeout = 10 * time.Second // for one change
	// The time between two attempts is askSoon at first, and then twice as long each
	// time, up to askAgain, or up to a second where a member waits for the cluster.
	askSoon  = 2 * time.Millisecond
	askAgain = 50 * time.Millisecond
)

// Change carries out a request. All requests except Status, and those about a cluster that is
// being formed, must go to the leader; another member returns ErrNotLeader.
func (m *Member) Change(q Request) (Reply, error) { return m.membership.change(q) }

func (m *membership) change(q Request) (Reply, error) {
	switch {
	case q.Status:
		s, err := m.status()
		return Reply{Status: &s}, err
	case q.Propose != nil:
		return Reply{}, m.former.accept(q.Propose)
	case q.Agreed != 0:
		m.former.wake.raise()
		return Reply{}, nil
	case q.Form && m.peers == nil:
		return Reply{}, refuse(proto.BadArguments, "a standalone server forms no cluster")
	case q.Form:
		if err := m.former.form(); err != nil {
			return Reply{}, err
		}
		s, err := m.status()
		return Reply{Status: &s}, err
	case q.Cluster != 0 && q.Cluster != m.gate.cluster():
		return Reply{}, refuse(proto.BadArguments, "server %d belongs to cluster %v, not to cluster %v", m.cfg.ID, m.gate.cluster(), q.Cluster)
	case m.leader.get().id != m.cfg.ID:
		return Reply{}, ErrNotLeader
	}
	term, leads := m.raft.term()
	if !leads {
		return Reply{}, ErrNotLeader
	}
	// After this, all changes of earlier leaders are applied here, and it is certain
	// that this member still led.
	if err := m.raft.answer(m.raft.Barrier(adminTimeout)); err != nil {
		return Reply{}, leaderError(err)
	}
	if q.Knows != 0 {
		return m.knows(q.Knows, q.At, q.Run)
	}
	listed := m.rename(&q, "")
	if q.Back {
		if done, err := m.back(q.Add, q.Run); done || err != nil {
			s, _ := m.status()
			return Reply{Status: &s}, err
		}
	}
	patience := adminTimeout // an operator's changes wait for each other
	if q.Reconfig != nil && !m.brief.Load() {
		patience = 0
	}
	if !m.changing.tryTake() && !m.changing.takeWithin(patience) {
		return Reply{}, refuse(proto.ReconfigInProgress, "another change of the members is under way")
	}
	defer m.changing.give()
	m.brief.Store(q.Back)
	m.asked = term
	if err := m.stillLeads(); err != nil {
		return Reply{}, err
	}
	members, err := m.raft.members()
	if err != nil {
		return Reply{}, err
	}
	m.rename(&q, listed) // an operator may have given it another name while this request waited
	switch {
	case q.Add != nil:
		if q.Back && find(members, q.Add.ID) == nil { // it was removed while this request waited
			return Reply{}, notMember(q.Add.ID)
		}
		need := byOperator
		if need.run = q.Run; need.run != 0 {
			if err := m.mayAsk(members, *q.Add, q.Run); err != nil {
				return Reply{}, err
			}
		}
		if q.Back && !q.Add.Observer { // it asks again, so nothing else has to wait for it
			need.patience = m.contacts.silence / 2
		}
		err = m.reconfigure(members, []proto.Peer{*q.Add}, nil, need)
	case q.Remove != 0:
		if find(members, q.Remove) == nil {
			return Reply{}, notMember(q.Remove)
		}
		err = m.reconfigure(members, nil, []uint64{q.Remove}, byOperator)
	case q.Reconfig != nil:
		r := q.Reconfig
		if version := m.configVersion(); r.Version != -1 && r.Version != version {
			return Reply{}, refuse(proto.BadVersion, "the list of members has version %x, not %x", version, r.Version)
		}
		leaving := r.Leaving
		if r.Whole {
			for _, x := range members {
				if find(r.Joining, x.ID) == nil {
					leaving = append(leaving, x.ID)
				}
			}
		}
		need := requirements{patience: min(time.Duration(r.WaitMs)*time.Millisecond, adminTimeout), voters: 2, majority: true} // as in ZooKeeper
		if m.cfg.AllowSingleVoter {
			need.voters = 1
		}
		err = m.reconfigure(members, r.Joining, leaving, need)
	case q.Transfer != nil:
		err = m.transfer(members, *q.Transfer)
	default:
		err = errors.New("the request is empty")
	}
	if err != nil {
		if q.Transfer == nil && err != errHandedOver && !errors.As(err, new(*refusal)) {
			err = begun{err}
		}
		return Reply{}, err
	}
	s, err := m.status()
	return Reply{Status: &s}, err
}

// stillLeads returns ErrNotLeader if the term is over in which the change under way was
// asked for. Another leader may have been asked for it since, and for its opposite after
// that: a member may have been removed, and added again with an empty disk. A change that
// waited in the old leader must not undo that when the old leader leads again.
func (m *membership) stillLeads() error {
	if term, leads := m.raft.term(); !leads || term != m.asked {
		return ErrNotLeader
	}
	return nil
}

func leaderError(err error) error {
	for _, e := range []error{raft.ErrNotLeader, raft.ErrLeadershipLost, raft.ErrLeadershipTransferInProgress} {
		if errors.Is(err, e) {
			return ErrNotLeader
		}
	}
	return err
}

// knows reports whether there is a member with this id, in the newest or in the last
// applied configuration. A change between the two may still be undone, so in doubt
// the answer is yes. It is sure if the server that asks, at the address at, is that member: another
// server may have its id, whose own place it is to take.
func (m *membership) knows(id uint64, at string, run uint64) (Reply, error) {
	members, err := m.raft.members()
	if err != nil {
		return Reply{}, err
	}
	s, err := m.status()
	if err != nil {
		return Reply{}, err
	}
	x := proto.Peer{ID: id}
	known := false
	m.replica.View(func(v *fsm.View) {
		var s proto.Peer
		s, known = v.Member(id)
		x.Addr = s.Addr
	})
	r := Reply{Known: known, Surely: known && m.same(x, at, run), Status: &s}
	if x := find(members, id); x != nil {
		r.Known, r.Votes = true, !x.Observer
	}
	return r, nil
}

// same reports whether the given run of a server that says that it is at an address is the one at
// x's address, of which its own may be another name.
func (m *membership) same(x proto.Peer, at string, run uint64) bool {
	if x.Addr == at || run == 0 {
		return x.Addr == at
	}
	_, err := m.sender(x, run)
	return err == nil
}

// rename makes a request of a server for its own place name the address that is in the list, if the
// server is there: its own may be another name of that. It returns that address, and does nothing if
// it is still the given one.
func (m *membership) rename(q *Request, looked string) (listed string) {
	if q.Add == nil || q.Run == 0 {
		return ""
	}
	members, err := m.raft.members()
	is := find(members, q.Add.ID)
	if err != nil || is == nil || is.Addr == looked {
		return looked
	}
	if is.Addr != q.Add.Addr && m.same(*is, q.Add.Addr, q.Run) {
		x := *q.Add
		x.Addr = is.Addr
		q.Add = &x
	}
	return is.Addr
}

// known reports whether there is a member with this id, and whether it votes, in the last
// applied configuration.
func (m *membership) known(id uint64) (is, votes bool) {
	m.replica.View(func(v *fsm.View) {
		var s proto.Peer
		s, is = v.Member(id)
		votes = is && !s.Observer
	})
	return is, votes
}

// back checks the request of a member that has lost its disk: x describes it, first without
// its vote, and then with it. It reports whether nothing is left to do. It does not hold
// membership.changing, so that a member which asks again and again, and has not caught up
// yet, is in nobody's way.
func (m *membership) back(x *proto.Peer, run uint64) (done bool, err error) {
	if x == nil || run == 0 {
		return false, errors.New("the request is incomplete")
	}
	members, err := m.raft.members()
	if err != nil {
		return false, err
	}
	is := find(members, x.ID)
	// A change may have been appended since, and may still be undone.
	known, votes := m.known(x.ID)
	switch {
	case (is != nil) != known || known && !is.Observer != votes:
		return false, refuse(proto.ReconfigInProgress, "another change of the members is under way")
	case is == nil:
		return false, notMember(x.ID)
	case *is == *x:
		return true, nil
	case x.Observer:
		return false, nil // mayAsk follows
	}
	s, err := m.sender(*x, run)
	if err != nil {
		return false, err
	}
	if goal := m.commits.applied(); s.Index < goal && goal-s.Index > nearlyCaughtUp {
		return false, refuse(proto.NewConfigNoQuorum, "server %d has not caught up: it is at entry %d of %d", x.ID, s.Index, goal)
	}
	return false, nil
}

// sender returns the status of the server at x's address, where the given run of it must answer,
// which has sent a request. What a run that has ended has sent can arrive late, and a server may
// have been started elsewhere with the id and the address of another.
func (m *membership) sender(x proto.Peer, run uint64) (*Status, error) {
	ctx, cancel := context.WithTimeout(m.peers.ctx, peerTimeout)
	defer cancel()
	s, err := m.askStatus(ctx, x) // also if it has this member's id
	switch {
	case err != nil:
		return nil, refuse(proto.NewConfigNoQuorum, "server %d asks for its place, and cannot be asked itself: %v", x.ID, err)
	case s.Run != run:
		return nil, refuse(proto.BadArguments, "the server that runs as server %d at %s is another one than that which asks for its place: it was started again, or this is a second server with its id and address", x.ID, x.Addr)
	}
	return s, nil
}

// mayAsk returns an error unless the given run of server x may ask for the place that x describes.
// A voter loses its vote only if it has no data. While membership.changing is held, such a server
// gets none: it joins only when its request is done. And it loses it only when this leader's
// heartbeats are not answered any more: over connections that are older than another server at its
// address, the voter itself may still answer them.
func (m *membership) mayAsk(members []proto.Peer, x proto.Peer, run uint64) error {
	s, err := m.sender(x, run)
	is := find(members, x.ID)
	switch {
	case err != nil || is == nil || is.Observer || !x.Observer:
		return err
	case s.Formed || s.Data:
		return refuse(proto.BadArguments, "server %d has data, and keeps its vote", x.ID)
	case is.Addr == x.Addr && m.contacts.follows(x.ID, m.pulse.nowMs()):
		return refuse(proto.NewConfigNoQuorum, "server %d still follows this leader, although a server without data answers at %s: has its process ended? It keeps its vote for now", x.ID, x.Addr)
	}
	return nil
}

// notMember is the answer to a request about a server that is not a member. No other refusal of
// a request about the members has this code.
func notMember(id uint64) error { return refuse(proto.NoNode, "server %d is not a member", id) }

// nearlyCaughtUp is by how many entries a member may lag that asks for its vote.
const nearlyCaughtUp = 1000

func (m *membership) configVersion() (zxid int64) {
	m.replica.View(func(v *fsm.View) { zxid = v.MembersZxid() })
	return zxid
}

// requirements are the conditions for a change of the members.
type requirements struct {
	patience time.Duration // how long to wait for a new voter to catch up
	voters   int           // least number of voters after the change
	// majority allows new voters that are down or lag, if a majority of the voters
	// after the change is up.
	majority bool
	run      uint64 // of the server that asks for its own place; 0 means an operator's word
}

// byOperator are the requirements for a change that an operator or a new member
// requests.
var byOperator = requirements{patience: adminTimeout, voters: 1}

// reconfigure adds and removes members, one at a time, after checking that the whole
// change is possible. If the leader itself is to be removed or to lose its vote, it
// only hands over leadership and returns errHandedOver, so that the new leader is asked
// to make the change.
func (m *membership) reconfigure(members, joining []proto.Peer, leaving []uint64, need requirements) error {
	var before []uint64 // members to remove before others are added with their id or address
	leaving = slices.DeleteFunc(slices.Clone(leaving), func(id uint64) bool {
		is, back := find(members, id), find(joining, id)
		return is == nil || back != nil && back.Addr == is.Addr
	})
	for _, id := range leaving {
		if is := find(members, id); slices.ContainsFunc(joining, func(x proto.Peer) bool { return x.ID == id || x.Addr == is.Addr }) {
			before = append(before, id)
		}
	}
	after := slices.DeleteFunc(slices.Clone(members), func(x proto.Peer) bool { return slices.Contains(leaving, x.ID) })
	for _, x := range joining {
		if err := checkMember(x); err != nil {
			return err
		}
		for _, y := range after {
			switch {
			case x.ID == y.ID && x.Addr != y.Addr && !m.moved(y, x):
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
		added := slices.DeleteFunc(slices.Clone(joining), func(x proto.Peer) bool {
			is := find(members, x.ID)
			return is != nil && !is.Observer && !slices.Contains(before, x.ID)
		})
		if absent, err = m.absent(after, added); err != nil {
			return err
		}
	} else if len(leaving) > 0 || slices.ContainsFunc(joining, func(x proto.Peer) bool { return x.Observer }) {
		if err := m.canFollow(after); err != nil {
			return err
		}
	}
	if self := find(after, m.cfg.ID); self == nil || self.Observer {
		if err := m.handover.to(m.peers.ctx, 0); err != nil {
			return refuse(proto.NewConfigNoQuorum, "no other member can lead in place of server %d: %v", m.cfg.ID, err)
		}
		return errHandedOver
	}
	for _, id := range before {
		if err := m.removeMember(*find(members, id)); err != nil {
			return err
		}
	}
	var last []proto.Peer // new voters that are down or lag
	for _, x := range joining {
		is := find(members, x.ID)
		if slices.Contains(before, x.ID) {
			is = nil
		}
		if !x.Observer && slices.Contains(absent, x.ID) && (is == nil || is.Observer) {
			last = append(last, x)
			continue
		}
		err := m.addMember(is, x, need)
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
	// These come last: each of them makes the majority larger without being up.
	for _, x := range last {
		if err := m.giveVote(x, min(need.patience, 4*m.contacts.sure)); err != nil {
			return err
		}
		m.cfg.Log.Warn("a member was made a voter although it is down or lags", "id", x.ID, "address", x.Addr)
	}
	return nil
}

// absent returns the voters in after, the members after a change, that cannot be reached or
// run with the data of another cluster. It fails if the others are no majority, or if another
// server answers in place of one of those in added, which are to be added or to get a vote: such
// a change must fail before its first step, which may be the removal of a member.
func (m *membership) absent(after, added []proto.Peer) (ids []uint64, err error) {
	ctx, cancel := context.WithTimeout(m.peers.ctx, peerTimeout)
	defer cancel()
	var mu sync.Mutex
	var asked sync.WaitGroup
	var there []uint64
	var other error
	for _, x := range after {
		isNew := find(added, x.ID) != nil
		if x.Observer && !isNew {
			continue
		}
		asked.Go(func() {
			s, err := m.statusOf(ctx, x)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && m.foreign(s) != nil:
				if isNew {
					other = m.foreign(s)
				}
				ids = append(ids, x.ID)
			case err == nil && !x.Observer:
				there = append(there, x.ID)
			case err == nil:
			case unreachable(err):
				ids = append(ids, x.ID)
			case isNew:
				other = cannotBeAdded(x.ID, err)
			}
		})
	}
	asked.Wait()
	if other != nil {
		return nil, other
	}
	if len(there) <= voters(after)/2 {
		return nil, noQuorum(after, there, "can be reached")
	}
	return ids, nil
}

// canFollow returns an error unless a majority of the voters in after answer. settle would wait for
// them longer, and keep others from changing the members. And if this member is to be removed, a
// leader that has to refuse that as well need not take over.
func (m *membership) canFollow(after []proto.Peer) error {
	ctx, cancel := context.WithTimeout(m.peers.ctx, peerTimeout)
	defer cancel()
	answers := make(chan uint64, len(after)) // the ids of those that answer; 0 for one that does not
	for _, x := range after {
		if !x.Observer {
			m.wg.Go(func() {
				id := x.ID
				if _, err := m.statusOf(ctx, x); err != nil {
					id = 0
				}
				answers <- id
			})
		}
	}
	var there []uint64
	for n := voters(after); n > 0; n-- {
		if id := <-answers; id != 0 {
			there = append(there, id)
		}
		if len(there) > voters(after)/2 {
			return nil
		}
	}
	return noQuorum(after, there, "can be reached")
}

// noQuorum is the error that too few of the voters after a change do what they have to. It names
// the others: those that are not in there.
func noQuorum(after []proto.Peer, there []uint64, do string) error {
	var missing []string
	for _, x := range after {
		if !x.Observer && !slices.Contains(there, x.ID) {
			missing = append(missing, fmt.Sprintf("server %d at %s", x.ID, x.Addr))
		}
	}
	return refuse(proto.NewConfigNoQuorum, "only %d of the %d voters after the change %s; missing: %s", len(there), voters(after), do, strings.Join(missing, ", "))
}

// giveVote makes a member a voter, after settle.
func (m *membership) giveVote(x proto.Peer, patience time.Duration) error {
	add := func(all []proto.Peer) []proto.Peer { return append(without(x.ID)(all), x) }
	if err := m.settle(patience, add); err != nil {
		return err
	}
	return m.add(m.raft.AddVoter, x)
}

// add has Raft add x, which is not a member yet or has no vote.
func (m *membership) add(change func(raft.ServerID, raft.ServerAddress, uint64, time.Duration) raft.IndexFuture, x proto.Peer) error {
	m.raft.adding.Store(x.ID)
	defer m.raft.adding.Store(0)
	return leaderError(m.raft.answer(change(serverID(x.ID), raft.ServerAddress(x.Addr), 0, adminTimeout)))
}

// lags is the error for a new voter that did not catch up in time.
type lags struct{ error }

func (l lags) Unwrap() error { return l.error }

// settle waits until a majority of the voters after a change have the current list of
// members, the one before the change. A voter refuses a candidate that is no voter in
// the list that it has: if too few had the current list and this leader were lost, no
// leader could be elected any more. It returns [ErrNotLeader] if this leader's term ends.
func (m *membership) settle(patience time.Duration, change func(voters []proto.Peer) []proto.Peer) error {
	ctx, cancel := context.WithTimeout(m.peers.ctx, patience)
	defer cancel()
	for wait := askSoon; ; wait = min(2*wait, askAgain) {
		if err := m.stillLeads(); err != nil {
			return err
		}
		now, err := m.raft.members()
		if err != nil {
			return err
		}
		vote := change(slices.DeleteFunc(slices.Clone(now), func(x proto.Peer) bool { return x.Observer }))
		knows := make(chan uint64, len(vote)) // as in canFollow
		round, done := context.WithTimeout(ctx, peerTimeout)
		for _, x := range vote {
			m.wg.Go(func() {
				id := x.ID
				if s, err := m.statusOf(round, x); err != nil || !slices.Equal(s.Members, now) {
					id = 0
				}
				knows <- id
			})
		}
		var know []uint64
		for range vote {
			if id := <-knows; id != 0 {
				know = append(know, id)
			}
			if len(know) > len(vote)/2 {
				done()
				return m.stillLeads()
			}
		}
		done()
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return noQuorum(vote, know, "can be reached and have the current list of members")
		}
	}
}

// without returns a function that removes a member from a list.
func without(id uint64) func([]proto.Peer) []proto.Peer {
	return func(all []proto.Peer) []proto.Peer {
		return slices.DeleteFunc(all, func(x proto.Peer) bool { return x.ID == id })
	}
}

// moved reports whether the member was now runs at x's address, with its
// data, so that only its address needs to be changed. A server there with empty data
// has forgotten its votes and must be added as a new member. Two servers with copies of the
// data could both vote in one term, so nothing but the server at x's address may answer at
// the old one. For this member, the address must be another name of its own.
func (m *membership) moved(was, x proto.Peer) bool {
	ctx, cancel := context.WithTimeout(m.peers.ctx, peerTimeout)
	defer cancel()
	s, err := m.askStatus(ctx, x)
	if x.ID != m.cfg.ID || err != nil {
		if err != nil || !s.Formed || !s.Data || s.Cluster != m.gate.cluster() {
			return false
		}
		old, err := m.askStatus(ctx, was)
		return err != nil || old.Run == s.Run
	}
	members, err := m.raft.members()
	term, leads := m.raft.term()
	return err == nil && leads && s.Role == "leader" && s.Term == term && slices.Equal(s.Members, members)
}

func (m *membership) removeMember(x proto.Peer) error {
	if err := m.settle(adminTimeout, without(x.ID)); err != nil {
		return err
	}
	f := m.raft.RemoveServer(serverID(x.ID), 0, adminTimeout)
	if err := m.raft.answer(f); err != nil {
		return leaderError(err)
	}
	m.cfg.Log.Info("member removed", "id", x.ID)
	m.wg.Go(func() { m.sendToRemoved(x, f.Index()) })
	return nil
}

func checkMember(x proto.Peer) error {
	if x.ID == 0 || x.ID > 254 {
		return refuse(proto.BadArguments, "server id %d is not in 1 to 254", x.ID)
	}
	if host, port, err := net.SplitHostPort(x.Addr); err != nil || host == "" || port == "" {
		return refuse(proto.BadArguments, "%q is not of the form HOST:PORT", x.Addr)
	}
	return nil
}

// addMember adds x as a member or changes its address or vote; is describes it so far
// and is nil if it is new. A new voter is an observer until it has caught up, so that
// commits need not wait for it.
func (m *membership) addMember(is *proto.Peer, x proto.Peer, need requirements) error {
	id, addr, patience := serverID(x.ID), raft.ServerAddress(x.Addr), need.patience
	if is != nil && is.Addr != x.Addr {
		if err := m.stillLeads(); err != nil {
			return err
		}
		change := m.raft.AddNonvoter
		if !is.Observer {
			change = m.raft.AddVoter
		}
		if err := m.raft.answer(change(id, addr, 0, adminTimeout)); err != nil {
			return leaderError(err)
		}
		m.cfg.Log.Info("member moved", "id", x.ID, "from", is.Addr, "to", x.Addr)
	}
	if is != nil && !is.Observer {
		if !x.Observer {
			return nil
		}
		if err := m.settle(patience, without(x.ID)); err != nil {
			return err
		}
		if need.run != 0 {
			if err := m.mayAsk([]proto.Peer{*is}, x, need.run); err != nil { // that may have taken long
				return err
			}
		}
		return leaderError(m.raft.answer(m.raft.DemoteVoter(id, 0, adminTimeout)))
	}
	ctx, cancel := context.WithTimeout(m.peers.ctx, patience)
	defer cancel()
	switch s, err := m.statusOf(ctx, x); {
	case err == nil && m.foreign(s) != nil:
		return m.foreign(s)
	case err == nil:
	case x.Observer && unreachable(err): // nothing depends on an observer, so it may be started later
		m.cfg.Log.Warn("adding an observer that cannot be reached", "id", x.ID, "error", err)
	default:
		return cannotBeAdded(x.ID, err)
	}
	if is == nil {
		if err := m.settle(patience, func(all []proto.Peer) []proto.Peer { return all }); err != nil {
			return err
		}
		if err := m.add(m.raft.AddNonvoter, x); err != nil {
			return err
		}
	}
	if x.Observer {
		return nil
	}
	var goal uint64
	m.replica.View(func(v *fsm.View) { goal = v.Index() })
	for wait := askSoon; ; wait = min(2*wait, askAgain) {
		s, err := m.statusOf(ctx, x)
		if err == nil && s.Index >= goal {
			return m.giveVote(x, patience)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return lags{refuse(proto.NewConfigNoQuorum, "server %d is an observer for now, since it did not catch up within %v: add it again", x.ID, patience)}
		}
	}
}

func cannotBeAdded(id uint64, err error) error {
	return refuse(proto.NewConfigNoQuorum, "server %d cannot be added: %v", id, err)
}

// foreign returns an error if the server with this status belongs to another cluster.
func (m *membership) foreign(s *Status) error {
	if !s.Formed || s.Cluster == m.gate.cluster() {
		return nil
	}
	return refuse(proto.BadArguments, "server %d belongs to cluster %v, not to this one, %v: empty its directory before it joins", s.ID, s.Cluster, m.gate.cluster())
}

// statusOf returns the status of a member, which may be this one, or of a server that
// is to become a member.
func (m *membership) statusOf(ctx context.Context, x proto.Peer) (*Status, error) {
	if x.ID == m.cfg.ID {
		s, err := m.status()
		return &s, err
	}
	return m.askStatus(ctx, x)
}

// askStatus asks the server at x's address for its status. It fails if that server
// has another id.
func (m *membership) askStatus(ctx context.Context, x proto.Peer) (*Status, error) {
	r, err := ask(ctx, m.peers.network, x.Addr, Request{Status: true})
	switch {
	case err != nil:
		return nil, err
	case r.Status == nil:
		return nil, fmt.Errorf("%s: %s", x.Addr, r.Error)
	case r.Status.ID != x.ID:
		return nil, fmt.Errorf("%s is the address of server %d", x.Addr, r.Status.ID)
	}
	return r.Status, nil
}

// transfer hands leadership over to the member with this id, or to any voter if id is 0.
func (m *membership) transfer(members []proto.Peer, id uint64) error {
	if id == 0 {
		if voters(members) == 1 {
			return refuse(proto.BadArguments, "there is no other voting member")
		}
		return m.handover.to(m.peers.ctx, 0)
	}
	to := find(members, id)
	switch {
	case to == nil:
		return notMember(id)
	case to.Observer:
		return refuse(proto.BadArguments, "server %d is not a voting member", id)
	case id == m.cfg.ID:
		return nil
	}
	return m.handover.to(m.peers.ctx, id)
}

// serve reads one Request from a connection and answers it.
func (m *membership) serve(c net.Conn) {
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * adminTimeout))
	line, err := bufio.NewReaderSize(c, 64<<10).ReadSlice('\n')
	if err != nil {
		return
	}
	var q Request
	var r Reply
	if err = json.Unmarshal(line, &q); err == nil {
		r, err = m.change(q)
	}
	if err != nil {
		r = Reply{Error: err.Error(), Begun: errors.As(err, new(begun))}
		var refused *refusal
		switch {
		case errors.As(err, &refused):
			r.Code = refused.code
		case errors.Is(err, ErrNotLeader):
			r.Lead, r.Leader = true, m.leader.get().addr
		}
	}
	json.NewEncoder(c).Encode(r) // an error means that the client has gone
}

// Ask sends a request to the member whose peer port is at addr and, if that member
// does not lead, on to the leader. While there is no leader it retries, for up to half
// a minute, and then returns [ErrNoLeader]. It returns [ErrNoMember] if the request is about a
// server that is not a member, and [ErrUnknownOutcome], with the reason, if a change may have
// been made. A nil network means TCP.
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
	unsure := false
	// fails returns the error of a request that has failed.
	fails := func(err error) error {
		if unsure {
			return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
		}
		return err
	}
	for to, wait := addr, askSoon; ; {
		r, err := ask(ctx, network, to, q)
		unsure = unsure || r.Begun || q.changes() && errors.As(err, new(begun))
		switch {
		case err != nil && (to == addr || !unreachable(err)):
			return r, fails(err)
		case err == nil && r.Error == "":
			return r, nil
		case err == nil && !r.Lead:
			return r, fails(&refusal{r.Code, fmt.Sprintf("%s: %s", to, r.Error)})
		}
		if r.Leader != "" && r.Leader != to && to == addr {
			to = r.Leader
			continue
		}
		to = addr // the leader is not known yet, or has just changed: two members may each name the other
		select {
		case <-time.After(wait):
			wait = min(2*wait, askAgain)
		case <-ctx.Done():
			return r, fails(fmt.Errorf("%s: %w", addr, ErrNoLeader))
		}
	}
}

// unreachable reports whether err means that the connection failed.
func unreachable(err error) bool { return errors.As(err, new(*net.OpError)) }

// changes reports whether the request asks for a change.
func (q *Request) changes() bool {
	return q.Add != nil || q.Remove != 0 || q.Transfer != nil || q.Reconfig != nil || q.Form
}

// ask sends a request to the member at addr and returns its reply. An error is a begun if the
// request may have reached that member.
func ask(ctx context.Context, network Network, addr string, q Request) (r Reply, err error) {
	dial, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	nc, err := network.Dial(dial, addr)
	var c net.Conn
	if err == nil {
		c, err = greetPeer(nc, addr, &hello{kind: kindAdmin}, nil)
	}
	if err != nil {
		if !unreachable(err) { // those errors already name the address
			err = fmt.Errorf("%s: %w", addr, err)
		}
		return r, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	c.SetDeadline(time.Now().Add(2 * adminTimeout))
	if err := json.NewEncoder(c).Encode(q); err != nil {
		return r, begun{fmt.Errorf("%s: %w", addr, err)}
	}
	if err := json.NewDecoder(bufio.NewReader(c)).Decode(&r); err != nil {
		return r, begun{fmt.Errorf("%s: %w", addr, err)}
	}
	return r, nil
}

// mixed returns an error if the log that is applied here is not of this member's cluster, which
// only a restored snapshot may show.
func (m *membership) mixed() (err error) {
	m.replica.View(func(v *fsm.View) { err = m.raft.storage.Identity().Check(ClusterID(v.Cluster())) })
	return err
}

// astray returns an error if this member has the data of another cluster than most of the
// servers that should be its members.
func (m *membership) astray(members []proto.Peer) error {
	own := m.gate.cluster()
	if own == 0 {
		return nil
	}
	others := map[ClusterID][]uint64{}
	for id, s := range m.former.survey(members) {
		if s.Formed && s.Cluster != own && !find(members, id).Observer {
			others[s.Cluster] = append(others[s.Cluster], id)
		}
	}
	for of, ids := range others {
		if len(ids) > voters(members)/2 {
			slices.Sort(ids)
			return fmt.Errorf("%s belongs to cluster %v, but servers %v to cluster %v: this server has the data directory of another or an earlier cluster, or those addresses are another cluster's now; start it with its own directory, and keep this one until that is clear", m.raft.storage.Name, own, ids, of)
		}
	}
	return nil
}

// watch finds out whether this member was removed from its cluster, and
// reports that as its fault. It asks the other members while no leader is known, and when it
// has disappeared from the list of members for so long that the leader sends it nothing. Its
// own log is no proof: it may end before the removal; a new member's log includes times
// before it was added; and a removed member still gets the log for a moment (see
// sendToRemoved).
func (m *membership) watch() {
	ctx := m.peers.ctx
	every := 250 * time.Millisecond
	var was bool       // the list that is applied here has had this member
	var gone time.Time // since when it has not; zero while it has
	for {
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return
		}
		if err := m.mixed(); err != nil {
			m.fail(fmt.Errorf("%s: %w", m.raft.storage.Name, err))
			return
		}
		if is, _ := m.known(m.cfg.ID); is {
			was, gone = true, time.Time{}
		} else if was && gone.IsZero() {
			gone = time.Now()
		}
		left := !gone.IsZero() && time.Since(gone) >= farewell // the leader sends nothing any more
		if m.leader.get().id != 0 && !left {
			every = 250 * time.Millisecond
			continue
		}
		members, err := m.raft.members()
		if err != nil || len(members) == 0 { // not added yet
			continue
		}
		every = min(2*every, 5*time.Second)
		if err := m.astray(members); err != nil && !m.raft.behind() { // otherwise that list is one of the past
			m.fail(err)
			return
		}
		for _, x := range members {
			if x.ID == m.cfg.ID {
				continue
			}
			// Only the leader knows for certain.
			knows := Request{Knows: m.cfg.ID, Cluster: m.gate.cluster()}
			r, err := ask(ctx, m.peers.network, x.Addr, knows)
			if err == nil && r.Lead && r.Leader != "" {
				r, err = ask(ctx, m.peers.network, r.Leader, knows)
			}
			if err != nil || r.Error != "" {
				continue
			}
			if !r.Known {
				m.cfg.Log.Info("removed from the cluster", "id", m.cfg.ID, "by", x.Addr)
				m.fail(fmt.Errorf("server %d was %w; to have it back, empty %s and join again", m.cfg.ID, ErrRemoved, m.raft.storage.Name))
				return
			}
			break
		}
	}
}
