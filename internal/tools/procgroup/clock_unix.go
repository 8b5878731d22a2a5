//go:build unix && !linux && !netbsd

package procgroup

import "golang.org/x/sys/unix"

// On macOS and OpenBSD, this clock goes on while the machine is suspended, elsewhere it may
// stand still.
const sharedClock = unix.CLOCK_MONOTONIC
