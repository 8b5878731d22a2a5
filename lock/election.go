package lock

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/core/locks"
)

// Election decides which of several candidates leads. The candidates are the contenders of a
// mutex, so Curator's LeaderSelector and, with extra_lock_patterns=["lock-"] in its lock,
// kazoo's Election can take part. Its methods may be called from any goroutine, and each call of
// Campaign is a candidate of its own.
type Election struct{ q *queue }

// NewElection returns the election at a path, like [NewMutex]. [WithData] tells others who the
// candidate is.
func NewElection(conn Conn, path string, options ...Option) *Election {
	return &Election{newQueue(conn, path, newOptions(options))}
}

// Campaign waits until this candidate leads, like [Mutex.Lock]. It leads until it resigns with
// [Held.Unlock], or [Held.Lost] is closed.
func (e *Election) Campaign(ctx context.Context) (*Held, error) {
	return e.q.lock(ctx, exclusive, true)
}

// Leader returns the data of the candidate that leads, and its fencing token. It returns
// [ErrNoCandidate] if there is no candidate. The answer may be old when it arrives.
func (e *Election) Leader(ctx context.Context) (data []byte, token int64, err error) {
	if e.q.wrong != nil {
		return nil, 0, fmt.Errorf("lock: leader of %s: %w", e.q.path, e.q.wrong)
	}
	type answer struct {
		data  []byte
		token int64
		err   error
	}
	// go-zookeeper's requests end when they are answered, or the connection is lost.
	c := make(chan answer, 1)
	go func() {
		var a answer
		a.data, a.token, a.err = e.q.first()
		c <- a
	}()
	select {
	case a := <-c:
		if a.err != nil {
			a.err = fmt.Errorf("lock: leader of %s: %w", e.q.path, a.err)
		}
		return a.data, a.token, a.err
	case <-ctx.Done():
		return nil, 0, fmt.Errorf("lock: leader of %s: %w", e.q.path, reason(ctx))
	}
}

// first returns the data and the czxid of the first contender.
func (q *queue) first() ([]byte, int64, error) {
	for {
		children, _, err := q.conn.Children(q.path)
		line := locks.Queue(children, false)
		if errors.Is(err, zk.ErrNoNode) || err == nil && len(line) == 0 {
			return nil, 0, ErrNoCandidate
		}
		if err != nil {
			return nil, 0, err
		}
		data, stat, err := q.conn.Get(q.at(line[0].Name))
		if errors.Is(err, zk.ErrNoNode) {
			continue // the next one leads
		}
		if err != nil {
			return nil, 0, err
		}
		return data, stat.Czxid, nil
	}
}

// Wait is like [Mutex.Wait].
func (e *Election) Wait(ctx context.Context) error { return e.q.wait(ctx) }
