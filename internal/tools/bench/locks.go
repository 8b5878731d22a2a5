package bench

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/stock"
	"github.com/lockkeeper/lockkeeper/proto"
)

func (r *Run) stock(i int) (*zk.Conn, error) {
	addr := r.Target.Addrs[i%len(r.Target.Addrs)]
	conn, events, err := zk.Connect([]string{addr}, sessionTimeout, zk.WithLogger(stock.Quiet{}), zk.WithLogInfo(false),
		zk.WithDialer(func(_, _ string, _ time.Duration) (net.Conn, error) { return r.dial(i) }))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.ctx, frameTimeout)
	defer cancel()
	if err := stock.Await(ctx, events); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// stockLocks takes and releases locks for which nobody else waits.
func stockLocks(r *Run, n int) error {
	conns := make([]*zk.Conn, n)
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}()
	err := atOnce(setupParallel, n, func(i int) (err error) {
		if conns[i], err = r.stock(i); err == nil {
			_, err = conns[i].Create(r.parent(i), nil, 0, zk.WorldACL(zk.PermAll))
		}
		return err
	})
	if err != nil {
		return err
	}
	return r.Measured(n, func(i int, w *Worker) {
		for w.More() {
			lock := zk.NewLock(conns[i], r.parent(i), zk.WorldACL(zk.PermAll))
			began := time.Now()
			err := lock.Lock()
			if err == nil {
				err = lock.Unlock()
			}
			if err == nil {
				w.Done(time.Since(began))
				continue
			}
			w.Fail(err)
			if !r.emptied(conns[i], r.parent(i)) {
				return
			}
		}
	})
}

// emptied deletes what an unsuccessful attempt has left in the queue of a lock, behind
// which the next attempt would wait.
func (r *Run) emptied(conn *zk.Conn, path string) bool {
	for !r.Stopped() {
		list, _, err := conn.Children(path)
		for _, name := range list {
			if e := conn.Delete(path+"/"+name, -1); err == nil && e != zk.ErrNoNode {
				err = e
			}
		}
		if err == nil {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// queue checks that a lock has one holder at a time, by the numbers of the znodes in its
// queue. It knows a number from the time that the client knows it until the client
// releases the lock, so a second holder is found even if neither holds the lock for long.
type queue struct {
	mu       sync.Mutex
	waiting  map[int]bool // and the holder
	highest  int          // that has held the lock
	released time.Time    // when the last holder sent its delete
}

func newQueue() *queue { return &queue{waiting: map[int]bool{}, highest: -1} }

// join notes that the znode with this number is in the queue.
func (q *queue) join(n int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.waiting[n]:
		return fmt.Errorf("two holders are possible: two clients have number %d in the queue", n)
	case n < q.highest:
		return fmt.Errorf("two holders: a client with number %d in the queue held the lock before number %d, which had not released it", q.highest, n)
	}
	q.waiting[n] = true
	return nil
}

// hold notes that the client with this number holds the lock now, and returns the time
// since the last holder released it, if there was one.
func (q *queue) hold(n int) (took time.Duration, handed bool, err error) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	for other := range q.waiting {
		if other < n {
			return 0, false, fmt.Errorf("two holders: number %d in the queue holds the lock, but number %d has not released it", n, other)
		}
	}
	q.highest = n
	handed = !q.released.IsZero()
	return now.Sub(q.released), handed, nil
}

// release notes that the client is about to send its delete.
func (q *queue) release(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiting, n)
	q.released = time.Now()
}

// leave notes that the session of the client has ended.
func (q *queue) leave(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiting, n)
	q.released = time.Time{} // the next holder has the lock for another reason
}

// handOver lets n sessions compete for one lock with the usual recipe. Each releases it at
// once and queues again; with one session, it takes the lock again itself.
func handOver(r *Run, n int) error {
	parent := r.Root + "/lock"
	prepare := func(clients []*rawclient.Client) error { _, err := clients[0].Create(parent, nil, 0); return err }
	return r.withSessions(n, prepare, func(clients []*rawclient.Client) error {
		q := newQueue()
		return r.Measured(n, func(i int, w *Worker) {
			for w.More() {
				if err := r.holdOnce(clients[i], parent, q, w); err != nil {
					w.Fail(err)
					// Let the others go on: the session's znode must not stay in the queue.
					clients[i] = r.replace(clients[i], i)
					if clients[i] == nil {
						return
					}
				}
			}
		})
	})
}

func (r *Run) holdOnce(c *rawclient.Client, parent string, q *queue, w *Worker) error {
	path, err := c.Create(parent+"/n-", nil, proto.FlagEphemeralSeq)
	if err != nil {
		return err
	}
	number, err := sequence(path)
	if err == nil {
		err = q.join(number)
	}
	if err != nil {
		return r.violated(err)
	}
	for {
		before, err := predecessor(c, parent, number)
		if err != nil {
			q.leave(number)
			return err
		}
		if before == "" {
			break
		}
		switch _, err := c.Get(parent+"/"+before, true); {
		case err == proto.NoNode:
		case err != nil:
			q.leave(number)
			return err
		default:
			if err := event(c, parent+"/"+before); err != nil {
				q.leave(number)
				return err
			}
		}
	}
	took, handed, err := q.hold(number)
	if err != nil {
		return r.violated(err)
	}
	if handed {
		w.Done(took)
	}
	q.release(number)
	return c.Delete(path)
}

func (r *Run) violated(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.result.TwoHolders == "" {
		r.result.TwoHolders = err.Error()
	}
	r.Stop()
	return err
}

// predecessor returns the name of the znode before the one with this number in the queue,
// "" if there is none.
func predecessor(c *rawclient.Client, parent string, number int) (string, error) {
	var list proto.ChildrenReply
	if _, err := c.Call(proto.OpGetChildren, &proto.PathWatch{Path: parent}, &list); err != nil {
		return "", err
	}
	before, highest, own := "", -1, false
	for _, name := range list.Names {
		n, err := sequence(name)
		switch {
		case err != nil:
			return "", err
		case n < number && n > highest:
			before, highest = name, n
		case n == number:
			own = true
		}
	}
	if !own {
		return "", fmt.Errorf("number %d is not in the queue any more", number)
	}
	return before, nil
}

// sequence returns the number at the end of the name of a sequential znode.
func sequence(path string) (int, error) {
	return strconv.Atoi(path[strings.LastIndexByte(path, '-')+1:])
}
