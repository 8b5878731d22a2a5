package wire

import (
	"os"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestCapturedExchanges decodes every frame that ZooKeeper sent in the captured
// exchanges. All must decode to the last byte.
func TestCapturedExchanges(t *testing.T) {
	scenarios := testkit.Must(golden.LoadAll(os.DirFS("../../../testdata/golden")))(t)
	replies, events := 0, 0
	for _, s := range scenarios {
		talks := map[string]*Conversation{}
		for _, step := range s.Steps {
			switch step.Kind {
			case golden.Open:
				talks[step.Conn] = &Conversation{}
			case golden.Send:
				if len(step.Bytes) >= 4 { // some are malformed on purpose
					talks[step.Conn].FromClient(step.Bytes[4:])
				}
			case golden.Receive:
				f := talks[step.Conn].FromServer(step.Bytes[4:])
				switch {
				case f.Err != nil:
					t.Errorf("%s:%d: %s", s.Name, step.Line, &f)
				case f.Kind == Event:
					events++
				case f.Kind == Reply:
					replies++
					if f.Known && len(f.Rest) > 0 && !((f.Op == proto.OpMultiRead || f.Op == proto.OpSASL) && f.Code != proto.OK) {
						t.Errorf("%s:%d: bytes left over: %s", s.Name, step.Line, &f)
					}
				}
			}
		}
	}
	if replies < 300 || events < 25 {
		t.Errorf("only %d replies and %d events", replies, events)
	}
}

func TestText(t *testing.T) {
	var c Conversation
	frame := func(rs ...proto.Record) []byte { return rawclient.Framed(rs...)[4:] }
	multi := &proto.MultiRequest{Ops: []proto.MultiOp{
		{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: "/a", Data: []byte("x\x00"), ACL: proto.OpenACL, Flags: 3}},
		{Op: proto.OpCheck, Request: &proto.PathVersion{Path: "/b", Version: 7}},
	}}
	failed := &proto.MultiReply{Results: []proto.MultiResult{{Op: proto.OpError}, {Op: proto.OpError, Code: proto.BadVersion}}}
	for _, x := range []struct {
		f    Frame
		want string
	}{
		{c.FromClient(frame(&proto.ConnectRequest{LastZxidSeen: 31, Timeout: 4000, Password: []byte("pw")})),
			`connect {protocolVersion=0 lastZxidSeen=0x1f timeout=4000 sessionID=0x0 password="pw" readOnly=false hasReadOnly=false}`},
		{c.FromServer(frame(&proto.ConnectReply{Timeout: 4000, SessionID: -1, HasReadOnly: true})),
			`connect {protocolVersion=0 timeout=4000 sessionID=0xffffffffffffffff password=null readOnly=false hasReadOnly=true}`},
		{c.FromClient(frame(&proto.RequestHeader{Xid: 1, Op: proto.OpMulti}, multi)),
			`multi xid=1 {ops=[create{path="/a" data=0x7800 acl=[31 world:anyone] flags=3} check{path="/b" version=7}]}`},
		{c.FromClient(frame(&proto.RequestHeader{Xid: 2, Op: proto.OpSync}, &proto.Path{Path: jute.Null})), `sync xid=2 null`},
		{c.FromClient(frame(&proto.RequestHeader{Xid: 9, Op: proto.OpPing})), `ping xid=9`},
		{c.FromClient(frame(&proto.RequestHeader{Xid: 3, Op: 20})), `deleteContainer xid=3`},
		{c.FromServer(frame(&proto.ReplyHeader{Xid: -1, Zxid: -1}, &proto.WatcherEvent{Type: 4, State: 3, Path: "/a"})),
			`event zxid=-1 {type=NodeChildrenChanged state=3 path="/a"}`},
		{c.FromServer(frame(&proto.ReplyHeader{Xid: 1, Zxid: 33}, failed)), `multi xid=1 zxid=0x21 Ok {results=[Ok BadVersion]}`},
		{c.FromServer(frame(&proto.ReplyHeader{Xid: 2, Zxid: 33})), `sync xid=2 zxid=0x21 Ok UNREADABLE (jute: record cut short)`},
		{c.FromServer(frame(&proto.ReplyHeader{Xid: -2, Zxid: 33})), `ping xid=-2 zxid=0x21 Ok`},
		{c.FromServer(frame(&proto.ReplyHeader{Xid: 77, Zxid: 33, Code: proto.NoNode})), `reply xid=77 zxid=0x21 NoNode`},
		{c.FromServer([]byte{1, 2}), `reply xid=0 zxid=0x0 Ok UNREADABLE (jute: record cut short) +2 bytes 0102`},
	} {
		if got := x.f.String(); got != x.want {
			t.Errorf("\n%s, want\n%s", got, x.want)
		}
	}
	long := &proto.SetDataRequest{Path: "/" + strings.Repeat("p", 1000), Data: make([]byte, 1000)}
	if n := len(Text(long)); n > 700 {
		t.Errorf("a request with long fields is %d bytes of text", n)
	}
}

// FuzzConversation decodes arbitrary frames from both sides.
func FuzzConversation(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 14, 0, 0, 0, 1}, []byte{0, 0, 0, 1})
	f.Add([]byte("\x00\x00\x00\x01\x00\x00\x00\x04\x00\x00\x00\x03/\xff\xfe\x01"), []byte{}) // a path that is not valid UTF-8
	f.Fuzz(func(t *testing.T, asked, answered []byte) {
		var c Conversation
		for range 2 {
			q := c.FromClient(asked)
			r := c.FromServer(answered)
			if q.String() == "" || r.String() == "" {
				t.Fatal("a frame is formatted as an empty string")
			}
			for _, frame := range []*Frame{&q, &r} {
				end := 0
				for _, x := range frame.Fields() {
					end = x.Offset + x.Length
				}
				if body := len(frame.Payload) - len(frame.Rest); frame.Err == nil && end != body {
					t.Fatalf("the fields of %s end at %d of %d", frame, end, body)
				}
				if frame.Body != nil {
					Plain(frame.Body)
				}
			}
		}
	})
}
