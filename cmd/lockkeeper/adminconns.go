package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/fdlimit"
)

// Limits of the HTTP port for operators. Where the process may have few file descriptors,
// maxAdminRequests and maxAdminWaiting are a sixteenth of their number at most.
const (
	maxAdminRequests = 128                    // permitted requests in progress
	keptAdmin        = 128                    // connections without one; at most half of maxAdminWaiting
	maxAdminWaiting  = 1024                   // the same, with those that adminGrace protects
	adminGrace       = 100 * time.Millisecond // for a client to send its request, and to get its reply
)

// adminConns are the connections of the HTTP port. A new one is always accepted, because it
// may be that of a probe. If there are too many without a permitted request, makeRoom closes
// some. Probes, and the files of the console if there is a token, are open to everybody, so
// they do not count as permitted requests.
type adminConns struct {
	net.Listener
	most int // permitted requests
	kept int // connections that wait, unless younger ones need time
	room int // connections that wait

	mu       sync.Mutex
	waiting  []*adminConn // those without a permitted request, for the longest time first
	requests int          // permitted ones in progress, on all connections
}

func newAdminConns(l net.Listener) *adminConns {
	room := max(1, fdlimit.Sixteenth(maxAdminWaiting))
	return &adminConns{Listener: l, most: max(1, fdlimit.Sixteenth(maxAdminRequests)), kept: min(keptAdmin, room/2), room: room}
}

func (all *adminConns) Accept() (net.Conn, error) {
	nc, err := all.Listener.Accept()
	if err != nil {
		return nil, err // http.Server tries again later if too many files are open
	}
	c := &adminConn{Conn: nc, all: all}
	all.mu.Lock()
	defer all.mu.Unlock()
	all.await(c)
	return c, nil
}

// await adds a connection on which there is no permitted request. The caller holds the lock.
func (all *adminConns) await(c *adminConn) {
	c.since = time.Now()
	all.waiting = append(all.waiting, c)
	all.makeRoom()
}

// makeRoom closes connections if too many wait: first those on which nothing was ever sent,
// then the others, each time the one that has waited longest. It spares those on which a probe
// is being answered, and as long as there is room for them, those that have not had their
// grace. The caller holds the lock.
func (all *adminConns) makeRoom() {
	now := time.Now()
	first := func(closes func(c *adminConn) bool) int {
		return slices.IndexFunc(all.waiting, func(c *adminConn) bool { return c.probes == 0 && closes(c) })
	}
	for len(all.waiting) > all.kept {
		i := first(func(c *adminConn) bool { return !c.heard.Load() && now.Sub(c.since) >= adminGrace })
		if i < 0 {
			i = first(func(c *adminConn) bool { return now.Sub(c.since) >= adminGrace })
		}
		if i < 0 && len(all.waiting) > all.room {
			i = first(func(*adminConn) bool { return true })
		}
		if i < 0 {
			return
		}
		all.waiting[i].Conn.Close() // not the adminConn: that is closed by http.Server, which notices
		all.waiting = slices.Delete(all.waiting, i, i+1)
	}
}

// remove removes a connection that no longer waits. The caller holds the lock.
func (all *adminConns) remove(c *adminConn) {
	if i := slices.Index(all.waiting, c); i >= 0 {
		all.waiting = slices.Delete(all.waiting, i, i+1)
	}
}

// adminConn is a connection of the HTTP port, below TLS.
type adminConn struct {
	net.Conn
	all   *adminConns
	heard atomic.Bool // the client has sent something

	// Guarded by all.mu.
	since    time.Time // when it was accepted, or when its last probe or permitted request ended
	requests int       // permitted ones in progress
	probes   int       // in progress
	closed   bool      // by http.Server
}

func (c *adminConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.heard.Store(true)
	}
	return n, err
}

func (c *adminConn) Close() error {
	c.all.mu.Lock()
	c.closed = true
	c.all.remove(c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// begin begins a permitted request. It returns false if there are too many.
func (c *adminConn) begin() bool {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if c.all.requests >= c.all.most {
		return false
	}
	c.all.requests++
	c.requests++
	c.all.remove(c)
	return true
}

func (c *adminConn) end() {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.all.requests--
	if c.requests--; c.requests == 0 && !c.closed {
		c.all.await(c)
	}
}

// probe answers a probe with f.
func (c *adminConn) probe(f func()) {
	count := func(by int) {
		c.all.mu.Lock()
		defer c.all.mu.Unlock()
		c.probes += by
		c.since = time.Now()
	}
	count(1)
	defer count(-1)
	f()
}

// adminConnKey is the key of the adminConn in the context of a request.
type adminConnKey struct{}

func withAdminConn(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return context.WithValue(ctx, adminConnKey{}, c)
}

// limitRequests returns a handler that does not pass on too many permitted requests to h at a
// time. Probes do not count.
func (p *adminPort) limitRequests(h http.Handler) http.Handler {
	want := sha256.Sum256([]byte("Bearer " + p.token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		permitted := p.token == "" || subtle.ConstantTimeCompare(got[:], want[:]) == 1
		c := r.Context().Value(adminConnKey{}).(*adminConn)
		serve := func() { h.ServeHTTP(w, r) }
		switch {
		case r.URL.Path == "/healthz" || r.URL.Path == "/readyz":
			c.probe(serve)
		case !permitted:
			serve()
		case !c.begin():
			http.Error(w, "too many requests are in progress", http.StatusServiceUnavailable)
		default:
			defer c.end()
			serve()
		}
	})
}
