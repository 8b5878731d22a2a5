package lockkeepertest

import (
	"bytes"
	"fmt"
	"runtime/pprof"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// checkGoroutines fails the test if the stopped server has left a goroutine behind.
func (s *Server) checkGoroutines() {
	s.t.Helper()
	var left profile
	wait := 100 * time.Microsecond
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(wait) {
		if left = goroutines(); left.err != nil {
			s.t.Errorf("lockkeepertest: %v", left.err)
			return
		}
		if !left.labels[s.label] {
			return
		}
		wait = min(2*wait, 100*time.Millisecond)
	}
	s.t.Errorf("lockkeepertest: the server left goroutines behind:\n%s", left.text)
}

// profile is a profile of all goroutines.
type profile struct {
	number int64 // counts profiles in the order in which they were begun
	text   []byte
	labels map[string]bool // of servers
	err    error
}

// newest is the newest profile. Tests that end at the same time share one, since the more
// servers run, the longer a profile takes.
var newest struct {
	begun atomic.Int64 // how many profiles were begun
	mu    sync.Mutex
	profile
}

// goroutines returns a profile that was begun after the call.
func goroutines() profile {
	number := newest.begun.Load() + 1
	newest.mu.Lock()
	defer newest.mu.Unlock()
	if newest.number >= number {
		return newest.profile
	}
	p := profile{number: newest.begun.Add(1), labels: map[string]bool{}}
	var text bytes.Buffer
	p.err = pprof.Lookup("goroutine").WriteTo(&text, 1)
	p.text = text.Bytes()
	key := fmt.Appendf(nil, "%q:", labelKey)
	for rest := p.text; ; {
		_, after, ok := bytes.Cut(rest, key)
		if !ok {
			break
		}
		var line []byte
		line, rest, _ = bytes.Cut(after, []byte("\n"))
		if quoted, err := strconv.QuotedPrefix(string(line)); err == nil {
			label, _ := strconv.Unquote(quoted) // QuotedPrefix has checked it
			p.labels[label] = true
		}
	}
	newest.profile = p
	return p
}
