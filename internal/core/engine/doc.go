// Package engine is Raft as the rest of a member sees it: an [Engine] keeps the log, and applies it to the replica. It and
// package storage are the only ones that know hashicorp/raft and its stores. docs/raft.md lists what is corrected of
// these, and where; nobody outside needs to know that.
//
// What the others may rely on:
//
//   - What [Engine.Committed] says, what an [Engine.Propose] has answered, and what the replica gets, is committed whatever
//     happens to this process, although the disk may write it only later.
//   - The engine holds no election by itself, and ends no leadership: [Engine.Campaign] and [Engine.StepDown] do. If nobody
//     calls them for five election timeouts, it does, as a last resort.
//   - A member that lacks what its cluster may have acknowledged neither stands nor votes; see [Engine.AbstainUntil].
//   - A fault of the disk, or damage in what is read, ends in [Lifecycle.Fail], never in a panic. After that nothing is
//     acknowledged.
//
// # Files
//
//	engine elect       what others call; making Raft hold and lose elections
//	lifecycle log      how a member is stopped, and its first fault; Raft's log messages
//	disk store lists   the storage, what is observed of it, and what Raft must not do to it
//	commits asynclog   how far the log is committed; the log and the state machine as Raft sees them
//	raftconn           connections for Raft's messages, and when they are closed
//	transport stream   its messages; those with entries, from a leader to a follower
//	lone               the transport of a standalone server
//	notify compact     telling others at once what is committed; when to take snapshots
//	farewell restore   the log for removed members; a directory with a restored state
//	probes             for tests of other packages
//
// # Goroutines
//
// Raft has goroutines of its own. [Engine.Start] starts these, and [Engine.Close] waits for them, or whoever waits for
// [Lifecycle.Running]:
//
//   - compactor.run has Raft take snapshots (compact.go).
//   - asyncLog.run writes the entries that Raft has already sent to others, while it leads (asynclog.go).
//   - The transport passes Raft's incoming messages on (transport.go). Each one for which Raft is too busy at the moment has
//     a goroutine until Raft takes it, and each snapshot one until it is installed. The transport also waits for an election
//     timeout for an answer to TimeoutNow, and runs watchConns, which watches Raft's connections (raftconn.go).
//   - dialStream connects for a stream. The leader's end of each stream has one goroutine, until Raft closes it, and the
//     follower's end two, until the connection ends (stream.go).
//
// TellOthers runs one goroutine for each other member until the list of members changes or it is stopped. SendToRemoved ends
// within two seconds.
//
// # Waiting
//
// Whatever waits for another member stops waiting when that has been silent for about an election timeout, and closes the
// connection, so that the next attempt has a new one:
//
//   - for an answer to one of Raft's messages, or for room to send it: watchConns. While the other side receives or handles
//     the message, it gives signs of life, so this lasts as long as a disk there is stuck. Votes are refused there after an
//     election timeout.
//   - for the rest of one of Raft's messages: the same.
//   - for Raft's main goroutine: messages of Raft as above, and only a few of each member (transport.pass).
//   - for the next message on a connection that another member opened: ten times idleLooks.
//   - for a connection: an election timeout.
//
// Without a limit of its own is what ends with the leadership, since a leader without a majority is made to step down: the
// futures of Raft. And what waits for this member's own disk: the compactor, Raft's main goroutine, and Raft's goroutine for
// the state machine (asyncLog.await); the others learn of that by stall.
//
// # Lock order
//
// A goroutine that holds one of these locks may take those to the right of it, and no others of this package:
//
//	the replica's lock  -> commits.mu
//	transport.receiving -> transport.mu, election.Contacts, stall.mu
//	stream.turn         -> stream.mu, transport.mu
//
// No other lock of this package is taken while commits.mu, compactor.mu, transport.mu, raftConns.mu, stall.mu,
// recentLog.mu, asyncLog.mu, acks.mu, stream.mu, raftConn.turn or terms.turn is held. terms.turn is held while Raft handles
// a heartbeat.
package engine
