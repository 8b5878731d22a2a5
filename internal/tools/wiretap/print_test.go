package wiretap

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

// talk returns the events of a few connections, with every kind of event.
func talk() []Event {
	var c wire.Conversation
	at := time.Unix(100, 0)
	framed := func(b []byte, f wire.Frame) Event {
		return Event{Conn: 1, Kind: Framed, FromClient: f.FromClient(), Frame: &f, Bytes: b, Size: len(b)}
	}
	ask := func(b []byte) Event { return framed(b, c.FromClient(b[4:])) }
	answer := func(b []byte) Event { return framed(b, c.FromServer(b[4:])) }
	events := []Event{
		{Conn: 1, Kind: Opened, FromClient: true},
		ask(rawclient.Framed(&proto.ConnectRequest{Timeout: 4000, Password: make([]byte, 16)})),
		answer(rawclient.Framed(&proto.ConnectReply{Timeout: 4000, SessionID: 0x10000000000000a, Password: make([]byte, 16)})),
		ask(rawclient.Request(nil, 2, proto.OpSetData, &proto.SetDataRequest{Path: "/a", Data: []byte("x"), Version: 1})),
		answer(rawclient.Framed(&proto.ReplyHeader{Xid: -1, Zxid: -1}, &proto.WatcherEvent{Type: 1, State: 3, Path: "/a"})),
		answer(rawclient.Framed(&proto.ReplyHeader{Xid: 2, Zxid: 9}, &proto.Stat{Czxid: 9, Mzxid: 9, Version: 2})),
		answer(reply(3, 10)),
		{Conn: 1, Kind: Raw, FromClient: true, Bytes: []byte{255, 254}, Size: 2},
		{Conn: 1, Kind: Finished, FromClient: true, Err: errors.New("gone")},
		{Conn: 2, Kind: Text, FromClient: true, Bytes: []byte("srvr"), Size: 4},
		{Conn: 2, Kind: Text, Bytes: []byte("Mode: \"alone\"\x1b[2J\nNodes: 3\n"), Size: 28},
		{Conn: 2, Kind: Finished},
		{Conn: 3, Kind: Failed, Err: errors.New("refused")},
	}
	events[6].Frame.Err, events[6].Size = errTooLong, 5<<20
	for i := range events {
		events[i].Time = at.Add(time.Duration(i) * time.Millisecond)
	}
	return events
}

func printed(p Printer) string {
	var b bytes.Buffer
	p.W, p.Start = &b, time.Unix(99, 0)
	for _, e := range talk() {
		p.Handle(e)
	}
	return b.String()
}

func TestPrinter(t *testing.T) {
	zeros := strings.Repeat("00", 16)
	for _, x := range []struct {
		name string
		p    Printer
		want string
	}{
		{"text", Printer{}, `
    1.000000 C1 -> open
    1.001000 C1 -> connect {protocolVersion=0 lastZxidSeen=0x0 timeout=4000 sessionID=0x0 password=0x` + zeros + ` readOnly=false hasReadOnly=false}
    1.002000 C1 <- connect {protocolVersion=0 timeout=4000 sessionID=0x10000000000000a password=0x` + zeros + ` readOnly=false hasReadOnly=false}
    1.003000 C1 -> setData xid=2 {path="/a" data="x" version=1}
    1.004000 C1 <- event zxid=-1 {type=NodeCreated state=3 path="/a"}
    1.005000 C1 <- setData xid=2 zxid=0x9 Ok {czxid=0x9 mzxid=0x9 ctime=0 mtime=0 version=2 cversion=0 aversion=0 ephemeralOwner=0x0 dataLength=0 numChildren=0 pzxid=0x0}
    1.006000 C1 <- reply xid=3 zxid=0xa Ok UNREADABLE (too long to be kept) (5242880 bytes)
    1.007000 C1 -> 2 bytes, no frame: fffe
    1.008000 C1 -> reset: gone
    1.009000 C2 -> 4lw srvr
    1.010000 C2 <- 4lw answer
             | Mode: "alone"` + "�" + `[2J
             | Nodes: 3
    1.011000 C2 <- close
    1.012000 C3 <- cannot reach the server: refused
`},
		{"hex", Printer{Hex: true, Only: []string{"event", "4lw"}}, `
    1.004000 C1 <- event zxid=-1 {type=NodeCreated state=3 path="/a"}
             0000001effffffffffffffffffffffff000000000000000100000003000000022f61
    1.009000 C2 -> 4lw srvr
             73727672
    1.010000 C2 <- 4lw answer
             | Mode: "alone"` + "�" + `[2J
             | Nodes: 3
             4d6f64653a2022616c6f6e65221b5b324a0a4e6f6465733a20330a… (28 bytes)
`},
		{"only", Printer{Only: []string{"setData", "raw"}}, `
    1.003000 C1 -> setData xid=2 {path="/a" data="x" version=1}
    1.005000 C1 <- setData xid=2 zxid=0x9 Ok {czxid=0x9 mzxid=0x9 ctime=0 mtime=0 version=2 cversion=0 aversion=0 ephemeralOwner=0x0 dataLength=0 numChildren=0 pzxid=0x0}
    1.007000 C1 -> 2 bytes, no frame: fffe
`},
		{"JSON", Printer{JSON: true, Only: []string{"setData", "event", "4lw", "conn", "raw"}}, `
{"conn":1,"from":"client","kind":"open","time":1}
{"body":{"data":"x","path":"/a","version":1},"conn":1,"from":"client","kind":"request","op":"setData","size":27,"time":1.003,"xid":2}
{"body":{"path":"/a","state":3,"type":"NodeCreated"},"code":"Ok","conn":1,"from":"server","kind":"event","size":34,"time":1.004,"xid":-1,"zxid":"-1"}
{"body":{"aversion":0,"ctime":0,"cversion":0,"czxid":"0x9","dataLength":0,"ephemeralOwner":"0x0","mtime":0,"mzxid":"0x9","numChildren":0,"pzxid":"0x0","version":2},"code":"Ok","conn":1,"from":"server","kind":"reply","op":"setData","size":88,"time":1.005,"xid":2,"zxid":"0x9"}
{"conn":1,"from":"client","hex":"fffe","kind":"raw","size":2,"time":1.007}
{"conn":1,"error":"gone","from":"client","kind":"close","time":1.008}
{"conn":2,"from":"client","kind":"4lw","size":4,"text":"srvr","time":1.009}
{"conn":2,"from":"server","kind":"4lw","size":28,"text":"Mode: \"alone\"\u001b[2J\nNodes: 3\n","time":1.01}
{"conn":2,"from":"server","kind":"close","time":1.011}
{"conn":3,"error":"refused","from":"server","kind":"unreachable","time":1.012}
`},
	} {
		if got := "\n" + printed(x.p); got != x.want {
			t.Errorf("%s:%s\nwant:%s", x.name, got, x.want)
		}
	}
}

func TestParseOnly(t *testing.T) {
	got, err := ParseOnly("create, whoAmI,4lw,conn")
	if err != nil || strings.Join(got, " ") != "create whoAmI 4lw conn" {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"", "create,", "Create", "delet"} {
		if got, err := ParseOnly(bad); err == nil {
			t.Errorf("%q is accepted as %q", bad, got)
		}
	}
}

// TestRecorderLoses checks that a frame that cannot be recorded ends the recording of
// its connection, and is counted.
func TestRecorderLoses(t *testing.T) {
	var b bytes.Buffer
	r := NewRecorder(&b, "x")
	for _, e := range talk() {
		r.Handle(e)
	}
	s, err := golden.Parse(&b)
	if err != nil || r.Lost() != 1 || r.Err() != nil || len(r.conns) > 0 {
		t.Fatalf("%v, %d lost, %v", err, r.Lost(), r.Err())
	}
	var kinds []string
	for _, st := range s.Steps {
		kinds = append(kinds, st.Conn+st.Kind.String())
	}
	// The third connection was not opened by the events.
	if got, want := strings.Join(kinds, " "), "C1open C1> C1< C1> C1< C1< C1close"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

type failing struct{ after int }

func (w *failing) Write(b []byte) (int, error) {
	if w.after--; w.after < 0 {
		return 0, errors.New("disk full")
	}
	return len(b), nil
}

func TestRecorderErr(t *testing.T) {
	r := NewRecorder(&failing{after: 3}, "x")
	for _, e := range talk() {
		r.Handle(e)
	}
	if r.Err() == nil {
		t.Error("no error")
	}
}

// TestRecorderWaits checks that the recorder records pauses while a session may expire,
// for at most twice its timeout, and none while all sessions are alive.
func TestRecorderWaits(t *testing.T) {
	var b bytes.Buffer
	r := NewRecorder(&b, "x")
	now := time.Unix(50, 0)
	talks := map[int]*wire.Conversation{}
	tell := func(after time.Duration, e Event) {
		now = now.Add(after)
		e.Time = now
		r.Handle(e)
	}
	say := func(after time.Duration, conn int, fromClient bool, record proto.Record) {
		b := rawclient.Framed(record)
		e := Event{Conn: conn, FromClient: fromClient, Kind: Framed, Bytes: b, Size: len(b)}
		var f wire.Frame
		if fromClient {
			f = talks[conn].FromClient(b[4:])
		} else {
			f = talks[conn].FromServer(b[4:])
		}
		e.Frame = &f
		tell(after, e)
	}
	connect := func(conn int, timeout int32) {
		talks[conn] = &wire.Conversation{}
		tell(0, Event{Conn: conn, Kind: Opened, FromClient: true})
		say(0, conn, true, rawclient.NewSession(time.Duration(timeout)*time.Millisecond))
		say(0, conn, false, &proto.ConnectReply{Timeout: timeout, SessionID: int64(conn), Password: make([]byte, 16)})
	}
	ping := func(after time.Duration, conn int) {
		say(after, conn, true, &proto.RequestHeader{Xid: -2, Op: proto.OpPing})
		say(0, conn, false, &proto.ReplyHeader{Xid: -2, Zxid: 5})
	}
	waits := func() (total time.Duration) {
		s := testkit.Must(golden.Parse(bytes.NewReader(b.Bytes())))(t)
		for _, st := range s.Steps {
			total += st.Pause
		}
		return total
	}
	expect := func(what string, want time.Duration) {
		t.Helper()
		if got := waits(); got != want {
			t.Errorf("%s: pauses of %v were recorded, want %v", what, got, want)
		}
	}
	connect(1, 6000)
	connect(2, 4000)
	for range 10 {
		ping(time.Second, 1)
		ping(time.Second, 2)
	}
	expect("all are alive", 0)
	tell(0, Event{Conn: 2, Kind: Finished, FromClient: true})
	tell(0, Event{Conn: 2, Kind: Finished})
	ping(2*time.Second, 1)
	ping(time.Second, 1)
	expect("one is detached", 3*time.Second)
	for range 10 {
		ping(2*time.Second, 1)
	}
	expect("and is gone", 8*time.Second)
	connect(3, 4000)
	ping(time.Second, 1)
	ping(time.Second, 1)
	expect("one is silent, not for long", 8*time.Second)
	ping(time.Second, 1)
	expect("for longer than half its timeout", 11*time.Second)
	tell(time.Second, Event{Conn: 3, Kind: Finished})
	expect("until it expires", 12*time.Second)
	connect(4, 4000)
	say(0, 4, true, &proto.RequestHeader{Xid: 1, Op: proto.OpCloseSession})
	say(0, 4, false, &proto.ReplyHeader{Xid: 1, Zxid: 5})
	before := waits()
	tell(0, Event{Conn: 4, Kind: Finished})
	for range 10 { // at most twice the third session's timeout is recorded
		ping(2*time.Second, 1)
	}
	expect("one was closed", before+4*time.Second)
}
