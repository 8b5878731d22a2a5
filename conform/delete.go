package conform

import (
	"github.com/lockkeeper/lockkeeper/proto"
)

var deleteChecks = []Check{
	check("delete/simple", ">=3.0",
		"delete is answered without a body, and then no session sees the znode.",
		func(t *trial, k *conn) {
			k.create(t.path("x"), []byte("data"), 0)
			f := k.delete(t.path("x"), -1)
			t.equal("the reply's body", len(f.Rest), 0)
			other := t.connect()
			for _, k := range []*conn{k, other} {
				k.missing(t.path("x"))
				k.want(proto.NoNode, opGet(t.path("x")))
				t.equal("the children", len(k.children(t.path(""))), 0)
			}
			k.want(proto.NoNode, opDelete(t.path("x"), -1))
		}),
	check("delete/version", ">=3.0",
		"delete with the znode's version succeeds; with another version, also a negative one except -1, it fails with BadVersion, and the znode stays unchanged.",
		func(t *trial, k *conn) {
			k.make(t.path("x"))
			k.set(t.path("x"), nil, -1)
			stat := k.set(t.path("x"), []byte("2"), -1)
			for _, version := range []int32{0, 1, 3, 1 << 30, -2, -3, -1 << 31} {
				k.want(proto.BadVersion, opDelete(t.path("x"), version))
			}
			t.equal("the Stat", k.stat(t.path("x")), stat)
			k.delete(t.path("x"), 2)
			k.missing(t.path("x"))
		}),
	check("delete/missing", ">=3.0",
		"delete of a znode that does not exist, or whose parent does not, fails with NoNode, whatever the version.",
		func(t *trial, k *conn) {
			for _, p := range []string{"x", "a/b", "a/b/c"} {
				for _, version := range []int32{-1, 0, 5} {
					k.want(proto.NoNode, opDelete(t.path(p), version))
				}
			}
		}),
	check("delete/not empty", ">=3.0",
		"delete of a znode with children, ephemeral or not, fails with NotEmpty until the last child is deleted.",
		func(t *trial, k *conn) {
			k.make(t.path("p"), t.path("p/x"))
			k.create(t.path("p/e"), nil, proto.FlagEphemeral)
			k.want(proto.NotEmpty, opDelete(t.path("p"), -1))
			k.delete(t.path("p/x"), -1)
			k.want(proto.NotEmpty, opDelete(t.path("p"), 0))
			k.delete(t.path("p/e"), -1)
			k.delete(t.path("p"), -1)
		}),
	check("delete/version before children", ">=3.0",
		"A wrong version is reported before remaining children.",
		func(t *trial, k *conn) {
			k.make(t.path("p"), t.path("p/x"))
			k.want(proto.BadVersion, opDelete(t.path("p"), 1))
			k.want(proto.NotEmpty, opDelete(t.path("p"), 0))
		}),
	check("delete/root", ">=3.0",
		"delete of the root or of /zookeeper fails with BadArguments.",
		func(t *trial, k *conn) {
			for _, p := range []string{"/", "/zookeeper"} {
				for _, version := range []int32{-1, 100} {
					k.want(proto.BadArguments, opDelete(p, version))
				}
				k.stat(p)
			}
		}),
	check("delete/no slash", ">=3.0",
		"A path without a leading slash, or with NUL, fails with BadArguments.",
		func(t *trial, k *conn) {
			for _, p := range []string{"", "x", "conform.x", t.path("\x00"), t.path("a\x00b/c")} {
				k.want(proto.BadArguments, opDelete(p, -1))
			}
		}),
	check("delete/sloppy paths", ">=3.0",
		"Other paths that no znode can have are looked up, and fail with NoNode.",
		func(t *trial, k *conn) {
			k.make(t.path("x"))
			for _, p := range []string{t.path("x/"), t.path("/x"), t.path("."), t.path("x/.."), "//x", t.path("\n")} {
				k.want(proto.NoNode, opDelete(p, -1))
			}
			k.stat(t.path("x"))
		}),
	check("delete/own ACL", ">=3.0",
		"The ACL of the znode itself does not matter when it is deleted.",
		func(t *trial, k *conn) {
			k.createACL(t.path("x"), nil, []proto.ACL{allow(alice, proto.PermAll)}, 0)
			k.createACL(t.path("y"), nil, []proto.ACL{allow(alice, proto.PermRead)}, 0)
			k.delete(t.path("x"), 0)
			k.delete(t.path("y"), -1)
		}),
	check("delete/parent's Stat", ">=3.0",
		"A delete increments its parent's cversion, decrements its numChildren and sets its pzxid; nothing else in the parent changes, and nothing in the grandparent.",
		func(t *trial, k *conn) {
			k.create(t.path("p"), []byte("data"), 0)
			k.make(t.path("p/x"))
			k.create(t.path("p/y"), nil, proto.FlagEphemeral)
			grandparent, want := k.stat(t.path("")), k.stat(t.path("p"))
			for _, name := range []string{"x", "y"} {
				f := k.delete(t.path("p/"+name), -1)
				want.Cversion++
				want.NumChildren--
				want.Pzxid = f.Zxid
				t.equal("the parent's Stat", k.stat(t.path("p")), want)
			}
			t.equal("cversion", want.Cversion, int32(4))
			t.equal("the grandparent's Stat", k.stat(t.path("")), grandparent)
		}),
	check("delete/failure leaves the parent", ">=3.0",
		"A delete that fails does not change the parent's Stat.",
		func(t *trial, k *conn) {
			k.make(t.path("p"), t.path("p/x"))
			want := k.stat(t.path("p"))
			k.want(proto.BadVersion, opDelete(t.path("p/x"), 3))
			k.want(proto.NoNode, opDelete(t.path("p/y"), -1))
			t.equal("the parent's Stat", k.stat(t.path("p")), want)
		}),
	check("delete/create again", ">=3.5",
		"A znode that is created again keeps nothing of the deleted one: its versions start at 0, and its zxids are its own.",
		func(t *trial, k *conn) {
			_, first := k.create2(t.path("x"), []byte("first"), 0)
			k.set(t.path("x"), []byte("second"), -1)
			k.setACL(t.path("x"), proto.OpenACL, -1)
			k.make(t.path("x/y"))
			k.delete(t.path("x/y"), -1)
			k.delete(t.path("x"), 1)
			f := k.do(opMake(proto.OpCreate2, t.path("x"), nil, 0))
			k.isNew(f, t.path("x"), 0)
			t.ensure(f.Zxid > first.Czxid, "czxid is %#x, that of the one before was %#x", f.Zxid, first.Czxid)
		}),
	check("delete/another's ephemeral", ">=3.0",
		"Another session can delete an ephemeral znode and then create its own of that name, which stays when the first owner's session ends.",
		func(t *trial, a, b *conn) {
			a.create(t.path("x"), nil, proto.FlagEphemeral)
			b.delete(t.path("x"), 0)
			b.create(t.path("x"), nil, proto.FlagEphemeral)
			a.closeSession()
			t.equal("the owner", b.stat(t.path("x")).EphemeralOwner, b.Session.SessionID)
		}),
}
