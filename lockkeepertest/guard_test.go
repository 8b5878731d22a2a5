package lockkeepertest_test

import (
	"errors"
	"math"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/lock/fence"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// guarded runs a test of a server whose lock /lock is guarded, with two clients, and
// returns what it failed with.
func guarded(t *testing.T, f func(t *failures, s *lockkeepertest.Server, g *lockkeepertest.Guard, a, b *zk.Conn)) (failed []string) {
	synctest.Test(t, func(t *testing.T) {
		fake := &failures{TB: t}
		fake.run(func() {
			s := lockkeepertest.Start(fake)
			a, b := s.Connect(fake, time.Minute), s.Connect(fake, time.Minute)
			check(t, create(a, "/lock"))
			f(fake, s, s.GuardLock(fake, "/lock"), a, b)
			synctest.Wait() // until no client has a request in progress; see settle
		})
		failed = fake.errors
		if len(failed) > 0 && fake.log.Len() == 0 {
			t.Error("the state of the server is not logged")
		}
	})
	return failed
}

// kinds are the verdicts.
const (
	overlap  = "two holders overlapped in what they did"
	stale    = "a stale token was accepted"
	intruder = "a client wrote without the lock"
	gone     = "a lock znode is left whose client is gone"
	unknown  = "a lock znode is left whose client does not know of it"
)

// expect checks that a test failed with these verdicts and no others, or with none.
func expect(t *testing.T, failed []string, kinds ...string) {
	t.Helper()
	if len(kinds) == 0 {
		if len(failed) > 0 {
			t.Errorf("failed with %s", strings.Join(failed, "\n"))
		}
		return
	}
	want := "lockkeepertest: the lock /lock: " + strings.Join(kinds, "; ") + "\n"
	if len(failed) != 1 || !strings.HasPrefix(failed[0], want) {
		t.Errorf("got %s\nwant %s", strings.Join(failed, "\n"), want)
	}
}

// contend queues a znode for the lock.
func contend(t testing.TB, conn *zk.Conn, name string) string {
	t.Helper()
	path, err := conn.Create("/lock/"+name, nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return path
}

// handOver gives the lock to a and then, when the session of a has expired, to b. It
// returns their tokens. do is called while a has the lock.
func handOver(t testing.TB, s *lockkeepertest.Server, g *lockkeepertest.Guard, a, b *zk.Conn, do func(token int64)) (first, second int64) {
	t.Helper()
	session := a.SessionID()
	<-lock(a, "/lock")
	first = g.Token(session)
	next := lock(b, "/lock")
	s.WaitWaiters("/lock", 1)
	do(first)
	time.Sleep(20 * time.Second)
	if err := s.ExpireSession(session); err != nil {
		t.Fatalf("%v", err)
	}
	<-next
	settle(a)
	return first, g.Token(b.SessionID())
}

func TestGuardWrites(t *testing.T) {
	for name, x := range map[string]struct {
		during, after string // the writes of a while it has the lock and later, and of b
		want          []string
	}{
		"in turn":                {"a", "b", nil},
		"many, in turn":          {"aaa", "bbb", nil},
		"after each other":       {"", "ab", nil}, // a is late, but nothing happened since
		"both":                   {"a", "ba", []string{overlap, stale}},
		"both, many":             {"a", "baba", []string{overlap, stale}},
		"late":                   {"", "ba", []string{stale}},
		"in between":             {"", "bab", []string{overlap, stale}},
		"a check stops the late": {"A", "BA", nil},
		"a check at first":       {"A", "B", nil},
	} {
		t.Run(name, func(t *testing.T) {
			failed := guarded(t, func(t *failures, s *lockkeepertest.Server, g *lockkeepertest.Guard, a, b *zk.Conn) {
				r, idle := g.Resource(), g.Resource()
				var token [2]int64
				write := func(who string) {
					for _, c := range who {
						i := int(c-'A') % ('a' - 'A')
						switch {
						case c >= 'a':
							r.WriteUnchecked(token[i])
						case i == 0 && len(g.Holders()) == 2:
							if err := r.Write(token[i]); !errors.Is(err, fence.ErrStale) {
								t.TB.Errorf("a stale token was accepted: %v", err)
							}
						default:
							if err := r.Write(token[i]); err != nil {
								t.TB.Error(err)
							}
						}
						time.Sleep(time.Second)
					}
				}
				first, second := handOver(t, s, g, a, b, func(first int64) {
					token[0] = first
					write(x.during)
				})
				token[0], token[1] = first, second
				if err := idle.Write(first); err != nil { // another resource knows no greater token
					t.TB.Error(err)
				}
				write(x.after)
			})
			expect(t, failed, x.want...)
		})
	}
}

// TestGuardTimeline compares a whole failure.
func TestGuardTimeline(t *testing.T) {
	failed := guarded(t, func(t *failures, s *lockkeepertest.Server, g *lockkeepertest.Guard, a, b *zk.Conn) {
		r := g.Resource()
		first, second := handOver(t, s, g, a, b, func(first int64) {
			r.WriteUnchecked(first)
			time.Sleep(time.Second)
			r.WriteUnchecked(first)
			r.WriteUnchecked(first)
		})
		r.WriteUnchecked(second)
		r.WriteUnchecked(first)
		if err := r.Write(first); err == nil {
			t.TB.Error("the token is not stale")
		}
	})
	if len(failed) != 1 {
		t.Fatalf("failed with %q", failed)
	}
	want := `lockkeepertest: the lock /lock: two holders overlapped in what they did; a stale token was accepted
  guarded since guard_test.go:X
  what is wrong:
    A wrote from 0.000 s to later, B from later to later
    A wrote at later, after B, which wrote first at later
  timeline:
        0.000 s  A: is queued as _c_X-lock-0000000000 (zxid 0x200000004)
        0.000 s  A: holds the lock (zxid 0x200000004)
        0.000 s  B: is queued as _c_X-lock-0000000001 (zxid 0x200000005)
        0.000 s  A: writes, and 2 times more until 1.000 s
       21.000 s  A: its session ends, and its znode with it (zxid 0x200000006)
       21.000 s  B: holds the lock (zxid 0x200000006)
       later  B: writes
       later  A: writes
       later  A: a write is refused, since the token is stale`
	got := regexp.MustCompile(`session 0x\w+ with token 0x200000004`).ReplaceAllString(failed[0], "A")
	got = regexp.MustCompile(`session 0x\w+ with token 0x200000005`).ReplaceAllString(got, "B")
	got = regexp.MustCompile(`_c_\w{32}-`).ReplaceAllString(got, "_c_X-")
	got = regexp.MustCompile(`2[2-9]\.\d{3} s`).ReplaceAllString(got, "later") // when the client is back
	got = regexp.MustCompile(`go:\d+`).ReplaceAllString(got, "go:X")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestGuardIntruders: writes without the lock.
func TestGuardIntruders(t *testing.T) {
	for _, token := range []string{"of a waiter", "of nobody"} {
		t.Run(token, func(t *testing.T) {
			failed := guarded(t, func(t *failures, s *lockkeepertest.Server, g *lockkeepertest.Guard, a, b *zk.Conn) {
				contend(t, a, "lock-")
				_, stat, err := s.Get(contend(t, b, "lock-"))
				if err != nil {
					t.Fatalf("%v", err)
				}
				waits := stat.Czxid
				if token == "of nobody" {
					waits++
				}
				if err := g.Resource().Write(waits); err != nil {
					t.TB.Error(err)
				}
			})
			expect(t, failed, intruder)
		})
	}
}

// protected is the prefix of a name with a UUID, as Curator makes it.
const protected = "_c_01234567-89ab-cdef-0123-456789abcdef-lock-"

// TestGuardLostReplies: whether a client knows of the znode that it has made.
func TestGuardLostReplies(t *testing.T) {
	for name, x := range map[string]struct {
		do           lockkeepertest.Action
		name         string
		elsewhere    bool // it creates another znode, which is not of this lock
		list, again  bool // afterwards
		listAfter    bool // after again
		remove, soon bool // the client deletes it; the test ends at once
		want         []string
	}{
		"closed":                       {do: lockkeepertest.CloseAfter(), name: "lock-", want: []string{unknown}},
		"closed, and the test ends":    {do: lockkeepertest.CloseAfter(), name: "lock-", soon: true, want: []string{unknown}},
		"dropped":                      {do: lockkeepertest.DropReply(), name: "lock-", soon: true, want: []string{unknown}},
		"before it is executed":        {do: lockkeepertest.CloseBefore(), name: "lock-"},
		"slow":                         {do: lockkeepertest.Trickle(time.Millisecond), name: "lock-"},
		"still to be executed":         {do: lockkeepertest.Hold(), name: "lock-", soon: true},
		"in a multi":                   {do: lockkeepertest.CloseAfter(), name: "multi", want: []string{unknown}},
		"without a UUID, listed":       {do: lockkeepertest.CloseAfter(), name: "lock-", list: true, want: []string{unknown}},
		"with a UUID":                  {do: lockkeepertest.CloseAfter(), name: protected, want: []string{unknown}},
		"with a UUID, found":           {do: lockkeepertest.CloseAfter(), name: protected, list: true},
		"with a UUID, found, and more": {do: lockkeepertest.CloseAfter(), name: protected, list: true, again: true},
		"with a UUID, found later":     {do: lockkeepertest.CloseAfter(), name: protected, elsewhere: true, list: true},
		"forgotten":                    {do: lockkeepertest.CloseAfter(), name: protected, again: true, listAfter: true, want: []string{unknown}},
		"deleted":                      {do: lockkeepertest.CloseAfter(), name: "lock-", remove: true},
	} {
		t.Run(name, func(t *testing.T) {
			failed := guarded(t, func(t *failures, s *lockkeepertest.Server, g *lockkeepertest.Guard, a, b *zk.Conn) {
				contend(t, b, "lock-")
				fault := s.Inject(lockkeepertest.Fault{Op: "[cm]*", Session: a.SessionID(), Do: x.do})
				done := make(chan error, 1)
				go func() {
					acl := zk.WorldACL(zk.PermAll)
					if x.name == "multi" {
						_, err := a.Multi(&zk.CreateRequest{Path: "/lock/lock-", Flags: zk.FlagEphemeral | zk.FlagSequence, Acl: acl})
						done <- err
						return
					}
					_, err := a.Create("/lock/"+x.name, nil, zk.FlagEphemeral|zk.FlagSequence, acl)
					done <- err
				}()
				fault.Wait()
				if x.soon {
					t.Cleanup(func() { s.Disconnect(a.SessionID()); settle(a) }) // for the client's sake
					g.Check()
					return
				}
				<-done
				settle(a)
				list := func() {
					if _, _, err := a.Children("/lock"); err != nil {
						t.TB.Error(err)
					}
				}
				if x.elsewhere {
					if err := create(a, "/other"); err != nil {
						t.TB.Error(err)
					}
				}
				if x.list {
					list()
				}
				if x.again {
					contend(t, a, strings.Replace(protected, "0", "1", 1))
				}
				if x.listAfter {
					list()
				}
				if x.remove {
					if err := a.Delete("/lock/lock-0000000001", -1); err != nil {
						t.TB.Error(err)
					}
				}
			})
			expect(t, failed, x.want...)
		})
	}
}

// TestGuardKilledMember kills a member after the leader has committed a create, and before
// the member sends the reply.
func TestGuardKilledMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &failures{TB: t}
		fake.run(func() {
			c := lockkeepertest.StartCluster(fake, 3)
			lead := c.Leader()
			follower := lead%3 + 1
			g, before := c.GuardLock(fake, "/lock"), c.GuardLock(fake, "/lock")
			conn := c.Server(follower).Connect(fake, time.Minute)
			check(t, create(conn, "/lock"))
			c.SetLink(lead, follower, lockkeepertest.Link{Cut: true})
			go conn.Create("/lock/lock-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
			c.Server(lead).WaitHeld("/lock", conn.SessionID())
			if got := g.Holders(); len(got) != 1 || got[0].Session != conn.SessionID() {
				t.Errorf("got %+v", got)
			}
			before.Check() // the request is still in progress
			if fake.Failed() {
				t.Errorf("failed before with %s", fake.errors)
			}
			c.Server(follower).Kill()
			c.Heal()
			g.Check()
			c.Server(follower).Restart()
			settle(conn)
		})
		expect(t, fake.errors, unknown)
	})
}

// hangUp is a dialer whose connections a test can close.
type hangUp struct {
	last net.Conn
	cut
}

func (h *hangUp) Dial(network, address string, timeout time.Duration) (conn net.Conn, err error) {
	h.last, err = h.cut.Dial(network, address, timeout)
	return h.last, err
}

// TestGuardGoneClients: whether a client is gone that has a znode.
func TestGuardGoneClients(t *testing.T) {
	for name, x := range map[string]struct {
		do   func(t *failures, s *lockkeepertest.Server, h *hangUp, conn *zk.Conn)
		want []string
	}{
		"connected": {func(*failures, *lockkeepertest.Server, *hangUp, *zk.Conn) {}, nil},
		"hangs up": {func(_ *failures, _ *lockkeepertest.Server, h *hangUp, _ *zk.Conn) {
			h.off.Store(true)
			h.last.Close()
			time.Sleep(20 * time.Second)
		}, []string{gone}},
		"expires": {func(_ *failures, _ *lockkeepertest.Server, h *hangUp, _ *zk.Conn) {
			h.off.Store(true)
			h.last.Close()
			time.Sleep(2 * time.Minute)
		}, nil},
		"comes back": {func(_ *failures, _ *lockkeepertest.Server, h *hangUp, conn *zk.Conn) {
			h.last.Close()
			settle(conn)
		}, nil},
		"is disconnected": {func(_ *failures, s *lockkeepertest.Server, h *hangUp, conn *zk.Conn) {
			h.off.Store(true)
			s.Disconnect(conn.SessionID())
			time.Sleep(20 * time.Second)
		}, nil},
		"server stopped": {func(_ *failures, s *lockkeepertest.Server, _ *hangUp, _ *zk.Conn) { s.Kill() }, nil},
		"closes its session": {func(_ *failures, _ *lockkeepertest.Server, _ *hangUp, conn *zk.Conn) {
			conn.Close()
		}, nil},
		"has a new session": {func(_ *failures, s *lockkeepertest.Server, _ *hangUp, conn *zk.Conn) {
			session := conn.SessionID()
			s.Inject(lockkeepertest.Fault{Op: "connect", Session: session, Do: lockkeepertest.Answer(zk.ErrSessionExpired)})
			s.Disconnect(session)
			for conn.SessionID() == session {
				settle(conn)
			}
		}, []string{gone}},
	} {
		t.Run(name, func(t *testing.T) {
			failed := guarded(t, func(t *failures, s *lockkeepertest.Server, g *lockkeepertest.Guard, a, b *zk.Conn) {
				h := &hangUp{cut: cut{s: s}}
				conn, events, err := zk.Connect([]string{"127.0.0.1:1"}, time.Minute, zk.WithDialer(h.Dial), zk.WithLogger(logger{}))
				if err != nil {
					t.Fatalf("%v", err)
				}
				t.Cleanup(conn.Close)
				for e := range events {
					if e.State == zk.StateHasSession {
						break
					}
				}
				contend(t, conn, protected)
				contend(t, a, "lock-")
				x.do(t, s, h, conn)
				synctest.Wait()
				g.Check()
				g.Check() // once is enough
			})
			expect(t, failed, x.want...)
		})
	}
}

// TestGuardedNames: who holds a lock, by the names that clients give to their znodes.
func TestGuardedNames(t *testing.T) {
	const hex, curator = "0123456789abcdef0123456789abcdef", "_c_01234567-89ab-cdef-0123-456789abcdef-"
	for name, x := range map[string]struct{ a, b, c string }{ // exclusive, shared, shared
		"go-zookeeper":            {a: "_c_" + hex + "-lock-"},
		"kazoo":                   {hex + "__lock__", hex + "__rlock__", hex + "__rlock__"},
		"Curator":                 {a: curator + "lock-"},
		"Curator, read and write": {curator + "__WRIT__", curator + "__READ__", curator + "__READ__"},
	} {
		t.Run(name, func(t *testing.T) {
			failed := guarded(t, func(t *failures, s *lockkeepertest.Server, g *lockkeepertest.Guard, a, b *zk.Conn) {
				third := s.Connect(t, time.Minute)
				first := contend(t, a, x.a)
				if x.b == "" {
					contend(t, b, x.a)
				} else {
					contend(t, b, x.b)
					contend(t, third, x.c)
				}
				contend(t, a, x.a)
				if got := g.Holders(); len(got) != 1 || got[0].Session != a.SessionID() || got[0].Shared || !got[0].Until.IsZero() {
					t.TB.Errorf("got %+v", got)
				}
				time.Sleep(time.Second)
				if err := a.Delete(first, -1); err != nil {
					t.TB.Error(err)
				}
				got := g.Holders()
				if x.b == "" {
					if len(got) != 2 || got[1].Session != b.SessionID() || got[1].Shared || got[1].Token != g.Token(b.SessionID()) {
						t.TB.Errorf("got %+v", got)
					}
				} else if len(got) != 3 || got[1].Session != b.SessionID() || got[2].Session != third.SessionID() || !got[1].Shared || !got[2].Shared {
					t.TB.Errorf("got %+v", got)
				}
				if !got[0].Until.Equal(time.Now()) || got[0].From.Add(time.Second) != got[0].Until || !got[1].From.Equal(got[0].Until) ||
					got[0].FromZxid != got[0].Token || got[0].UntilZxid <= got[0].Token || got[1].FromZxid != got[0].UntilZxid {
					t.TB.Errorf("got %+v", got)
				}
				if x.b == "" {
					return
				}
				r := g.Resource() // the sessions that share the lock may overlap, and the next one ends them
				read, also := g.Token(b.SessionID()), g.Token(third.SessionID())
				for _, token := range []int64{read, also, read, also} {
					if err := r.Write(token); err != nil {
						t.TB.Error(err)
					}
				}
				for _, id := range []int64{b.SessionID(), third.SessionID()} {
					if err := s.ExpireSession(id); err != nil {
						t.TB.Error(err)
					}
				}
				if err := r.Write(g.Token(a.SessionID())); err != nil {
					t.TB.Error(err)
				}
				if err := r.Write(also); !errors.Is(err, fence.ErrStale) {
					t.TB.Errorf("got %v", err)
				}
				settle(b)
				settle(third)
			})
			expect(t, failed)
		})
	}
}

// work takes the lock n times, and writes to the resource. If the connection is lost, it
// tries again until it has released the lock.
func work(t *testing.T, conn *zk.Conn, g *lockkeepertest.Guard, r *lockkeepertest.Resource, n int) {
	for range n {
		l := zk.NewLock(conn, "/lock", zk.WorldACL(zk.PermAll))
		if err := l.Lock(); err != nil {
			t.Error(err)
			return
		}
		token := g.Token(conn.SessionID())
		for range 3 {
			time.Sleep(100 * time.Millisecond)
			if err := r.Write(token); err != nil {
				t.Error(err)
			}
		}
		for err := l.Unlock(); err != nil && err != zk.ErrNoNode; err = l.Unlock() {
			time.Sleep(time.Second)
		}
	}
}

// checkTurns checks that n holders took turns.
func checkTurns(t *testing.T, g *lockkeepertest.Guard, n int) {
	t.Helper()
	all := g.Holders()
	if len(all) != n {
		t.Errorf("%d times, want %d", len(all), n)
	}
	for i, h := range all {
		if i > 0 && (h.From.Before(all[i-1].Until) || h.FromZxid < all[i-1].UntilZxid || h.Token <= all[i-1].Token) {
			t.Errorf("%+v, and then %+v", all[i-1], h)
		}
	}
}

// TestGuardOverALeaderChange: go-zookeeper's locks while leaders step down and one is
// killed. A lost reply to a create is no fault of the client, which finds its znode.
func TestGuardOverALeaderChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lockkeepertest.StartCluster(t, 3)
		g := c.GuardLock(t, "/lock")
		r := g.Resource()
		lead := c.Leader()
		var wg sync.WaitGroup
		for i := range 4 {
			conn := c.Server((lead+i%2)%3+1).Connect(t, time.Minute) // their connections stay
			wg.Go(func() { work(t, conn, g, r, 20) })
		}
		time.Sleep(3 * time.Second)
		c.Server(lead).Kill()
		time.Sleep(5 * time.Second)
		c.Server(lead).Restart()
		time.Sleep(5 * time.Second)
		c.StepDown()
		wg.Wait()
		checkTurns(t, g, 80)
	})
}

// TestGuardInvalidToken: a resource refuses what is no token, as a fence does, and so no harm is
// done. A resource without a check accepts it.
func TestGuardInvalidToken(t *testing.T) {
	failed := guarded(t, func(t *failures, s *lockkeepertest.Server, g *lockkeepertest.Guard, a, b *zk.Conn) {
		<-lock(a, "/lock")
		r := g.Resource()
		for _, token := range []int64{0, -1, math.MinInt64} {
			if err := r.Write(token); !errors.Is(err, fence.ErrInvalid) || errors.Is(err, fence.ErrStale) {
				t.TB.Errorf("%d: got %v", token, err)
			}
		}
		if err := r.Write(g.Token(a.SessionID())); err != nil {
			t.TB.Error(err)
		}
	})
	expect(t, failed)
	failed = guarded(t, func(t *failures, s *lockkeepertest.Server, g *lockkeepertest.Guard, a, b *zk.Conn) {
		g.Resource().WriteUnchecked(0)
	})
	expect(t, failed, intruder)
}

// TestGuardEnds before the clients are closed that were connected later, but not with a
// subtest.
func TestGuardEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, sub := &failures{TB: t}, &failures{TB: t}
		fake.run(func() {
			s := lockkeepertest.Start(fake)
			s.GuardLock(fake, "/lock")
			sub.run(func() { <-lock(s.Connect(sub, time.Minute), "/lock") })
			conn := s.Connect(fake, time.Minute)
			fault := s.Inject(lockkeepertest.Fault{Op: "create", Do: lockkeepertest.CloseAfter()})
			go conn.Create("/lock/lock-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
			fault.Wait()
			settle(conn)
		})
		expect(t, sub.errors)
		expect(t, fake.errors, unknown)
	})
}

// TestGuardBeginsInACluster whose first member is behind.
func TestGuardBeginsInACluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lockkeepertest.StartCluster(t, 3)
		lead := c.Leader()
		if lead == 1 {
			lead = c.StepDown()
		}
		conn := c.Server(lead).Connect(t, time.Minute)
		c.SetLink(lead, 1, lockkeepertest.Link{Cut: true})
		<-lock(conn, "/lock")
		g := c.GuardLock(t, "/lock")
		if got := g.Holders(); len(got) != 1 || got[0].Session != conn.SessionID() {
			t.Errorf("got %+v", got)
		}
		if token := g.Token(1); token != 0 {
			t.Errorf("nobody's token is %d", token)
		}
		g.Check()
		c.Heal()
	})
}

// TestVerdict: it is returned, and does not fail the test, and the guard sees nothing afterwards.
func TestVerdict(t *testing.T) {
	virtual(t, func(t *testing.T, s *lockkeepertest.Server, conn *zk.Conn) {
		check(t, create(conn, "/lock"))
		fake := &failures{TB: t}
		fake.run(func() {
			g := s.GuardLock(fake, "/lock")
			r := g.Resource()
			r.WriteUnchecked(7)
			v := g.Verdict()
			if len(v.Violations) != 1 || !strings.HasPrefix(v.Violations[0], "a client wrote without the lock: somebody with token 0x7 wrote at 0.000 s") || !strings.Contains(v.Timeline, "writes") {
				t.Errorf("%+v", v)
			}
			l := zk.NewLock(conn, "/lock", zk.WorldACL(zk.PermAll))
			check(t, l.Lock())
			if n := len(g.Holders()); n != 0 {
				t.Errorf("%d holders after the end", n)
			}
			g = s.GuardLock(fake, "/lock")
			if v := g.Verdict(); len(v.Violations) != 0 || !strings.Contains(v.Timeline, "holds the lock") {
				t.Errorf("%+v", v)
			}
		})
		if len(fake.errors) > 0 {
			t.Errorf("%q", fake.errors)
		}
	})
}
