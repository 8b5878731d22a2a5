package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// blockedLog is a slog.Handler that blocks until opened is closed.
type blockedLog struct {
	opened chan struct{}
	mu     *sync.Mutex
	lines  map[string]int // by message
}

func (l blockedLog) Enabled(context.Context, slog.Level) bool { return true }
func (l blockedLog) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l blockedLog) WithGroup(string) slog.Handler            { return l }
func (l blockedLog) Handle(_ context.Context, r slog.Record) error {
	<-l.opened
	l.mu.Lock()
	defer l.mu.Unlock()
	kind, _, _ := strings.Cut(r.Message, ":")
	l.lines[kind]++
	return nil
}

// TestBlockedLog checks that entries are applied and clients answered while the log
// blocks, and that the warnings are logged once it no longer does.
func TestBlockedLog(t *testing.T) {
	log := blockedLog{make(chan struct{}), new(sync.Mutex), map[string]int{}}
	p := newApplying()
	s := New(Config{
		ID: 1, Proposer: p, Replica: p.replica, Log: slog.New(log),
		Limits: Limits{MaxSessionTimeout: time.Minute, MaxFrame: 1 << 20, MaxOutstanding: 10, OutboxBytes: 1000, HandshakeTimeout: 10 * time.Second},
	})
	s.Open()
	connect := func() *rawclient.Client {
		client, ours := net.Pipe()
		go s.ServeConn(ours)
		c, err := rawclient.Open(client, 30*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		c.Timeout = 5 * time.Second
		return c
	}
	writer := connect()
	rawtest.SetQuota(t, writer, "count=1,bytes=-1")
	silent := connect() // it watches everything but reads nothing
	if _, err := silent.Call(proto.OpAddWatch, &proto.PathType{Path: "/", Type: 1}, nil); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if _, err := writer.Create(fmt.Sprintf("/q/a%d", i), nil, 0); err != nil {
			t.Fatalf("create %d: %v", i, err)
		}
	}
	testkit.Eventually(t, "the end of the client that does not read", func() bool { return len(s.connections()) <= 1 })
	close(log.opened)
	s.Close()
	s.Wait()
	log.mu.Lock()
	defer log.mu.Unlock()
	if log.lines["Quota exceeded"] == 0 || log.lines["closing a connection whose client does not read"] != 1 {
		t.Errorf("the log has %v", log.lines)
	}
}
