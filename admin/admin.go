// Package admin serves an HTTP port for operators beside the client port: a console for
// browsers, the commands of ZooKeeper's AdminServer, metrics for Prometheus, and probes for
// Kubernetes. It uses only the public API of package lockkeeper, so a program that embeds a
// server can mount the handler wherever it likes.
//
// This package promises compatibility, as package lockkeeper explains.
package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"

	"github.com/lockkeeper/lockkeeper"
)

// Options are the options of [New].
type Options struct {
	// ZooCfg is the text of the configuration file that the server was started with,
	// for the command initial_configuration. Values that are secret are masked.
	ZooCfg string
	// Write permits the two actions of the console that take locks away: ending any session
	// of the cluster, which needs no permission in any ACL, and breaking a lock, which
	// deletes the znode of a holder or of one who waits, if the ACL of its parent lets
	// everybody delete. It also permits to get a snapshot, which has all data whatever the
	// ACLs say, and the passwords of sessions (Server.WriteSnapshot). Whoever may send
	// requests to the handler may do this.
	Write bool
	// Log receives a warning each time, with the address that asked for it.
	// If it is nil, nothing is logged.
	Log *slog.Logger
}

// New returns a handler for a server:
//
//	/                 the console, a page that shows locks, sessions, znodes and members
//	/commands         the names of ZooKeeper's commands, as links
//	/commands/NAME    the answer to one of them, in ZooKeeper's JSON
//	/metrics          metrics in the text format of Prometheus
//	/healthz          200 unless the server has failed or was closed
//	/readyz           200 while the server serves clients that read and write
//	/snapshot         the state of the server, for lockkeeper.Restore, if Options.Write permits
//
// The handler is safe for concurrent use, and answers even after the server was closed. It
// lets everybody in; [Guard] does not. Some commands reset statistics, as ZooKeeper's do.
// Nothing changes data or ends a session, unless Options.Write permits it.
func New(s *lockkeeper.Server, o Options) http.Handler {
	a := &admin{server: s, words: newWords(s), zooCfg: masked(o.ZooCfg), write: o.Write, log: o.Log}
	a.locks = newLockMeter(s, a.words)
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /commands", a.index)
	mux.HandleFunc("GET /commands/{$}", a.index)
	mux.HandleFunc("GET /commands/{name...}", a.command)
	mux.Handle("GET /metrics", a.metrics())
	mux.HandleFunc("GET /healthz", a.healthz)
	mux.HandleFunc("GET /readyz", a.readyz)
	a.console(mux)
	a.actions(mux)
	return mux
}

// admin is the state of a handler.
type admin struct {
	server *lockkeeper.Server
	words  *words
	locks  *lockMeter
	zooCfg string
	write  bool
	log    *slog.Logger

	snapshots sync.Mutex // held while a snapshot is sent
}

// healthz answers Kubernetes' liveness probe. A server without a majority is alive:
// restarting it would not help, and could hurt the others.
func (a *admin) healthz(w http.ResponseWriter, _ *http.Request) {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	if err := a.server.Wait(now); err != nil && !errors.Is(err, context.Canceled) {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// readyz answers Kubernetes' readiness probe.
func (a *admin) readyz(w http.ResponseWriter, _ *http.Request) {
	switch st := a.server.Status(); {
	case st.Serving:
		fmt.Fprintln(w, "ok")
	case st.ReadOnly:
		http.Error(w, "read-only: this server has no contact with a majority", http.StatusServiceUnavailable)
	default:
		http.Error(w, fmt.Sprintf("not serving clients: this server is %s", st.Role), http.StatusServiceUnavailable)
	}
}

// Guard returns a handler that passes on to h only the requests that may see it.
//
// With a token, a request must have the header "Authorization: Bearer TOKEN", except for
// /healthz and /readyz, which show nothing that a probe does not need, and for the files of
// the console, which show nothing of the server. The token must not be empty if everybody
// can reach the port.
//
// Without a token, whoever can connect may see everything. Guard then refuses what a web
// page in a browser on this machine could send without its user's knowledge: requests that
// the browser marks as coming from another site (a link to the console works), and, on a
// loopback address, requests to a host name that is not localhost, which a page could have
// pointed at that address (DNS rebinding). A request of HTTP/1.0 without a host name does not
// come from a browser.
func Guard(h http.Handler, token string) http.Handler {
	want := sha256.Sum256([]byte("Bearer " + token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		probe := r.URL.Path == "/healthz" || r.URL.Path == "/readyz"
		_, page := consolePages[r.URL.Path]
		switch got := sha256.Sum256([]byte(r.Header.Get("Authorization"))); {
		case probe, page && token != "":
		case token != "" && subtle.ConstantTimeCompare(got[:], want[:]) != 1:
			w.Header().Set("WWW-Authenticate", `Bearer realm="lockkeeper"`)
			http.Error(w, "this port needs a token: Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		case token == "" && !page && fromOtherSite(r):
			http.Error(w, "a browser sent this request for another site", http.StatusForbidden)
			return
		case token == "" && rebound(r):
			http.Error(w, fmt.Sprintf("the host name %q does not stand for this machine; use 127.0.0.1 or localhost", r.Host), http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

var crossOrigin = http.NewCrossOriginProtection()

// fromOtherSite reports whether a browser says, by the headers Sec-Fetch-Site and Origin, that
// the page of another site made r. What does not come from a browser has neither.
func fromOtherSite(r *http.Request) bool {
	post := r.WithContext(r.Context())
	post.Method = http.MethodPost // Check accepts every GET
	return crossOrigin.Check(post) != nil
}

// rebound reports whether r came to a loopback address under a name that can be anybody's.
func rebound(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok || !local.IP.IsLoopback() || r.Host == "" {
		return false
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if _, err := netip.ParseAddr(host); err == nil {
		return false
	}
	return !strings.EqualFold(host, "localhost") && !strings.HasSuffix(strings.ToLower(host), ".localhost")
}
