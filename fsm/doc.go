// Package fsm turns the replicated log into the tree of znodes and the table of
// sessions: same state and same entry give the same state, replies, changes
// and digest, whatever the machine.
//
// [Machine] is that function and nothing else. [Replica] puts a lock around
// it, keeps this server's watches, and is what Raft applies entries to; reads
// go through its [View]. The opcodes' code is in writes.go and reads.go.
//
// An entry that the machine does not understand stops the server; it is never
// skipped. Restoring a snapshot gives the state it was taken from, by digest.
//
// This package promises no compatibility: any version of lockkeeper may change it.
package fsm
