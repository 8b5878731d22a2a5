// Package engine is Raft as the rest of a member sees it: an [Engine] keeps the log, and applies it to the replica. It, its
// disk (package raftlog) and package storage are the only ones that know hashicorp/raft and its stores. docs/raft.md lists
// what is corrected of these, and where; nobody outside needs to know that.
//
// What the others may rely on:
//
//   - What [Engine.Committed] says, what an [Engine.Propose] has answered, and what the replica gets, is committed whatever
//     happens to this process, although the disk may write it only later.
//   - The engine holds no election by itself, and ends no leadership unless it hears of a later term: [Engine.Campaign], [Engine.StepDown] and
//     [Engine.HandOver] do. As a last resort Raft does, when it has heard no leader, or no majority, for five election
//     timeouts, and at least 10 s. A standalone server leads at once.
//   - A member that lacks what its cluster may have acknowledged neither stands nor votes; see [Engine.AbstainUntil].
//   - A fault of the disk, or damage in what is read, ends in lifecycle.Lifecycle.Fail, never in a panic. After that nothing
//     is acknowledged.
//
// A list of members is what Raft calls a configuration, and an observer what it calls a nonvoter.
//
// # Files
//
//	engine elect       what others call; making Raft hold and lose elections
//	transport exchange Raft's messages: what is done about them, and how they are sent and received
//	stream             those from a leader to a follower, one after the other without waiting
//	lone               the transport of a standalone server
//	notify compact     telling others at once what is committed; when to take snapshots
//	watch farewell     telling of another leader; the log for removed members
//	probes             what tests of other packages need
//
// # Goroutines
//
// Raft has goroutines of its own. [Engine.Start] starts these, and [Engine.Close] waits for them, or whoever waits for
// lifecycle.Lifecycle.Running:
//
//   - compactor.run has Raft take snapshots (compact.go). AsyncLog.Run writes what Raft has already sent to others.
//   - transport.take reads a connection's messages, in the goroutine of the peer port, until the connection ends. It starts
//     another one, which sends the answers (exchange.go). The transport also has one that waits for the answer to TimeoutNow,
//     and runs peer.Conns.Run, which watches the connections.
//   - dialAnother makes the connection that a stream waits for. The leader's end of each stream has one goroutine, until Raft closes
//     it (stream.go).
//
// SpreadCommitIndex runs one goroutine for each other member until the list of members changes or it is stopped. HandOver runs
// one for each that it asks. SendToRemoved ends after two seconds, or when a message fails.
//
// # Waiting
//
// Whatever waits for another member stops waiting when that has been silent for about an election timeout, and closes the
// connection, so that the next attempt has a new one: peer.Conns sees to that. Entries and snapshots wait for Raft's main
// goroutine for as long as it takes, but only a few of each member (transport.deliver); other messages wait for an election timeout.
//
// Without a limit of its own is what ends with the leadership, since a leader without a majority is made to step down: the
// futures of Raft. And what waits for this member's own disk: the compactor, Raft's main goroutine, and Raft's goroutine for
// the state machine; the others learn of that by DiskStall.
//
// # Lock order
//
// A goroutine that holds one of these locks may take those to the right of it, and no others of this package:
//
//	the replica's lock  -> Commits
//	transport.receiving -> transport.mu, election.Contacts, Stall
//	stream.turn         -> stream.mu, transport.mu
//
// No other lock of this package is taken while compactor.mu, transport.mu or stream.mu is held, nor one of package raftlog or
// peer.
package engine
