package whole

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestOpsAreServed sends an empty request of every operation to a server, which must know
// all of them. Other tests check the answers.
func TestOpsAreServed(t *testing.T) {
	s := open(t, lockkeeper.Config{})
	for i := range proto.Ops {
		op := &proto.Ops[i]
		body := op.Request().Append(nil)
		if op.Class == proto.Part {
			// It exists only within a multi.
			m := proto.MultiRequest{Ops: []proto.MultiOp{{Op: op.Code, Request: op.Request()}}}
			op, body = proto.OpByCode(proto.OpMulti), m.Append(nil)
		}
		h, err := ask(s, op.Code, body)
		if err != nil {
			t.Errorf("%s: %v", op.Name, err)
		} else if h.Code == proto.Unimplemented {
			t.Errorf("%s (%d) is in the table of operations, but has no handler", op.Name, op.Code)
		}
	}
	if h, err := ask(s, 99, nil); err != nil || h.Code != proto.Unimplemented {
		t.Errorf("an operation that is not in the table is answered %v, %v; want %v", h.Code, err, proto.Unimplemented)
	}
}

// ask opens a session, sends one request and returns its reply's header.
func ask(s *lockkeeper.Server, op proto.OpCode, body []byte) (h proto.ReplyHeader, err error) {
	var c net.Conn
	if c, err = s.Dial("tcp", "", time.Minute); err != nil {
		return h, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	frame := func(payload []byte) []byte {
		b, start := jute.BeginFrame(nil)
		b = append(b, payload...)
		jute.EndFrame(b, start)
		return b
	}
	connect := proto.ConnectRequest{Timeout: 10000, Password: make([]byte, proto.PasswordLen)}
	if _, err = c.Write(frame(connect.Append(nil))); err != nil {
		return h, err
	}
	if _, err = jute.ReadFrame(c, jute.DefaultMaxFrame, nil); err != nil {
		return h, fmt.Errorf("handshake: %w", err)
	}
	header := proto.RequestHeader{Xid: 7, Op: op}
	if _, err = c.Write(frame(append(header.Append(nil), body...))); err != nil {
		return h, err
	}
	reply, err := jute.ReadFrame(c, jute.DefaultMaxFrame, nil)
	if err != nil {
		return h, err
	}
	d := jute.NewDecoder(reply)
	h.Decode(&d)
	return h, d.Err()
}
