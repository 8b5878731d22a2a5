package lockkeepertest_test

import (
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// TestAdvanceFar: times do not wrap around, however far the clock is set forward.
func TestAdvanceFar(t *testing.T) {
	s := lockkeepertest.Start(t)
	conn := s.Connect(t, time.Minute)
	last := time.Now()
	for i := range 4 {
		s.Advance(100 * 365 * 24 * time.Hour)
		s.SetClock(time.Duration(i) * 90 * 365 * 24 * time.Hour)
		stat := must(conn.Set("/", nil, -1))(t)
		if at := time.UnixMilli(stat.Mtime); at.Before(last) {
			t.Errorf("%d times 100 years: %v, after %v", i+1, at, last)
		} else {
			last = at
		}
	}
}

// TestAdvance is in real time, with real sockets: an hour passes for the server at once.
func TestAdvance(t *testing.T) {
	s := lockkeepertest.Start(t, lockkeepertest.WithTCP())
	connect := func() *zk.Conn {
		conn, events, err := zk.Connect([]string{s.Addr()}, time.Minute, zk.WithLogInfo(false), zk.WithDialer(net.DialTimeout))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		for e := range events {
			if e.State == zk.StateHasSession {
				break
			}
		}
		return conn
	}
	stays, gone := connect(), connect()
	for _, conn := range []*zk.Conn{stays, gone} {
		must(conn.Create("/e-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll)))(t)
	}
	must(stays.CreateTTL("/ttl", nil, zk.FlagTTL, zk.WorldACL(zk.PermAll), time.Minute))(t)
	s.Inject(lockkeepertest.Fault{Op: "connect", Times: -1, Do: lockkeepertest.Refuse(), Optional: true})
	id := gone.SessionID()
	if !s.Disconnect(id) {
		t.Fatal("it was not connected")
	}
	if x := s.Advance(30 * time.Second); len(x.Expired)+len(x.Deleted) > 0 {
		t.Errorf("after 30 s: %+v", x)
	}
	if x := s.Advance(time.Hour); !slices.Equal(x.Expired, []int64{id}) || !slices.Equal(x.Deleted, []string{"/ttl"}) {
		t.Errorf("after an hour: %+v", x)
	}
	if tree := s.Tree(); strings.Count(tree, "\n") != 1 || !strings.HasPrefix(tree, "/e-0000000000") {
		t.Errorf("after an hour: %s", tree)
	}
	if _, _, err := stays.Exists("/"); err != nil {
		t.Error(err)
	}
	id = stays.SessionID()
	if x := s.AdvanceSilent(61 * time.Second); !slices.Equal(x.Expired, []int64{id}) {
		t.Errorf("silent: %+v", x)
	}
}

// TestAdvanceVirtual: without Advance, nothing is different, and its mistakes fail the test.
func TestAdvanceVirtual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &failures{TB: t}
		fake.run(func() {
			c := lockkeepertest.StartCluster(fake, 3)
			conn := c.Connect(fake, time.Minute)
			check(t, create(conn, "/n"))
			if x := c.Advance(24 * time.Hour); len(x.Expired)+len(x.Deleted) > 0 {
				t.Errorf("%+v", x)
			}
			time.Sleep(10 * time.Minute) // the client sends pings, which count
			if err := create(conn, "/m"); err != nil {
				t.Error(err)
			}
			if _, stat, err := conn.Get("/m"); err != nil || time.Until(time.UnixMilli(stat.Ctime)) != 24*time.Hour {
				t.Errorf("%+v, %v", stat, err)
			}
			if x := c.AdvanceSilent(30 * time.Second); len(x.Expired) > 0 {
				t.Errorf("%+v", x)
			}
			time.Sleep(10 * time.Minute)
			if err := create(conn, "/o"); err != nil {
				t.Error(err)
			}
			follower := c.Leader()%3 + 1
			func() {
				done := make(chan struct{})
				go func() {
					defer close(done)
					c.Server(follower).Advance(time.Second)
				}()
				<-done
			}()
			c.Advance(-time.Second)
		})
		want := []string{"does not lead", "impossible advance by -1s"}
		for i, text := range want {
			if len(fake.errors) != len(want) || !strings.Contains(fake.errors[i], text) {
				t.Errorf("%q", fake.errors)
			}
		}
	})
}

// TestAdvanceWhileClientsConnect: a session is opened through a member that does not know it yet when the
// leader's clock is set forward. The client's pings count all the same.
func TestAdvanceWhileClientsConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lockkeepertest.StartCluster(t, 3)
		lead := c.Leader()
		via := lead%3 + 1
		for _, slow := range [][2]int{{lead, via}, {via, lead}} {
			c.SetLink(slow[0], slow[1], lockkeepertest.Link{Delay: 50 * time.Millisecond})
		}
		for wait := time.Duration(0); wait <= 300*time.Millisecond; wait += 20 * time.Millisecond {
			ids := make(chan int64)
			go func() {
				conn := c.Server(via).Connect(t, 10*time.Second)
				conn.Exists("/")
				ids <- conn.SessionID()
			}()
			time.Sleep(wait)
			c.Advance(time.Millisecond)
			id := <-ids
			time.Sleep(20 * time.Second)
			if !slices.ContainsFunc(c.Server(lead).Sessions(), func(x lockkeepertest.Session) bool { return x.ID == id }) {
				t.Errorf("the clock was set forward %v after a client had begun to connect: its session has expired", wait)
			}
		}
	})
}
