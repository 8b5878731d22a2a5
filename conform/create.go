package conform

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

var createChecks = []Check{
	check("create/persistent", ">=3.0",
		"create returns only the path. The Stat of the new znode has the zxid of its creation as czxid, mzxid and pzxid, the same time as ctime and mtime, and zeros.",
		func(t *trial, k *conn) {
			f := k.do(opCreate(t.path("x"), []byte("data"), 0))
			t.equal("the path", f.Body, proto.Record(&proto.PathReply{Path: t.path("x")}))
			stat := k.stat(t.path("x"))
			t.ensure(stat.Ctime > 0, "ctime is %d", stat.Ctime)
			t.equal("the Stat", stat, newStat(f.Zxid, stat.Ctime, 4))
			k.closeSession()
			t.equal("the Stat after the session's end", t.connect().stat(t.path("x")), stat)
		}),
	check("create/ephemeral", ">=3.0",
		"An ephemeral znode has its session's id as ephemeralOwner.",
		func(t *trial, k *conn) {
			k.create(t.path("x"), nil, proto.FlagEphemeral)
			stat := k.stat(t.path("x"))
			want := newStat(stat.Czxid, stat.Ctime, 0)
			want.EphemeralOwner = k.Session.SessionID
			t.equal("the Stat", stat, want)
		}),
	check("create/sequential", ">=3.0",
		"A sequential znode's path ends in ten digits, the number of creates below its parent so far, and the reply has the whole path.",
		func(t *trial, k *conn) {
			for i := range 12 {
				got := k.create(t.path("x-"), nil, proto.FlagSequential)
				t.equal("the path", got, fmt.Sprintf("%s%010d", t.path("x-"), i))
				t.equal("ephemeralOwner", k.stat(got).EphemeralOwner, int64(0))
			}
			k.missing(t.path("x-"))
		}),
	check("create/ephemeral sequential", ">=3.0",
		"A znode can be both ephemeral and sequential, as the lock recipe needs it.",
		func(t *trial, k *conn) {
			got := k.create(t.path("x-"), nil, proto.FlagEphemeralSeq)
			t.equal("the path", got, t.path("x-0000000000"))
			t.equal("ephemeralOwner", k.stat(got).EphemeralOwner, k.Session.SessionID)
			k.closeSession()
			t.connect().missing(got)
		}),
	check("create/create2", ">=3.5",
		"create2 is like create, but also returns the Stat.",
		func(t *trial, k *conn) {
			k.isNew(k.do(opMake(proto.OpCreate2, t.path("x"), []byte("12345"), 0)), t.path("x"), 5)
			path, stat := k.create2(t.path("y"), nil, proto.FlagEphemeralSeq)
			t.equal("the path", path, t.path("y0000000001"))
			t.equal("ephemeralOwner", stat.EphemeralOwner, k.Session.SessionID)
			t.equal("the Stat of exists", k.stat(path), stat)
		}),
	check("create/container flag in create", ">=3.5.3",
		"The operation decides the kind: create and create2 with the flag of a container make a persistent znode.",
		func(t *trial, k *conn) {
			t.equal("the path", k.create(t.path("x"), nil, proto.FlagContainer), t.path("x"))
			k.create2(t.path("y"), nil, proto.FlagContainer)
			t.equal("ephemeralOwner", k.stat(t.path("x")).EphemeralOwner, int64(0))
		}),
	check("create/flags", ">=3.5.4",
		"Flags that belong to no known mode fail with BadArguments.",
		func(t *trial, k *conn) {
			for _, op := range []proto.OpCode{proto.OpCreate, proto.OpCreate2, proto.OpCreateContainer} {
				for _, flags := range []int32{-1, 7, 8, 1 << 30, -1 << 31} {
					k.want(proto.BadArguments, opMake(op, t.path("x"), nil, flags))
				}
			}
			k.missing(t.path("x"))
		}),
	check("create/no parent", ">=3.0",
		"A create whose parent does not exist fails with NoNode.",
		func(t *trial, k *conn) {
			for _, flags := range []int32{0, proto.FlagEphemeral, proto.FlagSequential} {
				k.want(proto.NoNode, opCreate(t.path("a/b"), nil, flags))
			}
			k.missing(t.path("a"))
		}),
	check("create/exists", ">=3.5.3",
		"A create of an existing path fails with NodeExists, whatever the kinds of the znodes, and the existing znode stays unchanged.",
		func(t *trial, k *conn) {
			k.create(t.path("x"), []byte("first"), 0)
			k.create(t.path("e"), nil, proto.FlagEphemeral)
			stat := k.stat(t.path("x"))
			for _, op := range []proto.OpCode{proto.OpCreate, proto.OpCreate2, proto.OpCreateContainer} {
				k.want(proto.NodeExists, opMake(op, t.path("x"), nil, 0), opMake(op, t.path("e"), nil, 0))
			}
			k.want(proto.NodeExists, opCreate(t.path("x"), nil, proto.FlagEphemeral))
			data, after := k.get(t.path("x"))
			t.equal("the data", string(data), "first")
			t.equal("the Stat", after, stat)
		}),
	check("create/below an ephemeral", ">=3.0",
		"An ephemeral znode can have no children, ephemeral or not: create fails with NoChildrenForEphemerals.",
		func(t *trial, k *conn) {
			k.create(t.path("e"), nil, proto.FlagEphemeral)
			for _, flags := range []int32{0, proto.FlagEphemeral, proto.FlagSequential, proto.FlagEphemeralSeq} {
				k.want(proto.NoChildrenForEphemerals, opCreate(t.path("e/x"), nil, flags))
			}
			stat := k.stat(t.path("e"))
			t.equal("cversion", stat.Cversion, int32(0))
		}),
	requires(TTL, check("create/below containers and TTL znodes", ">=3.5.4",
		"Containers and TTL znodes can have children of any kind.",
		func(t *trial, k *conn) {
			k.do(opMake(proto.OpCreateContainer, t.path("c"), nil, proto.FlagContainer))
			k.do(opTTL(t.path("t"), proto.FlagTTL, 1e6))
			for _, p := range []string{"c", "t"} {
				k.make(t.path(p + "/p"))
				k.create(t.path(p+"/e"), nil, proto.FlagEphemeral)
				k.do(opMake(proto.OpCreateContainer, t.path(p+"/c"), nil, proto.FlagContainer))
				t.equal("numChildren", k.stat(t.path(p)).NumChildren, int32(3))
			}
		})),
	check("create/no slash", ">=3.0",
		"A path that does not start with a slash, and the empty path, fail with BadArguments.",
		func(t *trial, k *conn) {
			for _, p := range []string{"", "x", "conform.x"} {
				k.want(proto.BadArguments, opCreate(p, nil, 0), opCreate(p, nil, proto.FlagSequential))
			}
		}),
	check("create/root", ">=3.0",
		"A create of the root fails with NodeExists.",
		func(t *trial, k *conn) {
			k.want(proto.NodeExists, opCreate("/", nil, 0), opCreate("/", nil, proto.FlagEphemeral))
		}),
	check("create/dots", ">=3.0",
		"The names . and .. fail with BadArguments; other names with dots are allowed.",
		func(t *trial, k *conn) {
			k.want(proto.BadArguments, opCreate(t.path("."), nil, 0), opCreate(t.path(".."), nil, 0))
			for _, name := range []string{"...", ".a", "a.", "..a", "a..", "a.b"} {
				t.equal("the path", k.create(t.path(name), nil, 0), t.path(name))
			}
			t.equal("the path", k.create(t.path("."), nil, proto.FlagSequential), t.path(".0000000006"))
			t.equal("the path", k.create(t.path(".."), nil, proto.FlagSequential), t.path("..0000000007"))
		}),
	check("create/slash at the end", ">=3.0",
		"A path that ends in a slash has an empty name: create fails with NoNode if the parent before the slash does not exist, and otherwise with BadArguments. The name of a sequential znode may consist of just its number.",
		func(t *trial, k *conn) {
			k.want(proto.NoNode, opCreate(t.path("x/"), nil, 0))
			k.want(proto.NoNode, opCreate(t.path("x/"), nil, proto.FlagSequential))
			k.make(t.path("x"))
			k.want(proto.BadArguments, opCreate(t.path("x/"), nil, 0))
			t.equal("the path", k.create(t.path("x/"), nil, proto.FlagSequential), t.path("x/0000000000"))
		}),
	check("create/slashes in a row", ">=3.0",
		"An empty name inside a path is looked up like any other and never exists, so create fails with NoNode; directly below the root it fails with BadArguments.",
		func(t *trial, k *conn) {
			k.want(proto.NoNode, opCreate(t.path("/x"), nil, 0), opCreate(t.path("./x"), nil, 0))
			k.want(proto.NoNode, opCreate("//conform/x", nil, 0))
			k.want(proto.BadArguments, opCreate("//conform", nil, 0), opCreate("/.", nil, 0))
			k.want(proto.BadArguments, opCreate("/..", nil, 0))
		}),
	check("create/NUL", ">=3.0",
		"A path that contains the character NUL fails with BadArguments, wherever it is.",
		func(t *trial, k *conn) {
			for _, p := range []string{"\x00", t.path("x\x00"), t.path("\x00x"), t.path("no\x00ne/x")} {
				k.want(proto.BadArguments, opCreate(p, nil, 0))
			}
		}),
	check("create/forbidden characters", ">=3.5",
		"Names with control characters, private use characters, surrogates or specials fail with BadArguments.",
		func(t *trial, k *conn) {
			for _, r := range []rune{1, '\t', '\n', 0x1f, 0x7f, 0x80, 0x9f, 0xe000, 0xf8ff, 0xfff0, 0xfffd, 0xffff, 0x10000, 0x1f512, 0x10ffff} {
				for _, name := range []string{string(r), "a" + string(r), string(r) + "a"} {
					f := k.call(opCreate(t.path(name), nil, 0))
					t.ensure(f.Code == proto.BadArguments, "a name with U+%04X is answered %s, expected BadArguments", r, f.Code)
				}
			}
			t.equal("the children", len(k.children(t.path(""))), 0)
		}),
	check("create/allowed characters", ">=3.0",
		"Names may contain spaces, punctuation and letters of all scripts, and are returned unchanged.",
		func(t *trial, k *conn) {
			for _, name := range []string{" ", "a b", "~", "\\", `"%'`, "*?[]{}", "a:b@c,d;e", "\u00a0", "ß", "Ω≈ç", "日本語", "שלום", "\u1234\ufdd0x", "\uffef"} {
				t.equal("the path", k.create(t.path(name), nil, 0), t.path(name))
				k.stat(t.path(name))
			}
		}),
	check("create/not UTF-8", ">=3.5",
		"A path that is not valid UTF-8 fails with BadArguments.",
		func(t *trial, k *conn) {
			for _, name := range []string{"\xff", "a\xc3", "\xc3(", "\x80"} {
				k.want(proto.BadArguments, opCreate(t.path(name), nil, 0))
			}
		}),
	check("create/flags before all else", ">=3.5.4",
		"Invalid flags are reported before an invalid path, an invalid ACL and a missing parent.",
		func(t *trial, k *conn) {
			k.want(proto.BadArguments, opCreateACL(t.path("x"), nil, nil, 9), opCreate(t.path("a/b"), nil, 9))
			k.want(proto.BadArguments, opCreateACL(t.path("x\x00"), nil, nil, 9))
		}),
	check("create/slash before ACL", ">=3.0",
		"A path without a leading slash, or with NUL, is reported before an invalid ACL.",
		func(t *trial, k *conn) {
			k.want(proto.BadArguments, opCreateACL("x", nil, nil, 0), opCreateACL(t.path("\x00"), nil, nil, 0))
		}),
	check("create/ACL before the rest", ">=3.0",
		"An invalid ACL is reported before a missing parent, a missing permission, an invalid name, an existing znode and an ephemeral parent.",
		func(t *trial, k *conn) {
			k.createACL(t.path("closed"), nil, []proto.ACL{allowAll(proto.PermRead)}, 0)
			k.create(t.path("e"), nil, proto.FlagEphemeral)
			for _, p := range []string{"a/b", "closed/x", "..", "e", "e/x", "x"} {
				k.want(proto.InvalidACL, opCreateACL(t.path(p), nil, noACL, 0))
				bad := []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: "world", ID: "somebody"}}}
				k.want(proto.InvalidACL, opCreateACL(t.path(p), nil, bad, 0))
			}
		}),
	check("create/parent before name", ">=3.0",
		"A missing parent is reported before an invalid name.",
		func(t *trial, k *conn) {
			k.want(proto.NoNode, opCreate(t.path("a/.."), nil, 0), opCreate(t.path("a/b\n"), nil, 0))
		}),
	check("create/permission before name and existence", ">=3.0",
		"A missing permission to create below the parent is reported before an invalid name and before an existing znode.",
		func(t *trial, k *conn) {
			k.auth("digest", alice+":"+alice)
			k.createACL(t.path("p"), nil, []proto.ACL{allow(alice, proto.PermAll), allowAll(proto.PermAll &^ proto.PermCreate)}, 0)
			k.make(t.path("p/there"))
			other := t.connect()
			for _, p := range []string{"p/new", "p/..", "p/there", "p/"} {
				other.want(proto.NoAuth, opCreate(t.path(p), nil, 0))
				other.want(proto.NoAuth, opCreate(t.path(p), nil, proto.FlagEphemeralSeq))
			}
			k.want(proto.BadArguments, opCreate(t.path("p/.."), nil, 0))
			k.want(proto.NodeExists, opCreate(t.path("p/there"), nil, 0))
		}),
	check("create/permission before ephemeral parent", ">=3.0",
		"A missing permission to create, and an invalid name, are reported before an ephemeral parent.",
		func(t *trial, k *conn) {
			k.createACL(t.path("closed"), nil, []proto.ACL{allowAll(proto.PermRead)}, proto.FlagEphemeral)
			k.create(t.path("open"), nil, proto.FlagEphemeral)
			k.want(proto.NoAuth, opCreate(t.path("closed/x"), nil, 0))
			k.want(proto.BadArguments, opCreate(t.path("open/.."), nil, 0))
			k.want(proto.NoChildrenForEphemerals, opCreate(t.path("open/x"), nil, 0))
		}),
	check("create/permission of the parent", ">=3.0",
		"create needs only CREATE on the parent; the grandparent's ACL does not matter.",
		func(t *trial, k *conn) {
			k.make(t.path("g"))
			k.createACL(t.path("g/p"), nil, []proto.ACL{allowAll(proto.PermCreate | proto.PermDelete | proto.PermRead)}, 0)
			k.setACL(t.path("g"), []proto.ACL{allowAll(proto.PermDelete | proto.PermRead)}, -1)
			k.make(t.path("g/p/x"))
			k.delete(t.path("g/p/x"), -1)
			k.want(proto.NoAuth, opCreate(t.path("g/x"), nil, 0))
		}),
	check("create/sequence counts creates", ">=3.0",
		"The number of a sequential znode counts all creates below the parent, including non-sequential ones and those with other prefixes, and deletes do not lower it.",
		func(t *trial, k *conn) {
			k.make(t.path("plain"))
			k.create(t.path("ephemeral"), nil, proto.FlagEphemeral)
			t.equal("the third", k.create(t.path("a"), nil, proto.FlagSequential), t.path("a0000000002"))
			t.equal("the fourth", k.create(t.path("b"), nil, proto.FlagEphemeralSeq), t.path("b0000000003"))
			for _, p := range []string{"plain", "ephemeral", "a0000000002", "b0000000003"} {
				k.delete(t.path(p), -1)
			}
			t.equal("the fifth", k.create(t.path("a"), nil, proto.FlagSequential), t.path("a0000000004"))
		}),
	check("create/sequence and failures", ">=3.0",
		"A create that fails uses up no number, and neither does a create below a child.",
		func(t *trial, k *conn) {
			k.make(t.path("x"))
			k.want(proto.NodeExists, opCreate(t.path("x"), nil, 0))
			k.want(proto.InvalidACL, opCreateACL(t.path("y"), nil, noACL, proto.FlagSequential))
			k.make(t.path("x/y"))
			k.set(t.path("x"), nil, -1)
			t.equal("the second", k.create(t.path("s"), nil, proto.FlagSequential), t.path("s0000000001"))
		}),
	check("create/sequence of each parent", ">=3.0",
		"Each parent has its own count, which starts at 0 again when the parent is deleted and created again.",
		func(t *trial, k *conn) {
			for _, p := range []string{"p", "q", "p"} {
				k.make(t.path(p))
				for i := range 3 {
					got := k.create(t.path(p+"/s"), nil, proto.FlagSequential)
					t.equal("the path", got, fmt.Sprintf("%s%010d", t.path(p+"/s"), i))
					k.delete(got, -1)
				}
				k.delete(t.path(p), -1)
			}
		}),
	check("create/sequence number taken", ">=3.0",
		"A sequential create whose numbered name already exists fails with NodeExists.",
		func(t *trial, k *conn) {
			k.make(t.path("s0000000001"))
			k.want(proto.NodeExists, opCreate(t.path("s"), nil, proto.FlagSequential))
			k.make(t.path("other"))
			t.equal("the next", k.create(t.path("s"), nil, proto.FlagSequential), t.path("s0000000002"))
		}),
	check("create/sequence of two sessions", ">=3.0",
		"Sequential creates of several sessions share one count.",
		func(t *trial, a, b *conn) {
			for i := range 6 {
				k := a
				if i%3 == 1 {
					k = b
				}
				t.equal("the path", k.create(t.path("s"), nil, proto.FlagEphemeralSeq), fmt.Sprintf("%s%010d", t.path("s"), i))
			}
		}),
	check("create/parent's Stat", ">=3.0",
		"A create increments its parent's cversion and numChildren and sets its pzxid; nothing else in the parent changes, and nothing in the grandparent.",
		func(t *trial, k *conn) {
			k.create(t.path("p"), []byte("data"), 0)
			grandparent, want := k.stat(t.path("")), k.stat(t.path("p"))
			for i, flags := range []int32{0, proto.FlagEphemeral, proto.FlagSequential} {
				f := k.do(opCreate(t.path(fmt.Sprintf("p/%d", i)), nil, flags))
				want.Cversion++
				want.NumChildren++
				want.Pzxid = f.Zxid
				t.equal("the parent's Stat", k.stat(t.path("p")), want)
			}
			t.equal("the grandparent's Stat", k.stat(t.path("")), grandparent)
		}),
	check("create/failure leaves the parent", ">=3.0",
		"A create that fails does not change the parent's Stat.",
		func(t *trial, k *conn) {
			k.make(t.path("p"), t.path("p/x"))
			want := k.stat(t.path("p"))
			k.want(proto.NodeExists, opCreate(t.path("p/x"), nil, 0))
			k.want(proto.BadArguments, opCreate(t.path("p/.."), nil, 0))
			k.want(proto.InvalidACL, opCreateACL(t.path("p/y"), nil, noACL, 0))
			t.equal("the parent's Stat", k.stat(t.path("p")), want)
		}),
	check("create/seen by others", ">=3.5",
		"Once a create is answered, other sessions see the znode after a sync, with the same Stat and data.",
		func(t *trial, a, b *conn) {
			for i := range 10 {
				path, stat := a.create2(t.path("s"), fmt.Append(nil, i), proto.FlagSequential)
				b.do(opSync(path))
				data, seen := b.get(path)
				t.equal("the data", string(data), fmt.Sprint(i))
				t.equal("the Stat", seen, stat)
			}
		}),
}

// newStat returns the Stat of a new persistent znode.
func newStat(zxid, ctime int64, length int32) proto.Stat {
	return proto.Stat{Czxid: zxid, Mzxid: zxid, Pzxid: zxid, Ctime: ctime, Mtime: ctime, DataLength: length}
}

// isNew checks that f has the path and the Stat of a new persistent znode, and that
// exists returns the same Stat.
func (k *conn) isNew(f *wire.Frame, path string, length int32) {
	r := f.Body.(*proto.PathStatReply)
	k.t.equal("the path", r.Path, path)
	k.t.ensure(r.Stat.Ctime > 0, "ctime is %d", r.Stat.Ctime)
	k.t.equal("the Stat", r.Stat, newStat(f.Zxid, r.Stat.Ctime, length))
	k.t.equal("the Stat of exists", k.stat(path), r.Stat)
}
