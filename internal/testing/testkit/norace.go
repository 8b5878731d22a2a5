//go:build !race

package testkit

// Race reports whether the test was built with the race detector, which makes it slow.
const Race = false
