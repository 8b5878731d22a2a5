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

func (t *trial) as(user string) *conn {
	k := t.connect()
	k.auth("digest", user+":"+user)
	return k
}

// refused checks that create and setACL with that ACL fail with InvalidACL.
func (k *conn) refused(acl ...proto.ACL) {
	k.want(proto.InvalidACL, opCreateACL(k.t.path("refused"), nil, acl, 0), opSetACL(k.t.path(""), acl, -1))
	k.missing(k.t.path("refused"))
}

func aclEntry(perms int32, scheme, id string) proto.ACL {
	return proto.ACL{Perms: perms, ID: proto.ID{Scheme: scheme, ID: id}}
}

// ids returns the connection's identities as whoAmI shows them, sorted.
func (k *conn) ids() []proto.ID {
	ids := k.do(request{Op: proto.OpWhoAmI}).Body.(*proto.WhoAmIReply).IDs
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

var everyPerm = []int32{proto.PermRead, proto.PermWrite, proto.PermCreate, proto.PermDelete, proto.PermAdmin}

// needs returns a check of an operation on znodes that each grant one permission: it must
// succeed with those in enough, and fail with NoAuth with the others. q makes the request for a
// path. The znode has a child "c".
func needs(q func(path string) request, enough ...int32) func(*trial) {
	return func(t *trial) {
		k := t.connect()
		for i, perms := range everyPerm {
			n := t.path(string(rune('a' + i)))
			k.make(n, n+"/c")
			k.setACL(n, []proto.ACL{allowAll(perms)}, -1)
			if slices.Contains(enough, perms) {
				k.do(q(n))
			} else {
				k.want(proto.NoAuth, q(n))
			}
		}
	}
}

var aclChecks = []Check{
	check("acl/reads", ">=3.3",
		"getData, getChildren and getChildren2 need READ on the znode; no other permission suffices. They need none on its children.",
		func(t *trial, k *conn) {
			k.auth("digest", alice+":"+alice)
			k.createACL(t.path("closed"), nil, []proto.ACL{allow(alice, proto.PermAll), allowAll(proto.PermAll &^ proto.PermRead)}, 0)
			k.createACL(t.path("open"), nil, []proto.ACL{allow(alice, proto.PermAll), allowAll(proto.PermRead)}, 0)
			k.createACL(t.path("open/x"), nil, []proto.ACL{allow(alice, proto.PermAll)}, 0)
			other := t.connect()
			for _, op := range []proto.OpCode{proto.OpGetData, proto.OpGetChildren, proto.OpGetChildren2} {
				other.want(proto.NoAuth, opRead(op, t.path("closed")))
				other.want(proto.NoNode, opRead(op, t.path("closed/none")))
				other.do(opRead(op, t.path("open")))
			}
			t.equal("the children", other.children(t.path("open")), []string{"x"})
		}),
	check("acl/getAllChildrenNumber", ">=3.6",
		"getAllChildrenNumber needs READ on the znode, but no permission on the znodes below it.",
		func(t *trial) {
			needs(func(p string) request { return opPath(proto.OpGetAllChildrenNumber, p) }, proto.PermRead)(t)
			k := t.connect()
			n := k.create(t.path("n"), nil, 0)
			k.createACL(n+"/hidden", nil, []proto.ACL{allow(alice, proto.PermAll)}, 0)
			t.equal("the number", k.do(opPath(proto.OpGetAllChildrenNumber, n)).Body.(*proto.IntReply).N, int32(1))
		}),
	check("acl/setData", ">=3.0",
		"setData needs WRITE on the znode; no other permission suffices.",
		needs(func(p string) request { return opSet(p, nil, -1) }, proto.PermWrite)),
	check("acl/create", ">=3.0",
		"create needs CREATE on the parent; no other permission suffices.",
		needs(func(p string) request { return opCreate(p+"/x", nil, 0) }, proto.PermCreate)),
	check("acl/delete", ">=3.0",
		"delete needs DELETE on the parent; no other permission suffices.",
		needs(func(p string) request { return opDelete(p+"/c", -1) }, proto.PermDelete)),
	check("acl/setACL", ">=3.0",
		"setACL needs ADMIN on the znode; no other permission suffices.",
		needs(func(p string) request { return opSetACL(p, proto.OpenACL, -1) }, proto.PermAdmin)),
	check("acl/getACL", ">=3.6",
		"getACL needs READ or ADMIN on the znode.",
		needs(opGetACL, proto.PermRead, proto.PermAdmin)),
	check("acl/exists needs nothing", releases.ExistsNeedsNothing,
		"exists needs no permission.",
		needs(opExists, everyPerm...)),
	check("acl/exists", releases.ExistsNeedsRead,
		"exists needs READ on a znode that exists; without it the answer is NoAuth and no watch is set.",
		func(t *trial) {
			needs(opExists, proto.PermRead)(t)
			k := t.connect()
			n := k.protect("n", allowAll(proto.PermAll&^proto.PermRead))
			k.want(proto.NoAuth, watching(opExists(n)))
			k.missing(n + "/x")
			k.setACL(n, proto.OpenACL, -1)
			k.set(n, nil, -1)
			k.noEvent()
		}),
	check("acl/no permission needed", ">=3.6",
		"sync, getEphemerals, addWatch, checkWatches and setWatches need no permission.",
		func(t *trial) {
			k, w := t.connect(), t.as(alice)
			n := w.protect("n", allow(alice, proto.PermAll))
			k.do(opSync(n), opPath(proto.OpGetEphemerals, n))
			k.addWatch(n, modePersistent)
			t.equal("whether the watch is found", k.watches(n, watcherAny), true)
			k.restored(proto.OpSetWatches, &proto.SetWatchesRequest{RelativeZxid: 1 << 62, Data: []string{n}})
		}),
	check("acl/not inherited", ">=3.0",
		"A znode's ACL is not inherited: its parent's ACL does not apply to it, and its own does not apply to its children.",
		func(t *trial) {
			k, w := t.connect(), t.as(alice)
			n := w.protect("n", allow(alice, proto.PermAll))
			w.create(n+"/open", []byte("x"), 0)
			k.set(n+"/open", []byte("y"), 0)
			k.make(n + "/open/c")
			k.want(proto.NoAuth, opGet(n))
		}),
	check("acl/entries add up", ">=3.0",
		"One entry that matches the connection suffices, and each matching entry adds its permissions.",
		func(t *trial) {
			k := t.as(alice)
			n := k.protect("n", allowAll(proto.PermRead), allow(bob, proto.PermWrite), allow(alice, proto.PermAdmin))
			k.get(n)
			k.want(proto.NoAuth, opSet(n, nil, -1))
			k.setACL(n, []proto.ACL{allow(alice, proto.PermRead), allow(alice, proto.PermWrite)}, 0)
			k.get(n)
			k.set(n, nil, -1)
		}),
	check("acl/digest", ">=3.0",
		"An entry of scheme digest matches a connection that authenticated with that user and password: USER:BASE64(SHA1(USER:PASSWORD)).",
		func(t *trial) {
			k := t.as(alice)
			n := k.protect("n", aclEntry(proto.PermAll, "digest", "bob:"+digestID(bob, bob)[4:]))
			read := &proto.PathWatch{Path: n}
			k.want(proto.NoAuth, req(proto.OpGetData, read))
			t.connect().want(proto.NoAuth, req(proto.OpGetData, read))
			wrong := t.connect()
			wrong.auth("digest", "bob:wrong")
			wrong.want(proto.NoAuth, req(proto.OpGetData, read))
			t.as(bob).do(req(proto.OpGetData, read))
		}),
	check("acl/takes effect at once", ">=3.0",
		"A new ACL applies from the next request on, including requests of the connection that set it.",
		func(t *trial, k *conn, n string) {
			k.send(opSetACL(n, []proto.ACL{allow(alice, proto.PermAll)}, 0), opGet(n))
			k.answers(proto.OK, proto.NoAuth)
			// ZooKeeper may check a write against the old ACL until setACL is answered.
			k.want(proto.NoAuth, opSet(n, nil, -1), opSetACL(n, proto.OpenACL, 1))
		}),
	check("acl/getACL's list", ">=3.5",
		"getACL returns the entries as they were set, in that order, and the Stat.",
		func(t *trial, k *conn) {
			acl := []proto.ACL{allowAll(proto.PermAdmin | proto.PermRead), aclEntry(3, "ip", "10.0.0.0/8"), aclEntry(9, "digest", "u:h"), allowAll(proto.PermWrite)}
			n := k.protect("n", acl...)
			got, s := k.getACL(n)
			t.equal("the ACL", got, acl)
			t.equal("the Stat", s, k.stat(n))
		}),
	check("acl/masked", ">=3.6",
		"A connection without ADMIN sees digests in getACL replaced by x, and everything else unchanged.",
		func(t *trial, k *conn) {
			n := k.protect("n", allowAll(proto.PermRead), allow(alice, proto.PermAll), aclEntry(1, "digest", ":h"), aclEntry(1, "ip", "10.1.2.3"))
			k.hasACL(n, []proto.ACL{allowAll(proto.PermRead), aclEntry(31, "digest", "alice:x"), aclEntry(1, "digest", ":x"), aclEntry(1, "ip", "10.1.2.3")})
			got, _ := t.as(alice).getACL(n)
			t.equal("the entry as a connection with ADMIN sees it", got[1], allow(alice, proto.PermAll))
		}),
	check("acl/ip", ">=3.7",
		"An entry of scheme ip matches connections from that IPv4 address, or from a network ADDRESS/BITS.",
		func(t *trial, k *conn) {
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
				k.want(code, opGet(n))
			}
		}),
	check("acl/invalid ip", ">=3.5",
		"An entry of scheme ip that is not an IPv4 address or network, such as a host name, fails with InvalidACL.",
		func(t *trial, k *conn) {
			for _, id := range []string{"localhost", "1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.4/33", "1.2.3.4/-1", "1.2.3.4/x", "x/8", ""} {
				k.refused(aclEntry(proto.PermAll, "ip", id))
			}
		}),
	check("acl/IPv6 refused", releases.NoIPv6InACL,
		"An entry of scheme ip with an IPv6 address fails with InvalidACL.",
		func(t *trial, k *conn) {
			for _, id := range []string{"::1", "2001:db8::/32", "fe80::1"} {
				k.refused(aclEntry(proto.PermAll, "ip", id))
			}
		}),
	check("acl/IPv6", releases.IPv6InACL,
		"An entry of scheme ip may be an IPv6 address or network; a prefix longer than 128 bits fails with InvalidACL.",
		func(t *trial, k *conn) {
			for i, id := range []string{"2001:db8::1", "2001:db8::/32", "::/0", "2001:db8::1/128"} {
				n := k.protect(string(rune('a'+i)), aclEntry(proto.PermAll, "ip", id))
				if k.address().Is4() {
					k.want(proto.NoAuth, opGet(n))
				}
			}
			for _, id := range []string{"2001:db8::/129", "2001:db8::/-1", "2001:db8:::1", "2001:db8::g"} {
				k.refused(aclEntry(proto.PermAll, "ip", id))
			}
		}),
	check("acl/auth scheme", ">=3.0",
		"An entry of scheme auth is replaced by one entry with the same permissions for each digest identity of the connection; its id is ignored.",
		func(t *trial) {
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
		}),
	check("acl/auth scheme, null id", ">=3.4",
		"An entry of scheme auth may have a null id, as some clients send it.",
		func(t *trial) {
			k := t.as(alice)
			k.do(req(proto.OpCreate, body(t.path("n"), -1, 1, int(proto.PermAll), "auth", -1, 0)))
			k.hasACL(t.path("n"), []proto.ACL{allow(alice, proto.PermAll)})
		}),
	check("acl/auth scheme without identity", ">=3.0",
		"An entry of scheme auth fails with InvalidACL if the connection has no digest identity; its address does not count.",
		func(t *trial, k *conn) {
			k.refused(aclEntry(proto.PermAll, "auth", ""))
			k.refused(allowAll(proto.PermAll), aclEntry(proto.PermAll, "auth", ""))
			k.auth("ip", "")
			k.refused(aclEntry(proto.PermAll, "auth", ""))
		}),
	check("acl/duplicates", ">=3.4",
		"A duplicate entry is dropped; an entry with the same id but other permissions stays.",
		func(t *trial, k *conn) {
			a, b, c := allowAll(proto.PermRead|proto.PermAdmin), aclEntry(3, "digest", "u:h"), aclEntry(4, "digest", "u:h")
			n := k.protect("n", b, a, b, c, a, c)
			k.hasACL(n, []proto.ACL{b, a, c})
		}),
	check("acl/duplicates by expansion", ">=3.6",
		"An entry that results from one of scheme auth stays even if it is a duplicate.",
		func(t *trial) {
			k := t.as(alice)
			n := k.protect("n", allow(alice, proto.PermAll), aclEntry(proto.PermAll, "auth", ""))
			k.hasACL(n, []proto.ACL{allow(alice, proto.PermAll), allow(alice, proto.PermAll)})
		}),
	check("acl/empty", ">=3.0",
		"An empty list fails with InvalidACL.",
		func(t *trial, k *conn) {
			k.want(proto.InvalidACL, opCreateACL(t.path("n"), nil, noACL, 0), opSetACL(t.path(""), noACL, -1))
			k.missing(t.path("n"))
			k.hasACL(t.path(""), proto.OpenACL)
		}),
	check("acl/null, older versions", "<3.6",
		"A null list fails with MarshallingError.",
		func(t *trial, k *conn) {
			k.want(proto.MarshallingError, req(proto.OpCreate, body(t.path("n"), -1, -1, 0)), req(proto.OpSetACL, body(t.path(""), -1, -1)))
			k.missing(t.path("n"))
			k.hasACL(t.path(""), proto.OpenACL)
		}),
	check("acl/invalid ids", ">=3.4",
		"An id that its scheme does not allow fails with InvalidACL: world allows only anyone, and digest only USER:DIGEST with one colon.",
		func(t *trial, k *conn) {
			for _, x := range []proto.ACL{
				aclEntry(31, "world", "someone"), aclEntry(31, "world", ""),
				aclEntry(31, "digest", "nocolon"), aclEntry(31, "digest", "a:b:c"), aclEntry(31, "digest", "u:"), aclEntry(31, "digest", ""),
			} {
				k.refused(x)
				k.refused(allowAll(proto.PermAll), x)
			}
			k.protect("n", aclEntry(31, "digest", ":h"), aclEntry(31, "digest", "u:h"))
		}),
	check("acl/unknown schemes", ">=3.5",
		"An entry of an unknown scheme, or of one that is not allowed in a list, such as super, fails with InvalidACL.",
		func(t *trial, k *conn) {
			for _, scheme := range []string{"", "nobody", "super", "World", "hosts"} {
				k.refused(aclEntry(31, scheme, "anyone"))
			}
			k.want(proto.InvalidACL, req(proto.OpCreate, body(t.path("n"), -1, 1, 31, -1, "anyone", 0)))
		}),
	check("acl/any bits", ">=3.4",
		"The permission bits are stored as they were given, including bits without a meaning.",
		func(t *trial, k *conn) {
			for i, perms := range []int32{-1, 32 | proto.PermRead, 0x7fffffff} {
				n := k.protect(string(rune('a'+i)), allowAll(perms))
				k.hasACL(n, []proto.ACL{allowAll(perms)})
			}
			n := k.protect("none", allowAll(0))
			k.want(proto.NoAuth, opGet(n), opGetACL(n))
		}),
	check("acl/aversion", ">=3.0",
		"setACL compares its version with aversion, where -1 matches any, and increments aversion; nothing else in the Stat changes.",
		func(t *trial, k *conn) {
			n := k.create(t.path("n"), []byte("data"), 0)
			k.set(n, []byte("other"), -1)
			s := k.stat(n)
			for _, v := range []int32{1, -2} {
				k.want(proto.BadVersion, opSetACL(n, proto.OpenACL, v))
			}
			s.Aversion = 1
			t.equal("the Stat", k.setACL(n, proto.OpenACL, 0), s)
			s.Aversion = 2
			t.equal("the Stat", k.setACL(n, []proto.ACL{allowAll(proto.PermRead | proto.PermAdmin)}, -1), s)
			k.want(proto.BadVersion, opSetACL(n, proto.OpenACL, 1))
			t.equal("the Stat", k.stat(n), s)
		}),
	check("acl/precedence in others", ">=3.6",
		"A missing permission is reported before a wrong version and, in delete, before a missing znode and remaining children, but in setACL after an invalid list.",
		func(t *trial, k *conn, n string) {
			k.make(n+"/c", n+"/c/x")
			k.setACL(n, []proto.ACL{allow(alice, proto.PermAll)}, -1)
			bad := []proto.ACL{aclEntry(31, "nobody", "x")}
			k.want(proto.NoAuth, opSet(n, nil, 77), opDelete(n+"/c", 77), opDelete(n+"/c", -1), opDelete(n+"/missing", -1))
			k.want(proto.NoNode, opDelete(n+"/no/parent", -1))
			k.want(proto.NoAuth, opSetACL(n, proto.OpenACL, 77))
			k.want(proto.InvalidACL, opSetACL(n, bad, 77), opSetACL(t.path("missing"), bad, -1))
			k.want(proto.NoNode, opSetACL(t.path("missing"), proto.OpenACL, -1))
		}),
	check("acl/events need READ", releases.EventsNeedRead,
		"A connection gets an event only if it has READ on the znode, but its one-shot watch is used up either way.",
		func(t *trial) {
			k, w := t.connect(), t.as(alice)
			n := w.create(t.path("n"), nil, 0)
			k.watch(opGet(n))
			w.setACL(n, []proto.ACL{allow(alice, proto.PermAll)}, -1)
			w.set(n, nil, -1)
			w.setACL(n, proto.OpenACL, -1)
			w.set(n, nil, -1)
			k.noEvent()
			k.watch(opGet(n))
			w.set(n, nil, -1)
			k.event(dataChanged(n))
		}),
	check("acl/events, which ACL decides", releases.EventsNeedRead,
		"The znode's ACL decides who gets the event of its creation or its deletion, in the latter case its last ACL. The parent's ACL decides who gets NodeChildrenChanged.",
		func(t *trial) {
			k, w := t.connect(), t.as(alice)
			secret := []proto.ACL{allow(alice, proto.PermAll)}
			p := w.create(t.path("p"), nil, 0)
			k.addWatch(p, modeRecursive)
			k.watch(opChildren(p))
			w.createACL(p+"/c", nil, secret, 0)
			k.event(childrenChanged(p))
			w.setACL(p+"/c", proto.OpenACL, -1)
			w.delete(p+"/c", -1)
			k.event(deleted(p + "/c"))
			k.watch(opChildren(p))
			w.setACL(p, secret, -1)
			w.make(p + "/open")
			k.onlyEvents(created(p + "/open"))
		}),
	check("acl/events, identities", releases.EventsNeedRead,
		"The identities of a connection count when the server decides whether it gets an event.",
		func(t *trial) {
			k, w := t.connect(), t.as(alice)
			n := t.path("n")
			k.addWatch(n, modePersistent)
			w.createACL(n, nil, []proto.ACL{allow(alice, proto.PermAll)}, 0)
			k.noEvent()
			k.auth("digest", alice+":"+alice)
			w.set(n, nil, -1)
			k.event(dataChanged(n))
		}),
	check("acl/events without READ", releases.EventsNeedNothing,
		"A connection gets the events of its watches whether it has READ on the znode or not.",
		func(t *trial) {
			k, w := t.connect(), t.as(alice)
			n := t.path("n")
			k.addWatch(n, modePersistent)
			w.createACL(n, nil, []proto.ACL{allow(alice, proto.PermAll)}, 0)
			k.event(created(n))
			w.set(n, nil, -1)
			k.event(dataChanged(n))
			w.delete(n, -1)
			k.event(deleted(n))
		}),
	requires(Super, check("acl/super", ">=3.3",
		"The super user may do everything with every znode, and sees digests unmasked.",
		func(t *trial, k *conn) {
			k.auth("digest", t.s.o.Super)
			n := k.protect("n", allow(alice, 0))
			k.get(n)
			k.children(n)
			k.set(n, nil, -1)
			k.make(n + "/c")
			k.delete(n+"/c", -1)
			k.hasACL(n, []proto.ACL{allow(alice, 0)})
			k.setACL(n, proto.OpenACL, -1)
		})),
	requires(Super, check("acl/super's limits", ">=3.5",
		"The super user's requests fail for reasons other than permissions: wrong versions, remaining children, system znodes.",
		func(t *trial, k *conn) {
			k.auth("digest", t.s.o.Super)
			n := k.create(t.path("n"), nil, 0)
			k.make(n + "/c")
			k.want(proto.BadVersion, opSet(n, nil, 7))
			k.want(proto.NotEmpty, opDelete(n, -1))
			k.want(proto.InvalidACL, opSetACL(n, noACL, -1))
			for _, p := range []string{"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"} {
				k.want(proto.BadArguments, opDelete(p, -1))
			}
		})),
}

// noACL is an empty list, which is not a null one.
var noACL = []proto.ACL{}
