package server_test

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/fdlimit"
	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"log/slog"
)

// TestBadFrames: a client that sends something that is not a frame or not a request
// loses its connection, which is logged once. Its session continues, and other clients
// are not affected.
func TestBadFrames(t *testing.T) {
	var log testkit.Log
	overAll(t, server.Config{Log: log.Logger(slog.LevelWarn), Limits: server.Limits{MaxSessionTimeout: time.Hour}}, func(t *testing.T, _ *port, dial rawtest.Dialer) {
		healthy := connectFor(t, dial, time.Hour) // it sends nothing for long
		for _, c := range []struct {
			name  string
			bytes []byte
			says  string // in the log
		}{
			{"length -1", request32(-1), "length -1"},
			{"least length", request32(math.MinInt32), "length -2147483648"},
			{"one byte too long", request32(jute.DefaultMaxFrame + 1), "length 1048576"},
			{"greatest length", request32(math.MaxInt32), "length 2147483647"},
			{"four-letter word", []byte("ruok"), "length 1920298859"},
			{"no payload", request32(0), "cut short"},
			{"half a header", frame(request32(1)), "cut short"},
			{"header and a half cut", frame(request32(1, 3)[:7]), "cut short"},
			{"auth without body", frame(request32(1, 100)), "auth request"},
			{"auth that lies", frame(request32(1, 100, 0, 1000)), "auth request"},
			{"sasl without body", frame(request32(1, 102)), "sasl request"},
			{"sasl that lies", frame(request32(1, 102, 1000)), "sasl request"},
			{"sasl with a null token", frame(request32(1, 102, -1)), "sasl request"},
		} {
			t.Run(c.name, func(t *testing.T) {
				log.Reset()
				bad := connect(t, dial)
				check(t, bad.Write(c.bytes))
				closed(t, bad)
				alive(t, healthy)
				again, err := rawclient.Resume(must(dial())(t), bad.Session)
				if err != nil {
					t.Fatalf("its session: %v", err)
				}
				alive(t, again)
				again.Close()
				if lines := log.Matching(""); len(lines) != 1 || !strings.Contains(lines[0], c.says) || !strings.Contains(lines[0], fmt.Sprintf("session=%#x", uint64(bad.Session.SessionID))) {
					t.Errorf("the log says %q", lines)
				}
			})
		}
		t.Run("greatest frame", func(t *testing.T) {
			c := connect(t, dial)
			path := "/greatest"
			q := &proto.CreateRequest{Path: path, ACL: proto.OpenACL}
			q.Data = make([]byte, jute.DefaultMaxFrame-8-len(q.Append(nil)))
			if n := len(rawclient.Request(nil, 1, proto.OpCreate, q)); n != 4+jute.DefaultMaxFrame {
				t.Fatal(n)
			}
			_, err := c.Call(proto.OpCreate, q, nil)
			check(t, err)
			if r := must(c.Get(path, false))(t); len(r.Data) != len(q.Data) {
				t.Errorf("%d bytes of %d", len(r.Data), len(q.Data))
			}
			check(t, c.Delete(path))
		})
		t.Run("frame cut short", func(t *testing.T) {
			log.Reset()
			c := connect(t, dial)
			check(t, c.Write(append(request32(100, 1, 1), "/half"...)))
			c.Close()
			alive(t, healthy)
			alive(t, must(rawclient.Resume(must(dial())(t), c.Session))(t))
			if lines := log.Matching(""); len(lines) > 0 {
				t.Errorf("a client that goes away is no news: %q", lines)
			}
		})
	})
}

// TestNoHandshake: a connection whose first bytes are not a handshake is closed.
func TestNoHandshake(t *testing.T) {
	var log testkit.Log
	r := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	overAll(t, server.Config{Log: log.Logger(slog.LevelWarn), Limits: server.Limits{MaxSessionTimeout: time.Hour}}, func(t *testing.T, _ *port, dial rawtest.Dialer) {
		healthy := connectFor(t, dial, time.Hour) // it sends nothing for long
		handshake := (&proto.ConnectRequest{Timeout: 4000, Password: make([]byte, 16)}).Append(nil)
		cases := map[string][]byte{
			"HTTP":              []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
			"TLS":               {0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03},
			"SSH":               []byte("SSH-2.0-OpenSSH_9.2\r\n"),
			"no payload":        request32(0),
			"one byte":          frame([]byte{0}),
			"cut handshake":     frame(handshake[:20]),
			"cut password":      frame(handshake[:len(handshake)-1]),
			"password lies":     frame(append(handshake[:24:24], 0x7f, 0xff, 0xff, 0xff)),
			"password negative": frame(append(handshake[:24:24], 0xff, 0xff, 0xff, 0xfe)),
			"unknown word":      []byte("zzzz"),
			"negative":          request32(-5),
		}
		for name, b := range cases {
			t.Run(name, func(t *testing.T) {
				log.Reset()
				c := rawclient.New(must(dial())(t))
				defer c.Close()
				go c.Write(b) // it blocks: the server does not read all of it from a pipe
				closed(t, c)
				alive(t, healthy)
				eventually(t, "a line in the log", func() bool { return len(log.Matching("bad input")) > 0 })
				if lines := log.Matching(""); len(lines) != 1 {
					t.Errorf("the log says %q", lines)
				}
			})
		}
		t.Run("noise", func(t *testing.T) {
			log.Reset()
			start := time.Now()
			var wg sync.WaitGroup
			for range 300 {
				b := make([]byte, 1+r.IntN(300))
				for i := range b {
					b[i] = byte(r.Uint32())
				}
				switch r.IntN(3) {
				case 0: // a valid length
					copy(b, request32(int32(r.IntN(300))))
				case 1: // a handshake, then noise in a frame
					b = append(frame(handshake), frame(b)...)
				}
				nc := must(dial())(t)
				wg.Go(func() {
					done := make(chan struct{})
					go func() {
						defer close(done)
						io.Copy(io.Discard, nc)
					}()
					nc.SetDeadline(time.Now().Add(2 * time.Second))
					nc.Write(b)
					nc.Close()
					<-done
				})
			}
			wg.Wait()
			alive(t, healthy)
			// Up to 50 lines of each of two kinds are logged per second, and the first and
			// last second may be incomplete.
			if lines := log.Matching(""); len(lines) > 100*(2+int(time.Since(start)/time.Second)) {
				t.Errorf("%d lines in the log", len(lines))
			}
		})
	})
}

// samples returns a valid request of every operation that has a body.
func samples() map[proto.OpCode]proto.Record {
	create := proto.CreateRequest{Path: "/cut", Data: []byte("data"), ACL: proto.OpenACL}
	ttl := create
	ttl.Flags = proto.FlagTTL
	watches := proto.SetWatchesRequest{RelativeZxid: 1, Data: []string{"/d"}, Exist: []string{"/e"}, Child: []string{"/c"}}
	return map[proto.OpCode]proto.Record{
		proto.OpCreate: &create, proto.OpCreate2: &create, proto.OpCreateContainer: &create,
		proto.OpCreateTTL:            &proto.CreateTTLRequest{CreateRequest: ttl, TTL: 1000},
		proto.OpDelete:               &proto.PathVersion{Path: "/cut", Version: -1},
		proto.OpExists:               &proto.PathWatch{Path: "/cut", Watch: true},
		proto.OpGetData:              &proto.PathWatch{Path: "/cut"},
		proto.OpSetData:              &proto.SetDataRequest{Path: "/cut", Data: []byte("x"), Version: -1},
		proto.OpGetACL:               &proto.Path{Path: "/cut"},
		proto.OpSetACL:               &proto.SetACLRequest{Path: "/cut", ACL: proto.OpenACL, Version: -1},
		proto.OpGetChildren:          &proto.PathWatch{Path: "/"},
		proto.OpGetChildren2:         &proto.PathWatch{Path: "/"},
		proto.OpSync:                 &proto.Path{Path: "/"},
		proto.OpMulti:                &proto.MultiRequest{Ops: []proto.MultiOp{{Op: proto.OpCreate, Request: &create}, {Op: proto.OpDelete, Request: &proto.PathVersion{Path: "/cut"}}}},
		proto.OpMultiRead:            &proto.MultiReadRequest{Ops: []proto.MultiOp{{Op: proto.OpGetData, Request: &proto.PathWatch{Path: "/"}}}},
		proto.OpCheckWatches:         &proto.PathType{Path: "/cut", Type: 3},
		proto.OpRemoveWatches:        &proto.PathType{Path: "/cut", Type: 3},
		proto.OpAddWatch:             &proto.PathType{Path: "/cut", Type: 0},
		proto.OpSetWatches:           &watches,
		proto.OpSetWatches2:          &proto.SetWatches2Request{SetWatchesRequest: watches, Persistent: []string{"/p"}, Recursive: []string{"/r"}},
		proto.OpGetEphemerals:        &proto.Path{Path: "/"},
		proto.OpGetAllChildrenNumber: &proto.Path{Path: "/"},
	}
}

// TestCutRecords cuts a request of every operation at every byte, and replaces every
// four bytes with an absurd number. Each is answered in order, and the connection stays
// open.
func TestCutRecords(t *testing.T) {
	for _, op := range proto.Ops {
		if op.Class != proto.Part && op.Class != proto.Connection && op.Code != proto.OpCloseSession && op.Code != proto.OpWhoAmI &&
			op.Code != proto.OpReconfig && // is always refused
			samples()[op.Code] == nil {
			t.Errorf("no sample of %s", op.Name)
		}
	}
	overAll(t, server.Config{}, func(t *testing.T, _ *port, dial rawtest.Dialer) {
		c := connect(t, dial)
		xid := int32(0)
		ask := func(op proto.OpCode, body []byte) proto.Code {
			t.Helper()
			xid++
			check(t, c.Write(frame(append(request32(xid, int32(op)), body...))))
			for {
				f, err := c.Read()
				if err != nil {
					t.Fatalf("op %d with body %x: %v", op, body, err)
				}
				if _, ok := f.Event(); ok {
					continue
				}
				if f.Xid != xid || f.Code != proto.OK && len(f.Body) > 0 {
					t.Fatalf("op %d with body %x: %+v and %d bytes, to request %d", op, body, f.ReplyHeader, len(f.Body), xid)
				}
				return f.Code
			}
		}
		for op, r := range samples() {
			body := r.Append(nil)
			for n := range body {
				if code := ask(op, body[:n]); code != proto.MarshallingError {
					t.Errorf("op %d cut to %d of %d bytes: %v", op, n, len(body), code)
				}
			}
			for _, absurd := range []int32{math.MaxInt32, math.MinInt32, -2, 1 << 24} {
				for at := 0; at+4 <= len(body); at++ {
					b := append([]byte(nil), body...)
					copy(b[at:], request32(absurd))
					ask(op, b)
				}
			}
		}
		// Counts without elements.
		for _, count := range []int32{math.MaxInt32, 1 << 20, 1} {
			path := jute.AppendBuffer(jute.AppendString(nil, "/count"), nil)
			if code := ask(proto.OpCreate, append(path, request32(count)...)); code != proto.MarshallingError {
				t.Errorf("%d ACL entries: %v", count, code)
			}
			if code := ask(proto.OpSetWatches, append(jute.AppendLong(nil, 0), request32(count)...)); code != proto.MarshallingError {
				t.Errorf("%d watches: %v", count, code)
			}
		}
		alive(t, c)
	})
}

func TestRefusedPaths(t *testing.T) {
	noGoroutineLeft(t)
	c := connect(t, open(t, server.Config{}).dial)
	for path, want := range map[string]proto.Code{
		"": proto.BadArguments, "/": proto.NodeExists, "nope": proto.BadArguments, "/a/": proto.NoNode, "//a": proto.BadArguments,
		"/.": proto.BadArguments, "/..": proto.BadArguments, "/a\x00b": proto.BadArguments, "/a\x01": proto.BadArguments,
		"/a\u007f": proto.BadArguments, "/\ue000": proto.BadArguments, "/\ufff0": proto.BadArguments, "/😀": proto.BadArguments,
		"/\xff\xfe": proto.BadArguments, "/missing/child": proto.NoNode, "/a//b": proto.NoNode, "/a/./b": proto.NoNode, "/zookeeper": proto.NodeExists,
		"/...": proto.OK, "/.a": proto.OK, "/ with space": proto.OK, "/é": proto.OK, "/" + strings.Repeat("long", 10000): proto.OK,
	} {
		if _, err := c.Create(path, nil, 0); err != want && (want != proto.OK || err != nil) {
			t.Errorf("create %.20q: %v, not %v", path, err, want)
		}
	}
	for path, want := range map[string]proto.Code{
		"/": proto.BadArguments, "": proto.BadArguments, "nope": proto.BadArguments, "/a\x00": proto.BadArguments, "/zookeeper": proto.BadArguments,
		"/zookeeper/quota": proto.BadArguments, "/a/": proto.NoNode, "/gone": proto.NoNode,
	} {
		if err := c.Delete(path); err != want {
			t.Errorf("delete %q: %v, not %v", path, err, want)
		}
	}
	for path, want := range map[string]error{"": nil, "nope": proto.NoNode, "/a/": proto.NoNode, "//a": proto.NoNode, "/a\x00": proto.BadArguments} {
		if _, err := c.Exists(path, true); err != want {
			t.Errorf("exists %q: %v, not %v", path, err, want)
		}
	}
}

// TestUnknownOperations: an unknown operation is answered with Unimplemented, in order.
// Then the server closes the connection, but the session continues.
func TestUnknownOperations(t *testing.T) {
	var log testkit.Log
	overAll(t, server.Config{Log: log.Logger(slog.LevelWarn), Limits: server.Limits{MaxSessionTimeout: time.Hour}}, func(t *testing.T, _ *port, dial rawtest.Dialer) {
		healthy := connectFor(t, dial, time.Hour) // it sends nothing for long
		log.Reset()
		// Those of ZooKeeper and of the log that clients may not send, and those around the length of the index.
		refused := []proto.OpCode{proto.OpError, proto.OpCheck, proto.OpDeleteContainer, proto.OpCreateSession, -1001, -1002, 127, 128}
		for i, op := range slices.Concat(wire.UnknownOps, refused) {
			before := len(log.Matching(""))
			c := connect(t, dial)
			path := fmt.Sprintf("/before%d", i)
			first := c.Queue(proto.OpCreate, &proto.CreateRequest{Path: path, ACL: proto.OpenACL, Flags: proto.FlagEphemeral})
			unknown := c.Queue(op, &proto.Path{Path: "/"})
			c.Queue(proto.OpPing, nil)
			go c.Flush()
			if f := must(c.Read())(t); f.Xid != first || f.Code != proto.OK {
				t.Errorf("op %d: the request before it: %+v", op, f.ReplyHeader)
			}
			if f := must(c.Read())(t); f.Xid != unknown || f.Code != proto.Unimplemented || f.Zxid != -1 || len(f.Body) > 0 {
				t.Errorf("op %d: %+v", op, f.ReplyHeader)
			}
			closed(t, c)
			again, err := rawclient.Resume(must(dial())(t), c.Session)
			if err != nil {
				t.Fatalf("op %d: its session: %v", op, err)
			}
			if _, err := again.Exists(path, false); err != nil {
				t.Errorf("op %d: its ephemeral: %v", op, err)
			}
			again.Close()
			alive(t, healthy)
			if n := len(log.Matching("unknown operation", fmt.Sprintf("op=%d", int32(op)))); n < 1 || len(log.Matching("")) != before+1 {
				t.Errorf("op %d: the log says %q", op, log.Matching(""))
			}
		}
	})
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// connections returns the number of the server's connections, without the one that asks.
func connections(t testing.TB, dial rawtest.Dialer) int {
	t.Helper()
	var n int
	for line := range strings.Lines(word(t, dial, "srvr")) {
		fmt.Sscanf(line, "Connections: %d", &n)
	}
	return n - 1
}

// TestClientThatDoesNotRead: a client that causes many replies or events and does not
// read them loses its connection. Until then it uses a bounded amount of memory, and no
// other client has to wait.
func TestClientThatDoesNotRead(t *testing.T) {
	noGoroutineLeft(t)
	cfg := server.Config{Tick: 200 * time.Millisecond, Limits: server.Limits{OutboxBytes: 4 << 20, MaxSessionTimeout: time.Hour}}
	test := func(t *testing.T, listen func(*port, testing.TB) rawtest.Dialer, most time.Duration, part func(name string, f func(t *testing.T)) bool) {
		var log testkit.Log
		cfg := cfg
		cfg.Log = log.Logger(slog.LevelWarn)
		dial := listen(open(t, cfg), t)
		quick := func(t *testing.T, c *rawclient.Client) {
			t.Helper()
			for i := range 50 {
				start := time.Now()
				must(c.Set("/quick", fmt.Append(nil, i)))(t)
				must(c.Get("/quick", false))(t)
				if d := time.Since(start); d > most {
					t.Errorf("another client waited %v", d)
				}
			}
		}
		healthy := connectFor(t, dial, time.Hour)
		must(healthy.Create("/quick", nil, 0))(t)
		large := make([]byte, 200<<10)
		must(healthy.Create("/large", large, 0))(t)

		part("reads", func(t *testing.T) {
			before := heap()
			c := connectFor(t, dial, timing.Shortest(cfg.Tick)) // the shortest timeout
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				c.Timeout = time.Minute
				for { // until the server reads no more and then closes the connection
					for range 100 {
						c.Queue(proto.OpGetData, &proto.PathWatch{Path: "/large"})
					}
					if c.Flush() != nil {
						return
					}
				}
			}()
			quick(t, healthy)
			if now := heap(); now > before+64<<20 {
				t.Errorf("%d MB of memory for one client", (now-before)>>20)
			}
			for alive := true; alive; { // the session expires, because the server does not read its requests
				select {
				case <-ended:
					alive = false
				case <-time.After(50 * time.Millisecond):
					quick(t, healthy)
				}
			}
			eventually(t, "the end of the connection", func() bool { return connections(t, dial) == 1 })
		})
		part("writes", func(t *testing.T) {
			log.Reset()
			c := connectFor(t, dial, timing.Shortest(cfg.Tick))
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				c.Timeout = time.Minute
				for {
					for range 20 { // each reply is as long as the request
						c.Queue(proto.OpSync, &proto.Path{Path: string(large)})
					}
					if c.Flush() != nil {
						return
					}
				}
			}()
			quick(t, healthy)
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Fatal("it goes on for ever")
			}
			eventually(t, "the end of the connection", func() bool { return connections(t, dial) == 1 })
		})
		part("events", func(t *testing.T) {
			log.Reset()
			c := connectFor(t, dial, time.Minute) // it must not expire during the test
			must(c.Call(proto.OpAddWatch, &proto.PathType{Path: "/", Type: 1}, nil))(t)
			long := "/" + strings.Repeat("n", 10_000)
			must(healthy.Create(long, nil, 0))(t)
			for n := 0; len(log.Matching("does not read")) == 0; n++ {
				if n > 10_000 {
					t.Fatal("it is told more and more")
				}
				must(healthy.Set(long, nil))(t)
			}
			if lines := log.Matching(""); len(lines) != 1 || !strings.Contains(lines[0], fmt.Sprintf("%#x", uint64(c.Session.SessionID))) {
				t.Errorf("the log says %q", lines)
			}
			quick(t, healthy)
			check(t, healthy.Delete(long))
			eventually(t, "the end of the connection", func() bool { return connections(t, dial) == 1 })
		})
	}
	for name, listen := range map[string]func(*port, testing.TB) rawtest.Dialer{"TCP": (*port).listen, "TLS": (*port).listenTLS} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // both wait for sessions to expire
			test(t, listen, time.Hour, t.Run)
		})
	}
	// How long the others wait is judged only in virtual time: otherwise it depends on
	// the machine.
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			inMemory := func(p *port, _ testing.TB) rawtest.Dialer { return p.dial }
			test(t, inMemory, 0, func(_ string, f func(t *testing.T)) bool { f(t); return true })
		})
	})
}

// TestRefusalThatIsNotRead: a client that does not read the server's last reply is
// forgotten after a while.
func TestRefusalThatIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, server.Config{})
		healthy := connect(t, p.dial)
		nc := must(p.dial())(t)
		defer nc.Close()
		q := rawclient.NewSession(4 * time.Second)
		q.SessionID = 12345
		must(nc.Write(rawclient.Framed(q)))(t)
		bye := connect(t, p.dial)
		must(bye.Send(proto.OpCloseSession, nil))(t)
		for range 4 {
			time.Sleep(5 * time.Second)
			alive(t, healthy)
		}
		if n := connections(t, p.dial); n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}

// TestHalfOpenTime: connections that never finish a handshake are closed when the
// handshake timeout is over.
func TestHalfOpenTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		p := open(t, server.Config{})
		healthy := connect(t, p.dial)
		for i := range n {
			nc := must(p.dial())(t)
			defer nc.Close()
			switch i % 3 {
			case 1: // half a length
				must(nc.Write([]byte{0, 0}))(t)
			case 2: // a length without a frame
				must(nc.Write(request32(jute.DefaultMaxFrame)))(t)
			}
		}
		time.Sleep(9 * time.Second)
		alive(t, healthy)
		if got := connections(t, p.dial); got != n+1 {
			t.Errorf("%d connections before the time", got)
		}
		time.Sleep(2 * time.Second)
		alive(t, healthy)
		if got := connections(t, p.dial); got != 1 {
			t.Errorf("%d connections after the time", got)
		}
	})
}

// TestManyHalfOpen opens as many connections as this process accepts. Their clients send
// nothing, or the length of a large frame, before or after the handshake. Each uses a
// bounded amount of memory, and other clients are served.
func TestManyHalfOpen(t *testing.T) {
	noGoroutineLeft(t)
	n := 9000
	if most := (fdlimit.Sixteenth(1<<20)*12 - 200) / 2; most < n { // both ends are in this process, and the last quarter is not for clients
		t.Logf("the limit on open files allows %d connections, not %d", most, n)
		n = most
	}
	if !testkit.Thorough {
		n = min(n, 2000)
	}
	// None of them may expire before the last one is open.
	dial := open(t, server.Config{Limits: server.Limits{MaxSessionTimeout: time.Hour, HandshakeTimeout: time.Hour}}).listen(t)
	healthy := connectFor(t, dial, time.Hour)
	must(healthy.Create("/n", nil, 0))(t)
	before := heap()
	open := make([]net.Conn, 0, n)
	defer func() {
		for _, nc := range open {
			nc.Close()
		}
		eventually(t, "the end of all", func() bool { return connections(t, dial) == 1 })
	}()
	promise := request32(jute.DefaultMaxFrame)
	handshake := rawclient.Framed(rawclient.NewSession(time.Hour))
	for i := range n {
		nc := must(dial())(t)
		open = append(open, nc)
		switch i % 3 {
		case 1:
			must(nc.Write(promise))(t)
		case 2:
			must(nc.Write(append(handshake, promise...)))(t)
		}
		if i%500 == 0 {
			must(healthy.Set("/n", fmt.Append(nil, i)))(t)
		}
	}
	eventually(t, "all of the connections", func() bool { return connections(t, dial) == n+1 })
	eventually(t, "all of the sessions", func() bool {
		return strings.Contains(word(t, dial, "mntr"), fmt.Sprintf("zk_global_sessions\t%d\n", n/3+1))
	})
	used := int(heap()-before) / n
	t.Logf("%d connections, %d bytes of heap each", n, used)
	if used > 32<<10 {
		t.Errorf("%d bytes of heap for a connection that says nothing", used)
	}
	start := time.Now()
	for i := range 100 {
		must(healthy.Set("/n", fmt.Append(nil, i)))(t)
	}
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("100 writes beside them took %v", d)
	}
}
