// Package cluster runs one member of a Raft cluster, or a standalone server. A
// [Member] opens the storage and the peer port, sends and answers heartbeats, and
// decides whether clients are served. The leader also expires sessions and reaps
// container and TTL znodes.
//
// A Member is a list of parts. [New] builds them and connects them; nothing runs yet.
// [Member.Start] opens the storage and the peer port, starts Raft, and then the
// goroutines of the parts.
//
// # Packages and files
//
// Below this package, internal/core/propose gets commands into the log, internal/core/alive knows when sessions expire,
// internal/core/membership brings this server into its cluster and changes the list of members, internal/core/engine has the
// log and its replication, internal/core/election decides who leads and whose state is right, internal/core/peer connects the
// members, and internal/core/storage has their disks. internal/core/request has what members ask each other,
// internal/core/lifecycle how one is stopped.
//
// The ground:
//
//	clock                   the clock
//	trace                   what tests are told of a member's steps
//	config                  how a member is configured
//
// What every member does:
//
//	pulse                   heartbeats, elections, and whether it surely leads
//	serving                 whether it serves clients
//
// The member:
//
//	member                  its parts, and what it passes on to them
//	touches                 telling the leader which sessions are alive
//	lead                    what a leader does: expiring sessions, deleting znodes
//	forward                 what other members send to the leader
//	reconfig                a client's reconfig, and /zookeeper/config
//	cluster                 building, starting and closing a member; restoring one from a snapshot
//
// # Goroutines
//
// Start, or a goroutine that it starts, starts all of these and those of package engine; [Member.Close] stops them and
// waits for them.
//
// Every member has these until Close:
//   - Proposer.Run proposes entries, one at a time, on whichever member leads.
//   - sendTouches reports to the leader which sessions are alive (touches.go). It
//     shares the Proposer's connection.
//   - watchLeadership notices when this member starts or stops leading (lead.go).
//     While it leads, watchLeadership runs lead, which expires sessions, reap, and in a
//     cluster Engine.SpreadCommitIndex. It has a leader without a vote hand over.
//   - service.run decides whether clients are served (serving.go). It starts
//     catchUp each time before serving begins.
//
// A member with a peer port also has these until Close:
//   - pulse.run monitors the leader and the majority and starts elections
//     (pulse.go). It runs one sendBeats for each other member, which is stopped
//     when that member is removed or moves, and starts short-lived goroutines for
//     question, Engine.Campaign and Engine.StepDown.
//   - Membership.Watch finds out whether this member was removed.
//   - accept runs one goroutine for each incoming connection, until the connection
//     is closed (internal/core/peer). A connection over which another member sends its entries
//     has one more, for those and for questions about the commit index, and one for each
//     entry that the engine has not answered (forward.go).
//   - what Membership.Belong returns, if this member is in no cluster yet, or
//     waits for its vote since an earlier start, runs until it is in the cluster and
//     votes, if it is to vote.
//
// # Waiting
//
// Whatever waits for another member stops waiting when that has been silent for about an
// election timeout, and closes the connection, so that the next attempt has a new one. Entries of other members wait as long
// for the engine (serveForward); the next message on a connection that another member opened is waited for for ten election
// timeouts, and a connection for heartbeats and questions for half of one.
//
// What a leader does by itself waits neither for room in the log nor for clients (lead): only a leader that others can see to be
// stuck is replaced.
//
// # Lock order
//
// A goroutine that holds one of these locks may take those to the right of it,
// and no others of these:
//
//	the replica's lock  -> those of Proposer, alive.Liveness and raftlog.Commits
//	alive.Liveness      -> election.Contacts
//
// No lock is taken while those of election.Contacts, election.KnownLeader or peer.Port are held.
//
// The replica's lock is held for writing while an entry is applied, which calls
// Proposer.Complete, observer.Changed and each Waiter's Done.
//
// This package promises no compatibility: any version of lockkeeper may change it.
package cluster
