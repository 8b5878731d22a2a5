package lockkeeper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
)

// A program starts a server inside itself and takes a lock on it with the
// stock client.
func Example() {
	server, err := lockkeeper.Open(lockkeeper.Config{}) // in memory, without a port
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()

	conn, _, err := zk.Connect([]string{"127.0.0.1:2181"}, 10*time.Second, // never dialled:
		zk.WithDialer(server.Dial), zk.WithLogInfo(false))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	lock := zk.NewLock(conn, "/locks/report", zk.WorldACL(zk.PermAll))
	if err := lock.Lock(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("one at a time")
	if err := lock.Unlock(); err != nil {
		log.Fatal(err)
	}
	// Output: one at a time
}

// With a directory and an address the server is durable, and clients of other
// processes can reach it.
func ExampleOpen() {
	dir, remove := temporaryDirectory()
	defer remove()
	server, err := lockkeeper.Open(lockkeeper.Config{DataDir: dir, ClientAddr: "127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if err := server.Wait(context.Background()); err != nil {
		log.Fatal(err)
	}

	conn, _, err := zk.Connect([]string{server.Addr().String()}, 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	path, err := conn.Create("/job-", []byte("data"), zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
	fmt.Println(path, err)
	// Output: /job-0000000000 <nil>
}

// A program that embeds go-zookeeper too connects it to the server without a port.
func ExampleServer_Dial() {
	server, err := lockkeeper.Open(lockkeeper.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	conn, _, err := zk.Connect([]string{"127.0.0.1:2181"}, 10*time.Second, // never dialled:
		zk.WithDialer(server.Dial), zk.WithLogInfo(false))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	_, err = conn.Create("/config", []byte("on"), 0, zk.WorldACL(zk.PermAll))
	fmt.Println("created:", err)
	data, _, err := conn.Get("/config")
	fmt.Println(string(data), err)
	// Output:
	// created: <nil>
	// on <nil>
}

// A program waits for the end of its server, as for that of a context.
func ExampleServer_Done() {
	server, err := lockkeeper.Open(lockkeeper.Config{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("while it serves:", server.Err())
	go server.Close() // or a fault, such as a full disk
	<-server.Done()
	switch err := server.Err(); {
	case errors.Is(err, lockkeeper.ErrClosed):
		fmt.Println("it was closed")
	case errors.Is(err, lockkeeper.ErrRemoved):
		fmt.Println("it is no member of its cluster any more:", err)
	default:
		fmt.Println("it failed:", err)
	}
	server.Close() // waits until everything of it has ended
	// Output:
	// while it serves: <nil>
	// it was closed
}

// A program that is told to end lets its server answer what it has received, and hand over
// leadership, for a limited time.
func ExampleServer_Shutdown() {
	server, err := lockkeeper.Open(lockkeeper.Config{})
	if err != nil {
		log.Fatal(err)
	}
	told, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	stop() // here, without waiting for the signal
	<-told.Done()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println("shut down:", server.Shutdown(ctx))
	// Output: shut down: <nil>
}

// A snapshot of a server is the beginning of another one, with all znodes and sessions.
func ExampleRestore() {
	dir, remove := temporaryDirectory()
	defer remove()
	server, err := lockkeeper.Open(lockkeeper.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	conn := dialed(server)
	defer conn.Close()
	if _, err := conn.Create("/kept", []byte("data"), 0, zk.WorldACL(zk.PermAll)); err != nil {
		log.Fatal(err)
	}
	var snapshot bytes.Buffer // usually a file
	if err := server.WriteSnapshot(&snapshot); err != nil {
		log.Fatal(err)
	}

	cfg := lockkeeper.Config{DataDir: filepath.Join(dir, "restored")}
	if err := lockkeeper.Restore(cfg, &snapshot); err != nil {
		log.Fatal(err)
	}
	restored, err := lockkeeper.Open(cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer restored.Close()
	again := dialed(restored)
	defer again.Close()
	data, _, err := again.Get("/kept")
	fmt.Println(string(data), err)
	// Output: data <nil>
}

// An operator's program ends the session of a client that hangs, which frees its locks.
func ExampleServer_EndSession() {
	server, err := lockkeeper.Open(lockkeeper.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	conn := dialed(server)
	defer conn.Close()
	if _, err := conn.Create("/lock", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		log.Fatal(err)
	}
	id := conn.SessionID()
	fmt.Println("ephemerals:", server.Status().State.Ephemerals)
	fmt.Println("ended:", server.EndSession(context.Background(), id))
	fmt.Println("ephemerals:", server.Status().State.Ephemerals)
	fmt.Println("again:", errors.Is(server.EndSession(context.Background(), id), lockkeeper.ErrNoSession))
	// Output:
	// ephemerals: 1
	// ended: <nil>
	// ephemerals: 0
	// again: true
}

// Two calls of Stats show what the server has done in between.
func ExampleServer_Stats() {
	server, err := lockkeeper.Open(lockkeeper.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	conn := dialed(server)
	defer conn.Close()
	if _, err := conn.Create("/counter", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		log.Fatal(err)
	}
	before := server.Stats()
	for range 3 {
		if _, err := conn.Set("/counter", nil, -1); err != nil {
			log.Fatal(err)
		}
	}
	after := server.Stats()
	fmt.Println(after.Commands-before.Commands, "commands")
	// Output: 3 commands
}

// Three servers form a cluster. Usually each runs in its own process, and all have the
// same Peers. A program that embeds one of them can inspect and change the cluster.
func Example_cluster() {
	var peers []lockkeeper.Peer
	for id := uint64(1); id <= 3; id++ {
		addr, release := freeAddress()
		defer release()
		peers = append(peers, lockkeeper.Peer{ID: id, Addr: addr})
	}
	servers := map[uint64]*lockkeeper.Server{}
	for _, p := range peers {
		server, err := lockkeeper.Open(lockkeeper.Config{ID: p.ID, Peers: peers, ElectionTimeout: time.Second})
		if err != nil {
			log.Fatal(err)
		}
		defer server.Close()
		servers[p.ID] = server
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, server := range servers {
		if err := server.Wait(ctx); err != nil {
			log.Fatal(err)
		}
	}
	server := servers[1]
	fmt.Println(len(server.Members()), "members")

	// Any member accepts changes.
	if err := server.Transfer(ctx, 1); err != nil {
		log.Fatal(err)
	}
	for server.Role() != lockkeeper.RoleLeader { // server 1 learns of it a moment later
		time.Sleep(time.Millisecond)
	}
	fmt.Println("server 1 leads:", server.Status().Cluster.Leader == 1)

	if err := server.RemoveMember(ctx, 3); err != nil {
		log.Fatal(err)
	}
	<-servers[3].Done()
	fmt.Println("server 3 knows:", errors.Is(servers[3].Err(), lockkeeper.ErrRemoved))
	// Output:
	// 3 members
	// server 1 leads: true
	// server 3 knows: true
}

// A server that waits for it is added to a cluster, here to one of a single member.
func ExampleServer_AddMember() {
	addr, release := freeAddress()
	defer release()
	first, err := lockkeeper.Open(lockkeeper.Config{ID: 1, Peers: []lockkeeper.Peer{{ID: 1, Addr: addr}}})
	if err != nil {
		log.Fatal(err)
	}
	defer first.Close()

	addr, release = freeAddress()
	defer release()
	second, err := lockkeeper.Open(lockkeeper.Config{ID: 2, PeerAddr: addr}) // waits until it is added
	if err != nil {
		log.Fatal(err)
	}
	defer second.Close()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = first.AddMember(ctx, lockkeeper.Peer{ID: 2, Addr: addr, Observer: true, ClientAddr: "lock2.example:2181"})
	if err != nil {
		log.Fatal(err)
	}
	if err := second.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	for _, p := range first.Members() {
		fmt.Printf("server %d, observer %v, %q\n", p.ID, p.Observer, p.ClientAddr)
	}
	// Output:
	// server 1, observer false, ""
	// server 2, observer true, "lock2.example:2181"
}

// dialed returns a client of the server, through memory.
func dialed(server *lockkeeper.Server) *zk.Conn {
	conn, _, err := zk.Connect([]string{"127.0.0.1:2181"}, 10*time.Second, // never dialled:
		zk.WithDialer(server.Dial), zk.WithLogInfo(false))
	if err != nil {
		log.Fatal(err)
	}
	return conn
}
