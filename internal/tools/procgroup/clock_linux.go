package procgroup

import "golang.org/x/sys/unix"

const sharedClock = unix.CLOCK_BOOTTIME
