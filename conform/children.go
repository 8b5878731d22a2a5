package conform

import (
	"fmt"
	"slices"

	"github.com/lockkeeper/lockkeeper/proto"
)

var childrenChecks = []Check{
	{
		Name: "children/names",
		Says: "getChildren returns the names of the direct children, without their path, in any order.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			for _, name := range []string{"a", "b", "b/c", "b/c/d", "ä"} {
				k.create(t.path(name), nil, 0)
			}
			k.create(t.path("e"), nil, proto.FlagEphemeral)
			t.equal("the children", k.children(t.path("")), []string{"a", "b", "e", "ä"})
			t.equal("the children of b", k.children(t.path("b")), []string{"c"})
		},
	},
	{
		Name: "children/none",
		Says: "For a znode without children the list is empty, not null.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			f := k.do(proto.OpGetChildren, &proto.PathWatch{Path: t.path("")})
			t.equal("the body", f.Payload[16:], []byte{0, 0, 0, 0})
			k.create(t.path("e"), nil, proto.FlagEphemeral)
			f = k.do(proto.OpGetChildren, &proto.PathWatch{Path: t.path("e")})
			t.equal("the body for an ephemeral", f.Payload[16:], []byte{0, 0, 0, 0})
		},
	},
	{
		Name: "children/getChildren2",
		Says: "getChildren2 returns the names and the parent's Stat.",
		In:   ">=3.3",
		run: func(t *trial) {
			k := t.connect()
			for i := range 3 {
				k.create(t.path(fmt.Sprint(i)), nil, 0)
				r := k.do(proto.OpGetChildren2, &proto.PathWatch{Path: t.path("")}).Body.(*proto.Children2Reply)
				slices.Sort(r.Names)
				t.equal("the names", r.Names, []string{"0", "1", "2"}[:i+1])
				t.equal("the Stat", r.Stat, k.stat(t.path("")))
				t.equal("numChildren", r.Stat.NumChildren, int32(i+1))
			}
		},
	},
	{
		Name: "children/missing",
		Says: "getChildren and getChildren2 of a znode that does not exist fail with NoNode.",
		In:   ">=3.3",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("x"), nil, 0)
			for _, p := range append(t.sloppy(), t.path("y"), t.path("a/b"), t.path("y\x00")) {
				k.want(proto.NoNode, proto.OpGetChildren, &proto.PathWatch{Path: p})
				k.want(proto.NoNode, proto.OpGetChildren2, &proto.PathWatch{Path: p})
			}
		},
	},
	{
		Name: "children/permission",
		Says: "getChildren and getChildren2 need READ on the znode, but no permission on the children.",
		In:   ">=3.3",
		run: func(t *trial) {
			k := t.connect()
			k.auth("digest", alice+":"+alice)
			k.createACL(t.path("closed"), nil, []proto.ACL{allow(alice, proto.PermAll), allowAll(proto.PermAll &^ proto.PermRead)}, 0)
			k.createACL(t.path("open"), nil, []proto.ACL{allow(alice, proto.PermAll), allowAll(proto.PermRead)}, 0)
			k.createACL(t.path("open/x"), nil, []proto.ACL{allow(alice, proto.PermAll)}, 0)
			other := t.connect()
			for _, op := range []proto.OpCode{proto.OpGetChildren, proto.OpGetChildren2} {
				other.want(proto.NoAuth, op, &proto.PathWatch{Path: t.path("closed")})
				other.want(proto.NoNode, op, &proto.PathWatch{Path: t.path("closed/none")})
				other.do(op, &proto.PathWatch{Path: t.path("open")})
			}
			t.equal("the children", other.children(t.path("open")), []string{"x"})
		},
	},
	{
		Name: "children/root",
		Says: "The root has the child zookeeper, which has the children config and quota; the empty path means the root too.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			t.ensure(slices.Contains(k.children("/"), "zookeeper"), "the root has no child zookeeper")
			t.ensure(slices.Contains(k.children(""), "zookeeper"), "the empty path has no child zookeeper")
			names := k.children("/zookeeper")
			t.ensure(slices.Contains(names, "config") && slices.Contains(names, "quota"), "the children of /zookeeper are %v", names)
		},
	},
	{
		Name: "children/cversion",
		Says: "cversion counts the creates and deletes of direct children, and numChildren is the number of children.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("p"), nil, 0)
			creates, deletes := 0, 0
			for _, step := range []string{"+a", "+b", "-a", "+a", "+c", "-b", "-c", "-a", "+d"} {
				p := t.path("p/" + step[1:])
				if step[0] == '+' {
					k.create(p, nil, 0)
					creates++
				} else {
					k.delete(p, -1)
					deletes++
				}
				stat := k.stat(t.path("p"))
				t.equal("cversion", stat.Cversion, int32(creates+deletes))
				t.equal("numChildren", stat.NumChildren, int32(creates-deletes))
			}
		},
	},
	{
		Name: "children/cversion starts anew",
		Says: "A znode that is deleted and created again has cversion 0.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			for range 2 {
				k.create(t.path("p"), nil, 0)
				t.equal("cversion", k.stat(t.path("p")).Cversion, int32(0))
				k.create(t.path("p/x"), nil, 0)
				k.delete(t.path("p/x"), -1)
				t.equal("cversion", k.stat(t.path("p")).Cversion, int32(2))
				k.delete(t.path("p"), -1)
			}
		},
	},
	{
		Name: "children/pzxid",
		Says: "pzxid is the zxid of the last create or delete of a direct child. Changes to a child's data or children, or to the znode's own data or ACL, do not affect it.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("p"), nil, 0)
			t.equal("pzxid of a new znode", k.stat(t.path("p")).Pzxid, k.stat(t.path("p")).Czxid)
			pzxid := k.do(proto.OpCreate, newZnode(t.path("p/x"), 0)).Zxid
			t.equal("pzxid after a create", k.stat(t.path("p")).Pzxid, pzxid)
			k.create(t.path("p/x/y"), nil, 0)
			k.set(t.path("p/x"), nil, -1)
			k.setACL(t.path("p/x"), proto.OpenACL, -1)
			k.set(t.path("p"), nil, -1)
			k.setACL(t.path("p"), proto.OpenACL, -1)
			k.delete(t.path("p/x/y"), -1)
			t.equal("pzxid after other changes", k.stat(t.path("p")).Pzxid, pzxid)
			pzxid = k.delete(t.path("p/x"), -1).Zxid
			t.equal("pzxid after a delete", k.stat(t.path("p")).Pzxid, pzxid)
		},
	},
	{
		Name: "children/end of a session",
		Says: "Ephemeral znodes deleted at the end of their session count as deletes in their parents' cversion and pzxid.",
		In:   ">=3.0",
		run: func(t *trial) {
			a, b := t.connect(), t.connect()
			b.create(t.path("p"), nil, 0)
			for range 4 {
				a.create(t.path("p/e"), nil, proto.FlagEphemeralSeq)
			}
			zxid := a.closeSession().Zxid
			stat := b.stat(t.path("p"))
			t.equal("cversion", stat.Cversion, int32(8))
			t.equal("numChildren", stat.NumChildren, int32(0))
			t.equal("pzxid", stat.Pzxid, zxid)
		},
	},
	{
		Name: "children/getAllChildrenNumber",
		Says: "getAllChildrenNumber counts all znodes below a znode, at any depth.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			number := func(p string) int32 {
				return k.do(proto.OpGetAllChildrenNumber, &proto.Path{Path: t.path(p)}).Body.(*proto.IntReply).N
			}
			for _, p := range []string{"a", "a/b", "a/b/c", "a/d", "aa", "a!"} {
				k.create(t.path(p), nil, 0)
			}
			k.create(t.path("a/e"), nil, proto.FlagEphemeral)
			t.equal("the number", number(""), int32(7))
			t.equal("the number of a", number("a"), int32(4))
			t.equal("the number of a leaf", number("a/b/c"), int32(0))
			k.delete(t.path("a/b/c"), -1)
			t.equal("the number after a delete", number(""), int32(6))
		},
	},
	{
		Name: "children/getAllChildrenNumber refused",
		Says: "getAllChildrenNumber of a znode that does not exist fails with NoNode; without READ on the znode it fails with NoAuth.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			k.createACL(t.path("x"), nil, []proto.ACL{allowAll(proto.PermAll &^ proto.PermRead)}, 0)
			k.want(proto.NoNode, proto.OpGetAllChildrenNumber, &proto.Path{Path: t.path("y")})
			k.want(proto.NoNode, proto.OpGetAllChildrenNumber, &proto.Path{Path: t.path("x/y")})
			k.want(proto.NoAuth, proto.OpGetAllChildrenNumber, &proto.Path{Path: t.path("x")})
		},
	},
	{
		Name:  "children/getAllChildrenNumber of the root",
		Says:  "getAllChildrenNumber of the root counts every znode except the root.",
		In:    ">=3.6",
		Alone: true,
		run: func(t *trial) {
			k := t.connect()
			number := func() int32 {
				return k.do(proto.OpGetAllChildrenNumber, &proto.Path{Path: "/"}).Body.(*proto.IntReply).N
			}
			t.undisturbed(func(root string) {
				before := number()
				for _, p := range []string{"", "/a", "/a/b", "/c"} {
					k.create(root+p, nil, 0)
				}
				t.equal("the number after four creates", number(), before+4)
			})
			t.ensure(number() >= 4+5, "the number is %d", number()) // config, quota, /zookeeper, the suite's root and the check's znode
		},
	},
	{
		Name: "children/getEphemerals",
		Says: "getEphemerals returns the paths of the session's own ephemeral znodes, in any order.",
		In:   ">=3.6",
		run: func(t *trial) {
			a, b := t.connect(), t.connect()
			t.equal("the ephemerals of a new session", a.ephemerals(&proto.Path{Path: "/"}), []string(nil))
			a.create(t.path("p"), nil, 0)
			a.create(t.path("p/x"), nil, proto.FlagEphemeral)
			a.create(t.path("y"), nil, proto.FlagEphemeral)
			b.create(t.path("z"), nil, proto.FlagEphemeral)
			t.equal("the ephemerals", a.ephemerals(&proto.Path{Path: "/"}), []string{t.path("p/x"), t.path("y")})
			t.equal("the ephemerals of the other", b.ephemerals(&proto.Path{Path: "/"}), []string{t.path("z")})
			b.delete(t.path("y"), -1)
			t.equal("the ephemerals after a delete", a.ephemerals(&proto.Path{Path: "/"}), []string{t.path("p/x")})
		},
	},
	{
		Name: "children/getEphemerals by prefix",
		Says: "getEphemerals filters by a text prefix, which need not end at a name boundary; null, blank and / mean all.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			for _, name := range []string{"ab", "abc", "b"} {
				k.create(t.path(name), nil, proto.FlagEphemeral)
			}
			all := []string{t.path("ab"), t.path("abc"), t.path("b")}
			for _, p := range []*proto.Path{{Null: true}, {Path: ""}, {Path: " "}, {Path: "/"}, {Path: t.path("")}} {
				t.equal("the ephemerals", k.ephemerals(p), all)
			}
			t.equal("those with a", k.ephemerals(&proto.Path{Path: t.path("a")}), all[:2])
			t.equal("those with abc", k.ephemerals(&proto.Path{Path: t.path("abc")}), all[1:2])
			t.equal("those below ab", k.ephemerals(&proto.Path{Path: t.path("ab/")}), []string(nil))
			t.equal("those elsewhere", k.ephemerals(&proto.Path{Path: "/none"}), []string(nil))
		},
	},
	{
		Name: "children/getEphemerals after a resumption",
		Says: "getEphemerals depends on the session, not on the connection, and needs no permission.",
		In:   ">=3.6",
		run: func(t *trial) {
			a := t.connect()
			a.createACL(t.path("x"), nil, []proto.ACL{allow(alice, proto.PermAll)}, proto.FlagEphemeral)
			a.hangUp()
			b := t.resume(a.Session)
			t.equal("the ephemerals", b.ephemerals(&proto.Path{Path: "/"}), []string{t.path("x")})
		},
	},
}

// ephemerals returns the paths of the session's ephemeral znodes, sorted, or nil.
func (k *conn) ephemerals(prefix *proto.Path) []string {
	names := slices.Clone(k.do(proto.OpGetEphemerals, prefix).Body.(*proto.StringsReply).Names)
	slices.Sort(names)
	if len(names) == 0 {
		return nil
	}
	return names
}
