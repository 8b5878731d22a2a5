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
	mu    sync.Mutex
	kinds map[string]*warnCount
}

// warnCount counts the lines of one kind.
type warnCount struct {
	since      time.Time // when the current second began
	lines      int       // asked for since then
	suppressed int       // since the last line that was logged
}

const (
	warnBurst = 50
	maxText   = 1000 // bytes of a text in a line, such as a path; the rest is cut off
)

// warn logs a warning about a connection that its client has caused.
func (c *conn) warn(msg string, args ...any) { c.s.warn(msg, msg, c.named(args)) }

// named returns args after those that name the client and its session.
func (c *conn) named(args []any) []any {
	return append([]any{"client", c.remote(), "session", session.FormatID(c.session)}, args...)
}

// warn logs a warning, unless too many of its kind have come, whatever msg says.
func (s *Server) warn(kind, msg string, args []any) {
	suppressed, ok := s.warnings.allow(kind, time.Now())
	if !ok {
		return
	}
	if suppressed > 0 {
		args = append(args, "suppressed", suppressed)
	}
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			args[i] = shortened(text)
		}
	}
	s.cfg.Log.Warn(shortened(msg), args...)
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
