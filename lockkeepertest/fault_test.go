package lockkeepertest_test

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	locks "github.com/lockkeeper/lockkeeper/lock"
	"github.com/lockkeeper/lockkeeper/lock/fence"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// virtual runs a test in virtual time with a server and a client.
func virtual(t *testing.T, f func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.Start(t)
		f(t, s, s.Connect(t, time.Minute))
	})
}

// TestCutOff: a client is cut off as the package's documentation says. Its session ends, it knows by then that it has
// lost its lock, and its token is stale.
func TestCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.Start(t)
		report := s.GuardLock(t, "/lock").Resource()
		client := func() (*zk.Conn, *locks.Mutex) {
			conn := s.Connect(t, 10*time.Second)
			return conn, locks.NewMutex(conn, "/lock", locks.WithSessionTimeout(10*time.Second))
		}
		conn, mutex := client()
		_, other := client()
		held := must(mutex.Lock(t.Context()))(t)
		var faults []*lockkeepertest.Injection
		for _, op := range []string{"", "ping", "connect"} {
			faults = append(faults, s.Inject(lockkeepertest.Fault{Op: op, Session: conn.SessionID(), Times: -1, Do: lockkeepertest.Drop(), Optional: true}))
		}
		next := must(other.Lock(t.Context()))(t)
		if err := held.Err(); !errors.Is(err, locks.ErrLost) {
			t.Errorf("the first holder: %v", err)
		}
		if err := report.Write(next.Token()); err != nil {
			t.Error(err)
		}
		if err := report.Write(held.Token()); !errors.Is(err, fence.ErrStale) {
			t.Errorf("a write of the first holder: %v", err)
		}
		for _, f := range faults {
			f.Remove()
		}
		held.Unlock(t.Context())
		next.Unlock(t.Context())
		for _, m := range []*locks.Mutex{mutex, other} {
			if err := m.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

func create(conn *zk.Conn, path string) error {
	_, err := conn.Create(path, []byte("x"), 0, zk.WorldACL(zk.PermAll))
	return err
}

// exists asks until it gets an answer.
func exists(t *testing.T, conn *zk.Conn, path string) bool {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		ok, _, err := conn.Exists(path)
		if err == nil {
			return ok
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// settle waits until a client is connected and has set its watches again. Under the race
// detector a test must not use go-zookeeper's client before that. Nor may a client be
// closed in a bubble while it has a request in progress: it may leave a goroutine behind.
func settle(conn *zk.Conn) {
	synctest.Wait()
	for conn.State() != zk.StateHasSession {
		time.Sleep(time.Second)
	}
	time.Sleep(time.Second)
}

func TestFaultAnswers(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
		s.Inject(lockkeepertest.Fault{Op: "create", Path: "/a", Do: lockkeepertest.Answer(zk.ErrNotEmpty)})
		s.Inject(lockkeepertest.Fault{Op: "getData", Times: 2, Do: lockkeepertest.Answer(zk.ErrNoAuth)})
		if err := create(conn, "/b"); err != nil {
			t.Errorf("a request that the fault does not name: %v", err)
		}
		if err := create(conn, "/a"); err != zk.ErrNotEmpty {
			t.Errorf("got %v", err)
		}
		if exists(t, conn, "/a") {
			t.Error("the server executed a request that it was not to see")
		}
		if err := create(conn, "/a"); err != nil {
			t.Errorf("after the fault: %v", err)
		}
		for i, want := range []error{zk.ErrNoAuth, zk.ErrNoAuth, nil} {
			if _, _, err := conn.Get("/a"); err != want {
				t.Errorf("get %d: %v, want %v", i, err, want)
			}
		}
	})
}

// TestFaultsThatEndTheConnection checks whether the request was executed, and that the
// client has the same session afterwards.
func TestFaultsThatEndTheConnection(t *testing.T) {
	for _, x := range []struct {
		do   lockkeepertest.Action
		made bool
	}{{lockkeepertest.CloseBefore(), false}, {lockkeepertest.CloseAfter(), true}} {
		t.Run(fmt.Sprint(x.do), func(t *testing.T) {
			virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
				session := conn.SessionID()
				s.Inject(lockkeepertest.Fault{Op: "create*", Path: "/a", Do: x.do})
				if err := create(conn, "/a"); err != zk.ErrConnectionClosed {
					t.Errorf("got %v", err)
				}
				if exists(t, conn, "/a") != x.made {
					t.Errorf("executed: %v", !x.made)
				}
				if conn.SessionID() != session {
					t.Error("the client has another session")
				}
			})
		})
	}
}

// TestFaultsThatLeaveARequestWithoutReply: the client waits as long as it is connected.
func TestFaultsThatLeaveARequestWithoutReply(t *testing.T) {
	for _, x := range []struct {
		do   lockkeepertest.Action
		made bool
	}{{lockkeepertest.Drop(), false}, {lockkeepertest.DropReply(), true}} {
		t.Run(fmt.Sprint(x.do), func(t *testing.T) {
			virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
				fault := s.Inject(lockkeepertest.Fault{Op: "create", Do: x.do})
				done := make(chan error, 1)
				go func() { done <- create(conn, "/a") }()
				fault.Wait()
				if exists(t, conn, "/a") != x.made {
					t.Errorf("executed: %v", !x.made)
				}
				time.Sleep(10 * time.Minute)
				select {
				case err := <-done:
					t.Fatalf("the create returned %v", err)
				default:
				}
				s.Disconnect(conn.SessionID())
				if err := <-done; err != zk.ErrConnectionClosed {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

func TestFaultsThatDelayRequests(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
		other := s.Connect(t, time.Minute)
		s.Inject(lockkeepertest.Fault{Op: "create", Path: "/a", Do: lockkeepertest.Delay(7 * time.Second)})
		began := time.Now()
		if err := create(conn, "/a"); err != nil || time.Since(began) != 7*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}

		fault := s.Inject(lockkeepertest.Fault{Op: "create", Session: conn.SessionID(), Do: lockkeepertest.Hold()})
		done := make(chan error, 1)
		began = time.Now()
		go func() { done <- create(conn, "/b") }()
		fault.Wait()
		time.Sleep(3 * time.Second)
		if err := create(other, "/c"); err != nil || time.Since(began) != 3*time.Second {
			t.Errorf("another client's create: %v after %v", err, time.Since(began))
		}
		if exists(t, other, "/b") {
			t.Error("the request was not held")
		}
		fault.Remove()
		fault.Remove()
		if err := <-done; err != nil || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// TestFaultHoldsAnEvent: what follows the event waits too, so that no client sees a
// change before its event, and pings keep the session alive meanwhile.
func TestFaultHoldsAnEvent(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, writer *zk.Conn) {
		watcher := s.Connect(t, 10*time.Second)
		check(t, create(writer, "/a"))
		_, _, events, err := watcher.GetW("/a")
		if err != nil {
			t.Fatal(err)
		}
		session := watcher.SessionID()
		fault := s.Inject(lockkeepertest.Fault{Op: "event", Path: "/*", Session: session, Do: lockkeepertest.Hold()})
		must(writer.Set("/a", []byte("y"), 0))(t)
		fault.Wait()
		got := make(chan string, 1)
		go func() {
			data, _, err := watcher.Get("/a")
			got <- fmt.Sprintf("%s %v", data, err)
		}()
		time.Sleep(time.Minute)
		select {
		case e := <-events:
			t.Fatalf("the client got %v", e)
		case data := <-got:
			t.Fatalf("the client read %v before the event", data)
		default:
		}
		fault.Remove()
		if e := <-events; e.Type != zk.EventNodeDataChanged {
			t.Errorf("got %v", e)
		}
		if data := <-got; data != "y <nil>" || watcher.SessionID() != session {
			t.Errorf("read %v with session %#x, was %#x", data, watcher.SessionID(), session)
		}
	})
}

// TestFaultDelaysEvents: each event is delayed by the same time.
func TestFaultDelaysEvents(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, writer *zk.Conn) {
		watcher := s.Connect(t, time.Minute)
		_, _, a, err := watcher.ExistsW("/a")
		if err != nil {
			t.Fatal(err)
		}
		_, _, b, err := watcher.ExistsW("/b")
		if err != nil {
			t.Fatal(err)
		}
		s.Inject(lockkeepertest.Fault{Op: "event", Times: -1, Do: lockkeepertest.Delay(5 * time.Second)})
		began := time.Now()
		check(t, create(writer, "/a"))
		time.Sleep(2 * time.Second)
		check(t, create(writer, "/b"))
		if <-a; time.Since(began) != 5*time.Second {
			t.Errorf("the first event after %v", time.Since(began))
		}
		if <-b; time.Since(began) != 7*time.Second {
			t.Errorf("the second event after %v", time.Since(began))
		}
	})
}

// TestFaultLosesAnEvent: the event is lost, and with CloseBefore the client gets it after
// it has reconnected and set its watch again.
func TestFaultLosesAnEvent(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, writer *zk.Conn) {
		watcher := s.Connect(t, time.Minute)
		for path, do := range map[string]lockkeepertest.Action{"/a": lockkeepertest.Drop(), "/b": lockkeepertest.CloseBefore(), "/c": lockkeepertest.CloseAfter()} {
			settle(watcher)
			_, _, events, err := watcher.ExistsW(path)
			if err != nil {
				t.Fatal(err)
			}
			s.Inject(lockkeepertest.Fault{Op: "event", Path: path, Do: do})
			check(t, create(writer, path))
			select {
			case e := <-events:
				if path == "/a" || e.Type != zk.EventNodeCreated {
					t.Errorf("%v: got %v", do, e)
				}
			case <-time.After(time.Minute):
				if path != "/a" {
					t.Errorf("%v: no event", do)
				}
			}
		}
	})
}

func TestFaultsOfConnections(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
		session := conn.SessionID()
		refused := s.Inject(lockkeepertest.Fault{Op: "connect", Times: -1, Do: lockkeepertest.Refuse()})
		s.Disconnect(session)
		time.Sleep(20 * time.Second)
		if _, err := s.Dial("", "", 0); !errors.Is(err, syscall.ECONNREFUSED) || conn.State() == zk.StateHasSession {
			t.Errorf("dial: %v, state %v", err, conn.State())
		}
		refused.Remove()
		if exists(t, conn, "/"); conn.SessionID() != session {
			t.Error("the client has another session")
		}

		s.Inject(lockkeepertest.Fault{Op: "connect", Session: session, Do: lockkeepertest.Answer(zk.ErrSessionExpired)})
		s.Disconnect(session)
		for conn.SessionID() == session || conn.State() != zk.StateHasSession {
			time.Sleep(time.Second) // until the client has a new session
		}
		if err := s.ExpireSession(session); err != nil {
			t.Errorf("the session that the server said had expired: %v", err)
		}
	})
}

func TestFaultTrickles(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
		s.Inject(lockkeepertest.Fault{Op: "getData", Do: lockkeepertest.Trickle(10 * time.Millisecond)})
		check(t, create(conn, "/a"))
		began := time.Now()
		if data, _, err := conn.Get("/a"); err != nil || string(data) != "x" || time.Since(began) != 920*time.Millisecond {
			t.Errorf("%q, %v after %v; the reply has 93 bytes", data, err, time.Since(began))
		}
	})
}

// TestFaultHitsWhatItNames counts requests of several clients and operations.
func TestFaultHitsWhatItNames(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
		other := s.Connect(t, time.Minute)
		s.Inject(lockkeepertest.Fault{Path: "/x/*", Session: conn.SessionID(), Nth: 2, Times: 2, Do: lockkeepertest.Answer(zk.ErrNoAuth)})
		for i, x := range []struct {
			conn *zk.Conn
			path string
			hit  bool
		}{
			{conn, "/x", false}, {conn, "/x/a/b", false}, {other, "/x/a", false},
			{conn, "/x/a", false}, {conn, "/x/b", true}, {other, "/x/b", false}, {conn, "/y", false}, {conn, "/x/c", true}, {conn, "/x/d", false},
		} {
			if _, _, err := x.conn.Exists(x.path); (err == zk.ErrNoAuth) != x.hit {
				t.Errorf("request %d: %v", i, err)
			}
		}
		s.Inject(lockkeepertest.Fault{Op: "multi", Path: "/m2", Do: lockkeepertest.Answer(zk.ErrNoAuth)})
		acl := zk.WorldACL(zk.PermAll)
		if _, err := conn.Multi(&zk.CreateRequest{Path: "/m1", Acl: acl}); err != nil {
			t.Error(err)
		}
		if _, err := conn.Multi(&zk.CreateRequest{Path: "/m3", Acl: acl}, &zk.CreateRequest{Path: "/m2", Acl: acl}); err != zk.ErrNoAuth {
			t.Errorf("a multi with the path: %v", err)
		}
	})
}

// TestFaultAnswersInTurn: the answers of the tap and of the server come in the order of
// the requests.
func TestFaultAnswersInTurn(t *testing.T) {
	s := lockkeepertest.Start(t)
	s.Inject(lockkeepertest.Fault{Op: "getData", Nth: 2, Times: 2, Do: lockkeepertest.Answer(proto.SystemError)})
	nc := must(s.Dial("", "", time.Minute))(t)
	c := must(rawclient.Open(nc, time.Minute))(t)
	defer c.Close()
	get := func() { c.Queue(proto.OpGetData, &proto.PathWatch{Path: "/"}) }
	set := func() { c.Queue(proto.OpSetData, &proto.SetDataRequest{Path: "/", Version: -1}) }
	get()
	set()
	get()
	get()
	set()
	c.Queue(proto.OpPing, &proto.Empty{})
	get()
	check(t, c.Flush())
	var got []string
	for range 7 {
		f := must(c.Read())(t)
		got = append(got, fmt.Sprintf("%d %v %d", f.Xid, f.Code, uint32(f.Zxid)))
	}
	if got, want := strings.Join(got, ", "), "1 Ok 1, 2 Ok 2, 3 SystemError 2, 4 SystemError 2, 5 Ok 3, -2 Ok 3, 7 Ok 3"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// failures is a testing.TB that collects failures.
type failures struct {
	testing.TB
	cleanups []func()
	errors   []string
	log      strings.Builder
}

func (t *failures) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }
func (t *failures) Helper()          {}
func (t *failures) Failed() bool     { return len(t.errors) > 0 }
func (t *failures) Logf(format string, args ...any) {
	fmt.Fprintf(&t.log, format+"\n", args...)
}
func (t *failures) Errorf(format string, args ...any) {
	t.errors = append(t.errors, fmt.Sprintf(format, args...))
}
func (t *failures) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

// run runs a test that may fail, with its cleanups.
func (t *failures) run(f func()) {
	defer func() {
		for len(t.cleanups) > 0 {
			last := t.cleanups[len(t.cleanups)-1]
			t.cleanups = t.cleanups[:len(t.cleanups)-1]
			last()
		}
	}()
	t.runs(f)
}

// runs runs a part of a test.
func (t *failures) runs(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func TestUnusedFaultFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &failures{TB: t}
		fake.run(func() {
			s := lockkeepertest.Start(fake)
			conn := s.Connect(fake, time.Minute)
			s.Inject(lockkeepertest.Fault{Op: "create", Path: "/a", Nth: 2, Do: lockkeepertest.CloseAfter()})
			s.Inject(lockkeepertest.Fault{Op: "delete", Optional: true, Do: lockkeepertest.Drop()})
			s.Inject(lockkeepertest.Fault{Op: "closeSession", Do: lockkeepertest.Delay(time.Millisecond)}) // as the client ends
			if err := create(conn, "/a"); err != nil {
				t.Error(err)
			}
		})
		want := "lockkeepertest: Fault{Op: create, Path: /a, Nth: 2, Do: CloseAfter}, injected at fault_test.go:X, never took effect; requests that it matched: 1"
		if len(fake.errors) != 1 || regexp.MustCompile(`go:\d+`).ReplaceAllString(fake.errors[0], "go:X") != want {
			t.Errorf("got %q, want %q", fake.errors, want)
		}
	})
}

func TestImpossibleFaults(t *testing.T) {
	for want, f := range map[string]lockkeepertest.Fault{
		"what to Do":          {Op: "create"},
		"no server answers":   {Do: lockkeepertest.Answer(zk.ErrNoServer)},
		"is not a pattern":    {Path: "/[", Do: lockkeepertest.Drop()},
		"does not begin with": {Path: "*", Do: lockkeepertest.Drop()},
		`no requests of type "creat", only addWatch, auth, `: {Op: "creat", Do: lockkeepertest.Drop()},
		`no requests of type "check"`:                        {Op: "check", Do: lockkeepertest.Drop()},
		"Nth is -1":                                          {Nth: -1, Do: lockkeepertest.Drop()},
		"not possible with events":                           {Op: "event", Do: lockkeepertest.DropReply()},
		"can only be":                                        {Op: "connect", Do: lockkeepertest.Answer(zk.ErrNoNode)},
		"neither Path nor Session":                           {Op: "connect", Session: 1, Do: lockkeepertest.Refuse()},
		"the duration -1s is negative":                       {Do: lockkeepertest.Delay(-time.Second)},
		"Refuse needs Op connect":                            {Do: lockkeepertest.Refuse()},
	} {
		fake := &failures{TB: t}
		fake.run(func() {
			lockkeepertest.Start(fake).Inject(f)
			t.Errorf("%+v was injected", f)
		})
		if len(fake.errors) != 1 || !strings.Contains(fake.errors[0], want) {
			t.Errorf("got %q, want %q", fake.errors, want)
		}
	}
}

// TestWaitForAFault: Wait returns when the fault takes effect, or fails the test after a minute.
func TestWaitForAFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &failures{TB: t}
		var began time.Time
		fake.run(func() {
			s := lockkeepertest.Start(fake)
			conn := s.Connect(fake, 10*time.Minute)
			fault := s.Inject(lockkeepertest.Fault{Op: "create", Do: lockkeepertest.Delay(time.Second)})
			began = time.Now()
			go func() {
				time.Sleep(30 * time.Second)
				create(conn, "/a")
			}()
			fault.Wait()
			fault.Wait()
			if d := time.Since(began); d != 30*time.Second {
				t.Errorf("Wait returned after %v", d)
			}
			fault = s.Inject(lockkeepertest.Fault{Op: "delete", Do: lockkeepertest.Drop()})
			began = time.Now()
			fault.Wait()
			t.Error("Wait returned without the fault")
		})
		if d := time.Since(began).Round(time.Second); d != time.Minute+2*time.Second { // and two for the end of the client
			t.Errorf("Wait gave up after %v", d)
		}
		if len(fake.errors) != 1 || !strings.Contains(fake.errors[0], "Fault{Op: delete, Do: Drop}: no effect yet") {
			t.Errorf("got %q", fake.errors)
		}
	})
}

// TestFaultsWithTCP needs real time.
func TestFaultsWithTCP(t *testing.T) {
	s := lockkeepertest.Start(t, lockkeepertest.WithTCP())
	refused := s.Inject(lockkeepertest.Fault{Op: "connect", Do: lockkeepertest.Refuse()})
	// With several addresses the client does not wait for a second before it connects again.
	conn, _, err := zk.Connect([]string{s.Addr(), s.Addr(), s.Addr()}, time.Minute, zk.WithLogger(logger{}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	refused.Wait()
	exists(t, conn, "/")
	s.Inject(lockkeepertest.Fault{Op: "create", Do: lockkeepertest.CloseAfter()})
	if err := create(conn, "/a"); err != zk.ErrConnectionClosed {
		t.Errorf("got %v", err)
	}
	if !exists(t, conn, "/a") {
		t.Error("the request was not executed")
	}
}

// TestFaultsOfAStoppedServer: a request that waits does not keep the server running.
func TestFaultsOfAStoppedServer(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
		for _, op := range []string{"create", "getData", "event"} {
			settle(conn)
			_, _, _, err := conn.ExistsW("/b")
			if err != nil {
				t.Fatal(err)
			}
			do := lockkeepertest.Hold()
			if op == "getData" {
				do = lockkeepertest.Trickle(time.Hour)
			}
			fault := s.Inject(lockkeepertest.Fault{Op: op, Do: do})
			go func() {
				if op == "getData" {
					conn.Get("/")
				} else {
					create(conn, "/b")
				}
			}()
			fault.Wait()
			s.Kill()
			s.Restart()
		}
		settle(conn)
	})
}

// TestHasFired: when a client notices what a fault does, that has been noted.
func TestHasFired(t *testing.T) {
	for _, do := range []lockkeepertest.Action{lockkeepertest.CloseBefore(), lockkeepertest.CloseAfter()} {
		for range 50 {
			synctest.Test(t, func(t *testing.T) {
				s := lockkeepertest.Start(t)
				conn := s.Connect(t, time.Minute)
				fault := s.Inject(lockkeepertest.Fault{Op: "create", Do: do})
				if fault.HasFired() {
					t.Error("a fault has fired before any request")
				}
				if err := create(conn, "/a"); err == nil || !fault.HasFired() {
					t.Errorf("%v: %v", fault, err)
				}
			})
		}
	}
}
