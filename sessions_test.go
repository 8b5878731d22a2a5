package lockkeeper_test

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

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/testhooks"
	"github.com/lockkeeper/lockkeeper/proto"
)

func TestNegotiation(t *testing.T) {
	for _, c := range []struct {
		cfg  lockkeeper.Config
		asks map[int32]int32 // ms
	}{
		{lockkeeper.Config{}, map[int32]int32{0: 4000, -1: 4000, math.MinInt32: 4000, 1: 4000, 4000: 4000, 4001: 4001, 39999: 39999, 40000: 40000, 40001: 40000, math.MaxInt32: 40000}},
		{lockkeeper.Config{TickTime: 100 * time.Millisecond}, map[int32]int32{1: 200, 300: 300, 5000: 2000}},
		{lockkeeper.Config{MinSessionTimeout: time.Second, MaxSessionTimeout: time.Hour}, map[int32]int32{1: 1000, math.MaxInt32: 3600000}},
	} {
		s := open(t, c.cfg)
		for ask, want := range c.asks {
			for _, hasReadOnly := range []bool{true, false} {
				cl := rawclient.New(must(s.Dial("", "", time.Second))(t))
				// In a request for a new session, version and password are ignored.
				check(t, cl.Handshake(&proto.ConnectRequest{ProtocolVersion: 7, Timeout: ask, Password: []byte("any"), HasReadOnly: hasReadOnly}))
				if cl.Session.Timeout != want || cl.Session.ProtocolVersion != 0 || cl.Session.HasReadOnly != hasReadOnly || cl.Session.ReadOnly {
					t.Errorf("asked for %d ms, got %+v", ask, cl.Session)
				}
				cl.Close()
			}
		}
	}
}

// TestIdentity checks that the ids and passwords of many sessions differ, and cannot be
// predicted from one another.
func TestIdentity(t *testing.T) {
	noGoroutineLeft(t)
	s := open(t, lockkeeper.Config{ID: 7})
	const n = 300
	ids, passwords := map[int64]bool{}, map[string]bool{}
	var ones [16 * 8]int
	var before int64
	steps := map[int64]bool{}
	for range n {
		c := connect(t, inMemory(s))
		id, password := c.Session.SessionID, c.Session.Password
		if id>>56 != 7 || len(password) != proto.PasswordLen {
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
	for i, k := range ones { // 150 +- 8.7; this is more than seven times that
		if k < 85 || k > 215 {
			t.Errorf("bit %d of %d passwords is set %d times", i, n, k)
		}
	}
}

// TestRefusedResume: the answer to a refused resume is session 0 and sixteen zero bytes,
// and then the connection is closed. The owner of the session keeps it.
func TestRefusedResume(t *testing.T) {
	overAll(t, lockkeeper.Config{}, func(t *testing.T, s *lockkeeper.Server, dial dialer) {
		owner := connect(t, dial)
		must(owner.Create("/owned", nil, proto.FlagEphemeral))(t)
		must(owner.Get("/", true))(t)
		ended := connect(t, dial)
		must(ended.Call(proto.OpCloseSession, nil, nil))(t)
		expired := connect(t, dial)
		check(t, testhooks.Of(s).ExpireSession(expired.Session.SessionID))
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

// TestResume moves a session to another connection. The old connection ends, with its
// watches and identities, and the ephemerals stay.
func TestResume(t *testing.T) {
	overAll(t, lockkeeper.Config{}, func(t *testing.T, _ *lockkeeper.Server, dial dialer) {
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
			t.Errorf("a resume uses zxids: %d, then %d", f.Zxid, ping.Zxid)
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
		// The client sets its watches again, from the last zxid that it saw.
		must(c.Call(proto.OpSetWatches, &proto.SetWatchesRequest{
			RelativeZxid: f.Zxid, Data: []string{"/data", "/e"}, Exist: []string{"/missing", "/still"}, Child: []string{"/data", "/"},
		}, nil))(t)
		missed := []string{"NodeDataChanged /data", "NodeCreated /missing", "NodeChildrenChanged /data", "NodeChildrenChanged /"}
		if got := names(c.Events); !slices.Equal(got, missed) {
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
		if got, want := names(c.Events), []string{"NodeDataChanged /e", "NodeCreated /still"}; !slices.Equal(got, want) {
			t.Errorf("the watches set again: %v, not %v", got, want)
		}
	})
}

func names(events []rawclient.Event) (list []string) {
	for _, e := range events {
		list = append(list, e.Type.String()+" "+e.Path)
	}
	return list
}

const (
	tick    = time.Second
	timeout = 4 * time.Second
)

// inBubble runs a test in virtual time, on a server with ticks of a second.
func inBubble(t *testing.T, cfg lockkeeper.Config, test func(t *testing.T, s *lockkeeper.Server)) {
	synctest.Test(t, func(t *testing.T) {
		cfg.TickTime = tick
		test(t, open(t, cfg))
	})
}

// TestExpiry checks that sessions expire after their timeout, and at most a tick later.
func TestExpiry(t *testing.T) {
	r := rng(seed(t), 0)
	inBubble(t, lockkeeper.Config{}, func(t *testing.T, s *lockkeeper.Server) {
		watcher := connect(t, inMemory(s))
		for i := range 40 {
			time.Sleep(time.Duration(r.Int64N(int64(3 * time.Second))))
			lasts := timeout + time.Duration(r.Int64N(5000))*time.Millisecond
			c := connectFor(t, inMemory(s), lasts)
			path := fmt.Sprintf("/e%d", i)
			must(c.Create(path, nil, proto.FlagEphemeral))(t)
			heard := time.Now()
			if r.IntN(2) == 0 {
				time.Sleep(time.Duration(r.Int64N(int64(lasts))))
				alive(t, c)
				heard = time.Now()
			}
			must(watcher.Exists(path, true))(t)
			watcher.Conn.SetReadDeadline(time.Time{})
			watcher.Timeout = time.Minute
			go func() { // keeps the watcher alive without reading
				for range 10 {
					time.Sleep(time.Second)
					watcher.Write(rawclient.Request(nil, proto.XidPing, proto.OpPing, nil))
				}
			}()
			var e rawclient.Event
			for pongs := 0; pongs < 10; {
				f := must(watcher.Read())(t)
				if got, ok := f.Event(); ok {
					e = got
					if after := time.Since(heard); after < lasts || after > lasts+tick+time.Millisecond {
						t.Errorf("a session of %v ended %v after its last request", lasts, after)
					}
				} else {
					pongs++
				}
			}
			if e.Path != path || e.Type != proto.EventNodeDeleted {
				t.Errorf("event %+v", e)
			}
			closed(t, c) // and no frame came
		}
	})
}

// TestSignsOfLife: every request but auth and sasl keeps a session alive.
func TestSignsOfLife(t *testing.T) {
	inBubble(t, lockkeeper.Config{}, func(t *testing.T, s *lockkeeper.Server) {
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
			cl := connectFor(t, inMemory(s), timeout)
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
		// Parts of a frame do not count.
		cl := connectFor(t, inMemory(s), timeout)
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

// TestExpiryIsOneStep ends a session with many ephemerals: all are deleted at the same
// zxid, and no client sees a state in between.
func TestExpiryIsOneStep(t *testing.T) {
	inBubble(t, lockkeeper.Config{}, func(t *testing.T, s *lockkeeper.Server) {
		watcher := connect(t, inMemory(s))
		must(watcher.Create("/dir", nil, 0))(t)
		c := connectFor(t, inMemory(s), timeout)
		const n = 100
		for i := range n {
			dir := []string{"/", "/dir/"}[i%2]
			must(c.Create(dir+"e", nil, proto.FlagEphemeralSeq))(t)
		}
		must(watcher.Call(proto.OpAddWatch, &proto.PathType{Path: "/", Type: 1}, nil))(t)
		before := must(watcher.Call(proto.OpPing, nil, nil))(t)
		for range 8 {
			time.Sleep(time.Second)
			alive(t, watcher)
		}
		if len(watcher.Events) != n {
			t.Fatalf("%d events", len(watcher.Events))
		}
		for _, e := range watcher.Events {
			if e.Type != proto.EventNodeDeleted || e.Zxid != before.Zxid+1 {
				t.Errorf("%+v after zxid %d", e, before.Zxid)
			}
		}
		if after := must(watcher.Call(proto.OpPing, nil, nil))(t); after.Zxid != before.Zxid+1 {
			t.Errorf("the end of a session took %d zxids", after.Zxid-before.Zxid)
		}
		var list proto.Children2Reply
		must(watcher.Call(proto.OpGetChildren2, &proto.PathWatch{Path: "/dir"}, &list))(t)
		if len(list.Names) != 0 || list.Stat.Cversion != n || list.Stat.Pzxid != before.Zxid+1 {
			t.Errorf("%+v", list)
		}
		closed(t, c)
	})
}

// TestRenegotiation resumes sessions with other timeouts: the last one counts.
func TestRenegotiation(t *testing.T) {
	inBubble(t, lockkeeper.Config{}, func(t *testing.T, s *lockkeeper.Server) {
		witness := connectFor(t, inMemory(s), 20*time.Second)
		for _, c := range []struct{ first, then, counts time.Duration }{
			{timeout, 15 * time.Second, 15 * time.Second},
			{15 * time.Second, timeout, timeout},
			{timeout, time.Millisecond, 2 * tick},
			{timeout, time.Hour, 20 * tick},
		} {
			cl := connectFor(t, inMemory(s), c.first)
			must(cl.Create("/e", nil, proto.FlagEphemeral))(t)
			cl.Session.Timeout = int32(c.then.Milliseconds())
			again, err := rawclient.Resume(must(s.Dial("", "", time.Second))(t), cl.Session)
			check(t, err)
			if got := time.Duration(again.Session.Timeout) * time.Millisecond; got != c.counts {
				t.Errorf("%v, then %v: %v", c.first, c.then, got)
			}
			again.Close() // which does not end the session
			for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
				after, lives := time.Since(start), exists(t, witness, "/e")
				if !lives && after < c.counts || lives && after > c.counts+tick+100*time.Millisecond {
					t.Errorf("%v, then %v: after %v the session lives: %v", c.first, c.then, after, lives)
				}
				if !lives {
					break
				}
			}
		}
	})
}

// TestRestartGivesTime restarts a server just before sessions would expire: they get their
// full timeout again, and then expire.
func TestRestartGivesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := withMemory(lockkeeper.Config{TickTime: tick})
		s := open(t, cfg)
		c := connectFor(t, inMemory(s), timeout)
		must(c.Create("/e", nil, proto.FlagEphemeral))(t)
		for range 3 {
			time.Sleep(timeout - time.Millisecond)
			check(t, s.Close())
			time.Sleep(time.Hour) // time without a server does not count
			s = open(t, cfg)
		}
		start := time.Now()
		witness := connectFor(t, inMemory(s), 20*time.Second)
		for exists(t, witness, "/e") {
			if time.Since(start) > timeout+tick+200*time.Millisecond {
				t.Fatal("the session does not end")
			}
			time.Sleep(50 * time.Millisecond)
		}
		if after := time.Since(start); after < timeout-100*time.Millisecond {
			t.Errorf("the session ended %v after the restart", after)
		}
		if _, err := rawclient.Resume(must(s.Dial("", "", time.Second))(t), c.Session); err != rawclient.ErrRefused {
			t.Errorf("the session came back: %v", err)
		}
	})
}

// TestLateWritesOfAnOldConnection moves a session while writes of its old connection are
// under way. Those may have been done, but none is done after the handshake of the new
// connection was answered.
func TestLateWritesOfAnOldConnection(t *testing.T) {
	noGoroutineLeft(t)
	s := open(t, lockkeeper.Config{})
	for round := range 20 {
		old := connect(t, inMemory(s))
		path := fmt.Sprintf("/n%d", round)
		must(old.Create(path, nil, 0))(t)
		go func() {
			for range 2000 {
				old.Queue(proto.OpSetData, &proto.SetDataRequest{Path: path, Version: -1})
			}
			old.Flush()
		}()
		go io.Copy(io.Discard, old.Conn)
		c, err := rawclient.Resume(must(s.Dial("", "", time.Second))(t), old.Session)
		check(t, err)
		before := must(c.Exists(path, false))(t)
		must(c.Call(proto.OpSync, &proto.Path{Path: path}, nil))(t)
		if after := must(c.Exists(path, false))(t); after.Version != before.Version {
			t.Errorf("version %d when the session had moved, then %d", before.Version, after.Version)
		}
		c.Close()
	}
}

// TestIdentitiesAreBounded: the number of a connection's identities is limited, because
// each of its writes adds them to the log.
func TestIdentitiesAreBounded(t *testing.T) {
	overAll(t, lockkeeper.Config{}, func(t *testing.T, _ *lockkeeper.Server, dial dialer) {
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
