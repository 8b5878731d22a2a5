package xid

import "testing"

func TestWaiting(t *testing.T) {
	var w Waiting
	w.Asked(1, 4)
	w.Asked(-8, 101)
	w.Asked(-8, 105) // several of one xid are answered in order
	w.Asked(9, 11)   // a ping, whose answer has an xid of its own
	for _, x := range []struct {
		xid, op int32
		ok      bool
	}{{2, 0, false}, {-8, 101, true}, {9, 0, false}, {-2, 11, true}, {-8, 105, true}, {-8, 0, false}, {1, 4, true}, {1, 0, false}} {
		if op, ok := w.Answered(x.xid); op != x.op || ok != x.ok {
			t.Errorf("a reply with xid %d answers %d %v, want %d %v", x.xid, op, ok, x.op, x.ok)
		}
	}
	for i := range int32(max + 10) {
		w.Asked(i, 1)
	}
	if len(w.requests) != max {
		t.Errorf("%d requests are remembered, want at most %d", len(w.requests), max)
	}
}
