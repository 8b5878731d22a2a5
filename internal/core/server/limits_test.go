package server_test

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
	"log/slog"
)

// TestMaxSessions: no matter how many clients ask for a session at once, the limit is
// reached and not exceeded. Clients beyond it get no answer. Existing sessions are not
// affected.
func TestMaxSessions(t *testing.T) {
	const most = 10
	overAll(t, server.Config{Limits: server.Limits{MaxSessions: most}}, func(t *testing.T, _ *port, dial rawtest.Dialer) {
		var opened, refused atomic.Int64
		var mu sync.Mutex
		var clients []*rawclient.Client
		var wg sync.WaitGroup
		for range 5 * most {
			wg.Go(func() {
				nc, err := dial()
				if err != nil {
					t.Error(err)
					return
				}
				c, err := rawclient.Open(nc, 30*time.Second)
				if err != nil {
					if err == rawclient.ErrRefused {
						t.Error("a refusal, which means an expired session to a client")
					}
					refused.Add(1)
					return
				}
				opened.Add(1)
				mu.Lock()
				clients = append(clients, c)
				mu.Unlock()
			})
		}
		wg.Wait()
		if opened.Load() != most || refused.Load() != 4*most {
			t.Fatalf("%d sessions opened, %d refused", opened.Load(), refused.Load())
		}
		if m := counts(t, word(t, dial, "mntr")); number(t, m, "connection_rejected") != 4*most || number(t, m, "global_sessions") != most {
			t.Errorf("connection_rejected %s, global_sessions %s", m["connection_rejected"], m["global_sessions"])
		}
		// A resumed session does not count twice, and one that ends makes room.
		clients[0] = must(rawclient.Resume(must(dial())(t), clients[0].Session))(t)
		must(clients[1].Call(proto.OpCloseSession, nil, nil))(t)
		closed(t, clients[1])
		clients[1] = connect(t, dial)
		for _, c := range clients {
			alive(t, c)
			c.Close()
		}
	})
}

// TestMaxWatches: a request for a watch beyond the limit of the connection has no effect.
// A setWatches that exceeds the limit ends the connection.
func TestMaxWatches(t *testing.T) {
	overAll(t, server.Config{Limits: server.Limits{MaxWatches: 4}}, func(t *testing.T, _ *port, dial rawtest.Dialer) {
		c, other := connect(t, dial), connect(t, dial)
		for _, path := range []string{"/a", "/b", "/c"} {
			must(c.Create(path, []byte(path), 0))(t)
		}
		ask := func(want error, op proto.OpCode, q proto.Record) {
			t.Helper()
			if _, err := c.Call(op, q, nil); err != want {
				t.Errorf("op %d: %v, should be %v", op, err, want)
			}
		}
		watch := func(path string) proto.Record { return &proto.PathWatch{Path: path, Watch: true} }
		var ok error
		ask(ok, proto.OpGetData, watch("/a"))
		ask(ok, proto.OpGetChildren, watch("/a"))
		ask(proto.NoNode, proto.OpExists, watch("/none"))
		ask(ok, proto.OpGetChildren2, watch("/b"))
		// These add no watch, or one of the four again.
		ask(ok, proto.OpExists, watch("/a"))
		ask(ok, proto.OpAddWatch, &proto.PathType{Path: "/a", Type: 0})
		ask(ok, proto.OpAddWatch, &proto.PathType{Path: "/a", Type: 1})
		ask(proto.NoNode, proto.OpGetData, watch("/none"))
		// These would add a fifth, of each kind.
		ask(proto.ThrottledOp, proto.OpGetData, watch("/b"))
		ask(proto.ThrottledOp, proto.OpExists, watch("/c"))
		ask(proto.ThrottledOp, proto.OpExists, watch("/nothing"))
		ask(proto.ThrottledOp, proto.OpGetChildren, watch("/c"))
		ask(proto.ThrottledOp, proto.OpGetChildren2, watch("/c"))
		ask(proto.ThrottledOp, proto.OpAddWatch, &proto.PathType{Path: "/b", Type: 0})
		ask(proto.ThrottledOp, proto.OpAddWatch, &proto.PathType{Path: "/c", Type: 1})
		ask(ok, proto.OpGetData, &proto.PathWatch{Path: "/b"})
		if m := counts(t, word(t, dial, "mntr")); number(t, m, "throttled_ops") != 7 || number(t, m, "watch_count") != 4 {
			t.Errorf("throttled_ops %s, watch_count %s", m["throttled_ops"], m["watch_count"])
		}
		// A refused watch causes no event; a watch that fires makes room.
		must(other.Set("/c", nil))(t)
		must(other.Create("/b/x", nil, 0))(t)
		must(c.Call(proto.OpPing, nil, nil))(t)
		if len(c.Events) != 1 || c.Events[0].Path != "/b" {
			t.Errorf("events %+v", c.Events)
		}
		ask(ok, proto.OpGetData, watch("/b"))
		for range 100 { // another connection has its own limit
			must(other.Get("/a", true))(t)
		}

		now := must(c.Call(proto.OpPing, nil, nil))(t).Zxid
		set := &proto.SetWatchesRequest{RelativeZxid: now, Data: []string{"/a", "/b"}, Exist: []string{"/none"}, Child: []string{"/a"}}
		again := must(rawclient.Resume(must(dial())(t), c.Session))(t)
		must(again.Call(proto.OpSetWatches, set, nil))(t) // exactly the limit
		again = must(rawclient.Resume(must(dial())(t), c.Session))(t)
		set.Child = append(set.Child, "/b")
		if f, err := again.Call(proto.OpSetWatches, set, nil); err != proto.ThrottledOp || len(f.Body) > 0 {
			t.Errorf("too large a set: %v", err)
		}
		closed(t, again)
		again = must(rawclient.Resume(must(dial())(t), c.Session))(t)
		large := &proto.SetWatches2Request{SetWatchesRequest: *set, Persistent: []string{"/p"}, Recursive: []string{"/r"}}
		if _, err := again.Call(proto.OpSetWatches2, large, nil); err != proto.ThrottledOp {
			t.Errorf("too large a set: %v", err)
		}
		closed(t, again)
		eventually(t, "the end of its watches", func() bool { return number(t, counts(t, word(t, dial, "mntr")), "watch_count") == 1 })
		alive(t, other)
		other.Close()
	})
}

// TestReplyTooLong: the server stops building a reply that does not fit into the
// connection's outbox, closes the connection and logs why. Other clients are not
// affected. A reply that fits is sent, even if it has to wait for a write.
func TestReplyTooLong(t *testing.T) {
	var log testkit.Log
	overAll(t, server.Config{Log: log.Logger(slog.LevelWarn), Limits: server.Limits{OutboxBytes: 4 << 20, MaxSessionTimeout: time.Hour}}, func(t *testing.T, _ *port, dial rawtest.Dialer) {
		other := connectFor(t, dial, time.Hour) // it sends nothing for long
		name := strings.Repeat("n", 1000)
		for _, dir := range []struct {
			path     string
			children int
		}{{"/fits", 2800}, {"/large", 5000}} {
			must(other.Create(dir.path, nil, 0))(t)
			for first := 0; first < dir.children; first += 400 {
				var multi proto.MultiRequest
				for i := range 400 {
					create := &proto.CreateRequest{Path: fmt.Sprint(dir.path, "/", first+i, name), ACL: proto.OpenACL}
					multi.Ops = append(multi.Ops, proto.MultiOp{Op: proto.OpCreate, Request: create})
				}
				must(other.Call(proto.OpMulti, &multi, nil))(t)
			}
		}
		reads := &proto.MultiReadRequest{}
		for range 400 {
			reads.Ops = append(reads.Ops, proto.MultiOp{Op: proto.OpGetChildren, Request: &proto.PathWatch{Path: "/fits"}})
		}
		ask := func(op proto.OpCode, q proto.Record, behindWrite bool, times int) (c *rawclient.Client) {
			c = connect(t, dial)
			if behindWrite {
				c.Queue(proto.OpSync, &proto.Path{Path: "/"})
			}
			for range times {
				c.Queue(op, q)
			}
			go c.Flush()
			if behindWrite {
				must(c.Read())(t)
			}
			return c
		}
		before := heap()
		for _, behindWrite := range []bool{false, true} {
			c := ask(proto.OpGetChildren, &proto.PathWatch{Path: "/fits"}, behindWrite, 1)
			if f := must(c.Read())(t); f.Code != proto.OK || len(f.Body) < 2800*1000 {
				t.Errorf("%v, %d bytes", f.Code, len(f.Body))
			}
			c.Close()
			for _, q := range []struct {
				op   proto.OpCode
				body proto.Record
			}{
				{proto.OpGetChildren, &proto.PathWatch{Path: "/large", Watch: true}}, {proto.OpGetChildren2, &proto.PathWatch{Path: "/large"}},
				{proto.OpMultiRead, reads},
			} {
				log.Reset()
				closed(t, ask(q.op, q.body, behindWrite, 1))
				eventually(t, "the warning", func() bool {
					return len(log.Matching("a reply does not fit into its outbox", proto.OpByCode(q.op).Name)) > 0
				})
			}
			ask(proto.OpMultiRead, reads, behindWrite, 100) // and nobody reads
		}
		if now := heap(); now > before+64<<20 {
			t.Errorf("%d MB of memory for two clients", (now-before)>>20)
		}
		for i := range 5000 { // so that the answers to wchp and wchc have 5 MB
			path := fmt.Sprint("/", i, name)
			other.Queue(proto.OpExists, &proto.PathWatch{Path: path, Watch: true})
			if i%100 == 99 {
				check(t, other.Flush())
				for range 100 {
					must(other.Read())(t)
				}
			}
		}
		for _, w := range []string{"wchp", "wchc"} {
			if n := len(word(t, dial, w)); n > 0 {
				t.Errorf("%s: %d bytes", w, n)
			}
			eventually(t, "the warning", func() bool { return len(log.Matching("the answer to its word is too long", w)) > 0 })
		}
		if w := word(t, dial, "wchs"); !strings.Contains(w, "Total watches:5000\n") {
			t.Errorf("%q", w)
		}
		alive(t, other)
	})
}

// fullListener is a listener whose process has no file descriptor left for the next
// connections.
type fullListener struct {
	net.Listener
	left  int // fail so many times
	began time.Time
	took  chan time.Duration // of the failures together
}

func (l *fullListener) Accept() (net.Conn, error) {
	if l.left == 0 {
		l.took <- time.Since(l.began)
	}
	if l.left--; l.left >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

// TestNoFilesToAccept: while no connection can be accepted, because too many files are open,
// the server tries again without being busy with that, logs it from time to time, and
// accepts connections afterwards.
func TestNoFilesToAccept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		p := open(t, server.Config{Log: log.Logger(slog.LevelWarn)})
		host := memnet.New().Host("server")
		l, err := host.Listen("server:1")
		check(t, err)
		full := &fullListener{Listener: l, left: 3000, began: time.Now(), took: make(chan time.Duration, 1)}
		p.plain = full
		go p.Serve(full, nil)
		if took := <-full.took; took < 10*time.Second {
			t.Errorf("%d attempts to accept in %v", 3000, took)
		}
		if lines := log.Matching("cannot accept a connection", "too many open files"); len(lines) == 0 || len(lines) > 5 {
			t.Errorf("%d lines in the log", len(lines))
		}
		c := must(rawclient.Open(must(host.Dial(t.Context(), "server:1"))(t), time.Minute))(t)
		alive(t, c)
		c.Close()
	})
}
