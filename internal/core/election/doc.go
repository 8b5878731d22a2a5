// Package election decides, without a goroutine, a clock or a disk, whether a member leads, has lost its leader or the
// majority, must stand for election, has the state that the others have, and may serve reads from it. What has
// happened, and when, comes in by methods; what follows from it is what [Contacts.Look] and [Digests.Look] return.
//
// Package cluster has what acts: its pulse sends heartbeats and questions, passes the answers on, and stands or
// steps down. The methods are safe for concurrent use. A goroutine that holds [Contacts]' or [Digests]' lock takes no
// other lock, but Digests asks the replica for its newest digest, which takes no lock that is held while an entry is applied.
package election
