package admin_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// lockMetrics are the metrics of locks.
type lockMetrics struct {
	complete                           bool
	held, waiting, longest, unmeasured float64
	oldest, waitedSum, heldSum         time.Duration
	waits, holds                       uint64
}

func locksOf(t *testing.T, h http.Handler) (l lockMetrics) {
	t.Helper()
	all := scrape(t, h)
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)).Round(time.Microsecond) }
	gauge := func(name string) float64 {
		v, ok := value(all, "lockkeeper_"+name)
		if ok != l.complete {
			t.Errorf("lockkeeper_%s is shown: %v", name, ok)
		}
		return v
	}
	complete, _ := value(all, "lockkeeper_lock_metrics_complete")
	l.complete = complete == 1
	l.held, l.waiting, l.longest, l.unmeasured = gauge("locks_held"), gauge("lock_waiters"), gauge("lock_queue_length_max"), gauge("lock_directories_unmeasured")
	l.oldest = seconds(gauge("lock_oldest_hold_seconds"))
	histogram := func(name string) *dto.Histogram {
		if all[name] == nil {
			t.Fatalf("no %s", name)
		}
		return all[name].Metric[0].Histogram
	}
	waited, held := histogram("lockkeeper_lock_wait_seconds"), histogram("lockkeeper_lock_hold_seconds")
	l.waits, l.waitedSum = waited.GetSampleCount(), seconds(waited.GetSampleSum())
	l.holds, l.heldSum = held.GetSampleCount(), seconds(held.GetSampleSum())
	return l
}

func wantLocks(t *testing.T, h http.Handler, want lockMetrics) {
	t.Helper()
	synctest.Wait()
	if got := locksOf(t, h); got != want {
		t.Errorf("got  %+v,\nwant %+v", got, want)
	}
}

// TestLockMetrics lets clients lock for known times.
func TestLockMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, lockkeeper.Config{})
		h := admin.New(s, admin.Options{})
		a, b, c := rawtest.Connect(t, inMemory(s)), rawtest.Connect(t, inMemory(s)), rawtest.Connect(t, inMemory(s))
		sleep := func(d time.Duration) { // with clients that stay alive
			for ; d > 0; d -= min(d, 5*time.Second) {
				time.Sleep(min(d, 5*time.Second))
				for _, c := range []*rawclient.Client{a, b, c} {
					check(t, c.Ping())
				}
			}
		}
		for _, dir := range []string{"/old", "/l", "/rw", "/s", "/s/locks", "/s/leases"} {
			must(a.Create(dir, nil, 0))(t)
		}
		early := enqueue(t, a, "/old")
		next := enqueue(t, b, "/old")
		sleep(time.Minute)
		wantLocks(t, h, lockMetrics{complete: true, held: 1, waiting: 1, longest: 1})
		sleep(4 * time.Second)
		check(t, a.Delete(early)) // nobody has seen when it began
		sleep(time.Second)
		wantLocks(t, h, lockMetrics{complete: true, held: 1, oldest: time.Second})
		check(t, b.Delete(next)) // it has held for 1 s, and nobody knows how long it waited
		want := lockMetrics{complete: true, holds: 1, heldSum: time.Second}
		wantLocks(t, h, want)

		// Between two scrapes.
		first, second := enqueue(t, a, "/l"), enqueue(t, b, "/l")
		gaveUp := enqueue(t, c, "/l")
		sleep(3 * time.Second)
		check(t, c.Delete(gaveUp))
		check(t, a.Delete(first))
		sleep(2 * time.Second)
		check(t, b.Delete(second))
		want.waits, want.waitedSum = 2, 3*time.Second
		want.holds, want.heldSum = 3, 6*time.Second
		wantLocks(t, h, want)
		for range 100 {
			check(t, a.Delete(enqueue(t, a, "/l")))
		}
		want.waits, want.holds = 102, 103
		wantLocks(t, h, want)

		// Readers and a writer, of whom one loses its session.
		enter := func(c *rawclient.Client, kind string) string {
			return must(c.Create(fmt.Sprintf("/rw/_c_%032x-__%s__", rand.Uint64(), kind), nil, proto.FlagEphemeral|proto.FlagSequential))(t)
		}
		reader := enter(a, "READ")
		enter(b, "READ")
		writer := enter(c, "WRIT")
		enter(a, "READ")
		sleep(7 * time.Second)
		want.held, want.waiting, want.longest, want.oldest, want.waits = 1, 2, 2, 7*time.Second, 104
		wantLocks(t, h, want)
		check(t, a.Delete(reader))
		check(t, s.EndSession(t.Context(), b.Session.SessionID))
		b = rawtest.Connect(t, inMemory(s))
		sleep(time.Second)
		want.waiting, want.longest, want.oldest = 1, 1, time.Second
		want.waits, want.waitedSum = 105, 10*time.Second
		want.holds, want.heldSum = 105, 20*time.Second
		wantLocks(t, h, want)
		check(t, c.Delete(writer))
		want.waiting, want.longest, want.oldest = 0, 0, 0
		want.waits, want.waitedSum = 106, 18*time.Second
		want.holds, want.heldSum = 106, 21*time.Second
		wantLocks(t, h, want)

		// A semaphore is not a mutex.
		turn := enqueue(t, b, "/s/locks")
		must(b.Create(fmt.Sprintf("/s/leases/_c_%032x-lease-", 1), nil, proto.FlagEphemeral|proto.FlagSequential))(t)
		check(t, b.Delete(turn))
		wantLocks(t, h, want)

		// After ten minutes without a scrape, nothing is measured.
		sleep(9 * time.Minute)
		want.oldest = 9 * time.Minute
		wantLocks(t, h, want)
		sleep(11 * time.Minute)
		want.oldest = 0
		wantLocks(t, h, want) // the reader's age is known only from now on
		if st := s.Status(); st.State.Sessions != 3 || st.Clients.Watches != 0 {
			t.Errorf("%d sessions, %d watches", st.State.Sessions, st.Clients.Watches)
		}
		check(t, s.Close()) // and synctest finds that no goroutine is left
		synctest.Wait()
		if got := locksOf(t, h); got.complete || got.holds != want.holds {
			t.Errorf("of a closed server: %+v", got)
		}
	})
}

// wantRounded is wantLocks with times rounded to 100 ms: a follower applies an entry some
// milliseconds after the leader.
func wantRounded(t *testing.T, h http.Handler, want lockMetrics) {
	t.Helper()
	got := locksOf(t, h)
	for _, d := range []*time.Duration{&got.oldest, &got.waitedSum, &got.heldSum} {
		*d = d.Round(100 * time.Millisecond)
	}
	if got != want {
		t.Errorf("got  %+v,\nwant %+v", got, want)
	}
}

// TestLockMetricsReconnect checks that no times are invented over a lost connection.
func TestLockMetricsReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 3, nil)
		leader, follower := m.roles(t)
		h, far := admin.New(follower, admin.Options{}), admin.New(leader, admin.Options{})
		a := rawtest.Connect(t, inMemory(leader))
		must(a.Create("/l", nil, 0))(t)
		must(a.Create("/m", nil, 0))(t)
		wantRounded(t, h, lockMetrics{complete: true})
		wantRounded(t, far, lockMetrics{complete: true})
		begun := enqueue(t, a, "/l")
		next := enqueue(t, a, "/l")
		ends := enqueue(t, a, "/m")
		time.Sleep(time.Second)
		want := lockMetrics{complete: true, held: 2, waiting: 1, longest: 1, oldest: time.Second, waits: 2}
		wantRounded(t, h, want)
		wantRounded(t, far, want)
		own := int(follower.Status().ID)
		cut := func(cut bool) {
			for id := range 3 {
				if id != own-1 {
					m.net.Cut(host(id), host(own-1), cut)
					m.net.Cut(host(own-1), host(id), cut)
				}
			}
		}
		cut(true)
		testkit.Eventually(t, "the end of the connections", func() bool { check(t, a.Ping()); return !follower.Status().Serving })
		check(t, a.Delete(ends))
		during := enqueue(t, a, "/m")
		wantRounded(t, h, lockMetrics{waits: 2})
		cut(false)
		testkit.Eventually(t, "the return", func() bool { check(t, a.Ping()); return follower.Status().Serving })
		testkit.Eventually(t, "the log", func() bool {
			check(t, a.Ping())
			return follower.Status().State.Index == leader.Status().State.Index
		})
		wantRounded(t, h, lockMetrics{complete: true, held: 2, waiting: 1, longest: 1, waits: 2})
		time.Sleep(time.Second)
		check(t, a.Delete(begun)) // the next one waited, but how long is not known
		check(t, a.Delete(during))
		time.Sleep(time.Second)
		want = lockMetrics{complete: true, held: 1, oldest: time.Second, waits: 2}
		wantRounded(t, h, want)
		check(t, a.Delete(next))
		time.Sleep(50 * time.Millisecond) // until the follower has applied it
		want = lockMetrics{complete: true, waits: 2, holds: 1, heldSum: time.Second}
		wantRounded(t, h, want)
		// The leader has seen everything.
		if got := locksOf(t, far); got.waits != 4 || got.holds != 4 {
			t.Errorf("the leader: %+v", got)
		}
	})
}

// TestLockMetricsACL checks that the numbers of locks count all of them, whatever ACLs say.
func TestLockMetricsACL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, lockkeeper.Config{})
		h := admin.New(s, admin.Options{})
		a := rawtest.Connect(t, inMemory(s))
		must(a.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte("a:a")}, nil))(t)
		must(a.Create("/l", nil, 0))(t)
		mine := []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: "auth"}}}
		_, err := a.Call(proto.OpCreate, &proto.CreateRequest{Path: fmt.Sprintf("/l/_c_%032x-lock-", 1), ACL: mine, Flags: proto.FlagEphemeral | proto.FlagSequential}, nil)
		check(t, err)
		wantLocks(t, h, lockMetrics{complete: true, held: 1})
		enqueue(t, a, "/l") // it waits
		wantLocks(t, h, lockMetrics{complete: true, held: 1, waiting: 1, longest: 1})
	})
}
