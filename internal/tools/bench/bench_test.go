package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// settle is enough here, where only the order of magnitude of the memory is checked.
const settle = 10 * time.Millisecond

// target starts a server in this process.
func target(t *testing.T) (*lockkeepertest.Server, *Target) {
	s := lockkeepertest.Start(t)
	own := &Target{Name: "own", Addrs: []string{"127.0.0.1:1"}, Dial: func(context.Context, string) (net.Conn, error) {
		return s.Dial("tcp", "127.0.0.1:1", time.Minute)
	}}
	if runtime.GOOS == "linux" {
		own.PIDs = []int{os.Getpid()}
	}
	return s, own
}

// dialer connects to a target.
func dialer(own *Target) rawtest.Dialer {
	return func() (net.Conn, error) { return own.Dial(context.Background(), own.Addrs[0]) }
}

// received returns how many requests the server has received.
func received(t *testing.T, own *Target) int {
	for line := range strings.Lines(rawtest.Word(t, dialer(own), "srvr")) {
		if text, ok := strings.CutPrefix(line, "Received: "); ok {
			n := testkit.Must(strconv.Atoi(strings.TrimSpace(text)))(t)
			return n
		}
	}
	t.Fatal("srvr does not say how many requests were received")
	return 0
}

// nothingLeft checks that a run has left no znode and no session.
func nothingLeft(t *testing.T, own *Target) {
	t.Helper()
	c := rawtest.Connect(t, dialer(own))
	var list proto.ChildrenReply
	if _, err := c.Call(proto.OpGetChildren, &proto.PathWatch{Path: "/"}, &list); err != nil || !slices.Equal(list.Names, []string{"zookeeper"}) {
		t.Errorf("the znodes of the root are %v, %v", list.Names, err)
	}
	testkit.Eventually(t, "all sessions of the run end", func() bool {
		return rawtest.Number(t, rawtest.Counts(t, rawtest.Word(t, dialer(own), "mntr")), "global_sessions") == 1
	})
	if err := c.CloseSession(); err != nil {
		t.Error(err)
	}
}

// TestWorkloads runs every workload and compares its counts with those of the server.
func TestWorkloads(t *testing.T) {
	const ops = 200
	// How many requests the server gets for the given operations. Handing over a lock
	// takes more if clients wait for it.
	requests := map[string]func(ops int) (least, most int){
		"idle":      func(n int) (int, int) { return 0, n },
		"lock":      func(n int) (int, int) { return 3 * n, 3 * n },
		"handover":  func(n int) (int, int) { return 3 * n, 20 * (n + 64) },
		"fanout":    func(n int) (int, int) { return 1001 * n, 1001 * n },
		"elsewhere": func(n int) (int, int) { return 2 * n, 2 * n },
		"churn":     func(n int) (int, int) { return n, 2 * n },  // a handshake may count
		"snapshots": func(n int) (int, int) { return n, 20 * n }, // and the lone writer's, which is as fast as the machine lets it be
	}
	for _, w := range All() {
		t.Run(w.Name, func(t *testing.T) {
			_, own := target(t)
			running := runtime.NumGoroutine()
			group, _, _ := strings.Cut(w.Name, "-")
			o := Options{Targets: []*Target{own}, Workloads: []Workload{w}, Time: time.Minute, Ops: ops, IdleSessions: 70, Znodes: 300, settle: settle}
			want := ops
			switch group {
			case "idle":
				if want = o.IdleSessions; len(own.PIDs) == 0 {
					t.Skip("needs the memory of a process")
				}
			case "znodes":
				want = o.Znodes
			case "elsewhere":
				own.Addrs = slices.Repeat(own.Addrs, 2)
			case "snapshots":
				want -= want / 65 // the share of the lone writer
			case "fanout":
				o.Ops, want = 2, 2
			case "handover":
				want-- // nobody has held the lock before the first holder
			}
			var before, got int
			o.phase = func(_ *Run, begins bool) {
				if begins {
					before = received(t, own)
				} else {
					got = received(t, own) - before - 1 // the four-letter word itself
				}
			}
			report, err := Measure(t.Context(), o)
			if err != nil || len(report.Rows) != 1 || len(report.Rows[0].Runs[0]) != 1 || report.Left != "" {
				t.Fatalf("%v, report %+v", err, report)
			}
			r := report.Rows[0].Runs[0][0]
			if int(r.Ops) != want || r.Errors != 0 || report.Faults() != 0 {
				t.Errorf("%d operations, should be %d; %d errors: %s", r.Ops, want, r.Errors, r.Error)
			}
			least, most := want, want
			if f := requests[group]; f != nil {
				least, most = f(want)
			}
			if got < least || got > most {
				t.Errorf("the server got %d requests for %d operations, should be %d to %d", got, r.Ops, least, most)
			}
			if r.P50 <= 0 || r.P50 > r.P99 || r.P99 > r.P999 || r.P999 > r.Max || r.Rate <= 0 || r.Seconds <= 0 || r.Max > 1e6*r.Seconds {
				t.Errorf("implausible: %+v", r)
			}
			// A run of some ms is shorter than what is also counted before and after it.
			if len(own.PIDs) > 0 && (r.CPUPerOp <= 0 || r.MemoryBytes < 1<<20 || r.ServerCores*r.Seconds > float64(runtime.NumCPU()+1)*r.Seconds+0.02) {
				t.Errorf("implausible: %+v", r)
			}
			nothingLeft(t, own)
			testkit.Eventually(t, "the goroutines of the run end", func() bool { return runtime.NumGoroutine() <= running+1 })
		})
	}
}

// conn is a connection whose frames from the server go through a function.
type conn struct {
	net.Conn
	sent, buf bytes.Buffer
	change    func(request, reply []byte) []byte
	mu        sync.Mutex
	requests  map[uint32][]byte // by xid
	begun     bool
}

func (c *conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.sent.Write(b)
	for c.sent.Len() >= 4 {
		n := int(binary.BigEndian.Uint32(c.sent.Bytes()))
		if c.sent.Len() < 4+n {
			break
		}
		if request := bytes.Clone(c.sent.Next(4 + n)[4:]); c.begun {
			c.requests[binary.BigEndian.Uint32(request)] = request
		} else {
			c.begun = true
			c.requests[0] = nil
		}
	}
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *conn) Read(b []byte) (int, error) {
	if c.buf.Len() == 0 {
		reply, err := jute.ReadFrame(c.Conn, jute.DefaultMaxFrame, nil)
		if err != nil {
			return 0, err
		}
		c.mu.Lock()
		if request := c.requests[binary.BigEndian.Uint32(reply)]; request != nil {
			reply = c.change(request, reply)
		}
		c.mu.Unlock()
		if reply == nil {
			c.Conn.Close()
			return 0, io.EOF
		}
		c.buf.Write(rawtest.Frame(reply))
	}
	return c.buf.Read(b)
}

// altered returns the target with replies that went through change, which gets the request
// too. If change returns nil, the connection is closed instead.
func altered(t Target, change func(request, reply []byte) []byte) *Target {
	dial := t.Dial
	t.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		nc, err := dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: nc, change: change, requests: map[uint32][]byte{}}, nil
	}
	return &t
}

func op(request []byte) proto.OpCode { return proto.OpCode(binary.BigEndian.Uint32(request[4:])) }

// TestTwoHolders runs the handover on a server that sometimes hides a part of the queue,
// so that a client takes the lock while another one holds it or is before it.
func TestTwoHolders(t *testing.T) {
	_, own := target(t)
	var lists atomic.Int64
	liar := altered(*own, func(request, reply []byte) []byte {
		if op(request) != proto.OpGetChildren {
			return reply
		}
		q := proto.PathWatch{}
		d := jute.NewDecoder(request[8:])
		if q.Decode(&d); !strings.HasSuffix(q.Path, "/lock") || lists.Add(1)%50 != 0 {
			return reply
		}
		var list proto.ChildrenReply
		d = jute.NewDecoder(reply[16:])
		list.Decode(&d)
		slices.Sort(list.Names)
		list.Names = list.Names[max(0, len(list.Names)-1):] // the client that has just queued
		return list.Append(reply[:16:16])
	})
	w := testkit.Must(Choose([]string{"handover-8"}))(t)
	report, err := Measure(t.Context(), Options{Targets: []*Target{liar}, Workloads: w, Time: time.Minute, Ops: 5000})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	report.WriteText(&text)
	if r := report.Rows[0].Runs[0][0]; !strings.HasPrefix(r.TwoHolders, "two holders") || report.Faults() != 1 || !strings.Contains(text.String(), "two holders") {
		t.Errorf("two holders are not reported: %+v\n%s", r, &text)
	}
	nothingLeft(t, own)
}

// TestQueue checks which orders of a lock's queue are two holders.
func TestQueue(t *testing.T) {
	for _, x := range []struct {
		name  string
		steps string // j: joins, h: holds, r: releases, l: its session ends
		fails bool
	}{
		{"one after the other", "j1 h1 r1 j2 h2 r2", false},
		{"waiting", "j1 j2 h1 j3 r1 h2 r2 h3 r3", false},
		{"a reply that comes late", "j2 j1 h1 r1 h2", false},
		{"at once", "j1 j2 h1 h2", true},
		{"overtaken", "j1 j2 h2", true},
		{"behind a holder with a higher number", "j2 h2 j1", true},
		{"behind a holder that has released", "j2 h2 r2 j1", true},
		{"one number twice", "j1 h1 j1", true},
		{"a session that ends", "j1 h1 j2 l1 h2 r2", false},
	} {
		q := newQueue()
		var err error
		for _, step := range strings.Fields(x.steps) {
			if err != nil {
				t.Errorf("%s: failed before %s: %v", x.name, step, err)
			}
			n := int(step[1] - '0')
			switch step[0] {
			case 'j':
				err = q.join(n)
			case 'h':
				_, _, err = q.hold(n)
			case 'r':
				q.release(n)
			case 'l':
				q.leave(n)
			}
		}
		if (err != nil) != x.fails {
			t.Errorf("%s: %v", x.name, err)
		}
	}
}

// TestLostConnections closes connections and refuses requests during a load, which must
// count the errors, go on with new connections, and clean up.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	for i, name := range []string{"mixed-64x16", "handover-8", "create-16x1", "lock-32"} {
		if i >= 2 && !testkit.Thorough {
			break
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, own := target(t)
				var measured atomic.Bool
				var replies, lost, refused atomic.Int64
				unreliable := altered(*own, func(request, reply []byte) []byte {
					if !measured.Load() {
						return reply
					}
					switch n := replies.Add(1); {
					case n%211 == 0:
						lost.Add(1)
						return nil
					case n%101 == 0 && op(request) == proto.OpSetData:
						refused.Add(1)
						binary.BigEndian.PutUint32(reply[12:], 0xffffff9c) // -100: APIError
						return reply[:16]
					}
					return reply
				})
				w := testkit.Must(Choose([]string{name}))(t)
				report, err := Measure(t.Context(), Options{Targets: []*Target{unreliable}, Workloads: w, Time: time.Minute, Ops: 1500,
					phase: func(_ *Run, begins bool) { measured.Store(begins) }})
				if err != nil || report.Left != "" {
					t.Fatal(err, report)
				}
				var ops uint64 // of both turns: the first one is reported because it failed
				var errs int64
				for _, r := range report.Rows[0].Runs[0] {
					ops += r.Ops
					errs += r.Errors
					if r.TwoHolders != "" || r.Errors > 0 && r.Error == "" {
						t.Errorf("%+v", r)
					}
				}
				least := lost.Load() + refused.Load()
				if strings.HasPrefix(name, "lock") || strings.HasPrefix(name, "handover") {
					least = 1 // connections are also lost while a client recovers
				}
				if errs < least || lost.Load() == 0 || report.Faults() != 1 || ops < 2000 {
					t.Errorf("%d connections lost, %d requests refused, but there are %d errors and %d operations: %+v", lost.Load(), refused.Load(), errs, ops, report.Rows[0].Runs)
				}
				nothingLeft(t, own)
			})
		})
	}
}

// TestInterrupt interrupts workloads. They must end soon and delete what they have created.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"create-64x16", "handover-64", "lock-32", "fanout-1000", "churn-32", "znodes"} {
		t.Run(name, func(t *testing.T) {
			_, own := target(t)
			w := testkit.Must(Choose([]string{name}))(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			report, err := Measure(ctx, Options{Targets: []*Target{own}, Workloads: w, Time: time.Hour, Ops: 1 << 30, Znodes: most,
				phase: func(_ *Run, begins bool) {
					if begins {
						time.AfterFunc(50*time.Millisecond, cancel)
					}
				}})
			if err != nil || report.Left != "" || report.Faults() != 0 {
				t.Errorf("%v, %+v", err, report)
			}
			nothingLeft(t, own)
		})
	}
}

// TestSilentServer interrupts a run on a server that does not answer any more. The run ends
// and says what it has left.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	_, own := target(t)
	var measured atomic.Bool
	dial := own.Dial
	own.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		if measured.Load() {
			return nil, errors.New("refused")
		}
		nc, err := dial(ctx, addr)
		if err == nil {
			nc = &hanging{Conn: nc, hang: &measured, closed: make(chan struct{})}
		}
		return nc, err
	}
	w := testkit.Must(Choose([]string{"set-16x1"}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	report, err := Measure(ctx, Options{Targets: []*Target{own}, Workloads: w, grace: 100 * time.Millisecond, phase: func(_ *Run, begins bool) {
		if begins {
			time.AfterFunc(20*time.Millisecond, func() {
				measured.Store(true)
				cancel()
			})
		}
	}})
	if err != nil || !strings.Contains(report.Left, "/bench-") || !strings.Contains(report.Left, "refused") {
		t.Errorf("%v, left %q", err, report.Left)
	}
}

// hanging is a connection from which nothing can be read any more once hang is true.
type hanging struct {
	net.Conn
	hang   *atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (h *hanging) Read(b []byte) (int, error) {
	if h.hang.Load() {
		<-h.closed
		return 0, net.ErrClosed
	}
	return h.Conn.Read(b)
}

func (h *hanging) Close() error {
	h.once.Do(func() { close(h.closed) })
	return h.Conn.Close()
}

// TestCompare measures two servers in turns.
func TestCompare(t *testing.T) {
	_, a := target(t)
	_, b := target(t)
	a.Name, b.Name = "a", "b"
	var order []string
	var lines []string
	w := testkit.Must(Choose([]string{"create-1x1", "znodes"}))(t)
	report, err := Measure(t.Context(), Options{Targets: []*Target{a, b}, Workloads: w, Turns: 3, Ops: 50, Znodes: 100, settle: settle,
		phase: func(r *Run, begins bool) {
			if begins {
				order = append(order, r.name[:1]+r.Target.Name)
			}
		},
		Progress: func(done, of int, text string, matters bool) {
			if matters {
				lines = append(lines, fmt.Sprintf("%d/%d %s", done, of, text))
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(order, " "), "ca cb ca cb ca cb ca cb za zb"; got != want { // the first turn warms up
		t.Errorf("the order is %s, should be %s", got, want)
	}
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "1/2 create-1x1 ") || !strings.HasPrefix(lines[1], "2/2 znodes ") {
		t.Errorf("progress %q", lines)
	}
	row := report.Rows[0]
	if len(row.Runs[0]) != 3 || len(row.Runs[1]) != 3 || len(report.Rows[1].Runs[1]) != 1 || len(row.Ratios) < 4 {
		t.Fatalf("row %+v", row)
	}
	for _, x := range row.Ratios {
		if x.Low > x.Ratio || x.High < x.Ratio || x.Ratio <= 0 {
			t.Errorf("ratio %+v", x)
		}
	}
	nothingLeft(t, a)
	nothingLeft(t, b)
}

// TestRestart restarts the server with its znodes.
func TestRestart(t *testing.T) {
	s, own := target(t)
	own.Restart = func(context.Context) ([]int, error) {
		s.Kill()
		s.Restart()
		return nil, nil
	}
	w := testkit.Must(Choose([]string{"znodes"}))(t)
	report, err := Measure(t.Context(), Options{Targets: []*Target{own}, Workloads: w, Znodes: 1234, settle: settle})
	if err != nil || report.Faults() != 0 || report.Rows[0].Runs[0][0].RestartSeconds <= 0 {
		t.Errorf("%v, %+v", err, report.Rows[0].Runs)
	}
	nothingLeft(t, own)

	// A server that lost znodes has not restarted.
	own.Restart = func(context.Context) ([]int, error) {
		c := rawtest.Connect(t, dialer(own))
		var list proto.ChildrenReply
		if _, err := c.Call(proto.OpGetChildren, &proto.PathWatch{Path: "/"}, &list); err != nil {
			return nil, err
		}
		for _, name := range list.Names {
			if strings.HasPrefix(name, "bench-") {
				return nil, c.Delete("/" + name + "/znodes/7/00000007")
			}
		}
		return nil, errors.New("no znode")
	}
	report, err = Measure(t.Context(), Options{Targets: []*Target{own}, Workloads: w, Znodes: 1234, settle: settle})
	if err != nil || report.Faults() != 1 || !strings.Contains(report.Rows[0].Runs[0][0].Error, "1233 znodes") {
		t.Errorf("%v, %+v", err, report.Rows[0].Runs)
	}
}

// TestSkipped asks for the memory of sessions without a process, and for a workload that a
// target does not have.
func TestSkipped(t *testing.T) {
	_, own := target(t)
	own.PIDs = nil
	other := &Target{Name: "other", Workloads: []Workload{{Name: "read-1x1", Run: func(r *Run) error {
		return r.Measured(1, func(_ int, w *Worker) {
			for w.More() {
				w.Done(time.Microsecond)
			}
		})
	}}}}
	w := testkit.Must(Choose([]string{"idle", "read-1x1", "sync"}))(t)
	report, err := Measure(t.Context(), Options{Targets: []*Target{own, other}, Workloads: w, Ops: 10})
	if err != nil || report.Faults() != 0 {
		t.Fatal(err, report)
	}
	got := []string{}
	for _, row := range report.Rows {
		for _, runs := range row.Runs {
			got = append(got, runs[0].Skipped+strconv.Itoa(int(runs[0].Ops)))
		}
	}
	if want := []string{"needs the server's process id0", "not available0", "10", "10", "10", "not available0"}; !slices.Equal(got, want) {
		t.Errorf("%q, should be %q", got, want)
	}
}

func TestChoose(t *testing.T) {
	for _, x := range []struct{ names, want string }{
		{"lock-32 create", "create-1x1 create-16x1 create-64x16 lock-32"},
		{"idle", "idle"},
		{"sessions", "sessions-open sessions-failover sessions-vanish sessions-watch"},
		{"nonsense", `"nonsense" is not one of idle, create-1x1,`},
		{"create-1", `"create-1" is not one of`},
	} {
		w, err := Choose(strings.Fields(x.names))
		got := strings.Join(names(w), " ")
		if err != nil {
			got = err.Error()
		}
		if got != x.want && !(err != nil && strings.HasPrefix(got, x.want)) {
			t.Errorf("%s: %s", x.names, got)
		}
	}
	if all, err := Choose(nil); err != nil || len(all) != len(All()) || len(all) < 20 {
		t.Errorf("%d workloads, %v", len(all), err)
	}
}
