package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// raftLogger returns a logger for Raft that writes to log.
func raftLogger(log *slog.Logger) hclog.Logger {
	level := hclog.Off
	for _, l := range []struct {
		slog  slog.Level
		hclog hclog.Level
	}{{slog.LevelError, hclog.Error}, {slog.LevelWarn, hclog.Warn}, {slog.LevelInfo, hclog.Info}, {slog.LevelDebug, hclog.Debug}} {
		if log.Enabled(context.Background(), l.slog) {
			level = l.hclog
		}
	}
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Off, Output: io.Discard})
	l.RegisterSink(slogSink{log.With("part", "raft"), level})
	return l
}

type slogSink struct {
	log   *slog.Logger
	level hclog.Level
}

func (s slogSink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	if level < s.level {
		return
	}
	if msg == "failed to get previous log" { // normal: notifier.run was faster than the entry
		level = hclog.Debug
	}
	for _, a := range args {
		if err, ok := a.(error); ok && (errors.Is(err, errNeedless) || strings.HasSuffix(err.Error(), errSuperseded.Error())) { // of the second, Raft keeps only the text
			level = hclog.Debug
		}
		needsSnapshot := msg == "failed to get log" && a == raft.ErrLogNotFound // another member does
		if err, ok := a.(error); ok && (ofConnection(err) || errors.Is(err, errBroken)) || needsSnapshot {
			level = hclog.Debug
		}
	}
	to := slog.LevelDebug // also for hclog.Info
	switch level {
	case hclog.Warn: // a step of an election, or of sending the log
		to = slog.LevelInfo
	case hclog.Error:
		if to = slog.LevelError; ofPeer(msg) {
			to = slog.LevelInfo
		}
	}
	plain := make([]any, len(args))
	for i, a := range args {
		switch v := a.(type) {
		case hclog.Format:
			a = fmt.Sprintf(fmt.Sprint(v[0]), v[1:]...)
		case fmt.Stringer: // format now: Raft passes itself, which changes later
			a = v.String()
		}
		plain[i] = a
	}
	s.log.Log(context.Background(), to, msg, plain...)
}

// ofPeer reports whether an error of Raft is only about another member, which is down or slow,
// or leads now. service and pulse log what follows from that.
func ofPeer(msg string) bool {
	switch msg {
	case "failed to appendEntries to", "failed to heartbeat to", "failed to make requestVote RPC", "failed to pipeline appendEntries",
		"failed to start pipeline replication to", "peer has newer term, stopping replication":
		return true
	}
	return false
}

// ofConnection reports whether an error of Raft says only that a connection has ended or
// was refused. That is usual when members start and stop; pulse logs what follows from it.
func ofConnection(err error) bool {
	for _, known := range []error{io.EOF, net.ErrClosed, context.Canceled, syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.EPIPE, raft.ErrTransportShutdown, errAddress, errNoCluster} {
		// Raft's decoder keeps only the text of an error.
		if errors.Is(err, known) || strings.HasSuffix(err.Error(), known.Error()) || strings.HasSuffix(err.Error(), known.Error()+"\"") {
			return true
		}
	}
	return false
}

// The ends of errors by which ofConnection knows them: what is to be said of them to an
// operator is said elsewhere.
var (
	errAddress   = errors.New("or the address is wrong")
	errNoCluster = errors.New("is in no cluster yet")
)
