// Package procgroup runs a command that must not outlive a lock. The command is trusted for
// a limited time, which can be extended. It and the processes that it starts are ended
// together, at the latest when that time is over, even if the process that started the
// command is stopped or killed.
//
// On Unix the command leads a process group of its own. Beside it runs a guard, which is
// this program again with other arguments. The guard kills the group when the trust is over,
// or when the process that started the guard ends, which closes the pipe between them. The
// command's process is at first this program, too. It executes the command only after the
// guard has been given the group, so that there is no moment without a guard. On Linux the
// kernel also kills the command itself (not what it has started) when the process that
// started it ends, in case the guard was killed, too. A process that leaves the group, as
// with setsid, is out of reach.
//
// On Windows the command is in a job object. When the process that started it ends, the
// system ends the job with all of its processes. Nothing ends it while that process is
// suspended.
package procgroup

import (
	"os/exec"
	"time"
)

// Group is a command that was started. Its methods may be called from any goroutine.
type Group struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the command has ended
	code int           // its exit code, set before done is closed

	platform
}

// Done is closed when the command itself has ended. Processes that it has started may go on.
func (g *Group) Done() <-chan struct{} { return g.done }

// ExitCode returns the exit code of a command that has ended: 128 and the number of the
// signal if a signal ended it.
func (g *Group) ExitCode() int {
	<-g.done
	return g.code
}

// Trust sets how long the group may run from now on, unless Trust is called again. If this
// process is stopped during the call or right after it, the group is still ended in time.
func (g *Group) Trust(d time.Duration) { g.trust(d) }

// Release ends the guard without ending the group, so that processes that the command has
// left behind may go on; on Windows they end with this process. It is called when the command
// has ended.
func (g *Group) Release() { g.release() }
