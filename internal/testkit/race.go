//go:build race

package testkit

// Race says that the test was built with the race detector, which makes it slow.
const Race = true
