package cluster

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Config says how to run a [Member].
type Config struct {
	ID uint64 // of this server, 1 to 254

	// Peers are the members of a new cluster, in any order, with what /zookeeper/config is to
	// show of them. A server without Peers, Addr and Join is standalone.
	Peers []proto.Peer
	// Addr is the address at which the other members reach this server's peer
	// port; by default it is the one in Peers. A server with an Addr, but without
	// Peers and Join, waits until an operator adds it to a cluster.
	Addr string
	// Join is the address of the peer port of any member of a running cluster;
	// this server asks to be added to that cluster. There is none together with Peers: a server of
	// these that has no data joins the cluster that they have formed if that has it as a member, and otherwise
	// waits until an operator adds it.
	Join string
	// Observer is whether a server that is not in Peers is started as an observer.
	Observer bool
	// Shown is what /zookeeper/config is to show of a server that is not in Peers.
	Shown Shown

	Network peer.Network // how members reach each other; nil means TCP
	// ElectionTimeout is how long the leader, or a majority, may be silent
	// before a member gives it up; 0 means 2 s.
	ElectionTimeout time.Duration

	Dir      string           // where to keep the log; empty means Memory
	LogStore storage.LogStore // how; empty means as it is there, or the first of storage.LogStores
	Memory   *storage.Memory  // used if Dir is empty; nil means a new one

	Tick          time.Duration // granularity of session expiry
	ReapInterval  time.Duration // how often expired container and TTL znodes are deleted
	SnapshotBytes int64         // take a snapshot after this much log
	Settings      fsm.Settings
	Log           *slog.Logger
	// AllowSingleVoter lets a client's reconfig leave a single voter.
	AllowSingleVoter bool
	// TimeOfDay is the wall clock, used to stamp entries and to expire TTL
	// znodes; nil means time.Now. Timers and sessions do not depend on it.
	TimeOfDay func() time.Time
	Answers
	Probes
}

// Answers are what the server that the member is part of tells other servers about itself, and is told of their requests. A nil
// function does nothing. None is called before Start.
type Answers struct {
	// Changed is told of each request for a change of the members that was answered at the peer port, before
	// the answer is sent.
	Changed func(Asked)
	// About returns what the member's status says about the server.
	About func() About
	// Clients returns clients that are connected to the server, those first that find asks for.
	Clients func(find []string) report.ClientList
}

// Probes are for tests.
type Probes struct {
	// DiskFirst has this member, as the leader, write an entry to its disk before it sends it to the others, as a leader
	// does of which too much is pending.
	DiskFirst bool
	Trace     Trace // is told what the member does; nil is nobody
}

// Shown is what clients are told of a server; its zero value is nothing.
type Shown struct {
	ClientAddr   string
	ElectionPort int
}

// first returns the members of a new cluster, sorted by id, as its first entry names them. There are none if
// this server is to be added to a cluster.
func (c *Config) first() (first []proto.Peer) {
	if !c.clustered() {
		return []proto.Peer{{ID: c.ID, Addr: engine.LoneAddress(c.ID)}}
	}
	for _, x := range slices.SortedFunc(slices.Values(c.Peers), func(a, b proto.Peer) int { return cmp.Compare(a.ID, b.ID) }) {
		first = append(first, proto.Peer{ID: x.ID, Addr: x.Addr, Observer: x.Observer})
	}
	return first
}

// clustered reports whether the member has a peer port, that is, is not standalone.
func (c *Config) clustered() bool { return len(c.Peers) > 0 || c.Join != "" || c.Addr != "" }

// self is what the configuration says of this server.
func (c *Config) self() proto.Peer {
	self := proto.Peer{ID: c.ID, Observer: c.Observer, ClientAddr: c.Shown.ClientAddr, ElectionPort: c.Shown.ElectionPort}
	if x := election.Find(c.Peers, c.ID); x != nil {
		self = *x
	}
	self.Addr = cmp.Or(c.Addr, self.Addr)
	return self
}

// votes reports whether this member is configured as a voter.
func (c *Config) votes() bool { return !c.self().Observer }

func (c *Config) addr() string { return c.self().Addr }

// known returns the members of which the configuration says how clients are to see them.
func (c *Config) known() []proto.Peer {
	all := append(slices.DeleteFunc(slices.Clone(c.Peers), func(x proto.Peer) bool { return x.ID == c.ID }), c.self())
	return slices.DeleteFunc(all, func(x proto.Peer) bool { return x.ClientAddr == "" && x.ElectionPort == 0 })
}
