package whole

import (
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestOpsAreServed sends an empty request of every operation to a server, which must know
// all of them. Other tests check the answers.
func TestOpsAreServed(t *testing.T) {
	s := open(t, lockkeeper.Config{})
	for i := range proto.Ops {
		op := &proto.Ops[i]
		body := op.Request()
		if op.Class == proto.Part {
			// It exists only within a multi.
			op, body = proto.OpByCode(proto.OpMulti), &proto.MultiRequest{Ops: []proto.MultiOp{{Op: op.Code, Request: body}}}
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
func ask(s *lockkeeper.Server, op proto.OpCode, body proto.Record) (h proto.ReplyHeader, err error) {
	nc, err := s.Dial("tcp", "", time.Minute)
	if err != nil {
		return h, err
	}
	defer nc.Close()
	c, err := rawclient.Open(nc, 10*time.Second)
	if err != nil {
		return h, fmt.Errorf("handshake: %w", err)
	}
	if _, err := c.Send(op, body); err != nil {
		return h, err
	}
	f, err := c.Read()
	return f.ReplyHeader, err
}
