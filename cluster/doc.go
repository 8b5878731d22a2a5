// Package cluster is the Raft member: it opens the storage, packs the commands
// that wait into log entries and proposes them, tells each waiter what its
// command came to when the entry is applied here, and, as the leader, ends
// sessions that are late and reaps container and TTL znodes.
//
// Whoever proposes is told exactly once: Done after the local apply, or Lost if
// the outcome is unknown.
//
// Goroutines, all started by [Member.Start] or by those that it starts, and awaited by
// [Member.Close]:
//   - runBatcher proposes entries (propose.go), takeSnapshots has Raft take
//     snapshots (compact.go), sendTouches tells the leader which sessions were heard
//     from (touches.go);
//   - watchLeadership does the leader's duties while this member leads (lead.go);
//   - watchContacts finds out whether the leader and the majority are there, with one
//     sender of heartbeats for each other member (pulse.go);
//   - watchLeader decides whether clients are served (serving.go);
//   - watchMembership finds out whether this member was removed (members.go);
//   - the peer port has one for each connection that comes in (peers.go).
//
// Raft has its own besides.
//
// This package promises no compatibility: any version of lockkeeper may change it.
package cluster
