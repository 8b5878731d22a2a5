package conform

import (
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// short is the timeout requested for sessions that are to expire. It is long enough
// for a slow machine. The server may raise it.
const short = time.Second

var sessionChecks = []Check{
	check("sessions/resume", ">=3.0",
		"A resumption is answered with the session's id and password.",
		func(t *trial, a *conn) {
			a.hangUp()
			b := t.resume(a.Session)
			t.equal("the answer", b.Session, a.Session)
			b.ping()
		}),
	check("sessions/resume loses watches", ">=3.0",
		"Watches end with their connection, even though the session continues.",
		func(t *trial, k, w *conn) {
			n := k.create(t.path("n"), nil, 0)
			k.watch(opGet(n), opChildren(n))
			k.hangUp()
			k = t.resume(k.Session)
			w.set(n, nil, -1)
			w.delete(n, -1)
			k.noEvent()
		}),
	check("sessions/resume loses identities", ">=3.0",
		"Identities end with their connection, even though the session continues.",
		func(t *trial, a *conn) {
			a.auth("digest", alice+":"+alice)
			a.createACL(t.path("x"), nil, []proto.ACL{allow(alice, proto.PermAll)}, 0)
			a.get(t.path("x"))
			a.hangUp()
			b := t.resume(a.Session)
			b.want(proto.NoAuth, opGet(t.path("x")))
			b.auth("digest", alice+":"+alice)
			b.get(t.path("x"))
		}),
	check("sessions/resume closes the old connection", ">=3.0",
		"If a session is resumed while its old connection is still open, the new connection takes over and the old one is closed.",
		func(t *trial, a *conn) {
			b := t.resume(a.Session)
			a.closed()
			b.ping()
			c := t.resume(a.Session)
			b.closed()
			c.create(t.path("x"), nil, proto.FlagEphemeral)
		}),
	check("sessions/resume with another timeout", ">=3.0",
		"A resumption negotiates the timeout again.",
		func(t *trial) {
			least := t.timeoutFor(1)
			for _, ms := range []int32{1, least + 3, 0} {
				a := t.connect() // a session of its own, since one that is made short may end
				a.hangUp()
				q := rawclient.Resumption(a.Session)
				q.Timeout = ms
				b := t.dial()
				r := b.handshake(q)
				t.equal("the session", r.SessionID, a.Session.SessionID)
				t.equal("the timeout", r.Timeout, max(ms, least))
			}
		}),
	check("sessions/resume shortens the life", ">=3.5",
		"The timeout negotiated by a resumption decides when the session expires.",
		func(t *trial, a *conn) {
			a.create(t.path("x"), nil, proto.FlagEphemeral)
			watcher := t.connect()
			watcher.watch(opExists(t.path("x")))
			a.hangUp()
			q := rawclient.Resumption(a.Session)
			q.Timeout = int32(short.Milliseconds())
			b := t.dial()
			began := time.Now()
			b.handshake(q)
			b.hangUp()
			watcher.expires(b.Session, began, t.path("x"))
		}),
	check("sessions/resume lengthens the life", ">=3.0",
		"A session that was resumed with a longer timeout does not expire after the shorter one.",
		func(t *trial) {
			began := time.Now()
			a, b := t.connectFor(short), t.connectFor(short)
			a.create(t.path("a"), nil, proto.FlagEphemeral)
			b.create(t.path("b"), nil, proto.FlagEphemeral)
			watcher := t.connect()
			watcher.watch(opExists(t.path("b")))
			a.hangUp()
			q := rawclient.Resumption(a.Session)
			q.Timeout *= 6
			a = t.dial()
			if a.handshake(q); a.Session.SessionID == 0 && time.Since(began) > short {
				return // too late on a slow machine
			}
			t.equal("the session", a.Session.SessionID, q.SessionID)
			began = time.Now()
			b.ping()
			watcher.expires(b.Session, began, t.path("b"))
			if time.Since(began) < time.Duration(a.Session.Timeout)*time.Millisecond {
				watcher.stat(t.path("a"))
			}
		}),
	check("sessions/hanging up", ">=3.0",
		"A connection that ends without closeSession leaves the session open, with its ephemeral znodes, also when it is resumed. Other sessions do not notice.",
		func(t *trial, a, b *conn) {
			a.create(t.path("x"), nil, proto.FlagEphemeral)
			b.watch(opExists(t.path("x")))
			a.hangUp()
			b.noEvent()
			c := t.resume(a.Session)
			b.noEvent()
			for _, k := range []*conn{b, c} {
				t.equal("the owner", k.stat(t.path("x")).EphemeralOwner, a.Session.SessionID)
			}
			c.closeSession()
			b.event(deleted(t.path("x")))
		}),
	check("sessions/expiry", ">=3.0",
		"A session that is silent for its timeout expires: its connection is closed without a frame, and its ephemeral znodes are deleted with all their events.",
		func(t *trial, b *conn) {
			a, began := t.shortLived(func(a *conn) {
				a.create(t.path("x"), nil, proto.FlagEphemeral)
				b.watch(opExists(t.path("x")), opChildren(t.path("")))
				b.events = nil // of an earlier try
			})
			b.expires(a.Session, began, t.path("x"))
			b.event(childrenChanged(t.path("")))
			b.missing(t.path("x"))
			a.closed()
		}),
	check("sessions/expiry in one transaction", ">=3.0",
		"All ephemeral znodes of a session that expires are deleted in one transaction, so their parents get the same pzxid.",
		func(t *trial, b *conn) {
			var parents []string
			for i := range 5 {
				parents = append(parents, b.create(t.path(fmt.Sprintf("p%d", i)), nil, 0))
			}
			before := b.stat(parents[0]).Cversion
			a, began := t.shortLived(func(a *conn) {
				before = b.stat(parents[0]).Cversion
				for _, p := range parents {
					a.create(p+"/x", nil, proto.FlagEphemeral)
				}
				a.create(parents[0]+"/y", nil, proto.FlagEphemeral)
			})
			b.watch(opExists(parents[2] + "/x"))
			b.expires(a.Session, began, parents[2]+"/x")
			first := b.stat(parents[0])
			t.equal("children left", first.NumChildren, int32(0))
			t.equal("cversion", first.Cversion, before+4)
			for _, p := range parents[1:] {
				t.equal("pzxid of "+p, b.stat(p).Pzxid, first.Pzxid)
			}
		}),
	check("sessions/expired", ">=3.0",
		"A session that has expired cannot be resumed.",
		func(t *trial, b *conn) {
			a, began := t.shortLived(func(a *conn) {
				a.create(t.path("x"), nil, proto.FlagEphemeral)
				b.watch(opExists(t.path("x")))
				b.events = nil
			})
			a.hangUp()
			b.expires(a.Session, began, t.path("x"))
			b.missing(t.path("x")) // by now ZooKeeper has closed the session's connections, which it does after the event, even to a new one
			t.refused(rawclient.Resumption(a.Session))
		}),
	check("sessions/pings keep it", ">=3.0",
		"Pings keep a session alive.",
		keeps(func(k *conn) { k.ping() })),
	check("sessions/reads keep it", ">=3.0",
		"Requests of any kind keep a session alive, including requests that fail.",
		keeps(func(k *conn) { k.missing(k.t.path("missing")) })),
	check("sessions/resuming keeps it", ">=3.0",
		"Resuming a session before it expires gives it a full timeout again.",
		func(t *trial, watcher *conn) {
			a, _ := t.shortLived(func(a *conn) {
				a.create(t.path("x"), nil, proto.FlagEphemeral)
				watcher.watch(opExists(t.path("x")))
				watcher.events = nil
			})
			t.wait(time.Duration(a.Session.Timeout) * time.Millisecond / 2)
			a.hangUp()
			b := t.dial()
			began := time.Now()
			if r := b.handshake(rawclient.Resumption(a.Session)); r.SessionID == 0 {
				return // too late on a slow machine
			}
			watcher.expires(b.Session, began, t.path("x"))
		}),
	check("sessions/auth does not keep it", ">=3.0",
		"auth requests alone do not keep a session alive.",
		func(t *trial, watcher *conn) {
			a, began := t.shortLived(func(a *conn) { a.create(t.path("x"), nil, proto.FlagEphemeral) })
			t.eventually(2*time.Duration(a.Session.Timeout)*time.Millisecond, "the end of a session that only sends auth", func() bool {
				a.sendXid(proto.XidAuth, req(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte("carol:carol")}))
				t.wait(50 * time.Millisecond)
				return watcher.call(opExists(t.path("x"))).Code == proto.NoNode
			})
			t.notBefore(a.Session, began)
		}),
	check("sessions/close", ">=3.0",
		"closeSession is answered without a body, and then the server closes the connection.",
		func(t *trial) {
			f := t.connect().closeSession()
			t.equal("the reply's body", len(f.Rest), 0)
		}),
	check("sessions/close deletes ephemerals", ">=3.0",
		"closeSession deletes the session's ephemeral znodes, and no others, in one transaction, whose zxid is in the reply.",
		func(t *trial, a, b *conn) {
			for _, p := range []string{"p", "q", "r"} {
				b.make(t.path(p))
				a.create(t.path(p+"/a"), nil, proto.FlagEphemeral)
				b.create(t.path(p+"/b"), nil, proto.FlagEphemeral)
				a.make(t.path(p + "/c"))
			}
			zxid := a.closeSession().Zxid
			for _, p := range []string{"p", "q", "r"} {
				t.equal("children of "+p, b.children(t.path(p)), []string{"b", "c"})
				s := b.stat(t.path(p))
				t.equal("pzxid of "+p, s.Pzxid, zxid)
				t.equal("cversion of "+p, s.Cversion, int32(4)) // three creates, and the delete
			}
		}),
	check("sessions/close after a create", ">=3.0",
		"An ephemeral znode whose create is sent right before closeSession is deleted, too.",
		func(t *trial, a *conn) {
			a.send(opCreate(t.path("x"), nil, proto.FlagEphemeral), request{Op: proto.OpCloseSession})
			a.answers(proto.OK, proto.OK)
			a.closed()
			b := t.connect()
			b.missing(t.path("x"))
			t.equal("cversion of the parent", b.stat(t.path("")).Cversion, int32(2))
		}),
	check("sessions/requests after a close", ">=3.0",
		"Requests sent after closeSession have no effect; if one is answered before the connection ends, the code is SessionExpired or UnknownSession.",
		func(t *trial, a *conn) {
			a.queue(request{Op: proto.OpCloseSession}, opExists(t.path("")), opCreate(t.path("x"), nil, 0))
			a.send(opCreate(t.path("y"), nil, proto.FlagEphemeral))
			a.answers(proto.OK)
			for f := a.nextOrEnd(); f != nil; f = a.nextOrEnd() {
				t.ensure(f.Code == proto.SessionExpired || f.Code == proto.UnknownSession, "a request after closeSession is answered %s", f.Code)
			}
			b := t.connect()
			b.missing(t.path("x"), t.path("y"))
		}),
	check("sessions/closed", ">=3.0",
		"A session that was closed cannot be resumed.",
		func(t *trial, a *conn) {
			a.closeSession()
			t.refused(rawclient.Resumption(a.Session))
		}),
	check("sessions/after a close", ">=3.0",
		"Once closeSession is answered, a new session sees no ephemeral znode of the closed one and can create its own with the same name.",
		func(t *trial) {
			for range 5 {
				a := t.connect()
				a.create(t.path("x"), nil, proto.FlagEphemeral)
				a.closeSession()
			}
			t.equal("cversion of the parent", t.connect().stat(t.path("")).Cversion, int32(10))
		}),
}

// shortLived opens a session that is to expire. The client's last request was sent
// after began. setup may create ephemeral znodes; it is run again, with a new session,
// if it took so long that the session may have expired meanwhile.
func (t *trial) shortLived(setup func(*conn)) (k *conn, began time.Time) {
	const tries = 5
	for try := range tries {
		k = t.connectFor(short)
		start := time.Now()
		why := t.protect(func() {
			setup(k)
			began = time.Now()
			k.ping()
		})
		if why == "" {
			break
		}
		if time.Since(start) < time.Duration(k.Session.Timeout)*time.Millisecond || try == tries-1 {
			t.failf("%s", why)
		}
		t.protect(func() { t.resume(k.Session).closeSession() }) // fails if the session has expired
	}
	return k, began
}

// expires waits until a session has expired, which k learns from the deletion of its
// ephemeral znode at path. The session's last request was sent after began.
func (k *conn) expires(s proto.ConnectReply, began time.Time, path string) {
	usual := k.timeout
	k.timeout += 2 * time.Duration(s.Timeout) * time.Millisecond
	k.event(deleted(path))
	k.timeout = usual
	k.t.notBefore(s, began)
}

// notBefore checks that a session that has just expired lived for its whole timeout.
// Its last request was sent after began.
func (t *trial) notBefore(s proto.ConnectReply, began time.Time) {
	if lived := time.Since(began); lived < time.Duration(s.Timeout)*time.Millisecond {
		t.failf("the session expired after %v, but its timeout is %d ms", lived, s.Timeout)
	}
}

// keeps returns a check that a session does not expire while it keeps doing something.
func keeps(something func(*conn)) func(*trial) {
	return func(t *trial) {
		const tries = 5
		for try := range tries {
			k := t.connectFor(short)
			k.create(t.path(fmt.Sprint(try)), nil, proto.FlagEphemeral)
			timeout := time.Duration(k.Session.Timeout) * time.Millisecond
			late, last := false, time.Now()
			why := t.protect(func() {
				for began := last; time.Since(began) < timeout*5/2; t.wait(timeout / 5) {
					late = late || time.Since(last) > timeout*2/3
					last = time.Now()
					something(k)
				}
				k.stat(t.path(fmt.Sprint(try)))
			})
			late = late || time.Since(last) > timeout*2/3
			if why == "" {
				return
			}
			// On a slow machine the session may expire through no fault of the server.
			if !late || try == tries-1 {
				t.failf("%s", why)
			}
		}
	}
}
