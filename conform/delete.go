package conform

import (
	"github.com/lockkeeper/lockkeeper/proto"
)

var deleteChecks = []Check{
	{
		Name: "delete/simple",
		Says: "delete is answered without a body, and then no session sees the znode.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), []byte("data"), 0)
			f := k.delete(t.path("x"), -1)
			t.equal("the reply's body", len(f.Rest), 0)
			other := t.connect()
			for _, k := range []*conn{k, other} {
				k.missing(t.path("x"))
				k.want(proto.NoNode, proto.OpGetData, &proto.PathWatch{Path: t.path("x")})
				t.equal("the children", len(k.children(t.path(""))), 0)
			}
			k.want(proto.NoNode, proto.OpDelete, &proto.PathVersion{Path: t.path("x"), Version: -1})
		},
	},
	{
		Name: "delete/version",
		Says: "delete with the znode's version succeeds; with another version it fails with BadVersion, and the znode stays unchanged.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, 0)
			k.set(t.path("x"), nil, -1)
			stat := k.set(t.path("x"), []byte("2"), -1)
			for _, version := range []int32{0, 1, 3, 1 << 30, -1 << 31} {
				k.want(proto.BadVersion, proto.OpDelete, &proto.PathVersion{Path: t.path("x"), Version: version})
			}
			t.equal("the Stat", k.stat(t.path("x")), stat)
			k.delete(t.path("x"), 2)
			k.missing(t.path("x"))
		},
	},
	{
		Name: "delete/version -2",
		Says: "-1 stands for any version; other negative numbers match none.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, 0)
			k.want(proto.BadVersion, proto.OpDelete, &proto.PathVersion{Path: t.path("x"), Version: -2})
			k.delete(t.path("x"), -1)
			k.create(t.path("x"), nil, 0)
			k.set(t.path("x"), nil, -1)
			k.want(proto.BadVersion, proto.OpDelete, &proto.PathVersion{Path: t.path("x"), Version: -3})
			k.delete(t.path("x"), -1)
		},
	},
	{
		Name: "delete/missing",
		Says: "delete of a znode that does not exist, or whose parent does not, fails with NoNode, whatever the version.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			for _, p := range []string{"x", "a/b", "a/b/c"} {
				for _, version := range []int32{-1, 0, 5} {
					k.want(proto.NoNode, proto.OpDelete, &proto.PathVersion{Path: t.path(p), Version: version})
				}
			}
		},
	},
	{
		Name: "delete/not empty",
		Says: "delete of a znode with children, ephemeral or not, fails with NotEmpty until the last child is deleted.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("p"), nil, 0)
			k.create(t.path("p/x"), nil, 0)
			k.create(t.path("p/e"), nil, proto.FlagEphemeral)
			k.want(proto.NotEmpty, proto.OpDelete, &proto.PathVersion{Path: t.path("p"), Version: -1})
			k.delete(t.path("p/x"), -1)
			k.want(proto.NotEmpty, proto.OpDelete, &proto.PathVersion{Path: t.path("p"), Version: 0})
			k.delete(t.path("p/e"), -1)
			k.delete(t.path("p"), -1)
		},
	},
	{
		Name: "delete/version before children",
		Says: "A wrong version is reported before remaining children.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("p"), nil, 0)
			k.create(t.path("p/x"), nil, 0)
			k.want(proto.BadVersion, proto.OpDelete, &proto.PathVersion{Path: t.path("p"), Version: 1})
			k.want(proto.NotEmpty, proto.OpDelete, &proto.PathVersion{Path: t.path("p"), Version: 0})
		},
	},
	{
		Name: "delete/root",
		Says: "delete of the root or of /zookeeper fails with BadArguments.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			for _, p := range []string{"/", "/zookeeper"} {
				for _, version := range []int32{-1, 100} {
					k.want(proto.BadArguments, proto.OpDelete, &proto.PathVersion{Path: p, Version: version})
				}
				k.stat(p)
			}
		},
	},
	{
		Name: "delete/quota and config",
		Says: "delete of /zookeeper/quota or /zookeeper/config fails with BadArguments.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			for _, p := range []string{"/zookeeper/quota", "/zookeeper/config"} {
				k.want(proto.BadArguments, proto.OpDelete, &proto.PathVersion{Path: p, Version: -1})
				k.stat(p)
			}
		},
	},
	{
		Name: "delete/no slash",
		Says: "A path without a leading slash, or with NUL, fails with BadArguments.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			for _, p := range []string{"", "x", "conform.x", t.path("\x00"), t.path("a\x00b/c")} {
				k.want(proto.BadArguments, proto.OpDelete, &proto.PathVersion{Path: p, Version: -1})
			}
		},
	},
	{
		Name: "delete/sloppy paths",
		Says: "Other paths that no znode can have are looked up, and fail with NoNode.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, 0)
			for _, p := range []string{t.path("x/"), t.path("/x"), t.path("."), t.path("x/.."), "//x", t.path("\n")} {
				k.want(proto.NoNode, proto.OpDelete, &proto.PathVersion{Path: p, Version: -1})
			}
			k.stat(t.path("x"))
		},
	},
	{
		Name: "delete/permission",
		Says: "delete needs DELETE on the parent, whatever the znode's own ACL allows.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.auth("digest", alice+":"+alice)
			k.createACL(t.path("p"), nil, []proto.ACL{allow(alice, proto.PermAll), allowAll(proto.PermAll &^ proto.PermDelete)}, 0)
			k.create(t.path("p/x"), nil, 0)
			other := t.connect()
			other.want(proto.NoAuth, proto.OpDelete, &proto.PathVersion{Path: t.path("p/x"), Version: -1})
			other.stat(t.path("p/x"))
			k.delete(t.path("p/x"), -1)
		},
	},
	{
		Name: "delete/own ACL",
		Says: "The ACL of the znode itself does not matter when it is deleted.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.createACL(t.path("x"), nil, []proto.ACL{allow(alice, proto.PermAll)}, 0)
			k.createACL(t.path("y"), nil, []proto.ACL{allow(alice, proto.PermRead)}, 0)
			k.delete(t.path("x"), 0)
			k.delete(t.path("y"), -1)
		},
	},
	{
		Name: "delete/permission before existence",
		Says: "A missing permission on the parent is reported before a missing znode, a wrong version and remaining children.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			k.auth("digest", alice+":"+alice)
			k.createACL(t.path("p"), nil, []proto.ACL{allow(alice, proto.PermAll), allowAll(proto.PermRead)}, 0)
			k.create(t.path("p/x"), nil, 0)
			k.create(t.path("p/x/y"), nil, 0)
			other := t.connect()
			other.want(proto.NoAuth, proto.OpDelete, &proto.PathVersion{Path: t.path("p/none"), Version: -1})
			other.want(proto.NoAuth, proto.OpDelete, &proto.PathVersion{Path: t.path("p/x"), Version: 7})
			other.want(proto.NoAuth, proto.OpDelete, &proto.PathVersion{Path: t.path("p/x"), Version: -1})
			other.delete(t.path("p/x/y"), -1)
		},
	},
	{
		Name: "delete/parent's Stat",
		Says: "A delete increments its parent's cversion, decrements its numChildren and sets its pzxid; nothing else in the parent changes, and nothing in the grandparent.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("p"), []byte("data"), 0)
			k.create(t.path("p/x"), nil, 0)
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
		},
	},
	{
		Name: "delete/failure leaves the parent",
		Says: "A delete that fails does not change the parent's Stat.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("p"), nil, 0)
			k.create(t.path("p/x"), nil, 0)
			want := k.stat(t.path("p"))
			k.want(proto.BadVersion, proto.OpDelete, &proto.PathVersion{Path: t.path("p/x"), Version: 3})
			k.want(proto.NoNode, proto.OpDelete, &proto.PathVersion{Path: t.path("p/y"), Version: -1})
			t.equal("the parent's Stat", k.stat(t.path("p")), want)
		},
	},
	{
		Name: "delete/create again",
		Says: "A znode that is created again keeps nothing of the deleted one: its versions start at 0, and its zxids are its own.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			_, first := k.create2(t.path("x"), []byte("first"), 0)
			k.set(t.path("x"), []byte("second"), -1)
			k.setACL(t.path("x"), proto.OpenACL, -1)
			k.create(t.path("x/y"), nil, 0)
			k.delete(t.path("x/y"), -1)
			k.delete(t.path("x"), 1)
			f := k.do(proto.OpCreate2, newZnode(t.path("x"), 0))
			k.isNew(f, t.path("x"), 0)
			t.ensure(f.Zxid > first.Czxid, "czxid is %#x, that of the one before was %#x", f.Zxid, first.Czxid)
		},
	},
	{
		Name: "delete/another's ephemeral",
		Says: "Another session can delete an ephemeral znode and then create its own of that name, which stays when the first owner's session ends.",
		In:   ">=3.0",
		run: func(t *trial) {
			a, b := t.connect(), t.connect()
			a.create(t.path("x"), nil, proto.FlagEphemeral)
			b.delete(t.path("x"), 0)
			b.create(t.path("x"), nil, proto.FlagEphemeral)
			a.closeSession()
			t.equal("the owner", b.stat(t.path("x")).EphemeralOwner, b.Session.SessionID)
		},
	},
}
