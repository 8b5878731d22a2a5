//go:build interop

package interop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/redis/go-redis/v9"
)

// programDeadline is how long a lock program may run.
const programDeadline = 3 * time.Minute

// turn takes the lock of dir, calls work while it holds the lock, and releases it. seq is
// its position in the queue, or -1.
type turn func(ctx context.Context, conn *zk.Conn, dir string, work func(seq int64) error) error

// byRecipe uses the lock recipe as applications write it.
func byRecipe(ctx context.Context, conn *zk.Conn, dir string, work func(int64) error) error {
	t, err := lock(ctx, conn, dir)
	if err != nil {
		return err
	}
	return errors.Join(work(t.seq), unlock(conn, t))
}

// byNewLock uses the lock of go-zookeeper.
func byNewLock(_ context.Context, conn *zk.Conn, dir string, work func(int64) error) error {
	l := zk.NewLock(conn, dir, openACL)
	if err := l.Lock(); err != nil {
		return fmt.Errorf("zk.Lock: %w", err)
	}
	return errors.Join(work(-1), l.Unlock())
}

// byOneZnode uses the simplest recipe: the client that creates a certain ephemeral znode
// holds the lock. All others watch it, and try again when it is deleted.
func byOneZnode(ctx context.Context, conn *zk.Conn, dir string, work func(int64) error) error {
	holder := dir + "/holder"
	for {
		_, err := conn.Create(holder, nil, zk.FlagEphemeral, openACL)
		if err == nil {
			return errors.Join(work(-1), conn.Delete(holder, -1))
		}
		if !errors.Is(err, zk.ErrNodeExists) {
			return fmt.Errorf("create %s: %w", holder, err)
		}
		exists, _, gone, err := conn.ExistsW(holder)
		if err != nil {
			return fmt.Errorf("exists %s: %w", holder, err)
		}
		if !exists {
			continue
		}
		select {
		case ev := <-gone:
			if ev.Err != nil {
				return fmt.Errorf("watch of %s: %w", holder, ev.Err)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TestLockProgram runs many goroutines that increment a counter in Redis, protected only
// by the lock. No increment may be lost.
func TestLockProgram(t *testing.T) {
	t.Parallel()
	client := startRedis(t)
	for _, program := range []struct {
		name              string
		turn              turn
		conns, goroutines int // goroutines for each connection
	}{
		{"recipe, 1 connection of 1000", byRecipe, 1, 1000},
		{"recipe, 50 connections of 20", byRecipe, 50, 20},
		{"zk.NewLock, 1 connection of 1000", byNewLock, 1, 1000},
		{"zk.NewLock, 50 connections of 20", byNewLock, 50, 20},
		{"one znode, 10 connections of 10", byOneZnode, 10, 10},
	} {
		t.Run(program.name, func(t *testing.T) {
			addr, base := endpoint(t)
			dir := base + "/lock"
			conns := make([]*zk.Conn, program.conns)
			for i := range conns {
				conns[i] = connect(t, addr, 20*time.Second)
			}
			create(t, conns[0], dir)
			runLockProgram(t, client, program.turn, dir, conns, program.goroutines)
			if left := children(t, conns[0], dir); len(left) > 0 {
				t.Errorf("znodes left behind: %q", left)
			}
		})
	}
}

func runLockProgram(t *testing.T, client *redis.Client, turn turn, dir string, conns []*zk.Conn, goroutines int) {
	t.Helper()
	setCounter(t, client, 0)
	ctx, cancel := context.WithTimeout(context.Background(), programDeadline)
	defer cancel()

	var (
		holders atomic.Int32 // number of current holders, at most one
		last    atomic.Int64 // position in the queue of the last holder
		wg      sync.WaitGroup
	)
	last.Store(-1)
	work := func(seq int64) error {
		if n := holders.Add(1); n != 1 {
			t.Errorf("%d hold the lock at the same time", n)
		}
		defer holders.Add(-1)
		if before := last.Swap(seq); seq >= 0 && before >= seq {
			t.Errorf("position %d got the lock after position %d", seq, before)
		}
		return addOne(ctx, client)
	}
	began := time.Now()
	for _, conn := range conns {
		for range goroutines {
			wg.Go(func() {
				if err := turn(ctx, conn, dir, work); err != nil {
					t.Error(err)
				}
			})
		}
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		// zk.Lock accepts no context: closing the connections ends it.
		for _, conn := range conns {
			conn.Close()
		}
		<-done
		t.Fatalf("not done within %v, the counter is at %d", programDeadline, counter(t, client))
	}
	want := len(conns) * goroutines
	if got := counter(t, client); got != want {
		t.Errorf("the counter ends at %d, want %d", got, want)
	}
	t.Logf("%d turns in %v", want, time.Since(began).Round(time.Millisecond))
}
