// Package request is what servers, and commands, ask a member about its cluster, and have it change: a [Request] goes over a
// connection of its own to the member's peer port, as JSON, and is answered by a [Reply]. Package membership answers them.
//
// [Ask] finds the leader, which alone can change the list of members, and waits for up to half a minute for
// one. When a request fails, it says whether the change may have been made all the same. Nothing here has a goroutine that outlives a call, or a lock.
package request
