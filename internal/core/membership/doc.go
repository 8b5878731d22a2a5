// Package membership brings a server into its cluster, changes the list of members while this member leads, and notices
// when this member was removed. The list itself is in the log, which package engine keeps: one member at a time is added,
// removed, or given or denied its vote, and voters only if a majority of the voters after the step is there.
//
// What the others may rely on:
//
//   - A cluster is formed once, and has an id from then on. Members of two clusters never meet: [Parts.Gate] is opened only
//     for the cluster that this server belongs to for good. The rules are in formation.go.
//   - A server whose data is empty, and whose cluster exists, may have lost its disk. It takes part without a vote until it has
//     caught up with what its cluster may have acknowledged (form.go).
//   - A change of the list that leaves no majority which is up is refused before its first step (steps.go). Only the leader
//     that was asked for a change carries it out, in the term in which it was asked.
//   - A member that was removed ends with request.ErrRemoved, but only when the leader of its cluster says so (removed.go).
//
// # Files
//
//	server              what a server is told of itself
//	formation           how a cluster is formed: pure rules
//	form belong         coming into a cluster; what the storage says of that at the start
//	members places      what a member knows about its cluster; who may ask for its own place
//	steps change        the steps of a change; changes
//	removed             noticing that this member was removed
//	probes              for tests of other packages
//
// # Goroutines and locks
//
// Whoever starts the member runs [Membership.Watch], and what [Membership.Belong] returns, if anything; both end when
// the port is closed. checkQuorumAfter asks each voter on a goroutine, and so does who proposes a cluster; these end with the answer, or
// after timing.PeerTimeout, unless the disk of the member that is asked is stuck. [Membership.Serve] runs on the goroutine of its connection. [Membership.Ask], towards this member itself, runs a goroutine until
// the request is answered. Engine.SendToRemoved runs for up to two seconds for each member that was removed.
//
// Membership.changing is held while the list is changed, and joiner.deciding while the identity is, or while a proposal is
// made; both for as long as other servers are asked, so nothing that must not wait takes them. Whoever holds one may take any
// lock of the packages below, none of which calls back.
package membership
