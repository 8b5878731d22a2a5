package server

import (
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/session"
)

// warnings keeps clients from filling the log: at most warnBurst lines of each kind
// are logged per second, and the next line says how many were suppressed.
type warnings struct {
	mu      sync.Mutex
	said    map[string]*said // by kind
	waiting []func()         // lines for logWaiting to log, in this order
	logging bool             // logWaiting is running
}

type said struct {
	since  time.Time
	lines  int
	unsaid int
}

const (
	warnBurst  = 50
	maxWaiting = 1000 // lines kept while the log blocks
)

// warn logs a warning about a connection that its client has caused. The log may
// block, so the applier, and any caller that holds a lock, must use warnLater.
func (c *conn) warn(msg string, args ...any) {
	if say := c.warning(msg, msg, args...); say != nil {
		say()
	}
}

// warnLater is like warn but does not block: another goroutine writes to the log.
// The limit is per kind, whatever msg says.
func (c *conn) warnLater(kind, msg string, args ...any) {
	say := c.warning(kind, msg, args...)
	w := &c.s.warnings
	w.mu.Lock()
	defer w.mu.Unlock()
	if say == nil || len(w.waiting) >= maxWaiting {
		return
	}
	if !w.logging {
		if !c.s.enter() {
			return
		}
		w.logging = true
		go c.s.logWaiting()
	}
	w.waiting = append(w.waiting, say)
}

// logWaiting logs the waiting lines and returns when there are none.
func (s *Server) logWaiting() {
	defer s.wg.Done()
	w := &s.warnings
	for {
		w.mu.Lock()
		waiting := w.waiting
		w.waiting = nil
		w.logging = len(waiting) > 0
		w.mu.Unlock()
		if len(waiting) == 0 {
			return
		}
		for _, say := range waiting {
			say()
		}
	}
}

// warning returns a function that logs the warning, or nil if it is suppressed.
func (c *conn) warning(kind, msg string, args ...any) (say func()) {
	unsaid, ok := c.s.warnings.allow(kind, time.Now())
	if !ok {
		return nil
	}
	args = append([]any{"client", c.remote(), "session", session.FormatID(c.session)}, args...)
	if unsaid > 0 {
		args = append(args, "unsaid", unsaid)
	}
	return func() { c.s.cfg.Log.Warn(msg, args...) }
}

func (w *warnings) allow(msg string, now time.Time) (unsaid int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.said[msg]
	if s == nil {
		if w.said == nil {
			w.said = map[string]*said{}
		}
		s = &said{since: now}
		w.said[msg] = s
	}
	if now.Sub(s.since) >= time.Second {
		s.since, s.lines = now, 0
	}
	if s.lines++; s.lines > warnBurst {
		s.unsaid++
		return 0, false
	}
	unsaid, s.unsaid = s.unsaid, 0
	return unsaid, true
}
