// Package testhooks is what tests may do to a server and an embedder may not:
// keep its state in a memory that outlives it, replace its network and its
// clock, observe what it applies, look into its state, end connections, and
// crash it. Users get what they need of it from lockkeepertest;
// besides that only the simulation and this repository's tests import it
// (house_test.go).
//
// A lockkeeper.Config and a lockkeeper.Server embed [InConfig] and [InServer], so
// that only whoever can import this package can ask them:
//
//	testhooks.In(&config).Memory = storage.NewMemory() // config is a lockkeeper.Config
//	testhooks.Of(server).Kill()                        // server is a *lockkeeper.Server
package testhooks

import (
	"net"
	"time"

	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// Hooks replace parts of a server. The zero value replaces nothing.
type Hooks struct {
	// Memory is where a server without a DataDir keeps its state. A server opened
	// on the Memory of one that was closed finds all that one had. Only one server
	// may use it at a time. Nil is a new one.
	Memory *storage.Memory
	// Network replaces TCP between members.
	Network peer.Network
	// TimeOfDay is the server's clock: what the log's entries are stamped with while
	// it leads, which clients see as the ctime and mtime of znodes, and by which the
	// leader deletes TTL znodes. Timers and sessions do not follow it, so it may
	// jump. Nil is time.Now.
	TimeOfDay func() time.Time
	// Tap replaces each connection of a client that does not use TLS, at once when it
	// is accepted. It must not block.
	Tap func(net.Conn) net.Conn
	// Observer is called with everything that the server applies, as it is applied.
	// It must not block.
	Observer fsm.Observer
	cluster.Probes
	// Locked is for [fsm.Replica.Trace].
	Locked func(locked bool)
}

// Server is what tests do to a running server.
type Server interface {
	// View calls f with the server's state. Nothing is applied until f returns.
	View(f func(*fsm.View))
	// Browse is [fsm.Replica.Browse].
	Browse(f func(v *fsm.View, step func()))
	// Kill is Close as the end of the process would be: leadership is not handed
	// over, and nothing more is written.
	Kill() error
	// Watches calls f for every pair of a session and a path that it watches on this
	// server, in no particular order. Changes are applied meanwhile, as in Browse.
	Watches(f func(session int64, path string))
	// Connected reports whether a session has a connection to this server. It may be
	// called from View.
	Connected(session int64) bool
	// Propose proposes a command, and sends nil when it has been applied here, or an
	// error if its outcome is unknown.
	Propose(c *fsm.Command) <-chan error
	// Disconnect closes the connection of a session, which lives on until its
	// timeout, and reports whether there was one.
	Disconnect(id int64) bool
	// Advance lets d count as passed for the timeouts of sessions, if the server leads.
	// connected, which must not block, tells which sessions have a connection to a member; if
	// touched is true, those count as touched now. It returns the sessions that are late, which
	// the server is about to expire.
	Advance(d time.Duration, connected func(session int64) bool, touched bool) (late []int64)
}

// InConfig has the hooks of a lockkeeper.Config.
type InConfig struct{ hooks Hooks }

func (c *InConfig) in() *Hooks { return &c.hooks }

// In returns the hooks in a *lockkeeper.Config, to be set before Open. A copy of
// the Config has its own.
func In(config interface{ in() *Hooks }) *Hooks { return config.in() }

// InServer leads to what tests do to a lockkeeper.Server.
type InServer struct{ server Server }

// New returns what Of finds.
func New(s Server) InServer { return InServer{s} }

func (s *InServer) of() Server { return s.server }

// Of returns what tests do to a *lockkeeper.Server.
func Of(server interface{ of() Server }) Server { return server.of() }
