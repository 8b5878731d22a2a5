package lockkeepertest_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

var check = testkit.Check

func must[T any](v T, err error) func(t testing.TB) T { return testkit.Must(v, err) }

// TestWaitsLittle: hardly anything waits for a timer while a server starts, a client
// connects, and both are closed, or while a cluster starts.
func TestWaitsLittle(t *testing.T) {
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			began, some := time.Now(), newT()
			lockkeepertest.Start(some).Connect(some, time.Minute)
			if took := time.Since(began); took > 10*time.Millisecond {
				t.Errorf("the client has a session after %v", took)
			}
			some.end()
			if took := time.Since(began); took > 20*time.Millisecond+2*time.Second { // two seconds of virtual time only: see lateNotice
				t.Errorf("both are closed after %v", took)
			}
		})
		synctest.Test(t, func(t *testing.T) {
			began, some := time.Now(), newT()
			lockkeepertest.StartCluster(some, 3)
			if took := time.Since(began); took > 200*time.Millisecond {
				t.Errorf("three servers are ready after %v", took)
			}
			some.end()
		})
	}
}

// cut is a dialer that fails once off is set.
type cut struct {
	s   *lockkeepertest.Server
	off atomic.Bool
}

func (c *cut) Dial(network, address string, timeout time.Duration) (net.Conn, error) {
	if c.off.Load() {
		return nil, errors.New("no route to host")
	}
	return c.s.Dial(network, address, timeout)
}

func TestExpireSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.Start(t)
		victim, witness := s.Connect(t, time.Minute), s.Connect(t, time.Minute)
		must(victim.Create("/e", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)))(t)
		_, _, events, err := witness.ExistsW("/e")
		if err != nil {
			t.Fatal(err)
		}
		if s.Disconnect(1) {
			t.Error("Disconnect closed a connection of a session that does not exist")
		}
		session := victim.SessionID()
		check(t, s.ExpireSession(session))
		if ok, _, err := witness.Exists("/e"); err != nil || ok {
			t.Errorf("the ephemeral outlived its session: %v, %v", ok, err)
		}
		if e := <-events; e.Type != zk.EventNodeDeleted {
			t.Errorf("got %v", e)
		}
		for victim.SessionID() == session || victim.State() != zk.StateHasSession {
			time.Sleep(time.Second) // until the client has a new session
		}
		for _, id := range []int64{session, 1} {
			if err := s.ExpireSession(id); !errors.Is(err, lockkeeper.ErrNoSession) || !strings.HasSuffix(err.Error(), fmt.Sprintf(" %#x", uint64(id))) {
				t.Errorf("session %d, which does not exist: %v", id, err)
			}
		}
		s.Kill()
		if err := s.ExpireSession(witness.SessionID()); err == nil || errors.Is(err, lockkeeper.ErrNoSession) {
			t.Errorf("on a stopped server: %v", err)
		}
	})
}

func TestStopAndRestart(t *testing.T) {
	for name, options := range map[string][]lockkeepertest.Option{"in memory": nil, "TCP": {lockkeepertest.WithTCP()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // after some tries the client waits for a second
			s := lockkeepertest.Start(t, options...)
			conn := s.Connect(t, time.Minute)
			for _, path := range []string{"/n", "/e-"} {
				must(conn.Create(path, []byte(path), map[string]int32{"/e-": zk.FlagEphemeral | zk.FlagSequence}[path], zk.WorldACL(zk.PermAll)))(t)
			}
			session := conn.SessionID()
			s.Kill()
			if _, err := s.Dial("", "", time.Second); err == nil {
				t.Error("a stopped server accepted a connection")
			}
			s.Kill() // does nothing
			s.Restart()
			children, _, err := conn.Children("/")
			for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); {
				children, _, err = conn.Children("/") // until the client is connected
			}
			if err != nil || len(children) != 3 || conn.SessionID() != session {
				t.Errorf("children %v, error %v, session %#x, was %#x", children, err, conn.SessionID(), session)
			}
			path, err := conn.Create("/p-", nil, zk.FlagSequence, zk.WorldACL(zk.PermAll))
			if err != nil || path != "/p-0000000002" {
				t.Errorf("got %q, %v: the sequence counter is lost", path, err)
			}
		})
	}
}

// logger is a zk.Logger that writes to a test's log, unless t is nil. Outside a synctest
// bubble t must be nil, since the client may log after the test has ended.
type logger struct{ t *testing.T }

func (l logger) Printf(format string, args ...any) {
	if l.t != nil {
		l.t.Logf("client: "+format, args...)
	}
}
