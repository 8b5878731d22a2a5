package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/logqueue"
)

// serveLines is standard error of serve. Its lines wait in one queue with those of the log, so that they stay in order; if nobody
// reads them, only the end of serve waits for that, for a few seconds.
type serveLines struct {
	to    io.Writer
	queue *logqueue.Queue // nil before there is a log
	// With --log-format json: what else would be a line of text becomes one of this log, whatever --log-level says.
	json *slog.Logger
}

// newServeLines returns standard error of serve, and sets its log.
func newServeLines(to io.Writer, format string, level slog.Level, log **slog.Logger) (serveLines, error) {
	options, s := &slog.HandlerOptions{Level: level}, serveLines{to: to}
	switch format {
	case "text":
		*log, s.queue = logqueue.New(slog.New(slog.NewTextHandler(to, options)))
	case "json":
		*log, s.queue = logqueue.New(slog.New(slog.NewJSONHandler(to, options)))
		s.json = slog.New(s.queue.Handler(slog.NewJSONHandler(to, nil)))
	default:
		return s, fmt.Errorf("%q is not text or json", format)
	}
	return s, nil
}

// Write implements [io.Writer]. text must be whole lines.
func (s serveLines) Write(text []byte) (int, error) {
	if s.queue == nil {
		return s.to.Write(text)
	}
	text = bytes.Clone(text)
	if s.json == nil {
		s.queue.Add(func() { s.to.Write(text) })
		return len(text), nil
	}
	for line := range bytes.Lines(text) {
		s.json.Info(string(bytes.TrimRight(line, "\r\n")))
	}
	return len(text), nil
}

// sayLast writes an error after the queue was closed. It waits a few seconds for a reader.
func (s serveLines) sayLast(text string) {
	said := make(chan struct{})
	go func() {
		defer close(said)
		if s.json != nil {
			slog.New(slog.NewJSONHandler(s.to, nil)).Error(text)
		} else {
			fmt.Fprintln(s.to, text)
		}
	}()
	select {
	case <-said:
	case <-time.After(3 * time.Second):
	}
}

// sayError writes an error to standard error, as one line.
func sayError(stderr io.Writer, err error) {
	text := "lockkeeper: " + strings.TrimPrefix(oneLine(err), "lockkeeper: ")
	if s, ok := stderr.(serveLines); ok {
		s.sayLast(text)
		return
	}
	fmt.Fprintln(stderr, text)
}
