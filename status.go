package lockkeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/fsm"
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

// Peer is a member of a cluster.
type Peer struct {
	ID       uint64
	Addr     string // of its peer port, HOST:PORT
	Observer bool   // does not vote
}

// Status describes a server and its cluster at one moment, as that server sees them.
type Status struct {
	ID       uint64 // of this server
	Role     Role
	Serving  bool // the server serves clients; without a majority it does not
	ReadOnly bool // the server serves only clients that accept read-only mode (Config.ReadOnly)
	Uptime   time.Duration

	// Cluster is the id of the cluster, 16 hexadecimal digits. It is random, made once when the
	// cluster is formed, and never changes. It is empty until this server is in a cluster. The
	// data of a standalone server has an id, too.
	Cluster string
	Leader  uint64 // id of the leader; 0 if this server knows of none
	Members []Peer // as returned by Server.Members
	// Differs is set on the leader only: the members whose state differs from the leader's.
	// Such a member stops, with [ErrDiffers].
	Differs []Difference
	// Set on the leader only: how long it has been the leader, and how many voting
	// members and observers it is in contact with.
	Leads                time.Duration
	Followers, Observers int

	// The state that this server has applied. Digest is a checksum of that state; it
	// is equal on all members that have applied the log up to the same Index.
	Term, Index uint64
	Zxid        int64
	Digest      uint64
	Znodes      int // including the root, which ZooKeeper's four-letter words count twice
	Ephemerals  int
	DataBytes   int64 // total length of all paths and data
	Sessions    int   // in the whole cluster

	// The clients of this server. Requests, Replies and the latencies cover the
	// time since the server started or a client last sent the four-letter word srst.
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

func differences(all []cluster.Difference) (list []Difference) {
	for _, d := range all {
		list = append(list, Difference(d))
	}
	return list
}

// Status returns the server's view of itself and its cluster. It sends nothing to
// other servers, and may be called at any time, also after Close.
func (s *Server) Status() Status {
	m, _ := s.member.Status() // an error concerns only the list of members
	st := Status{
		ID: m.ID, Role: Role(m.Role), Cluster: m.Cluster.String(), Leader: m.Leader, Term: m.Term,
		Members: s.peers(m.Members), Differs: differences(m.Differs), Expired: s.member.Expired(),
	}
	if q, ok := s.member.Quorum(); ok {
		st.Leads, st.Followers, st.Observers = q.Leads, q.Followers, q.Observers
	}
	s.replica.View(func(v *fsm.View) {
		t := v.Tree()
		st.Index, st.Zxid, st.Digest = v.Index(), v.Zxid(), v.Digest()
		st.Znodes, st.Ephemerals, st.DataBytes, st.Sessions = t.Len(), t.Ephemerals(), t.DataSize(), v.Sessions().Len()
		_, _, st.Watches = v.WatchCounts()
	})
	c := s.clients.Stats()
	st.Serving, st.ReadOnly, st.Uptime = c.Serving, c.ReadOnly, c.Uptime
	st.Connections, st.Outstanding, st.Requests, st.Replies = c.Connections, c.Outstanding, c.Received, c.Sent
	st.MinLatency, st.AvgLatency, st.MaxLatency = c.MinLatency, c.AvgLatency, c.MaxLatency
	return st
}

// Work is what a server has done since it was started, for operators to watch. The
// differences between two calls are of use: the mean time of a write to the log in between,
// or the commands in an entry.
type Work struct {
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

// Work returns what the server has done. It may be called at any time, also after Close.
func (s *Server) Work() Work {
	w := s.member.Work()
	return Work{Durations(w.LogWrites), Durations(w.Snapshots), Durations(s.clients.Stats().Handovers), w.Commit, w.Entries, w.Commands}
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
func (s *Server) MemberStatus(ctx context.Context, id uint64) (MemberStatus, error) {
	members := s.Members()
	i := slices.IndexFunc(members, func(p Peer) bool { return p.ID == id })
	if i < 0 {
		return MemberStatus{}, fmt.Errorf("lockkeeper: %d is not the id of a member", id)
	}
	st, err := cluster.Ask(ctx, s.network, members[i].Addr, cluster.Request{Status: true})
	switch {
	case err != nil:
		return MemberStatus{}, fmt.Errorf("lockkeeper: %w", err)
	case st == nil || st.ID != id:
		return MemberStatus{}, fmt.Errorf("lockkeeper: %s is not the address of member %d", members[i].Addr, id)
	}
	return MemberStatus{st.ID, Role(st.Role), st.Leader, st.Cluster.String(), differences(st.Differs), st.Term, st.Index, st.Zxid}, nil
}

// Members returns the members of the cluster, ordered by id, as far as this server
// knows them: a server that lags behind may not know the latest change yet. For a
// standalone server it returns nil.
func (s *Server) Members() []Peer {
	m, _ := s.member.Status()
	return s.peers(m.Members)
}

func (s *Server) peers(members []cluster.MemberInfo) (peers []Peer) {
	if s.standalone() {
		return nil
	}
	for _, m := range members {
		peers = append(peers, Peer{m.ID, m.Addr, !m.Voter})
	}
	return peers
}

// Transfer makes another voting member the leader: the one with the given id, or
// any if id is 0.
//
// Transfer, AddMember and RemoveMember may be called on any member of the cluster,
// which passes the request on to the leader. If there is no leader, they wait for
// one, for up to half a minute. If ctx ends first, the change may still happen.
func (s *Server) Transfer(ctx context.Context, id uint64) error {
	return s.change(ctx, cluster.Request{Transfer: &id})
}

// AddMember adds a running server to the cluster. That server must have been
// started with a PeerAddr but neither Peers nor Join, and so be waiting to be
// added. A server that is to vote must first catch up with the log, for which it
// has 10 s.
//
// If the server is already a member, AddMember changes it: from observer to voting
// member or back, or to a new address after it was restarted there.
func (s *Server) AddMember(ctx context.Context, p Peer) error {
	return s.change(ctx, cluster.Request{Add: &cluster.MemberInfo{ID: p.ID, Addr: p.Addr, Voter: !p.Observer}})
}

// RemoveMember removes a member from the cluster for good. If that server is
// running, its [Server.Err] receives [ErrRemoved]. The last voting member cannot be
// removed.
func (s *Server) RemoveMember(ctx context.Context, id uint64) error {
	if id == 0 {
		return errors.New("lockkeeper: 0 is not the id of a server")
	}
	return s.change(ctx, cluster.Request{Remove: id})
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
// cluster is formed as soon as all its voting members are running.
func (s *Server) FormCluster(ctx context.Context) error {
	return s.change(ctx, cluster.Request{Form: true})
}

// ErrNoSession is the error, in the sense of errors.Is, if a session does not exist or has ended.
var ErrNoSession = cluster.ErrNoSession

// EndSession ends a session of the cluster as if its client had been silent for the session
// timeout, and returns when its ephemeral znodes are deleted on this server. Its connection
// is closed, and the client learns that the session has expired when it reconnects.
// EndSession blocks while this server knows no leader. Its error is [ErrNoSession], as
// errors.Is tells, if there is no such session. After any other error, among them that of ctx, the session may have ended
// or not, or may end later.
func (s *Server) EndSession(ctx context.Context, id int64) error {
	err := s.member.Expire(ctx, id)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrNoSession):
		return fmt.Errorf("%w: %s", err, session.FormatID(id))
	}
	select {
	case <-s.stop:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	default:
		return fmt.Errorf("lockkeeper: session %s may have ended or not", session.FormatID(id))
	}
}

// change asks the leader to carry out q.
func (s *Server) change(ctx context.Context, q cluster.Request) error {
	if s.standalone() {
		return errors.New("lockkeeper: a standalone server has no members to change")
	}
	_, err := cluster.Ask(ctx, s.network, s.peerAddr, q)
	if err == nil {
		return nil
	}
	select {
	case <-s.stop:
		return ErrClosed
	default:
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return fmt.Errorf("lockkeeper: %w", err)
}
