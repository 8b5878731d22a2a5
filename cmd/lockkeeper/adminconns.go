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

	"github.com/lockkeeper/lockkeeper/internal/fdlimit"
)

// maxAdmin limits the connections of the HTTP port for operators on which no permitted request
// is in progress, and also the permitted requests in progress. Where the process may have few
// file descriptors, the limit is a sixteenth of their number.
const maxAdmin = 128

// adminConns are the connections of the HTTP port. A new one is always accepted, because it
// may be that of a probe: if there are too many, the one that has been without a permitted
// request for the longest time is closed. Probes, and the files of the console if there is a
// token, are open to everybody, so they do not count as permitted requests.
type adminConns struct {
	most int // of each; see maxAdmin

	mu       sync.Mutex
	waiting  []*adminConn // those without a permitted request, for the longest time first
	requests int          // permitted ones in progress, on all connections
}

func newAdminConns() *adminConns {
	return &adminConns{most: max(1, fdlimit.Sixteenth(maxAdmin))}
}

// adminListener accepts the connections of the HTTP port.
type adminListener struct {
	net.Listener
	conns *adminConns
}

func (l adminListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err // http.Server tries again later if too many files are open
	}
	c := &adminConn{Conn: nc, all: l.conns}
	l.conns.mu.Lock()
	defer l.conns.mu.Unlock()
	l.conns.await(c)
	return c, nil
}

// await adds a connection on which there is no permitted request. The caller holds the lock.
func (all *adminConns) await(c *adminConn) {
	all.waiting = append(all.waiting, c)
	if len(all.waiting) > all.most {
		all.waiting[0].Conn.Close() // not the adminConn: that is closed by http.Server, which notices
		all.waiting = slices.Delete(all.waiting, 0, 1)
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
	all      *adminConns
	requests int  // permitted ones in progress
	closed   bool // by http.Server
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

// end ends a permitted request.
func (c *adminConn) end() {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.all.requests--
	if c.requests--; c.requests == 0 && !c.closed {
		c.all.await(c)
	}
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
		if r.URL.Path != "/healthz" && r.URL.Path != "/readyz" && permitted {
			c := r.Context().Value(adminConnKey{}).(*adminConn)
			if !c.begin() {
				http.Error(w, "too many requests are in progress", http.StatusServiceUnavailable)
				return
			}
			defer c.end()
		}
		h.ServeHTTP(w, r)
	})
}
