package server

import (
	"bytes"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
)

// cutting is a cluster that notes what is proposed, and calls cut with each.
type cutting struct {
	idle
	xids []int32
	cut  func(xid int32)
}

func (p *cutting) Propose(c *fsm.Command, _ fsm.Waiter, _ <-chan struct{}) {
	p.xids = append(p.xids, c.Cxid)
	p.cut(c.Cxid)
}

// TestCutLeavesNoGap: of the writes that came together on a connection that is
// cut, none is done when one before it is not.
func TestCutLeavesNoGap(t *testing.T) {
	client, raw := net.Pipe()
	defer client.Close()
	p := &cutting{}
	s := New(Config{ID: 1, Proposer: p, Replica: fsm.NewReplica(), Log: slog.New(slog.DiscardHandler), MaxOutstanding: 1000})
	c := &conn{s: s, nc: raw, raw: raw, gone: make(chan struct{}), slots: make(chan struct{}, s.cfg.MaxOutstanding)}
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
		t.Errorf("proposed are %v, cut with 3", p.xids)
	}
}

// TestNothingBehindTheEnd: of the reads that wait for a write, none is carried out
// behind one whose reply does not fit: together they would hold the tree's lock
// for as long as all of their replies take.
func TestNothingBehindTheEnd(t *testing.T) {
	client, raw := net.Pipe()
	defer client.Close()
	var log bytes.Buffer
	s := New(Config{ID: 1, Proposer: &cutting{}, Replica: fsm.NewReplica(), Log: slog.New(slog.NewTextHandler(&log, nil)), MaxOutstanding: 1000})
	c := &conn{s: s, nc: raw, raw: raw, gone: make(chan struct{}), slots: make(chan struct{}, s.cfg.MaxOutstanding)}
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
	s.Wait() // for the log
	if n := strings.Count(log.String(), "a reply does not fit into its outbox"); n != 1 || len(c.queue) != 0 {
		t.Errorf("%d reads were carried out, %d wait", n, len(c.queue))
	}
}
