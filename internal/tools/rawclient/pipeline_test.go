package rawclient

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// pair returns both ends of a connection.
func pair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err == nil {
		far, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	return near, far
}

// scripted answers requests on nc: answer gets the xid and the path, and returns the frames
// to send.
func scripted(nc net.Conn, answer func(xid int32, path string) []byte) {
	defer nc.Close()
	for {
		payload, err := jute.ReadFrame(nc, jute.DefaultMaxFrame, nil)
		if err != nil {
			return
		}
		var h proto.RequestHeader
		var q proto.Path
		d := jute.NewDecoder(payload)
		h.Decode(&d)
		q.Decode(&d)
		if b := answer(h.Xid, q.Path); b == nil {
			return
		} else if _, err := nc.Write(b); err != nil {
			return
		}
	}
}

// reply appends the frame of a reply or an event.
func reply(b []byte, h proto.ReplyHeader, body []byte) []byte {
	b, start := jute.BeginFrame(b)
	b = append(h.Append(b), body...)
	jute.EndFrame(b, start)
	return b
}

// TestPipeline checks the window, the order and the replies, some of which are longer than
// the buffer.
func TestPipeline(t *testing.T) {
	const window, total = 4, 57
	near, far := pair(t)
	body := func(xid int32) []byte { return bytes.Repeat([]byte{byte(xid)}, int(xid)*700%20000) }
	go scripted(far, func(xid int32, path string) (b []byte) {
		if path != fmt.Sprint("/", xid) {
			return nil
		}
		if xid%10 == 0 {
			e := proto.WatcherEvent{Type: 3, Path: "/watched"}
			b = reply(b, proto.ReplyHeader{Xid: proto.XidEvent, Zxid: int64(xid)}, e.Append(nil))
		}
		return reply(b, proto.ReplyHeader{Xid: xid, Code: proto.Code(-(xid % 2))}, body(xid))
	})
	c := New(near)
	defer c.Close()
	asked, answered := 0, 0
	next := func(b []byte, xid int32) []byte {
		if asked == total {
			return b
		}
		if asked-answered >= window {
			t.Errorf("%d requests are outstanding", asked-answered+1)
		}
		asked++
		return Request(b, xid, proto.OpSync, &proto.Path{Path: fmt.Sprint("/", xid)})
	}
	done := func(f *Frame, sent time.Time) error {
		answered++
		if want := int32(answered); f.Xid != want || f.Code != proto.Code(-(want%2)) || !bytes.Equal(f.Body, body(want)) {
			t.Errorf("reply %d is %v with %d bytes", want, f.ReplyHeader, len(f.Body))
		}
		if since := time.Since(sent); since < 0 || since > time.Minute {
			t.Errorf("request %d was sent %v ago", answered, since)
		}
		return nil
	}
	if err := c.Pipeline(window, next, done); err != nil || answered != total {
		t.Errorf("%d of %d replies, %v", answered, total, err)
	}
	if len(c.Events) != total/10 || c.Events[0].Zxid != 10 || c.Events[0].Path != "/watched" {
		t.Errorf("events %+v", c.Events)
	}
	// The xids go on after a Pipeline.
	if f, err := c.Call(proto.OpSync, &proto.Path{Path: fmt.Sprint("/", total+1)}, nil); f.Xid != total+1 {
		t.Errorf("reply %v, %v", f.ReplyHeader, err)
	}
}

// TestWord: the whole answer to a word is read, and a server that is silent is not waited for.
func TestWord(t *testing.T) {
	near, far := pair(t)
	go func() {
		defer far.Close()
		word := make([]byte, 4)
		io.ReadFull(far, word)
		fmt.Fprintf(far, "you said %s\n", word)
	}()
	if answer, err := Word(near, "ruok", time.Minute); answer != "you said ruok\n" || err != nil {
		t.Errorf("%q, %v", answer, err)
	}
	near, far = pair(t)
	defer far.Close()
	if answer, err := Word(near, "ruok", 10*time.Millisecond); answer != "" || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q, %v", answer, err)
	}
}

// TestPipelineEnds checks what ends a Pipeline before its last request.
func TestPipelineEnds(t *testing.T) {
	stop := errors.New("stop")
	for _, x := range []struct {
		name   string
		answer func(xid int32, path string) []byte
		ok     func(err error) bool
	}{
		{"the connection is closed", func(xid int32, _ string) []byte {
			if xid == 5 {
				return nil
			}
			return reply(nil, proto.ReplyHeader{Xid: xid}, nil)
		}, func(err error) bool { return err == io.EOF }},
		{"a reply to another request", func(xid int32, _ string) []byte { return reply(nil, proto.ReplyHeader{Xid: xid + xid/3}, nil) },
			func(err error) bool { return err != nil && err.Error() == "reply to request 4, expected one to 3" }},
		{"an error of done", func(xid int32, _ string) []byte {
			return reply(nil, proto.ReplyHeader{Xid: xid, Code: proto.NoNode}, nil)
		},
			func(err error) bool { return err == stop }},
	} {
		near, far := pair(t)
		go scripted(far, x.answer)
		c := New(near)
		err := c.Pipeline(1, func(b []byte, xid int32) []byte {
			return Request(b, xid, proto.OpSync, &proto.Path{Path: "/"})
		}, func(f *Frame, _ time.Time) error {
			if f.Code != proto.OK {
				return stop
			}
			return nil
		})
		if !x.ok(err) {
			t.Errorf("%s: %v", x.name, err)
		}
		c.Close()
	}
}
