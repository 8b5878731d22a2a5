package membership

import (
	"cmp"
	"slices"

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Server says which server this is, and which cluster it is to be in.
type Server struct {
	ID uint64 // of this server, 1 to 254

	// Peers are the members of a new cluster, in any order, with what /zookeeper/config is to
	// show of them. A server without Peers, Addr and Join is standalone.
	Peers []proto.Peer
	// Addr is the address at which the other members reach this server's peer
	// port; by default it is the one in Peers. A server with an Addr, but without
	// Peers and Join, waits until an operator adds it to a cluster.
	Addr string
	// Join is the address of the peer port of any member of a running cluster;
	// this server asks to be added to that cluster. There is none together with Peers.
	Join string
	// Observer is whether a server that is not in Peers is started as an observer.
	Observer bool
	// ClientAddr and ElectionPort are what /zookeeper/config is to show of a server that is not in Peers.
	ClientAddr   string
	ElectionPort int
}

// Answers are what the server that the member is part of tells other servers about itself, and is told of their requests. A nil
// function does nothing. None is called before Start.
type Answers struct {
	// Changed is told of each request for a change of the members that was answered at the peer port, before
	// the answer is sent.
	Changed func(request.Asked)
	// About returns what the member's status says about the server.
	About func() request.About
	// Clients returns clients that are connected to the server, those first that find asks for.
	Clients func(find []string) report.ClientList
}

// First returns the members of a new cluster, sorted by id, as its first entry names them. There are none if
// this server is to be added to a cluster.
func (s *Server) First() (first []proto.Peer) {
	if !s.Clustered() {
		return []proto.Peer{{ID: s.ID, Addr: engine.LoneAddress(s.ID)}}
	}
	for _, x := range slices.SortedFunc(slices.Values(s.Peers), func(a, b proto.Peer) int { return cmp.Compare(a.ID, b.ID) }) {
		first = append(first, proto.Peer{ID: x.ID, Addr: x.Addr, Observer: x.Observer})
	}
	return first
}

// Clustered reports whether the member has a peer port, that is, is not standalone.
func (s *Server) Clustered() bool { return len(s.Peers) > 0 || s.Join != "" || s.Addr != "" }

// self is what the configuration says of this server.
func (s *Server) self() proto.Peer {
	self := proto.Peer{ID: s.ID, Observer: s.Observer, ClientAddr: s.ClientAddr, ElectionPort: s.ElectionPort}
	if x := election.Find(s.Peers, s.ID); x != nil {
		self = *x
	}
	self.Addr = cmp.Or(s.Addr, self.Addr)
	return self
}

// Votes reports whether this member is configured as a voter.
func (s *Server) Votes() bool { return !s.self().Observer }

// Address is where the other members reach this server's peer port.
func (s *Server) Address() string { return s.self().Addr }

// Described returns the members of which the configuration says how clients are to see them.
func (s *Server) Described() []proto.Peer {
	all := append(election.Without(s.Peers, s.ID), s.self())
	return slices.DeleteFunc(all, func(x proto.Peer) bool { return x.ClientAddr == "" && x.ElectionPort == 0 })
}
