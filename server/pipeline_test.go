package server

import (
	"log/slog"
	"net"
	"slices"
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
