// Package timing holds the times that have to fit together: how long the lease of a cluster's leader
// lasts, when others may replace it, how long a client believes in its session, and
// when the leader ends that. Each function says in one line which inequality it is part of;
// the test of this package checks them for all settings that a server accepts.
//
// Everything here is arithmetic. The functions with a type parameter take a time.Duration or
// milliseconds.
package timing

import "time"

// MinElectionTimeout is the shortest election timeout that a server accepts.
const MinElectionTimeout = 100 * time.Millisecond

// Shortest is the shortest session timeout that a server grants, unless it is configured otherwise,
// as ZooKeeper's minSessionTimeout. With much less, a leader could end a session after a pause that
// it does not notice (see [Watch]), and the holder of a lock might ask too seldom (see [Ask]).
func Shortest(tick time.Duration) time.Duration { return 2 * tick }

// Longest is the longest, unless it is configured otherwise, as ZooKeeper's maxSessionTimeout.
func Longest(tick time.Duration) time.Duration { return 20 * tick }

// Lease is how long a leader is sure that it leads after a majority has accepted it.
//
//	Lease <= election timeout / 2
//
// The others elect nobody within an election timeout after they have accepted it. The rest is for
// clocks that differ and for processes that are scheduled late.
func Lease(electionTimeout time.Duration) time.Duration {
	return min(300*time.Millisecond, electionTimeout/2)
}

// Beat is the time between two heartbeats of a leader to a member.
//
//	2 * Beat <= Lease
//
// So a leader keeps its lease although one round of answers is late.
func Beat(electionTimeout time.Duration) time.Duration {
	return max(min(100*time.Millisecond, electionTimeout/4), time.Millisecond)
}

// Late is how long the answer to a heartbeat may take before the leader doubts the connection.
//
//	Beat <= Late, and Late + 4 * Redial <= election timeout
func Late[T ~int64](electionTimeout T) T { return electionTimeout / 4 }

// Redial is how long the leader tries to open another connection before it tries again. Several
// attempts have to fit into the election timeout; see [Late].
func Redial(electionTimeout time.Duration) time.Duration { return electionTimeout / 8 }

// Report is for how long a member collects which sessions it has heard from before it tells the
// leader.
//
//	2 * Report <= Lease, and 4 * Report <= tick
//
// The shortest session lasts two ticks.
func Report(tick, lease time.Duration) time.Duration {
	return max(min(tick/4, lease/2), time.Millisecond)
}

// Watch is the longest time that a leader sleeps between two looks for sessions that have expired.
// If it looks again after more than twice that, its process was paused, and no more than half a tick of the time between counts.
//
//	8 * Watch <= the shortest session timeout, unless a tick is shorter than 0.4 s
func Watch(tick time.Duration) time.Duration { return max(tick/4, 100*time.Millisecond) }

// Believed is how long a client can count on its session, from when it sent a request that was
// answered. A holder of a lock counts on it for no longer.
//
//	Believed + Unreported + Lease <= session timeout
func Believed[T ~int64](sessionTimeout T) T { return sessionTimeout * 2 / 3 }

// Unreported is for how long a member may answer a client's requests without the leader having
// heard from the session: the leader ends it no earlier than a session timeout after it last
// heard from it, and a leader that was replaced may answer until its lease ends. See [Believed].
func Unreported[T ~int64](sessionTimeout, lease T) T { return max(0, sessionTimeout/3-lease) }

// Ask is how often the holder of a lock asks the server whether it still has its session.
//
//	Ask + half a tick <= session timeout - Believed
//
// The second term is for a ZooKeeper, whose followers tell the leader twice in a tick from
// which sessions they have heard; a session lasts at least two ticks.
func Ask(sessionTimeout time.Duration) time.Duration { return sessionTimeout / 12 }
