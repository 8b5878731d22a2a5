//go:build unix && !linux

package procgroup

import (
	"os"
	"syscall"
)

func self() string {
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}

func dieWithParent(*syscall.SysProcAttr) {} // only the watchdog ends the command

func keepDyingWithParent() error { return nil }
