//go:build !linux

package bench

import (
	"fmt"
	"runtime"
	"time"
)

func processorTime(int) (time.Duration, error) { return 0, noProcesses() }
func residentMemory(int) (int64, error)        { return 0, noProcesses() }
func machineTime() (time.Duration, error)      { return 0, noProcesses() }

func noProcesses() error {
	return fmt.Errorf("the processor time and memory of a process can be read only on Linux, not on %s", runtime.GOOS)
}
