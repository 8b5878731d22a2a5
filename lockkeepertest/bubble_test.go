package lockkeepertest_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// TestUnlockAtTheEnd: goroutines may make requests while the clients are closed, as one does
// that releases its lock when the test's context is over. None of them blocks for good, which
// would kill the test program.
func TestUnlockAtTheEnd(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			server := lockkeepertest.Start(t)
			for range 3 {
				conn := server.Connect(t, 10*time.Second)
				lock := zk.NewLock(conn, "/lock", zk.WorldACL(zk.PermAll))
				go func() {
					if lock.Lock() == nil {
						<-t.Context().Done()
						lock.Unlock()
					}
				}()
			}
			time.Sleep(time.Second)
		})
	}
}

// TestDeadline: a test that waits for ever in a bubble fails, says who holds the lock and who
// waits, and where the servers were started, and goes on after that.
func TestDeadline(t *testing.T) {
	for _, x := range []struct {
		name    string
		options []lockkeepertest.Option
		after   time.Duration
		cluster bool
		closes  bool // the test closes its clients, and does not leave it to the cleanups
	}{
		{"default", nil, time.Hour + time.Minute, false, false},
		{"option", []lockkeepertest.Option{lockkeepertest.WithDeadline(3 * time.Minute)}, 3 * time.Minute, false, false},
		{"closes", []lockkeepertest.Option{lockkeepertest.WithDeadline(3 * time.Minute)}, 3 * time.Minute, false, true},
		{"cluster", []lockkeepertest.Option{lockkeepertest.WithDeadline(3 * time.Minute)}, 3 * time.Minute, true, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake := &failures{TB: t}
				var holder, waiter int64
				var waited time.Duration
				var err error
				fake.run(func() {
					var connect func() *zk.Conn
					if x.cluster {
						c := lockkeepertest.StartCluster(fake, 3, x.options...)
						connect = func() *zk.Conn { return c.Connect(fake, 10*time.Second) }
					} else {
						s := lockkeepertest.Start(fake, x.options...)
						connect = func() *zk.Conn { return s.Connect(fake, 10*time.Second) }
					}
					a, b := connect(), connect()
					if x.closes {
						defer a.Close()
						defer b.Close()
					}
					holder, waiter = a.SessionID(), b.SessionID()
					zk.NewLock(a, "/lock", zk.WorldACL(zk.PermAll)).Lock()
					began := time.Now()
					err = zk.NewLock(b, "/lock", zk.WorldACL(zk.PermAll)).Lock()
					waited = time.Since(began)
				})
				if err == nil || waited > x.after+4*time.Second || waited < x.after-10*time.Second {
					t.Errorf("the lock: %v after %v", err, waited)
				}
				if len(fake.errors) != 1 || fake.log.Len() > 0 {
					t.Fatalf("failed with %q, and logged %q", fake.errors, fake.log.String())
				}
				for _, says := range []string{
					fmt.Sprintf("/lock is held by %#x since ", uint64(holder)), fmt.Sprintf("; waiting: %#x\n", uint64(waiter)),
					fmt.Sprint(x.after), "since bubble_test.go:", "WithDeadline",
				} {
					if !strings.Contains(fake.errors[0], says) {
						t.Errorf("it does not say %q:\n%s", says, fake.errors[0])
					}
				}
			})
		})
	}
}

// TestNoDeadline: there is none outside of bubbles, none WithDeadline(0), and none once the test
// has ended.
func TestNoDeadline(t *testing.T) {
	conn := lockkeepertest.Start(t, lockkeepertest.WithDeadline(time.Nanosecond)).Connect(t, time.Minute)
	if err := create(conn, "/a"); err != nil {
		t.Error(err)
	}
	for _, x := range []struct {
		deadline, sleeps time.Duration
	}{
		{0, 3 * time.Hour}, {time.Hour, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			lockkeepertest.Start(t, lockkeepertest.WithDeadline(x.deadline))
			time.Sleep(x.sleeps)
		})
	}
}

// TestDeadlineMissed: a test that goes on after its deadline ends the test program.
func TestDeadlineMissed(t *testing.T) {
	if os.Getenv(inside) != "" {
		synctest.Test(t, func(t *testing.T) {
			lockkeepertest.Start(t, lockkeepertest.WithDeadline(time.Minute))
			for {
				time.Sleep(time.Minute)
			}
		})
	}
	out, err := program(t)
	if err == nil || !strings.Contains(out, "panic: lockkeepertest: 1m0s of virtual time have passed since bubble_test.go:") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestServerOfAnotherBubble: a server that was started outside of a bubble cannot be used in it,
// and says so instead of ending the test program.
func TestServerOfAnotherBubble(t *testing.T) {
	outer := &failures{TB: t}
	var s *lockkeepertest.Server
	var c *lockkeepertest.Cluster
	defer outer.run(func() {}) // its cleanups
	outer.runs(func() {
		s, c = lockkeepertest.Start(outer), lockkeepertest.StartCluster(outer, 1)
	})
	const says = "lockkeepertest: the server was started outside of this synctest bubble and cannot be used in it: start it in the function that synctest.Test calls"
	snapshot := s.Snapshot()
	for name, use := range map[string]func(t *failures){
		"Connect": func(t *failures) { s.Connect(t, time.Minute) }, "Cluster.Connect": func(t *failures) { c.Connect(t, time.Minute) },
		"Dial":          func(t *failures) { s.Dial("", "", time.Second) },
		"Cluster.Dial":  func(t *failures) { c.Dial("", "127.0.0.1:1", time.Second) },
		"ExpireSession": func(t *failures) { t.Fatalf("%v", s.ExpireSession(1)) },
		"Kill":          func(*failures) { s.Kill() }, "Restart": func(*failures) { s.Restart() },
		"Inject":   func(*failures) { s.Inject(lockkeepertest.Fault{Do: lockkeepertest.Drop(), Optional: true}) },
		"WaitHeld": func(*failures) { s.WaitHeld("/", 1) }, "WaitWaiters": func(*failures) { s.WaitWaiters("/", 1) }, "WaitGone": func(*failures) { s.WaitGone("/") },
		"Snapshot": func(*failures) { s.Snapshot() }, "Restore": func(*failures) { s.Restore(snapshot) },
		"Leader":    func(*failures) { c.Leader() },
		"Partition": func(*failures) { c.Partition() }, "Heal": func(*failures) { c.Heal() }, "Pause": func(*failures) { s.Pause() }, "Resume": func(*failures) { s.Resume() },
		"SetLink": func(*failures) { c.SetLink(1, 1, lockkeepertest.Link{}) }, "SetDisk": func(*failures) { s.SetDisk(lockkeepertest.Disk{}) },
		"StepDown": func(*failures) { c.StepDown() },
	} {
		outer.errors = nil
		var paniced any
		synctest.Test(t, func(t *testing.T) {
			inner := &failures{TB: t}
			inner.run(func() {
				defer func() { paniced = recover() }()
				use(inner)
			})
			outer.errors = append(outer.errors, inner.errors...)
		})
		if paniced != nil {
			outer.errors = append(outer.errors, fmt.Sprint(paniced))
		}
		if len(outer.errors) != 1 || outer.errors[0] != says {
			t.Errorf("%s: %q", name, outer.errors)
		}
	}
	outer.errors = nil

	// The reverse.
	synctest.Test(t, func(t *testing.T) { s = lockkeepertest.Start(t) })
	inner := &failures{TB: t}
	inner.run(func() { s.Connect(inner, time.Minute) })
	if len(inner.errors) != 1 || !strings.HasSuffix(inner.errors[0], "was started in a synctest bubble and can be used only there") {
		t.Errorf("%q", inner.errors)
	}
}
