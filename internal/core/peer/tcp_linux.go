package peer

import (
	"time"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged has a connection end when what was sent over it has not been
// acknowledged for d.
func limitUnacknowledged(fd uintptr, d time.Duration) {
	unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
}
