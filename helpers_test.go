package lockkeeper_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/storage"
	"github.com/lockkeeper/lockkeeper/internal/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testkit"
)

// seed is LOCKKEEPER_SEED, or drawn anew; the test prints it.
func seed(t testing.TB) uint64 {
	s := rand.Uint64()
	if v := os.Getenv("LOCKKEEPER_SEED"); v != "" {
		var err error
		if s, err = strconv.ParseUint(v, 0, 64); err != nil {
			t.Fatalf("LOCKKEEPER_SEED: %v", err)
		}
	}
	t.Logf("LOCKKEEPER_SEED=%d", s)
	return s
}

func rng(seed uint64, stream int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(stream))) }

// eventually waits until ok, and fails the test if that takes too long.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never came: %s", what)
		}
	}
}

// noGoroutineLeft fails the test if there are more goroutines of this module
// or of Raft at its end than there were when it was called.
func noGoroutineLeft(t testing.TB) {
	t.Helper()
	before := len(ours())
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		var left []string
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if left = ours(); len(left) <= before {
				return
			}
		}
		t.Errorf("%d goroutines are left of %d at the start:\n%s", len(left), before, strings.Join(left, "\n\n"))
	})
}

// ours lists the goroutines that run code of servers.
func ours() (stacks []string) {
	buf := make([]byte, 16<<20)
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		for _, of := range []string{"lockkeeper/internal/server.", "lockkeeper/cluster.", "hashicorp/raft", "lockkeeper/lockkeeper.(*Server)"} {
			if strings.Contains(g, of) {
				stacks = append(stacks, g)
				break
			}
		}
	}
	return stacks
}

// withMemory has a server keep its state in memory from one run to the next.
func withMemory(cfg lockkeeper.Config) lockkeeper.Config {
	testhooks.In(&cfg).Memory = storage.NewMemory()
	return cfg
}

// ready waits until a server is ready, for a minute at most.
func ready(s *lockkeeper.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.Wait(ctx)
}

// dialer gives connections to a server, over TCP or in memory.
type dialer func() (net.Conn, error)

func overTCP(s *lockkeeper.Server) dialer {
	return func() (net.Conn, error) { return net.DialTimeout("tcp", s.Addr().String(), time.Minute) }
}

func inMemory(s *lockkeeper.Server) dialer {
	return func() (net.Conn, error) { return s.Dial("", "", time.Minute) }
}

// overTLS gives connections to the port where TLS is spoken. Certificates are
// those of the client, if it has any.
func overTLS(s *lockkeeper.Server, ca *testkit.CA, certificates ...tls.Certificate) dialer {
	config := &tls.Config{RootCAs: ca.Pool, Certificates: certificates}
	return func() (net.Conn, error) {
		return tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", s.SecureAddr().String(), config)
	}
}

// overAll runs a test over TCP, over TLS and in memory, each on a server of its own.
func overAll(t *testing.T, cfg lockkeeper.Config, test func(t *testing.T, s *lockkeeper.Server, dial dialer)) {
	t.Run("TCP", func(t *testing.T) {
		noGoroutineLeft(t)
		cfg.ClientAddr = "127.0.0.1:0"
		s := open(t, cfg)
		test(t, s, overTCP(s))
	})
	t.Run("TLS", func(t *testing.T) {
		noGoroutineLeft(t)
		ca := testkit.NewCA(t)
		cfg.ClientAddr, cfg.SecureAddr = "", "127.0.0.1:0"
		cfg.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Server(t)}}
		s := open(t, cfg)
		test(t, s, overTLS(s, ca))
	})
	cfg.SecureAddr, cfg.TLS = "", nil
	t.Run("memory", func(t *testing.T) {
		noGoroutineLeft(t)
		cfg.ClientAddr = ""
		s := open(t, cfg)
		test(t, s, inMemory(s))
	})
}

// connect opens a session, whose connection the test closes.
func connect(t testing.TB, dial dialer) *rawclient.Client {
	t.Helper()
	return connectFor(t, dial, 30*time.Second)
}

func connectFor(t testing.TB, dial dialer, timeout time.Duration) *rawclient.Client {
	t.Helper()
	nc, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	c, err := rawclient.Open(nc, timeout)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// must fails the test on an error.
func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// capture is a log that a test can look into.
type capture struct {
	mu    sync.Mutex
	lines []string
	min   slog.Level
}

func (c *capture) logger() *slog.Logger { return slog.New(captureHandler{c, ""}) }

// matching returns the lines that contain all of the words.
func (c *capture) matching(words ...string) (found []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
next:
	for _, l := range c.lines {
		for _, w := range words {
			if !strings.Contains(l, w) {
				continue next
			}
		}
		found = append(found, l)
	}
	return found
}

func (c *capture) reset() {
	c.mu.Lock()
	c.lines = nil
	c.mu.Unlock()
}

type captureHandler struct {
	c     *capture
	attrs string
}

func (h captureHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.c.min }

func (h captureHandler) Handle(_ context.Context, r slog.Record) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s%s", r.Level, r.Message, h.attrs)
	r.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&b, " %s", a); return true })
	h.c.mu.Lock()
	h.c.lines = append(h.c.lines, b.String())
	h.c.mu.Unlock()
	return nil
}

func (h captureHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		h.attrs += " " + a.String()
	}
	return h
}

func (h captureHandler) WithGroup(string) slog.Handler { return h }
