package cluster

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// backgroundLog is the handler of a member's log. The one below may block, as a pipe that nobody reads does. So lines are
// handed to it in order by a goroutine, which ends when it has none, and nothing else waits for them.
type backgroundLog struct {
	slog.Handler
	lines *logLines
}

// logLines are the lines that were not handed on yet. Its methods are safe for concurrent use.
type logLines struct {
	mu      sync.Mutex
	waiting []func()
	done    chan struct{} // closed when the goroutine ends; nil if there is none
}

// mostUnlogged is how many lines may wait while the log blocks, some 50 MB. Further ones are left out.
const mostUnlogged = 100_000

// Handle implements [slog.Handler].
func (b backgroundLog) Handle(ctx context.Context, r slog.Record) error {
	r, l := r.Clone(), b.lines
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) < mostUnlogged {
		l.waiting = append(l.waiting, func() { b.Handler.Handle(ctx, r) })
	}
	if l.done == nil {
		l.done = make(chan struct{})
		go l.write(l.done)
	}
	return nil
}

// WithAttrs implements [slog.Handler].
func (b backgroundLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return backgroundLog{b.Handler.WithAttrs(attrs), b.lines}
}

// WithGroup implements [slog.Handler].
func (b backgroundLog) WithGroup(name string) slog.Handler {
	return backgroundLog{b.Handler.WithGroup(name), b.lines}
}

func (l *logLines) write(done chan struct{}) {
	defer close(done)
	for {
		l.mu.Lock()
		if len(l.waiting) == 0 {
			l.done = nil
			l.mu.Unlock()
			return
		}
		write := l.waiting[0]
		l.waiting = l.waiting[1:]
		l.mu.Unlock()
		write()
	}
}

// wait waits until the log has taken all lines, but no longer than a second.
func (l *logLines) wait() {
	l.mu.Lock()
	done := l.done
	l.mu.Unlock()
	if done != nil {
		select {
		case <-done:
		case <-time.After(time.Second):
		}
	}
}
