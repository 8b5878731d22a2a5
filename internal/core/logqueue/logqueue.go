// Package logqueue keeps what logs from waiting for the log, which may block, as a pipe that nobody reads does.
package logqueue

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Queue has the lines that a log has not taken yet. A goroutine gives them to it in order, and ends when there are none.
type Queue struct {
	log     slog.Handler
	mu      sync.Mutex
	waiting []func()
	left    *int          // how many lines were left out after the last one that waits; nil for none
	done    chan struct{} // closed when the goroutine ends; nil if there is none
	closed  bool
}

// most is how many lines may wait, 10 MB of usual ones. Further ones are left out, and the log is told how many.
const most = 20_000

// New returns a logger that writes to the log through a queue, so that nobody waits for it. If the log is the logger of a queue
// already, New returns it, and no queue.
func New(log *slog.Logger) (*slog.Logger, *Queue) {
	if _, is := log.Handler().(handler); is {
		return log, nil
	}
	q := &Queue{log: log.Handler()}
	return slog.New(q.Handler(q.log)), q
}

// Handler returns a handler that passes what it is given on to h through the queue.
func (q *Queue) Handler(h slog.Handler) slog.Handler { return handler{h, q} }

// Close waits until the log has taken all lines, but no longer than a second. Then what waits is lost, except for the line that the
// log is taking, or takes next. A nil queue is closed.
func (q *Queue) Close() {
	if q == nil {
		return
	}
	q.mu.Lock()
	done := q.done
	q.mu.Unlock()
	if done != nil {
		select {
		case <-done:
		case <-time.After(time.Second):
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.waiting = true, nil
}

// Add calls write, which writes a line, after what waits already. Nobody waits for that, and it may be left out.
func (q *Queue) Add(write func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return
	case len(q.waiting) < most:
		q.left = nil
		q.waiting = append(q.waiting, write)
	case q.left == nil:
		n := 1
		q.left = &n
		q.waiting = append(q.waiting, func() { q.sayLeft(&n) })
	default:
		*q.left++
	}
	if q.done == nil {
		q.done = make(chan struct{})
		go q.run(q.done)
	}
}

func (q *Queue) sayLeft(left *int) {
	q.mu.Lock()
	n := *left
	if q.left == left {
		q.left = nil
	}
	q.mu.Unlock()
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "lines were left out here, because the log took too long", 0)
	r.AddAttrs(slog.Int("lines", n))
	q.log.Handle(context.Background(), r) // whatever the level
}

func (q *Queue) run(done chan struct{}) {
	defer func() { // also if the log's handler ends this goroutine
		q.mu.Lock()
		defer q.mu.Unlock()
		if len(q.waiting) > 0 {
			go q.run(done)
			return
		}
		q.waiting, q.done = nil, nil
		close(done)
	}()
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.mu.Unlock()
			return
		}
		write := q.waiting[0]
		q.waiting[0] = nil
		q.waiting = q.waiting[1:]
		q.mu.Unlock()
		write()
	}
}

// handler is a [slog.Handler] in front of that of the log.
type handler struct {
	slog.Handler
	queue *Queue
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	r = r.Clone()
	h.queue.Add(func() { h.Handler.Handle(ctx, r) })
	return nil
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.queue.Handler(h.Handler.WithAttrs(attrs))
}

func (h handler) WithGroup(name string) slog.Handler {
	return h.queue.Handler(h.Handler.WithGroup(name))
}
