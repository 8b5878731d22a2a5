package lockkeeper_test

import (
	"context"
	"errors"
	"fmt"
	"log"
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

// Three servers form a cluster. Usually each runs in its own process, and all have the
// same Peers. A program that embeds one of them can inspect and change the cluster.
func Example_cluster() {
	peers := map[uint64]string{}
	for id := uint64(1); id <= 3; id++ {
		addr, release := freeAddress()
		defer release()
		peers[id] = addr
	}
	servers := map[uint64]*lockkeeper.Server{}
	for id := range peers {
		server, err := lockkeeper.Open(lockkeeper.Config{ID: id, Peers: peers, ElectionTimeout: time.Second})
		if err != nil {
			log.Fatal(err)
		}
		defer server.Close()
		servers[id] = server
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
	fmt.Println("server 1 leads:", server.Status().Leader == 1)

	if err := server.RemoveMember(ctx, 3); err != nil {
		log.Fatal(err)
	}
	fmt.Println("server 3 knows:", errors.Is(<-servers[3].Err(), lockkeeper.ErrRemoved))

	// Another server replaces it. It waits until it is added.
	addr, release := freeAddress()
	defer release()
	four, err := lockkeeper.Open(lockkeeper.Config{ID: 4, PeerAddr: addr})
	if err != nil {
		log.Fatal(err)
	}
	defer four.Close()
	if err := server.AddMember(ctx, lockkeeper.Peer{ID: 4, Addr: addr}); err != nil {
		log.Fatal(err)
	}
	if err := four.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	for _, member := range server.Members() {
		fmt.Println("server", member.ID)
	}
	// Output:
	// 3 members
	// server 1 leads: true
	// server 3 knows: true
	// server 1
	// server 2
	// server 4
}
