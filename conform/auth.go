package conform

import (
	"github.com/lockkeeper/lockkeeper/internal/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

// opSASL is the operation sasl, which needs no row in the table of operations here.
const opSASL proto.OpCode = 102

// prove sends an auth request and returns its reply, whatever it is.
func (k *conn) prove(scheme string, auth []byte) *wire.Frame {
	k.queueXid(proto.XidAuth, proto.OpAuth, &proto.AuthRequest{Scheme: scheme, Auth: auth})
	k.flush()
	return k.answer(proto.XidAuth, proto.OpAuth)
}

// turnedAway makes sure that f refuses an auth request and that the connection
// ends, and gives the session another.
func (k *conn) turnedAway(f *wire.Frame) *conn {
	k.judge(f, proto.AuthFailed)
	k.t.equal("the refusal's zxid", f.Zxid, int64(0))
	k.closed()
	return k.t.resume(k.Session)
}

// proved are the connection's identities, but for its address, sorted.
func (k *conn) proved() (ids []proto.ID) {
	for _, id := range k.ids() {
		if id.Scheme != proto.SchemeIP {
			ids = append(ids, id)
		}
	}
	return ids
}

func digest(user string) proto.ID { return proto.ID{Scheme: proto.SchemeDigest, ID: user} }

var authChecks = []Check{
	{
		Name: "auth/reply",
		Says: "auth with xid -4 is answered with xid -4, the zxid 0 and no body.",
		In:   ">=3.0",
		run: func(t *trial) {
			f := t.connect().auth("digest", alice+":"+alice)
			t.equal("the zxid", f.Zxid, int64(0))
			t.equal("the body's length", len(f.Rest), 0)
		},
	},
	{
		Name: "auth/any xid",
		Says: "auth with another xid is answered with that one, as some clients expect.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.connect()
			f := k.do(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte(alice + ":" + alice)})
			t.equal("the zxid", f.Zxid, int64(0))
			t.equal("the identities", k.proved(), []proto.ID{digest(alice)})
		},
	},
	{
		Name: "auth/type",
		Says: "The type in an auth request means nothing.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.connect()
			k.queueXid(proto.XidAuth, proto.OpAuth, &proto.AuthRequest{Type: 4711, Scheme: "digest", Auth: []byte(alice + ":" + alice)})
			k.flush()
			k.judge(k.answer(proto.XidAuth, proto.OpAuth), proto.OK)
			k.protect("n", allow(alice, proto.PermAll))
			k.get(t.path("n"))
		},
	},
	{
		Name: "auth/digest",
		Says: "The identity of digest is USER:BASE64(SHA1(USER:PASSWORD)), where the user ends at the first colon.",
		In:   ">=3.4",
		run: func(t *trial) {
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
				acl, _ := k.getACL(n)
				t.equal("the ACL", acl, []proto.ACL{allowAll(proto.PermAdmin), aclEntry(proto.PermWrite, "digest", x.id)})
			}
		},
	},
	{
		Name: "auth/digest of anything",
		Says: "digest never refuses: a text without a colon is a user's name, and an empty one is a name too.",
		In:   ">=3.7",
		run: func(t *trial) {
			for _, auth := range []string{"nocolon", ""} {
				k := t.connect()
				k.judge(k.prove("digest", []byte(auth)), proto.OK)
				t.equal("the identities", k.proved(), []proto.ID{digest(auth)})
			}
		},
	},
	{
		Name: "auth/wrong password",
		Says: "A wrong password proves another identity: it is accepted and opens nothing.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.connect()
			k.auth("digest", alice+":wrong")
			n := k.protect("n", allow(alice, proto.PermAll))
			k.want(proto.NoAuth, proto.OpGetData, &proto.PathWatch{Path: n})
			k.auth("digest", alice+":"+alice)
			k.get(n)
		},
	},
	{
		Name: "auth/ip",
		Says: "auth of scheme ip is accepted and adds nothing, whatever it says.",
		In:   ">=3.7",
		run: func(t *trial) {
			k := t.connect()
			before := k.ids()
			k.judge(k.prove("ip", []byte("10.9.8.7")), proto.OK)
			t.equal("the identities", k.ids(), before)
		},
	},
	{
		Name: "auth/refused schemes",
		Says: "A scheme that nobody can prove, or that is unknown, is answered AuthFailed with the zxid 0, and the connection is closed.",
		In:   ">=3.4",
		run: func(t *trial) {
			for _, scheme := range []string{"world", "auth", "super", "nobody", "Digest", ""} {
				k := t.connect()
				k.turnedAway(k.prove(scheme, []byte("anyone")))
			}
		},
	},
	{
		Name: "auth/null scheme",
		Says: "A null scheme is refused like an unknown one.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			k.turnedAway(k.callRaw(proto.OpAuth, body(0, -1, "u:p")))
		},
	},
	{
		Name: "auth/session after a refusal",
		Says: "A refused auth ends the connection and not the session, which can be resumed.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.connect()
			k.create(t.path("n"), nil, proto.FlagEphemeral)
			k = k.turnedAway(k.prove("nobody", nil))
			t.equal("the owner", k.stat(t.path("n")).EphemeralOwner, k.Session.SessionID)
		},
	},
	{
		Name: "auth/undecodable",
		Says: "An auth request that cannot be decoded ends the connection without a reply.",
		In:   ">=3.6",
		run: func(t *trial) {
			for _, b := range [][]byte{nil, {1, 2}, body(0, 1000), body(0, "digest", 9, []byte("short"))} {
				k := t.connect()
				k.queueRaw(proto.OpAuth, b)
				k.flush()
				k.closed()
				t.resume(k.Session)
			}
		},
	},
	{
		Name: "auth/from then on",
		Says: "An identity counts for the requests behind its auth and not for those before it.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.connect()
			n := k.protect("n", allow(alice, proto.PermAll))
			read := &proto.PathWatch{Path: n}
			before := k.queue(proto.OpGetData, read)
			k.queueXid(proto.XidAuth, proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte(alice + ":" + alice)})
			after := k.queue(proto.OpGetData, read)
			k.flush()
			got := map[int32]proto.Code{}
			for range 3 { // the reply to auth may overtake
				f := k.reply()
				got[f.Xid] = f.Code
			}
			t.equal("the replies' codes", got, map[int32]proto.Code{before: proto.NoAuth, proto.XidAuth: proto.OK, after: proto.OK})
		},
	},
	{
		Name: "auth/several",
		Says: "Identities add up; each that was proved can be used, and proving one again changes nothing.",
		In:   ">=3.7",
		run: func(t *trial) {
			k := t.connect()
			for _, user := range []string{alice, bob, alice} {
				k.auth("digest", user+":"+user)
			}
			t.equal("the identities", k.proved(), []proto.ID{digest(alice), digest(bob)})
			k.get(k.protect("a", allow(alice, proto.PermAll)))
			k.get(k.protect("b", allow(bob, proto.PermAll)))
		},
	},
	{
		Name: "auth/own connection",
		Says: "An identity belongs to the connection that proved it and to no other.",
		In:   ">=3.4",
		run: func(t *trial) {
			k, other := t.as(alice), t.connect()
			n := k.protect("n", allow(alice, proto.PermAll))
			other.want(proto.NoAuth, proto.OpGetData, &proto.PathWatch{Path: n})
		},
	},
	{
		Name: "auth/lost at reconnect",
		Says: "A session that is resumed has lost its identities until they are proved again.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.as(alice)
			n := k.protect("n", allow(alice, proto.PermAll))
			k.hangUp()
			k = t.resume(k.Session)
			k.want(proto.NoAuth, proto.OpGetData, &proto.PathWatch{Path: n})
			k.auth("digest", alice+":"+alice)
			k.get(n)
		},
	},
	{
		Name:  "auth/zxid",
		Says:  "auth consumes no zxid, refused or not.",
		In:    ">=3.4",
		Alone: true,
		run: func(t *trial) {
			t.undisturbed(func(string) {
				k, other := t.connect(), t.connect()
				before := k.ping().Zxid
				k.auth("digest", alice+":"+alice)
				other.turnedAway(other.prove("nobody", nil))
				t.equal("the zxid afterwards", k.ping().Zxid, before)
			})
		},
	},
	{
		Name: "auth/whoAmI",
		Says: "whoAmI tells the address of the connection, and of digest the user without the digest.",
		In:   ">=3.7",
		run: func(t *trial) {
			k := t.connect()
			t.equal("the number of identities", len(k.ids()), 1)
			k.address()
			k.auth("digest", alice+":"+alice)
			t.equal("the identities", k.proved(), []proto.ID{digest(alice)})
			t.equal("the number of identities", len(k.ids()), 2)
		},
	},
	{
		Name:  "auth/super",
		Says:  "The super user has two identities, that of digest and super, which whoAmI shows without a user; auth in an ACL stands for the first alone.",
		In:    ">=3.7",
		Needs: []Feature{Super},
		run: func(t *trial) {
			k := t.connect()
			k.auth("digest", t.s.o.Super)
			ids := k.proved()
			t.equal("the number of identities", len(ids), 2)
			t.equal("the second identity", ids[1], proto.ID{Scheme: proto.SchemeSuper})
			n := k.protect("n", aclEntry(proto.PermAll, "auth", ""))
			acl, _ := k.getACL(n)
			t.equal("the number of entries", len(acl), 1)
			t.equal("the entry's scheme", acl[0].Scheme, proto.SchemeDigest)
		},
	},
	{
		Name: "auth/sasl not configured",
		Says: "Where SASL is not configured the operation sasl is answered with a null token and the zxid 0, whatever it says, and the connection goes on.",
		In:   ">=3.6",
		run: func(t *trial) {
			k := t.connect()
			for _, token := range []string{"", "token"} {
				xid := k.queueRaw(opSASL, body(token))
				k.flush()
				f := k.reply()
				k.judge(f, proto.OK)
				t.equal("the xid", f.Xid, xid)
				t.equal("the zxid", f.Zxid, int64(0))
				t.equal("the reply behind its header", f.Payload[16:], body(-1))
			}
			t.equal("the identities", len(k.proved()), 0)
			k.ping()
		},
	},
}
