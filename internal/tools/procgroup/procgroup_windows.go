package procgroup

import (
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Forwarded are the signals that a program passes on to its group, as a control event.
var Forwarded = []os.Signal{os.Interrupt, syscall.SIGTERM}

// platform is what a Group has on Windows.
type platform struct {
	job windows.Handle
}

// Start starts a command in a job of its own. There is no watchdog: the system ends the job when
// this process ends.
func Start(cmd *exec.Cmd, _, _ []string, _ time.Duration) (*Group, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return nil, err
	}
	limits := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{
		BasicLimitInformation: windows.JOBOBJECT_BASIC_LIMIT_INFORMATION{LimitFlags: windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE},
	}
	g := &Group{cmd: cmd, done: make(chan struct{}), platform: platform{job}}
	if _, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits))); err == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
		err = cmd.Start()
	}
	if err != nil {
		windows.CloseHandle(job)
		return nil, err
	}
	process, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(cmd.Process.Pid))
	if err == nil {
		err = windows.AssignProcessToJobObject(job, process)
		windows.CloseHandle(process)
	}
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		windows.CloseHandle(job)
		return nil, err
	}
	go func() { // ends with the command
		cmd.Wait()
		g.code = cmd.ProcessState.ExitCode()
		close(g.done)
	}()
	return g, nil
}

func (g *Group) trust(time.Duration) {}

func now() time.Duration { return windows.DurationSinceBoot() }

// release leaves the job open until this process ends, which ends what the command has left
// behind.
func (g *Group) release() Fate { return Dismissed }

func (g *Group) unwatched() <-chan struct{} { return nil }

// Signal sends a control event to the command: Windows has no signals.
func (g *Group) Signal(os.Signal) error {
	return windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(g.cmd.Process.Pid))
}

// Terminate asks the group to end.
func (g *Group) Terminate() { g.Signal(os.Interrupt) }

// Kill ends all processes of the job.
func (g *Group) Kill() { windows.TerminateJobObject(g.job, 1) }

// Empty reports whether no process of the group is left, which is not known here.
func (g *Group) Empty() bool { return false }

// Become does nothing on Windows.
func Become([]string) error { return nil }

// LookPath finds the command that a user has named.
func LookPath(name string) (string, error) { return exec.LookPath(name) }

// Watchdog does nothing on Windows.
func Watchdog(io.Reader) Fate { return Dismissed }
