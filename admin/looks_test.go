package admin_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// look is something that somebody does who looks into a server.
type look struct {
	name string
	do   func()
}

// looks are the ways to look into a server through its API, its HTTP port and four-letter words.
func looks(t testing.TB, s *lockkeeper.Server, h *admin.Handler) []look {
	r := report.Of(s)
	all := []look{
		{"Status", func() { s.Status() }},
		{"Sessions", func() { must(r.Sessions())(t) }},
		{"Watches", func() { must(r.Watches())(t) }},
		{"snapshot", func() { check(t, s.WriteSnapshot(io.Discard)) }},
		{"console", func() { events(h) }},
		{"search", func() {
			if status, body := ask(h, "/console/search?q=9"); status != 200 || !strings.Contains(body, "/locks/") {
				t.Errorf("search: %d %s", status, body)
			}
		}},
		{"first scrape", func() { // it finds the locks
			h := admin.New(s, admin.Options{})
			defer h.Close()
			if _, text := ask(h, "/metrics"); !strings.Contains(text, "lockkeeper_lock_metrics_complete") {
				t.Error(text)
			}
		}},
	}
	for _, path := range []string{"/metrics", "/readyz", "/commands/dump", "/commands/mntr", "/commands/cons", "/commands/hash", "/commands/wchc", "/commands/wchp"} {
		all = append(all, look{path, func() {
			if status, body := ask(h, path); status != 200 {
				t.Errorf("%s: %d %s", path, status, body)
			}
		}})
	}
	for _, w := range []string{"srvr", "stat", "mntr", "conf", "cons", "wchs", "wchc", "wchp", "dump", "hash"} {
		all = append(all, look{w, func() {
			nc := must(inMemory(s)())(t)
			defer nc.Close()
			check(t, nc.SetDeadline(time.Now().Add(time.Minute)))
			must(io.WriteString(nc, w))(t)
			if n := must(io.Copy(io.Discard, nc))(t); n == 0 { // an answer that is kept here would be measured, too
				t.Errorf("%s: no answer", w)
			}
		}})
	}
	return all
}

// TestLooksAreShort checks that nobody who looks into a server has its state locked for as long as
// it takes to read all sessions, locks or watches. The measure is what is allocated meanwhile:
// already the list of all sessions would be too much.
func TestLooksAreShort(t *testing.T) {
	const sessions, limit = 20_000, 50_000
	var mu sync.Mutex
	var m runtime.MemStats
	measuring, from, most := false, uint64(0), uint64(0)
	measure := func(on bool) uint64 {
		mu.Lock()
		defer mu.Unlock()
		x := most
		measuring, most = on, 0
		return x
	}
	cfg := lockkeeper.Config{ID: 1}
	testhooks.In(&cfg).Locked = func(locked bool) {
		mu.Lock()
		defer mu.Unlock()
		if !measuring {
			return
		}
		if runtime.ReadMemStats(&m); locked {
			from = m.TotalAlloc
		} else {
			most = max(most, m.TotalAlloc-from)
		}
	}
	s := crowded(t, cfg, sessions, 8000)
	watch(t, s, 8000)
	h := admin.New(s, admin.Options{})
	defer h.Close()
	for _, l := range looks(t, s, h) {
		for try := 1; ; try++ {
			measure(true)
			l.do()
			n := measure(false)
			if n <= limit {
				break
			}
			if try == 50 { // other goroutines allocate something, too, but not each time
				t.Errorf("%s: %d bytes are allocated while the state is locked once", l.name, n)
				break
			}
		}
	}
}

// events reads the stream of the console until its first event.
func events(h *admin.Handler) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w := &firstWrite{ResponseRecorder: httptest.NewRecorder(), done: cancel}
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/console/events", nil))
}

type firstWrite struct {
	*httptest.ResponseRecorder
	done func()
}

func (f *firstWrite) Write(b []byte) (int, error) {
	f.done()
	return len(b), nil
}

// crowded starts a server with sessions, the first of which each have an entry in the queue of one of the
// locks.
func crowded(b testing.TB, cfg lockkeeper.Config, sessions, contenders int) *lockkeeper.Server {
	b.Helper()
	p := newPlanned()
	create := func(id int64, path string, flags int32) { p.create(b, id, path, flags) }
	for i := range sessions {
		p.add(b, fsm.OpenSession(1, 1<<56+int64(i)+1, 3_600_000, session.Password{byte(i)}))
	}
	for _, path := range []string{"/w", "/locks", "/q"} {
		create(1<<56+1, path, 0)
	}
	for i := range contenders {
		if i%10 == 0 {
			create(1<<56+1, fmt.Sprintf("/locks/%05d", i/10), 0)
		}
		create(1<<56+int64(i)+1, fmt.Sprintf("/locks/%05d/_c_0123456789abcdef0123456789abcdef-lock-", i/10), proto.FlagEphemeralSeq)
	}
	create(1<<56+1, "/zookeeper/quota/q", 0)
	for i := range 1000 {
		create(1<<56+1, fmt.Sprintf("/q/%04d", i), 0)
		at := fmt.Sprintf("/zookeeper/quota/q/%04d", i)
		create(1<<56+1, at, 0)
		for _, x := range [][2]string{{"limits", "count=5,bytes=-1"}, {"stats", "count=1,bytes=7"}} {
			q := proto.CreateRequest{Path: at + "/zookeeper_" + x[0], Data: []byte(x[1]), ACL: proto.OpenACL}
			p.add(b, &fsm.Command{Op: proto.OpCreate, Session: 1<<56 + 1, Conn: 1, Body: q.Append(nil)})
		}
	}
	p.flush(b)
	if m := p.m; m.Sessions().Len() != sessions || m.Tree().Ephemerals() != contenders {
		b.Fatalf("%d sessions and %d ephemerals", m.Sessions().Len(), m.Tree().Ephemerals())
	}
	return p.open(b, cfg)
}

// planned is a state that is made before a server has it, which is faster than through the server.
type planned struct {
	m     *fsm.Machine
	entry []byte
	n     int // commands in it
}

func newPlanned() *planned { return &planned{m: fsm.NewMachine()} }

func (p *planned) add(t testing.TB, c *fsm.Command) {
	if p.n == 0 {
		p.entry = fsm.BeginEntry(nil)
	}
	p.entry = fsm.AppendCommand(p.entry, c)
	if p.n++; p.n == 1000 {
		p.flush(t)
	}
}

func (p *planned) flush(t testing.TB) {
	if p.n == 0 {
		return
	}
	p.entry = fsm.EndEntry(p.entry, &fsm.Envelope{Origin: 1, Batch: p.m.Index() + 1, Time: 1000, Count: p.n})
	check(t, p.m.Apply(p.m.Index()+1, 1, p.entry, nil))
	p.n = 0
}

func (p *planned) create(t testing.TB, session int64, path string, flags int32) {
	q := proto.CreateRequest{Path: path, Data: []byte("host 17"), ACL: proto.OpenACL, Flags: flags}
	p.add(t, &fsm.Command{Op: proto.OpCreate, Session: session, Conn: 1, Body: q.Append(nil)})
}

// open starts a server with the state.
func (p *planned) open(t testing.TB, cfg lockkeeper.Config) *lockkeeper.Server {
	t.Helper()
	p.flush(t)
	var snapshot bytes.Buffer
	check(t, p.m.Snapshot().Write(&snapshot))
	cfg.DataDir = filepath.Join(testkit.MemoryDir(t), "data")
	check(t, lockkeeper.Restore(cfg, &snapshot))
	return open(t, cfg) // which waits until it serves
}

// watch sets watches of 100 clients.
func watch(b testing.TB, s *lockkeeper.Server, watches int) {
	for i := range 100 {
		c := rawtest.ConnectFor(b, inMemory(s), 40*time.Second)
		stop := make(chan struct{})
		var pings sync.WaitGroup
		for k := range watches / 100 {
			if _, err := c.Exists(fmt.Sprintf("/watched/by/%d/%d", i, k), true); err != proto.NoNode {
				b.Fatal(err)
			}
		}
		pings.Go(func() {
			for {
				select {
				case <-time.After(5 * time.Second):
					c.Ping()
				case <-stop:
					return
				}
			}
		})
		b.Cleanup(func() {
			close(stop)
			pings.Wait()
		})
	}
}
