// Package admin serves an HTTP port for operators beside the client port: a console for
// browsers, the commands of ZooKeeper's AdminServer, metrics for Prometheus, and probes for
// Kubernetes. A program that embeds a server mounts a [Handler] wherever it likes, behind
// [Protect] or its own authentication, or adds a [Collector] to the metrics that it has.
//
// This package promises less compatibility than others, as package lockkeeper explains.
package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
)

// Options are the options of [New]. The zero value lets nobody change anything.
//
// EndSessions, BreakLocks, EditZnodes and Snapshots are granted to everybody who may send requests to
// the handler. Each is independent of the others.
type Options struct {
	// EndSessions permits ending any session of the cluster, as Server.EndSession does. That
	// takes away all locks of the session, and needs no permission in any ACL. It also permits ending the connections of an
	// identity to this server, whose sessions go on.
	EndSessions bool
	// BreakLocks permits deleting the znode of a client that holds a lock or waits for one,
	// if the ACL of its parent lets everybody delete. The client is not told.
	BreakLocks bool
	// EditZnodes permits setting the data of znodes, creating and deleting them, as far as the ACLs let a
	// client on this machine that has not authenticated; nothing in /zookeeper. A znode that is created is
	// persistent, and its ACL lets everybody do everything.
	EditZnodes bool
	// Snapshots permits getting the state of the server, as Server.WriteSnapshot writes it: with
	// all data, whatever the ACLs say, and the passwords of sessions.
	Snapshots bool
	// ZooCfg is the text of the configuration file that the server was started with,
	// for the command initial_configuration. Values that are secret are masked.
	ZooCfg string
	// Files returns what the metrics show of the files that this program reads again when they
	// change; nil shows nothing. It must be safe for concurrent use.
	Files func() []FileState
	// Audit returns what the metrics show of the audit log of this program. If it is nil, or returns
	// nil, they show nothing. It must be safe for concurrent use.
	Audit func() *AuditCounts
	// Log receives a warning each time that one of the grants is used, with the address that
	// asked for it. The answer waits until the handler returns. If it is nil, nothing is logged.
	Log *slog.Logger
}

// FileState says how it is with the files for one use, which a program reads again when they change.
type FileState struct {
	Use      string    // the label "for": TLS with clients, members or admin, or sasl
	End      time.Time // of the first certificate to end, among those that the server presents; zero without any
	CRLEnd   time.Time // of the first list of revoked certificates to end; zero without any
	Reloads  int64     // how often changed files have been put to use
	Failures int64     // how often changed files could not be used
	Refused  bool      // the files as they are now cannot be used, so others are in use
}

// AuditCounts are counts of an audit log since the program started.
type AuditCounts struct {
	Lines   int64 // written
	Dropped int64 // lost, because the disk was too slow or could not be written
}

// Handler answers the requests of operators about a server. It is safe for concurrent use.
//
// It has goroutines of its own only while a browser shows the console, and for ten minutes after a
// request for /metrics. Close ends them. The end of the server ends those for /metrics, too. While a
// browser shows the console it also asks the other members for their status and their clients.
type Handler struct {
	server  *lockkeeper.Server
	report  report.Server
	metrics *Collector
	stream  *stream
	search  *searcher
	options Options
	mux     *http.ServeMux
	closed  atomic.Bool

	snapshots sync.Mutex // held while a snapshot is sent
}

// New returns a handler for a server:
//
//	/                 the console, a page that shows locks, sessions, znodes and members
//	/commands         the names of ZooKeeper's commands, as links
//	/commands/NAME    the answer to one of them, in ZooKeeper's JSON
//	/metrics          the metrics of a [Collector], of Go and of the process, in the text format of Prometheus
//	/healthz          200 unless the server has failed or was closed
//	/readyz           200 while the server serves clients that read and write
//	/snapshot         the state of the server, for lockkeeper.Restore, if Options.Snapshots permits
//	                  (/commands/snapshot: for ZooKeeper)
//
// It lets everybody in; [Protect] does not. It shows the addresses of the clients of all members, the ids of
// sessions, and the paths of watched and of ephemeral znodes. Of znodes it shows otherwise only what their
// ACLs let a client on this machine read that has not authenticated. Some commands reset
// statistics, as ZooKeeper's do. Nothing changes data or ends a session, unless an option permits
// it. The handler answers even after the server was closed.
//
// To mount it below a path, wrap it, behind Protect, in [http.StripPrefix]; only the links on the
// page /commands lead to the root of the host.
func New(s *lockkeeper.Server, o Options) *Handler {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	h := &Handler{server: s, report: report.Of(s), metrics: NewCollector(s), options: o, mux: http.NewServeMux()}
	h.metrics.files, h.metrics.audit = o.Files, o.Audit
	h.mux.HandleFunc("GET /commands", h.index)
	h.mux.HandleFunc("GET /commands/{$}", h.index)
	h.mux.HandleFunc("GET /commands/{name...}", h.command)
	h.mux.Handle("GET /metrics", h.metrics.handler())
	h.mux.HandleFunc("GET /healthz", h.healthz)
	h.mux.HandleFunc("GET /readyz", h.readyz)
	h.console()
	h.actions()
	return h
}

// ServeHTTP answers a request. After Close the status is 503.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.closed.Load() {
		http.Error(w, "the handler was closed", http.StatusServiceUnavailable)
		return
	}
	h.mux.ServeHTTP(w, r)
}

// Close ends the goroutines of the handler, and the streams of events of the browsers that show
// the console. It does not wait for other requests in progress, nor close the server. It may
// be called more than once.
func (h *Handler) Close() {
	h.closed.Store(true)
	h.stream.close()
	h.metrics.Close()
}

// healthz answers Kubernetes' liveness probe. A server without a majority is alive:
// restarting it would not help, and could hurt the others.
func (h *Handler) healthz(w http.ResponseWriter, _ *http.Request) {
	if err := h.server.Err(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// readyz answers Kubernetes' readiness probe.
func (h *Handler) readyz(w http.ResponseWriter, _ *http.Request) {
	switch st := h.server.Status(); {
	case st.Serving:
		fmt.Fprintln(w, "ok")
	case st.ReadOnly:
		http.Error(w, "read-only: this server has no contact with a majority", http.StatusServiceUnavailable)
	default:
		http.Error(w, fmt.Sprintf("not serving clients: this server is %s", st.Role), http.StatusServiceUnavailable)
	}
}

// Protect returns a handler that passes on to h only the requests that may see it.
//
// With a token, a request must have the header "Authorization: Bearer TOKEN", except for
// /healthz and /readyz, which show nothing that a probe does not need, and for the files of
// the console, which show nothing of the server. The token must not be empty if everybody
// can reach the port.
//
// Without a token, whoever can connect may see everything. Protect then refuses what a web
// page in a browser on this machine could send without its user's knowledge: requests that
// the browser marks as coming from another site (a link to the console works), and, on a
// loopback address, requests to a host name that is not localhost, which a page could have
// pointed at that address (DNS rebinding). A request of HTTP/1.0 without a host name does not
// come from a browser.
func Protect(h http.Handler, token string) http.Handler {
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
