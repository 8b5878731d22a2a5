package procgroup

import (
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reap waits for the processes that have lost their parents, if this is the process that inherits them, number 1
// of a container.
func (g *Group) reap() {
	for {
		var info unix.Siginfo
		switch err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil); err {
		case nil:
		case unix.EINTR:
			continue
		default:
			return
		}
		// After three numbers of 32 bits comes a union, whose alignment is that of a pointer, and which begins with the pid.
		const union = (12 + unsafe.Sizeof(uintptr(0)) - 1) &^ (unsafe.Sizeof(uintptr(0)) - 1)
		switch pid := int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), union))); pid {
		case g.cmd.Process.Pid:
			<-g.done
		case g.watchdog.Process.Pid:
			<-g.watchdogEnd
		default:
			unix.Wait4(pid, nil, 0, nil)
		}
	}
}

// onlyZombies reports whether all processes of a group have ended, although some have not been waited for
// yet. Whoever has to do that may never do it, such as a container's first process.
func onlyZombies(group int) bool {
	all, err := os.Open("/proc")
	if err != nil {
		return false
	}
	defer all.Close()
	names, err := all.Readdirnames(-1)
	if err != nil {
		return false
	}
	seen := false
	for _, name := range names {
		if _, err := strconv.Atoi(name); err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // it has just ended
		}
		// After the name of the program, which may have spaces: the state, the parent and the group.
		rest := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(rest) < 18 || rest[2] != strconv.Itoa(group) {
			continue
		}
		const threads = 17 // more than one if only the first thread has ended
		if rest[0] != "Z" && rest[0] != "X" || rest[threads] > "1" {
			return false
		}
		seen = true
	}
	return seen
}
