package conform

import (
	"net/netip"
	"slices"

	"github.com/lockkeeper/lockkeeper/internal/tools/releases"
	"github.com/lockkeeper/lockkeeper/proto"
)

// protect creates a znode with that ACL below the check's own znode.
func (k *conn) protect(name string, acl ...proto.ACL) string {
	return k.createACL(k.t.path(name), nil, acl, 0)
}

// as returns a new connection that is authenticated as that user.
func (t *trial) as(user string) *conn {
	k := t.connect()
	k.auth("digest", user+":"+user)
	return k
}

// refused checks that create and setACL with that ACL fail with InvalidACL.
func (k *conn) refused(acl ...proto.ACL) {
	k.want(proto.InvalidACL, proto.OpCreate, &proto.CreateRequest{Path: k.t.path("refused"), ACL: acl})
	k.want(proto.InvalidACL, proto.OpSetACL, &proto.SetACLRequest{Path: k.t.path(""), ACL: acl, Version: -1})
	k.missing(k.t.path("refused"))
}

func aclEntry(perms int32, scheme, id string) proto.ACL {
	return proto.ACL{Perms: perms, ID: proto.ID{Scheme: scheme, ID: id}}
}

// ids returns the connection's identities as whoAmI shows them, sorted.
func (k *conn) ids() []proto.ID {
	ids := k.do(proto.OpWhoAmI, nil).Body.(*proto.WhoAmIReply).IDs
	slices.SortFunc(ids, func(a, b proto.ID) int {
		return slices.Compare([]string{a.Scheme, a.ID}, []string{b.Scheme, b.ID})
	})
	return ids
}

// address returns the connection's address as the endpoint sees it.
func (k *conn) address() netip.Addr {
	for _, id := range k.ids() {
		if id.Scheme == proto.SchemeIP {
			a, err := netip.ParseAddr(id.ID)
			k.t.ensure(err == nil, "the address in whoAmI: %v", err)
			return a
		}
	}
	k.t.failf("whoAmI shows no address")
	panic("unreachable")
}

// everyPerm lists all permissions.
var everyPerm = []int32{proto.PermRead, proto.PermWrite, proto.PermCreate, proto.PermDelete, proto.PermAdmin}

// needs checks an operation on znodes that each grant one permission: it must succeed
// with those in enough, and fail with NoAuth with the others. request makes the
// request for a path. The znode has a child "c".
func needs(t *trial, enough []int32, op proto.OpCode, request func(path string) proto.Record) {
	k := t.connect()
	for i, perms := range everyPerm {
		name := string(rune('a' + i))
		n := k.create(t.path(name), nil, 0)
		k.create(n+"/c", nil, 0)
		k.setACL(n, []proto.ACL{allowAll(perms)}, -1)
		if slices.Contains(enough, perms) {
			k.do(op, request(n))
		} else {
			k.want(proto.NoAuth, op, request(n))
		}
	}
}

var aclChecks = []Check{
	{
		Name: "acl/reads",
		Says: "getData, getChildren and getChildren2 need READ on the znode; no other permission suffices.",
		In:   ">=3.3",
		run: func(t *trial) {
			k := t.connect()
			all := k.protect("all", allowAll(proto.PermRead))
			none := k.protect("none", allowAll(proto.PermAll&^proto.PermRead))
			for _, op := range []proto.OpCode{proto.OpGetData, proto.OpGetChildren, proto.OpGetChildren2} {
				k.do(op, &proto.PathWatch{Path: all})
				k.want(proto.NoAuth, op, &proto.PathWatch{Path: none})
			}
		},
	},
	{
		Name: "acl/getAllChildrenNumber",
		Says: "getAllChildrenNumber needs READ on the znode, but no permission on the znodes below it.",
		In:   ">=3.6",
		run: func(t *trial) {
			needs(t, []int32{proto.PermRead}, proto.OpGetAllChildrenNumber, func(p string) proto.Record { return &proto.Path{Path: p} })
			k := t.connect()
			n := k.create(t.path("n"), nil, 0)
			k.createACL(n+"/hidden", nil, []proto.ACL{allow(alice, proto.PermAll)}, 0)
			t.equal("the number", k.do(proto.OpGetAllChildrenNumber, &proto.Path{Path: n}).Body.(*proto.IntReply).N, int32(1))
		},
	},
	{
		Name: "acl/setData",
		Says: "setData needs WRITE on the znode; no other permission suffices.",
		In:   ">=3.0",
		run: func(t *trial) {
			needs(t, []int32{proto.PermWrite}, proto.OpSetData, func(p string) proto.Record { return &proto.SetDataRequest{Path: p, Version: -1} })
		},
	},
	{
		Name: "acl/create",
		Says: "create needs CREATE on the parent; no other permission suffices.",
		In:   ">=3.0",
		run: func(t *trial) {
			needs(t, []int32{proto.PermCreate}, proto.OpCreate, func(p string) proto.Record {
				return &proto.CreateRequest{Path: p + "/x", ACL: proto.OpenACL}
			})
		},
	},
	{
		Name: "acl/delete",
		Says: "delete needs DELETE on the parent; no other permission suffices.",
		In:   ">=3.0",
		run: func(t *trial) {
			needs(t, []int32{proto.PermDelete}, proto.OpDelete, func(p string) proto.Record { return &proto.PathVersion{Path: p + "/c", Version: -1} })
		},
	},
	{
		Name: "acl/delete, own ACL",
		Says: "The ACL of the znode itself does not matter when it is deleted.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.delete(k.protect("n", allow(alice, proto.PermAll)), -1)
			k.missing(t.path("n"))
		},
	},
	{
		Name: "acl/setACL",
		Says: "setACL needs ADMIN on the znode; no other permission suffices.",
		In:   ">=3.0",
		run: func(t *trial) {
			needs(t, []int32{proto.PermAdmin}, proto.OpSetACL, func(p string) proto.Record {
				return &proto.SetACLRequest{Path: p, ACL: proto.OpenACL, Version: -1}
			})
		},
	},
	{
		Name: "acl/getACL",
		Says: "getACL needs READ or ADMIN on the znode.",
		In:   ">=3.6",
		run: func(t *trial) {
			needs(t, []int32{proto.PermRead, proto.PermAdmin}, proto.OpGetACL, func(p string) proto.Record { return &proto.Path{Path: p} })
		},
	},
	{
		Name: "acl/exists needs nothing",
		Says: "exists needs no permission.",
		In:   releases.ExistsNeedsNothing,
		run: func(t *trial) {
			needs(t, everyPerm, proto.OpExists, func(p string) proto.Record { return &proto.PathWatch{Path: p} })
		},
	},
	{
		Name: "acl/exists",
		Says: "exists needs READ on a znode that exists; without it the answer is NoAuth and no watch is set.",
		In:   releases.ExistsNeedsRead,
		run: func(t *trial) {
			needs(t, []int32{proto.PermRead}, proto.OpExists, func(p string) proto.Record { return &proto.PathWatch{Path: p} })
			k := t.connect()
			n := k.protect("n", allowAll(proto.PermAll&^proto.PermRead))
			k.want(proto.NoAuth, proto.OpExists, &proto.PathWatch{Path: n, Watch: true})
			k.setACL(n, proto.OpenACL, -1)
			k.set(n, nil, -1)
			k.noEvent()
		},
	},
	{
		Name: "acl/no permission needed",
		Says: "sync, getEphemerals, addWatch, checkWatches and setWatches need no permission.",
		In:   ">=3.6",
		run: func(t *trial) {
			k, w := t.connect(), t.as(alice)
			n := w.protect("n", allow(alice, proto.PermAll))
			k.do(proto.OpSync, &proto.Path{Path: n})
			k.do(proto.OpGetEphemerals, &proto.Path{Path: n})
			k.addWatch(n, modePersistent)
			t.equal("whether the watch is found", k.watches(n, watcherAny), true)
			k.restored(proto.OpSetWatches, &proto.SetWatchesRequest{RelativeZxid: 1 << 62, Data: []string{n}})
		},
	},
	{
		Name: "acl/not inherited",
		Says: "A znode's ACL is not inherited: its parent's ACL does not apply to it, and its own does not apply to its children.",
		In:   ">=3.0",
		run: func(t *trial) {
			k, w := t.connect(), t.as(alice)
			n := w.protect("n", allow(alice, proto.PermAll))
			w.create(n+"/open", []byte("x"), 0)
			k.set(n+"/open", []byte("y"), 0)
			k.create(n+"/open/c", nil, 0)
			k.want(proto.NoAuth, proto.OpGetData, &proto.PathWatch{Path: n})
		},
	},
	{
		Name: "acl/entries add up",
		Says: "One entry that matches the connection suffices, and each matching entry adds its permissions.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.as(alice)
			n := k.protect("n", allowAll(proto.PermRead), allow(bob, proto.PermWrite), allow(alice, proto.PermAdmin))
			k.get(n)
			k.want(proto.NoAuth, proto.OpSetData, &proto.SetDataRequest{Path: n, Version: -1})
			k.setACL(n, []proto.ACL{allow(alice, proto.PermRead), allow(alice, proto.PermWrite)}, 0)
			k.get(n)
			k.set(n, nil, -1)
		},
	},
	{
		Name: "acl/digest",
		Says: "An entry of scheme digest matches a connection that authenticated with that user and password: USER:BASE64(SHA1(USER:PASSWORD)).",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.as(alice)
			n := k.protect("n", aclEntry(proto.PermAll, "digest", "bob:"+digestID(bob, bob)[4:]))
			read := &proto.PathWatch{Path: n}
			k.want(proto.NoAuth, proto.OpGetData, read)
			t.connect().want(proto.NoAuth, proto.OpGetData, read)
			wrong := t.connect()
			wrong.auth("digest", "bob:wrong")
			wrong.want(proto.NoAuth, proto.OpGetData, read)
			t.as(bob).do(proto.OpGetData, read)
		},
	},
	{
		Name: "acl/takes effect at once",
		Says: "A new ACL applies from the next request on, including requests of the connection that set it.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), nil, 0)
			set := k.queue(proto.OpSetACL, &proto.SetACLRequest{Path: n, ACL: []proto.ACL{allow(alice, proto.PermAll)}, Version: 0})
			get := k.queue(proto.OpGetData, &proto.PathWatch{Path: n})
			k.flush()
			k.judge(k.answer(set, proto.OpSetACL), proto.OK)
			k.judge(k.answer(get, proto.OpGetData), proto.NoAuth)
			// ZooKeeper may check a write against the old ACL until setACL is answered.
			k.want(proto.NoAuth, proto.OpSetData, &proto.SetDataRequest{Path: n, Version: -1})
			k.want(proto.NoAuth, proto.OpSetACL, &proto.SetACLRequest{Path: n, ACL: proto.OpenACL, Version: 1})
		},
	},
	{
		Name: "acl/getACL's list",
		Says: "getACL returns the entries as they were set, in that order, and the Stat.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			acl := []proto.ACL{allowAll(proto.PermAdmin | proto.PermRead), aclEntry(3, "ip", "10.0.0.0/8"), aclEntry(9, "digest", "u:h"), allowAll(proto.PermWrite)}
			n := k.protect("n", acl...)
			got, s := k.getACL(n)
			t.equal("the ACL", got, acl)
			t.equal("the Stat", s, k.stat(n))
		},
	},
	{
		Name: "acl/masked",
		Says: "A connection without ADMIN sees digests in getACL replaced by x, and everything else unchanged.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			n := k.protect("n", allowAll(proto.PermRead), allow(alice, proto.PermAll), aclEntry(1, "digest", ":h"), aclEntry(1, "ip", "10.1.2.3"))
			got, _ := k.getACL(n)
			t.equal("the ACL", got, []proto.ACL{allowAll(proto.PermRead), aclEntry(31, "digest", "alice:x"), aclEntry(1, "digest", ":x"), aclEntry(1, "ip", "10.1.2.3")})
			got, _ = t.as(alice).getACL(n)
			t.equal("the entry as a connection with ADMIN sees it", got[1], allow(alice, proto.PermAll))
		},
	},
	{
		Name: "acl/ip",
		Says: "An entry of scheme ip matches connections from that IPv4 address, or from a network ADDRESS/BITS.",
		In:   ">=3.7",
		run: func(t *trial) {
			k := t.connect()
			own := k.address()
			if !own.Is4() {
				return // before 3.9.4 no entry can match an IPv6 address
			}
			other := netip.AddrFrom4([4]byte{own.As4()[0] ^ 128, 1, 2, 3})
			for i, x := range []struct {
				id    string
				match bool
			}{
				{own.String(), true}, {own.String() + "/32", true}, {own.String() + "/24", true}, {own.String() + "/1", true},
				{netip.PrefixFrom(own, 8).Masked().String(), true}, {other.String() + "/0", true},
				{other.String(), false}, {other.String() + "/1", false}, {own.Next().String(), false}, {own.Next().String() + "/32", false},
			} {
				n := k.protect(string(rune('a'+i)), aclEntry(proto.PermAll, "ip", x.id))
				code := proto.NoAuth
				if x.match {
					code = proto.OK
				}
				k.want(code, proto.OpGetData, &proto.PathWatch{Path: n})
			}
		},
	},
	{
		Name: "acl/invalid ip",
		Says: "An entry of scheme ip that is not an IPv4 address or network, such as a host name, fails with InvalidACL.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			for _, id := range []string{"localhost", "1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.4/33", "1.2.3.4/-1", "1.2.3.4/x", "x/8", ""} {
				k.refused(aclEntry(proto.PermAll, "ip", id))
			}
		},
	},
	{
		Name: "acl/IPv6 refused",
		Says: "An entry of scheme ip with an IPv6 address fails with InvalidACL.",
		In:   releases.NoIPv6InACL,
		run: func(t *trial) {
			k := t.connect()
			for _, id := range []string{"::1", "2001:db8::/32", "fe80::1"} {
				k.refused(aclEntry(proto.PermAll, "ip", id))
			}
		},
	},
	{
		Name: "acl/IPv6",
		Says: "An entry of scheme ip may be an IPv6 address or network; a prefix longer than 128 bits fails with InvalidACL.",
		In:   releases.IPv6InACL,
		run: func(t *trial) {
			k := t.connect()
			for i, id := range []string{"2001:db8::1", "2001:db8::/32", "::/0", "2001:db8::1/128"} {
				n := k.protect(string(rune('a'+i)), aclEntry(proto.PermAll, "ip", id))
				if k.address().Is4() {
					k.want(proto.NoAuth, proto.OpGetData, &proto.PathWatch{Path: n})
				}
			}
			for _, id := range []string{"2001:db8::/129", "2001:db8::/-1", "2001:db8:::1", "2001:db8::g"} {
				k.refused(aclEntry(proto.PermAll, "ip", id))
			}
		},
	},
	{
		Name: "acl/auth scheme",
		Says: "An entry of scheme auth is replaced by one entry with the same permissions for each digest identity of the connection; its id is ignored.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.as(alice)
			k.auth("digest", bob+":"+bob)
			n := k.protect("n", allowAll(proto.PermRead), aclEntry(proto.PermAll, "auth", "whatever"))
			acl, _ := k.getACL(n)
			t.equal("the number of entries", len(acl), 3)
			t.equal("the first entry", acl[0], allowAll(proto.PermRead))
			for _, user := range users { // in any order
				t.ensure(slices.Contains(acl, allow(user, proto.PermAll)), "no entry for %s", user)
			}
			k.setACL(n, []proto.ACL{aclEntry(proto.PermAdmin, "auth", "")}, -1)
			acl, _ = k.getACL(n)
			t.equal("the number of entries that setACL made", len(acl), 2)
		},
	},
	{
		Name: "acl/auth scheme, null id",
		Says: "An entry of scheme auth may have a null id, as some clients send it.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.as(alice)
			k.doRaw(proto.OpCreate, body(t.path("n"), -1, 1, int(proto.PermAll), "auth", -1, 0))
			acl, _ := k.getACL(t.path("n"))
			t.equal("the ACL", acl, []proto.ACL{allow(alice, proto.PermAll)})
		},
	},
	{
		Name: "acl/auth scheme without identity",
		Says: "An entry of scheme auth fails with InvalidACL if the connection has no digest identity; its address does not count.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.refused(aclEntry(proto.PermAll, "auth", ""))
			k.refused(allowAll(proto.PermAll), aclEntry(proto.PermAll, "auth", ""))
			k.auth("ip", "")
			k.refused(aclEntry(proto.PermAll, "auth", ""))
		},
	},
	{
		Name: "acl/duplicates",
		Says: "A duplicate entry is dropped; an entry with the same id but other permissions stays.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.connect()
			a, b, c := allowAll(proto.PermRead|proto.PermAdmin), aclEntry(3, "digest", "u:h"), aclEntry(4, "digest", "u:h")
			n := k.protect("n", b, a, b, c, a, c)
			acl, _ := k.getACL(n)
			t.equal("the ACL", acl, []proto.ACL{b, a, c})
		},
	},
	{
		Name: "acl/duplicates by expansion",
		Says: "An entry that results from one of scheme auth stays even if it is a duplicate.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.as(alice)
			n := k.protect("n", allow(alice, proto.PermAll), aclEntry(proto.PermAll, "auth", ""))
			acl, _ := k.getACL(n)
			t.equal("the ACL", acl, []proto.ACL{allow(alice, proto.PermAll), allow(alice, proto.PermAll)})
		},
	},
	{
		Name: "acl/empty",
		Says: "An empty list fails with InvalidACL.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.want(proto.InvalidACL, proto.OpCreate, &proto.CreateRequest{Path: t.path("n"), ACL: noACL})
			k.want(proto.InvalidACL, proto.OpSetACL, &proto.SetACLRequest{Path: t.path(""), ACL: noACL, Version: -1})
			acl, _ := k.getACL(t.path(""))
			t.equal("the ACL", acl, proto.OpenACL)
		},
	},
	{
		Name: "acl/null",
		Says: "A null list fails with InvalidACL.",
		In:   ">=3.6",
		run:  func(t *trial) { nullACL(t, proto.InvalidACL) },
	},
	{
		Name: "acl/null, older versions",
		Says: "A null list fails with MarshallingError.",
		In:   "<3.6",
		run:  func(t *trial) { nullACL(t, proto.MarshallingError) },
	},
	{
		Name: "acl/invalid ids",
		Says: "An id that its scheme does not allow fails with InvalidACL: world allows only anyone, and digest only USER:DIGEST with one colon.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.connect()
			for _, x := range []proto.ACL{
				aclEntry(31, "world", "someone"), aclEntry(31, "world", ""),
				aclEntry(31, "digest", "nocolon"), aclEntry(31, "digest", "a:b:c"), aclEntry(31, "digest", "u:"), aclEntry(31, "digest", ""),
			} {
				k.refused(x)
				k.refused(allowAll(proto.PermAll), x)
			}
			k.protect("n", aclEntry(31, "digest", ":h"), aclEntry(31, "digest", "u:h"))
		},
	},
	{
		Name: "acl/unknown schemes",
		Says: "An entry of an unknown scheme, or of one that is not allowed in a list, such as super, fails with InvalidACL.",
		In:   ">=3.5",
		run: func(t *trial) {
			k := t.connect()
			for _, scheme := range []string{"", "nobody", "super", "World", "hosts"} {
				k.refused(aclEntry(31, scheme, "anyone"))
			}
			k.wantRaw(proto.InvalidACL, proto.OpCreate, body(t.path("n"), -1, 1, 31, -1, "anyone", 0))
		},
	},
	{
		Name: "acl/any bits",
		Says: "The permission bits are stored as they were given, including bits without a meaning.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.connect()
			for i, perms := range []int32{-1, 32 | proto.PermRead, 0x7fffffff} {
				n := k.protect(string(rune('a'+i)), allowAll(perms))
				acl, _ := k.getACL(n)
				t.equal("the ACL", acl, []proto.ACL{allowAll(perms)})
			}
			n := k.protect("none", allowAll(0))
			k.want(proto.NoAuth, proto.OpGetData, &proto.PathWatch{Path: n})
			k.want(proto.NoAuth, proto.OpGetACL, &proto.Path{Path: n})
		},
	},
	{
		Name: "acl/aversion",
		Says: "setACL compares its version with aversion, where -1 matches any, and increments aversion; nothing else in the Stat changes.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), []byte("data"), 0)
			k.set(n, []byte("other"), -1)
			s := k.stat(n)
			for _, v := range []int32{1, -2} {
				k.want(proto.BadVersion, proto.OpSetACL, &proto.SetACLRequest{Path: n, ACL: proto.OpenACL, Version: v})
			}
			s.Aversion = 1
			t.equal("the Stat", k.setACL(n, proto.OpenACL, 0), s)
			s.Aversion = 2
			t.equal("the Stat", k.setACL(n, []proto.ACL{allowAll(proto.PermRead | proto.PermAdmin)}, -1), s)
			k.want(proto.BadVersion, proto.OpSetACL, &proto.SetACLRequest{Path: n, ACL: proto.OpenACL, Version: 1})
			t.equal("the Stat", k.stat(n), s)
		},
	},
	{
		Name: "acl/precedence in create",
		Says: "create reports an invalid list before a missing parent, that before a missing permission, and that before an existing znode.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.connect()
			bad := []proto.ACL{aclEntry(31, "nobody", "x")}
			n := k.create(t.path("n"), nil, 0)
			k.create(n+"/c", nil, 0)
			k.setACL(n, []proto.ACL{allowAll(proto.PermRead)}, -1)
			k.want(proto.InvalidACL, proto.OpCreate, &proto.CreateRequest{Path: t.path("no/parent"), ACL: bad})
			k.want(proto.InvalidACL, proto.OpCreate, &proto.CreateRequest{Path: n + "/c", ACL: bad})
			k.want(proto.NoNode, proto.OpCreate, &proto.CreateRequest{Path: n + "/no/parent", ACL: proto.OpenACL})
			k.want(proto.NoAuth, proto.OpCreate, &proto.CreateRequest{Path: n + "/c", ACL: proto.OpenACL})
		},
	},
	{
		Name: "acl/precedence in others",
		Says: "A missing permission is reported before a wrong version and, in delete, before a missing znode, but in setACL after an invalid list.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			n := k.create(t.path("n"), nil, 0)
			k.create(n+"/c", nil, 0)
			k.setACL(n, []proto.ACL{allow(alice, proto.PermAll)}, -1)
			bad := []proto.ACL{aclEntry(31, "nobody", "x")}
			k.want(proto.NoAuth, proto.OpSetData, &proto.SetDataRequest{Path: n, Version: 77})
			k.want(proto.NoAuth, proto.OpDelete, &proto.PathVersion{Path: n + "/c", Version: 77})
			k.want(proto.NoAuth, proto.OpDelete, &proto.PathVersion{Path: n + "/missing", Version: -1})
			k.want(proto.NoNode, proto.OpDelete, &proto.PathVersion{Path: n + "/no/parent", Version: -1})
			k.want(proto.NoAuth, proto.OpSetACL, &proto.SetACLRequest{Path: n, ACL: proto.OpenACL, Version: 77})
			k.want(proto.InvalidACL, proto.OpSetACL, &proto.SetACLRequest{Path: n, ACL: bad, Version: 77})
			k.want(proto.InvalidACL, proto.OpSetACL, &proto.SetACLRequest{Path: t.path("missing"), ACL: bad, Version: -1})
			k.want(proto.NoNode, proto.OpSetACL, &proto.SetACLRequest{Path: t.path("missing"), ACL: proto.OpenACL, Version: -1})
		},
	},
	{
		Name: "acl/events need READ",
		Says: "A connection gets an event only if it has READ on the znode, but its one-shot watch is used up either way.",
		In:   releases.EventsNeedRead,
		run: func(t *trial) {
			k, w := t.connect(), t.as(alice)
			n := w.create(t.path("n"), nil, 0)
			k.watchData(n)
			w.setACL(n, []proto.ACL{allow(alice, proto.PermAll)}, -1)
			w.set(n, nil, -1)
			w.setACL(n, proto.OpenACL, -1)
			w.set(n, nil, -1)
			k.noEvent()
			k.watchData(n)
			w.set(n, nil, -1)
			k.event(proto.EventNodeDataChanged, n)
		},
	},
	{
		Name: "acl/events, which ACL decides",
		Says: "The znode's ACL decides who gets the event of its creation or its deletion, in the latter case its last ACL. The parent's ACL decides who gets NodeChildrenChanged.",
		In:   releases.EventsNeedRead,
		run: func(t *trial) {
			k, w := t.connect(), t.as(alice)
			secret := []proto.ACL{allow(alice, proto.PermAll)}
			p := w.create(t.path("p"), nil, 0)
			k.addWatch(p, modeRecursive)
			k.watchChildren(p)
			w.createACL(p+"/c", nil, secret, 0)
			k.event(proto.EventNodeChildrenChanged, p)
			w.setACL(p+"/c", proto.OpenACL, -1)
			w.delete(p+"/c", -1)
			k.event(proto.EventNodeDeleted, p+"/c")
			k.watchChildren(p)
			w.setACL(p, secret, -1)
			w.create(p+"/open", nil, 0)
			k.event(proto.EventNodeCreated, p+"/open")
			k.noEvent()
		},
	},
	{
		Name: "acl/events, identities",
		Says: "The identities of a connection count when the server decides whether it gets an event.",
		In:   releases.EventsNeedRead,
		run: func(t *trial) {
			k, w := t.connect(), t.as(alice)
			n := t.path("n")
			k.addWatch(n, modePersistent)
			w.createACL(n, nil, []proto.ACL{allow(alice, proto.PermAll)}, 0)
			k.noEvent()
			k.auth("digest", alice+":"+alice)
			w.set(n, nil, -1)
			k.event(proto.EventNodeDataChanged, n)
		},
	},
	{
		Name: "acl/events without READ",
		Says: "A connection gets the events of its watches whether it has READ on the znode or not.",
		In:   releases.EventsNeedNothing,
		run: func(t *trial) {
			k, w := t.connect(), t.as(alice)
			n := t.path("n")
			k.addWatch(n, modePersistent)
			w.createACL(n, nil, []proto.ACL{allow(alice, proto.PermAll)}, 0)
			k.event(proto.EventNodeCreated, n)
			w.set(n, nil, -1)
			k.event(proto.EventNodeDataChanged, n)
			w.delete(n, -1)
			k.event(proto.EventNodeDeleted, n)
		},
	},
	{
		Name:  "acl/super",
		Says:  "The super user may do everything with every znode, and sees digests unmasked.",
		In:    ">=3.3",
		Needs: []Feature{Super},
		run: func(t *trial) {
			k := t.connect()
			k.auth("digest", t.s.o.Super)
			n := k.protect("n", allow(alice, 0))
			k.get(n)
			k.children(n)
			k.set(n, nil, -1)
			k.create(n+"/c", nil, 0)
			k.delete(n+"/c", -1)
			acl, _ := k.getACL(n)
			t.equal("the ACL", acl, []proto.ACL{allow(alice, 0)})
			k.setACL(n, proto.OpenACL, -1)
		},
	},
	{
		Name:  "acl/super's limits",
		Says:  "The super user's requests fail for reasons other than permissions: wrong versions, remaining children, system znodes.",
		In:    ">=3.5",
		Needs: []Feature{Super},
		run: func(t *trial) {
			k := t.connect()
			k.auth("digest", t.s.o.Super)
			n := k.create(t.path("n"), nil, 0)
			k.create(n+"/c", nil, 0)
			k.want(proto.BadVersion, proto.OpSetData, &proto.SetDataRequest{Path: n, Version: 7})
			k.want(proto.NotEmpty, proto.OpDelete, &proto.PathVersion{Path: n, Version: -1})
			k.want(proto.InvalidACL, proto.OpSetACL, &proto.SetACLRequest{Path: n, ACL: noACL, Version: -1})
			for _, p := range []string{"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"} {
				k.want(proto.BadArguments, proto.OpDelete, &proto.PathVersion{Path: p, Version: -1})
			}
		},
	},
}

// noACL is an empty list, which is not a null one.
var noACL = []proto.ACL{}

// nullACL checks the answer to requests with a null list.
func nullACL(t *trial, code proto.Code) {
	k := t.connect()
	k.wantRaw(code, proto.OpCreate, body(t.path("n"), -1, -1, 0))
	k.wantRaw(code, proto.OpSetACL, body(t.path(""), -1, -1))
	k.missing(t.path("n"))
	acl, _ := k.getACL(t.path(""))
	t.equal("the ACL", acl, proto.OpenACL)
}
