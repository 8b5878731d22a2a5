package bench

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// processorTime returns the processor time that all threads of a process have used, also
// those that have ended. The files in /proc count in steps of 10 ms, which is too coarse
// for short measurements, so it reads the process's clock (clock_getcpuclockid(3)).
func processorTime(pid int) (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err == unix.EINVAL {
		return 0, fmt.Errorf("there is no process %d", pid)
	} else if err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

func residentMemory(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	for line := range bytes.Lines(text) {
		var kib int64
		if _, err := fmt.Sscanf(string(line), "VmRSS: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("process %d has no memory; it has ended", pid)
}

// machineTime returns the processor time that all processes of the machine have used.
func machineTime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	var user, nice, system, idle, iowait, irq, softirq, steal int64
	if _, err := fmt.Sscanf(string(text), "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal); err != nil {
		return 0, fmt.Errorf("/proc/stat: %w", err)
	}
	ticks := user + nice + system + irq + softirq + steal
	return time.Duration(ticks) * time.Second / 100, nil // USER_HZ is 100 wherever Go runs
}
