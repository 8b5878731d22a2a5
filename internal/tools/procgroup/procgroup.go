// Package procgroup runs a command that must not outlive a lock. The command is trusted for
// a limited time, which can be extended. It and the processes that it starts are ended
// together, at the latest when that time is over, even if the process that started the
// command is stopped or killed.
//
// On Unix the command leads a process group of its own. Beside it runs a watchdog, which is
// this program again with other arguments. The watchdog kills the group when the trust is over,
// or when the process that started the watchdog ends, which closes the pipe between them. The
// command's process is at first this program, too. It executes the command only after the
// watchdog has been given the group, so that there is no moment without a watchdog. If only the
// watchdog ends, [Group.Unwatched] tells the process that started it. On Linux the kernel also
// kills the command itself (not what it has started) when the process that started it ends,
// in case the watchdog was killed, too. If the machine is suspended, the watchdog kills the group
// soon after it wakes up, provided that the clock of [Now] went on. A process that leaves the
// group, as with setsid, is out of reach.
//
// If this process is in the foreground of a terminal, the command's group takes its place there, at once or, in a
// pipeline, when it needs the terminal, until the command ends. When the terminal stops the command, this
// process's group is stopped, too, so that the shell sees it.
//
// On Windows the command is in a job object. When the process that started it ends, the
// system ends the job with all of its processes. Nothing ends it while that process is
// suspended.
package procgroup

import (
	"os/exec"
	"time"
)

// Now returns the time on a clock that this process and the watchdog share. It is not that of
// package time, which differs between processes. A deadline on this clock means the same
// however late the watchdog gets to read it.
//
// Where the system has such a clock, it goes on while the machine is suspended, as
// CLOCK_BOOTTIME does on Linux. A deadline stands for the end of a session, and the session's
// server goes on while this machine is suspended. CLOCK_MONOTONIC of Linux stands still, and
// so does the clock by which timers expire; so the watchdog looks at the clock every now and then.
func Now() time.Duration { return now() }

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

// Trust sets until when, on the clock of [Now], the group may run, unless Trust is called
// again before. Whenever this process is stopped, also before or during the call, the group is
// ended in time.
func (g *Group) Trust(until time.Duration) { g.trust(until) }

// Unwatched is closed when the watchdog has ended, be it because it has killed the group, or because
// somebody has ended it. In the latter case nothing ends the group any more if this process is
// stopped, and on most systems if this process is killed. It is never closed on Windows,
// where there is no watchdog.
func (g *Group) Unwatched() <-chan struct{} { return g.unwatched() }

// Release ends the watchdog without ending the group, so that processes that the command has
// left behind may go on; on Windows they end with this process. It is called when the command
// has ended. It does not wait for a watchdog that is stopped, but kills it. It returns how the watchdog
// ended.
func (g *Group) Release() Fate { return g.release() }

// Fate is how a watchdog has ended. Except for Died, it is the exit code of the watchdog's process.
type Fate int

const (
	Dismissed Fate = 0  // the watchdog was dismissed, or the group was gone
	Orphaned  Fate = 3  // it has killed the group, since the process that started both had ended
	Unheard   Fate = 4  // it has killed the group, since it was not told in time to trust it for longer
	Paused    Fate = 5  // it has killed the group, since it did not run itself when that time was over
	Died      Fate = -1 // somebody has ended it
)
