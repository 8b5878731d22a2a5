package lockkeepertest_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// look returns the Stat of each znode of a server as text, without zxids.
func look(t *testing.T, s *lockkeepertest.Server, paths ...string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(s.Tree())
	for _, at := range paths {
		_, stat, err := s.Get(at)
		if err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		x := *stat
		x.Czxid, x.Mzxid, x.Pzxid = 0, 0, 0
		fmt.Fprintf(&b, "%s %+v\n", at, x)
	}
	return b.String()
}

func TestRestore(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
		must := func(_ any, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		acl := zk.DigestACL(zk.PermRead, "ann", "secret")
		for _, at := range []string{"/a", "/a/deep", "/a/deep/er", "/locks", "/same"} {
			must(nil, create(conn, at))
		}
		must(conn.Create("/e", []byte("mine"), zk.FlagEphemeral, zk.WorldACL(zk.PermAll)))
		must(conn.Create("/locks/n-", nil, zk.FlagSequence, zk.WorldACL(zk.PermAll)))
		must(conn.CreateContainer("/container", nil, zk.FlagContainer, zk.WorldACL(zk.PermAll)))
		must(conn.CreateTTL("/ttl", nil, zk.FlagTTL, zk.WorldACL(zk.PermAll), time.Hour))
		must(conn.Set("/a", []byte("two"), 0))
		paths := []string{"/", "/a", "/a/deep", "/a/deep/er", "/locks", "/same", "/e", "/locks/n-0000000000", "/container", "/ttl"}
		was := look(t, s, paths...)
		_, same, _ := s.Get("/same")
		id, requests := conn.SessionID(), len(s.Requests(""))
		snap := s.Snapshot()

		for round := range 3 {
			time.Sleep(time.Minute)
			_, before, err := s.Get("/e")
			must(nil, err)
			s.Inject(lockkeepertest.Fault{Op: "sync", Optional: true, Do: lockkeepertest.Drop()})
			other := s.Connect(t, time.Minute)
			must(other.Create("/locks/n-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll)))
			must(other.Create("/other", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)))
			must(conn.Create("/e2", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)))
			must(nil, conn.Delete("/e", -1))
			must(nil, conn.Delete("/a/deep/er", -1))
			must(nil, conn.Delete("/a/deep", -1))
			must(nil, conn.Delete("/ttl", -1))
			must(nil, create(conn, "/ttl")) // of another kind
			must(nil, create(conn, "/ttl/child"))
			must(conn.Set("/a", []byte("three"), 1))
			must(conn.SetACL("/a", acl, -1))
			last, err := conn.Create("/last", nil, 0, zk.WorldACL(zk.PermAll))
			must(last, err)
			_, stat, err := s.Get("/last")
			must(nil, err)

			s.Restore(snap)
			if got := look(t, s, paths...); got != was {
				t.Errorf("round %d: got\n%swant\n%s", round, got, was)
			}
			if _, got, _ := s.Get("/same"); *got != *same {
				t.Errorf("round %d: a znode that nobody has touched is %+v, was %+v", round, got, same)
			}
			if _, got, _ := s.Get("/e"); got.Czxid <= stat.Czxid || got.Czxid <= before.Czxid {
				t.Errorf("round %d: the ephemeral has the token %#x, after %#x", round, got.Czxid, stat.Czxid)
			}
			if all := s.Sessions(); len(all) != 1 || all[0].ID != id || !all[0].Connected {
				t.Errorf("round %d: sessions %+v", round, all)
			}
			if got := s.Requests(""); len(got) != requests {
				t.Errorf("round %d: requests %v", round, got)
			}
			if _, err := conn.Sync("/"); err != nil {
				t.Errorf("round %d: %v", round, err) // the fault is removed
			}
			settle(other)
			if all := s.Sessions(); len(all) != 2 || conn.SessionID() != id {
				t.Errorf("round %d: sessions %+v", round, all) // the other client has a new one
			}
			other.Close()
			s.Restore(snap) // forgets the requests of that client
		}
		path, err := conn.Create("/locks/n-", nil, zk.FlagSequence, zk.WorldACL(zk.PermAll))
		if err != nil || path != "/locks/n-0000000001" {
			t.Errorf("got %s, %v", path, err)
		}
	})
}

// TestRestoreEvents: watches fire as if a client had made the changes, and only those.
func TestRestoreEvents(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
		for _, at := range []string{"/changed", "/deleted", "/same"} {
			check(t, create(conn, at))
		}
		snap := s.Snapshot()
		must(conn.Set("/changed", []byte("y"), -1))(t)
		check(t, conn.Delete("/deleted", -1))
		check(t, create(conn, "/new"))
		watch := func(at string) <-chan zk.Event {
			_, _, events, err := conn.ExistsW(at)
			if err != nil {
				t.Fatal(err)
			}
			return events
		}
		changed, deleted, same, gone := watch("/changed"), watch("/deleted"), watch("/same"), watch("/new")
		_, _, children, err := conn.ChildrenW("/same")
		if err != nil {
			t.Fatal(err)
		}
		s.Restore(snap)
		synctest.Wait()
		for at, x := range map[<-chan zk.Event]zk.EventType{changed: zk.EventNodeDataChanged, deleted: zk.EventNodeCreated, gone: zk.EventNodeDeleted} {
			select {
			case e := <-at:
				if e.Type != x || e.Err != nil {
					t.Errorf("got %+v, want %v", e, x)
				}
			default:
				t.Errorf("no event %v", x)
			}
		}
		s.Restore(snap) // changes nothing
		check(t, create(conn, "/later"))
		select {
		case e := <-same:
			t.Errorf("got %+v", e)
		case e := <-children:
			t.Errorf("got %+v", e)
		default:
		}
		if got := s.Watches(); len(got) != 1 || got[0].Path != "/same" {
			t.Errorf("got %v", got)
		}
	})
}

// TestRestoreMissedChange: a client that was away learns of what Restore has changed.
func TestRestoreMissedChange(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
		check(t, create(conn, "/a"))
		snap := s.Snapshot()
		must(conn.Set("/a", []byte("y"), -1))(t)
		_, _, events, err := conn.GetW("/a")
		if err != nil {
			t.Fatal(err)
		}
		s.Disconnect(conn.SessionID())
		s.Restore(snap)
		if e := <-events; e.Type != zk.EventNodeDataChanged {
			t.Errorf("got %+v", e)
		}
		settle(conn)
	})
}

// TestRestoreCluster: all members have the same state, also those that start later.
func TestRestoreCluster(t *testing.T) {
	cluster(t, func(t *testing.T, c *lockkeepertest.Cluster) {
		lead := c.Leader()
		conn := c.Server(lead%3+1).Connect(t, 20*time.Second)
		for _, at := range []string{"/a", "/a/b", "/c"} {
			check(t, create(conn, at))
		}
		snap := c.Snapshot()
		stopped := (lead+1)%3 + 1
		check := func() {
			t.Helper()
			want := "/a = \"x\"\n/a/b = \"x\"\n/c = \"x\"\n"
			var stats []string
			for i := 1; i <= 3; i++ {
				if got := c.Server(i).Tree(); got != want {
					t.Errorf("member %d: got\n%s", i, got)
				}
				text := ""
				for _, at := range []string{"/", "/a", "/a/b", "/c"} {
					_, stat, err := c.Server(i).Get(at)
					text += fmt.Sprintf("%s %+v %v\n", at, stat, err)
				}
				if stats = append(stats, text); text != stats[0] {
					t.Errorf("member %d has\n%s, member 1\n%s", i, text, stats[0])
				}
			}
		}
		for range 2 {
			other := c.Server(lead).Connect(t, 20*time.Second)
			must(other.Create("/e", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)))(t)
			if err := conn.Delete("/a/b", -1); err != nil {
				t.Fatal(err)
			}
			must(conn.Set("/c", []byte("y"), -1))(t)
			other.Close()
			c.Restore(snap)
			check()
		}
		c.Server(stopped).Kill()
		if err := create(conn, "/d"); err != nil {
			t.Fatal(err)
		}
		c.Restore(snap)
		c.Server(stopped).Restart()
		again := c.Server(stopped).Connect(t, 20*time.Second)
		must(again.Sync("/"))(t)
		check()
	})
}

// TestRestoreFails: it fails the test after a minute, and does not hang.
func TestRestoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &failures{TB: t}
		fake.run(func() {
			c := lockkeepertest.StartCluster(fake, 3)
			snap := c.Snapshot()
			c.Partition([]int{1}, []int{2}, []int{3})
			time.Sleep(time.Minute)
			began := time.Now()
			c.Restore(snap)
			if d := time.Since(began); d != time.Minute {
				t.Errorf("gave up after %v", d)
			}
			c.Heal()
			c.Restore(snap)
			s := lockkeepertest.Start(fake)
			snap = s.Snapshot()
			s.Kill()
			s.Restore(snap)
			s.Restart()
			s.Inject(lockkeepertest.Fault{Op: "create", Do: lockkeepertest.Drop()})
			s.Restore(snap)
		})
		want := []string{
			"lockkeepertest: restore: member 1 applies nothing: it is not connected to a majority, or cannot write to its disk",
			"lockkeepertest: restore: the server is stopped",
			"lockkeepertest: Fault{Op: create, Do: Drop}, injected at snapshot_test.go:X, never took effect; requests that it matched: 0",
		}
		if got := regexp.MustCompile(`go:\d+`).ReplaceAllString(strings.Join(fake.errors, "\n"), "go:X"); got != strings.Join(want, "\n") {
			t.Errorf("got\n%s", got)
		}
	})
}
