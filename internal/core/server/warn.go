package server

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/session"
)

// warnings keeps clients from filling the log: at most warnBurst lines of each kind
// are logged per second, and the next line says how many were suppressed. Long texts
// in them are cut.
type warnings struct {
	mu      sync.Mutex
	kinds   map[string]*warnCount
	waiting []func() // lines for logWaiting to log, in this order
	logging bool     // logWaiting is running
}

// warnCount counts the lines of one kind.
type warnCount struct {
	since      time.Time // when the current second began
	lines      int       // asked for since then
	suppressed int       // since the last line that was logged
}

const (
	warnBurst  = 50
	maxWaiting = 1000 // lines kept while the log blocks
	maxText    = 1000 // bytes of a text in a line, such as a path; the rest is cut off
)

// warn logs a warning about a connection that its client has caused. The log may
// block, so the applier, and any caller that holds a lock, must use warnLater.
func (c *conn) warn(msg string, args ...any) {
	if say := c.s.warning(msg, msg, c.named(args)...); say != nil {
		say()
	}
}

// warnLater is like warn but does not block: another goroutine writes to the log.
func (c *conn) warnLater(msg string, args ...any) { c.s.warnLater(msg, msg, c.named(args)...) }

// named returns args after those that name the client and its session.
func (c *conn) named(args []any) []any {
	return append([]any{"client", c.remote(), "session", session.FormatID(c.session)}, args...)
}

// warnLater logs a warning like [conn.warnLater], without a connection. The limit is per kind, whatever msg says.
func (s *Server) warnLater(kind, msg string, args ...any) {
	say := s.warning(kind, msg, args...)
	w := &s.warnings
	w.mu.Lock()
	defer w.mu.Unlock()
	if say == nil || len(w.waiting) >= maxWaiting {
		return
	}
	if !w.logging {
		if !s.enter() {
			return
		}
		w.logging = true
		go s.logWaiting()
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
func (s *Server) warning(kind, msg string, args ...any) (say func()) {
	suppressed, ok := s.warnings.allow(kind, time.Now())
	if !ok {
		return nil
	}
	if suppressed > 0 {
		args = append(args, "suppressed", suppressed)
	}
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			args[i] = shortened(text)
		}
	}
	msg = shortened(msg)
	return func() { s.cfg.Log.Warn(msg, args...) }
}

// shortened cuts off what a text has beyond maxText, and says how long it was.
func shortened(text string) string {
	if len(text) <= maxText {
		return text
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(text[:maxText], ""), len(text))
}

// allow decides whether a line of that kind may be logged now, and returns how many lines
// were suppressed before it.
func (w *warnings) allow(kind string, now time.Time) (suppressed int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.kinds[kind]
	if s == nil {
		if w.kinds == nil {
			w.kinds = map[string]*warnCount{}
		}
		s = &warnCount{since: now}
		w.kinds[kind] = s
	}
	if now.Sub(s.since) >= time.Second {
		s.since, s.lines = now, 0
	}
	if s.lines++; s.lines > warnBurst {
		s.suppressed++
		return 0, false
	}
	suppressed, s.suppressed = s.suppressed, 0
	return suppressed, true
}
