// Package raftlog is the disk as Raft sees it: the log, the term and vote, the snapshots, and the state machine behind
// them. It is a part of package engine, which alone uses it, but for a few names. docs/raft.md says what is corrected here.
//
//   - A [GuardedStore] turns a failed write, or damage that is read, into the member's fault, and refuses what Raft must not
//     do to its log.
//   - An [AsyncLog] lets a leader send an entry while its disk still writes it. A [GatedFSM], the state machine, gets an entry
//     only when that is committed whatever happens to this process; [AsyncLog.Committed] tells others no more than that.
//   - [WatchedSnapshots] keeps this member's own snapshots and the leader's apart, and measures the disk while they are
//     written. A [Disk] has what is observed of it: how long it is stuck ([Stall]), where the lists of members are in the log
//     ([Lists]), which term has begun ([Terms]).
//
// AsyncLog.Run is the only goroutine. Its user starts it, and it ends when lifecycle.Lifecycle.Stop is closed. AsyncLog.Await,
// which blocks Raft's goroutine for the state machine, ends then, too.
//
// No lock of this package, nor Terms.Turn, is held while another one of this package is taken. Terms.Turn is held while Raft
// handles a heartbeat.
package raftlog
