package conform

import (
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

var createChecks = []Check{
	{
		Name: "create/persistent",
		Says: "create returns only the path. The Stat of the new znode has the zxid of its creation as czxid, mzxid and pzxid, the same time as ctime and mtime, and zeros.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			f := k.do(proto.OpCreate, &proto.CreateRequest{Path: t.path("x"), Data: []byte("data"), ACL: proto.OpenACL})
			t.equal("the path", f.Body, proto.Record(&proto.PathReply{Path: t.path("x")}))
			stat := k.stat(t.path("x"))
			t.ensure(stat.Ctime > 0, "ctime is %d", stat.Ctime)
			t.equal("the Stat", stat, newStat(f.Zxid, stat.Ctime, 4))
			k.closeSession()
			t.equal("the Stat after the session's end", t.connect().stat(t.path("x")), stat)
		},
	},
	{
		Name: "create/ephemeral",
		Says: "An ephemeral znode has its session's id as ephemeralOwner.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, proto.FlagEphemeral)
			stat := k.stat(t.path("x"))
			want := newStat(stat.Czxid, stat.Ctime, 0)
			want.EphemeralOwner = k.Session.SessionID
			t.equal("the Stat", stat, want)
		},
	},
	{
		Name: "create/sequential",
		Says: "A sequential znode's path ends in ten digits, the number of creates below its parent so far, and the reply has the whole path.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			for i := range 12 {
				got := k.create(t.path("x-"), nil, proto.FlagSequential)
				t.equal("the path", got, fmt.Sprintf("%s%010d", t.path("x-"), i))
				t.equal("ephemeralOwner", k.stat(got).EphemeralOwner, int64(0))
			}
			k.missing(t.path("x-"))
		},
	},
	{
		Name: "create/ephemeral sequential",
		Says: "A znode can be both ephemeral and sequential, as the lock recipe needs it.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			got := k.create(t.path("x-"), nil, proto.FlagEphemeralSeq)
			t.equal("the path", got, t.path("x-0000000000"))
			t.equal("ephemeralOwner", k.stat(got).EphemeralOwner, k.Session.SessionID)
			k.closeSession()
			t.connect().missing(got)
		},
	},
	{
		Name: "create/container",
		Says: "createContainer returns the path and the Stat, which does not differ from that of a persistent znode.",
		In:   ">=3.5.3",
		run: func(t *trial) {
			k := t.connect()
			f := k.do(proto.OpCreateContainer, newZnode(t.path("x"), proto.FlagContainer))
			k.isNew(f, t.path("x"), 0)
		},
	},
	{
		Name:  "create/ttl",
		Says:  "createTTL returns the path and the Stat, which does not differ from that of a persistent znode.",
		In:    ">=3.5.4",
		Needs: []Feature{TTL},
		run: func(t *trial) {
			k := t.connect()
			k.isNew(k.do(proto.OpCreateTTL, newTTL(t.path("x"), proto.FlagTTL, 1e6)), t.path("x"), 0)
		},
	},
	{
		Name:  "create/ttl sequential",
		Says:  "A TTL znode can be sequential.",
		In:    ">=3.5.4",
		Needs: []Feature{TTL},
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("other"), nil, 0)
			k.isNew(k.do(proto.OpCreateTTL, newTTL(t.path("x-"), proto.FlagTTLSequential, 1e6)), t.path("x-0000000001"), 0)
		},
	},
	{
		Name:  "create/ttl bounds",
		Says:  "A TTL of 1 ms and one of 2^40-1 ms are accepted; 0, negative and longer ones fail with BadArguments.",
		In:    ">=3.5.4",
		Needs: []Feature{TTL},
		run: func(t *trial) {
			k := t.connect()
			for _, ttl := range []int64{0, -1, -2, proto.MaxTTL + 1, 1 << 62, -1 << 63} {
				k.want(proto.BadArguments, proto.OpCreateTTL, newTTL(t.path("x"), proto.FlagTTL, ttl))
			}
			k.missing(t.path("x"))
			k.do(proto.OpCreateTTL, newTTL(t.path("x"), proto.FlagTTL, proto.MaxTTL))
			k.do(proto.OpCreateTTL, newTTL(t.path("y"), proto.FlagTTL, 1))
			k.call(proto.OpDelete, &proto.PathVersion{Path: t.path("y"), Version: -1}) // unless the reaper was faster
		},
	},
	{
		Name:  "create/ttl without TTL mode",
		Says:  "createTTL with a TTL and the flags of another mode fails with BadArguments.",
		In:    ">=3.5.4",
		Needs: []Feature{TTL},
		run: func(t *trial) {
			k := t.connect()
			// Not with a TTL of -1: ZooKeeper would accept it and then crash.
			for flags := proto.FlagPersistent; flags <= proto.FlagContainer; flags++ {
				k.want(proto.BadArguments, proto.OpCreateTTL, newTTL(t.path("x"), flags, 1000))
			}
			k.missing(t.path("x"))
		},
	},
	{
		Name:  "create/TTL mode without ttl",
		Says:  "The flags of TTL znodes fail with BadArguments in operations that carry no TTL.",
		In:    ">=3.5.4",
		Needs: []Feature{TTL},
		run: func(t *trial) {
			k := t.connect()
			for _, op := range []proto.OpCode{proto.OpCreate, proto.OpCreate2, proto.OpCreateContainer} {
				k.want(proto.BadArguments, op, newZnode(t.path("x"), proto.FlagTTL))
				k.want(proto.BadArguments, op, newZnode(t.path("x"), proto.FlagTTLSequential))
			}
		},
	},
	{
		Name: "create/create2",
		Says: "create2 is like create, but also returns the Stat.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			k.isNew(k.do(proto.OpCreate2, &proto.CreateRequest{Path: t.path("x"), Data: []byte("12345"), ACL: proto.OpenACL}), t.path("x"), 5)
			path, stat := k.create2(t.path("y"), nil, proto.FlagEphemeralSeq)
			t.equal("the path", path, t.path("y0000000001"))
			t.equal("ephemeralOwner", stat.EphemeralOwner, k.Session.SessionID)
			t.equal("the Stat of exists", k.stat(path), stat)
		},
	},
	{
		Name: "create/container flag in create",
		Says: "The operation decides the kind: create and create2 with the flag of a container make a persistent znode.",
		In:   ">=3.5.3",
		run: func(t *trial) {
			k := t.connect()
			t.equal("the path", k.create(t.path("x"), nil, proto.FlagContainer), t.path("x"))
			k.create2(t.path("y"), nil, proto.FlagContainer)
			t.equal("ephemeralOwner", k.stat(t.path("x")).EphemeralOwner, int64(0))
		},
	},
	{
		Name: "create/other flags in createContainer",
		Says: "The operation decides the kind: createContainer with the ephemeral flag does not make an ephemeral znode, but the sequential flag adds a number.",
		In:   ">=3.5.3",
		run: func(t *trial) {
			k := t.connect()
			k.isNew(k.do(proto.OpCreateContainer, newZnode(t.path("a"), proto.FlagPersistent)), t.path("a"), 0)
			k.isNew(k.do(proto.OpCreateContainer, newZnode(t.path("b"), proto.FlagEphemeral)), t.path("b"), 0)
			k.isNew(k.do(proto.OpCreateContainer, newZnode(t.path("c"), proto.FlagSequential)), t.path("c0000000002"), 0)
			k.closeSession()
			t.equal("the children", t.connect().children(t.path("")), []string{"a", "b", "c0000000002"})
		},
	},
	{
		Name: "create/flags",
		Says: "Flags that belong to no known mode fail with BadArguments.",
		In:   ">=3.5.4",
		run: func(t *trial) {
			k := t.connect()
			for _, op := range []proto.OpCode{proto.OpCreate, proto.OpCreate2, proto.OpCreateContainer} {
				for _, flags := range []int32{-1, 7, 8, 1 << 30, -1 << 31} {
					k.want(proto.BadArguments, op, newZnode(t.path("x"), flags))
				}
			}
			k.missing(t.path("x"))
		},
	},
	{
		Name: "create/no parent",
		Says: "A create whose parent does not exist fails with NoNode.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			for _, flags := range []int32{0, proto.FlagEphemeral, proto.FlagSequential} {
				k.want(proto.NoNode, proto.OpCreate, newZnode(t.path("a/b"), flags))
			}
			k.missing(t.path("a"))
		},
	},
	{
		Name: "create/exists",
		Says: "A create of an existing path fails with NodeExists, whatever the kinds of the znodes, and the existing znode stays unchanged.",
		In:   ">=3.5.3",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), []byte("first"), 0)
			k.create(t.path("e"), nil, proto.FlagEphemeral)
			stat := k.stat(t.path("x"))
			for _, op := range []proto.OpCode{proto.OpCreate, proto.OpCreate2, proto.OpCreateContainer} {
				k.want(proto.NodeExists, op, newZnode(t.path("x"), 0))
				k.want(proto.NodeExists, op, newZnode(t.path("e"), 0))
			}
			k.want(proto.NodeExists, proto.OpCreate, newZnode(t.path("x"), proto.FlagEphemeral))
			data, after := k.get(t.path("x"))
			t.equal("the data", string(data), "first")
			t.equal("the Stat", after, stat)
		},
	},
	{
		Name: "create/below an ephemeral",
		Says: "An ephemeral znode can have no children, ephemeral or not: create fails with NoChildrenForEphemerals.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("e"), nil, proto.FlagEphemeral)
			for _, flags := range []int32{0, proto.FlagEphemeral, proto.FlagSequential, proto.FlagEphemeralSeq} {
				k.want(proto.NoChildrenForEphemerals, proto.OpCreate, newZnode(t.path("e/x"), flags))
			}
			stat := k.stat(t.path("e"))
			t.equal("cversion", stat.Cversion, int32(0))
		},
	},
	{
		Name:  "create/below containers and TTL znodes",
		Says:  "Containers and TTL znodes can have children of any kind.",
		In:    ">=3.5.4",
		Needs: []Feature{TTL},
		run: func(t *trial) {
			k := t.connect()
			k.do(proto.OpCreateContainer, newZnode(t.path("c"), proto.FlagContainer))
			k.do(proto.OpCreateTTL, newTTL(t.path("t"), proto.FlagTTL, 1e6))
			for _, p := range []string{"c", "t"} {
				k.create(t.path(p+"/p"), nil, 0)
				k.create(t.path(p+"/e"), nil, proto.FlagEphemeral)
				k.do(proto.OpCreateContainer, newZnode(t.path(p+"/c"), proto.FlagContainer))
				t.equal("numChildren", k.stat(t.path(p)).NumChildren, int32(3))
			}
		},
	},
	{
		Name: "create/no slash",
		Says: "A path that does not start with a slash, and the empty path, fail with BadArguments.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			for _, p := range []string{"", "x", "conform.x"} {
				k.want(proto.BadArguments, proto.OpCreate, newZnode(p, 0))
				k.want(proto.BadArguments, proto.OpCreate, newZnode(p, proto.FlagSequential))
			}
		},
	},
	{
		Name: "create/root",
		Says: "A create of the root fails with NodeExists.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.want(proto.NodeExists, proto.OpCreate, newZnode("/", 0))
			k.want(proto.NodeExists, proto.OpCreate, newZnode("/", proto.FlagEphemeral))
		},
	},
	{
		Name: "create/dots",
		Says: "The names . and .. fail with BadArguments; other names with dots are allowed.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.want(proto.BadArguments, proto.OpCreate, newZnode(t.path("."), 0))
			k.want(proto.BadArguments, proto.OpCreate, newZnode(t.path(".."), 0))
			for _, name := range []string{"...", ".a", "a.", "..a", "a..", "a.b"} {
				t.equal("the path", k.create(t.path(name), nil, 0), t.path(name))
			}
			t.equal("the path", k.create(t.path("."), nil, proto.FlagSequential), t.path(".0000000006"))
			t.equal("the path", k.create(t.path(".."), nil, proto.FlagSequential), t.path("..0000000007"))
		},
	},
	{
		Name: "create/slash at the end",
		Says: "A path that ends in a slash has an empty name: create fails with NoNode if the parent before the slash does not exist, and otherwise with BadArguments. The name of a sequential znode may consist of just its number.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.want(proto.NoNode, proto.OpCreate, newZnode(t.path("x/"), 0))
			k.want(proto.NoNode, proto.OpCreate, newZnode(t.path("x/"), proto.FlagSequential))
			k.create(t.path("x"), nil, 0)
			k.want(proto.BadArguments, proto.OpCreate, newZnode(t.path("x/"), 0))
			t.equal("the path", k.create(t.path("x/"), nil, proto.FlagSequential), t.path("x/0000000000"))
		},
	},
	{
		Name: "create/slashes in a row",
		Says: "An empty name inside a path is looked up like any other and never exists, so create fails with NoNode; directly below the root it fails with BadArguments.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.want(proto.NoNode, proto.OpCreate, newZnode(t.path("/x"), 0))
			k.want(proto.NoNode, proto.OpCreate, newZnode(t.path("./x"), 0))
			k.want(proto.NoNode, proto.OpCreate, newZnode("//conform/x", 0))
			k.want(proto.BadArguments, proto.OpCreate, newZnode("//conform", 0))
			k.want(proto.BadArguments, proto.OpCreate, newZnode("/.", 0))
			k.want(proto.BadArguments, proto.OpCreate, newZnode("/..", 0))
		},
	},
	{
		Name: "create/NUL",
		Says: "A path that contains the character NUL fails with BadArguments, wherever it is.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			for _, p := range []string{"\x00", t.path("x\x00"), t.path("\x00x"), t.path("no\x00ne/x")} {
				k.want(proto.BadArguments, proto.OpCreate, newZnode(p, 0))
			}
		},
	},
	{
		Name: "create/forbidden characters",
		Says: "Names with control characters, private use characters, surrogates or specials fail with BadArguments.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			for _, r := range []rune{1, '\t', '\n', 0x1f, 0x7f, 0x80, 0x9f, 0xe000, 0xf8ff, 0xfff0, 0xfffd, 0xffff, 0x10000, 0x1f512, 0x10ffff} {
				for _, name := range []string{string(r), "a" + string(r), string(r) + "a"} {
					f := k.call(proto.OpCreate, newZnode(t.path(name), 0))
					t.ensure(f.Code == proto.BadArguments, "a name with U+%04X is answered %s, expected BadArguments", r, f.Code)
				}
			}
			t.equal("the children", len(k.children(t.path(""))), 0)
		},
	},
	{
		Name: "create/allowed characters",
		Says: "Names may contain spaces, punctuation and letters of all scripts, and are returned unchanged.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			for _, name := range []string{" ", "a b", "~", "\\", `"%'`, "*?[]{}", "a:b@c,d;e", "\u00a0", "ß", "Ω≈ç", "日本語", "שלום", "\u1234\ufdd0x", "\uffef"} {
				t.equal("the path", k.create(t.path(name), nil, 0), t.path(name))
				k.stat(t.path(name))
			}
		},
	},
	{
		Name: "create/not UTF-8",
		Says: "A path that is not valid UTF-8 fails with BadArguments.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			for _, name := range []string{"\xff", "a\xc3", "\xc3(", "\x80"} {
				k.want(proto.BadArguments, proto.OpCreate, newZnode(t.path(name), 0))
			}
		},
	},
	{
		Name: "create/long name",
		Says: "A name may be as long as a frame allows.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			name := strings.Repeat("n", 100_000)
			k.create(t.path(name), []byte("x"), 0)
			t.equal("the children", k.children(t.path("")), []string{name})
			data, _ := k.get(t.path(name))
			t.equal("the data", string(data), "x")
		},
	},
	{
		Name: "create/ACL",
		Says: "A znode has the ACL given to its create, entry by entry, and not its parent's.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.auth("digest", alice+":"+alice)
			acl := []proto.ACL{allowAll(proto.PermRead | proto.PermCreate), allow(alice, proto.PermAll), allow(bob, proto.PermWrite)}
			k.createACL(t.path("x"), nil, acl, 0)
			k.create(t.path("x/y"), nil, 0)
			got, stat := k.getACL(t.path("x"))
			t.equal("the ACL", got, acl)
			t.equal("the Stat", stat, k.stat(t.path("x")))
			got, _ = k.getACL(t.path("x/y"))
			t.equal("the child's ACL", got, proto.OpenACL)
		},
	},
	{
		Name: "create/empty ACL",
		Says: "An empty ACL fails with InvalidACL.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.want(proto.InvalidACL, proto.OpCreate, &proto.CreateRequest{Path: t.path("x"), ACL: noACL})
			k.missing(t.path("x"))
		},
	},
	{
		Name: "create/flags before all else",
		Says: "Invalid flags are reported before an invalid path, an invalid ACL and a missing parent.",
		In:   ">=3.5.4",
		run: func(t *trial) {
			k := t.connect()
			k.want(proto.BadArguments, proto.OpCreate, &proto.CreateRequest{Path: t.path("x"), Flags: 9})
			k.want(proto.BadArguments, proto.OpCreate, &proto.CreateRequest{Path: t.path("a/b"), ACL: proto.OpenACL, Flags: 9})
			k.want(proto.BadArguments, proto.OpCreate, &proto.CreateRequest{Path: t.path("x\x00"), Flags: 9})
		},
	},
	{
		Name: "create/slash before ACL",
		Says: "A path without a leading slash, or with NUL, is reported before an invalid ACL.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.want(proto.BadArguments, proto.OpCreate, &proto.CreateRequest{Path: "x"})
			k.want(proto.BadArguments, proto.OpCreate, &proto.CreateRequest{Path: t.path("\x00")})
		},
	},
	{
		Name: "create/ACL before the rest",
		Says: "An invalid ACL is reported before a missing parent, a missing permission, an invalid name, an existing znode and an ephemeral parent.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.createACL(t.path("closed"), nil, []proto.ACL{allowAll(proto.PermRead)}, 0)
			k.create(t.path("e"), nil, proto.FlagEphemeral)
			for _, p := range []string{"a/b", "closed/x", "..", "e", "e/x", "x"} {
				k.want(proto.InvalidACL, proto.OpCreate, &proto.CreateRequest{Path: t.path(p), ACL: noACL})
				bad := []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: "world", ID: "somebody"}}}
				k.want(proto.InvalidACL, proto.OpCreate, &proto.CreateRequest{Path: t.path(p), ACL: bad})
			}
		},
	},
	{
		Name: "create/parent before name",
		Says: "A missing parent is reported before an invalid name.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.want(proto.NoNode, proto.OpCreate, newZnode(t.path("a/.."), 0))
			k.want(proto.NoNode, proto.OpCreate, newZnode(t.path("a/b\n"), 0))
		},
	},
	{
		Name: "create/permission before name and existence",
		Says: "A missing permission to create below the parent is reported before an invalid name and before an existing znode.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.auth("digest", alice+":"+alice)
			k.createACL(t.path("p"), nil, []proto.ACL{allow(alice, proto.PermAll), allowAll(proto.PermAll &^ proto.PermCreate)}, 0)
			k.create(t.path("p/there"), nil, 0)
			other := t.connect()
			for _, p := range []string{"p/new", "p/..", "p/there", "p/"} {
				other.want(proto.NoAuth, proto.OpCreate, newZnode(t.path(p), 0))
				other.want(proto.NoAuth, proto.OpCreate, newZnode(t.path(p), proto.FlagEphemeralSeq))
			}
			k.want(proto.BadArguments, proto.OpCreate, newZnode(t.path("p/.."), 0))
			k.want(proto.NodeExists, proto.OpCreate, newZnode(t.path("p/there"), 0))
		},
	},
	{
		Name: "create/permission before ephemeral parent",
		Says: "A missing permission to create, and an invalid name, are reported before an ephemeral parent.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.createACL(t.path("closed"), nil, []proto.ACL{allowAll(proto.PermRead)}, proto.FlagEphemeral)
			k.create(t.path("open"), nil, proto.FlagEphemeral)
			k.want(proto.NoAuth, proto.OpCreate, newZnode(t.path("closed/x"), 0))
			k.want(proto.BadArguments, proto.OpCreate, newZnode(t.path("open/.."), 0))
			k.want(proto.NoChildrenForEphemerals, proto.OpCreate, newZnode(t.path("open/x"), 0))
		},
	},
	{
		Name: "create/permission of the parent",
		Says: "create needs only CREATE on the parent; the grandparent's ACL does not matter.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("g"), nil, 0)
			k.createACL(t.path("g/p"), nil, []proto.ACL{allowAll(proto.PermCreate | proto.PermDelete | proto.PermRead)}, 0)
			k.setACL(t.path("g"), []proto.ACL{allowAll(proto.PermDelete | proto.PermRead)}, -1)
			k.create(t.path("g/p/x"), nil, 0)
			k.delete(t.path("g/p/x"), -1)
			k.want(proto.NoAuth, proto.OpCreate, newZnode(t.path("g/x"), 0))
		},
	},
	{
		Name: "create/sequence counts creates",
		Says: "The number of a sequential znode counts all creates below the parent, including non-sequential ones and those with other prefixes, and deletes do not lower it.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("plain"), nil, 0)
			k.create(t.path("ephemeral"), nil, proto.FlagEphemeral)
			t.equal("the third", k.create(t.path("a"), nil, proto.FlagSequential), t.path("a0000000002"))
			t.equal("the fourth", k.create(t.path("b"), nil, proto.FlagEphemeralSeq), t.path("b0000000003"))
			for _, p := range []string{"plain", "ephemeral", "a0000000002", "b0000000003"} {
				k.delete(t.path(p), -1)
			}
			t.equal("the fifth", k.create(t.path("a"), nil, proto.FlagSequential), t.path("a0000000004"))
		},
	},
	{
		Name: "create/sequence and failures",
		Says: "A create that fails uses up no number, and neither does a create below a child.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, 0)
			k.want(proto.NodeExists, proto.OpCreate, newZnode(t.path("x"), 0))
			k.want(proto.InvalidACL, proto.OpCreate, &proto.CreateRequest{Path: t.path("y"), ACL: noACL, Flags: proto.FlagSequential})
			k.create(t.path("x/y"), nil, 0)
			k.set(t.path("x"), nil, -1)
			t.equal("the second", k.create(t.path("s"), nil, proto.FlagSequential), t.path("s0000000001"))
		},
	},
	{
		Name: "create/sequence of each parent",
		Says: "Each parent has its own count, which starts at 0 again when the parent is deleted and created again.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			for _, p := range []string{"p", "q", "p"} {
				k.create(t.path(p), nil, 0)
				for i := range 3 {
					got := k.create(t.path(p+"/s"), nil, proto.FlagSequential)
					t.equal("the path", got, fmt.Sprintf("%s%010d", t.path(p+"/s"), i))
					k.delete(got, -1)
				}
				k.delete(t.path(p), -1)
			}
		},
	},
	{
		Name: "create/sequence number taken",
		Says: "A sequential create whose numbered name already exists fails with NodeExists.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("s0000000001"), nil, 0)
			k.want(proto.NodeExists, proto.OpCreate, newZnode(t.path("s"), proto.FlagSequential))
			k.create(t.path("other"), nil, 0)
			t.equal("the next", k.create(t.path("s"), nil, proto.FlagSequential), t.path("s0000000002"))
		},
	},
	{
		Name: "create/sequence of two sessions",
		Says: "Sequential creates of several sessions share one count.",
		In:   ">=3.0",
		run: func(t *trial) {
			a, b := t.connect(), t.connect()
			for i := range 6 {
				k := a
				if i%3 == 1 {
					k = b
				}
				t.equal("the path", k.create(t.path("s"), nil, proto.FlagEphemeralSeq), fmt.Sprintf("%s%010d", t.path("s"), i))
			}
		},
	},
	{
		Name: "create/parent's Stat",
		Says: "A create increments its parent's cversion and numChildren and sets its pzxid; nothing else in the parent changes, and nothing in the grandparent.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("p"), []byte("data"), 0)
			grandparent, want := k.stat(t.path("")), k.stat(t.path("p"))
			for i, flags := range []int32{0, proto.FlagEphemeral, proto.FlagSequential} {
				f := k.do(proto.OpCreate, newZnode(t.path(fmt.Sprintf("p/%d", i)), flags))
				want.Cversion++
				want.NumChildren++
				want.Pzxid = f.Zxid
				t.equal("the parent's Stat", k.stat(t.path("p")), want)
			}
			t.equal("the grandparent's Stat", k.stat(t.path("")), grandparent)
		},
	},
	{
		Name: "create/failure leaves the parent",
		Says: "A create that fails does not change the parent's Stat.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("p"), nil, 0)
			k.create(t.path("p/x"), nil, 0)
			want := k.stat(t.path("p"))
			k.want(proto.NodeExists, proto.OpCreate, newZnode(t.path("p/x"), 0))
			k.want(proto.BadArguments, proto.OpCreate, newZnode(t.path("p/.."), 0))
			k.want(proto.InvalidACL, proto.OpCreate, &proto.CreateRequest{Path: t.path("p/y"), ACL: noACL})
			t.equal("the parent's Stat", k.stat(t.path("p")), want)
		},
	},
	{
		Name: "create/seen by others",
		Says: "Once a create is answered, other sessions see the znode after a sync, with the same Stat and data.",
		In:   ">=3.5",
		run: func(t *trial) {
			a, b := t.connect(), t.connect()
			for i := range 10 {
				path, stat := a.create2(t.path("s"), fmt.Append(nil, i), proto.FlagSequential)
				b.do(proto.OpSync, &proto.Path{Path: path})
				data, seen := b.get(path)
				t.equal("the data", string(data), fmt.Sprint(i))
				t.equal("the Stat", seen, stat)
			}
		},
	},
}

// newTTL returns the request for a TTL znode.
func newTTL(path string, flags int32, ttl int64) *proto.CreateTTLRequest {
	return &proto.CreateTTLRequest{CreateRequest: *newZnode(path, flags), TTL: ttl}
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
