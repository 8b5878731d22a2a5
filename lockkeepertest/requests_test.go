package lockkeepertest_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/proto"
)

func TestRequests(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
		id := conn.SessionID()
		acl := zk.WorldACL(zk.PermRead)
		must(conn.Create("/a", []byte("x"), zk.FlagEphemeral, acl))(t)
		if _, err := conn.Multi(&zk.CheckVersionRequest{Path: "/a", Version: 0}, &zk.DeleteRequest{Path: "/b", Version: 7}); err == nil {
			t.Error("the multi must fail")
		}
		s.Inject(lockkeepertest.Fault{Op: "delete", Do: lockkeepertest.Answer(zk.ErrNotEmpty)})
		if err := conn.Delete("/c", -1); err != zk.ErrNotEmpty {
			t.Error(err)
		}
		time.Sleep(10 * time.Minute) // pings
		var got []string
		for _, r := range s.Requests("") {
			got = append(got, fmt.Sprintf("%s %s %v", r.Op, r.Path, r.Session == id))
		}
		if got, want := strings.Join(got, ", "), "connect  false, create /a true, multi /a true, delete /c true"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		all := s.Requests("[cm]*")
		if len(all) != 3 {
			t.Fatalf("got %v", all)
		}
		for _, x := range []struct {
			r     lockkeepertest.Request
			field string
			want  any
		}{
			{all[0], "timeout", int32(60000)}, {all[1], "path", "/a"}, {all[1], "data", []byte("x")}, {all[1], "flags", int32(1)},
			{all[1], "acl[0].perms", int32(1)}, {all[1], "op", "create"}, {all[1], "nothing", nil},
			{all[2], "ops[0].op", "check"}, {all[2], "ops[1].path", "/b"}, {all[2], "ops[1].version", int32(7)},
		} {
			if got := x.r.Field(x.field); !reflect.DeepEqual(got, x.want) {
				t.Errorf("%s of %v: got %#v, want %#v", x.field, x.r, got, x.want)
			}
		}
		if got, want := fmt.Sprint(all[1]), `create xid=1 {path="/a" data="x" acl=[1 world:anyone] flags=1}`; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if now := time.Now(); !all[2].Time.Equal(now.Add(-10 * time.Minute)) {
			t.Errorf("at %v, now %v", all[2].Time, now)
		}
	})
}

// TestRequestsAfterAReconnect is what a test of a client may check.
func TestRequestsAfterAReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lockkeepertest.StartCluster(t, 3)
		conn := c.Connect(t, time.Minute)
		for _, path := range []string{"/a", "/b"} {
			if _, _, _, err := conn.ExistsW(path); err != nil {
				t.Fatal(err)
			}
		}
		for i := 1; i <= 3; i++ {
			if c.Server(i).Disconnect(conn.SessionID()) {
				break // the client may already be at another member
			}
		}
		settle(conn)
		connects, sets := c.Requests("connect"), c.Requests("setWatches*")
		if len(connects) != 2 || connects[1].Session != conn.SessionID() || connects[1].Field("sessionID") != conn.SessionID() {
			t.Errorf("got %v", connects)
		}
		if len(sets) != 1 || sets[0].Field("len(exist)") != 2 || sets[0].Field("exist[1]") == nil {
			t.Errorf("got %v", sets)
		}
		sum := 0
		for i := 1; i <= 3; i++ {
			sum += len(c.Server(i).Requests(""))
		}
		if all := c.Requests(""); sum != len(all) {
			t.Errorf("%d requests, of the members %d", len(all), sum)
		}
	})
}

// TestRequestsAreLimited: the latest ones are kept.
func TestRequestsAreLimited(t *testing.T) {
	s := lockkeepertest.Start(t)
	conn := s.Connect(t, time.Minute)
	check(t, create(conn, "/a"))
	for range 20 {
		must(conn.Set("/a", make([]byte, 1000<<10), -1))(t)
	}
	if got := s.Requests(""); len(got) != 16 || got[0].Op != "setData" {
		t.Errorf("%d requests are kept", len(got))
	}
}

func TestMessagesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &failures{TB: t}
		fake.run(func() {
			s := lockkeepertest.Start(fake)
			conn := s.Connect(fake, time.Minute)
			if _, _, _, err := conn.ExistsW("/a"); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
			if err := create(conn, "/a"); err != nil {
				t.Error(err)
			}
			s.Inject(lockkeepertest.Fault{Op: "delete", Do: lockkeepertest.CloseAfter()})
			if err := conn.Delete("/a", 0); err != zk.ErrConnectionClosed {
				t.Error(err)
			}
			exists(t, conn, "/a")
			fake.Errorf("failed")
		})
		_, got, _ := strings.Cut(fake.log.String(), "last messages, without pings:\n")
		var short []string
		for _, line := range strings.Split(strings.TrimSpace(got), "\n") {
			if before, fault, ok := strings.Cut(line, "} ["); ok {
				line = before + " [" + fault
			}
			line, _, _ = strings.Cut(line, " {")
			short = append(short, strings.TrimSpace(line))
		}
		want := []string{
			"0.000000 C1 -> open",
			"0.000000 C1 -> connect",
			"0.000000 C1 <- connect",
			"0.000000 C1 -> exists xid=1",
			"0.000000 C1 <- exists xid=1 zxid=0x200000001 NoNode",
			"60.000000 C1 -> create xid=2",
			"60.000000 C1 <- event zxid=0x200000002",
			"60.000000 C1 <- create xid=2 zxid=0x200000002 Ok",
			"60.000000 C1 -> delete xid=3",
			"60.000000 C1 <- delete xid=3 zxid=0x200000003 Ok [CloseAfter]",
			"60.000000 C1 <- close",
			"60.020000 C2 -> open",
			"60.020000 C2 -> connect",
			"60.020000 C2 <- connect",
		}
		if len(short) < len(want) || strings.Join(short[:len(want)], "\n") != strings.Join(want, "\n") {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(short, "\n"), strings.Join(want, "\n"))
		}
	})
}

// TestNullField: a null string of a request is an empty one, also a path.
func TestNullField(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
		must(rawConn(t, s).Call(proto.OpSync, &proto.Path{Path: jute.Null}, nil))(t)
		syncs := s.Requests("sync")
		if len(syncs) != 1 || syncs[0].Field("path") != "" {
			t.Errorf("got %v", syncs)
		}
	})
}
