// Package propose gets the commands of a member's clients into the log, on whichever member leads, and answers those that
// only read (a sync) without it.
//
// A [Proposer] gathers the commands that wait into one entry, and proposes one entry at a time: the next one when the outcome of
// the previous one is known, or that is given up. On the leader it gives them to the engine. Elsewhere it sends them to the
// leader, over a [Link], and learns of success by applying them. Every command gets exactly one answer: Done once it is applied
// here, or Lost if its outcome is unknown. If Lost closes the caller's over, none of its later commands is applied after that.
//
// [Proposer.ReadIndex] says, on the leader, how far the log must be applied for a read that misses nothing (section 6.4 of Raft's
// thesis).
//
// # Goroutines, waiting and locks
//
// Whoever starts the member runs [Proposer.Run]. While this member leads, a goroutine waits for the engine's answer to each
// entry, which may be given up before. A Link has a reader and a watch, which close it when the leader changes, or has been silent for an
// election timeout.
//
// What waits for a leader waits until that changes, or until it is given up (election.KnownLeader.Suspend): a leader without a
// majority steps down after an election timeout, so there is no limit of its own. [Proposer.Propose] also waits for room in the
// next entry and in the log; [Proposer.Do], for what a leader does by itself, waits only for room in a share of the entry that
// clients cannot fill.
//
// No lock of this package is held while another one is taken, but batcher.mu while a batch is given up, which calls each Waiter's
// Lost: so Lost must not propose. The turn of a Link is held while something is written to it, and that of the link to the leader
// while it connects, which takes the port's locks.
package propose
