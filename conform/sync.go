package conform

import (
	"math"

	"github.com/lockkeeper/lockkeeper/proto"
)

var syncChecks = []Check{
	{
		Name: "sync and ping/ping",
		Says: "A ping is answered without a body, with xid -2 and the last zxid.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			zxid := k.do(proto.OpCreate, newZnode(t.path("x"), 0)).Zxid
			k.queueXid(proto.XidPing, proto.OpPing, nil)
			k.flush()
			f := k.answer(proto.XidPing, proto.OpPing)
			k.judge(f, proto.OK)
			t.equal("the reply's length", len(f.Payload), 16)
			t.ensure(f.Zxid >= zxid, "zxid %#x comes after %#x", f.Zxid, zxid)
		},
	},
	{
		Name: "sync and ping/ping of another xid",
		Says: "The reply to a ping has xid -2, whatever the xid of the request.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			for _, xid := range []int32{0, 1, 77, -1, -4, math.MinInt32} {
				k.queueXid(xid, proto.OpPing, nil)
				k.flush()
				t.equal("the reply's xid", k.reply().Xid, proto.XidPing)
			}
		},
	},
	{
		Name: "sync and ping/sync",
		Says: "sync returns the path that was sent, which need neither exist nor be valid.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			for _, p := range []string{t.path(""), t.path("none"), "/", "", "no path", "//", t.path("x/")} {
				f := k.do(proto.OpSync, &proto.Path{Path: p})
				t.equal("the reply", f.Body, proto.Record(&proto.Path{Path: p}))
			}
		},
	},
	{
		Name: "sync and ping/sync of a null path",
		Says: "sync of a null path, which kazoo sends for the empty one, returns null.",
		In:   ">=3.5",
		run: func(t *trial) {
			f := t.connect().do(proto.OpSync, &proto.Path{Null: true})
			t.equal("the reply", f.Body, proto.Record(&proto.Path{Null: true}))
		},
	},
	{
		Name: "sync and ping/sync without permission",
		Says: "sync needs no permission.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.createACL(t.path("x"), nil, []proto.ACL{allow(alice, proto.PermAll)}, 0)
			k.do(proto.OpSync, &proto.Path{Path: t.path("x")})
		},
	},
	{
		Name: "sync and ping/sync after another's write",
		Says: "The reply to sync has at least the zxid of every write that was answered before the sync was sent.",
		In:   ">=3.0",
		run: func(t *trial) {
			a, b := t.connect(), t.connect()
			a.create(t.path("x"), nil, 0)
			for range 20 {
				mzxid := a.set(t.path("x"), nil, -1).Mzxid
				f := b.do(proto.OpSync, &proto.Path{Path: t.path("x")})
				t.ensure(f.Zxid >= mzxid, "sync is answered with zxid %#x, the write before had %#x", f.Zxid, mzxid)
				t.ensure(b.stat(t.path("x")).Mzxid >= mzxid, "a read after sync does not see the write")
			}
		},
	},
}
