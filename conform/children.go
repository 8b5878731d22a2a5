package conform

import (
	"fmt"
	"slices"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

var childrenChecks = []Check{
	check("children/names", ">=3.0",
		"getChildren returns the names of the direct children, without their path, in any order.",
		func(t *trial, k *conn) {
			for _, name := range []string{"a", "b", "b/c", "b/c/d", "ä"} {
				k.make(t.path(name))
			}
			k.create(t.path("e"), nil, proto.FlagEphemeral)
			t.equal("the children", k.children(t.path("")), []string{"a", "b", "e", "ä"})
			t.equal("the children of b", k.children(t.path("b")), []string{"c"})
		}),
	check("children/none", ">=3.0",
		"For a znode without children the list is empty, not null.",
		func(t *trial, k *conn) {
			f := k.do(opChildren(t.path("")))
			t.equal("the body", f.Payload[16:], []byte{0, 0, 0, 0})
			k.create(t.path("e"), nil, proto.FlagEphemeral)
			f = k.do(opChildren(t.path("e")))
			t.equal("the body for an ephemeral", f.Payload[16:], []byte{0, 0, 0, 0})
		}),
	check("children/getChildren2", ">=3.3",
		"getChildren2 returns the names and the parent's Stat.",
		func(t *trial, k *conn) {
			for i := range 3 {
				k.make(t.path(fmt.Sprint(i)))
				r := k.do(opChildren2(t.path(""))).Body.(*proto.Children2Reply)
				slices.Sort(r.Names)
				t.equal("the names", r.Names, []string{"0", "1", "2"}[:i+1])
				t.equal("the Stat", r.Stat, k.stat(t.path("")))
				t.equal("numChildren", r.Stat.NumChildren, int32(i+1))
			}
		}),
	check("children/missing", ">=3.3",
		"getChildren and getChildren2 of a znode that does not exist fail with NoNode.",
		func(t *trial, k *conn) {
			k.make(t.path("x"))
			for _, p := range append(t.sloppy(), t.path("y"), t.path("a/b"), t.path("y\x00")) {
				k.want(proto.NoNode, opChildren(p), opChildren2(p))
			}
		}),
	check("children/pzxid", ">=3.0",
		"pzxid is the zxid of the last create or delete of a direct child. Changes to a child's data or children, or to the znode's own data or ACL, do not affect it.",
		func(t *trial, k *conn) {
			k.make(t.path("p"))
			t.equal("pzxid of a new znode", k.stat(t.path("p")).Pzxid, k.stat(t.path("p")).Czxid)
			pzxid := k.do(opCreate(t.path("p/x"), nil, 0)).Zxid
			t.equal("pzxid after a create", k.stat(t.path("p")).Pzxid, pzxid)
			k.make(t.path("p/x/y"))
			k.set(t.path("p/x"), nil, -1)
			k.setACL(t.path("p/x"), proto.OpenACL, -1)
			k.set(t.path("p"), nil, -1)
			k.setACL(t.path("p"), proto.OpenACL, -1)
			k.delete(t.path("p/x/y"), -1)
			t.equal("pzxid after other changes", k.stat(t.path("p")).Pzxid, pzxid)
			pzxid = k.delete(t.path("p/x"), -1).Zxid
			t.equal("pzxid after a delete", k.stat(t.path("p")).Pzxid, pzxid)
		}),
	check("children/getAllChildrenNumber", ">=3.6",
		"getAllChildrenNumber counts all znodes below a znode, at any depth, and fails with NoNode if there is none.",
		func(t *trial, k *conn) {
			number := func(p string) int32 {
				return k.do(opPath(proto.OpGetAllChildrenNumber, t.path(p))).Body.(*proto.IntReply).N
			}
			for _, p := range []string{"a", "a/b", "a/b/c", "a/d", "aa", "a!"} {
				k.make(t.path(p))
			}
			k.create(t.path("a/e"), nil, proto.FlagEphemeral)
			t.equal("the number", number(""), int32(7))
			t.equal("the number of a", number("a"), int32(4))
			t.equal("the number of a leaf", number("a/b/c"), int32(0))
			k.delete(t.path("a/b/c"), -1)
			t.equal("the number after a delete", number(""), int32(6))
			k.want(proto.NoNode, opPath(proto.OpGetAllChildrenNumber, t.path("a/b/c")))
		}),
	alone(check("children/getAllChildrenNumber of the root", ">=3.6",
		"getAllChildrenNumber of the root counts every znode except the root.",
		func(t *trial, k *conn) {
			number := func() int32 {
				return k.do(opPath(proto.OpGetAllChildrenNumber, "/")).Body.(*proto.IntReply).N
			}
			t.undisturbed(func(root string) {
				before := number()
				for _, p := range []string{"", "/a", "/a/b", "/c"} {
					k.make(root + p)
				}
				t.equal("the number after four creates", number(), before+4)
			})
			t.ensure(number() >= 4+5, "the number is %d", number()) // config, quota, /zookeeper, the suite's root and the check's znode
		})),
	check("children/getEphemerals", ">=3.6",
		"getEphemerals returns the paths of the session's own ephemeral znodes, in any order.",
		func(t *trial, a, b *conn) {
			t.equal("the ephemerals of a new session", a.ephemerals(&proto.Path{Path: "/"}), []string(nil))
			a.make(t.path("p"))
			a.create(t.path("p/x"), nil, proto.FlagEphemeral)
			a.create(t.path("y"), nil, proto.FlagEphemeral)
			b.create(t.path("z"), nil, proto.FlagEphemeral)
			t.equal("the ephemerals", a.ephemerals(&proto.Path{Path: "/"}), []string{t.path("p/x"), t.path("y")})
			t.equal("the ephemerals of the other", b.ephemerals(&proto.Path{Path: "/"}), []string{t.path("z")})
			b.delete(t.path("y"), -1)
			t.equal("the ephemerals after a delete", a.ephemerals(&proto.Path{Path: "/"}), []string{t.path("p/x")})
		}),
	check("children/getEphemerals by prefix", ">=3.6",
		"getEphemerals filters by a text prefix, which need not end at a name boundary; null, blank and / mean all.",
		func(t *trial, k *conn) {
			for _, name := range []string{"ab", "abc", "b"} {
				k.create(t.path(name), nil, proto.FlagEphemeral)
			}
			all := []string{t.path("ab"), t.path("abc"), t.path("b")}
			for _, p := range []*proto.Path{{Path: jute.Null}, {Path: ""}, {Path: " "}, {Path: "/"}, {Path: t.path("")}} {
				t.equal("the ephemerals", k.ephemerals(p), all)
			}
			t.equal("those with a", k.ephemerals(&proto.Path{Path: t.path("a")}), all[:2])
			t.equal("those with abc", k.ephemerals(&proto.Path{Path: t.path("abc")}), all[1:2])
			t.equal("those below ab", k.ephemerals(&proto.Path{Path: t.path("ab/")}), []string(nil))
			t.equal("those elsewhere", k.ephemerals(&proto.Path{Path: "/none"}), []string(nil))
		}),
	check("children/getEphemerals after a resumption", ">=3.6",
		"getEphemerals depends on the session, not on the connection, and needs no permission.",
		func(t *trial, a *conn) {
			a.createACL(t.path("x"), nil, []proto.ACL{allow(alice, proto.PermAll)}, proto.FlagEphemeral)
			a.hangUp()
			b := t.resume(a.Session)
			t.equal("the ephemerals", b.ephemerals(&proto.Path{Path: "/"}), []string{t.path("x")})
		}),
}

func (k *conn) ephemerals(prefix *proto.Path) []string {
	names := slices.Clone(k.do(req(proto.OpGetEphemerals, prefix)).Body.(*proto.ChildrenReply).Names)
	slices.Sort(names)
	if len(names) == 0 {
		return nil
	}
	return names
}
