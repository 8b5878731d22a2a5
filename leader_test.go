package lockkeeper_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/lock"
)

// Of several processes, each of which embeds a member, one works at a time, until it is told to end.
func Example_leader() {
	told, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	server, err := lockkeeper.Open(lockkeeper.Config{
		// With an ID, Peers, PeerTLS and a DataDir, this is a member of a cluster:
		//
		//	ID: 1, Peers: []lockkeeper.Peer{{ID: 1, Addr: "a:7000"}, {ID: 2, Addr: "b:7000"}, {ID: 3, Addr: "c:7000"}},
		//	PeerTLS: &tls.Config{Certificates: own, RootCAs: ca, ClientCAs: ca, ClientAuth: tls.RequireAndVerifyClientCert},
		//	DataDir: "/var/lib/worker",
		Logger: slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	go func() {
		<-server.Done() // Err says why, if the program has not closed it
		stop()
	}()

	dialer := lock.Dialer{Base: server.Dial} // through memory: the address below is never dialled
	conn, _, err := zk.Connect([]string{"127.0.0.1:2181"}, 10*time.Second, zk.WithDialer(dialer.Dial), zk.WithLogger(silent{}))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	election := lock.NewElection(conn, "/worker", lock.WithDialer(&dialer))
	for told.Err() == nil {
		held, err := election.Campaign(told) // waits until this process leads
		if told.Err() != nil {
			break
		} else if err != nil {
			log.Fatal(err)
		}
		work(held.Context(told), held.Token())
		stop() // here, as if there had been a signal
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		fmt.Println("resigned:", held.Unlock(ctx)) // the next one leads at once
		cancel()
	}

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	election.Wait(ctx) // until none of its znodes is left
	conn.Close()
	fmt.Println("shut down:", server.Shutdown(ctx))
	// Output:
	// working
	// resigned: <nil>
	// shut down: <nil>
}

// work works until ctx ends: the process is told to end, or does not lead any more. What it writes to
// refuses a token lower than one that it has seen.
func work(ctx context.Context, token int64) {
	if ctx.Err() == nil && token > 0 {
		fmt.Println("working")
	}
}

// silent is a zk.Logger: go-zookeeper's own writes to standard error.
type silent struct{}

func (silent) Printf(string, ...any) {}
