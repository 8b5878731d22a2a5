// Package xid finds the request that a reply answers. It knows only numbers,
// so that tests of every layer can use it.
package xid

// The ping's opcode, and the xid of every reply to one (ClientCnxn.PING_XID).
const (
	opPing    = 11
	replyPing = -2
)

// max bounds the requests that are remembered. A server bounds them too.
const max = 100_000

// Waiting are the requests of one connection that have no reply yet. The zero
// value has none. It must not be used by two goroutines at once.
type Waiting struct{ requests []request }

type request struct{ xid, op int32 }

// Asked notes a request of type op.
func (w *Waiting) Asked(xid, op int32) {
	if op == opPing {
		xid = replyPing
	}
	if len(w.requests) < max {
		w.requests = append(w.requests, request{xid, op})
	}
}

// Answered takes out the oldest request that a reply with this xid answers, and
// returns its type. ok is false if there is none.
func (w *Waiting) Answered(xid int32) (op int32, ok bool) {
	for i, r := range w.requests {
		if r.xid == xid {
			w.requests = append(w.requests[:i], w.requests[i+1:]...)
			return r.op, true
		}
	}
	return 0, false
}
