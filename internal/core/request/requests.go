package request

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/proto"
)

// ClusterID identifies a cluster. It is random, made once when the cluster is formed, and
// never changes. 0 stands for none. As text it has 16 hexadecimal digits.
type ClusterID = storage.ClusterID

// MaxID is the greatest id of a member.
const MaxID = 254

// Request asks a member for a change of the members, or for information about them.
// It has one of Status, Add, Remove, Transfer, Reconfig, Knows, Propose and Form; the other fields go with one of these.
type Request struct {
	Status   bool        `json:"status,omitempty"`
	Add      *proto.Peer `json:"add,omitempty"`      // a new member, or one whose address or vote changes
	Remove   uint64      `json:"remove,omitempty"`   // the member's id
	Transfer *uint64     `json:"transfer,omitempty"` // leadership to this member; 0 means any
	Reconfig *Reconfig   `json:"reconfig,omitempty"`
	Knows    uint64      `json:"knows,omitempty"`   // whether the cluster has a member with this id
	At       string      `json:"at,omitempty"`      // with Knows: the address of the server that asks
	Propose  *Proposal   `json:"propose,omitempty"` // an id for a new cluster
	Form     bool        `json:"form,omitempty"`    // a new cluster, although not all of its members are there

	// Clients, which goes with Status, asks for clients of the member, too.
	Clients *ClientQuery `json:"clients,omitempty"`

	// Rejoin restricts Add to a server that is a member already: a removed one must not add
	// itself again.
	Rejoin bool `json:"back,omitempty"`
	// Run is the run (see Status) of a server that asks for a place of its own, or whether it has one (Knows): the request
	// holds only while that run answers at the server's address. 0 means an operator's request.
	Run uint64 `json:"run,omitempty"`
	// AskedAt goes with Run: the last entry that the leader had applied before this run first asked for its place. A
	// request that was refused does not count, unless the server was a member when it sent it. If the server
	// was removed after that entry, an earlier request may have been carried out, and this one must not add
	// it again.
	AskedAt uint64 `json:"since,omitempty"`
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

// Proposal asks a member to accept an id for its cluster.
type Proposal struct {
	Cluster ClusterID    `json:"cluster"`
	From    uint64       `json:"from"` // the member that proposes it
	To      uint64       `json:"to"`   // the member that is asked
	Run     uint64       `json:"run"`  // the run of that member which is meant (Status.Run)
	Members []proto.Peer `json:"members"`
	State   FirstState   `json:"state"` // with which the members begin
}

// FirstState is the state with which a server without a cluster would begin one: that of the snapshot
// from which it was restored. The zero value is an empty state.
type FirstState struct {
	Index  uint64 `json:"index,omitempty"` // of the last entry that the snapshot covers
	Term   uint64 `json:"term,omitempty"`  // of that entry
	Digest string `json:"digest,omitempty"`
}

func (x FirstState) String() string {
	if !x.Data() {
		return "no data"
	}
	return fmt.Sprintf("a snapshot up to entry %d of term %d with digest %s", x.Index, x.Term, x.Digest)
}

// Data reports whether a snapshot was restored.
func (x FirstState) Data() bool { return x != FirstState{} }

// Changes reports whether the request asks for a change.
func (q *Request) Changes() bool {
	return q.Add != nil || q.Remove != 0 || q.Transfer != nil || q.Reconfig != nil || q.Form
}

// String says what change is asked for.
func (q Request) String() string {
	place := func(x *proto.Peer) string {
		as := ""
		if x.Observer {
			as = " as an observer"
		}
		return fmt.Sprintf("%d at %s%s", x.ID, x.Addr, as)
	}
	switch {
	case q.Add != nil && q.Run != 0:
		return "add server " + place(q.Add) + ", which asks for it itself"
	case q.Add != nil:
		return "add server " + place(q.Add)
	case q.Remove != 0:
		return fmt.Sprintf("remove server %d", q.Remove)
	case q.Transfer != nil && *q.Transfer == 0:
		return "make any other server the leader"
	case q.Transfer != nil:
		return fmt.Sprintf("make server %d the leader", *q.Transfer)
	case q.Form:
		return "form the cluster"
	case q.Reconfig == nil:
		return "nothing"
	}
	var parts []string
	for i := range q.Reconfig.Joining {
		parts = append(parts, "add server "+place(&q.Reconfig.Joining[i]))
	}
	for _, id := range q.Reconfig.Leaving {
		parts = append(parts, fmt.Sprintf("remove server %d", id))
	}
	if q.Reconfig.Whole {
		parts = append(parts, "remove all others")
	}
	return strings.Join(parts, ", ")
}

// Asked is a request for a change of the members, and what has become of it.
type Asked struct {
	Request
	From    net.Addr // of whoever has asked over the peer port; nil for the program that the member is part of
	Subject []byte   // of the verified certificate with which they did, in DER; nil for none
	Err     error    // nil if the change was made; [ErrUnknownOutcome] if it may have been, or in part
}

// Reply answers a Request.
type Reply struct {
	Status    *Status            `json:"status,omitempty"`
	Clients   *report.ClientList `json:"clients,omitempty"` // if the request has Clients
	Known     bool               `json:"known,omitempty"`   // the answer to Knows
	Votes     bool               `json:"votes,omitempty"`   // and whether that member has a vote
	Surely    bool               `json:"surely,omitempty"`  // and whether it is in a committed list, with the address At
	Error     string             `json:"error,omitempty"`
	Code      proto.Code         `json:"code,omitempty"`   // ZooKeeper's code for the error, if there is one
	Unsure    bool               `json:"begun,omitempty"`  // the change may have been made, or a part of it
	NotLeader bool               `json:"lead,omitempty"`   // the error is that this member is not the leader
	Leader    string             `json:"leader,omitempty"` // then the address of the leader's peer port, if known

	Same bool `json:"-"` // there was nothing to change
}

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
	// entry of the log.
	Differs []election.Difference `json:"differs,omitempty"`
	About
}

// About is what a member says about the server that it is part of.
type About struct {
	Version string `json:"version"` // of lockkeeper
	Serving bool   `json:"serving"` // it serves clients
	// ClientPort and SecurePort are where it listens for clients, HOST:PORT; empty if nowhere.
	ClientPort string `json:"clientPort"`
	SecurePort string `json:"secureClientPort"` // for clients that use TLS
	// PeerTLS says which connections with other members use TLS: no, accept, use or only, which are
	// the modes of the server's configuration.
	PeerTLS string `json:"peerTLS"`
}

// ClientQuery asks a member for clients that are connected to it.
type ClientQuery struct {
	// Find are texts in lower case. Clients with one of them in their session's id or address come
	// first, if there are too many for one answer.
	Find []string `json:"find,omitempty"`
}

// maxClientText is how many bytes of an address, or of an operation, a member believes of another one's clients.
const maxClientText = 100

// Bounded returns a list of clients as a member sends it: what another one could not mean is left out.
func Bounded(l *report.ClientList) *report.ClientList {
	if l == nil {
		return nil
	}
	b := &report.ClientList{}
	numbers := map[uint64]bool{}
	for _, c := range l.Some[:min(len(l.Some), report.MaxClients)] {
		if numbers[c.Number] {
			continue
		}
		numbers[c.Number] = true
		c.Addr, c.Op = c.Addr[:min(len(c.Addr), maxClientText)], c.Op[:min(len(c.Op), maxClientText)]
		c.Age, c.Timeout, c.OpAge, c.Requests = max(0, c.Age), max(0, c.Timeout), max(0, c.OpAge), max(0, c.Requests)
		b.Some = append(b.Some, c)
	}
	b.Total = min(max(l.Total, len(b.Some)), math.MaxInt32)
	return b
}

var (
	// ErrNotLeader is returned for requests that only the leader can carry out.
	ErrNotLeader = errors.New("cluster: not the leader")
	// ErrHandedOver is ErrNotLeader because the leader has made another member the leader, which is to make the change.
	ErrHandedOver = fmt.Errorf("%w any more", ErrNotLeader)
	// ErrNoLeader is returned if no member has led the cluster for as long as a request waits.
	ErrNoLeader = errors.New("no member leads")
	// ErrNoMember is the error, in the sense of errors.Is, if a request is about a server that is not a member.
	ErrNoMember = errors.New("no such member")
	// ErrUnknownOutcome is the error, in the sense of errors.Is, if a change was asked for, and it is
	// not known whether it was made, or still will be.
	ErrUnknownOutcome = errors.New("the outcome is unknown")
	// ErrRemoved is the fault of a member that was removed from its cluster.
	ErrRemoved = errors.New("removed from its cluster")

	ErrOtherChange = Refuse(proto.ReconfigInProgress, "another change of the members is under way")
)

// Refusal is the error of a change that is not possible, with ZooKeeper's code.
type Refusal struct {
	Code proto.Code
	text string
}

func (r *Refusal) Error() string { return r.text }

func (r *Refusal) Is(target error) bool { return target == ErrNoMember && r.Code == proto.NoNode }

// CodeOf returns ZooKeeper's code for the error of a change that is not possible; OK if it is another error, or ZooKeeper has none. A
// change of unknown outcome may have been refused because it had been made.
func CodeOf(err error) proto.Code {
	if refused, ok := errors.AsType[*Refusal](err); ok && !errors.Is(err, ErrUnknownOutcome) {
		return refused.Code
	}
	return proto.OK
}

func Refuse(code proto.Code, format string, args ...any) error {
	return &Refusal{code, fmt.Sprintf(format, args...)}
}

// NotMember is the answer to a request about a server that is not a member. Only a server that was removed is refused its
// place with the same code.
func NotMember(id uint64) error { return Refuse(proto.NoNode, "server %d is not a member", id) }

// Unsure is the error of a change that may have been made in part or as a whole.
type Unsure struct{ Err error }

func (u Unsure) Error() string { return u.Err.Error() }

func (u Unsure) Unwrap() error { return u.Err }
