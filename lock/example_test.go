package lock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/lock"
	"github.com/lockkeeper/lockkeeper/lock/fence"
)

// client returns a client of a server in memory. Yours connects to your ZooKeeper, and its
// Dialer needs no Base.
func client() (conn *zk.Conn, dialer *lock.Dialer, done func()) {
	server, err := lockkeeper.Open(lockkeeper.Config{})
	if err != nil {
		log.Fatal(err)
	}
	<-server.Ready()
	dialer = &lock.Dialer{Base: server.Dial}
	conn, _, err = zk.Connect([]string{"127.0.0.1:2181"}, 10*time.Second, zk.WithDialer(dialer.Dial), zk.WithLogger(silent{}))
	if err != nil {
		log.Fatal(err)
	}
	return conn, dialer, func() {
		conn.Close()
		server.Close()
	}
}

// A mutex around something that checks fencing tokens.
func Example() {
	conn, dialer, done := client()
	defer done()
	ctx := context.Background()

	mutex := lock.NewMutex(conn, "/locks/report", lock.WithDialer(dialer))
	held, err := mutex.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer held.Unlock(ctx)

	var report fence.Checker // of whatever stores the report
	err = report.Do(held.Token(), func() error {
		fmt.Println("writing")
		return held.Context(ctx).Err() // ends when the lock is lost
	})
	fmt.Println(err)
	// Output:
	// writing
	// <nil>
}

// A client waits for the lock, but no longer than a minute.
func ExampleNewMutex() {
	conn, dialer, done := client()
	defer done()
	mutex := lock.NewMutex(conn, "/locks/report", lock.WithDialer(dialer))

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	held, err := mutex.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("lost:", held.Err())
	fmt.Println("unlocked:", held.Unlock(context.Background())) // not ctx, which may have ended
	fmt.Println(held.Err())
	// Output:
	// lost: <nil>
	// unlocked: <nil>
	// lock: unlocked
}

// A lock with a time limit, as in C#:
//
//	await using var handle = await @lock.TryAcquireAsync(TimeSpan.FromSeconds(1));
//	if (handle == null) { … }
func ExampleMutex_Lock() {
	conn, dialer, done := client()
	defer done()
	mutex := lock.NewMutex(conn, "/locks/report", lock.WithDialer(dialer))
	other, err := mutex.Lock(context.Background())
	if err != nil {
		log.Fatal(err)
	}

	attempt := func(patience time.Duration) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		held, err := mutex.Lock(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			fmt.Println("not free in time")
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		defer held.Unlock(context.Background()) // not ctx, which may have ended
		fmt.Println("got it")
	}
	attempt(200 * time.Millisecond)
	if err := other.Unlock(context.Background()); err != nil {
		log.Fatal(err)
	}
	attempt(time.Minute)
	// Output:
	// not free in time
	// got it
}

// A client that has something else to do if another one has the lock.
func ExampleMutex_TryLock() {
	conn, dialer, done := client()
	defer done()
	ctx := context.Background()
	mutex := lock.NewMutex(conn, "/locks/report", lock.WithDialer(dialer))
	held, err := mutex.TryLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer held.Unlock(ctx)

	if _, err := mutex.TryLock(ctx); errors.Is(err, lock.ErrBusy) {
		fmt.Println("another one has it")
	}
	// Output: another one has it
}

// The Dialer of a connection tells the locks, and the program, which session timeout the server
// has granted: here 20 of its ticks, which is less than what was asked for.
func ExampleDialer() {
	server, err := lockkeeper.Open(lockkeeper.Config{TickTime: 100 * time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	<-server.Ready()

	dialer := lock.Dialer{Base: server.Dial} // yours needs no Base
	conn, _, err := zk.Connect([]string{"127.0.0.1:2181"}, time.Minute, zk.WithDialer(dialer.Dial), zk.WithLogger(silent{}))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	held, err := lock.NewMutex(conn, "/locks/report", lock.WithDialer(&dialer)).Lock(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(dialer.SessionTimeout(), held.Remaining() <= 2*dialer.SessionTimeout()/3)
	// Output: 2s true
}

// The habits of Redisson's RLock. lock() blocks, and so does Lock. Redisson's watchdog renews
// the lease; here the session is kept alive, and Lost tells when that has failed. The thread
// that holds the lock may take it again; here it is the context. Only the holder can unlock it.
func ExampleReentrant() {
	conn, dialer, done := client()
	defer done()
	mutex := lock.NewMutex(conn, "/locks/account", lock.WithDialer(dialer), lock.Reentrant())

	withdraw := func(ctx context.Context) error {
		held, err := mutex.Lock(ctx)
		if err != nil {
			return err
		}
		defer held.Unlock(context.WithoutCancel(ctx))
		fmt.Println("withdraw")
		return nil
	}
	transfer := func(ctx context.Context) error {
		held, err := mutex.Lock(ctx)
		if err != nil {
			return err
		}
		defer held.Unlock(ctx)
		if err := withdraw(held.Context(ctx)); err != nil { // takes the lock again
			return err
		}
		fmt.Println("deposit")
		return held.Err()
	}
	fmt.Println(transfer(context.Background()))
	// Output:
	// withdraw
	// deposit
	// <nil>
}

// Many readers or one writer.
func ExampleNewRWMutex() {
	conn, dialer, done := client()
	defer done()
	ctx := context.Background()
	prices := lock.NewRWMutex(conn, "/locks/prices", lock.WithDialer(dialer))
	first, err := prices.RLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	second, err := prices.RLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = prices.TryLock(ctx)
	fmt.Println("a writer:", errors.Is(err, lock.ErrBusy))
	first.Unlock(ctx)
	second.Unlock(ctx)
	writer, err := prices.TryLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("then:", writer.Unlock(ctx))
	// Output:
	// a writer: true
	// then: <nil>
}

// At most two at a time.
func ExampleNewSemaphore() {
	conn, dialer, done := client()
	defer done()
	ctx := context.Background()
	downloads := lock.NewSemaphore(conn, "/semaphores/downloads", 2, lock.WithDialer(dialer))
	var mu sync.Mutex
	running, most := 0, 0
	count := func(by int) {
		mu.Lock()
		defer mu.Unlock()
		running += by
		most = max(most, running)
	}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			slot, err := downloads.Lock(ctx)
			if err != nil {
				log.Fatal(err)
			}
			defer slot.Unlock(ctx)
			count(1)
			time.Sleep(time.Millisecond)
			count(-1)
		})
	}
	wg.Wait()
	fmt.Println("more than two:", most > 2)
	// Output: more than two: false
}

// One of several candidates leads until it resigns or is lost.
func ExampleNewElection() {
	conn, dialer, done := client()
	defer done()
	ctx := context.Background()
	election := lock.NewElection(conn, "/election", lock.WithDialer(dialer), lock.WithData([]byte("host-a")))
	leads, err := election.Campaign(ctx)
	if err != nil {
		log.Fatal(err)
	}
	who, token, err := election.Leader(ctx)
	fmt.Println(string(who), token == leads.Token(), err)
	select {
	case <-leads.Lost(): // stop leading
	case <-time.After(time.Millisecond): // the work is done
	}
	fmt.Println(leads.Unlock(ctx)) // resign
	// Output:
	// host-a true <nil>
	// <nil>
}
