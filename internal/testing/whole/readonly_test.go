package whole

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// connectReadOnly connects as a client that accepts a read-only connection, if readOnly is
// set. It resumes session unless that is nil.
func connectReadOnly(t *testing.T, s *lockkeeper.Server, session *proto.ConnectReply, readOnly bool) (*rawclient.Client, error) {
	t.Helper()
	nc := must(s.Dial("", "", time.Second))(t)
	t.Cleanup(func() { nc.Close() })
	c := rawclient.New(nc)
	q := rawclient.NewSession(10 * time.Second)
	if session != nil {
		q = rawclient.Resumption(*session)
	}
	q.ReadOnly = readOnly
	return c, c.Handshake(q)
}

// TestReadOnly: a member without a majority serves reads to clients that accept that, and
// closes their connections when it has a majority again.
func TestReadOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 3, func(c *lockkeeper.Config) {
			c.Features.ReadOnly, c.Features.FourLetterWords = true, []string{"stat", "mntr"}
		}) // isro is answered even if it is not listed
		lead := m.leader()
		c, err := connectReadOnly(t, m.servers[lead], nil, true)
		if err != nil || c.Session.ReadOnly {
			t.Fatalf("with a majority: %+v, %v", c.Session, err)
		}
		must(c.Create("/x", []byte("data"), proto.FlagEphemeral))(t)
		for _, i := range []int{(lead + 1) % 3, (lead + 2) % 3} {
			m.kill(i)
		}
		closed(t, c)
		s := m.servers[lead]
		says := func(w, want string) {
			t.Helper()
			if got := word(t, inMemory(s), w); !strings.Contains(got, want) {
				t.Errorf("%s: no %q in %q", w, want, got)
			}
		}
		says("isro", "ro")
		says("srvr", "UTC\nREAD-ONLY mode; serving only read-only clients\nLatency")
		says("srvr", "Mode: read-only\n")
		says("stat", "READ-ONLY mode; serving only read-only clients\nClients:\n")
		says("mntr", "zk_server_state\tread-only\n")

		if c, err := connectReadOnly(t, s, nil, false); err == nil {
			t.Errorf("a client that wants to write: %+v", c.Session)
		}
		wrong := c.Session
		wrong.Password = make([]byte, proto.PasswordLen)
		if c, err := connectReadOnly(t, s, &wrong, true); err == nil {
			t.Errorf("a client with a wrong password: %+v", c.Session)
		}
		ro, err := connectReadOnly(t, s, &c.Session, true) // keeps its session
		if err != nil || !ro.Session.ReadOnly || ro.Session.SessionID != c.Session.SessionID || string(ro.Session.Password) != string(c.Session.Password) {
			t.Fatalf("%+v, %v", ro.Session, err)
		}
		fresh, err := connectReadOnly(t, s, nil, true)
		if err != nil || !fresh.Session.ReadOnly || fresh.Session.SessionID == 0 || fresh.Session.Timeout != 10000 {
			t.Fatalf("%+v, %v", fresh.Session, err)
		}
		for _, c := range []*rawclient.Client{ro, fresh} {
			if r := must(c.Get("/x", true))(t); string(r.Data) != "data" {
				t.Errorf("read %q", r.Data)
			}
			check(t, c.Ping())
			for op, body := range map[proto.OpCode]proto.Record{
				proto.OpCreate:   &proto.CreateRequest{Path: "/y", ACL: proto.OpenACL},
				proto.OpDelete:   &proto.PathVersion{Path: "/x", Version: -1},
				proto.OpSetData:  &proto.SetDataRequest{Path: "/x", Version: -1},
				proto.OpSync:     &proto.Path{Path: "/"},
				proto.OpMulti:    &proto.MultiRequest{},
				proto.OpReconfig: &proto.ReconfigRequest{},
			} {
				if _, err := c.Call(op, body, nil); err != proto.NotReadOnly {
					t.Errorf("%v: %v", op, err)
				}
			}
		}
		leaver := must(connectReadOnly(t, s, nil, true))(t)
		must(leaver.Call(proto.OpCloseSession, nil, nil))(t)
		closed(t, leaver)
		silent := must(connectReadOnly(t, s, nil, true))(t)
		for range 30 {
			time.Sleep(500 * time.Millisecond)
			check(t, ro.Ping())
			check(t, fresh.Ping())
		}
		closed(t, silent)

		m.start((lead + 1) % 3) // a majority again
		closed(t, ro)
		closed(t, fresh)
		says("isro", "rw")
		c, err = connectReadOnly(t, s, &ro.Session, true)
		if err != nil || c.Session.ReadOnly || c.Session.SessionID != ro.Session.SessionID {
			t.Fatalf("with a majority again: %+v, %v", c.Session, err)
		}
		must(c.Set("/x", nil))(t) // its session and its ephemeral are alive
	})
}

// TestReadOnlyClientDoesNotRead: the connection of a client that asks for much and reads no answer ends
// after its session timeout, also in read-only mode, where no session expires.
func TestReadOnlyClientDoesNotRead(t *testing.T) {
	inCluster(t, 3, func(c *lockkeeper.Config) { c.Features.ReadOnly = true }, func(t *testing.T, m *members) {
		lead := m.leader()
		s := m.servers[lead]
		c := must(connectReadOnly(t, s, nil, true))(t)
		must(c.Create("/x", make([]byte, 1<<19), 0))(t)
		for i := range m.servers {
			if i != lead {
				m.kill(i)
			}
		}
		closed(t, c)
		c = must(connectReadOnly(t, s, nil, true))(t)
		defer c.Close()
		for range 10 {
			c.Queue(proto.OpGetData, &proto.PathWatch{Path: "/x"})
		}
		go c.Flush()
		time.Sleep(time.Minute) // the session timeout is 10 s
		if text := word(t, inMemory(s), "cons"); strings.Contains(text, "sid=") {
			t.Errorf("the connection is still there: %s", text)
		}
	})
}
