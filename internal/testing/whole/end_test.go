package whole

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// ends checks that a server has stopped serving for good, and why. Every reader is told.
func ends(t *testing.T, s *lockkeeper.Server, why error) {
	t.Helper()
	for range 2 {
		select {
		case <-s.Done():
		case <-time.After(time.Minute):
			t.Fatal("Done is not closed")
		}
		if err := s.Err(); !errors.Is(err, why) {
			t.Errorf("Err: %v, want %v", err, why)
		}
		if err := s.Wait(t.Context()); !errors.Is(err, why) {
			t.Errorf("Wait: %v, want %v", err, why)
		}
	}
}

// TestDone: Done is closed, and Err says why, after Close and after a fault, which Close does not
// change.
func TestDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		noGoroutineLeft(t)
		cfg := withMemory(lockkeeper.Config{})
		s := open(t, cfg)
		select {
		case <-s.Done():
			t.Error("Done is closed while it serves")
		default:
		}
		if err := s.Err(); err != nil {
			t.Error(err)
		}
		check(t, s.Close())
		ends(t, s, lockkeeper.ErrClosed)

		s = must(lockkeeper.Open(cfg))(t)
		check(t, s.Wait(t.Context()))
		c := connect(t, inMemory(s))
		testhooks.In(&cfg).Memory.SetFault(func() error { return syscall.EIO })
		must(c.Send(proto.OpCreate, &proto.CreateRequest{Path: "/x", ACL: proto.OpenACL}))(t)
		ends(t, s, syscall.EIO)
		s.Close()
		ends(t, s, syscall.EIO)
	})
}

// TestShutdownAnswers: Shutdown answers the requests that were received, also those that wait for
// the disk, ends the connections after the answers, and refuses new clients meanwhile.
func TestShutdownAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		noGoroutineLeft(t)
		cfg := withMemory(lockkeeper.Config{})
		s := must(lockkeeper.Open(cfg))(t)
		c, idle := connect(t, inMemory(s)), connect(t, inMemory(s))
		disk := make(chan struct{})
		testhooks.In(&cfg).Memory.SetFault(func() error { <-disk; return nil })
		results := make(chan error, 2)
		xid := must(c.Send(proto.OpCreate, &proto.CreateRequest{Path: "/x", ACL: proto.OpenACL}))(t)
		must(c.Send(proto.OpExists, &proto.PathWatch{Path: "/x"}))(t)
		synctest.Wait()
		go func() { results <- s.Shutdown(t.Context()) }()
		synctest.Wait()
		if _, err := s.Dial("", "", time.Second); !errors.Is(err, lockkeeper.ErrClosed) {
			t.Errorf("Dial: %v", err)
		}
		theirs, ours := net.Pipe()
		s.ServeConn(ours)
		if _, err := rawclient.Open(theirs, time.Second); err == nil {
			t.Error("ServeConn has served a new client")
		}
		closed(t, idle)
		time.Sleep(time.Second)
		select {
		case <-s.Done():
			t.Fatal("it did not wait for the write")
		default:
		}
		close(disk)
		for i := range 2 {
			f, err := c.Read()
			if err != nil || f.Code != proto.OK || f.Xid != xid+int32(i) {
				t.Fatalf("answer %d: %+v, %v", i, f, err)
			}
		}
		closed(t, c)
		check(t, <-results)
		ends(t, s, lockkeeper.ErrClosed)
	})
}

// TestShutdownOverTCP: a client that sends on and on while its server shuts down gets the answers to
// all requests that were carried out, and then the end of the connection.
func TestShutdownOverTCP(t *testing.T) {
	cfg := withMemory(lockkeeper.Config{ClientAddr: "127.0.0.1:0"})
	s := must(lockkeeper.Open(cfg))(t)
	check(t, s.Wait(t.Context()))
	addr := s.Addr().String()
	c := connect(t, func() (net.Conn, error) { return net.Dial("tcp", addr) })
	go func() {
		for i := range 100_000 {
			if _, err := c.Send(proto.OpCreate, &proto.CreateRequest{Path: fmt.Sprintf("/n%d", i), ACL: proto.OpenACL}); err != nil {
				return
			}
		}
	}()
	answered, result := 0, make(chan error, 1)
	for {
		f, err := c.Read()
		if err == io.EOF {
			break
		}
		if err != nil || f.Code != proto.OK {
			t.Fatalf("after %d answers: %+v, %v", answered, f, err)
		}
		if answered++; answered == 100 {
			go func() { result <- s.Shutdown(t.Context()) }()
		}
	}
	c.Close()
	check(t, <-result)
	if nc, err := net.Dial("tcp", addr); err == nil {
		nc.Close()
		t.Error("the port is still open")
	}
	again := open(t, cfg)
	if created := again.Status().State.Znodes - open(t, lockkeeper.Config{}).Status().State.Znodes; created != answered || answered < 100 {
		t.Errorf("%d creates were carried out, and %d answered", created, answered)
	}
}

// TestShutdownEndsWithContext: if ctx ends first, Shutdown closes the server at once and returns
// the error of ctx.
func TestShutdownEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		noGoroutineLeft(t)
		cfg := withMemory(lockkeeper.Config{})
		s := must(lockkeeper.Open(cfg))(t)
		c := connect(t, inMemory(s))
		disk := make(chan struct{})
		testhooks.In(&cfg).Memory.SetFault(func() error { <-disk; return nil })
		must(c.Send(proto.OpCreate, &proto.CreateRequest{Path: "/x", ACL: proto.OpenACL}))(t)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		result := make(chan error)
		go func() { result <- s.Shutdown(ctx) }()
		closed(t, c)
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("the connection ends after %v", took)
		}
		close(disk)
		if err := <-result; err != context.DeadlineExceeded {
			t.Error(err)
		}
		ends(t, s, lockkeeper.ErrClosed)
		check(t, s.Shutdown(t.Context())) // again
	})
}

// TestShutdownHandsOver: Shutdown of the leader makes another member the leader before the
// leader's clients are disconnected. Close does not.
func TestShutdownHandsOver(t *testing.T) {
	inCluster(t, 3, nil, func(t *testing.T, m *members) {
		for _, graceful := range []bool{true, false} {
			lead := m.leader()
			term := m.servers[lead].Status().State.Term
			c := m.connect(lead, 10*time.Second)
			s := m.servers[lead]
			m.servers[lead] = nil
			other := m.servers[(lead+1)%3]
			result, gone := make(chan error, 1), make(chan struct{})
			go func() {
				for c.Ping() == nil {
					time.Sleep(time.Millisecond)
				}
				close(gone)
			}()
			if graceful {
				go func() { result <- s.Shutdown(t.Context()) }()
			} else { // the others notice later than the client, which polls
				m.net.SetDelay(func(_, _ string) time.Duration { return 5 * time.Millisecond })
				go func() { result <- s.Close() }()
			}
			<-gone
			st := other.Status()
			if handed := st.Cluster.Leader != 0 && st.Cluster.Leader != uint64(lead+1) && st.State.Term == term+1; handed != graceful {
				t.Errorf("graceful %v: when the client is disconnected, server %d leads in term %d, after server %d in %d", graceful, st.Cluster.Leader, st.State.Term, lead+1, term)
			}
			check(t, <-result)
			m.net.SetDelay(nil)
			m.net.Kill(host(lead))
			m.serve(lead)
		}
	})
}

// TestCloseDuringShutdown: Close ends a Shutdown that waits.
func TestCloseDuringShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		noGoroutineLeft(t)
		cfg := withMemory(lockkeeper.Config{})
		s := must(lockkeeper.Open(cfg))(t)
		c := connect(t, inMemory(s))
		disk := make(chan struct{})
		testhooks.In(&cfg).Memory.SetFault(func() error { <-disk; return nil })
		must(c.Send(proto.OpCreate, &proto.CreateRequest{Path: "/x", ACL: proto.OpenACL}))(t)
		synctest.Wait()
		result := make(chan error)
		go func() { result <- s.Shutdown(t.Context()) }()
		synctest.Wait()
		time.AfterFunc(time.Millisecond, func() { close(disk) })
		check(t, s.Close())
		check(t, <-result)
	})
}

// TestDialContext: DialContext waits until the server is ready or ctx ends.
func TestDialContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := lockkeeper.Config{Peers: []lockkeeper.Peer{{ID: 1, Addr: "host1:7000"}, {ID: 2, Addr: "host2:7000"}}}
		testhooks.In(&cfg).Network = memnet.New().Host("host1") // without the other
		s := must(lockkeeper.Open(cfg))(t)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := s.DialContext(ctx, "tcp", "any:1"); !errors.Is(err, context.Canceled) {
			t.Errorf("not ready: %v", err)
		}
		check(t, s.Close())
		if _, err := s.DialContext(t.Context(), "tcp", "any:1"); err != lockkeeper.ErrClosed {
			t.Errorf("closed: %v", err)
		}
		s = open(t, lockkeeper.Config{})
		ctx, cancel = context.WithCancel(t.Context())
		c := connect(t, func() (net.Conn, error) { return s.DialContext(ctx, "tcp", "any:1") })
		cancel() // the connection does not depend on it
		check(t, c.Ping())
	})
}

// TestSentinels: what the errors of a standalone server, of a cluster without a majority, and of
// a server that is closed meanwhile are, as errors.Is tells.
func TestSentinels(t *testing.T) {
	is := func(t *testing.T, what string, err error, want ...error) {
		t.Helper()
		all := []error{lockkeeper.ErrStandalone, lockkeeper.ErrNoLeader, lockkeeper.ErrNoMember, lockkeeper.ErrNoSession, lockkeeper.ErrUnknownOutcome, lockkeeper.ErrClosed, context.DeadlineExceeded}
		for _, e := range all {
			wanted := false
			for _, w := range want {
				wanted = wanted || w == e
			}
			if errors.Is(err, e) != wanted {
				t.Errorf("%s: %v; errors.Is with %q is %v", what, err, e, !wanted)
			}
		}
	}
	t.Run("standalone", func(t *testing.T) {
		s, ctx := open(t, lockkeeper.Config{}), t.Context()
		_, err := s.MemberStatus(ctx, 1)
		is(t, "MemberStatus", err, lockkeeper.ErrStandalone)
		is(t, "Transfer", s.Transfer(ctx, 0), lockkeeper.ErrStandalone)
		is(t, "AddMember", s.AddMember(ctx, lockkeeper.Peer{ID: 2, Addr: "a:1"}), lockkeeper.ErrStandalone)
		is(t, "RemoveMember", s.RemoveMember(ctx, 0), lockkeeper.ErrStandalone)
		is(t, "FormCluster", s.FormCluster(ctx), lockkeeper.ErrStandalone)
		is(t, "EndSession", s.EndSession(ctx, 77), lockkeeper.ErrNoSession)
	})
	t.Run("members", func(t *testing.T) {
		inCluster(t, 3, nil, func(t *testing.T, m *members) {
			lead := m.leader()
			ctx, s := t.Context(), m.servers[(lead+1)%3]
			_, err := s.MemberStatus(ctx, 9)
			is(t, "MemberStatus", err, lockkeeper.ErrNoMember)
			is(t, "Transfer", s.Transfer(ctx, 9), lockkeeper.ErrNoMember)
			is(t, "RemoveMember", s.RemoveMember(ctx, 9), lockkeeper.ErrNoMember)
			is(t, "RemoveMember of 0", s.RemoveMember(ctx, 0), lockkeeper.ErrNoMember)
			is(t, "FormCluster", s.FormCluster(ctx)) // refused

			c := m.connect((lead+1)%3, 10*time.Second)
			soon := func() context.Context {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				t.Cleanup(cancel)
				return ctx
			}
			for _, i := range []int{lead, (lead + 2) % 3} { // then there is no majority
				m.stop(i)
				m.net.Kill(host(i))
			}
			time.Sleep(time.Minute)
			is(t, "Transfer", s.Transfer(ctx, 0), lockkeeper.ErrNoLeader)
			is(t, "RemoveMember for 5 s", s.RemoveMember(soon(), 9), lockkeeper.ErrNoLeader, context.DeadlineExceeded)
			is(t, "EndSession for 5 s", s.EndSession(soon(), c.Session.SessionID), lockkeeper.ErrUnknownOutcome, context.DeadlineExceeded)
			time.AfterFunc(time.Second, func() { s.Close() })
			is(t, "EndSession of a server that is closed", s.EndSession(ctx, c.Session.SessionID), lockkeeper.ErrUnknownOutcome, lockkeeper.ErrClosed)
			check(t, s.Close())
			is(t, "Transfer of a server that was closed", s.Transfer(ctx, 0), lockkeeper.ErrClosed)
		})
	})
	t.Run("unknown outcome", func(t *testing.T) {
		inCluster(t, 3, nil, func(t *testing.T, m *members) {
			lead := m.leader()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			// The leader begins the change, and its disk is slow.
			testhooks.In(&m.configs[lead]).Memory.SetFault(func() error { time.Sleep(time.Minute); return nil })
			is(t, "RemoveMember", m.servers[lead].RemoveMember(ctx, uint64((lead+1)%3+1)), lockkeeper.ErrUnknownOutcome, context.DeadlineExceeded)
			testhooks.In(&m.configs[lead]).Memory.SetFault(nil)
			time.Sleep(2 * time.Minute)
		})
	})
}
