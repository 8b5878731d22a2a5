package conform

import (
	"bytes"
	"fmt"
	"math"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/releases"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

var handshakeChecks = []Check{
	check("handshake/new session", ">=3.0",
		"A ConnectRequest with session id 0 is answered with a new id other than 0, protocol version 0 and a password of 16 bytes.",
		func(t *trial) {
			k := t.dial()
			r := k.handshake(rawclient.NewSession(30 * time.Second))
			t.ensure(r.SessionID != 0, "the session's id is 0")
			t.equal("protocol version", r.ProtocolVersion, int32(0))
			t.equal("the password's length", len(r.Password), proto.PasswordLen)
			t.ensure(!bytes.Equal(r.Password, make([]byte, proto.PasswordLen)), "the password is all zeros")
			t.equal("readOnly", r.ReadOnly, false)
		}),
	check("handshake/readOnly byte", ">=3.4",
		"The reply has the readOnly byte, 37 bytes in all, if the request had it.",
		func(t *trial) {
			k := t.dial()
			k.sendFrame(rawclient.NewSession(30 * time.Second).Append(nil))
			t.equal("the reply's length", len(k.next().Payload), 37)
		}),
	check("handshake/no readOnly byte", releases.ShortHandshake,
		"A request without the readOnly byte, as old clients send it, gets a reply without it, 36 bytes in all.",
		func(t *trial) {
			q := rawclient.NewSession(30 * time.Second)
			q.HasReadOnly = false
			k := t.dial()
			k.sendFrame(q.Append(nil))
			f := k.next()
			t.equal("the reply's length", len(f.Payload), 36)
			k.Session = *f.Body.(*proto.ConnectReply)
			k.ping()
		}),
	check("handshake/readOnly requested", ">=3.4",
		"A client that accepts read-only mode gets readOnly=false from a server that is not in that mode.",
		func(t *trial) {
			q := rawclient.NewSession(30 * time.Second)
			q.ReadOnly = true
			k := t.dial()
			r := k.handshake(q)
			t.ensure(r.SessionID != 0, "no session was opened")
			t.equal("readOnly", r.ReadOnly, false)
			k.make(t.path("x"))
		}),
	check("handshake/protocol version", ">=3.0",
		"The protocol version of the request is ignored; that of the reply is 0.",
		func(t *trial) {
			for _, version := range []int32{1, 7, -1, math.MinInt32, math.MaxInt32} {
				q := rawclient.NewSession(30 * time.Second)
				q.ProtocolVersion = version
				k := t.dial()
				r := k.handshake(q)
				t.ensure(r.SessionID != 0, "no session was opened for version %d", version)
				t.equal("protocol version", r.ProtocolVersion, int32(0))
			}
		}),
	check("handshake/two sessions", ">=3.0",
		"Two sessions have different ids and different passwords.",
		func(t *trial) {
			a, b := t.connect().Session, t.connect().Session
			t.ensure(a.SessionID != b.SessionID, "both have the id %#x", a.SessionID)
			t.ensure(!bytes.Equal(a.Password, b.Password), "both have the password %x", a.Password)
		}),
	check("handshake/timeout too short", ">=3.0",
		"A timeout of 0, and a negative one, is raised to the minimum that the server allows, just like one of 1 ms.",
		func(t *trial) {
			least := t.timeoutFor(1)
			t.ensure(least > 0, "the least timeout is %d ms", least)
			for _, ms := range []int32{0, -1, math.MinInt32} {
				t.equal(fmt.Sprintf("the timeout for %d ms", ms), t.timeoutFor(ms), least)
			}
		}),
	check("handshake/timeout too long", ">=3.0",
		"A timeout above the maximum that the server allows is lowered to it.",
		func(t *trial) {
			least, most := t.timeoutFor(1), t.timeoutFor(math.MaxInt32)
			t.ensure(most > least && most < math.MaxInt32, "the least is %d ms and the longest %d ms", least, most)
			t.equal("the timeout for one more", t.timeoutFor(most+1), most)
		}),
	check("handshake/timeout accepted", ">=3.0",
		"A timeout between the two bounds, or equal to one of them, is accepted to the millisecond.",
		func(t *trial) {
			least, most := t.timeoutFor(1), t.timeoutFor(math.MaxInt32)
			for _, ms := range []int32{least, least + 1, least + (most-least)/3, most - 1, most} {
				t.equal("the timeout", t.timeoutFor(ms), ms)
			}
		}),
	check("handshake/zxid ahead", ">=3.0",
		"The connection of a client that has seen a later zxid than the server is closed without a reply, so that the client tries another server.",
		func(t *trial) {
			q := rawclient.NewSession(30 * time.Second)
			q.LastZxidSeen = math.MaxInt64
			k := t.dial()
			k.sendFrame(q.Append(nil))
			k.closed()
		}),
	check("handshake/zxid seen", ">=3.0",
		"A client that has seen the server's last zxid, an older one, 0 or a negative number is accepted.",
		func(t *trial) {
			zxid := t.connect().ping().Zxid
			for _, seen := range []int64{zxid, zxid - 1, 0, -1, math.MinInt64} {
				q := rawclient.NewSession(30 * time.Second)
				q.LastZxidSeen = seen
				r := t.dial().handshake(q)
				t.ensure(r.SessionID != 0, "no session was opened for zxid %d", seen)
			}
		}),
	check("handshake/zxid ahead keeps the session", ">=3.0",
		"A resumption that is refused because of its zxid does not affect the session.",
		func(t *trial, a *conn) {
			a.create(t.path("x"), nil, proto.FlagEphemeral)
			a.hangUp()
			q := rawclient.Resumption(a.Session)
			q.LastZxidSeen = math.MaxInt64
			k := t.dial()
			k.sendFrame(q.Append(nil))
			k.closed()
			t.equal("the owner", t.resume(a.Session).stat(t.path("x")).EphemeralOwner, a.Session.SessionID)
		}),
	check("handshake/unknown session", ">=3.0",
		"Resuming a session that never existed is answered with session 0, timeout 0 and a password of zeros, and the connection is closed.",
		func(t *trial) {
			q := rawclient.NewSession(30 * time.Second)
			q.SessionID, q.Password = 0x7766554433221100, []byte("0123456789abcdef")
			t.refused(q)
		}),
	check("handshake/session -1", ">=3.0",
		"Resuming session id -1 is refused, because no session has that id.",
		func(t *trial) {
			q := rawclient.NewSession(30 * time.Second)
			q.SessionID = -1
			t.refused(q)
		}),
	check("handshake/refusal without readOnly byte", releases.ShortHandshake,
		"A refusal is 36 bytes long, too, if the request had no readOnly byte.",
		func(t *trial) {
			q := rawclient.NewSession(30 * time.Second)
			// Not the id of another check: a server closes the older connection of an id.
			q.SessionID, q.HasReadOnly = 0x7766554433221101, false
			t.equal("the reply's length", len(t.refused(q).Append(nil)), 36)
		}),
	check("handshake/wrong password", ">=3.0",
		"A resumption with a wrong password is refused like that of an unknown session, and the session continues.",
		func(t *trial, a, b *conn) {
			a.create(t.path("x"), nil, proto.FlagEphemeral)
			a.hangUp() // because ZooKeeper closes it before it checks the password
			q := rawclient.Resumption(a.Session)
			q.Password = bytes.Clone(q.Password)
			q.Password[15] ^= 1
			for range 3 {
				t.refused(q)
			}
			b.stat(t.path("x"))
			t.equal("the owner", t.resume(a.Session).stat(t.path("x")).EphemeralOwner, a.Session.SessionID)
		}),
	check("handshake/password of another length", ">=3.0",
		"A resumption with a password that is null, empty, too short or too long is refused.",
		func(t *trial, a *conn) {
			a.hangUp()
			good := a.Session.Password
			for _, wrong := range [][]byte{nil, {}, good[:15], append(bytes.Clone(good), 0)} {
				q := rawclient.Resumption(a.Session)
				q.Password = wrong
				t.refused(q)
			}
			t.resume(a.Session).ping()
		}),
	check("handshake/password of a new session", ">=3.5",
		"The password in a request for a new session is ignored, even if it is null or has the wrong length.",
		func(t *trial) {
			for _, password := range [][]byte{nil, {}, []byte("short"), repeat(16), repeat(1000)} {
				q := rawclient.NewSession(30 * time.Second)
				q.Password = password
				r := t.dial().handshake(q)
				t.ensure(r.SessionID != 0, "no session was opened")
				t.equal("the password's length", len(r.Password), proto.PasswordLen)
			}
		}),
	check("handshake/trailing bytes", ">=3.4",
		"Bytes after the readOnly byte are ignored.",
		func(t *trial) {
			k := t.dial()
			k.sendFrame(append(rawclient.NewSession(30*time.Second).Append(nil), "something"...))
			r := k.readHandshake()
			t.ensure(r.SessionID != 0, "no session was opened")
			k.ping()
		}),
	check("handshake/requests after it", ">=3.0",
		"Requests sent right after the ConnectRequest are answered once the session is open.",
		func(t *trial) {
			k := t.dial()
			k.queuePayload(rawclient.NewSession(30 * time.Second).Append(nil))
			k.send(opCreate(t.path("x"), nil, proto.FlagEphemeral), opExists(t.path("x")))
			r := k.readHandshake()
			t.ensure(r.SessionID != 0, "no session was opened")
			k.answers(proto.OK)
			f := k.answers(proto.OK)
			t.equal("the owner", f.Body.(*proto.Stat).EphemeralOwner, r.SessionID)
		}),
	check("handshake/in pieces", ">=3.0",
		"A ConnectRequest may arrive one byte at a time.",
		func(t *trial) {
			k := t.dial()
			q := rawclient.NewSession(30 * time.Second)
			k.talk.FromClient(q.Append(nil))
			payload := q.Append(nil)
			for i, b := range append(jute.AppendInt(nil, int32(len(payload))), payload...) {
				k.write([]byte{b}, fmt.Sprintf("byte %d of a ConnectRequest", i))
			}
			r := k.readHandshake()
			t.ensure(r.SessionID != 0, "no session was opened")
		}),
	check("handshake/truncated", ">=3.0",
		"A frame that is too short for a ConnectRequest closes the connection without a reply.",
		func(t *trial) {
			q := rawclient.NewSession(30 * time.Second)
			q.HasReadOnly = false
			whole := q.Append(nil)
			for _, n := range []int{0, 1, 4, 12, 16, 24, 27, 28, 43} {
				k := t.dial()
				k.sendFrame(whole[:n])
				k.closed()
			}
		}),
	check("handshake/frame length", ">=3.0",
		"A first frame whose length is negative or above the limit closes the connection without a reply.",
		func(t *trial) {
			for _, n := range []int32{-1, -2, math.MinInt32, maxFrame + 1, math.MaxInt32} {
				k := t.dial()
				k.write(jute.AppendInt(nil, n), fmt.Sprintf("a frame's length of %d", n))
				k.closed()
			}
		}),
	check("handshake/password length", ">=3.0",
		"A password whose length is below -1 or exceeds the frame closes the connection without a reply.",
		func(t *trial) {
			for _, n := range []int{-2, math.MinInt32, 17, math.MaxInt32} {
				k := t.dial()
				k.sendFrame(body(0, int64(0), 30000, int64(0), n, make([]byte, 16)))
				k.closed()
			}
		}),
}

// timeoutFor returns the timeout, in ms, that the server gives for a requested one.
func (t *trial) timeoutFor(ms int32) int32 {
	q := rawclient.NewSession(0)
	q.Timeout = ms
	k := t.dial()
	r := k.handshake(q)
	t.ensure(r.SessionID != 0, "no session was opened for a timeout of %d ms", ms)
	k.send(request{Op: proto.OpCloseSession})
	if k.nextOrEnd() != nil { // otherwise a short session has ended already
		k.closed()
	}
	return r.Timeout
}

// refused sends q. The server must refuse it and close the connection.
func (t *trial) refused(q *proto.ConnectRequest) *proto.ConnectReply {
	k := t.dial()
	r := k.handshake(q)
	want := proto.ConnectReply{Password: make([]byte, proto.PasswordLen), HasReadOnly: r.HasReadOnly}
	t.equal("the refusal", r, want)
	k.closed()
	return &r
}
