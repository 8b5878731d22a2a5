package server

import (
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/session"
)

// warnings keeps clients from filling the log: of each kind at most
// warnBurst lines a second are logged, and the next one tells how many were not.
type warnings struct {
	mu   sync.Mutex
	said map[string]*said
}

type said struct {
	since  time.Time
	lines  int
	unsaid int
}

const warnBurst = 50

// warn logs something about a connection that its client brought about.
func (c *conn) warn(msg string, args ...any) {
	if say := c.warning(msg, msg, args...); say != nil {
		say()
	}
}

// warning is what warn does, to be done later, where it may take time; nil if
// there was enough of this kind.
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
