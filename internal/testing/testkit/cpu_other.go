//go:build !unix

package testkit

import (
	"testing"
	"time"
)

// CPU skips the test: this system does not say how much processor time a process uses.
func CPU(t testing.TB, _ func()) time.Duration {
	t.Helper()
	t.Skip("the processor time of a process is not known on this system")
	return 0
}
