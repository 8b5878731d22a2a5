package lockkeepertest_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/lock/fence"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// The reply to a create is lost with the connection. The client does not know that its
// znode exists, creates another one, and waits behind the first: for itself, as long as its
// session lasts. The guard reports the orphan when the test ends.
//
// go-zookeeper's Lock avoids that. Its znodes have a UUID in their names, by which it finds
// them again.
func Example_orphan() {
	t := newT()
	defer t.end() // not needed in a test

	server := lockkeepertest.Start(t)
	conn := server.Connect(t, 30*time.Second)
	if _, err := conn.Create("/lock", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	server.GuardLock(t, "/lock")
	server.Inject(lockkeepertest.Fault{Op: "create", Do: lockkeepertest.CloseAfter()})

	enqueue := func() error {
		_, err := conn.Create("/lock/lock-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
		return err
	}
	fmt.Println("create:", enqueue())
	for enqueue() != nil {
		time.Sleep(time.Millisecond) // not connected yet
	}
	lock := server.Locks()[0]
	fmt.Println("the client waits for itself:", lock.Holder == lock.Queue[0])
	// Output:
	// create: zk: connection closed
	// the client waits for itself: true
	// lockkeepertest: the lock /lock: a lock znode is left whose client does not know of it
}

// A client that has the lock is paused for longer than its session timeout. The next client
// gets the lock and writes. Then the first one wakes up, and writes as well. No lock service
// can prevent that. But the database refuses the write, because it comes with a smaller
// token than one before; the file, which ignores tokens, is damaged.
func Example_pausedClient() {
	t := newT()
	defer t.end()

	server := lockkeepertest.Start(t)
	guard := server.GuardLock(t, "/lock")
	file, database := guard.Resource(), guard.Resource()
	write := func(token int64) error {
		file.WriteUnchecked(token)
		return database.Write(token)
	}

	var tokens []int64
	for _, name := range []string{"first", "second"} {
		conn := server.Connect(t, 30*time.Second)
		session := conn.SessionID()
		if err := zk.NewLock(conn, "/lock", zk.WorldACL(zk.PermAll)).Lock(); err != nil {
			t.Fatal(err)
		}
		token := guard.Token(session)
		fmt.Printf("the %s client writes: %v\n", name, write(token))
		tokens = append(tokens, token)
		if name == "first" { // it is paused
			if err := server.ExpireSession(session); err != nil {
				t.Fatal(err)
			}
		}
	}
	err := write(tokens[0])
	fmt.Println("the first client wakes up and writes; its token is stale:", errors.Is(err, fence.ErrStale))
	// Output:
	// the first client writes: <nil>
	// the second client writes: <nil>
	// the first client wakes up and writes; its token is stale: true
	// lockkeepertest: the lock /lock: two holders overlapped in what they did; a stale token was accepted
}

// Five clients wait for the same znode to be deleted. When it is, all of them wake up and
// try to create it, and all but one of them in vain. If they queue up instead, each behind
// the one before it, only one wakes up.
func Example_herd() {
	t := newT()
	defer t.end()

	server := lockkeepertest.Start(t)
	holder := server.Connect(t, 30*time.Second)
	var waiters []*zk.Conn
	for range 5 {
		waiters = append(waiters, server.Connect(t, 30*time.Second))
	}

	acquire := func(conn *zk.Conn) error {
		_, err := conn.Create("/simple", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		return err
	}
	if err := acquire(holder); err != nil {
		t.Fatal(err)
	}
	var deleted []<-chan zk.Event
	for _, conn := range waiters {
		_, _, events, err := conn.ExistsW("/simple")
		if err != nil {
			t.Fatal(err)
		}
		deleted = append(deleted, events)
	}
	if err := holder.Delete("/simple", -1); err != nil {
		t.Fatal(err)
	}
	vain := 0
	for i, conn := range waiters {
		<-deleted[i]
		if acquire(conn) == zk.ErrNodeExists {
			vain++
		}
	}
	fmt.Println("simple lock: clients that woke up in vain:", vain)

	lock := zk.NewLock(holder, "/queue", zk.WorldACL(zk.PermAll))
	if err := lock.Lock(); err != nil {
		t.Fatal(err)
	}
	got := make(chan error)
	for _, conn := range waiters {
		go func() { got <- zk.NewLock(conn, "/queue", zk.WorldACL(zk.PermAll)).Lock() }()
	}
	for len(server.Watches()) < len(waiters) {
		time.Sleep(time.Millisecond) // until they all wait
	}
	before := len(server.Requests("getChildren*"))
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	fmt.Println("queue: clients that woke up:", len(server.Requests("getChildren*"))-before)
	// Output:
	// simple lock: clients that woke up in vain: 4
	// queue: clients that woke up: 1
}

// A server knows the watches of a connection only as long as it lasts. When a client
// reconnects, it has to send them again, with setWatches. Here that request is lost, as it
// was with clients that forgot to send it, and the worker never learns of the job. A worker
// that looks again after every reconnect finds it.
func Example_lostWatch() {
	t := newT()
	defer t.end()

	server := lockkeepertest.Start(t)
	worker, boss := server.Connect(t, 30*time.Second), server.Connect(t, 30*time.Second)
	_, _, events, err := worker.ExistsW("/job")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("watches:", len(server.Watches()))

	lost := server.Inject(lockkeepertest.Fault{Op: "setWatches*", Session: worker.SessionID(), Do: lockkeepertest.Drop()})
	server.Disconnect(worker.SessionID())
	lost.Wait()
	fmt.Println("watches after the reconnect:", len(server.Watches()))

	if _, err := boss.Create("/job", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	found, _, err := worker.Exists("/job")
	fmt.Println("the worker looks again:", found, err)
	select {
	case <-events: // would have arrived before the reply
		fmt.Println("an event")
	default:
		fmt.Println("no event")
	}
	// Output:
	// watches: 1
	// watches after the reconnect: 0
	// the worker looks again: true <nil>
	// no event
}

// A client loses its session and gets a new one. Its ephemeral znode still exists, because
// the server does not know yet that the old session is over. The client recognizes its name
// in the znode and believes that it leads, until the old session expires and the znode is
// deleted. It should have compared the owner with its session.
func Example_oldEphemeral() {
	t := newT()
	defer t.end()

	server := lockkeepertest.Start(t)
	conn := server.Connect(t, 30*time.Second)
	old := conn.SessionID()
	if _, err := conn.Create("/leader", []byte("host-1"), zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}

	server.Inject(lockkeepertest.Fault{Op: "connect", Session: old, Do: lockkeepertest.Answer(zk.ErrSessionExpired)})
	server.Disconnect(old)
	for conn.SessionID() == old || conn.State() != zk.StateHasSession {
		time.Sleep(time.Millisecond) // until it has a new session
	}
	data, stat, err := conn.Get("/leader")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("leader:", string(data))
	fmt.Println("in this session:", stat.EphemeralOwner == conn.SessionID())

	if err := server.ExpireSession(old); err != nil {
		t.Fatal(err)
	}
	_, _, err = conn.Get("/leader")
	fmt.Println("later:", err)
	// Output:
	// leader: host-1
	// in this session: false
	// later: zk: node does not exist
}
