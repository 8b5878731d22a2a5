package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/tools/tlsfiles"
)

// adminFlags are the flags for the HTTP port for operators.
type adminFlags struct {
	addr, tokenFile string
	metrics         string
	noToken, pprof  bool
	write           []string
	cert, key       string
}

func (a *adminFlags) define(f *pflag.FlagSet) {
	f.StringVar(&a.addr, "admin", "", "HTTP `ADDRESS` for operators: a console for browsers, metrics, ZooKeeper's commands and probes (docs/admin.md). By default there is none. A port without a host is on 127.0.0.1; port 0 picks a free one. An address that other machines can reach needs --admin-token-file or --admin-no-token")
	f.StringVar(&a.tokenFile, "admin-token-file", "", "`FILE` with a token, which requests must have: Authorization: Bearer TOKEN. The probes do not need it")
	f.BoolVar(&a.noToken, "admin-no-token", false, "let everyone who can connect to --admin use it, also from other machines")
	f.StringSliceVar(&a.write, "admin-write", nil, "let those who may use --admin do all of these, or those in a comma-separated `LIST`: end sessions and connections (sessions), break locks (locks), and set, create and delete znodes as far as their ACLs let everybody (znodes), from the console or by HTTP, and save snapshots, which have all data and the passwords of sessions (snapshots). Without --admin-token-file these are all users of this machine. Not together with --admin-no-token")
	f.Lookup("admin-write").NoOptDefVal = "all"
	f.StringVar(&a.cert, "admin-tls-cert", "", "PEM `FILE` with the certificate of --admin, which then uses TLS")
	f.StringVar(&a.key, "admin-tls-key", "", "PEM `FILE` with its key; by default that of --admin-tls-cert")
	f.StringVar(&a.metrics, "metrics-listen", "", "HTTP `ADDRESS` at which everyone who can connect gets /metrics, as with ZooKeeper's PrometheusMetricsProvider, and the probes /healthz and /readyz, and nothing else. A port without a host is on 127.0.0.1; port 0 picks a free one")
	f.BoolVar(&a.pprof, "admin-pprof", false, "serve profiles of this process at /debug/pprof")
}

// adminPort is the HTTP port for operators. A nil one is not served.
type adminPort struct {
	listener net.Listener
	https    bool
	token    string
	metrics  bool // only /metrics and the probes are served
	pprof    bool
	options  admin.Options
	log      *slog.Logger
	handler  *admin.Handler // that of serve
	web      *http.Server
	ended    chan struct{} // closed when web has stopped; nil before serve
}

// open checks the flags and opens the port. zooCfg is the name of the configuration file, or
// empty. reloads gets the files of the port, and says what the metrics show of all. Without an
// address it returns nil.
func (a *adminFlags) open(ctx context.Context, flags *pflag.FlagSet, log *slog.Logger, zooCfg string, reloads *reloads) (*adminPort, error) {
	if a.addr == "" {
		for _, name := range []string{"admin-token-file", "admin-no-token", "admin-write", "admin-tls-cert", "admin-tls-key", "admin-pprof"} {
			if by, _ := sourceOf(flags.Lookup(name)); by != byDefault {
				return nil, badFlag(flags, name, "only together with --admin")
			}
		}
		return nil, nil
	}
	addr, local, err := adminAddr(a.addr)
	switch {
	case err != nil:
		return nil, badFlag(flags, "admin", "%w", err)
	case a.tokenFile != "" && a.noToken:
		return nil, badFlag(flags, "admin-no-token", "not together with --admin-token-file")
	case len(a.write) > 0 && a.noToken:
		return nil, badFlag(flags, "admin-write", "not together with --admin-no-token, because everybody could end sessions, break locks, change znodes and get all data; use --admin-token-file")
	case !local && a.tokenFile == "" && !a.noToken:
		return nil, badFlag(flags, "admin", "%s may be reached from other machines, and shows paths of znodes, addresses of clients and ids of sessions: "+
			"say who may see that with --admin-token-file, or that everybody may with --admin-no-token", addr)
	case a.cert == "" && a.key != "":
		return nil, badFlag(flags, "admin-tls-cert", "--admin-tls-key needs it")
	}
	p := &adminPort{pprof: a.pprof, options: admin.Options{Log: log, Files: reloads.state, Audit: reloads.auditCounts}, https: a.cert != "", log: log}
	rights := map[string]*bool{"sessions": &p.options.EndSessions, "locks": &p.options.BreakLocks, "znodes": &p.options.EditZnodes, "snapshots": &p.options.Snapshots}
	for _, name := range a.write {
		switch {
		case name == "all":
			for _, right := range rights {
				*right = true
			}
		case rights[name] == nil:
			return nil, badFlag(flags, "admin-write", "%q is none of sessions, locks, znodes, snapshots and all", name)
		default:
			*rights[name] = true
		}
	}
	if p.token, err = readToken(flags, a.tokenFile); err != nil {
		return nil, err
	}
	if zooCfg != "" {
		text, err := os.ReadFile(zooCfg)
		if err != nil {
			return nil, err
		}
		p.options.ZooCfg = string(text)
	}
	var secure *tls.Config
	if p.https {
		files := tlsfiles.Files{Use: "admin", Cert: a.cert, Key: a.key}
		keeper, err := openTLS(flags, "admin-tls-", files, tlsfiles.Settings{NextProtos: []string{"h2", "http/1.1"}}, log)
		if err != nil {
			return nil, err
		}
		secure = keeper.Server()
		reloads.tls = append(reloads.tls, keeper)
	} else if !local && p.token != "" {
		log.Warn("the token of --admin-token-file travels unencrypted; --admin-tls-cert encrypts it", "address", addr)
	}
	p.listener, err = listen(ctx, log, addr)
	if by, key := sourceOf(flags.Lookup("admin")); err != nil && by == byFile && ctx.Err() == nil {
		// As in ZooKeeper: several servers on one machine often have the same file.
		log.Warn("cannot open the HTTP port for operators, so there is none", "key", key, "error", err)
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("HTTP port for operators: %w", err)
	}
	p.listener = newAdminConns(p.listener)
	if secure != nil {
		p.listener = tls.NewListener(p.listener, secure)
	}
	return p, nil
}

// openMetrics opens the port of --metrics-listen. Without an address it returns nil.
func (a *adminFlags) openMetrics(ctx context.Context, flags *pflag.FlagSet, log *slog.Logger, reloads *reloads) (*adminPort, error) {
	if a.metrics == "" {
		return nil, nil
	}
	addr, _, err := adminAddr(a.metrics)
	if err != nil {
		return nil, badFlag(flags, "metrics-listen", "%w", err)
	}
	listener, err := listen(ctx, log, addr)
	if err != nil {
		return nil, fmt.Errorf("HTTP port for metrics: %w", err)
	}
	return &adminPort{listener: newAdminConns(listener), metrics: true, options: admin.Options{Files: reloads.state, Audit: reloads.auditCounts}, log: log}, nil
}

// adminAddr returns the address to listen on, and whether only this machine can reach it. A
// port without a host is on 127.0.0.1.
func adminAddr(text string) (addr string, local bool, err error) {
	if !strings.Contains(text, ":") {
		text = ":" + text
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return "", false, err
	}
	if _, err := net.LookupPort("tcp", port); err != nil || port == "" {
		return "", false, fmt.Errorf("%q is not a port", port)
	}
	if err := checkHost(host); err != nil {
		return "", false, err
	}
	host = cmp.Or(host, "127.0.0.1")
	ip := net.ParseIP(host)
	return net.JoinHostPort(host, port), host == "localhost" || ip != nil && ip.IsLoopback(), nil
}

// readToken reads the token from the file of --admin-token-file, without the space around it. Without a file it is empty.
func readToken(flags *pflag.FlagSet, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	token := strings.TrimSpace(string(text))
	if err == nil && (token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })) {
		err = fmt.Errorf("%s has no token: one line of printable characters", file)
	}
	if err != nil {
		return "", badFlag(flags, "admin-token-file", "%w", err)
	}
	return token, nil
}

// serve begins to answer requests about s. It may be called once.
func (p *adminPort) serve(s *lockkeeper.Server, stderr io.Writer) {
	if p == nil {
		return
	}
	mux := http.NewServeMux()
	p.handler = admin.New(s, p.options)
	if p.metrics {
		for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
			mux.Handle(path, p.handler)
		}
		p.start(mux)
		fmt.Fprintf(stderr, "lockkeeper: metrics on http://%s/metrics\n", p.listener.Addr())
		return
	}
	mux.Handle("/", p.handler)
	if p.pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	p.start(mux)
	scheme := "http"
	if p.https {
		scheme = "https"
	}
	fmt.Fprintf(stderr, "lockkeeper: admin on %s://%s\n", scheme, p.listener.Addr())
}

// start begins to answer requests with h, until close.
func (p *adminPort) start(h http.Handler) {
	p.web = &http.Server{
		Handler:           p.limitBodies(admin.Protect(p.limitRequests(h), p.token)),
		ConnContext:       withAdminConn,
		ReadHeaderTimeout: 10 * time.Second,
		// A profile gets its own time on top of this. A ReadTimeout would cut it short.
		WriteTimeout:   time.Minute,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 1 << 16,
		ErrorLog:       slog.NewLogLogger(p.log.Handler(), slog.LevelWarn),
	}
	p.ended = make(chan struct{})
	go func() { // until close
		defer close(p.ended)
		if err := p.web.Serve(p.listener); !errors.Is(err, http.ErrServerClosed) {
			p.log.Error("the HTTP port for operators has failed", "error", err)
		}
	}()
}

// bodyTimeout is how long the body of a request may take.
const bodyTimeout = 10 * time.Second

// limitBodies returns a handler that does not wait long for the body of a request, which a
// client could send slowly. Only the actions that --admin-write permits need one; the
// bodies of other requests are not waited for at all.
func (p *adminPort) limitBodies(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			until := time.Now()
			if (p.options.EndSessions || p.options.BreakLocks || p.options.EditZnodes) && r.Method == http.MethodPost {
				until = until.Add(bodyTimeout)
			}
			http.NewResponseController(w).SetReadDeadline(until) // an error means that the client is gone
		}
		h.ServeHTTP(w, r)
	})
}

// close closes the port and its connections, waits until no more are accepted, and closes the
// handler. It does not wait for requests in progress, which end with their connections.
func (p *adminPort) close() {
	switch {
	case p == nil:
	case p.ended == nil:
		p.listener.Close()
	default:
		p.web.Close()
		<-p.ended
		if p.handler != nil {
			p.handler.Close()
		}
	}
}
