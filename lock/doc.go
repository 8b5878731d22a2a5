// Package lock has locks for programs that share a ZooKeeper: a mutex, a lock for readers
// and writers, a semaphore and an election. They run over a stock go-zookeeper connection
// on any server that speaks ZooKeeper's protocol.
//
//	var dialer lock.Dialer // learns which session timeout the servers grant
//	conn, events, err := zk.Connect(servers, 10*time.Second, zk.WithDialer(dialer.Dial))
//	...
//	mutex := lock.NewMutex(conn, "/locks/report", lock.WithDialer(&dialer))
//	held, err := mutex.Lock(ctx)
//	if err != nil {
//		return err
//	}
//	defer held.Unlock(ctx)
//	return write(held.Context(ctx), report, held.Token()) // the context ends if the lock is lost
//
// # Who is next
//
// Each contender has a znode, ephemeral and sequential, and they get the lock in the order
// of their sequence numbers. Each one that waits watches only the znode before its own. The
// locks share their queue with those of go-zookeeper, Curator and kazoo on the same path
// (kazoo's with extra_lock_patterns=["lock-"]). Do not let kazoo's and Curator's own locks
// share a path, since Curator does not see kazoo's znodes. Children with other names
// are ignored.
//
// # When a lock is lost
//
// A server ends the session of a client that it has not heard from for the session
// timeout, and then another client gets the lock. So a holder believes in its lock only
// until two thirds of the session timeout have passed since it *sent* the last request
// that was answered. Then [Held.Lost] is closed, and the holder has the last third to stop
// what it does. While the lock is held, a sync is sent twelve times in each session
// timeout. It is answered only when the leader has seen it, so a server that has lost its
// leader cannot keep a holder believing.
//
// The session timeout is the one that the server has granted, which is often not the one that
// the client asked for, and may be another one after a reconnect. go-zookeeper does not report
// it, so a [Dialer] reads it from the server's answer; or [WithSessionTimeout] names it. A lock
// that has neither fails with [ErrTimeoutUnknown].
//
// That makes the holder the only one, also by the clock, under the conditions of
// docs/reliability.md: clocks that run at about the same speed, and a program that runs.
// ZooKeeper's own servers weaken it in three cases. If a follower is lost within half a tick after
// its answer, the session may end earlier, by that half a tick and the time since the request
// before: that takes from the last third, and if that request was answered late, it may take more
// than that. A leader that is cut off from the majority
// answers syncs for up to syncLimit ticks (10 s by default), while a new leader may end
// sessions whose timeout is shorter than that. And where minSessionTimeout allows sessions
// shorter than 2 ticks, the leader may learn too late that such a session is alive. All
// servers of a cluster should grant the same timeouts: if one grants less, and its answer is
// lost, its client cannot know.
//
// No lock can stop a program that was paused, or that does not look. Pass [Held.Token] to
// whatever the lock protects, and let that refuse a token smaller than one it has seen:
// package [github.com/lockkeeper/lockkeeper/lock/fence] does so.
//
// The lock is also lost if someone else deletes its znode, if an administrator ends the
// session, or if the program closes its connection. Then another client may hold the lock at
// once: there is no last third in which to stop.
//
// # What happens in the background
//
// Each znode has one goroutine, which creates the znode, waits, asks the server while the
// lock is held, and ends only when the znode is known to be gone. A call whose context ends
// returns at once, and this goroutine deletes the znode, even if the reply to its create was
// lost: the name contains a random id, by which it is found. Wait of each type waits for
// these goroutines. Call it before you close the connection.
//
// go-zookeeper cannot remove a watch. If a wait is given up, its watch stays until the
// znode that it watches is deleted, and the next wait on the same lock uses it. So keep a
// lock and use it again, rather than making a new one for each attempt.
//
// This package promises compatibility, as package lockkeeper explains.
package lock
