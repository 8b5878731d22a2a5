// Package sim runs whole clusters in virtual time under faults drawn from a seed,
// with clients that record everything they see, and checks the record. Only tests
// import it.
//
// A [Run] is a function of its [Options] as far as Go's scheduler allows: the faults,
// their times and all choices of the clients come from the seed, but the order in
// which goroutines run does not. See docs/testing.md.
package sim
