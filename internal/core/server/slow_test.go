package server

import (
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// slowly proposes a command once delay has passed.
type slowly struct {
	*applying
	delay time.Duration
}

func (p *slowly) Propose(c *fsm.Command, w fsm.Waiter, gone <-chan struct{}) {
	time.Sleep(p.delay)
	p.applying.Propose(c, w, gone)
}

// connect returns a client of a new server, which logs requests that take longer than most. Both end with the test.
func (p *slowly) connect(t *testing.T, log *testkit.Log, most time.Duration) *rawclient.Client {
	t.Helper()
	s := New(Config{
		ID: 1, Proposer: p, Replica: p.replica, Log: log.Logger(slog.LevelWarn), SlowRequest: most,
		Limits: Limits{MaxSessionTimeout: time.Minute, MaxFrame: 1 << 20, MaxOutstanding: 10, OutboxBytes: 1 << 20, HandshakeTimeout: 10 * time.Second},
	})
	s.Open()
	t.Cleanup(s.Wait)
	t.Cleanup(s.Close)
	client, ours := net.Pipe()
	go s.ServeConn(ours)
	c, err := rawclient.Open(client, 30*time.Second)
	testkit.Check(t, err)
	t.Cleanup(func() { client.Close() })
	return c
}

// TestSlowRequest: a request that takes longer than Config.SlowRequest is logged with what an
// operator looks for, and no other is. The data of a write is not.
func TestSlowRequest(t *testing.T) {
	for _, most := range []time.Duration{0, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var log testkit.Log
			p := &slowly{applying: newApplying()}
			c := p.connect(t, &log, most)
			create := func(path string, delay time.Duration) {
				p.delay = delay
				if _, err := c.Create(path, []byte("secret"), 0); err != nil {
					t.Fatal(err)
				}
			}
			create("/quick", time.Second)
			create("/slow", time.Second+time.Millisecond)
			p.delay = 2 * time.Second
			_, err := c.Call(proto.OpDelete, &proto.PathVersion{Path: "/missing", Version: -1}, nil)
			if err != nil && err != proto.NoNode {
				t.Fatal(err)
			}
			_, err = c.Call(proto.OpMulti, &proto.MultiRequest{Ops: []proto.MultiOp{{Op: proto.OpDelete, Request: &proto.PathVersion{Path: "/quick", Version: -1}}}}, nil)
			testkit.Check(t, err)
			synctest.Wait()
			lines := strings.Count(log.String(), "slow request")
			if most == 0 && lines != 0 || most > 0 && lines != 3 {
				t.Errorf("with %v, %d lines:\n%s", most, lines, log.String())
			}
			if most > 0 {
				for _, want := range []string{"op=create path=/slow ", "took=1.001s", "op=delete path=/missing ", "code=-101 took=2s", `op=multi path="" `, "client=pipe session=0x"} {
					if !strings.Contains(log.String(), want) {
						t.Errorf("%q is missing in\n%s", want, log.String())
					}
				}
			}
			if strings.Contains(log.String(), "secret") {
				t.Errorf("the log has data:\n%s", log.String())
			}
		})
	}
}

// TestLongWarning: a client cannot fill the log, or the memory while the log blocks, with long texts.
func TestLongWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		p := &slowly{applying: newApplying(), delay: 2 * time.Second}
		c := p.connect(t, &log, time.Second)
		long := strings.Repeat("é", 100_000)
		if _, err := c.Create("/"+long, nil, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: long}, nil); err != proto.AuthFailed {
			t.Fatal(err)
		}
		synctest.Wait()
		text := log.String()
		for _, want := range []string{`op=create path="/éé`, `scheme="éé`} {
			if !strings.Contains(text, want) || len(text) > 5000 {
				t.Errorf("%d bytes, without %q: %.500s", len(text), want, text)
			}
		}
	})
}
