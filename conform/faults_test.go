package conform_test

import (
	"bufio"
	"context"
	"io"
	"math"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/conform"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// fault turns a frame from the server into the frames that the client receives. It may
// keep frames in c.held for later.
type fault func(c *faultyConn, f *wire.Frame) [][]byte

// faultyConn is a client's connection that passes the server's frames through a fault.
type faultyConn struct {
	net.Conn
	fault    fault
	deadline time.Time
	talk     wire.Conversation
	word     bool // the client has sent a four-letter word
	sent     []byte
	r        *bufio.Reader
	got      []byte
	held     [][]byte
	mute     bool // hide the end of the connection from the client
}

func (c *faultyConn) SetReadDeadline(t time.Time) error {
	c.deadline = t
	return c.Conn.SetReadDeadline(t)
}

func (c *faultyConn) Write(b []byte) (int, error) {
	c.word = c.word || len(c.sent) == 0 && len(b) == 4
	if c.sent = append(c.sent, b...); !c.word {
		for len(c.sent) >= 4 {
			d := jute.NewDecoder(c.sent)
			n := int(d.Int())
			if n < 0 || n > len(d.Rest()) {
				break
			}
			c.talk.FromClient(c.sent[4 : 4+n : 4+n])
			c.sent = c.sent[4+n:]
		}
	}
	return c.Conn.Write(b)
}

func (c *faultyConn) Read(b []byte) (int, error) {
	if c.word {
		return c.Conn.Read(b)
	}
	for len(c.got) == 0 {
		payload, err := jute.ReadFrame(c.r, 1<<24, nil)
		if err == io.EOF && c.mute {
			time.Sleep(time.Until(c.deadline))
			return 0, os.ErrDeadlineExceeded
		}
		if err != nil {
			return 0, err
		}
		f := c.talk.FromServer(payload)
		for _, p := range c.fault(c, &f) {
			c.got = append(jute.AppendInt(c.got, int32(len(p))), p...)
		}
	}
	n := copy(b, c.got)
	c.got = c.got[n:]
	return n, nil
}

// encoded encodes a frame again after its fields were changed.
func encoded(f *wire.Frame) []byte {
	if f.Kind == wire.ConnectReply {
		return f.Body.Append(nil)
	}
	h := proto.ReplyHeader{Xid: f.Xid, Zxid: f.Zxid, Code: f.Code}
	b := h.Append(nil)
	if f.Body != nil {
		b = f.Body.Append(b)
	}
	return b
}

// change returns a fault that changes replies of an operation in place, or every frame
// if op is 0.
func change(op proto.OpCode, f func(*wire.Frame)) fault {
	return func(_ *faultyConn, frame *wire.Frame) [][]byte {
		if op == 0 || frame.Kind == wire.Reply && frame.Op == op {
			f(frame)
			return [][]byte{append(encoded(frame), frame.Rest...)}
		}
		return [][]byte{frame.Payload}
	}
}

// body returns a fault that changes the bodies of an operation's successful replies.
func body[T any](op proto.OpCode, f func(*T)) fault {
	return change(op, func(frame *wire.Frame) {
		if r, ok := any(frame.Body).(*T); ok {
			f(r)
		}
	})
}

// late returns a fault that holds the frames which match back until after the next one that does not.
func late(match func(*wire.Frame) bool) fault {
	return func(c *faultyConn, f *wire.Frame) [][]byte {
		if match(f) {
			c.held = append(c.held, f.Payload)
			return nil
		}
		out := append([][]byte{f.Payload}, c.held...)
		c.held = nil
		return out
	}
}

var faults = []struct {
	name  string
	check string // the check that must find it
	fault fault
}{
	{"a wrong code", "create/exists", change(proto.OpCreate, func(f *wire.Frame) {
		if f.Code == proto.NodeExists {
			f.Code = proto.BadArguments
		}
	})},
	{"an error with a body", "data/get a missing znode", change(proto.OpGetData, func(f *wire.Frame) {
		if f.Code != proto.OK {
			f.Rest = make([]byte, 4)
		}
	})},
	{"bytes after a reply", "children/names", change(proto.OpGetChildren, func(f *wire.Frame) { f.Rest = []byte{0} })},
	{"a lost event", "order/event before the own reply", func(_ *faultyConn, f *wire.Frame) [][]byte {
		if f.Kind == wire.Event {
			return nil
		}
		return [][]byte{f.Payload}
	}},
	{"an event twice", "order/events", func(_ *faultyConn, f *wire.Frame) [][]byte {
		if f.Kind == wire.Event {
			return [][]byte{f.Payload, f.Payload}
		}
		return [][]byte{f.Payload}
	}},
	{"a late event", "order/event before the own reply", late(func(f *wire.Frame) bool { return f.Kind == wire.Event })},
	{"an early event", "order/event after the watch's reply", late(func(f *wire.Frame) bool { return f.Kind == wire.Reply && f.Op == proto.OpGetData })}, // the reply that sets a watch
	{"an event of another type", "order/events", change(0, func(f *wire.Frame) {
		if e, ok := f.Body.(*proto.WatcherEvent); ok && e.Type == proto.EventNodeCreated {
			e.Type = proto.EventNodeDataChanged
		}
	})},
	{"replies out of order", "order/replies", late(func(f *wire.Frame) bool { return f.Kind == wire.Reply && f.Op == proto.OpSetData })},
	{"a ping's xid", "sync and ping/ping", change(proto.OpPing, func(f *wire.Frame) { f.Xid = 0 })},
	{"cversion counts creates", "delete/parent's Stat", body(proto.OpExists, func(s *proto.Stat) { s.Cversion = (s.Cversion + s.NumChildren) / 2 })},
	{"pzxid is czxid", "children/pzxid", body(proto.OpExists, func(s *proto.Stat) { s.Pzxid = s.Czxid })},
	{"mzxid does not move", "data/set's Stat", body(proto.OpSetData, func(s *proto.Stat) { s.Mzxid = s.Czxid })},
	{"version starts at 1", "create/persistent", body(proto.OpExists, func(s *proto.Stat) { s.Version++ })},
	{"a version that is never read", "order/event before new data", body(proto.OpExists, func(s *proto.Stat) { s.Version++ })},
	{"a container's owner", "containers and ttl/container", body(proto.OpCreateContainer, func(r *proto.PathStatReply) { r.Stat.EphemeralOwner = math.MinInt64 })},
	{"null data", "data/null and empty in create", body(proto.OpGetData, func(r *proto.DataReply) { r.Data = append([]byte{}, r.Data...) })},
	{"paths for names", "children/names", body(proto.OpGetChildren, func(r *proto.ChildrenReply) {
		for i := range r.Names {
			r.Names[i] = "/" + r.Names[i]
		}
	})},
	{"a sequential path without its number", "create/sequential", body(proto.OpCreate, func(r *proto.PathReply) {
		r.Path = strings.TrimRight(r.Path, "0123456789")
	})},
	{"a failed write without a zxid", "zxid/failed writes", change(proto.OpCreate, func(f *wire.Frame) {
		if f.Code != proto.OK {
			f.Zxid--
		}
	})},
	{"a read that shows an old zxid", "zxid/reads", change(proto.OpExists, func(f *wire.Frame) { f.Zxid-- })},
	{"no readOnly byte", "handshake/readOnly byte", change(0, func(f *wire.Frame) {
		if r, ok := f.Body.(*proto.ConnectReply); ok {
			r.HasReadOnly = false
		}
	})},
	{"a timeout that is not clamped", "handshake/timeout too long", change(0, func(f *wire.Frame) {
		if r, ok := f.Body.(*proto.ConnectReply); ok && r.Timeout > 30_000 {
			r.Timeout = math.MaxInt32
		}
	})},
	{"a new session in place of a refusal", "sessions/closed", change(0, func(f *wire.Frame) {
		if r, ok := f.Body.(*proto.ConnectReply); ok && r.SessionID == 0 {
			r.SessionID, r.Timeout = 77, 10_000
		}
	})},
	{"a connection that stays open", "bad frames/unknown operation with a body", func(c *faultyConn, f *wire.Frame) [][]byte {
		c.mute = f.Code == proto.Unimplemented
		return [][]byte{f.Payload}
	}},
	{"a multi's later operations", "multi/fails in the middle", body(proto.OpMulti, func(r *proto.MultiReply) {
		for i := range r.Results {
			if r.Results[i].Code == proto.RuntimeInconsistency {
				r.Results[i].Code = proto.OK
			}
		}
	})},
	{"create2 in a multi as create", "multi/create2", body(proto.OpMulti, func(r *proto.MultiReply) {
		for i, x := range r.Results {
			if made, ok := x.Reply.(*proto.PathStatReply); ok {
				r.Results[i] = proto.MultiResult{Op: proto.OpCreate, Reply: &proto.PathReply{Path: made.Path}}
			}
		}
	})},
	{"an event without its zxid", "watches/header with zxid", change(0, func(f *wire.Frame) {
		if f.Kind == wire.Event {
			f.Zxid = -1
		}
	})},
	{"the parent's event first", "watches/node before parent", late(func(f *wire.Frame) bool {
		e, ok := f.Body.(*proto.WatcherEvent)
		return ok && e.Type == proto.EventNodeCreated
	})},
	{"every watch exists", "watches/checkWatches", change(proto.OpCheckWatches, func(f *wire.Frame) { f.Code = proto.OK })},
	{"children of a recursive watch", "persistent watches/mode 1", func(_ *faultyConn, f *wire.Frame) [][]byte {
		e, ok := f.Body.(*proto.WatcherEvent)
		if !ok || e.Type != proto.EventNodeCreated || !strings.HasSuffix(e.Path, "/c") {
			return [][]byte{f.Payload}
		}
		e.Type, e.Path = proto.EventNodeChildrenChanged, strings.TrimSuffix(e.Path, "/c")
		return [][]byte{f.Payload, encoded(f)}
	}},
	{"aversion does not move", "acl/aversion", body(proto.OpSetACL, func(s *proto.Stat) { s.Aversion = 0 })},
	{"other users' digests", "acl/masked", body(proto.OpGetACL, func(r *proto.ACLReply) {
		for i := range r.ACL {
			r.ACL[i].ID.ID = strings.Replace(r.ACL[i].ID.ID, ":x", ":digest", 1)
		}
	})},
	{"NoNode in place of NoAuth", "acl/reads", change(0, func(f *wire.Frame) {
		if f.Code == proto.NoAuth {
			f.Code = proto.NoNode
		}
	})},
	{"a refused auth's zxid", "auth/refused schemes", change(proto.OpAuth, func(f *wire.Frame) { f.Zxid = 7 })},
	{"an identity twice", "auth/several", body(proto.OpWhoAmI, func(r *proto.WhoAmIReply) { r.IDs = append(r.IDs, r.IDs[0]) })},
	{"a container's data", "containers and ttl/container", body(proto.OpCreateContainer, func(r *proto.PathStatReply) { r.Stat.DataLength = 0 })},
	{"a root that was created", "system nodes/root", body(proto.OpExists, func(s *proto.Stat) { s.Czxid, s.Ctime = 1, 1 })},
	{"a config for all", "system nodes/config", body(proto.OpGetACL, func(r *proto.ACLReply) { r.ACL = proto.OpenACL })},
}

// TestFaults puts faults between the suite and a correct server. For each of them, one
// check must fail with a reason and the exchange, and must pass without the fault.
func TestFaults(t *testing.T) {
	run := func(t *testing.T, s *lockkeepertest.Server, check string, f fault, timeout time.Duration) *conform.Result {
		t.Helper()
		r, err := conform.Run(t.Context(), conform.Options{
			Dial: func(context.Context) (net.Conn, error) {
				nc, err := s.Dial("", "", 10*time.Second)
				return &faultyConn{Conn: nc, fault: f, r: bufio.NewReader(nc)}, err
			},
			Run:     regexp.MustCompile("^" + regexp.QuoteMeta(check) + "$"),
			Timeout: timeout,
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Results) != 1 {
			t.Fatalf("%d checks are named %q", len(r.Results), check)
		}
		return &r.Results[0]
	}
	for _, x := range faults {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := lockkeepertest.Start(t)
				if r := run(t, s, x.check, change(1<<30, nil), time.Minute); r.Status != conform.Passed {
					t.Errorf("%s without a fault: %s: %s", x.check, r.Status, r.Why)
				}
				switch r := run(t, s, x.check, x.fault, 2*time.Second); {
				case r.Status != conform.Failed:
					t.Errorf("%s did not find it: %s %s", x.check, r.Status, r.Why)
				case r.Why == "" || strings.Contains(r.Why, "panicked") || len(r.Exchange) == 0:
					t.Errorf("%s does not say what it found: %q, %d lines", x.check, r.Why, len(r.Exchange))
				default:
					t.Log(r.Why)
				}
			})
		})
	}
}
