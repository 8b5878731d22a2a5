package lockkeepertest_test

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

func TestLookInside(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
		other := s.Connect(t, 20*time.Second)
		check(t, create(conn, "/b"))
		acl := zk.WorldACL(0) // nobody may read it
		must(conn.Create("/b/e", []byte{0, 1}, zk.FlagEphemeral, acl))(t)
		check(t, create(other, "/a"))
		if _, _, _, err := other.ExistsW("/x"); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := other.ChildrenW("/b"); err != nil {
			t.Fatal(err)
		}
		first, second := conn.SessionID(), other.SessionID()
		look := func(connected bool) {
			t.Helper()
			if got, want := s.Tree(), fmt.Sprintf("/a = \"x\"\n/b = \"x\"\n/b/e = 0x0001 (ephemeral of %#x)\n", uint64(first)); got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
			data, stat, err := s.Get("/b/e")
			if err != nil || string(data) != "\x00\x01" || stat.EphemeralOwner != first || stat.DataLength != 2 || stat.Czxid != stat.Pzxid {
				t.Errorf("got %q %+v %v", data, stat, err)
			}
			if _, _, err := s.Get("/nothing"); err != zk.ErrNoNode {
				t.Errorf("got %v", err)
			}
			sessions := []lockkeepertest.Session{{first, time.Minute, connected, []string{"/b/e"}}, {second, 20 * time.Second, connected, []string{}}}
			slices.SortFunc(sessions, func(a, b lockkeepertest.Session) int { return int(a.ID>>32 - b.ID>>32) })
			if got := s.Sessions(); !reflect.DeepEqual(got, sessions) {
				t.Errorf("got %+v, want %+v", got, sessions)
			}
		}
		look(true)
		if got, want := s.Watches(), []lockkeepertest.Watch{{second, "/b"}, {second, "/x"}}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if _, stat, err := conn.Get("/b"); err != nil {
			t.Error(err)
		} else if _, got, _ := s.Get("/b"); *got != *stat {
			t.Errorf("got %+v, the client %+v", got, stat)
		}
		s.Kill()
		look(false)
		if got := s.Watches(); len(got) > 0 {
			t.Errorf("a stopped server has watches: %v", got)
		}
	})
}

// lock takes a lock in the background, and then sends it.
func lock(conn *zk.Conn, path string) <-chan *zk.Lock {
	l, held := zk.NewLock(conn, path, zk.WorldACL(zk.PermAll)), make(chan *zk.Lock, 1)
	go func() {
		if l.Lock() == nil { // unless the test ends before
			held <- l
		}
	}()
	return held
}

func TestLocks(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, a *zk.Conn) {
		b, c := s.Connect(t, time.Minute), s.Connect(t, time.Minute)
		check := func(since time.Time, sessions ...*zk.Conn) {
			t.Helper()
			locks := s.Locks()
			if len(locks) != 1 {
				t.Fatalf("got %v", locks)
			}
			l := locks[0]
			got := append([]int64{l.Holder}, l.Queue...)
			var want []int64
			for _, conn := range sessions {
				want = append(want, conn.SessionID())
			}
			var token int64
			for _, x := range s.Sessions() {
				if x.ID == l.Holder {
					_, stat, err := s.Get(x.Ephemerals[0])
					if err != nil {
						t.Fatal(err)
					}
					token = stat.Czxid
				}
			}
			if l.Path != "/some/lock" || !slices.Equal(got, want) || !l.Since.Equal(since) || l.Token != token {
				t.Errorf("got %+v, want sessions %v since %v with token %d", l, want, since, token)
			}
		}
		if got := s.Locks(); len(got) > 0 {
			t.Errorf("got %v", got)
		}
		began := time.Now()
		held := lock(a, "/some/lock")
		s.WaitHeld("/some/lock", a.SessionID())
		time.Sleep(time.Second)
		lock(b, "/some/lock")
		s.WaitWaiters("/some/lock", 1)
		lock(c, "/some/lock")
		s.WaitWaiters("/some/lock", 2)
		check(began, a, b, c)

		go func() { // the methods that wait need not poll to see this at once
			time.Sleep(10 * time.Second)
			if err := s.ExpireSession(b.SessionID()); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Second)
			if err := (<-held).Unlock(); err != nil {
				t.Error(err)
			}
		}()
		now := time.Now()
		s.WaitWaiters("/some/lock", 1)
		if d := time.Since(now); d != 10*time.Second {
			t.Errorf("waited %v", d)
		}
		check(began, a, c)
		s.WaitHeld("/some/lock", c.SessionID())
		if d := time.Since(now); d != 20*time.Second {
			t.Errorf("waited %v", d)
		}
		began = time.Now()
		s.WaitWaiters("/some/lock", 0)
		time.Sleep(time.Second)
		s.Kill()
		check(began, c)
		s.Restart()
		check(began, c)
		if err := s.ExpireSession(c.SessionID()); err != nil {
			t.Fatal(err)
		}
		if got := s.Locks(); len(got) > 0 {
			t.Errorf("got %v", got)
		}
	})
}

// TestWaitSeesEveryState: also one that is over at once.
func TestWaitSeesEveryState(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
		check(t, create(conn, "/a"))
		for range 20 {
			go func() {
				acl := zk.WorldACL(zk.PermAll)
				time.Sleep(time.Millisecond)
				if err := conn.Delete("/a", -1); err != nil {
					t.Error(err)
				}
				if _, err := conn.Create("/a", nil, zk.FlagEphemeral, acl); err != nil { // a lock without a queue
					t.Error(err)
				}
				if err := conn.Delete("/a", -1); err != nil {
					t.Error(err)
				}
				if err := create(conn, "/a"); err != nil {
					t.Error(err)
				}
			}()
			done := make(chan struct{})
			go func() {
				defer close(done)
				s.WaitHeld("/a", conn.SessionID())
			}()
			s.WaitGone("/a")
			<-done
			synctest.Wait()
		}
	})
}

// TestWaitOverARestart: what a server reads from its log does not count.
func TestWaitOverARestart(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
		check(t, create(conn, "/a"))
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			s.WaitGone("/a")
		}()
		for range 2 {
			synctest.Wait()
			s.Kill()
			synctest.Wait()
			s.Restart()
		}
		exists(t, conn, "/a")
		select {
		case <-gone:
			t.Fatal("the znode still exists")
		default:
		}
		if err := conn.Delete("/a", -1); err != nil {
			t.Error(err)
		}
		<-gone
	})
}

func TestWaitFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &failures{TB: t}
		fake.run(func() {
			s := lockkeepertest.Start(fake)
			conn, other := s.Connect(fake, time.Minute), s.Connect(fake, 10*time.Minute)
			lock(conn, "/lock")
			s.WaitHeld("/lock", conn.SessionID())
			lock(other, "/lock")
			s.WaitWaiters("/lock", 1)
			began := time.Now()
			defer func() {
				if d := time.Since(began); d != 11*time.Minute {
					t.Errorf("gave up after %v", d)
				}
			}()
			s.WaitHeld("/lock", other.SessionID())
			t.Error("the other session has the lock")
		})
		if len(fake.errors) != 1 {
			t.Fatalf("got %q", fake.errors)
		}
		for _, text := range []string{fake.errors[0], fake.log.String()} {
			if !regexp.MustCompile(`/lock is held by 0x\w+ since 00:00:00.000 with token 0x\w+; waiting: 0x\w+`).MatchString(text) {
				t.Errorf("got %s", text)
			}
		}
	})
}

// TestFailureIsLogged: as the state was when the test failed, and once.
func TestFailureIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &failures{TB: t}
		var id uint64
		fake.run(func() {
			s := lockkeepertest.Start(fake)
			conn := s.Connect(fake, time.Minute)
			id = uint64(conn.SessionID())
			s.Inject(lockkeepertest.Fault{Op: "delete", Optional: true, Do: lockkeepertest.Drop()})
			if _, err := conn.Create("/e", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
				t.Error(err)
			}
			for i := range 30 {
				if err := create(conn, fmt.Sprintf("/z%02d", i)); err != nil {
					t.Error(err)
				}
			}
			if _, _, _, err := conn.ExistsW("/e"); err != nil {
				t.Error(err)
			}
			fake.Errorf("failed")
		})
		want := fmt.Sprintf(`lockkeepertest: the server's state:
  znodes:
    /e (ephemeral of %#x)
    /z00 = "x"
`, id)
		more := fmt.Sprintf(`    /z23 = "x"
    … 6 more
  sessions:
    %#x, timeout 1m0s
  watches:
    %#x /e
  faults:
    Fault{Op: delete, Do: Drop}: no effect yet; requests that it matched: 0
`, id, id)
		if got := fake.log.String(); !strings.HasPrefix(got, want) || !strings.Contains(got, more) || strings.Count(got, "state") != 1 {
			t.Errorf("got\n%s\nwant\n%s…%s", got, want, more)
		}
	})
}

func TestFailureOfAClusterIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &failures{TB: t}
		var lead int
		fake.run(func() {
			c := lockkeepertest.StartCluster(fake, 3)
			conn := c.Connect(fake, time.Minute)
			lead = c.Leader()
			if err := create(conn, "/a"); err != nil {
				t.Error(err)
			}
			synctest.Wait() // until the leader has applied it, too
			fake.Errorf("failed")
		})
		got := fake.log.String()
		if !strings.Contains(got, fmt.Sprintf("the state of member %d:\n", lead)) || strings.Count(got, "follower") != 2 || strings.Count(got, "/a = ") != 1 {
			t.Errorf("got\n%s", got)
		}
	})
}
