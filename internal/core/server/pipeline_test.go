package server

import (
	"bytes"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// cutting is a Proposer that records the xid of each command and calls cut with it.
type cutting struct {
	idle
	xids []int32
	cut  func(xid int32)
}

func (p *cutting) Propose(c *fsm.Command, _ fsm.Waiter, _ <-chan struct{}) {
	p.xids = append(p.xids, c.Cxid)
	p.cut(c.Cxid)
}

// TestCutLeavesNoGap kills a connection while it proposes writes that arrived
// together. The writes that were proposed must be a prefix of those that were sent.
func TestCutLeavesNoGap(t *testing.T) {
	client, raw := net.Pipe()
	defer client.Close()
	p := &cutting{}
	s := New(Config{ID: 1, Proposer: p, Replica: fsm.NewReplica(), Log: testkit.Quiet, Limits: Limits{MaxOutstanding: 1000}})
	c := &conn{s: s, nc: raw, raw: raw, gone: make(chan struct{}), requestQueue: newRequestQueue(s.cfg.MaxOutstanding)}
	c.out.init(1 << 20)
	c.identity.Store(newIdentity(nil))
	p.cut = func(xid int32) {
		if xid == 3 {
			c.kill()
		}
	}
	var all []int32
	for xid := int32(1); xid <= 100; xid++ {
		all = append(all, xid)
		h := proto.RequestHeader{Xid: xid, Op: proto.OpSetData}
		if ok, err := c.handle(h.Append(nil)); !ok || err != nil {
			break
		}
	}
	if n := len(p.xids); n < 3 || n == 100 || !slices.Equal(p.xids, all[:n]) {
		t.Errorf("proposed %v; the connection was killed during 3", p.xids)
	}
}

// TestNothingAfterTheEnd parks reads behind a write. Once a reply does not fit into
// the outbox, no further read may run: all of them run while the tree is locked.
func TestNothingAfterTheEnd(t *testing.T) {
	client, raw := net.Pipe()
	defer client.Close()
	var log bytes.Buffer
	s := New(Config{ID: 1, Proposer: &cutting{}, Replica: fsm.NewReplica(), Log: slog.New(slog.NewTextHandler(&log, nil)), Limits: Limits{MaxOutstanding: 1000}})
	c := &conn{s: s, nc: raw, raw: raw, gone: make(chan struct{}), requestQueue: newRequestQueue(s.cfg.MaxOutstanding)}
	c.out.init(frameHeader + 30) // the write's reply, and less than a list of the root's children
	who := newIdentity([]proto.ID{{Scheme: proto.SchemeIP, ID: "127.0.0.1"}})
	q := proto.PathWatch{Path: "/"}
	for i, op := range []proto.OpCode{proto.OpSetData, proto.OpGetChildren, proto.OpGetChildren, proto.OpGetChildren} {
		r := request{xid: int32(i), op: proto.OpByCode(op), body: q.Append(nil), who: who}
		c.reserve(&r, 1)
		c.push(r, false)
	}
	s.cfg.Replica.View(func(v *fsm.View) { c.Done(v, &fsm.Result{}) })
	s.Close()
	s.Wait()
	if n := strings.Count(log.String(), "a reply does not fit into its outbox"); n != 1 || len(c.queue) != 0 {
		t.Errorf("%d reads ran, %d are still queued", n, len(c.queue))
	}
}
