// Package alive knows when each session was last touched, that is, when a request of its client last arrived, and so when it
// expires. Every member of a cluster collects the touches of its clients for the leader; only the leader expires sessions.
//
// What the others may rely on, under the bounds of clocks that package timing states: a session expires no sooner than its
// timeout after a touch that the leader has heard of, and of each noticed pause of the leader's process only half a tick counts;
// and [Liveness.Touch] lets a request pass only if the leader, by what it has confirmed, cannot expire the session while its client still relies on it, or
// this member surely leads.
//
// A [Liveness] has no goroutine and no clock: the times are functions that it is given. Touch waits for the leader, on the
// goroutine of a client's connection, until its caller ends that. Liveness.mu is held for moments, and no other lock is taken
// meanwhile but those of whoever tells the running time, and whether this member surely leads.
package alive
