package main

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockkeeper/lockkeeper/internal/testkit"
)

var adminLine = regexp.MustCompile(`(?m)^lockkeeper: admin on (https?://\S+:[1-9]\d*)$`)

// admin returns the URL of the HTTP port for operators.
func (p *process) admin() string {
	p.t.Helper()
	m := adminLine.FindStringSubmatch(strings.Join(p.lines(), "\n"))
	if m == nil {
		p.t.Fatalf("no HTTP port: %q", p.lines())
	}
	return m[1]
}

// fetch sends a GET.
func fetch(t *testing.T, c *http.Client, url, token string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	check1(t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	reply, err := c.Do(r)
	check1(t, err)
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	check1(t, err)
	return reply.StatusCode, string(text)
}

// client returns an HTTP client whose connections end with the test.
func httpClient(t *testing.T, config *tls.Config) *http.Client {
	transport := &http.Transport{TLSClientConfig: config}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// TestServeAdmin starts servers with an HTTP port for operators and fetches from it.
func TestServeAdmin(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), testkit.NewCA(t)
	cert, key := testkit.WritePair(t, ca.Server(t), dir, "cert.pem", "key.pem")
	token := filepath.Join(dir, "token")
	check1(t, os.WriteFile(token, []byte("s3cret\n"), 0o600))
	memory := []string{"serve", "--memory", "--listen", "127.0.0.1:0"}
	begin := func(more ...string) *process { return start(t, nil, append(memory, more...)...).waitReady() }

	p, web := begin("--admin", "0", "--admin-pprof"), httpClient(t, nil)
	if !strings.HasPrefix(p.admin(), "http://127.0.0.1:") {
		t.Errorf("a port without a host is on %s", p.admin())
	}
	for path, says := range map[string]string{
		"/metrics": "lockkeeper_serving 1", "/healthz": "ok", "/readyz": "ok", "/commands": "zabstate", "/commands/ruok": `"error" : null`,
		"/commands/icfg": `"initial_configuration" : ""`, "/debug/pprof/": "goroutine", "/debug/pprof/goroutine?debug=1": "adminPort",
	} {
		if status, body := fetch(t, web, p.admin()+path, ""); status != http.StatusOK || !strings.Contains(body, says) {
			t.Errorf("%s: %d %.200s", path, status, body)
		}
	}
	// A client that never sends the body of its request is answered, and disconnected.
	slow, err := net.Dial("tcp", strings.TrimPrefix(p.admin(), "http://"))
	check1(t, err)
	defer slow.Close()
	check1(t, slow.SetDeadline(time.Now().Add(time.Minute)))
	io.WriteString(slow, "GET /readyz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
	if text, err := io.ReadAll(slow); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 200 ") {
		t.Errorf("the answer to a request without its body: %q, %v", text, err)
	}
	check1(t, p.Process.Signal(syscall.SIGTERM))
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}

	p = begin("--admin", "127.0.0.1:0", "--admin-token-file", token, "--admin-tls-cert", cert, "--admin-tls-key", key)
	web = httpClient(t, &tls.Config{RootCAs: ca.Pool})
	for _, x := range []struct {
		path, token string
		want        int
	}{
		{"/metrics", "s3cret", 200}, {"/metrics", "", 401}, {"/metrics", "other", 401}, {"/readyz", "", 200},
		{"/debug/pprof/", "s3cret", 404}, {"/", "", 200}, {"/console/znode", "s3cret", 200}, {"/console/znode", "", 401}, {"/nothing", "s3cret", 404},
	} {
		if status, body := fetch(t, web, p.admin()+x.path, x.token); status != x.want {
			t.Errorf("%s with %q: %d %.200s", x.path, x.token, status, body)
		}
	}

	// With a file of ZooKeeper, a port that is in use is no reason not to serve clients.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	check1(t, err)
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	file := zooCfg(t, "admin.serverPort="+port)
	p = begin("--config", file)
	if log := strings.Join(p.lines(), "\n"); !strings.Contains(log, "level=WARN") || !strings.Contains(log, "admin.serverPort") || adminLine.MatchString(log) {
		t.Errorf("%s", log)
	}
	if code, _, stderr := call(nil, append(memory, "--admin", port)...); code != exitFault || !strings.Contains(stderr, "HTTP port for operators: ") || !strings.Contains(stderr, "address already in use") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	p = begin("--config", zooCfg(t, "admin.serverPort=0", "ssl.keyStore.password="))
	if _, body := fetch(t, httpClient(t, nil), p.admin()+"/commands/icfg", ""); !strings.Contains(body, `"admin.serverPort=0\nssl.keyStore.password=***\n"`) {
		t.Errorf("%s", body)
	}
}

// TestAdminWrite ends a session and refuses to break a lock over HTTP, with the flag and
// without it, also with TLS, where HTTP/2 has a deadline for each body of its own.
func TestAdminWrite(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), testkit.NewCA(t)
	cert, key := testkit.WritePair(t, ca.Server(t), dir, "cert.pem", "key.pem")
	token := filepath.Join(dir, "token")
	check1(t, os.WriteFile(token, []byte("s3cret\n"), 0o600))
	post := func(c *http.Client, url, body string) (status int, answer, version string) {
		t.Helper()
		r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
		check1(t, err)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer s3cret")
		r.Header.Set("Expect", "100-continue") // so that the body comes late
		reply, err := c.Do(r)
		check1(t, err)
		defer reply.Body.Close()
		text, err := io.ReadAll(reply.Body)
		check1(t, err)
		return reply.StatusCode, string(text), reply.Proto
	}
	for _, x := range []struct {
		args   []string
		config *tls.Config
		proto  string
		end    int // status
	}{
		{nil, nil, "HTTP/1.1", 403},
		{[]string{"--admin-write"}, nil, "HTTP/1.1", 204},
		{[]string{"--admin-write", "--admin-token-file", token, "--admin-tls-cert", cert, "--admin-tls-key", key}, &tls.Config{RootCAs: ca.Pool}, "HTTP/2.0", 204},
	} {
		p := start(t, nil, append([]string{"serve", "--memory", "--listen", "127.0.0.1:0", "--admin", "0"}, x.args...)...).waitReady()
		web := httpClient(t, x.config)
		transport := web.Transport.(*http.Transport)
		transport.ForceAttemptHTTP2, transport.ExpectContinueTimeout = true, time.Minute
		c := p.connect()
		status, answer, version := post(web, p.admin()+fmt.Sprintf("/console/sessions/0x%x/end", uint64(c.Session.SessionID)), "{}")
		if status != x.end || version != x.proto || (status == 403) != strings.Contains(answer, "--admin-write") {
			t.Errorf("%v: %s %d %s", x.args, version, status, answer)
		}
		if _, err := c.Exists("/", false); (err == nil) != (x.end == 403) {
			t.Errorf("%v: the session: %v", x.args, err)
		}
		if x.end == 204 {
			waitFor(t, "a line in the log", func() bool {
				return strings.Contains(strings.Join(p.lines(), "\n"), "an operator has ended a session")
			})
		}
		if status, answer, _ := post(web, p.admin()+"/console/locks/break", `{"path":"/l/lock-0000000001","token":"1"}`); x.end == 204 && status != 404 || x.end == 403 && status != 403 {
			t.Errorf("%v: break: %d %s", x.args, status, answer)
		}
	}
}

// TestAdminConnections: however many connections strangers open to the HTTP port, and however
// slowly they send their requests, probes and those who have the token are answered. Requests
// that are permitted are limited, without keeping a probe from its answer, and their connections
// are not closed in favour of strangers.
func TestAdminConnections(t *testing.T) {
	for _, token := range []string{"s3cret", ""} {
		t.Run("token="+token, func(t *testing.T) {
			t.Parallel()
			p := &adminPort{token: token, log: slog.New(slog.DiscardHandler)}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			check1(t, err)
			conns := newAdminConns()
			p.listener = adminListener{l, conns}
			entered, release := make(chan bool, maxAdmin), make(chan struct{})
			p.start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					entered <- true
					<-release
				}
			}))
			defer p.close()
			open := func(send string) net.Conn {
				t.Helper()
				c, err := net.DialTimeout("tcp", l.Addr().String(), time.Minute)
				check1(t, err)
				t.Cleanup(func() { c.Close() })
				check1(t, c.SetDeadline(time.Now().Add(time.Minute)))
				_, err = io.WriteString(c, send)
				check1(t, err)
				return c
			}
			get := func(path string, want int) {
				t.Helper()
				if status, _ := fetch(t, httpClient(t, nil), "http://"+l.Addr().String()+path, token); status != want {
					t.Errorf("%s: %d", path, status)
				}
			}
			strangers := func() (all []net.Conn) {
				for i := range 2 * conns.most {
					all = append(all, open([]string{"", "GET /slow HTTP/1.1\r\nHost: local", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"}[i%3]))
				}
				return all
			}
			slow := "GET /slow HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token + "\r\n\r\n"

			first := open(slow)
			<-entered
			all := strangers()
			get("/healthz", http.StatusOK)
			get("/other", http.StatusOK)
			for _, c := range all[:conns.most] {
				if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatal("a stranger's connection is still open although there were enough later ones")
				}
			}
			for range conns.most - 1 {
				open(slow)
				<-entered
			}
			get("/other", http.StatusServiceUnavailable)
			get("/healthz", http.StatusOK)
			strangers()
			get("/readyz", http.StatusOK)
			close(release)
			if reply, err := http.ReadResponse(bufio.NewReader(first), nil); err != nil || reply.StatusCode != http.StatusOK {
				t.Errorf("the first request: %v, %v", reply, err)
			}
			waitFor(t, "room for a request", func() bool {
				conns.mu.Lock()
				defer conns.mu.Unlock()
				return conns.requests == 0
			})
			get("/other", http.StatusOK)
		})
	}
}

// TestAdminProbes: a server answers a probe on its HTTP port, also with TLS, while strangers
// hold more connections to it than it keeps.
func TestAdminProbes(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), testkit.NewCA(t)
	cert, key := testkit.WritePair(t, ca.Server(t), dir, "cert.pem", "key.pem")
	for _, x := range []struct {
		args   []string
		config *tls.Config
	}{{}, {[]string{"--admin-tls-cert", cert, "--admin-tls-key", key}, &tls.Config{RootCAs: ca.Pool}}} {
		p := start(t, nil, append([]string{"serve", "--memory", "--listen", "127.0.0.1:0", "--admin", "0"}, x.args...)...).waitReady()
		url := p.admin()
		_, addr, _ := strings.Cut(url, "://")
		for range 300 {
			var c net.Conn
			var err error
			if dialer := (&net.Dialer{Timeout: time.Minute}); x.config == nil {
				c, err = dialer.Dial("tcp", addr)
			} else {
				c, err = tls.DialWithDialer(dialer, "tcp", addr, x.config)
			}
			check1(t, err)
			defer c.Close()
			io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") // after that it may be idle for two minutes
		}
		if status, _ := fetch(t, httpClient(t, x.config), url+"/healthz", ""); status != http.StatusOK {
			t.Errorf("status %d", status)
		}
	}
}

// TestAdminUsage checks which addresses need a decision about who may use them.
func TestAdminUsage(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "token")
	check1(t, os.WriteFile(empty, []byte("\n"), 0o600))
	for args, says := range map[string][]string{
		"--admin 0.0.0.0:0":           {"--admin: 0.0.0.0:0 may be reached from other machines", "--admin-token-file", "--admin-no-token"},
		"--admin [::]:0":              {"--admin: [::]:0 may be reached"},
		"--admin 192.0.2.1:0":         {"may be reached"},
		"--admin example.org:0":       {"may be reached"},
		"--admin x":                   {"--admin: ", `"x" is not a port`},
		"--admin :":                   {"--admin: ", "is not a port"},
		"--admin 1:2:3":               {"--admin: ", "too many colons"},
		"--admin 0 --admin-tls-key x": {"--admin-tls-cert: --admin-tls-key needs it"},
		"--admin 0 --admin-no-token --admin-token-file":          {"--admin-token-file"},
		"--admin 0 --admin-token-file " + empty:                  {"--admin-token-file: ", "has no token"},
		"--admin 0 --admin-tls-cert nowhere":                     {"--admin-tls-cert: ", "nowhere"},
		"--admin 0 --admin-token-file nowhere":                   {"--admin-token-file: ", "nowhere"},
		"--admin-write":                                          {"--admin-write: only together with --admin"},
		"--admin 0 --admin-write --admin-no-token":               {"--admin-write: not together with --admin-no-token", "--admin-token-file"},
		"--admin 0.0.0.0:0 --admin-write --admin-no-token":       {"--admin-write: not together with --admin-no-token"},
		"--admin 0.0.0.0:0 --admin-write":                        {"--admin: 0.0.0.0:0 may be reached"},
		"--admin-pprof":                                          {"--admin-pprof: only together with --admin"},
		"--admin-token-file x":                                   {"--admin-token-file: only together with --admin"},
		"--admin 0 --test-control :0":                            {"--test-control: not together with --admin"},
		"--admin 0 --admin-no-token --admin-token-file " + empty: {"--admin-no-token: not together with --admin-token-file"},
	} {
		code, _, stderr := call(nil, strings.Fields("serve --memory --listen 127.0.0.1:0 "+args)...)
		if code != exitUsage {
			t.Errorf("%s: exit code %d", args, code)
		}
		oneError(t, stderr, says...)
	}
	for text, want := range map[string]string{
		"8080": "127.0.0.1:8080 true", ":8080": "127.0.0.1:8080 true", "localhost:1": "localhost:1 true", "[::1]:1": "[::1]:1 true", "127.9.9.9:1": "127.9.9.9:1 true",
		"0.0.0.0:1": "0.0.0.0:1 false", "[::]:1": "[::]:1 false", "10.0.0.1:1": "10.0.0.1:1 false", "localhost.example:1": "localhost.example:1 false",
	} {
		addr, local, err := adminAddr(text)
		if got := addr + map[bool]string{true: " true", false: " false"}[local]; got != want || err != nil {
			t.Errorf("%s: %s, %v, not %s", text, got, err, want)
		}
	}
}

// TestZooCfgAdmin checks the address that the keys of ZooKeeper's AdminServer give.
func TestZooCfgAdmin(t *testing.T) {
	for _, x := range []struct {
		lines, args []string
		want        string
	}{
		{nil, nil, ""},
		{[]string{"admin.enableServer=true"}, nil, "127.0.0.1:8080"},
		{[]string{"admin.enableServer=false"}, nil, ""},
		{[]string{"admin.serverPort=9"}, nil, "127.0.0.1:9"},
		{[]string{"zookeeper.admin.serverPort=9", "admin.enableServer=TRUE"}, nil, "127.0.0.1:9"},
		{[]string{"admin.serverPort=9", "admin.enableServer=false"}, nil, ""},
		{[]string{"admin.serverPort=9", "admin.serverAddress=0.0.0.0"}, nil, "0.0.0.0:9"},
		{[]string{"admin.serverAddress=0.0.0.0"}, nil, ""},
		{[]string{"admin.serverPort=9", "admin.commandURL=/commands", "admin.idleTimeout=5"}, []string{"--admin", "7"}, "7"},
	} {
		var o serveOptions
		var c cobra.Command
		o.define(&c)
		check1(t, c.ParseFlags(x.args))
		check1(t, readZooCfg(zooCfg(t, x.lines...), c.Flags(), &o.config))
		if o.admin.addr != x.want {
			t.Errorf("%q: %q, not %q", x.lines, o.admin.addr, x.want)
		}
	}
	code, _, stderr := call(nil, "serve", "--memory", "--config", zooCfg(t, "admin.enableServer=true", "admin.serverAddress=0.0.0.0"))
	if code != exitUsage || !strings.Contains(stderr, "admin.enableServer") || !strings.Contains(stderr, "0.0.0.0:8080 may be reached") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	for _, line := range []string{"admin.forceHttps=true", "admin.commandURL=/x", "admin.serverPort=x"} {
		if code, _, stderr := call(nil, "serve", "--memory", "--config", zooCfg(t, line)); code != exitUsage || !strings.Contains(stderr, line) {
			t.Errorf("%s: exit code %d: %s", line, code, stderr)
		}
	}
}
