package lockkeeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/fsm"
)

// Role is a server's part in its cluster.
type Role string

const (
	RoleStandalone Role = "standalone" // it belongs to no cluster
	RoleLeader     Role = "leader"
	RoleFollower   Role = "follower" // a voting member that does not lead
	RoleObserver   Role = "observer" // a member without a vote
	RoleLooking    Role = "looking"  // a member that knows no leader
)

func (r Role) String() string { return string(r) }

// Role is this server's part in its cluster.
func (s *Server) Role() Role { return Role(s.member.Role()) }

// Peer is a member of a cluster.
type Peer struct {
	ID       uint64
	Addr     string // of its peer port, HOST:PORT
	Observer bool   // it has no vote
}

// Status is what a server knows of itself and its cluster at one moment.
type Status struct {
	ID       uint64 // of this server
	Role     Role
	Serving  bool // clients are served; a member without a majority serves none
	ReadOnly bool // only those that are content with reads are (Config.ReadOnly)
	Uptime   time.Duration

	Leader  uint64 // the id of the server that leads, 0 while none is known to
	Members []Peer // Members()
	// Of a leader: for how long it has led, and how many voting members and
	// observers it is in contact with.
	Leads                time.Duration
	Followers, Observers int

	// The state that is applied here. Digest is a checksum of it, the same on all
	// members that have applied the log up to the same Index.
	Term, Index uint64
	Zxid        int64
	Digest      uint64
	Znodes      int // ZooKeeper's words count the root twice
	Ephemerals  int
	DataBytes   int64 // of all paths and data
	Sessions    int   // of the whole cluster

	// The clients of this server. Requests, Replies and the latencies count from
	// the server's start, or the last time that a client sent the word srst.
	Connections       int
	Watches           int
	Outstanding       int64 // requests that are not answered yet
	Requests, Replies int64 // replies include watch events
	// How long requests took from when they were read to when they were answered.
	MinLatency, AvgLatency, MaxLatency time.Duration
	Expired                            int64 // sessions that this server ended since its start
}

// Status returns what the server knows of itself and its cluster. It asks no
// other server, and works at any time, also after Close.
func (s *Server) Status() Status {
	m, _ := s.member.Status() // whose error can only be about members
	st := Status{ID: m.ID, Role: Role(m.Role), Leader: m.Leader, Term: m.Term, Members: s.peers(m.Members), Expired: s.member.Expired()}
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

// Members returns the members of this server's cluster by id, as far as it
// knows: one that lags may not know the latest change. A standalone server has none.
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

// Transfer has another voting member lead: the one of that id, or any if id is 0.
//
// Transfer, AddMember and RemoveMember work on any member of the cluster, which asks
// the leader. While nobody leads they wait, half a minute at most. When ctx ends first,
// the change may still be made.
func (s *Server) Transfer(ctx context.Context, id uint64) error {
	return s.change(ctx, cluster.Request{Transfer: &id})
}

// AddMember takes a running server into the cluster. That server's Config has a
// PeerAddr and neither Peers nor Join, and it waits to be added. One that gets a
// vote catches up first, which takes 10 s at most. AddMember also gives a vote to
// an observer and takes it from a voter, and moves a member that was started again
// at another address.
func (s *Server) AddMember(ctx context.Context, p Peer) error {
	return s.change(ctx, cluster.Request{Add: &cluster.MemberInfo{ID: p.ID, Addr: p.Addr, Voter: !p.Observer}})
}

// RemoveMember removes a member from the cluster for good. If it runs, its Err
// gets [ErrRemoved]. The last voting member stays.
func (s *Server) RemoveMember(ctx context.Context, id uint64) error {
	if id == 0 {
		return errors.New("lockkeeper: no server has the id 0")
	}
	return s.change(ctx, cluster.Request{Remove: id})
}

// change asks the leader for a change of the members.
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
