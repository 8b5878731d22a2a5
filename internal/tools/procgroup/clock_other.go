//go:build !darwin && !dragonfly && !freebsd && !linux && !openbsd && !solaris && !windows

package procgroup

import "time"

// now is the time of day, for want of a better clock that processes share.
func now() time.Duration { return time.Duration(time.Now().UnixNano()) }
