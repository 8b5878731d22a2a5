package server

import (
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/session"
)

// warnings keeps clients from filling the log: of each kind at most
// warnBurst lines a second are logged, and the next one tells how many were not.
type warnings struct {
	mu      sync.Mutex
	said    map[string]*said
	waiting []func() // to be logged by logWaiting, in this order
	logging bool     // logWaiting runs
}

type said struct {
	since  time.Time
	lines  int
	unsaid int
}

const (
	warnBurst  = 50
	maxWaiting = 1000 // lines for a log that takes none
)

// warn logs something about a connection that its client brought about. The log
// may block: the applier, and whoever holds a lock, calls warnLater.
func (c *conn) warn(msg string, args ...any) {
	if say := c.warning(msg, msg, args...); say != nil {
		say()
	}
}

// warnLater is warn on a goroutine that nobody waits for. Lines of one kind count
// as alike, whatever msg says.
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

// logWaiting logs what waits for it, and ends when nothing does.
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

// warning returns what warn does, or nil if there was enough of this kind.
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
