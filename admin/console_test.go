package admin_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// consoleState is what the tests read of an event of the console.
type consoleState struct {
	Now                     int64
	EndSessions, BreakLocks bool
	EditZnodes              bool
	Server                  struct {
		Role    string
		Cluster string
		Serving bool
	}
	Members []struct {
		ID     uint64
		Self   bool
		Role   string
		Term   uint64
		Behind *int64
		Note   string
		Dead   bool

		Differs uint64
	}
	Locks []struct {
		Path, Kind     string
		Slots          int
		Holders, Queue []struct {
			Session, Token, Data string
			Cycle                bool
			consolePlace
		}
		More, Waiting int
		Cycle         bool
		Group         string
	}
	consoleList
	Lock *struct {
		Path    string
		Holders []struct{ Session string }

		CycleWith []string
		History   []struct {
			Session, Token, Data, After string
			Since, From, Until          int64
		}
	}
	Totals struct {
		AtLeast                         bool
		Locks, Holders, Waiting, Cycles int
	}
	Problems []struct {
		Path     string
		Problems []struct {
			Fault, Text string
			Harm        bool
			Others      []string
		}
		More int
	}
	ProblemsMore int
	Sessions     []struct {
		ID string
		consolePlace
		Timeout, Expires int64
		Holds, Waits     int
	}
	SessionsMore int
	Watches      []struct {
		Path     string
		Sessions []string
		More     int
	}
	WatchesMore int
	Clients     consoleClients
	Samples     []struct{ Writes, Sync, Grants *float64 }
	Notes       struct{ Locks, Sessions, Watches string }
	Unknown     string
}

// consolePlace says where a client is connected.
type consolePlace struct {
	Addr   string
	Server uint64
	Gone   bool
}

// consoleList says which locks an event has.
type consoleList struct {
	Groups []struct {
		Path           string
		Locks, Waiting int
		Folded         bool
	}
	Matching, Page, Pages, LocksMore int
}

// browser reads the stream of a console.
type browser struct {
	t    testing.TB
	body *bufio.Reader
	stop func() // and wait until the handler has returned
}

// browse opens the stream of a handler through memory, without buffers: the handler waits
// for the browser in every write.
func browse(t testing.TB, h http.Handler) *browser { return browseView(t, h, "") }

// browseView is browse for a view.
func browseView(t testing.TB, h http.Handler, query string) *browser {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := newUnbuffered()
	returned := make(chan struct{})
	go func() { // until stop
		defer close(returned)
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/console/events?"+query, nil))
		w.Close()
	}()
	b := &browser{t: t, body: bufio.NewReader(w.body), stop: func() {
		cancel()
		w.Close()
		<-returned
	}}
	t.Cleanup(b.stop)
	return b
}

// next returns the next state.
func (b *browser) next() (s consoleState) {
	b.t.Helper()
	for {
		line := must(b.body.ReadString('\n'))(b.t)
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			check(b.t, json.Unmarshal([]byte(data), &s))
			return s
		}
	}
}

// until returns the first state that is as wanted.
func (b *browser) until(what string, ok func(s *consoleState) bool) consoleState {
	b.t.Helper()
	var s consoleState
	for range 200 { // at most some 50 s
		if s = b.next(); ok(&s) {
			return s
		}
	}
	b.t.Fatalf("the console does not show %s: %+v", what, s)
	return s
}

// enqueue adds a client to a lock's queue, with the names of go-zookeeper's znodes.
func enqueue(t testing.TB, c *rawclient.Client, dir string) string {
	t.Helper()
	return must(c.Create(fmt.Sprintf("%s/_c_%032x-lock-", dir, uint64(c.Session.SessionID)), nil, proto.FlagEphemeral|proto.FlagSequential))(t)
}

func idOf(c *rawclient.Client) string { return fmt.Sprintf("0x%x", uint64(c.Session.SessionID)) }

// TestConsoleStream follows two locks: a wait, a handover, an expiry and a cycle.
func TestConsoleStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, lockkeeper.Config{TickTime: 500 * time.Millisecond})
		a, c := rawtest.ConnectFor(t, inMemory(s), 10*time.Second), rawtest.ConnectFor(t, inMemory(s), 5*time.Second)
		for _, path := range []string{"/l", "/l/x", "/l/y"} {
			must(a.Create(path, nil, 0))(t)
		}
		b := browse(t, admin.New(s, admin.Options{}))
		if st := b.next(); len(st.Locks) != 0 || len(st.Sessions) < 2 || st.Server.Role != "standalone" || !st.Server.Serving || st.Notes.Locks != "" {
			t.Errorf("at first: %+v", st)
		}
		held := enqueue(t, a, "/l/x")
		st := b.until("a holder", func(s *consoleState) bool { return s.Totals.Locks == 1 })
		stat := must(a.Exists(held, false))(t)
		if l := st.Locks[0]; l.Path != "/l/x" || l.Kind != "mutex" || l.Holders[0].Session != idOf(a) || l.Holders[0].Token != fmt.Sprint(stat.Czxid) || len(l.Queue) != 0 {
			t.Errorf("held: %+v", l)
		}
		next := enqueue(t, c, "/l/x")
		must(c.Get(held, true))(t)
		st = b.until("a wait", func(s *consoleState) bool { return s.Totals.Waiting == 1 && len(s.Watches) == 1 })
		if q := st.Locks[0].Queue; q[0].Session != idOf(c) || st.Watches[0].Path != held || st.Watches[0].Sessions[0] != idOf(c) {
			t.Errorf("waiting: %+v", st)
		}
		for _, x := range st.Sessions {
			holds, waits, timeout := 0, 0, int64(10_000)
			switch x.ID {
			case idOf(a):
				holds = 1
			case idOf(c):
				waits, timeout = 1, 5000
			}
			left := time.Until(time.UnixMilli(x.Expires))
			if x.Holds != holds || x.Waits != waits || x.Timeout != timeout || left <= 0 || left > time.Duration(timeout)*time.Millisecond+time.Second || holds+waits == 0 {
				t.Errorf("session: %+v, %v left", x, left)
			}
		}

		// A cycle, which is also one if it is read for a second time.
		other := enqueue(t, c, "/l/y")
		mine := enqueue(t, a, "/l/y")
		must(a.Get(other, true))(t)
		st = b.until("a cycle", func(s *consoleState) bool { return s.Totals.Cycles == 1 })
		if len(st.Problems) != 1 || st.Problems[0].Path != "/l/x" || st.Problems[0].Problems[0].Fault != "cycle" || !st.Problems[0].Problems[0].Harm || !st.Locks[0].Cycle || !st.Locks[1].Queue[0].Cycle || strings.Join(st.Problems[0].Problems[0].Others, " ") != "/l/y" {
			t.Errorf("cycle: %+v", st)
		}
		check(t, a.Delete(mine))
		b.until("the end of the cycle", func(s *consoleState) bool { return s.Totals.Cycles == 0 && len(s.Problems) == 0 })

		// A handover, then the new holder's session expires.
		check(t, a.Delete(held))
		b.until("the handover", func(s *consoleState) bool {
			return len(s.Locks) == 2 && s.Locks[0].Holders[0].Session == idOf(c) && len(s.Locks[0].Queue) == 0
		})
		must(a.Get(next, true))(t)
		b.until("the expiry", func(s *consoleState) bool {
			check(t, a.Ping())
			return len(s.Sessions) == 1 && s.Totals.Locks == 0
		})
		st = b.until("samples", func(s *consoleState) bool {
			check(t, a.Ping())
			return len(s.Samples) > 5
		})
		grants := 0.0
		for _, x := range st.Samples {
			if x.Grants != nil {
				grants += *x.Grants
			}
			if x.Sync == nil {
				t.Error("a sample has no latency")
			}
		}
		if grants < 1 || grants > 4 { // three, in seconds that are not exact
			t.Errorf("%f handovers", grants)
		}
		b.stop()
		synctest.Wait()
		if n := s.Status().State.Sessions; n != 1 {
			t.Errorf("%d sessions are left", n)
		}
	})
}

// TestConsoleSemaphore: a kazoo semaphore has its leases and its number of slots in one
// directory, and its queue in the one beside it.
func TestConsoleSemaphore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, lockkeeper.Config{})
		c := rawtest.Connect(t, inMemory(s))
		must(c.Create("/s", []byte("2"), 0))(t)
		must(c.Create("/s-__lock__", nil, 0))(t)
		for range 2 {
			must(c.Create("/s/0123456789abcdef0123456789abcdef", nil, proto.FlagEphemeral))(t)
			b := browse(t, admin.New(s, admin.Options{}))
			shows := func(waiting int) {
				t.Helper()
				b.until(fmt.Sprintf("a semaphore for which %d wait", waiting), func(s *consoleState) bool {
					return len(s.Locks) == 1 && s.Locks[0].Path == "/s" && s.Locks[0].Kind == "semaphore" && s.Locks[0].Slots == 2 &&
						len(s.Locks[0].Holders) == 1 && len(s.Locks[0].Queue) == waiting
				})
			}
			shows(0)
			waiter := must(c.Create("/s-__lock__/0123456789abcdef0123456789abcdee__lock__", nil, proto.FlagEphemeral|proto.FlagSequential))(t)
			shows(1)
			check(t, c.Delete(waiter))
			shows(0)
			b.stop()
			check(t, c.Delete("/s/0123456789abcdef0123456789abcdef"))
		}
	})
}

// TestConsoleData: the data of holders is shown, bounded and escaped, and a new
// holder's is its own.
func TestConsoleData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, lockkeeper.Config{})
		c := rawtest.Connect(t, inMemory(s))
		must(c.Create("/l", nil, 0))(t)
		b := browse(t, admin.New(s, admin.Options{}))
		for data, want := range map[string]string{"host-1": "host-1", "a\nb\x1b": `a\nb\x1b`, strings.Repeat("x", 300): strings.Repeat("x", 100) + "…", strings.Repeat("x", 5000): "(5000 bytes)"} {
			at := must(c.Create("/l/_c_0123456789abcdef0123456789abcdef-lock-", []byte(data), proto.FlagEphemeral|proto.FlagSequential))(t)
			b.until("the data "+want, func(s *consoleState) bool { return len(s.Locks) == 1 && s.Locks[0].Holders[0].Data == want })
			check(t, c.Delete(at))
		}
	})
}

// TestConsoleCostsNothing: without browsers the state is not read; with several it is read
// once for all of them; and one that reads nothing gets the newest state in the end, not what
// it has missed.
func TestConsoleCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, lockkeeper.Config{})
		before := goroutines()
		h := admin.New(s, admin.Options{})
		c := rawtest.ConnectFor(t, inMemory(s), 40*time.Second)
		must(c.Create("/l", nil, 0))(t)
		held := enqueue(t, c, "/l")
		slow := browse(t, h)
		slow.next()
		time.Sleep(20 * time.Second) // it reads nothing
		check(t, c.Delete(held))
		time.Sleep(5 * time.Second)
		slow.next() // the one that waited in a write
		if st := slow.next(); st.Totals.Locks != 0 || len(st.Samples) < 20 {
			t.Errorf("the slow browser gets an old state: %+v", st)
		}
		enqueue(t, c, "/l")
		times := map[int64]int{} // how many browsers have got the state of a moment
		var mu sync.Mutex
		var browsers []*browser
		for range 10 {
			b := browse(t, h)
			browsers = append(browsers, b)
			go func() { // until the stream ends
				for {
					line, err := b.body.ReadString('\n')
					if err != nil {
						return
					}
					var st consoleState
					if data, ok := strings.CutPrefix(line, "data: "); ok && json.Unmarshal([]byte(data), &st) == nil {
						mu.Lock()
						times[st.Now]++
						mu.Unlock()
					}
				}
			}()
		}
		check(t, c.Ping())
		time.Sleep(20 * time.Second)
		mu.Lock()
		n, all := len(times), 0
		for _, k := range times {
			all += k
		}
		mu.Unlock()
		if n < 19 || n > 25 || all < 9*n { // one a second, since nothing changes
			t.Errorf("ten browsers got %d states of %d moments in 20 s", all, n)
		}
		for _, b := range append(browsers, slow) {
			b.stop()
		}
		if n := goroutines() - before; n > 0 {
			t.Errorf("%d goroutines are left", n)
		}
	})
}

// TestConsoleHides: the console shows what a client of this machine may read that has not
// authenticated, and nothing else.
func TestConsoleHides(t *testing.T) {
	acl := func(scheme, id string) []proto.ACL {
		return []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: scheme, ID: id}}}
	}
	synctest.Test(t, func(t *testing.T) {
		s := open(t, lockkeeper.Config{})
		c := rawtest.Connect(t, inMemory(s))
		must(c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte("a:a")}, nil))(t)
		create := func(path string, acl []proto.ACL, flags int32) {
			must(c.Call(proto.OpCreate, &proto.CreateRequest{Path: path, Data: []byte("hush"), ACL: acl, Flags: flags}, nil))(t)
		}
		const lock = proto.FlagEphemeral | proto.FlagSequential
		entry := func(i int) string { return fmt.Sprintf("/_c_%032x-lock-", i) }
		create("/mine", acl("auth", ""), 0) // the directory is hidden, and so are its entries
		create("/mine"+entry(1), acl("auth", ""), lock)
		create("/part", acl("world", "anyone"), 0) // an entry is hidden, and holds the lock
		create("/part"+entry(2), acl("auth", ""), lock)
		create("/part"+entry(3), acl("world", "anyone"), lock)
		create("/near", acl("ip", "127.0.0.1"), 0)
		create("/near"+entry(4), acl("ip", "127.0.0.1"), lock)
		create("/far", append(acl("ip", "192.0.2.1"), acl("auth", "")...), 0)
		create("/far"+entry(5), acl("world", "anyone"), lock)
		h := admin.New(s, admin.Options{EndSessions: true, BreakLocks: true, Snapshots: true})
		b := browse(t, h)
		st := b.until("what may be shown", func(s *consoleState) bool { return s.Totals.Locks == 2 })
		for _, l := range st.Locks {
			if l.Path != "/near" && l.Path != "/part" || len(l.Holders) != 1 || len(l.Queue) != 0 || l.Holders[0].Data != "hush" {
				t.Errorf("%+v", l)
			}
		}
		if !strings.Contains(st.Notes.Locks, "ACL does not let the console read") {
			t.Errorf("it does not say that some are missing: %+v", st.Notes)
		}
		for path, hidden := range map[string]bool{"/mine": true, "/far": true, "/part": false, "/near": false} {
			status, body := ask(h, "/console/znode?path="+path)
			if shown := status == http.StatusOK && strings.Contains(body, "hush"); shown == hidden {
				t.Errorf("%s: %d %s", path, status, body)
			}
		}
		b.stop()
	})
	synctest.Test(t, func(t *testing.T) {
		s := open(t, lockkeeper.Config{Auth: lockkeeper.Auth{Enforce: []string{"digest"}}})
		c := rawtest.Connect(t, inMemory(s))
		must(c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte("a:a")}, nil))(t)
		must(c.Create("/l", []byte("hush"), 0))(t)
		enqueue(t, c, "/l")
		h := admin.New(s, admin.Options{})
		b := browse(t, h)
		if st := b.next(); len(st.Locks) != 0 || !strings.Contains(st.Notes.Locks, "only clients that authenticate") {
			t.Errorf("%+v", st)
		}
		if status, body := ask(h, "/console/znode?path=/l"); status == http.StatusOK || strings.Contains(body, "hush") {
			t.Errorf("%d %s", status, body)
		}
		b.stop()
	})
}

// TestConsoleBounds checks that long lists are cut, and say so.
func TestConsoleBounds(t *testing.T) {
	synctest.Test(t, testConsoleBounds)
}

func testConsoleBounds(t *testing.T) {
	s := open(t, lockkeeper.Config{})
	c := rawtest.Connect(t, inMemory(s))
	h := admin.New(s, admin.Options{})
	b := browse(t, h)
	must(c.Create("/l", nil, 0))(t)
	for i := range 130 {
		must(c.Create(fmt.Sprintf("/l/%03d", i), nil, 0))(t)
		enqueue(t, c, fmt.Sprintf("/l/%03d", i))
	}
	for i := range 130 {
		must(c.Create(fmt.Sprintf("/l/129/_c_%032x-lock-", i), nil, proto.FlagEphemeral|proto.FlagSequential))(t)
	}
	for i := range 205 {
		_, err := c.Exists(fmt.Sprintf("/l/nothing%d", i), true)
		if err != proto.NoNode {
			t.Fatal(err)
		}
	}
	st := b.until("everything", func(s *consoleState) bool { return s.Totals.Waiting == 130 && s.WatchesMore > 0 })
	if last := st.Locks[len(st.Locks)-1]; len(st.Locks) != 49 || len(st.Groups) != 1 || st.Pages != 3 || st.LocksMore != 81 || st.Totals.Locks != 130 || last.Path != "/l/048" {
		t.Errorf("%d locks and %d more, %d in all; %s; %d pages", len(st.Locks), st.LocksMore, st.Totals.Locks, last.Path, st.Pages)
	}
	for query, shown := range map[string]int{"sort=waiting": 5, "q=/l/129": 50} {
		o := browseView(t, h, query)
		st := o.next()
		if l := st.Locks[0]; l.Path != "/l/129" || len(l.Queue) != shown || l.Waiting != 130 || l.More != 130-shown {
			t.Errorf("%s: %s: %d and %d more", query, l.Path, len(l.Queue), l.More)
		}
		o.stop()
	}
	if len(st.Watches) != 100 || st.WatchesMore != 105 {
		t.Errorf("watches: %d and %d more", len(st.Watches), st.WatchesMore)
	}
	if len(st.Problems) > 20 {
		t.Errorf("%d problems", len(st.Problems))
	}
}

// TestConsoleViews: a browser gets the locks that its filter finds, in groups, which can be
// folded, page by page.
func TestConsoleViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, lockkeeper.Config{})
		a, c := rawtest.ConnectFor(t, inMemory(s), time.Hour), rawtest.ConnectFor(t, inMemory(s), time.Hour)
		for _, dir := range []string{"/a", "/b", "/solo"} {
			must(a.Create(dir, nil, 0))(t)
		}
		for i := range 60 {
			at := fmt.Sprintf("/%c/%02d", 'a'+i%2, i)
			must(a.Create(at, nil, 0))(t)
			enqueue(t, a, at)
		}
		must(c.Create("/solo/One", nil, 0))(t)
		must(c.Create("/solo/One/_c_0123456789abcdef0123456789abcdef-lock-", []byte("Host <7>"), proto.FlagEphemeral|proto.FlagSequential))(t)
		enqueue(t, a, "/solo/One")
		h := admin.New(s, admin.Options{})
		b := browse(t, h) // the server forgets nothing while this one looks
		b.until("all", func(s *consoleState) bool { return s.Totals.Locks == 61 })
		look := func(query string) consoleState {
			t.Helper()
			o := browseView(t, h, query)
			defer o.stop()
			st := o.next()
			if st.Totals.Locks != 61 || st.Totals.Waiting != 1 {
				t.Errorf("%s: the totals are %+v", query, st.Totals)
			}
			return st
		}
		paths := func(st consoleState) (all string) {
			for _, l := range st.Locks {
				all += l.Path + " "
			}
			return all
		}
		for query, want := range map[string]string{
			"q=solo": "/solo/One ", "q=%20ONE": "/solo/One ", "q=host+%3C7": "/solo/One ", "q=" + idOf(c): "/solo/One ",
			"q=/b/0": "/b/01 /b/03 /b/05 /b/07 /b/09 ", "q=nothing": "",
		} {
			if got := paths(look(query)); got != want {
				t.Errorf("%s: %s", query, got)
			}
		}
		if st := look("q=" + idOf(a)); st.Matching != 61 || len(st.Sessions) != 2 {
			t.Errorf("%d locks of a session, %d sessions", st.Matching, len(st.Sessions))
		}
		if st := look("q=/a/"); len(st.Sessions) != 1 || st.SessionsMore != 1 || st.Sessions[0].ID != idOf(a) {
			t.Errorf("sessions of /a: %+v", st.Sessions)
		}
		st := look("")
		if st.Pages != 2 || st.Page != 1 || st.Matching != 61 || len(st.Locks) != 48 || len(st.Groups) != 2 || st.Locks[0].Path != "/solo/One" || st.Locks[0].Group != "" ||
			st.Groups[0].Path != "/a" || st.Groups[0].Locks != 30 || st.Locks[1].Group != "/a" {
			t.Errorf("the first page: %d of %d: %s %+v", st.Page, st.Pages, paths(st), st.Groups)
		}
		if st := look("page=2"); len(st.Locks) != 13 || len(st.Groups) != 1 || st.Groups[0].Path != "/b" || st.Locks[0].Path != "/b/35" {
			t.Errorf("the second page: %s %+v", paths(st), st.Groups)
		}
		if st := look("page=99"); st.Page != 2 {
			t.Errorf("a page after the last: %d", st.Page)
		}
		if st := look("groups=folded"); paths(st) != "/solo/One " || len(st.Groups) != 2 || st.Pages != 1 || !st.Groups[0].Folded {
			t.Errorf("folded: %s %+v", paths(st), st.Groups)
		}
		if st := look("groups=folded&except=/b"); len(st.Locks) != 31 || !st.Groups[0].Folded || st.Groups[1].Folded {
			t.Errorf("folded except /b: %s %+v", paths(st), st.Groups)
		}
		if st := look("except=/b"); len(st.Locks) != 31 || st.Groups[0].Folded || !st.Groups[1].Folded {
			t.Errorf("open except /b: %s %+v", paths(st), st.Groups)
		}
		if st := look("sort=waiting"); st.Locks[0].Path != "/solo/One" || st.Locks[1].Path != "/a/00" || len(st.Groups) != 0 || len(st.Locks) != 50 {
			t.Errorf("the longest queues first: %s", paths(st))
		}
		for _, query := range []string{"q=" + strings.Repeat("x", 401), "lock=" + strings.Repeat("x", 5000)} {
			if status, text := ask(h, "/console/events?"+query); status != http.StatusBadRequest || strings.Count(text, "\n") != 1 {
				t.Errorf("%.20s: %d %q", query, status, text)
			}
		}
	})
}

// TestConsoleHistory: a browser gets the history of one lock, which another browser has seen.
func TestConsoleHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, lockkeeper.Config{})
		a, c := rawtest.ConnectFor(t, inMemory(s), time.Hour), rawtest.ConnectFor(t, inMemory(s), time.Hour)
		must(a.Create("/l", nil, 0))(t)
		held := enqueue(t, a, "/l")
		h := admin.New(s, admin.Options{})
		b := browse(t, h)
		b.until("the holder", func(s *consoleState) bool { return s.Totals.Locks == 1 })
		next := enqueue(t, c, "/l")
		go func() { // until the browser stops
			for {
				if _, err := b.body.ReadString('\n'); err != nil {
					return
				}
			}
		}()
		time.Sleep(10 * time.Second)
		began := time.Now()
		check(t, a.Delete(held))
		time.Sleep(20 * time.Second)
		check(t, c.Delete(next))
		time.Sleep(5 * time.Second)
		other := browseView(t, h, "lock=/l")
		st := other.until("the lock", func(s *consoleState) bool { return s.Lock != nil })
		x := st.Lock.History
		if len(x) != 2 || len(st.Lock.Holders) != 0 || st.Totals.Locks != 0 {
			t.Fatalf("%+v", st.Lock)
		}
		near := func(got int64, want time.Time) bool { return time.UnixMilli(got).Sub(want).Abs() <= 2*time.Second }
		if x[0].Session != idOf(a) || x[0].From != 0 || !near(x[0].Until, began) || x[0].After != "" {
			t.Errorf("the first holder: %+v", x[0])
		}
		if x[1].Session != idOf(c) || x[1].From != x[0].Until || x[1].After != idOf(a) || !near(x[1].Since, began.Add(-10*time.Second)) || !near(x[1].Until, began.Add(20*time.Second)) {
			t.Errorf("the second holder: %+v", x[1])
		}
		for range 30 { // only the last holders are kept
			held = enqueue(t, a, "/l")
			time.Sleep(2 * time.Second)
			check(t, a.Delete(held))
			time.Sleep(2 * time.Second)
			other.next()
		}
		st = other.until("the last holders", func(s *consoleState) bool { return s.Totals.Locks == 0 && len(s.Lock.History) >= 20 })
		if x := st.Lock.History; len(x) != 20 || x[0].Session != idOf(a) || x[0].From == 0 {
			t.Errorf("%d holders: %+v", len(x), x)
		}
		// Without browsers nothing is kept.
		other.stop()
		b.stop()
		other = browseView(t, h, "lock=/l")
		if st := other.next(); len(st.Lock.History) != 0 {
			t.Errorf("%+v", st.Lock)
		}
		other.stop()
	})
}

// TestConsoleThousandLocks: with a thousand locks, for each of which nine wait, what one
// browser gets at a time does not grow with the number of locks.
func TestConsoleThousandLocks(t *testing.T) {
	synctest.Test(t, testConsoleThousandLocks) // so that no time passes between states
}

func testConsoleThousandLocks(t *testing.T) {
	s := crowded(t, lockkeeper.Config{ID: 1}, 11_000, 11_000)
	h := admin.New(s, admin.Options{})
	defer h.Close()
	began := time.Now()
	b := browse(t, h)
	if x := b.next().Totals; !x.AtLeast || x.Locks < 100 || x.Locks > 1099 || x.Waiting < 900 || x.Waiting > 9*x.Locks {
		t.Errorf("the first state has %+v", x) // what has been read until then counts
	}
	st := b.until("all locks", func(s *consoleState) bool {
		return s.Totals.Waiting == 9900 && s.Notes.Locks == "" && !s.Totals.AtLeast
	})
	if passed := time.Since(began); passed > 2*time.Second { // of the fake clock: reading goes on at once
		t.Errorf("it took %v until all locks were read", passed)
	}
	if st.Totals.Locks != 1100 || len(st.Locks) != 49 || st.Groups[0].Waiting != 9900 || st.LocksMore != 1051 || len(st.Sessions) > 100 {
		t.Errorf("%+v, %d locks, %+v", st.Totals, len(st.Locks), st.Groups)
	}
	const limit = 150_000 // bytes
	for _, query := range []string{"", "page=7", "sort=waiting", "lock=/locks/00500", "q=00500", "q=host", "groups=folded"} {
		o := browseView(t, h, query)
		for {
			if data, ok := strings.CutPrefix(must(o.body.ReadString('\n'))(t), "data: "); ok {
				if t.Logf("%q: %d bytes", query, len(data)); len(data) > limit {
					t.Errorf("%q: an event has %d bytes, more than %d", query, len(data), limit)
				}
				break
			}
		}
		o.stop()
	}
	o := browseView(t, h, "q=host+17") // the data of all holders, of which a state reads some
	if st := o.until("the data of all holders", func(s *consoleState) bool { return s.Matching == 1100 }); len(st.Locks) != 49 {
		t.Errorf("%d locks", len(st.Locks))
	}
	o.stop()
	b.stop()
}

// TestConsoleReadsWholeQueues: while a long queue is being read, nobody is shown as the holder who is not.
func TestConsoleReadsWholeQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, lockkeeper.Config{})
		c := rawtest.ConnectFor(t, inMemory(s), time.Hour)
		for _, dir := range []string{"/a", "/long"} {
			must(c.Create(dir, nil, 0))(t)
		}
		enqueue(t, c, "/a")
		var first string
		for i := range 3000 { // the names are not in the order of the queue
			at := must(c.Create(fmt.Sprintf("/long/_c_%032x-lock-", (i*7919+2999)%3000), nil, proto.FlagEphemeral|proto.FlagSequential))(t)
			if i == 0 {
				first = at
			}
		}
		h := admin.New(s, admin.Options{})
		b := browse(t, h)
		if st := b.next(); !st.Totals.AtLeast || len(st.Locks) != 1 || st.Locks[0].Path != "/a" {
			t.Errorf("the first state has %d locks, %+v", len(st.Locks), st.Totals)
		}
		st := b.until("the queue", func(s *consoleState) bool { return s.Totals.Waiting == 2999 })
		stat := must(c.Exists(first, false))(t)
		if got, want := st.Locks[1].Holders[0].Token, fmt.Sprint(stat.Czxid); st.Totals.AtLeast || got != want {
			t.Errorf("%+v, the holder has token %s, not %s", st.Totals, got, want)
		}
		b.stop()
	})
}

// TestConsoleProblems: problems are in groups by lock, those of a cycle first, and the filter finds them by their locks.
func TestConsoleProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, lockkeeper.Config{})
		a, c := rawtest.ConnectFor(t, inMemory(s), time.Hour), rawtest.ConnectFor(t, inMemory(s), time.Hour)
		must(a.Create("/l", nil, 0))(t)
		orphan := func(dir string, i int) { // in the queue until somebody deletes it
			must(a.Create(fmt.Sprintf("%s/_c_%032x-lock-", dir, i), nil, proto.FlagSequential))(t)
		}
		for i := range 27 {
			dir := fmt.Sprintf("/l/%02d", i)
			must(a.Create(dir, nil, 0))(t)
			enqueue(t, c, dir)
			for k := range 7 {
				orphan(dir, k)
			}
		}
		for _, dir := range []string{"/x", "/y"} {
			must(a.Create(dir, nil, 0))(t)
		}
		heldX, heldY := enqueue(t, a, "/x"), enqueue(t, c, "/y")
		enqueue(t, a, "/y")
		enqueue(t, c, "/x")
		must(a.Get(heldY, true))(t)
		must(c.Get(heldX, true))(t)
		h := admin.New(s, admin.Options{})
		b := browse(t, h)
		st := b.until("the problems", func(s *consoleState) bool { return s.Totals.Cycles == 1 })
		if len(st.Problems) != 20 || st.ProblemsMore != 8 || st.Problems[0].Path != "/x" || st.Problems[1].Path != "/l/00" {
			t.Fatalf("%d locks with problems and %d more: %+v", len(st.Problems), st.ProblemsMore, st.Problems)
		}
		if p := st.Problems[1]; len(p.Problems) != 5 || p.More != 2 || p.Problems[0].Fault != "orphan" {
			t.Errorf("%+v", p)
		}
		for query, want := range map[string]string{"q=/l/26": "/l/26 ", "q=/y": "/x ", "q=nothing": "", "q=/l/1": "/l/10 /l/11 /l/12 /l/13 /l/14 /l/15 /l/16 /l/17 /l/18 /l/19 "} {
			o := browseView(t, h, query)
			got := ""
			for _, p := range o.next().Problems {
				got += p.Path + " "
			}
			if got != want {
				t.Errorf("%s: problems of %s", query, got)
			}
			o.stop()
		}
		o := browseView(t, h, "q=nothing&lock=/y")
		if st := o.next(); strings.Join(st.Lock.CycleWith, " ") != "/x" {
			t.Errorf("a lock of the cycle: %+v", st.Lock)
		}
		o.stop()
		b.stop()
	})
}

// TestConsoleZnode checks what the page is told about single znodes.
func TestConsoleZnode(t *testing.T) {
	s := open(t, lockkeeper.Config{})
	h := admin.New(s, admin.Options{})
	c := rawtest.Connect(t, inMemory(s))
	hostile := "<script>alert(1)</script> \u2028 ü"
	must(c.Create("/text", []byte(hostile), 0))(t)
	must(c.Create("/bytes", []byte{0xff, '<', 0}, 0))(t)
	must(c.Create("/control", []byte("a\x1b[31m"), 0))(t)
	must(c.Create("/long", []byte(strings.Repeat("ü", 4000)+"x"), 0))(t)
	must(c.Create("/empty", nil, proto.FlagEphemeral))(t)
	_, err := c.Call(proto.OpCreate, &proto.CreateRequest{Path: "/secret", Data: []byte("s"), ACL: []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: "ip", ID: "192.0.2.1"}}}}, nil)
	check(t, err)
	for i := range 203 {
		must(c.Create(fmt.Sprintf("/long/%03d", i), nil, 0))(t)
	}
	type answer struct {
		Text                       *string
		Hex, NoData, NoList, Error string
		Cut                        bool
		Stat                       struct {
			DataLength, NumChildren int
			EphemeralOwner          string
		}
		ACL      []struct{ Scheme, ID, Perms string }
		Children []struct {
			Name      string
			Children  int
			Ephemeral bool
			Hidden    bool
		}
		More int
	}
	get := func(path, after string) (status int, z answer) {
		t.Helper()
		status, body := ask(h, "/console/znode?"+url.Values{"path": {path}, "after": {after}}.Encode())
		check(t, json.Unmarshal([]byte(body), &z))
		return status, z
	}
	if _, z := get("/text", ""); z.Text == nil || *z.Text != hostile || z.Hex != "" || z.Stat.DataLength != len(hostile) || len(z.ACL) != 1 || z.ACL[0].Perms != "cdrwa" {
		t.Errorf("text: %+v", z)
	}
	if _, body := ask(h, "/console/znode?path=/text"); strings.Contains(body, "<script>") {
		t.Errorf("the answer contains markup: %s", body)
	}
	if _, z := get("/bytes", ""); z.Text != nil || z.Hex != "ff3c00" {
		t.Errorf("bytes: %+v", z)
	}
	if _, z := get("/control", ""); z.Text != nil || z.Hex != "611b5b33316d" {
		t.Errorf("control characters: %+v", z)
	}
	_, z := get("/long", "")
	if z.Text == nil || *z.Text != strings.Repeat("ü", 2048) || !z.Cut || z.Stat.DataLength != 8001 || len(z.Children) != 200 || z.More != 3 || z.Children[199].Name != "199" {
		t.Errorf("long: %d children, %d more", len(z.Children), z.More)
	}
	if _, z := get("/long", "199"); len(z.Children) != 3 || z.More != 0 || z.Children[0].Name != "200" {
		t.Errorf("the rest: %+v", z)
	}
	if status, z := get("/secret", ""); status != http.StatusForbidden || z.Error != "its ACL does not let the console read it" || z.Text != nil {
		t.Errorf("a znode that the console may not read: %d %+v", status, z)
	}
	if _, z := get("/", ""); len(z.Children) != 7 || z.Children[2].Name != "empty" || !z.Children[2].Ephemeral || z.Children[3].Children != 203 || !z.Children[4].Hidden || z.Children[5].Hidden {
		t.Errorf("the root: %+v", z)
	}
	if status, z := get("/nowhere", ""); status != http.StatusNotFound || z.Error != "it does not exist" {
		t.Errorf("%d %+v", status, z)
	}
	if status, z := get("no path", ""); status != http.StatusNotFound || z.Error == "" {
		t.Errorf("%d %+v", status, z)
	}
}

// TestConsoleReadsNoBody: a GET has no body that the server would read, keep in memory or write to files.
func TestConsoleReadsNoBody(t *testing.T) {
	h := admin.New(open(t, lockkeeper.Config{}), admin.Options{})
	for _, path := range []string{"/console/search?q=zoo", "/console/znode?path=/"} {
		form := "--x\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\n" + strings.Repeat("x", 1<<20) + "\r\n--x--\r\n"
		body := strings.NewReader(form)
		r := httptest.NewRequest(http.MethodGet, path, body)
		r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK || body.Len() != len(form) {
			t.Errorf("%s: status %d, %d bytes of the body were read", path, w.Code, len(form)-body.Len())
		}
	}
}

// TestConsoleHeaders checks what browsers are told to refuse, and who gets what.
func TestConsoleHeaders(t *testing.T) {
	s := open(t, lockkeeper.Config{})
	plain := admin.New(s, admin.Options{})
	for _, path := range []string{"/", "/console.css", "/console.js", "/icon.svg", "/console/znode"} {
		w := httptest.NewRecorder()
		plain.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != http.StatusOK {
			t.Errorf("%s: status %d", path, w.Code)
		}
		policy := w.Header().Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "require-trusted-types-for 'script'"} {
			if !strings.Contains(policy, part) {
				t.Errorf("%s: the policy lacks %s: %s", path, part, policy)
			}
		}
		if strings.Contains(policy, "unsafe") || w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s: %v", path, w.Header())
		}
		if strings.Contains(w.Body.String(), "style=") || strings.Contains(w.Body.String(), "://") && path == "/" {
			t.Errorf("%s has inline style or a foreign address", path)
		}
	}
	_, script := ask(plain, "/console.js")
	for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "new Function"} {
		if strings.Contains(script, bad) {
			t.Errorf("the script could make markup of names or data, by %s", bad)
		}
	}
	_, page := ask(plain, "/")
	if strings.Count(page, "<script") != 1 || !strings.Contains(page, `<script type="module" src="console.js"></script>`) || strings.Contains(page, "<style") {
		t.Error("the page has inline scripts or styles")
	}
	for _, x := range []struct {
		path, token, site string
		with, without     int // status with and without a token on the port
	}{
		{"/", "", "none", 200, 200}, {"/", "", "cross-site", 200, 200}, {"/console.js", "", "same-origin", 200, 200},
		{"/console/znode", "", "same-origin", 401, 200}, {"/console/search?q=x", "", "same-origin", 401, 200}, {"/console/search?q=x", "Bearer s3cret", "cross-site", 200, 403}, {"/console/events", "", "same-origin", 401, 0},
		{"/console/znode", "Bearer s3cret", "same-origin", 200, 200}, {"/console/znode", "Bearer s3cret", "cross-site", 200, 403}, {"/console/events", "Bearer x", "", 401, 0},
	} {
		for token, want := range map[string]int{"s3cret": x.with, "": x.without} {
			if want == 0 {
				continue
			}
			r := httptest.NewRequest(http.MethodGet, x.path, nil)
			r.Header.Set("Authorization", x.token)
			r.Header.Set("Sec-Fetch-Site", x.site)
			w := httptest.NewRecorder()
			admin.Protect(plain, token).ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%+v, token %q: status %d", x, token, w.Code)
			}
		}
	}
}

// TestConsoleMembers: every member tells the others' consoles its role and its lag, a
// member that is down is shown as such, and a browser does not see what members said to an
// earlier one.
func TestConsoleMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		peers := []lockkeeper.Peer{{ID: 1, Addr: "host1:7000"}, {ID: 2, Addr: "host2:7000"}, {ID: 3, Addr: "host3:7000"}}
		var all []*lockkeeper.Server
		for id := range uint64(3) {
			cfg := lockkeeper.Config{ID: id + 1, Peers: peers}
			testhooks.In(&cfg).Network = network.Host(fmt.Sprintf("host%d", id+1))
			s := must(lockkeeper.Open(cfg))(t)
			t.Cleanup(func() { check(t, s.Close()) })
			all = append(all, s)
		}
		for _, s := range all {
			await(t, s)
		}
		handler := admin.New(all[0], admin.Options{})
		b := browse(t, handler)
		st := b.until("the members", func(s *consoleState) bool {
			roles := map[string]int{}
			for _, m := range s.Members {
				if m.Behind != nil && *m.Behind == 0 && m.Term == all[0].Status().State.Term {
					roles[m.Role]++
				}
			}
			return roles["leader"] == 1 && roles["follower"] == 2
		})
		if id := all[0].Status().Cluster.ID; len(id) != 16 || st.Server.Cluster != id {
			t.Errorf("it shows cluster %q, but is of %q", st.Server.Cluster, id)
		}
		if !st.Members[0].Self || st.Members[1].Self || st.Members[2].ID != 3 {
			t.Errorf("%+v", st.Members)
		}
		down := 2 // a follower, so that the first serves on
		if all[1].Role() != lockkeeper.RoleLeader {
			down = 1
		}
		b.stop()
		check(t, all[down].Close())
		b = browse(t, handler)
		if first := b.next(); first.Members[down].Role != "" {
			t.Errorf("what a member said before it was stopped is shown: %+v", first.Members[down])
		}
		st = b.until("that a member is down", func(s *consoleState) bool { return s.Members[down].Dead })
		if x := st.Members[down]; x.Behind != nil || x.Role != "" || x.Note == "" || st.Unknown != "" {
			t.Errorf("%+v", st)
		}
		for i, x := range st.Members {
			if i != down && x.Dead {
				t.Errorf("member %d answers: %+v", i+1, x)
			}
		}

		// Without a majority, what the cluster has is not known.
		c := rawtest.Connect(t, inMemory(all[0]))
		must(c.Create("/l", nil, 0))(t)
		enqueue(t, c, "/l")
		b.until("a lock", func(s *consoleState) bool { return s.Totals.Locks == 1 })
		check(t, all[3-down].Close())
		// For a moment it serves no clients, and still thinks that it leads.
		st = b.until("that nothing is known", func(s *consoleState) bool { return strings.Contains(s.Unknown, "knows no leader") })
		if st.Notes.Locks != st.Unknown || st.Server.Serving || st.Totals.Locks != 0 {
			t.Errorf("%+v", st)
		}
		b.until("two members that are down", func(s *consoleState) bool { return s.Members[down].Dead && s.Members[3-down].Dead })
		b.stop()
	})
}

// TestDifferingMember: the consoles of the leader and of another member show which member's
// state differs, and since which entry, and the leader's metrics do.
func TestDifferingMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 3, nil)
		leader, bad := m.roles(t)
		var third *lockkeeper.Server
		for _, s := range m.servers {
			if s != leader && s != bad {
				third = s
			}
		}
		c, at := rawtest.Connect(t, inMemory(leader)), int(bad.Status().ID)-1
		shown := []*browser{browse(t, admin.New(leader, admin.Options{})), browse(t, admin.New(third, admin.Options{}))}
		for _, b := range shown {
			b.until("no difference", func(s *consoleState) bool { return s.Members[at].Role == "follower" && s.Members[at].Differs == 0 })
		}
		synctest.Wait() // so that nobody reads the state while it is falsified
		testhooks.Of(bad).View(func(v *fsm.View) { v.Sessions().Open(session.Session{ID: 1 << 40}) })
		must(c.Create("/x", nil, 0))(t)
		<-bad.Done()
		if err := bad.Err(); !errors.Is(err, lockkeeper.ErrDiffers) {
			t.Error(err)
		}
		index := leader.Status().Cluster.Differs[0].Index
		for _, b := range shown {
			st := b.until("the difference", func(s *consoleState) bool { return s.Members[at].Differs != 0 })
			for i, x := range st.Members {
				if want := map[bool]uint64{true: index}[i == at]; x.Differs != want {
					t.Errorf("member %d differs at %d, should at %d", i+1, x.Differs, want)
				}
			}
			b.stop()
		}
		all := scrape(t, admin.New(leader, admin.Options{}))
		for _, s := range []*lockkeeper.Server{bad, third} {
			if got, ok := value(all, "lockkeeper_member_differs_index", "member", fmt.Sprint(s.Status().ID)); !ok || got != map[bool]float64{true: float64(index)}[s == bad] {
				t.Errorf("lockkeeper_member_differs_index of %d is %v %v; %d differs at %d", s.Status().ID, got, ok, at+1, index)
			}
		}
	})
}

// TestConsoleOtherCluster: the console shows that a member belongs to another cluster, and does
// not take it for one that lags or is ahead.
func TestConsoleOtherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 3, nil)
		leader, down := m.roles(t)
		at := int(down.Status().ID) - 1
		check(t, down.Close())
		cfg := lockkeeper.Config{ID: uint64(at + 1), Peers: []lockkeeper.Peer{{ID: uint64(at + 1), Addr: host(at) + ":7000"}}}
		testhooks.In(&cfg).Network = m.net.Host(host(at))
		other := open(t, cfg)
		c := rawtest.Connect(t, inMemory(other))
		for i := range 99 {
			must(c.Create(fmt.Sprint("/", i), nil, 0))(t)
		}
		b := browse(t, admin.New(leader, admin.Options{}))
		st := b.until("the other cluster", func(s *consoleState) bool { return s.Members[at].Note != "" })
		if x := st.Members[at]; x.Note != "belongs to cluster "+other.Status().Cluster.ID || x.Role != "" || x.Behind != nil {
			t.Errorf("%+v", x)
		}
		for i, x := range st.Members {
			if i != at && (x.Behind == nil || *x.Behind > 50) {
				t.Errorf("member %d is compared with it: %+v", i+1, x)
			}
		}
		b.stop()
	})
}

// unbuffered is an http.ResponseWriter whose Write waits for the reader.
type unbuffered struct {
	http.ResponseWriter
	body *io.PipeReader
	*io.PipeWriter
}

func newUnbuffered() *unbuffered {
	r, w := io.Pipe()
	return &unbuffered{httptest.NewRecorder(), r, w}
}

func (u *unbuffered) Write(b []byte) (int, error) { return u.PipeWriter.Write(b) }

// Flush does nothing: there is nothing to flush.
func (u *unbuffered) Flush() {}
