// Package procgroup runs a command that must not outlive a lock: the command and the
// processes that it starts are ended together, at the latest when the time for which they
// are trusted is over, also if the process that started them is stopped or killed.
//
// On Unix the command leads a process group of its own. Beside it runs a guard, which is
// this program again with other arguments. It kills the group when the trust is over, or
// when its pipe to the process that started it is closed because that process has ended.
// The command's process is at first this program, too. It executes the command only when the
// guard has been told of the group, so that there is no moment without a guard.
// On Linux the kernel also kills the command itself (not what it has started) when that
// process ends, in case the guard was killed, too. A process that leaves the group, as with
// setsid, is out of reach.
//
// On Windows the command is in a job object, which the system ends, with all of its
// processes, when the process that started it ends. Nothing ends it while that process is
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

// Trust says for how long the group may run from now on if nothing else is said. It is safe
// to be stopped right after the call, or within.
func (g *Group) Trust(d time.Duration) { g.trust(d) }

// Release ends the guard without ending the group, so that what the command has left behind
// may go on; on Windows that ends with this process. It is called when the command has ended.
func (g *Group) Release() { g.release() }
