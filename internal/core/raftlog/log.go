package raftlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/peer"
)

// Logger returns a logger for Raft, or its stores, that writes to log.
func Logger(log *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Off, Output: io.Discard})
	l.RegisterSink(slogSink{log.With("part", "raft")})
	return l
}

type slogSink struct{ log *slog.Logger }

func (s slogSink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	to := raftLevel(level, msg, args)
	if !s.log.Enabled(context.Background(), to) {
		return
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

// raftLevels are the messages of Raft that have another level than their kind. Those at INFO are only about another
// member, which is down or slow, or leads now: package cluster logs what follows from that.
var raftLevels = map[string]slog.Level{
	"failed to get previous log":                slog.LevelDebug, // normal: a leader compares logs
	"failed to appendEntries to":                slog.LevelInfo,
	"failed to heartbeat to":                    slog.LevelInfo,
	"failed to make requestVote RPC":            slog.LevelInfo,
	"failed to pipeline appendEntries":          slog.LevelInfo,
	"failed to start pipeline replication to":   slog.LevelInfo,
	"peer has newer term, stopping replication": slog.LevelInfo,
}

// raftLevel returns the level at which a message of Raft is logged.
func raftLevel(level hclog.Level, msg string, args []any) slog.Level {
	for _, a := range args {
		needsSnapshot := msg == "failed to get log" && a == raft.ErrLogNotFound // another member does
		err, ok := a.(error)
		if needsSnapshot || ok && (OfConnection(err) || EndsWith(err, ErrNeedless, errSuperseded, errBroken)) {
			return slog.LevelDebug
		}
	}
	own, ok := raftLevels[msg]
	switch {
	case ok:
		return own
	case level == hclog.Error:
		return slog.LevelError
	case level == hclog.Warn: // a step of an election, or of sending the log
		return slog.LevelInfo
	}
	return slog.LevelDebug // also for hclog.Info
}

// OfConnection reports whether an error of Raft says only that a connection has ended or
// was refused. That is usual when members start and stop; package cluster logs what follows from it.
func OfConnection(err error) bool {
	return EndsWith(err, io.EOF, net.ErrClosed, context.Canceled, syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.EPIPE, peer.ErrAddress, peer.ErrNoCluster)
}

// EndsWith reports whether err is one of the known errors, or ends with its text: that is all that Raft keeps of some.
func EndsWith(err error, known ...error) bool {
	return slices.ContainsFunc(known, func(k error) bool {
		return errors.Is(err, k) || strings.HasSuffix(err.Error(), k.Error()) || strings.HasSuffix(err.Error(), k.Error()+"\"")
	})
}
