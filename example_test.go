package lockkeeper_test

import (
	"context"
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
