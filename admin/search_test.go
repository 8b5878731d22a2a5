package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// foundZnodes is the answer to a search.
type foundZnodes struct {
	Found []struct {
		Path              string
		Children, Bytes   int
		Ephemeral, Hidden bool
	}
	More              int
	Incomplete, Error string
}

func (f *foundZnodes) paths() (all []string) {
	for _, z := range f.Found {
		all = append(all, z.Path)
	}
	return all
}

func searchFor(t testing.TB, h http.Handler, text string) (status int, f foundZnodes) {
	t.Helper()
	status, body := ask(h, "/console/search?"+url.Values{"q": {text}}.Encode())
	check(t, json.Unmarshal([]byte(body), &f))
	return status, f
}

// TestSearch: a search finds znodes by any part of their paths, whatever the case, the first hundred in the
// order of their paths, and counts the others.
func TestSearch(t *testing.T) {
	s := open(t, lockkeeper.Config{})
	h := admin.New(s, admin.Options{})
	c := rawtest.Connect(t, inMemory(s))
	for _, path := range []string{"/App", "/App/Config", "/App/config-2", "/other", "/other/ÄPFEL", "/other/<b>bold", "/many"} {
		must(c.Create(path, []byte("hush"), 0))(t)
	}
	must(c.Create("/other/app-owned", nil, proto.FlagEphemeral))(t)
	for i := range 250 {
		must(c.Create(fmt.Sprintf("/many/%03d", (i*7)%250), nil, 0))(t)
	}
	for text, want := range map[string]string{
		"config": "/App/Config /App/config-2 /zookeeper/config", "CONFIG-": "/App/config-2", "app/c": "/App/Config /App/config-2", "äpf": "/other/ÄPFEL",
		"/other/<B>": "/other/<b>bold", "hush": "", "nothing": "", "app-o": "/other/app-owned",
	} {
		if status, f := searchFor(t, h, text); status != 200 || strings.Join(f.paths(), " ") != want || f.More != 0 || f.Incomplete != "" {
			t.Errorf("%s: %d %+v", text, status, f)
		}
	}
	if _, f := searchFor(t, h, "app"); len(f.Found) != 4 || f.Found[0].Children != 2 || f.Found[0].Bytes != 4 || f.Found[0].Ephemeral || !f.Found[3].Ephemeral {
		t.Errorf("%+v", f)
	}
	_, f := searchFor(t, h, "/MANY/")
	if paths := f.paths(); len(paths) != 100 || f.More != 150 || !slices.IsSorted(paths) || paths[0] != "/many/000" || paths[99] != "/many/099" {
		t.Errorf("%d and %d more: %v", len(paths), f.More, paths)
	}
	for i := range 60 { // znodes take the places of others
		check(t, c.Delete(fmt.Sprintf("/many/%03d", i*2)))
	}
	if _, f := searchFor(t, h, "/many/"); len(f.Found) != 100 || f.More != 90 || f.Found[0].Path != "/many/001" {
		t.Errorf("%d and %d more", len(f.Found), f.More)
	}
	if _, body := ask(h, "/console/search?q=bold"); strings.Contains(body, "<b>") {
		t.Errorf("the answer contains markup: %s", body)
	}
	for _, text := range []string{"", strings.Repeat("x", 401)} {
		if status, f := searchFor(t, h, text); status != 400 || f.Error == "" {
			t.Errorf("%.10q: %d %+v", text, status, f)
		}
	}
}

// TestSearchLongPaths: an answer has no more than 1 MiB of paths, however long they are, and counts the others.
func TestSearchLongPaths(t *testing.T) {
	s := open(t, lockkeeper.Config{})
	h := admin.New(s, admin.Options{})
	c := rawtest.Connect(t, inMemory(s))
	for i := range 60 {
		must(c.Create(fmt.Sprintf("/%02d%s", (i*7)%60, strings.Repeat("<", 200_000)), nil, 0))(t)
	}
	must(c.Create("/99<", nil, 0))(t)
	status, f := searchFor(t, h, "<")
	if paths := f.paths(); status != 200 || len(paths) != 5 || f.More != 56 || !strings.HasPrefix(paths[0], "/00") || !strings.HasPrefix(paths[4], "/04") || f.Incomplete != "" {
		t.Errorf("%d, %d found and %d more: %.10q", status, len(paths), f.More, paths)
	}
	long := "/" + strings.Repeat("=", 1_040_000)
	must(c.Create(long, nil, 0))(t)
	if status, f := searchFor(t, h, "="); status != 200 || len(f.Found) != 1 || f.Found[0].Path != long {
		t.Errorf("%d, %d found and %d more", status, len(f.Found), f.More)
	}
}

// TestSearchHides compares what a search can find with what somebody finds who goes through the tree from
// the root down, as a client of this machine that has not authenticated, in a tree with ACLs of all kinds.
func TestSearchHides(t *testing.T) {
	s := open(t, lockkeeper.Config{})
	h := admin.New(s, admin.Options{EndSessions: true, BreakLocks: true, EditZnodes: true, Snapshots: true})
	c := rawtest.Connect(t, inMemory(s))
	must(c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte("a:a")}, nil))(t)
	entry := func(perms int32, scheme, id string) proto.ACL {
		return proto.ACL{Perms: perms, ID: proto.ID{Scheme: scheme, ID: id}}
	}
	mine := entry(proto.PermAll, "auth", "")
	acls := [][]proto.ACL{
		proto.OpenACL, {mine}, {mine, entry(proto.PermRead, "world", "anyone")}, {mine, entry(proto.PermAll&^proto.PermRead, "world", "anyone")},
		{mine, entry(proto.PermAll, "ip", "127.0.0.1")}, {mine, entry(proto.PermAll, "ip", "192.0.2.1")},
	}
	n := 0
	var grow func(at string, depth int)
	grow = func(at string, depth int) {
		for i, acl := range acls {
			path := fmt.Sprintf("%s/%c", at, 'a'+i)
			must(c.Call(proto.OpCreate, &proto.CreateRequest{Path: path, ACL: acl}, nil))(t)
			if n++; depth > 1 {
				grow(path, depth-1)
			}
		}
	}
	grow("", 3)
	visible := map[string]bool{} // and whether it may be read
	client := rawtest.Connect(t, inMemory(s))
	var walk func(at string)
	walk = func(at string) {
		var reply proto.ChildrenReply
		_, err := client.Call(proto.OpGetChildren, &proto.PathWatch{Path: at}, &reply)
		visible[at] = err == nil
		if err != nil && err != proto.NoAuth {
			t.Fatalf("%s: %v", at, err)
		}
		for _, name := range reply.Names {
			walk(strings.TrimSuffix(at, "/") + "/" + name)
		}
	}
	walk("/")
	if len(visible) < 50 || len(visible) > n*3/4 {
		t.Fatalf("%d of %d znodes are visible", len(visible), n)
	}
	texts := []string{"/", "a", "f"}
	for i := range acls {
		for k := range acls {
			texts = append(texts, fmt.Sprintf("/%c/%c", 'a'+i, 'a'+k), fmt.Sprintf("%c/%c", 'a'+i, 'a'+k), fmt.Sprintf("/%c/%c/", 'a'+i, 'a'+k))
		}
	}
	for _, text := range texts {
		var want []string
		for path := range visible {
			if strings.Contains(path, text) {
				want = append(want, path)
			}
		}
		slices.Sort(want)
		more := max(0, len(want)-100)
		want = want[:len(want)-more]
		status, f := searchFor(t, h, text)
		if status != 200 || f.More != more || !slices.Equal(f.paths(), want) {
			t.Errorf("%s: %d: a search finds %v and %d more, going through the tree %v and %d more", text, status, f.paths(), f.More, want, more)
		}
		for _, z := range f.Found {
			if z.Hidden == visible[z.Path] || z.Hidden && (z.Children != 0 || z.Bytes != 0) {
				t.Errorf("%+v, but a client may read it: %v", z, visible[z.Path])
			}
		}
	}
}

// TestSearchAuth: with --enforce-auth a search finds nothing.
func TestSearchAuth(t *testing.T) {
	s := open(t, lockkeeper.Config{Auth: lockkeeper.Auth{Enforce: []string{"digest"}}})
	if status, f := searchFor(t, admin.New(s, admin.Options{}), "zookeeper"); status != 403 || len(f.Found) != 0 || !strings.Contains(f.Error, "--enforce-auth") {
		t.Errorf("%d %+v", status, f)
	}
	s = open(t, lockkeeper.Config{})
	h := admin.New(s, admin.Options{})
	check(t, s.Close())
	if status, f := searchFor(t, h, "zookeeper"); status != 503 || len(f.Found) != 0 || f.Error == "" {
		t.Errorf("%d %+v", status, f)
	}
}

// TestSearchSteps: in a search for what all of 100,000 znodes with one parent have, the state is
// unlocked after every 256 of them, and more often if their paths are long.
func TestSearchSteps(t *testing.T) {
	var holds atomic.Int64
	cfg := lockkeeper.Config{ID: 1}
	testhooks.In(&cfg).Locked = func(locked bool) {
		if locked {
			holds.Add(1)
		}
	}
	const owner, znodes = 1<<56 + 1, 100_000
	p := newPlanned()
	p.add(t, fsm.OpenSession(1, owner, 3_600_000, session.Password{1}))
	p.create(t, owner, "/d", 0)
	for i := range znodes {
		p.create(t, owner, fmt.Sprintf("/d/%06d", i), 0)
	}
	s := p.open(t, cfg)
	search := func() (f report.Found, steps int) {
		last := int64(-1)
		f = must(report.Of(s).Search(report.Search{Text: "/d/", Most: 100, Continue: func(looked int) bool {
			if now := holds.Load(); now == last {
				t.Errorf("the state was locked all the time from %d to %d znodes", looked-256, looked)
			} else {
				last = now
			}
			steps++
			return true
		}}))(t)
		return f, steps
	}
	if f, steps := search(); f.Matching != znodes || len(f.Paths) != 100 || !f.Complete || steps < znodes/256 {
		t.Errorf("%d found, complete %v, %d steps", f.Matching, f.Complete, steps)
	}
	before := holds.Load()
	// On a slow machine this search ends before it has looked at all of them.
	status, f := searchFor(t, admin.New(s, admin.Options{}), "/d/")
	if status != 200 || len(f.Found) != 100 || f.More != znodes-100 && f.Incomplete == "" {
		t.Errorf("%d, %d found and %d more", status, len(f.Found), f.More)
	}
	if n := holds.Load() - before; n < int64(len(f.Found)+f.More)/256 {
		t.Errorf("the state was locked %d times", n)
	}
	c := rawtest.Connect(t, inMemory(s))
	long := must(c.Create("/d/"+strings.Repeat("x", 256*256), nil, 0))(t)
	looked, at := 0, int64(0)
	must(report.Of(s).Search(report.Search{Text: long, Most: 1, Continue: func(n int) bool {
		if looked = n; n == 0 {
			at = holds.Load()
		} else if now := holds.Load(); now < at+2 {
			t.Errorf("the state was locked %d times for 256 znodes, of which one has a long path", now-at)
		}
		return n == 0
	}}))(t)
	if looked != 256 {
		t.Errorf("%d znodes", looked)
	}
}

// TestSearchEndsWithBrowser: a search ends when nobody waits for it any more.
func TestSearchEndsWithBrowser(t *testing.T) {
	s := open(t, lockkeeper.Config{})
	h := admin.New(s, admin.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/console/search?q=/", nil))
	if w.Code == http.StatusOK && !strings.Contains(w.Body.String(), "only 0 of") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
