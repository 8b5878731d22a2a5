package lockkeeper

import (
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
)

// What only this module can ask for, by functions of internal packages.
type (
	configHooks = testhooks.InConfig
	reported    = report.InServer
	serverHooks = testhooks.InServer

	inside struct {
		reported
		serverHooks
	}
)

// hooked implements testhooks.Server.
type hooked struct{ s *Server }

func (h hooked) View(f func(*fsm.View)) { h.s.replica.View(f) }

func (h hooked) Kill() error { return h.s.close((*cluster.Member).Kill) }

func (h hooked) Propose(c *fsm.Command) <-chan error {
	done := make(proposed, 1)
	go h.s.member.Propose(c, done, nil) // it may block
	return done
}

// proposed is the fsm.Waiter of a command.
type proposed chan error

func (p proposed) Done(*fsm.View, *fsm.Result) { p <- nil }
func (p proposed) Lost()                       { p <- errors.New("lockkeeper: the outcome of a command is unknown") }

func (h hooked) Browse(f func(v *fsm.View, step func())) { h.s.replica.Browse(f) }

func (h hooked) Watches(f func(session int64, path string)) {
	h.s.clients.EachWatch(func(session int64, path string) bool {
		f(session, path)
		return true
	})
}

func (h hooked) Connected(session int64) bool { return h.s.clients.Connected(session) }

func (h hooked) Disconnect(id int64) bool { return h.s.clients.Disconnect(id) }

func (h hooked) Advance(d time.Duration, connected func(session int64) bool, touched bool) (late []int64) {
	return h.s.member.Advance(d.Milliseconds(), connected, touched)
}
