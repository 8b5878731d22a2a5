// Package cluster is the Raft member: it opens the stores, packs the commands
// that wait into log entries and proposes them, tells each waiter what its
// command came to when the entry is applied here, and, as the leader, ends
// sessions that are late and reaps container and TTL znodes.
//
// Whoever proposes is told exactly once: Done after the local apply, or Lost if
// the outcome is unknown.
//
// Goroutines, all started by [Open] and awaited by [Member.Close]: the batcher
// (propose.go), the watch on leadership and, while leading, the leader's duties
// (lead.go), and one for each snapshot that is being taken; Raft has its own.
package cluster
