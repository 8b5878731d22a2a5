// Package sim runs whole clusters in virtual time under faults that come from a
// seed, with clients that write down all they see, and judges what they wrote
// down. Only tests import it.
//
// A [Run] is a function of its [Options], as far as Go's scheduler lets it: the
// schedule of faults and all choices of clients are drawn from the seed, but
// which goroutine goes first is not. See docs/testing.md.
package sim
