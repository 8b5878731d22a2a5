package lockkeepertest_test

import (
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// A test expires the session of the client that holds a lock, and sees the next client
// get the lock. In your tests, t is the test's own.
func Example() {
	t := newT()
	defer t.end() // not needed in a test

	server := lockkeepertest.Start(t)
	holder, waiter := server.Connect(t, 30*time.Second), server.Connect(t, 30*time.Second)
	if err := zk.NewLock(holder, "/locks/report", zk.WorldACL(zk.PermAll)).Lock(); err != nil {
		t.Fatal(err)
	}
	fmt.Println("the first client has the lock")

	next := make(chan error)
	go func() { next <- zk.NewLock(waiter, "/locks/report", zk.WorldACL(zk.PermAll)).Lock() }()
	if err := server.ExpireSession(holder.SessionID()); err != nil {
		t.Fatal(err)
	}
	fmt.Println("the next one has it:", <-next)
	// Output:
	// the first client has the lock
	// the next one has it: <nil>
}

// A test has a ZooKeeper of its own, which begins with some znodes. In your tests, t is the
// test's own.
func ExampleStart() {
	t := newT()
	defer t.end() // not needed in a test

	server := lockkeepertest.Start(t, lockkeepertest.WithTree(`/config/hosts = "a,b"`))
	conn := server.Connect(t, 30*time.Second) // or any client that connects with server.Dial
	hosts, _, err := conn.Get("/config/hosts")
	fmt.Println(string(hosts), err)
	// Output: a,b <nil>
}

// A client whose connection is cut reconnects by itself, with the same session.
func ExampleServer_Disconnect() {
	t := newT()
	defer t.end()

	server := lockkeepertest.Start(t)
	conn := server.Connect(t, 30*time.Second)
	session := conn.SessionID()
	fmt.Println("cut:", server.Disconnect(session))
	for {
		if _, _, err := conn.Exists("/"); err == nil {
			break
		}
		time.Sleep(time.Millisecond) // not connected yet
	}
	fmt.Println("back with its session:", conn.SessionID() == session)
	// Output:
	// cut: true
	// back with its session: true
}

// The reply to a create is lost with the connection. The znode exists, and the client
// does not know.
func ExampleServer_Inject() {
	t := newT()
	defer t.end()

	server := lockkeepertest.Start(t)
	conn := server.Connect(t, 30*time.Second)
	server.Inject(lockkeepertest.Fault{Op: "create", Path: "/queue/*", Do: lockkeepertest.CloseAfter()})

	if _, err := conn.Create("/queue", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	_, err := conn.Create("/queue/job", nil, 0, zk.WorldACL(zk.PermAll))
	fmt.Println("create:", err)
	for {
		if made, _, err := conn.Exists("/queue/job"); err == nil {
			fmt.Println("made:", made)
			break
		}
		time.Sleep(time.Millisecond) // not connected yet
	}
	// Output:
	// create: zk: connection closed
	// made: true
}

// The answer to the second create of a client waits until the test says so.
func ExampleInjection() {
	t := newT()
	defer t.end()

	server := lockkeepertest.Start(t)
	conn := server.Connect(t, 30*time.Second)
	fault := server.Inject(lockkeepertest.Fault{Op: "create", Session: conn.SessionID(), Nth: 2, Do: lockkeepertest.Hold()})

	done := make(chan error)
	go func() {
		for _, path := range []string{"/a", "/b"} {
			_, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll))
			done <- err
		}
	}()
	fmt.Println("the first create:", <-done)
	fault.Wait()
	fmt.Println("the second create waits")
	fault.Remove()
	fmt.Println("the second create:", <-done)
	// Output:
	// the first create: <nil>
	// the second create waits
	// the second create: <nil>
}

// A test waits until a client has the lock and another one waits for it, and looks at
// both.
func ExampleServer_WaitHeld() {
	t := newT()
	defer t.end()

	server := lockkeepertest.Start(t)
	holder, waiter := server.Connect(t, 30*time.Second), server.Connect(t, 30*time.Second)
	go zk.NewLock(holder, "/locks/report", zk.WorldACL(zk.PermAll)).Lock()
	server.WaitHeld("/locks/report", holder.SessionID())
	go zk.NewLock(waiter, "/locks/report", zk.WorldACL(zk.PermAll)).Lock()
	server.WaitWaiters("/locks/report", 1)

	lock := server.Locks()[0]
	fmt.Println(lock.Path, lock.Holder == holder.SessionID(), len(lock.Queue), lock.Queue[0] == waiter.SessionID())

	if err := server.ExpireSession(holder.SessionID()); err != nil {
		t.Fatal(err)
	}
	server.WaitHeld("/locks/report", waiter.SessionID())
	fmt.Println("the next one has a greater token:", server.Locks()[0].Token > lock.Token)
	// Output:
	// /locks/report true 1 true
	// the next one has a greater token: true
}

// Clients take a lock in turn, and write to what it protects. The guard would fail the test
// if one of them wrote after it had lost the lock, or left a znode behind.
func ExampleServer_GuardLock() {
	t := newT()
	defer t.end()

	server := lockkeepertest.Start(t)
	guard := server.GuardLock(t, "/locks/report")
	report := guard.Resource()
	for range 2 {
		conn := server.Connect(t, 30*time.Second)
		lock := zk.NewLock(conn, "/locks/report", zk.WorldACL(zk.PermAll))
		if err := lock.Lock(); err != nil {
			t.Fatal(err)
		}
		fmt.Println("write:", report.Write(guard.Token(conn.SessionID())))
		if err := lock.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	all := guard.Holders()
	fmt.Println("holders:", len(all))
	fmt.Println("the first one was done before the second:", all[0].UntilZxid < all[1].FromZxid)
	// Output:
	// write: <nil>
	// write: <nil>
	// holders: 2
	// the first one was done before the second: true
}

// The znodes of a server as text.
func ExampleServer_Tree() {
	t := newT()
	defer t.end()

	server := lockkeepertest.Start(t)
	conn := server.Connect(t, 30*time.Second)
	for _, path := range []string{"/config", "/config/b", "/config/a"} {
		if _, err := conn.Create(path, []byte("of "+path), 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Print(server.Tree())
	// Output:
	// /config = "of /config"
	// /config/a = "of /config/a"
	// /config/b = "of /config/b"
}

// A test checks what a client has sent.
func ExampleServer_Requests() {
	t := newT()
	defer t.end()

	server := lockkeepertest.Start(t)
	conn := server.Connect(t, 30*time.Second)
	if err := zk.NewLock(conn, "/lock", zk.WorldACL(zk.PermAll)).Lock(); err != nil {
		t.Fatal(err)
	}
	for _, r := range server.Requests("create*") {
		fmt.Println(r.Op, r.Path[:len("/lock")], "flags", r.Field("flags"))
	}
	fmt.Println("reads:", len(server.Requests("getChildren*")))
	// Output:
	// create /lock flags 3
	// create /lock flags 0
	// create /lock flags 3
	// reads: 1
}

// The network from the leader to the others is slow, but not the way back.
func ExampleCluster_SetLink() {
	t := newT()
	defer t.end()

	cluster := lockkeepertest.StartCluster(t, 3)
	leader := cluster.Leader()
	conn := cluster.Server(leader).Connect(t, 30*time.Second)
	for i := 1; i <= 3; i++ {
		if i != leader {
			cluster.SetLink(leader, i, lockkeepertest.Link{Delay: 50 * time.Millisecond})
		}
	}
	began := time.Now()
	if _, err := conn.Create("/a", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	fmt.Println("a write takes at least 50 ms:", time.Since(began) >= 50*time.Millisecond)
	cluster.Heal()
	// Output: a write takes at least 50 ms: true
}

// A member whose disk is full stops serving clients. The others continue.
func ExampleServer_SetDisk() {
	t := newT()
	defer t.end()

	cluster := lockkeepertest.StartCluster(t, 3)
	full := cluster.Leader()%3 + 1
	cluster.Server(full).SetDisk(lockkeepertest.Disk{Full: true})
	conn := cluster.Server(cluster.Leader()).Connect(t, 30*time.Second)
	_, err := conn.Create("/a", nil, 0, zk.WorldACL(zk.PermAll))
	fmt.Println("create:", err)

	cluster.Server(full).Kill()
	cluster.Server(full).SetDisk(lockkeepertest.Disk{})
	cluster.Server(full).Restart()
	cluster.Server(full).Connect(t, 30*time.Second)
	fmt.Println("the member is back")
	// Output:
	// create: <nil>
	// the member is back
}

// A paused leader is replaced. When it is resumed, it gets what was written meanwhile.
func ExampleServer_Pause() {
	t := newT()
	defer t.end()

	cluster := lockkeepertest.StartCluster(t, 3, lockkeepertest.WithConfig(func(c *lockkeeper.Config) {
		c.ElectionTimeout = 500 * time.Millisecond
	}))
	paused := cluster.Leader()
	cluster.Server(paused).Pause()
	conn := cluster.Server(paused%3+1).Connect(t, 30*time.Second) // waits for a new leader
	if _, err := conn.Create("/a", []byte("news"), 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("paused: %q\n", cluster.Server(paused).Tree())

	cluster.Server(paused).Resume()
	again := cluster.Server(paused).Connect(t, 30*time.Second)
	if _, err := again.Sync("/"); err != nil {
		t.Fatal(err)
	}
	fmt.Print("resumed: ", cluster.Server(paused).Tree())
	// Output:
	// paused: ""
	// resumed: /a = "news"
}

// The leader hands over to another member.
func ExampleCluster_StepDown() {
	t := newT()
	defer t.end()

	cluster := lockkeepertest.StartCluster(t, 3)
	before := cluster.Leader()
	after := cluster.StepDown()
	fmt.Println("another one leads:", after != before)
	// Output: another one leads: true
}

// A session and its ephemeral znode survive the end of the cluster's leader.
func ExampleStartCluster() {
	t := newT()
	defer t.end()

	cluster := lockkeepertest.StartCluster(t, 3)
	leader := cluster.Leader()
	conn := cluster.Server(leader%3+1).Connect(t, 30*time.Second) // a client of a follower
	if _, err := conn.Create("/lock", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}

	cluster.Server(leader).Kill()
	cluster.Leader() // waits for a new leader
	for {
		held, _, err := conn.Exists("/lock")
		if err == nil {
			fmt.Println("the lock is held:", held)
			break
		}
		time.Sleep(time.Millisecond) // not connected yet
	}
	cluster.Server(leader).Restart()
	// Output: the lock is held: true
}

// Tests share a server, and each begins with the same znodes.
func ExampleServer_Snapshot() {
	t := newT()
	defer t.end()

	server := lockkeepertest.Start(t, lockkeepertest.WithTree(`/config/hosts = "a,b"`))
	clean := server.Snapshot()
	for range 2 { // for each test
		conn := server.Connect(t, 30*time.Second)
		if _, err := conn.Set("/config/hosts", []byte("c"), 0); err != nil {
			t.Fatal(err)
		}
		path, err := conn.Create("/config/job-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(path)
		conn.Close()
		server.Restore(clean)
	}
	fmt.Print(server.Tree())
	// Output:
	// /config/job-0000000001
	// /config/job-0000000001
	// /config
	// /config/hosts = "a,b"
}
