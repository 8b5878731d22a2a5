package conform

import (
	"math"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

var syncChecks = []Check{
	check("sync and ping/ping", ">=3.0",
		"A ping is answered without a body, with xid -2 and the last zxid.",
		func(t *trial, k *conn) {
			zxid := k.do(opCreate(t.path("x"), nil, 0)).Zxid
			k.sendXid(proto.XidPing, request{Op: proto.OpPing})
			f := k.answers(proto.OK)
			t.equal("the reply's length", len(f.Payload), 16)
			t.ensure(f.Zxid >= zxid, "zxid %#x comes after %#x", f.Zxid, zxid)
		}),
	check("sync and ping/ping of another xid", ">=3.0",
		"The reply to a ping has xid -2, whatever the xid of the request.",
		func(t *trial, k *conn) {
			for _, xid := range []int32{0, 1, 77, -1, -4, math.MinInt32} {
				k.sendXid(xid, request{Op: proto.OpPing})
				t.equal("the reply's xid", k.reply().Xid, proto.XidPing)
			}
		}),
	check("sync and ping/sync", ">=3.0",
		"sync returns the path that was sent, which need neither exist nor be valid.",
		func(t *trial, k *conn) {
			for _, p := range []string{t.path(""), t.path("none"), "/", "", "no path", "//", t.path("x/")} {
				f := k.do(opSync(p))
				t.equal("the reply", f.Body, proto.Record(&proto.Path{Path: p}))
			}
		}),
	check("sync and ping/sync of a null path", ">=3.5",
		"sync of a null path, which kazoo sends for the empty one, returns null.",
		func(t *trial) {
			f := t.connect().do(req(proto.OpSync, &proto.Path{Path: jute.Null}))
			t.equal("the reply", f.Body, proto.Record(&proto.Path{Path: jute.Null}))
		}),
	check("sync and ping/sync after another's write", ">=3.0",
		"The reply to sync has at least the zxid of every write that was answered before the sync was sent.",
		func(t *trial, a, b *conn) {
			a.make(t.path("x"))
			for range 20 {
				mzxid := a.set(t.path("x"), nil, -1).Mzxid
				f := b.do(opSync(t.path("x")))
				t.ensure(f.Zxid >= mzxid, "sync is answered with zxid %#x, the write before had %#x", f.Zxid, mzxid)
				t.ensure(b.stat(t.path("x")).Mzxid >= mzxid, "a read after sync does not see the write")
			}
		}),
}
