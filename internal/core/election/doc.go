// Package election decides whether a member leads, has lost its leader or the majority, must stand for election, has
// the state that the others have, and may serve reads from it. It has no goroutine and no clock, and waits for no disk:
// what has happened, and when, comes in by methods, and [Contacts.Look] and [Digests.Look] return what follows from it.
//
// It takes the place of Raft's election timeouts. A member that misses its leader asks the voters for their [State], as PreVote
// does (section 9.6 of Raft's thesis), and stands only if a majority misses the leader, too. Members stand in the order of their
// logs, where Raft has random timeouts (Contacts.mustStand). A leader that is out of touch with a majority steps down (section 6.2).
//
// Package cluster acts on that: its pulse sends heartbeats and questions, passes the answers on, and stands for election
// or steps down. A goroutine that holds the lock of [Contacts] or [Digests] takes no other lock, but Digests asks the
// replica for its newest digest, whose lock is not held while an entry is applied.
package election
