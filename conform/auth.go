package conform

import (
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

// tryAuth sends an auth request and returns its reply, whatever its code.
func (k *conn) tryAuth(scheme string, auth []byte) *wire.Frame {
	k.sendXid(proto.XidAuth, req(proto.OpAuth, &proto.AuthRequest{Scheme: scheme, Auth: auth}))
	return k.answer()
}

// authRefused checks that f refuses an auth request and that the connection ends. It
// returns a new connection of the session.
func (k *conn) authRefused(f *wire.Frame) *conn {
	k.judge(f, proto.AuthFailed)
	k.t.equal("the refusal's zxid", f.Zxid, int64(0))
	k.closed()
	return k.t.resume(k.Session)
}

// authIDs returns the connection's identities except its address, sorted.
func (k *conn) authIDs() (ids []proto.ID) {
	for _, id := range k.ids() {
		if id.Scheme != proto.SchemeIP {
			ids = append(ids, id)
		}
	}
	return ids
}

func digest(user string) proto.ID { return proto.ID{Scheme: proto.SchemeDigest, ID: user} }

var authChecks = []Check{
	check("auth/reply", ">=3.0",
		"auth with xid -4 is answered with xid -4, zxid 0 and no body.",
		func(t *trial) {
			f := t.connect().auth("digest", alice+":"+alice)
			t.equal("the zxid", f.Zxid, int64(0))
			t.equal("the body's length", len(f.Rest), 0)
		}),
	check("auth/any xid", ">=3.7",
		"auth with another xid is answered with that xid, as some clients expect.",
		func(t *trial, k *conn) {
			f := k.do(req(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte(alice + ":" + alice)}))
			t.equal("the zxid", f.Zxid, int64(0))
			t.equal("the identities", k.authIDs(), []proto.ID{digest(alice)})
		}),
	check("auth/type", ">=3.4",
		"The field type of an auth request is ignored.",
		func(t *trial, k *conn) {
			k.sendXid(proto.XidAuth, req(proto.OpAuth, &proto.AuthRequest{Type: 4711, Scheme: "digest", Auth: []byte(alice + ":" + alice)}))
			k.answers(proto.OK)
			k.protect("n", allow(alice, proto.PermAll))
			k.get(t.path("n"))
		}),
	check("auth/digest", ">=3.4",
		"The identity of digest is USER:BASE64(SHA1(USER:PASSWORD)), where the user ends at the first colon.",
		func(t *trial) {
			for i, x := range []struct{ auth, id string }{
				{"u:p", "u:Jq7wMyA/w2Vd5WIDAKdu4OIIFEQ="},
				{"super:secret", "super:lK75jTNcA+U9vtVEw5vB51mj/w4="},
				{"carol:a:b", "carol:" + digestID("carol", "a:b")[6:]},
				{"carol:", "carol:" + digestID("carol", "")[6:]},
				{":p", digestID("", "p")},
			} {
				k := t.connect()
				k.auth("digest", x.auth)
				n := k.protect(string(rune('a'+i)), allowAll(proto.PermAdmin), aclEntry(proto.PermRead, "digest", x.id))
				k.get(n)
				k.setACL(n, []proto.ACL{allowAll(proto.PermAdmin), aclEntry(proto.PermWrite, "auth", "")}, -1)
				k.hasACL(n, []proto.ACL{allowAll(proto.PermAdmin), aclEntry(proto.PermWrite, "digest", x.id)})
			}
		}),
	check("auth/digest of anything", ">=3.7",
		"Scheme digest accepts everything: a text without a colon is a user name, and so is an empty one.",
		func(t *trial) {
			for _, auth := range []string{"nocolon", ""} {
				k := t.connect()
				k.judge(k.tryAuth("digest", []byte(auth)), proto.OK)
				t.equal("the identities", k.authIDs(), []proto.ID{digest(auth)})
			}
		}),
	check("auth/ip", ">=3.7",
		"auth of scheme ip is accepted and adds no identity, whatever its content.",
		func(t *trial, k *conn) {
			before := k.ids()
			k.judge(k.tryAuth("ip", []byte("10.9.8.7")), proto.OK)
			t.equal("the identities", k.ids(), before)
		}),
	check("auth/refused schemes", ">=3.4",
		"A scheme that is unknown, or that clients cannot use, is answered AuthFailed with zxid 0, and the connection is closed. The session continues.",
		func(t *trial, k *conn) {
			k.create(t.path("n"), nil, proto.FlagEphemeral)
			for _, scheme := range []string{"world", "auth", "super", "nobody", "Digest", ""} {
				k = k.authRefused(k.tryAuth(scheme, []byte("anyone")))
			}
			t.equal("the owner", k.stat(t.path("n")).EphemeralOwner, k.Session.SessionID)
		}),
	check("auth/null scheme", ">=3.6",
		"A null scheme is refused like an unknown one.",
		func(t *trial, k *conn) {
			k.authRefused(k.call(req(proto.OpAuth, body(0, -1, "u:p"))))
		}),
	check("auth/several", ">=3.7",
		"Identities add up: each one can be used, and authenticating again with the same one changes nothing.",
		func(t *trial, k *conn) {
			for _, user := range []string{alice, bob, alice} {
				k.auth("digest", user+":"+user)
			}
			t.equal("the identities", k.authIDs(), []proto.ID{digest(alice), digest(bob)})
			k.get(k.protect("a", allow(alice, proto.PermAll)))
			k.get(k.protect("b", allow(bob, proto.PermAll)))
		}),
	check("auth/whoAmI", ">=3.7",
		"whoAmI returns the address of the connection, and for digest the user without the digest.",
		func(t *trial, k *conn) {
			t.equal("the number of identities", len(k.ids()), 1)
			k.address()
			k.auth("digest", alice+":"+alice)
			t.equal("the identities", k.authIDs(), []proto.ID{digest(alice)})
			t.equal("the number of identities", len(k.ids()), 2)
		}),
	requires(Super, check("auth/super", ">=3.7",
		"The super user has two identities, digest and super, and whoAmI shows the latter without a user; in an ACL, auth stands only for the former.",
		func(t *trial, k *conn) {
			k.auth("digest", t.s.o.Super)
			ids := k.authIDs()
			t.equal("the number of identities", len(ids), 2)
			t.equal("the second identity", ids[1], proto.ID{Scheme: proto.SchemeSuper})
			n := k.protect("n", aclEntry(proto.PermAll, "auth", ""))
			acl, _ := k.getACL(n)
			t.equal("the number of entries", len(acl), 1)
			t.equal("the entry's scheme", acl[0].Scheme, proto.SchemeDigest)
		})),
	with(NoSASL, check("auth/sasl not configured", ">=3.7",
		"If SASL is not configured, the operation sasl is answered with a null token and zxid 0, whatever its content, and the connection stays open.",
		func(t *trial, k *conn) {
			for _, token := range []string{"", "token"} {
				xid := k.queue(req(proto.OpSASL, body(token)))
				k.flush()
				f := k.reply()
				k.judge(f, proto.OK)
				t.equal("the xid", f.Xid, xid)
				t.equal("the zxid", f.Zxid, int64(0))
				t.equal("the reply after its header", raw(f.Payload[16:]), body(-1))
			}
			t.equal("the identities", len(k.authIDs()), 0)
			k.ping()
		})),
}
