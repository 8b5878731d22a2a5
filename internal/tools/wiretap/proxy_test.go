package wiretap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/releases"
	"github.com/lockkeeper/lockkeeper/internal/tools/stock"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

var ok = testkit.Check

// far is how long a test waits before it gives up.
const far = time.Minute

// running is a proxy under test.
type running struct {
	*Proxy
	addr string
	stop func()

	mu     sync.Mutex
	events []Event // without their bytes
	more   chan struct{}
}

// start starts p. When p is stopped, start checks that no goroutine is left.
func start(t testing.TB, p *Proxy) *running {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	r := &running{Proxy: p, addr: l.Addr().String(), more: make(chan struct{}, 1)}
	handle := p.Handle
	p.Handle = func(e Event) {
		if handle != nil {
			handle(e)
		}
		e.Bytes = bytes.Clone(e.Bytes[:min(len(e.Bytes), 100)])
		r.mu.Lock()
		r.events = append(r.events, e)
		r.mu.Unlock()
		select {
		case r.more <- struct{}{}:
		default:
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- p.Serve(ctx, l) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-served:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(far):
			t.Error("Serve does not end")
		}
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		for stack := range strings.SplitSeq(string(stacks), "\n\n") {
			if strings.Contains(stack, "wiretap.(*conn)") || strings.Contains(stack, "wiretap.(*Proxy)") {
				t.Errorf("a goroutine is still running:\n%s", stack)
			}
		}
	})
	t.Cleanup(r.stop)
	return r
}

// await waits for an event, and returns it.
func (r *running) await(t testing.TB, what string, match func(Event) bool) Event {
	t.Helper()
	deadline := time.After(far)
	for {
		r.mu.Lock()
		for _, e := range r.events {
			if match(e) {
				r.mu.Unlock()
				return e
			}
		}
		r.mu.Unlock()
		select {
		case <-r.more:
		case <-deadline:
			t.Fatalf("no event: %s", what)
		}
	}
}

// dial connects through the proxy.
func (r *running) dial(t testing.TB) *net.TCPConn {
	t.Helper()
	nc, err := net.Dial("tcp", r.addr)
	ok(t, err)
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(far))
	return nc.(*net.TCPConn)
}

// fakeServer accepts connections and sends them to the channel.
func fakeServer(t testing.TB) (addr string, accepted <-chan *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	t.Cleanup(func() { l.Close() })
	conns := make(chan *net.TCPConn)
	go func() {
		defer close(conns)
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			nc.SetDeadline(time.Now().Add(far))
			conns <- nc.(*net.TCPConn)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		for nc := range conns {
			nc.Close()
		}
	})
	return l.Addr().String(), conns
}

// open opens a server with its data in memory. addr is that of its port, or "" if it has none.
func open(t testing.TB, addr string, tick time.Duration) *lockkeeper.Server {
	t.Helper()
	s, err := lockkeeper.Open(lockkeeper.Config{ClientAddr: addr, TickTime: tick,
		Auth: lockkeeper.Auth{SuperDigest: "super:lK75jTNcA+U9vtVEw5vB51mj/w4="}})
	ok(t, err)
	t.Cleanup(func() { s.Close() })
	<-s.Ready()
	return s
}

// replayed parses a recording and replays it on the new server that dial connects to.
func replayed(t *testing.T, recording []byte, dial func() (net.Conn, error)) *golden.Scenario {
	t.Helper()
	s, err := golden.Parse(bytes.NewReader(recording))
	ok(t, err)
	if err := Replay(t.Context(), s, dial, golden.Options{Timeout: far}); err != nil {
		t.Errorf("%v\n%s", err, recording[:min(len(recording), 10_000)])
	}
	return s
}

// capturedTick is the tick of the server whose exchanges were captured.
const capturedTick = 500 * time.Millisecond

// TestRecordScenarios plays the captured exchanges, which have all operations, through a
// recording proxy, and then replays the recording on a new server.
func TestRecordScenarios(t *testing.T) {
	scenarios, err := golden.LoadAll(os.DirFS("../../../testdata/golden"))
	ok(t, err)
	var recording bytes.Buffer
	r := NewRecorder(&recording, "test")
	p := start(t, &Proxy{To: open(t, "127.0.0.1:0", capturedTick).Addr().String(), InTurn: true, TurnTime: far, Handle: r.Handle})
	dial := func() (net.Conn, error) { return net.Dial("tcp", p.addr) }
	for _, s := range scenarios {
		if s.Config != "ext" || s.Name == "51-session-expiry" && !testkit.Thorough { // TestRecordLock waits for one, too
			continue
		}
		s.Steps = slices.DeleteFunc(s.Steps, func(st golden.Step) bool { return st.Kind == golden.Silence }) // a recording has none
		if err := s.Replay(t.Context(), dial, golden.Options{Timeout: far, EventZxid: true, Text: golden.SameShape, Mask: golden.Changed(releases.Newest)}); err != nil {
			t.Error(err)
		}
	}
	p.stop()
	if r.Err() != nil || r.Lost() > 0 || p.Late() > 0 {
		t.Errorf("%v, %d connections lost, %d requests late", r.Err(), r.Lost(), p.Late())
	}
	fresh := open(t, "127.0.0.1:0", capturedTick)
	s := replayed(t, recording.Bytes(), func() (net.Conn, error) { return net.Dial("tcp", fresh.Addr().String()) })
	seen := map[int32]bool{}
	for _, f := range s.Frames() {
		seen[f.Op] = true
	}
	for i := range proto.Ops {
		if op := &proto.Ops[i]; op.Class != proto.Part && !seen[int32(op.Code)] {
			t.Errorf("no %s was recorded", op.Name)
		}
	}
	if len(s.Steps) < 1000 {
		t.Errorf("only %d steps", len(s.Steps))
	}
}

// inMemory starts a server, and a proxy in front of it that r records, in a synctest bubble and
// without TCP.
func inMemory(t *testing.T, tick time.Duration, r *Recorder) (server *lockkeeper.Server, p *Proxy, dial func() net.Conn, stop func()) {
	t.Helper()
	server = open(t, "", tick)
	n := memnet.New()
	l, err := n.Host("proxy").Listen("proxy:1")
	ok(t, err)
	p = &Proxy{InTurn: true, TurnTime: far, Handle: r.Handle,
		Dial: func(context.Context, string, string) (net.Conn, error) { return server.Dial("", "", far) }}
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() { ok(t, p.Serve(ctx, l)) })
	dial = func() net.Conn {
		nc, err := n.Host("client").Dial(t.Context(), "proxy:1")
		ok(t, err)
		return nc
	}
	return server, p, dial, func() {
		cancel()
		serving.Wait()
	}
}

// TestRecordLock lets clients of go-zookeeper contend for a lock through a recording
// proxy, and one client disappear. The recording must replay on a new server without a
// difference.
func TestRecordLock(t *testing.T) { synctest.Test(t, testRecordLock) }

func testRecordLock(t *testing.T) {
	const tick, timeout = 500 * time.Millisecond, 5 * time.Second
	var recording bytes.Buffer
	r := NewRecorder(&recording, "test")
	_, p, dial, stop := inMemory(t, tick, r)
	dialer := zk.WithDialer(func(string, string, time.Duration) (net.Conn, error) { return dial(), nil })
	holders := 0
	var clients sync.WaitGroup
	const rounds, contenders = 5, 3
	for range contenders {
		conn, _, err := zk.Connect([]string{"127.0.0.1:1"}, 10*time.Second, zk.WithLogger(stock.Quiet{}), dialer)
		ok(t, err)
		clients.Go(func() {
			defer conn.Close()
			for range rounds {
				lock := zk.NewLock(conn, "/locks/a", zk.WorldACL(zk.PermAll))
				if err := lock.Lock(); err != nil {
					t.Error(err)
					return
				}
				if holders++; holders != 1 {
					t.Errorf("%d hold the lock", holders)
				}
				if ok, _, err := conn.Exists("/locks"); err != nil || !ok {
					t.Error(ok, err)
				}
				holders--
				if err := lock.Unlock(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	clients.Wait()

	// One client disappears without closing its session: its znode exists until the session expires.
	gone, err := rawclient.Open(dial(), timeout)
	ok(t, err)
	watcher, err := rawclient.Open(dial(), 10*time.Second)
	ok(t, err)
	_, err = gone.Create("/locks/gone", nil, proto.FlagEphemeral)
	ok(t, err)
	_, err = watcher.Exists("/locks/gone", true)
	ok(t, err)
	ok(t, gone.Close())
	f, err := watcher.Read()
	ok(t, err)
	if e, isEvent := f.Event(); !isEvent || e.Type != proto.EventNodeDeleted {
		t.Errorf("%+v", f)
	}
	ok(t, watcher.CloseSession())
	stop()
	if r.Err() != nil || r.Lost() > 0 || p.Late() > 0 {
		t.Errorf("%v, %d connections lost, %d requests late", r.Err(), r.Lost(), p.Late())
	}
	fresh := open(t, "", tick)
	s := replayed(t, recording.Bytes(), func() (net.Conn, error) { return fresh.Dial("", "", far) })
	waits := time.Duration(0)
	for _, st := range s.Steps {
		waits += st.Pause
	}
	if waits < timeout/2 || waits > far {
		t.Errorf("the recording waits %v for a session of %v to expire", waits, timeout)
	}
}

// TestPassesBytes sends random bytes both ways. They must arrive unchanged.
func TestPassesBytes(t *testing.T) {
	seed := testkit.Seed(t)
	addr, accepted := fakeServer(t)
	printer := Printer{W: io.Discard, Hex: true}
	for _, inTurn := range []bool{false, true} {
		var recording bytes.Buffer
		rec := NewRecorder(&recording, "test")
		p := start(t, &Proxy{To: addr, InTurn: inTurn, TurnTime: 10 * time.Millisecond, Handle: func(e Event) {
			rec.Handle(e)
			printer.JSON = !printer.JSON
			printer.Handle(e)
		}})
		var talks sync.WaitGroup
		for i := range uint64(40) {
			client := p.dial(t)
			server := <-accepted
			talks.Go(func() {
				defer client.Close()
				defer server.Close()
				rng := rand.New(rand.NewPCG(seed, i))
				there, back := garbage(rng), garbage(rng)
				var both sync.WaitGroup
				for j, x := range []struct {
					from, to *net.TCPConn
					sent     []byte
				}{{client, server, there}, {server, client, back}} {
					chunks := rand.New(rand.NewPCG(seed, i<<8+uint64(j)))
					both.Go(func() {
						for b := x.sent; len(b) > 0; {
							n := min(len(b), 1+chunks.IntN(5000))
							if _, err := x.from.Write(b[:n]); err != nil {
								t.Error(err)
								return
							}
							b = b[n:]
						}
						x.from.CloseWrite()
					})
					both.Go(func() {
						got, err := io.ReadAll(x.to)
						if err != nil || !bytes.Equal(got, x.sent) {
							t.Errorf("connection %d: %d of %d bytes arrived, or they are not the same; %v", i, len(got), len(x.sent), err)
						}
					})
				}
				both.Wait()
			})
		}
		talks.Wait()
		p.stop()
		if _, err := golden.Parse(bytes.NewReader(recording.Bytes())); err != nil {
			t.Errorf("the recording cannot be read: %v", err)
		}
	}
}

// garbage returns bytes that look like frames, a four-letter word or nothing known.
func garbage(rng *rand.Rand) (b []byte) {
	if rng.IntN(5) == 0 {
		b = append(b, "ruok"...)
	}
	for range rng.IntN(20) {
		n := rng.IntN(3000)
		payload := make([]byte, n)
		for i := range payload {
			payload[i] = byte(rng.IntN(4)) // small numbers are opcodes and lengths
		}
		switch rng.IntN(10) {
		case 0: // not a frame
			for i := range payload {
				payload[i] = byte(rng.Uint32())
			}
		case 1:
			b = binary.BigEndian.AppendUint32(b, uint32(rng.IntN(8<<20)))
		default:
			b = binary.BigEndian.AppendUint32(b, uint32(n))
		}
		b = append(b, payload...)
	}
	return b
}

// TestBackpressure writes a very large frame to a client that does not read. The writer
// must block soon, and the proxy must not use much memory.
func TestBackpressure(t *testing.T) {
	addr, accepted := fakeServer(t)
	p := start(t, &Proxy{To: addr})
	client := p.dial(t)
	server := <-accepted
	defer server.Close()
	const size = 100 << 20
	chunk := make([]byte, 64<<10)
	for i := range chunk {
		chunk[i] = byte(i * i >> 3)
	}
	sum := crc32.NewIEEE()
	sent := 0
	allocated := testkit.Allocated(func() {
		head := []byte{0, 0, 0, 0}
		binary.BigEndian.PutUint32(head, size-4)
		sum.Write(head)
		n, err := server.Write(head)
		ok(t, err)
		sent = n
		for err == nil && sent < size {
			server.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)) // so that a blocked write ends
			n, err = server.Write(chunk[:min(len(chunk), size-sent)])
			sum.Write(chunk[:n])
			sent += n
		}
		if sent == size || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the proxy accepted %d bytes although the client does not read: %v", sent, err)
		}
		done := make(chan error, 1)
		go func() {
			got := crc32.NewIEEE()
			n, err := io.Copy(got, client)
			if err == nil && (n != size || got.Sum32() != sum.Sum32()) {
				err = fmt.Errorf("%d of %d bytes arrived, or they are not the same", n, size)
			}
			done <- err
		}()
		server.SetWriteDeadline(time.Now().Add(far))
		for sent < size {
			n := min(len(chunk), size-sent)
			sum.Write(chunk[:n])
			_, err := server.Write(chunk[:n])
			ok(t, err)
			sent += n
		}
		server.CloseWrite()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if allocated > 16<<20 {
		t.Errorf("%d bytes were allocated to forward %d", allocated, size)
	}
	e := p.await(t, "the frame", func(e Event) bool { return e.Kind == Framed })
	if e.Size != size || e.Frame.Err != errTooLong {
		t.Errorf("the frame of %d bytes was reported as %d, %v", size, e.Size, e.Frame)
	}
}

// finished returns a function that matches the event Finished of one side.
func finished(fromClient, reset bool) func(Event) bool {
	return func(e Event) bool {
		return e.Kind == Finished && e.FromClient == fromClient && (e.Err != nil) == reset
	}
}

// TestEnds checks that each side sees the other's close or reset as it would without
// the proxy.
func TestEnds(t *testing.T) {
	read := func(nc net.Conn) error {
		_, err := nc.Read(make([]byte, 1))
		return err
	}
	for _, first := range []string{"client", "server"} {
		for _, how := range []string{"half-close", "reset"} {
			t.Run(first+" "+how, func(t *testing.T) {
				addr, accepted := fakeServer(t)
				p := start(t, &Proxy{To: addr})
				client := p.dial(t)
				server := <-accepted
				defer server.Close()
				near, distant := client, server
				if first == "server" {
					near, distant = server, client
				}
				if how == "reset" {
					near.SetLinger(0)
					near.Close()
					if err := read(distant); !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("the other side sees %v", err)
					}
					p.await(t, "the reset", finished(first == "client", true))
					p.stop()
					for _, e := range p.events {
						if e.Kind == Finished && e.FromClient != (first == "client") {
							t.Errorf("reported, but did not happen: %s", e.words())
						}
					}
					return
				}
				ok(t, near.CloseWrite())
				if err := read(distant); err != io.EOF {
					t.Errorf("the other side sees %v", err)
				}
				_, err := distant.Write([]byte("answer")) // the other direction is still open
				ok(t, err)
				ok(t, distant.CloseWrite())
				if b, err := io.ReadAll(near); string(b) != "answer" || err != nil {
					t.Errorf("%q came back, %v", b, err)
				}
				p.await(t, "the client's end", finished(true, false))
				p.await(t, "the server's end", finished(false, false))
			})
		}
	}
	t.Run("no server", func(t *testing.T) {
		p := start(t, &Proxy{To: fmt.Sprintf("127.0.0.1:%d", testkit.Port(t))})
		client, err := net.Dial("tcp", p.addr)
		if err == nil { // otherwise connect itself has failed
			defer client.Close()
			err = read(client)
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the client sees %v", err)
		}
		p.await(t, "the failure", func(e Event) bool { return e.Kind == Failed && e.Err != nil })
	})
	t.Run("stop", func(t *testing.T) { // while a connection is open and bytes are in transit
		addr, accepted := fakeServer(t)
		p := start(t, &Proxy{To: addr})
		client := p.dial(t)
		server := <-accepted
		defer server.Close()
		_, err := client.Write([]byte{0, 0, 0, 9, 1})
		ok(t, err)
		ok(t, read(server))
		p.stop()
		if _, err := io.Copy(io.Discard, server); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Error(err)
		}
		if err := read(client); err == nil {
			t.Error("the client's connection is still open")
		}
	})
}

// shake opens a session with a fake server through the proxy.
func shake(t *testing.T, p *running, accepted <-chan *net.TCPConn) (client, server *net.TCPConn) {
	t.Helper()
	client = p.dial(t)
	server = <-accepted
	t.Cleanup(func() { server.Close() })
	_, err := client.Write(rawclient.Framed(rawclient.NewSession(4 * time.Second)))
	ok(t, err)
	_, err = io.ReadFull(server, make([]byte, 49))
	ok(t, err)
	_, err = server.Write(rawclient.Framed(&proto.ConnectReply{Timeout: 4000, SessionID: 7, Password: make([]byte, 16)}))
	ok(t, err)
	_, err = io.ReadFull(client, make([]byte, 40))
	ok(t, err)
	return client, server
}

func reply(xid int32, zxid int64) []byte {
	return rawclient.Framed(&proto.ReplyHeader{Xid: xid, Zxid: zxid})
}

// TestInTurn checks that a request waits while one of another connection has no reply,
// and no longer than that.
func TestInTurn(t *testing.T) {
	addr, accepted := fakeServer(t)
	p := start(t, &Proxy{To: addr, InTurn: true, TurnTime: far})
	one, oneServer := shake(t, p, accepted)
	two, twoServer := shake(t, p, accepted)
	three, threeServer := shake(t, p, accepted)
	ask := func(nc net.Conn, xid int32) {
		t.Helper()
		_, err := nc.Write(rawclient.Request(nil, xid, proto.OpPing, nil))
		ok(t, err)
	}
	arrives := func(nc net.Conn) {
		t.Helper()
		_, err := io.ReadFull(nc, make([]byte, 12))
		ok(t, err)
	}
	told := func(id int, kind wire.Kind) func(Event) bool {
		return func(e Event) bool { return e.Conn == id && e.Kind == Framed && e.Frame.Kind == kind }
	}
	ask(one, 1)
	arrives(oneServer)
	ask(two, 1)
	p.queue(t, 1)
	ask(one, 2) // must come after the request of two
	p.queue(t, 2)
	_, err := oneServer.Write(reply(-2, 1))
	ok(t, err)
	arrives(twoServer)
	p.await(t, "the first reply", told(1, wire.Reply))
	_, err = twoServer.Write(reply(-2, 1))
	ok(t, err)
	arrives(oneServer)

	// The end of a connection ends its turn.
	ask(three, 1)
	p.queue(t, 1)
	oneServer.SetLinger(0)
	oneServer.Close()
	arrives(threeServer)
	_, err = threeServer.Write(reply(-2, 1))
	ok(t, err)
	if n := p.Late(); n != 0 {
		t.Errorf("%d were late", n)
	}
	p.locked(func() { p.TurnTime = time.Millisecond })
	ask(three, 2) // never answered
	arrives(threeServer)
	ask(two, 2)
	arrives(twoServer)
	if n := p.Late(); n != 1 {
		t.Errorf("%d were late, want 1", n)
	}
}

// locked calls f while it holds the proxy's lock.
func (r *running) locked(f func()) {
	r.Proxy.mu.Lock()
	defer r.Proxy.mu.Unlock()
	f()
}

// queue blocks until n requests wait for their turn.
func (r *running) queue(t *testing.T, n int) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%d requests wait", n), func() (all bool) {
		r.locked(func() { all = len(r.waiting) == n })
		return all
	})
}
