// Package auditlog writes an audit log to a file, in the form of ZooKeeper's, without waiting for
// the disk.
package auditlog

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
)

// maxQueued is how many bytes may wait for the disk. More lines are dropped.
const maxQueued = 4 << 20

const (
	again     = time.Second     // how long after an error the writer tries again
	closeTime = 5 * time.Second // how long Close waits for the disk
)

// Log is an audit log. Its methods are safe for concurrent use.
//
// Up to 4 MiB of lines wait for a disk that is too slow, or cannot be written. A line that finds no
// room is dropped. As soon as there is room again, a line says how many were, and Stats counts them.
type Log struct {
	user string
	log  *slog.Logger
	open func() (io.WriteCloser, error)

	lines, dropped atomic.Int64

	mu     sync.Mutex
	queue  []byte // lines that the writer has yet to take
	missed int64  // lines dropped since the last one in the queue
	closed bool

	wake   chan struct{} // has an element when there may be something to do
	ending chan struct{} // closed by Close
	done   chan struct{} // closed when the writer has ended

	file    io.WriteCloser // of the writer, and of Close when that has ended
	renamed atomic.Bool    // Reopen was called
}

// Open opens the log in the file path, to which it appends. user is who the server's own operations
// belong to. Close must be called.
func Open(path, user string, log *slog.Logger) (*Log, error) {
	return start(func() (io.WriteCloser, error) {
		return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600) // setAcl shows digests
	}, user, log)
}

func start(open func() (io.WriteCloser, error), user string, log *slog.Logger) (*Log, error) {
	file, err := open()
	if err != nil {
		return nil, err
	}
	l := &Log{user: user, log: log, open: open, file: file, wake: make(chan struct{}, 1), ending: make(chan struct{}), done: make(chan struct{})}
	go l.run() // until Close
	return l, nil
}

// Add appends an event. It does not wait for the disk. After Close it does nothing.
func (l *Log) Add(e lockkeeper.AuditEvent) {
	e.User = cmp.Or(e.User, l.user)
	level := "INFO"
	if e.Result == "failure" {
		level = "ERROR"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	line := prefixed(level, e.String())
	switch {
	case l.closed:
		return
	case len(l.queue) > 0 && len(l.queue)+len(line) > maxQueued: // alone a line may be longer
		l.missed++
		l.dropped.Add(1)
	default:
		l.queue = append(l.queue, line...)
	}
	l.signal()
}

// prefixed returns a line as ZooKeeper's configuration of logback formats it.
func prefixed(level, text string) string {
	return time.Now().Format("2006-01-02 15:04:05,000") + " " + level + " audit.Slf4jAuditLogger: " + text + "\n"
}

func (l *Log) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run is the writer. What it could not write it tries again after a second, and at the end. What it cannot write
// then either is lost.
func (l *Log) run() {
	defer close(l.done)
	var rest []byte // of what was taken from the queue
	failing, last := false, false
	for {
		if len(rest) == 0 {
			var more bool
			if rest, more = l.take(); !more {
				return
			}
		}
		l.reopen() // also if the former file cannot be written
		n, err := l.file.Write(rest)
		l.lines.Add(lineCount(rest[:n]))
		if rest = rest[n:]; err == nil {
			failing = false
			continue
		}
		if !failing {
			failing = true
			l.log.Error("cannot write the audit log: lines wait for the next attempt", "error", err)
		}
		select {
		case <-time.After(again):
		case <-l.ending:
			if last {
				l.lose(rest)
				return
			}
			last = true
		}
	}
}

// take waits for lines, and returns them with one behind them that says how many are missing. It
// returns false when the log is closed, and nothing is left.
func (l *Log) take() ([]byte, bool) {
	for {
		l.reopen()
		l.mu.Lock()
		lines, missed, closed := l.queue, l.missed, l.closed
		l.queue, l.missed = nil, 0
		l.mu.Unlock()
		if missed > 0 {
			l.log.Warn("lines of the audit log were dropped: the disk is too slow, or cannot be written", "lines", missed)
			lines = append(lines, prefixed("ERROR", fmt.Sprintf("dropped=%d", missed))...)
		}
		if len(lines) > 0 || closed {
			return lines, len(lines) > 0
		}
		<-l.wake // by Add, Reopen or Close
	}
}

// lose counts what is left at the end and cannot be written.
func (l *Log) lose(rest []byte) {
	l.mu.Lock()
	lost := lineCount(rest) + lineCount(l.queue)
	l.mu.Unlock()
	l.dropped.Add(lost)
	l.log.Error("the audit log cannot be written, so its last lines are lost", "lines", lost)
}

func lineCount(text []byte) int64 { return int64(bytes.Count(text, []byte("\n"))) }

// Reopen has the file opened anew, as is due when it has been renamed. It does not wait for that. If it
// fails, the former file stays.
func (l *Log) Reopen() {
	l.renamed.Store(true)
	l.signal()
}

// reopen does what Reopen has asked for. Only the writer calls it.
func (l *Log) reopen() {
	if !l.renamed.Swap(false) {
		return
	}
	file, err := l.open()
	if err != nil {
		l.log.Error("cannot open the audit log anew: the former file stays in use", "error", err)
		return
	}
	l.file.Close()
	l.file = file
}

// Stats returns how many lines were written since the start, and how many dropped.
func (l *Log) Stats() (lines, dropped int64) { return l.lines.Load(), l.dropped.Load() }

// Close writes what is queued, and closes the file. It may be called once. If the disk does not answer for five seconds, it
// gives up, and the log says so.
func (l *Log) Close() {
	l.mu.Lock()
	l.closed = true
	l.signal()
	l.mu.Unlock()
	close(l.ending)
	select {
	case <-l.done:
	case <-time.After(closeTime):
		l.log.Error("the audit log is not whole: the disk does not answer", "waited", closeTime)
		return
	}
	if err := l.file.Close(); err != nil {
		l.log.Error("cannot close the audit log", "error", err)
	}
}
