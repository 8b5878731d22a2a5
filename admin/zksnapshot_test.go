package admin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/internal/tools/zkdata"
)

// atFirst is a ResponseWriter that calls first when the body begins, and forgets the body. An error of first is that of Write.
type atFirst struct {
	*httptest.ResponseRecorder
	first func() error
	n     int
}

func (w *atFirst) Write(b []byte) (int, error) {
	if w.n == 0 {
		if err := w.first(); err != nil {
			return 0, err
		}
	}
	w.n += len(b)
	return len(b), nil
}

func zkSnapshotRequest(method, query string) *http.Request {
	r := httptest.NewRequest(method, "/commands/snapshot"+query, nil)
	r.Host = "127.0.0.1:8080"
	return r
}

// TestZooKeeperSnapshotMemory: while the command snapshot sends the state, there is no second one in memory.
func TestZooKeeperSnapshotMemory(t *testing.T) {
	s := open(t, lockkeeper.Config{})
	c := rawtest.Connect(t, inMemory(s))
	const size = 64 << 20
	for i := range size >> 19 {
		must(c.Create(fmt.Sprintf("/%d", i), make([]byte, 1<<19), 0))(t)
	}
	h := admin.New(s, admin.Options{Snapshots: true})
	live := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, during := live(), uint64(0)
	w := &atFirst{ResponseRecorder: httptest.NewRecorder()}
	w.first = func() error { during = live(); return nil }
	h.ServeHTTP(w, zkSnapshotRequest(http.MethodGet, ""))
	if w.n < size || w.Header().Get("snapshot_size") != strconv.Itoa(w.n) {
		t.Fatalf("%d bytes, announced %s", w.n, w.Header().Get("snapshot_size"))
	}
	if during > before+size/4 {
		t.Errorf("%d MiB in use before, %d MiB while %d MiB are sent", before>>20, during>>20, size>>20)
	}
}

// TestZooKeeperSnapshotMoment: what is written while the snapshot is sent is not in it, and one is sent at a time. A client that
// vanishes, before or in the middle, leaves the way free for the next one.
func TestZooKeeperSnapshotMoment(t *testing.T) {
	s := open(t, lockkeeper.Config{})
	c := rawtest.Connect(t, inMemory(s))
	must(c.Create("/a", []byte("x"), 0))(t)
	must(c.Create("/a/b", []byte("y"), 0))(t)
	must(c.Create("/0", bytes.Repeat([]byte("z"), 1<<19), 0))(t)
	h := admin.New(s, admin.Options{Snapshots: true})
	get := func(method, query string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, zkSnapshotRequest(method, query))
		return w
	}
	body := new(bytes.Buffer)
	w := &atFirst{ResponseRecorder: httptest.NewRecorder()}
	w.first = func() error {
		must(c.Create("/later", nil, 0))(t)
		must(c.Set("/a", []byte("later")))(t)
		check(t, c.Delete("/a/b"))
		if other := get(http.MethodGet, ""); other.Code != http.StatusTooManyRequests {
			t.Errorf("a second one at the same time: %d", other.Code)
		}
		if other := getSnapshot(h); other.Code != http.StatusServiceUnavailable {
			t.Errorf("/snapshot at the same time: %d", other.Code)
		}
		return nil
	}
	h.ServeHTTP(teeTo{w, body}, zkSnapshotRequest(http.MethodGet, ""))
	zxid := must(strconv.ParseInt(w.Header().Get("last_zxid"), 0, 64))(t)
	got := must(zkdata.ReadSnapshot(body, zxid))(t)
	if n, wrong := got.Digests(); n != 1 || wrong != 0 || got.Get("/later") != nil || string(got.Get("/a").Data) != "x" || got.Get("/a/b") == nil {
		t.Errorf("%q, %d digests, wrong at %#x", got.Paths(), n, wrong)
	}

	vanished, cancel := context.WithCancel(t.Context())
	cancel()
	if gone := httptest.NewRecorder(); true {
		h.ServeHTTP(gone, zkSnapshotRequest(http.MethodGet, "").WithContext(vanished))
		if gone.Header().Get("last_zxid") != "" {
			t.Errorf("for a client that is gone the state was read: %v", gone.Header())
		}
	}
	func() {
		defer func() {
			if p := recover(); p != http.ErrAbortHandler {
				t.Errorf("a client that vanishes: %v", p)
			}
		}()
		h.ServeHTTP(&atFirst{ResponseRecorder: httptest.NewRecorder(), first: func() error { return errors.New("gone") }}, zkSnapshotRequest(http.MethodGet, ""))
	}()

	for query, streams := range map[string]bool{"": true, "?streaming=true": true, "?streaming=TRUE": true, "?streaming=": false, "?streaming=false": false, "?streaming=1": false} {
		w := get(http.MethodGet, query)
		if kind := w.Header().Get("Content-Type"); w.Code != http.StatusOK || w.Header().Get("last_zxid") == "" || (kind == "application/octet-stream") != streams {
			t.Errorf("%q: %d %v", query, w.Code, w.Header())
		}
	}
	if w := get(http.MethodHead, ""); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET" {
		t.Errorf("HEAD: %d %v", w.Code, w.Header())
	}
	if w := get(http.MethodPost, ""); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
	check(t, s.Close())
	if w := get(http.MethodGet, ""); w.Code != http.StatusServiceUnavailable || w.Header().Get("last_zxid") != "" {
		t.Errorf("after Close: %d %s", w.Code, w.Body)
	}
}

// teeTo also keeps what is written.
type teeTo struct {
	http.ResponseWriter
	body *bytes.Buffer
}

func (w teeTo) Write(b []byte) (int, error) {
	w.body.Write(b)
	return w.ResponseWriter.Write(b)
}
