package testkit

import (
	"log/slog"
	"strings"
	"sync"
)

// Quiet is a log for servers under test that writes nothing.
var Quiet = slog.New(slog.DiscardHandler)

// Log is a log for servers under test that the test can read. The zero value is empty.
type Log struct {
	mu   sync.Mutex
	text strings.Builder
}

// Logger writes to the log what has at least that level.
func (l *Log) Logger(least slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: least}))
}

// Write appends to the log.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// String returns the whole log.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Reset empties the log, and returns what it had.
func (l *Log) Reset() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// Count returns how often the log has a text.
func (l *Log) Count(text string) int { return strings.Count(l.String(), text) }

// Matching returns the lines that contain all of the words.
func (l *Log) Matching(words ...string) (found []string) {
next:
	for line := range strings.Lines(l.String()) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue next
			}
		}
		found = append(found, line)
	}
	return found
}
