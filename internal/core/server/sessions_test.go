package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestIdentity: the ids and passwords of sessions differ, and none can be derived from
// another.
func TestIdentity(t *testing.T) {
	noGoroutineLeft(t)
	p := open(t, server.Config{})
	const n = 300
	ids, passwords := map[int64]bool{}, map[string]bool{}
	var ones [16 * 8]int
	var before int64
	steps := map[int64]bool{}
	for range n {
		c := connect(t, p.dial)
		id, password := c.Session.SessionID, c.Session.Password
		if id>>56 != origin || len(password) != proto.PasswordLen {
			t.Fatalf("session %#x, password %x", id, password)
		}
		ids[id], passwords[string(password)], steps[id-before] = true, true, true
		before = id
		for i := range ones {
			ones[i] += int(password[i/8] >> (i % 8) & 1)
		}
		c.Close()
	}
	if len(ids) != n || len(passwords) != n || len(steps) < n-1 {
		t.Errorf("%d ids, %d steps between them and %d passwords of %d sessions", len(ids), len(steps), len(passwords), n)
	}
	for i, k := range ones { // expected are 150 with a standard deviation of 8.7
		if k < 85 || k > 215 {
			t.Errorf("bit %d of %d passwords is set %d times", i, n, k)
		}
	}
}

// TestRefusedResume: a client that resumes a session without the right to it is answered
// with session 0 and a password of sixteen zero bytes, and its connection is closed. The
// owner of the session is not affected.
func TestRefusedResume(t *testing.T) {
	overAll(t, server.Config{}, func(t *testing.T, p *port, dial rawtest.Dialer) {
		owner := connect(t, dial)
		must(owner.Create("/owned", nil, proto.FlagEphemeral))(t)
		must(owner.Get("/", true))(t)
		ended := connect(t, dial)
		must(ended.Call(proto.OpCloseSession, nil, nil))(t)
		expired := connect(t, dial)
		p.loop.expire(t, expired.Session.SessionID)
		good := owner.Session.Password
		wrong := bytes.Clone(good)
		wrong[15] ^= 1
		for name, q := range map[string]proto.ConnectRequest{
			"wrong password":   {SessionID: owner.Session.SessionID, Password: wrong},
			"zero password":    {SessionID: owner.Session.SessionID, Password: make([]byte, 16)},
			"no password":      {SessionID: owner.Session.SessionID},
			"short password":   {SessionID: owner.Session.SessionID, Password: good[:15]},
			"long password":    {SessionID: owner.Session.SessionID, Password: append(good[:16:16], 0)},
			"unknown session":  {SessionID: 42, Password: good},
			"negative session": {SessionID: -1, Password: good},
			"closed session":   {SessionID: ended.Session.SessionID, Password: ended.Session.Password},
			"expired session":  {SessionID: expired.Session.SessionID, Password: expired.Session.Password},
		} {
			for _, hasReadOnly := range []bool{true, false} {
				c := rawclient.New(must(dial())(t))
				q.Timeout, q.HasReadOnly = 10000, hasReadOnly
				if err := c.Handshake(&q); err != rawclient.ErrRefused {
					t.Fatalf("%s: %v", name, err)
				}
				if a := c.Session; a.Timeout != 0 || a.SessionID != 0 || !bytes.Equal(a.Password, make([]byte, 16)) || a.HasReadOnly != hasReadOnly {
					t.Errorf("%s: %+v", name, a)
				}
				closed(t, c)
				c.Close()
			}
		}
		alive(t, owner)
		c := rawclient.New(must(dial())(t))
		q := proto.ConnectRequest{LastZxidSeen: math.MaxInt64, SessionID: owner.Session.SessionID, Password: good, Timeout: 10000}
		if err := c.Handshake(&q); err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a client from the future: %v, not a closed connection", err)
		}
		must(owner.Set("/", []byte("x")))(t)
		if len(owner.Events) != 1 {
			t.Errorf("the owner's watch: %+v", owner.Events)
		}
	})
}

// TestResume: when a client resumes its session on another connection, the old one is
// closed and its watches and identities are gone, but the ephemerals stay.
func TestResume(t *testing.T) {
	overAll(t, server.Config{}, func(t *testing.T, _ *port, dial rawtest.Dialer) {
		other := connect(t, dial)
		old := connect(t, dial)
		must(old.Create("/data", nil, 0))(t)
		must(old.Create("/e", nil, proto.FlagEphemeral))(t)
		must(old.Call(proto.OpAuth, &proto.AuthRequest{Scheme: proto.SchemeDigest, Auth: []byte("u:p")}, nil))(t)
		must(old.Get("/data", true))(t)
		_, err := old.Exists("/missing", true)
		if err != proto.NoNode {
			t.Fatal(err)
		}
		f := must(old.Call(proto.OpGetChildren, &proto.PathWatch{Path: "/data", Watch: true}, nil))(t)

		c, err := rawclient.Resume(must(dial())(t), old.Session)
		check(t, err)
		t.Cleanup(func() { c.Close() })
		closed(t, old)
		if c.Session.SessionID != old.Session.SessionID || !bytes.Equal(c.Session.Password, old.Session.Password) {
			t.Errorf("%+v is not %+v", c.Session, old.Session)
		}
		ping := must(c.Call(proto.OpPing, nil, nil))(t)
		if ping.Zxid != f.Zxid {
			t.Errorf("a resume takes zxids: %d, then %d", f.Zxid, ping.Zxid)
		}
		if s := must(c.Exists("/e", false))(t); s.EphemeralOwner != c.Session.SessionID {
			t.Errorf("%+v", s)
		}
		var who proto.WhoAmIReply
		must(c.Call(proto.OpWhoAmI, nil, &who))(t)
		if len(who.IDs) != 1 {
			t.Errorf("the new connection is %v", who.IDs)
		}
		must(other.Set("/data", nil))(t)
		must(other.Create("/missing", nil, 0))(t)
		must(other.Create("/data/child", nil, 0))(t)
		alive(t, c)
		if len(c.Events) > 0 {
			t.Errorf("watches of the old connection fire on the new one: %+v", c.Events)
		}
		// The client sets its watches again and names the last zxid that it has seen.
		must(c.Call(proto.OpSetWatches, &proto.SetWatchesRequest{
			RelativeZxid: f.Zxid, Data: []string{"/data", "/e"}, Exist: []string{"/missing", "/still"}, Child: []string{"/data", "/"},
		}, nil))(t)
		missed := []string{"NodeDataChanged /data", "NodeCreated /missing", "NodeChildrenChanged /data", "NodeChildrenChanged /"}
		if got := rawtest.Names(c.Events); !slices.Equal(got, missed) {
			t.Errorf("after setWatches: %v, not %v", got, missed)
		}
		for _, e := range c.Events {
			if e.Zxid != -1 {
				t.Errorf("%+v has a zxid", e)
			}
		}
		c.Events = nil
		must(c.Set("/e", nil))(t)
		must(c.Create("/still", nil, 0))(t)
		if got, want := rawtest.Names(c.Events), []string{"NodeDataChanged /e", "NodeCreated /still"}; !slices.Equal(got, want) {
			t.Errorf("the watches set again: %v, not %v", got, want)
		}
	})
}

// unheard is an fsm.Waiter of which nobody hears.
type unheard chan struct{}

func (u unheard) Done(*fsm.View, *fsm.Result) { close(u) }
func (u unheard) Lost()                       { close(u) }

// TestResumeWithoutConnection: when a session is resumed, the connection that has asked for it is gone: the client
// has closed it, or the server, since it did not learn what had become of the resume. The connection that the session had
// before is closed all the same. The client can resume the session again, and without it the session expires.
func TestResumeWithoutConnection(t *testing.T) {
	const timeout = 4 * time.Second
	for _, how := range []string{"closed", "lost"} {
		for _, back := range []bool{true, false} {
			t.Run(fmt.Sprint(how, ", comes back ", back), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := open(t, server.Config{Tick: time.Second})
					old := connectFor(t, p.dial, timeout)
					must(old.Create("/e", nil, proto.FlagEphemeral))(t)
					exists := func() bool {
						other := connectFor(t, p.dial, timeout)
						defer other.Close()
						_, err := other.Exists("/e", false)
						return err == nil
					}
					nc := must(p.dial())(t)
					applied := make(unheard)
					p.loop.resume = func(w fsm.Waiter, propose func(fsm.Waiter)) {
						p.loop.resume = nil
						if how == "closed" {
							nc.Close()
							propose(w)
							close(applied)
							return
						}
						propose(applied)
						<-applied
						w.Lost()
					}
					if _, err := rawclient.Resume(nc, old.Session); err == nil {
						t.Fatal("the session is resumed")
					}
					<-applied
					synctest.Wait()
					closed(t, old)
					if p.Connected(old.Session.SessionID) {
						t.Error("the session counts as connected")
					}
					if n := connections(t, p.dial); n != 0 {
						t.Errorf("%d connections are left", n)
					}
					time.Sleep(timeout / 2)
					if back {
						c := must(rawclient.Resume(must(p.dial())(t), old.Session))(t)
						defer c.Close()
						time.Sleep(timeout * 3 / 4)
						must(c.Set("/e", nil))(t)
						if !p.Connected(old.Session.SessionID) || !exists() {
							t.Error("the session has ended")
						}
						return
					}
					if !exists() {
						t.Error("the session has expired too soon")
					}
					time.Sleep(timeout)
					if exists() || p.loop.Expired() != 1 {
						t.Errorf("the session does not expire; %d have", p.loop.Expired())
					}
				})
			})
		}
	}
}

// TestSignsOfLife: every request except auth and sasl keeps a session alive.
func TestSignsOfLife(t *testing.T) {
	const timeout = 4 * time.Second
	synctest.Test(t, func(t *testing.T) {
		p := open(t, server.Config{Tick: time.Second})
		for name, c := range map[string]struct {
			op   proto.OpCode
			body proto.Record
			dies bool
		}{
			"ping":          {proto.OpPing, nil, false},
			"read":          {proto.OpGetData, &proto.PathWatch{Path: "/"}, false},
			"failing read":  {proto.OpGetData, &proto.PathWatch{Path: "/none"}, false},
			"write":         {proto.OpSetData, &proto.SetDataRequest{Path: "/", Version: -1}, false},
			"failing write": {proto.OpSetData, &proto.SetDataRequest{Path: "/", Version: 1 << 30}, false},
			"bad body":      {proto.OpGetData, nil, false},
			"auth":          {proto.OpAuth, &proto.AuthRequest{Scheme: proto.SchemeDigest, Auth: []byte("u:p")}, true},
			"sasl":          {proto.OpSASL, &proto.SASLRequest{}, true},
			"nothing":       {0, nil, true},
		} {
			cl := connectFor(t, p.dial, timeout)
			var err error
			start := time.Now()
			for time.Since(start) < 30*time.Second {
				time.Sleep(timeout * 3 / 4)
				if c.op == 0 {
					continue
				}
				var code proto.Code
				if _, err = cl.Call(c.op, c.body, nil); err != nil && !errors.As(err, &code) {
					break
				}
				err = nil
			}
			if err == nil {
				err = cl.Ping()
			}
			if dies := err != nil; dies != c.dies {
				t.Errorf("%s: after 30 s %v", name, err)
			}
			cl.Close()
		}
		// Parts of a frame do not.
		cl := connectFor(t, p.dial, timeout)
		must(cl.Conn.Write(request32(1000)))(t)
		for i := range 5 {
			time.Sleep(timeout / 2)
			if _, err := cl.Conn.Write([]byte{1}); err != nil {
				break
			} else if i == 4 {
				t.Error("pieces of a frame keep a session alive")
			}
		}
	})
}

// TestLateWritesOfAnOldConnection: once a client has resumed its session on a new
// connection, no write that it sent on the old one is applied any more.
func TestLateWritesOfAnOldConnection(t *testing.T) {
	noGoroutineLeft(t)
	p := open(t, server.Config{})
	for round := range 20 {
		old := connect(t, p.dial)
		path := fmt.Sprintf("/n%d", round)
		must(old.Create(path, nil, 0))(t)
		go func() {
			for range 2000 {
				old.Queue(proto.OpSetData, &proto.SetDataRequest{Path: path, Version: -1})
			}
			old.Flush()
		}()
		go io.Copy(io.Discard, old.Conn)
		c, err := rawclient.Resume(must(p.dial())(t), old.Session)
		check(t, err)
		before := must(c.Exists(path, false))(t)
		must(c.Call(proto.OpSync, &proto.Path{Path: path}, nil))(t)
		if after := must(c.Exists(path, false))(t); after.Version != before.Version {
			t.Errorf("version %d when the session had moved, then %d", before.Version, after.Version)
		}
		c.Close()
	}
}

// TestIdentitiesAreBounded: a connection's identities are limited, because every write
// carries them into the log.
func TestIdentitiesAreBounded(t *testing.T) {
	overAll(t, server.Config{}, func(t *testing.T, _ *port, dial rawtest.Dialer) {
		c := connect(t, dial)
		defer c.Close()
		for i := range 20 {
			must(c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: fmt.Appendf(nil, "user%d:p", i)}, nil))(t)
		}
		long := strings.Repeat("u", 1<<10)
		for i := range 2 {
			must(c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: fmt.Appendf(nil, "%s%d:p", long, i)}, nil))(t)
		}
		if _, err := c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: fmt.Appendf(nil, "%s:p", long)}, nil); err != proto.AuthFailed {
			t.Errorf("beyond 4 KiB: %v", err)
		}
		closed(t, c)
	})
}

// TestDisconnect: a session has no connection any more when Disconnect returns, and can be
// resumed.
func TestDisconnect(t *testing.T) {
	noGoroutineLeft(t)
	p := open(t, server.Config{})
	for range 100 {
		c := connect(t, p.dial)
		id := c.Session.SessionID
		if !p.Connected(id) || !p.Disconnect(id) {
			t.Fatal("it had no connection")
		}
		if p.Connected(id) || p.Disconnect(id) {
			t.Fatal("it still has a connection")
		}
		c.Close()
		again := must(rawclient.Resume(must(p.dial())(t), c.Session))(t)
		if again.Session.SessionID != id || !p.Connected(id) {
			t.Fatal("it is not resumed")
		}
		again.Close()
	}
}

// TestResumeWhileNotServing: the server closes all connections, since it does not serve clients any more, while one waits
// for its session to be resumed, and then the resume is applied. The session does not count as connected.
func TestResumeWhileNotServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, server.Config{Tick: time.Second})
		old := connectFor(t, p.dial, 4*time.Second)
		nc := must(p.dial())(t)
		p.loop.resume = func(w fsm.Waiter, propose func(fsm.Waiter)) {
			p.loop.resume = nil
			p.Suspend()
			time.Sleep(time.Second)
			propose(w)
		}
		if _, err := rawclient.Resume(nc, old.Session); err == nil {
			t.Fatal("the session is resumed")
		}
		time.Sleep(2 * time.Second)
		if p.Connected(old.Session.SessionID) {
			t.Error("the session counts as connected, and no connection is left")
		}
	})
}
