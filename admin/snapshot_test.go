package admin_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
)

// getSnapshot asks a handler for a snapshot.
func getSnapshot(h http.Handler, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/snapshot", nil)
	r.Host, r.RemoteAddr = "127.0.0.1:8080", "192.0.2.7:1234"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestSnapshot: who may get a snapshot gets the state, and the log says who did.
func TestSnapshot(t *testing.T) {
	s := open(t, lockkeeper.Config{})
	c := rawtest.Connect(t, inMemory(s))
	must(c.Create("/a", []byte("data"), 0))(t)
	var want, log bytes.Buffer
	check(t, s.WriteSnapshot(&want))
	h := admin.New(s, admin.Options{Snapshots: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
	for _, headers := range [][]string{nil, {"Sec-Fetch-Site", "none"}, {"Sec-Fetch-Site", "same-origin"}, {"Origin", "http://127.0.0.1:8080"}} {
		log.Reset()
		w := getSnapshot(h, headers...)
		if w.Code != 200 || !bytes.Equal(w.Body.Bytes(), want.Bytes()) || w.Header().Get("Content-Type") != "application/octet-stream" {
			t.Errorf("%v: %d %v, %d bytes instead of %d", headers, w.Code, w.Header(), w.Body.Len(), want.Len())
		}
		if got := log.String(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, fmt.Sprintf("bytes=%d operator=192.0.2.7:1234", want.Len())) {
			t.Errorf("the log: %s", got)
		}
	}

	log.Reset()
	for name, x := range map[string]struct {
		h       http.Handler
		headers []string
		status  int
		says    string
	}{
		"without Snapshots":   {admin.New(s, admin.Options{}), nil, 403, "without --admin-write"},
		"another site":        {h, []string{"Sec-Fetch-Site", "cross-site"}, 403, "another site"},
		"another port":        {h, []string{"Sec-Fetch-Site", "same-site"}, 403, "another site"},
		"an old browser":      {h, []string{"Origin", "https://evil.example"}, 403, "another site"},
		"without the token":   {admin.Protect(h, "s3cret"), nil, 401, "needs a token"},
		"with another token":  {admin.Protect(h, "s3cret"), []string{"Authorization", "Bearer x"}, 401, "needs a token"},
		"another site, token": {admin.Protect(h, "s3cret"), []string{"Authorization", "Bearer s3cret", "Sec-Fetch-Site", "cross-site"}, 403, "another site"},
	} {
		w := getSnapshot(x.h, x.headers...)
		if w.Code != x.status || !strings.Contains(w.Body.String(), x.says) || bytes.Contains(w.Body.Bytes(), []byte("LKSNAP")) {
			t.Errorf("%s: %d %.100q", name, w.Code, w.Body)
		}
	}
	head := httptest.NewRecorder()
	h.ServeHTTP(head, httptest.NewRequest(http.MethodHead, "/snapshot", nil))
	if head.Code != http.StatusMethodNotAllowed || head.Header().Get("Allow") != "GET" {
		t.Errorf("HEAD: %d %v", head.Code, head.Header())
	}
	if log.Len() > 0 {
		t.Errorf("the log: %s", &log)
	}
	if w := getSnapshot(admin.Protect(h, "s3cret"), "Authorization", "Bearer s3cret"); w.Code != 200 || !bytes.Equal(w.Body.Bytes(), want.Bytes()) {
		t.Errorf("with the token: %d", w.Code)
	}
	check(t, s.Close())
	if w := getSnapshot(h); w.Code != 503 || !strings.Contains(w.Body.String(), `{"error":"there is no snapshot: lockkeeper: server closed"}`) || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("after Close: %d %v %s", w.Code, w.Header(), w.Body)
	}
	if got := log.String(); !strings.Contains(got, "could not save a snapshot") {
		t.Errorf("the log: %s", got)
	}
}

// serving serves the snapshots of a server through memory, without buffers, and returns what asks for one.
func serving(t *testing.T, s *lockkeeper.Server) (ask func(path string) *http.Response, stop func()) {
	host := memnet.New().Host("a")
	listener := must(host.Listen("a:1"))(t)
	web := &http.Server{Handler: admin.New(s, admin.Options{Snapshots: true}), WriteTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	ended := make(chan error)
	go func() { ended <- web.Serve(listener) }()
	ask = func(path string) *http.Response {
		nc := must(host.Dial(t.Context(), "a:1"))(t)
		t.Cleanup(func() { nc.Close() })
		must(io.WriteString(nc, "GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n"))(t)
		return must(http.ReadResponse(bufio.NewReader(nc), nil))(t)
	}
	return ask, func() {
		check(t, web.Close())
		<-ended
	}
}

// TestSlowSnapshot: a reader gets a snapshot however long that takes, as long as it goes on
// reading. If it stops, or the snapshot cannot go on, the connection ends, so that the
// snapshot does not look complete. There is one at a time.
func TestSlowSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, lockkeeper.Config{})
		c := rawtest.ConnectFor(t, inMemory(s), 40*time.Second)
		for i := range 40 {
			must(c.Create(fmt.Sprintf("/%d", i), make([]byte, 1e6), 0))(t)
		}
		var want bytes.Buffer
		check(t, s.WriteSnapshot(&want))
		ask, stop := serving(t, s)
		defer stop()

		reply := ask("/snapshot")
		began, got := time.Now(), new(bytes.Buffer)
		for n := int64(1); n > 0; time.Sleep(5 * time.Second) {
			n, _ = io.CopyN(got, reply.Body, 2e6)
			if n == 2e6 && got.Len() < 10e6 {
				if other := ask("/snapshot"); other.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(must(io.ReadAll(other.Body))(t)), "another snapshot") {
					t.Errorf("a second snapshot: %d", other.StatusCode)
				}
			}
		}
		if took := time.Since(began); !bytes.Equal(got.Bytes(), want.Bytes()) || took < 90*time.Second {
			t.Errorf("%d bytes after %v, not %d", got.Len(), took, want.Len())
		}

		reply = ask("/snapshot")
		time.Sleep(70 * time.Second)
		if b, err := io.ReadAll(reply.Body); !errors.Is(err, io.ErrUnexpectedEOF) || len(b) >= want.Len() {
			t.Errorf("a reader that stops gets %d of %d bytes, %v", len(b), want.Len(), err)
		}
		reply = ask("/snapshot")
		if state := must(storage.VerifySnapshot(reply.Body))(t); state.Znodes != 44 || state.Sessions != 0 { // it has expired
			t.Errorf("afterwards: %+v", state)
		}
	})
}

// TestTricklingSnapshot: a reader that never stops, but takes next to nothing, does not keep others from their snapshots for hours,
// nor the server from freeing what has changed since. A slow one that takes enough may pause.
func TestTricklingSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, lockkeeper.Config{})
		c := rawtest.ConnectFor(t, inMemory(s), 40*time.Second)
		for i := range 20 {
			must(c.Create(fmt.Sprintf("/%d", i), make([]byte, 1e6), 0))(t)
		}
		ask, stop := serving(t, s)
		defer stop()
		get := func(path string) *http.Response {
			reply := ask(path)
			if reply.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s", path, reply.Status)
			}
			return reply
		}
		for _, path := range []string{"/snapshot", "/commands/snapshot"} {
			read := func(each int64, pause func(sum int64) time.Duration) (sum int64, took time.Duration, err error) {
				reply, began := get(path), time.Now()
				for err == nil {
					var n int64
					n, err = io.CopyN(io.Discard, reply.Body, each)
					sum += n
					time.Sleep(pause(sum))
				}
				return sum, time.Since(began), err
			}
			sum, took, err := read(64<<10, func(int64) time.Duration { return 19 * time.Second })
			if !errors.Is(err, io.ErrUnexpectedEOF) || took > 3*time.Minute || sum > 2e6 {
				t.Errorf("%s: a reader that trickles got %d bytes in %v, %v", path, sum, took, err)
			}
			// As the server sees one that reads 70 kB each second: TCP lets it send no more until the reader has
			// taken a third of the 4 MB that a socket of Linux keeps.
			sum, took, err = read(1.5e6, func(int64) time.Duration { return 21400 * time.Millisecond })
			if err != io.EOF || sum < 20e6 || took < 4*time.Minute {
				t.Errorf("%s: a steady reader got %d bytes in %v, %v", path, sum, took, err)
			}
			paused := false
			sum, took, err = read(1e6, func(sum int64) time.Duration {
				if !paused && sum > 8e6 {
					paused = true
					return 19 * time.Second
				}
				return 14 * time.Second // 70 kB/s
			})
			if err != io.EOF || sum < 20e6 || took < 4*time.Minute {
				t.Errorf("%s: a slow reader got %d bytes in %v, %v", path, sum, took, err)
			}
		}
	})
}
