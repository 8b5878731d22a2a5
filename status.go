package lockkeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// Role is the role of a server in its cluster.
type Role string

const (
	RoleStandalone Role = "standalone" // not a member of a cluster
	RoleLeader     Role = "leader"
	RoleFollower   Role = "follower" // voting member that is not the leader
	RoleObserver   Role = "observer" // member that does not vote
	RoleLooking    Role = "looking"  // member that knows no leader
)

func (r Role) String() string { return string(r) }

// Role returns the server's current role.
func (s *Server) Role() Role { return Role(s.member.Role()) }

// Status describes a server and its cluster at one moment, as that server sees them.
type Status struct {
	ID       uint64 // of this server
	Role     Role
	Serving  bool // the server serves clients; without a majority it does not
	ReadOnly bool // the server serves only clients that accept read-only mode (Features.ReadOnly)
	Uptime   time.Duration

	Cluster ClusterStatus
	State   AppliedState
	Clients ClientStatus
}

// ClusterStatus describes the cluster of a server. For a standalone server, only ID and Leader are
// set.
type ClusterStatus struct {
	// ID is the id of the cluster, 16 hexadecimal digits. It is random, made once when the
	// cluster is formed, and never changes. It is empty until this server is in a cluster. The
	// data of a standalone server has an id, too.
	ID      string
	Leader  uint64 // id of the leader; 0 if this server knows of none
	Members []Peer // as returned by Server.Members

	// Only the leader knows what follows: the members whose state differs from its own (the one that
	// is wrong stops, with [ErrDiffers]; while nobody can tell which it is, no member serves); how
	// long it has been the leader; and how many voting members and observers it is in contact with.
	Differs              []Difference
	Leads                time.Duration
	Followers, Observers int
}

// AppliedState describes the state that a server has applied.
type AppliedState struct {
	Term, Index uint64 // Raft's current term, and the index of the last log entry applied
	Zxid        int64
	// Digest is a checksum of the state. It is equal on all members that have applied the log
	// up to the same Index.
	Digest     uint64
	Znodes     int // including the root, which ZooKeeper's four-letter words count twice
	Ephemerals int
	DataBytes  int64 // total length of all paths and data
	Sessions   int   // in the whole cluster
}

// ClientStatus describes the clients of one server. Requests, Replies and the latencies cover the
// time since the server started or a client last sent the four-letter word srst.
type ClientStatus struct {
	Connections       int
	Watches           int
	Outstanding       int64 // requests that have not been answered yet
	Requests, Replies int64 // Replies includes watch events
	// Time between reading a request and answering it.
	MinLatency, AvgLatency, MaxLatency time.Duration
	Expired                            int64 // sessions that this server has expired since it started
}

// Difference says that the state of a member differs from the leader's at the same entry of
// the log.
type Difference struct {
	ID    uint64 // of the member
	Index uint64 // of the first entry at which that was seen
}

func differences(all []election.Difference) (list []Difference) {
	for _, d := range all {
		list = append(list, Difference(d))
	}
	return list
}

// Status returns the server's view of itself and its cluster. It sends nothing to
// other servers.
func (s *Server) Status() Status {
	m := s.member.Standing()
	st := Status{
		ID: m.ID, Role: Role(m.Role),
		Cluster: ClusterStatus{ID: m.Cluster.String(), Leader: m.Leader, Members: s.peers(m.Members), Differs: differences(m.Differs)},
		State:   AppliedState{Term: m.Term},
		Clients: ClientStatus{Expired: s.member.Expired()},
	}
	var digest func() uint64
	s.replica.View(func(v *fsm.View) {
		t := v.Tree()
		st.State.Index, st.State.Zxid, digest = v.Index(), v.Zxid(), v.DigestLater()
		st.State.Znodes, st.State.Ephemerals, st.State.DataBytes, st.State.Sessions = t.Len(), t.Ephemerals(), t.DataSize(), v.Sessions().Len()
	})
	st.State.Digest = digest()
	c := s.clients.Summary()
	st.Serving, st.ReadOnly, st.Uptime = c.Serving, c.ReadOnly, c.Uptime
	st.Clients.Connections, st.Clients.Watches, st.Clients.Outstanding, st.Clients.Requests, st.Clients.Replies = c.Connections, c.Watches, c.Outstanding, c.Received, c.Sent
	st.Clients.MinLatency, st.Clients.AvgLatency, st.Clients.MaxLatency = c.MinLatency, c.AvgLatency, c.MaxLatency
	if q := c.Quorum; q != nil {
		st.Cluster.Leads, st.Cluster.Followers, st.Cluster.Observers = q.Leads, q.Followers, q.Observers
	}
	return st
}

// Stats is what a server has done since it was started, for operators to watch. The
// differences between two calls are of use: the mean time of a write to the log in between,
// or the commands in an entry.
type Stats struct {
	LogWrites Durations // writes of entries to the log, until they were durable
	Snapshots Durations // snapshots written, of its own or received from the leader
	// Handovers of locks to clients of this server: from the event that the znode before the
	// client's in the queue is gone, until the client has read the queue again. The time that
	// the client and the network take is included. With many events at once, as when an
	// expired session held several locks that a client waits for, it is counted once.
	Handovers Durations
	Commit    uint64 // index of the last log entry that it knows to be committed
	// Entries is how many log entries it has proposed for its own clients, and Commands how
	// many commands were in them.
	Entries, Commands int64
}

// Durations is how long something has taken, each time that it happened.
type Durations struct {
	Count   int64
	Sum     time.Duration
	Buckets map[time.Duration]int64 // how many took at most that long
}

// Stats returns what the server has done.
func (s *Server) Stats() Stats {
	w := s.member.Work()
	return Stats{Durations(w.LogWrites), Durations(w.Snapshots), Durations(s.clients.Handovers()), w.Commit, w.Entries, w.Commands}
}

// MemberStatus is what a member of a cluster says of itself.
type MemberStatus struct {
	ID     uint64
	Role   Role
	Leader uint64 // id of the leader; 0 if that member knows of none
	// The id of its cluster, and on the leader the members that differ, as in [Status]. If
	// Cluster is empty, it is in no cluster yet; if it is another one than this server's, the
	// other server has the wrong data directory, or the list of members a wrong address.
	Cluster string
	Differs []Difference

	// The state that the member has applied, as in [Status].
	Term, Index uint64
	Zxid        int64
}

// MemberStatus asks the member with the given id, at its peer port, for its status. It also
// answers if it serves no clients because it has no contact with a majority. If ctx has no
// deadline, MemberStatus waits for some seconds.
//
// Its error is [ErrStandalone], [ErrNoMember] if this server knows of no member with that id, or
// that of ctx if that ends first.
func (s *Server) MemberStatus(ctx context.Context, id uint64) (MemberStatus, error) {
	if s.standalone() {
		return MemberStatus{}, ErrStandalone
	}
	addr, err := s.peerPort(id)
	if err != nil {
		return MemberStatus{}, err
	}
	st, _, err := request.AskStatus(ctx, s.network, addr, nil)
	switch {
	case err != nil:
		return MemberStatus{}, own(cmp.Or(ctx.Err(), err))
	case st.ID != id:
		return MemberStatus{}, fmt.Errorf("lockkeeper: %s is not the address of member %d", addr, id)
	}
	return MemberStatus{st.ID, Role(st.Role), st.Leader, st.Cluster.String(), differences(st.Differs), st.Term, st.Index, st.Zxid}, nil
}

func (s *Server) peerPort(id uint64) (string, error) {
	for _, m := range s.member.Members() {
		if m.ID == id {
			return m.Addr, nil
		}
	}
	return "", fmt.Errorf("%w: %d", ErrNoMember, id)
}

// Members returns the members of the cluster, ordered by id, as far as this server
// knows them: a server that lags behind may not know the latest change yet. ClientAddr and
// ElectionPort are set if a configuration, AddMember or a client's reconfig has named them.
// For a standalone server Members returns nil.
func (s *Server) Members() []Peer {
	return s.peers(s.member.Members())
}

// peers returns members with what the state says of them.
func (s *Server) peers(members []proto.Peer) (peers []Peer) {
	if s.standalone() {
		return nil
	}
	s.replica.View(func(v *fsm.View) {
		for _, m := range members {
			if x, ok := v.Member(m.ID); ok && x.Addr == m.Addr {
				if m.ClientAddr = x.ClientAddr; x.ElectionPort != fsm.ElectionPort(x.Addr) {
					m.ElectionPort = x.ElectionPort
				}
			}
			peers = append(peers, Peer(m))
		}
	})
	return peers
}

// Transfer makes another voting member the leader: the one with the given id, or
// any if id is 0.
//
// Transfer, AddMember and RemoveMember may be called on any member of the cluster,
// which passes the request on to the leader. If there is no leader, they wait for
// one, for up to half a minute. Their error is
//   - [ErrStandalone] if this server is no member of a cluster,
//   - [ErrNoMember] if Transfer or RemoveMember names a server that is not a member,
//   - [ErrNoLeader] if there was no leader in time,
//   - [ErrUnknownOutcome] if the change may have been made, or may still be made,
//   - also that of ctx if that has ended first, and what [Server.Err] returns if this server
//     has stopped serving for good.
//
// Other errors say why the leader has refused the change.
func (s *Server) Transfer(ctx context.Context, id uint64) error {
	return s.change(ctx, request.Request{Transfer: &id})
}

// AddMember adds a running server to the cluster. That server must have been
// started with a PeerAddr but neither Peers nor Join, and so be waiting to be
// added. A server that is to vote must first catch up with the log, for which it
// has 10 s. If that is too short, it stays an observer, and the error says so.
//
// If the server is already a member, AddMember changes it: from observer to voting
// member or back, or to a new address after it was restarted there. If p has a ClientAddr or an
// ElectionPort, /zookeeper/config shows them from then on.
//
// [Server.Transfer] says which errors it returns. [ErrUnknownOutcome] may also mean that the
// server was added, and that only its ClientAddr and ElectionPort may not be shown.
func (s *Server) AddMember(ctx context.Context, p Peer) error {
	switch {
	case !clientForm(p.ClientAddr):
		return fmt.Errorf("lockkeeper: %q is not [HOST]:PORT for clients", p.ClientAddr)
	case !electionPort(p.ElectionPort):
		return fmt.Errorf("lockkeeper: %d is not a port", p.ElectionPort)
	}
	m := p.member()
	if err := s.change(ctx, request.Request{Add: &m}); err != nil {
		return err
	}
	if err := s.member.DescribeMember(ctx, m); err != nil {
		return s.unknown(ctx, fmt.Errorf("server %d was added, but may not be shown with its address for clients", p.ID))
	}
	return nil
}

// RemoveMember removes a member from the cluster for good. If that server is
// running, its [Server.Done] is closed, and its [Server.Err] returns [ErrRemoved].
// The last voting member cannot be removed. [Server.Transfer] says which errors it returns.
func (s *Server) RemoveMember(ctx context.Context, id uint64) error {
	if id == 0 && !s.standalone() {
		return fmt.Errorf("%w: 0 is not the id of a server", ErrNoMember)
	}
	return s.change(ctx, request.Request{Remove: id})
}

// FormCluster lets this server form the cluster that Config.Peers lists with those of its
// members that are running, although not all of them are. They must be a majority of the
// voting members. The absent ones join later, as a member that has lost its disk does; one
// whose directory has data without the id of this cluster stops until that is emptied.
//
// Use it only if you know that the cluster has never been formed: an absent server that
// belongs to it already would be left alone with all that the cluster has acknowledged, which
// the new cluster does not have. If the directories were restored from a snapshot, or are from
// before clusters had ids, use it only if the disks of the absent servers are lost.
//
// It is carried out by this server itself, and fails if it is in a cluster already, was
// started without Config.Peers, or knows a member that is in a cluster. Without FormCluster a
// cluster is formed as soon as all its voting members are running. Its error is
// [ErrStandalone], [ErrUnknownOutcome] if the cluster may have been formed, and that of ctx if that
// has ended first.
func (s *Server) FormCluster(ctx context.Context) error {
	return s.change(ctx, request.Request{Form: true})
}

// EndSession ends a session of the cluster as if its client had been silent for the session
// timeout, and returns when its ephemeral znodes are deleted on this server. Its connection
// is closed, and the client learns that the session has expired when it reconnects.
// EndSession blocks while this server knows no leader.
//
// Its error is [ErrNoSession] if there is no such session, and
// otherwise [ErrUnknownOutcome]: the session may have ended or not, or may end later. It is then
// also that of ctx if that has ended first, and what [Server.Err] returns if this server has stopped
// serving for good.
func (s *Server) EndSession(ctx context.Context, id int64) error {
	switch err := s.member.Expire(ctx, id); {
	case err == nil:
		return nil
	case errors.Is(err, cluster.ErrNoSession):
		return fmt.Errorf("%w: %s", ErrNoSession, session.FormatID(id))
	}
	return s.unknown(ctx, fmt.Errorf("session %s may have ended or not", session.FormatID(id)))
}

// unknown returns ErrUnknownOutcome with the reason, if that is ctx or the end of this server, and
// otherwise with what is said of it.
func (s *Server) unknown(ctx context.Context, said error) error {
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, cmp.Or(s.Err(), ctx.Err(), said))
}

// change asks the leader to carry out q.
func (s *Server) change(ctx context.Context, q request.Request) error {
	if s.standalone() {
		return ErrStandalone
	}
	if err := s.Err(); err != nil {
		return err
	}
	_, err := s.member.Ask(ctx, q)
	s.traceChange(request.Asked{Request: q, Err: err})
	if err == nil {
		return nil
	}
	switch {
	case errors.Is(err, request.ErrUnknownOutcome):
		if s.Err() != nil || ctx.Err() != nil {
			return s.unknown(ctx, nil)
		}
	case s.Err() != nil:
		return s.Err()
	case ctx.Err() != nil && errors.Is(err, request.ErrNoLeader):
		return s.notReady(fmt.Errorf("%w: %w", ErrNoLeader, ctx.Err()))
	case ctx.Err() != nil:
		return s.notReady(own(ctx.Err()))
	}
	return own(err)
}
