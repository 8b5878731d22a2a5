//go:build !linux

package peer

import "time"

// limitUnacknowledged does nothing here: this package's own deadlines have to be enough.
func limitUnacknowledged(uintptr, time.Duration) {}
