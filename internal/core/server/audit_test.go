package server

import (
	"net"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestAuditWithoutClient: what is done, or may be, is in the audit log even if the client has gone meanwhile.
func TestAuditWithoutClient(t *testing.T) {
	var events []AuditEvent
	s := New(Config{ID: 1, Proposer: idle{}, Replica: fsm.NewReplica(), Log: testkit.Quiet, Audit: func(e AuditEvent) { events = append(events, e) }})
	near, far := net.Pipe()
	defer far.Close()
	c := &conn{s: s, nc: near, raw: near, gone: make(chan struct{}), since: time.Now(), requestQueue: newRequestQueue(1)}
	c.out.init(1 << 20)
	c.session = 7
	c.dead = true // set when the connection has ended
	who := newIdentity(inProcess)
	frame := (&proto.PathVersion{Path: "/a", Version: -1}).Append(nil)
	done, dropped, lost := c.waiter(proto.OpDelete, frame, who), c.waiter(proto.OpDelete, frame, who), c.waiter(proto.OpDelete, frame, who)
	clear(frame) // the reader uses its buffer again
	done.Done(nil, &fsm.Result{})
	dropped.Done(nil, &fsm.Result{Drop: true})
	lost.Lost()
	for i, want := range []string{"success", "failure", "invoked"} {
		if all := (AuditEvent{7, "127.0.0.1", "127.0.0.1", "delete", "/a", "", "", want}); i >= len(events) || events[i] != all {
			t.Errorf("%+v, not %+v", events, all)
		}
	}
	if w := c.waiter(proto.OpSync, frame, who); w != fsm.Waiter(c) {
		t.Error("a sync is audited")
	}
}
