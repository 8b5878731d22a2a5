package lockkeepertest_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// inside is set in a test program that a test has started, with its own name.
const inside = "LOCKKEEPERTEST_INSIDE"

// program runs only the calling test in another process, in which inside is set. It returns what
// that says.
func program(t *testing.T) (out string, err error) {
	t.Helper()
	self := must(os.Executable())(t)
	c := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.timeout=1m")
	c.Env = append(os.Environ(), inside+"=1")
	text, err := c.CombinedOutput()
	return string(text), err
}

// TestWhere: failures that are found when a test ends name lines of the test, not of this
// package.
func TestWhere(t *testing.T) {
	if os.Getenv(inside) == "" {
		out, err := program(t)
		if err == nil {
			t.Error("it passes")
		}
		out = regexp.MustCompile(`where_test.go:\d+`).ReplaceAllString(out, "HERE")
		for _, says := range []string{
			"\n    HERE: lockkeepertest: the lock /lock: a client wrote without the lock\n",
			"\n          guarded since HERE\n",
			"\n    HERE: lockkeepertest: the server's state:\n",
			"\n    HERE: lockkeepertest: Fault{Op: delete, Do: Drop}, injected at HERE, never took effect",
		} {
			if !strings.Contains(out, says) {
				t.Errorf("it does not say %q:\n%s", says, out)
			}
		}
		if strings.Count(out, "the server's state") != 1 || strings.Contains(out, " lockkeepertest.go:") || strings.Contains(out, " guard.go:") {
			t.Error(out)
		}
		return
	}
	s := lockkeepertest.Start(t)
	g := s.GuardLock(t, "/lock")
	s.Inject(lockkeepertest.Fault{Op: "delete", Do: lockkeepertest.Drop()})
	conn, _, err := zk.Connect([]string{"127.0.0.1:1"}, time.Minute, zk.WithDialer(s.Dial))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	check(t, zk.NewLock(conn, "/lock", zk.WorldACL(zk.PermAll)).Lock())
	g.Resource().WriteUnchecked(7)
}

// TestWhereInBubble: package testing cannot name a line of a test there, so the text does.
func TestWhereInBubble(t *testing.T) {
	for _, early := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			fake := &failures{TB: t}
			fake.run(func() {
				s := lockkeepertest.Start(fake)
				guard := func() *lockkeepertest.Guard { return s.GuardLock(fake, "/lock") }
				var g *lockkeepertest.Guard
				if early {
					g = guard()
				}
				conn := s.Connect(fake, time.Minute)
				if !early {
					g = guard()
				}
				if err := zk.NewLock(conn, "/lock", zk.WorldACL(zk.PermAll)).Lock(); err != nil {
					t.Error(err)
				}
				g.Resource().WriteUnchecked(7)
			})
			if len(fake.errors) != 1 || !strings.Contains(fake.errors[0], "\n  guarded since where_test.go:") {
				t.Errorf("early %v: %q", early, fake.errors)
			}
			if log := fake.log.String(); strings.Count(log, "/lock is held by 0x") != 1 {
				t.Errorf("early %v: logged\n%s", early, log)
			}
		})
	}
}
