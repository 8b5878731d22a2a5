// Package fsm applies the replicated log to the tree of znodes and the table of
// sessions. It is deterministic: applying the same entry to the same state gives the
// same new state, replies, changes and digest on every server.
//
// [Machine] is the replicated state and the code that applies entries to it.
// [Replica] adds a lock and this server's watches; Raft applies entries to it, and
// reads go through its [View]. The operations are in writes.go and reads.go.
//
// A server that cannot decode an entry stops. It never skips one. Restoring a snapshot
// gives exactly the state from which it was taken; its digest verifies that.
//
// This package promises no compatibility: any version of lockkeeper may change it.
package fsm
