package main

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
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
	p.stop()

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
	p = begin("--config", zooCfg(t, "dataDir=/x", "admin.serverPort=0", "ssl.keyStore.password="))
	if _, body := fetch(t, httpClient(t, nil), p.admin()+"/commands/icfg", ""); !strings.Contains(body, `"dataDir=/x\nadmin.serverPort=0\nssl.keyStore.password=***\n"`) {
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

		end, breaks, creates, snapshot int // status
	}{
		{nil, nil, "HTTP/1.1", 403, 403, 403, 403},
		{[]string{"--admin-write=snapshots"}, nil, "HTTP/1.1", 403, 403, 403, 200},
		{[]string{"--admin-write=locks"}, nil, "HTTP/1.1", 403, 404, 403, 403},
		{[]string{"--admin-write=sessions"}, nil, "HTTP/1.1", 204, 403, 403, 403},
		{[]string{"--admin-write=znodes"}, nil, "HTTP/1.1", 403, 403, 201, 403},
		{[]string{"--admin-write", "--admin-token-file", token, "--admin-tls-cert", cert, "--admin-tls-key", key}, &tls.Config{RootCAs: ca.Pool}, "HTTP/2.0", 204, 404, 201, 200},
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
		if status, answer, _ := post(web, p.admin()+"/console/locks/break", `{"path":"/l/lock-0000000001","token":"1"}`); status != x.breaks {
			t.Errorf("%v: break: %d %s", x.args, status, answer)
		}
		if status, answer, _ := post(web, p.admin()+"/console/znodes/create", `{"path":"/z","text":"x"}`); status != x.creates {
			t.Errorf("%v: create: %d %s", x.args, status, answer)
		}
		r, err := http.NewRequest(http.MethodGet, p.admin()+"/snapshot", nil)
		check1(t, err)
		r.Header.Set("Authorization", "Bearer s3cret")
		reply, err := web.Do(r)
		check1(t, err)
		if reply.Body.Close(); reply.StatusCode != x.snapshot {
			t.Errorf("%v: snapshot: %d", x.args, reply.StatusCode)
		}
	}
}

// adminInMemory is an HTTP port for operators on a network in memory, which passes all
// requests that are permitted on to a handler. It ends with the test, as does whatever is open.
type adminInMemory struct {
	*adminPort
	t       *testing.T
	network *memnet.Network
	conns   *adminConns
}

func startAdminInMemory(t *testing.T, token string, conns *adminConns, h http.HandlerFunc) *adminInMemory {
	p := &adminInMemory{&adminPort{token: token, log: testkit.Quiet}, t, memnet.New(), conns}
	l, err := p.network.Host("server").Listen("server:1")
	check1(t, err)
	conns.Listener = l
	p.listener = conns
	p.start(h)
	t.Cleanup(p.close)
	return p
}

// open connects and sends something.
func (p *adminInMemory) open(send string) net.Conn {
	p.t.Helper()
	c, err := p.network.Host("client").Dial(p.t.Context(), "server:1")
	check1(p.t, err)
	p.t.Cleanup(func() { c.Close() })
	_, err = io.WriteString(c, send)
	check1(p.t, err)
	synctest.Wait()
	return c
}

// get sends a GET, with the token, over a new connection. It returns the status of the reply, or
// 0 if the server closes the connection.
func (p *adminInMemory) get(path string) int {
	p.t.Helper()
	return status(p.open("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer " + p.token + "\r\n\r\n"))
}

// status reads a reply. It returns 0 if there is none.
func status(c net.Conn) int {
	reply, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	reply.Body.Close()
	return reply.StatusCode
}

// closedByServer reports whether the server has closed a connection on which nothing more is to
// be read.
func closedByServer(c net.Conn) bool {
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := io.Copy(io.Discard, c)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// TestAdminConnections: however many connections strangers open to the HTTP port, and however
// slowly they send their requests, probes and those who have the token are answered. Requests
// that are permitted are limited, without keeping a probe from its answer, and their connections
// are not closed in favour of strangers.
func TestAdminConnections(t *testing.T) {
	for _, token := range []string{"s3cret", ""} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			p := startAdminInMemory(t, token, &adminConns{most: 8, kept: 8, room: 16}, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					<-release
				}
			})
			get := func(path string, want int) {
				t.Helper()
				if got := p.get(path); got != want {
					t.Errorf("token %q: %s: %d", token, path, got)
				}
			}
			strangers := func() (all []net.Conn) {
				for i := range 3 * p.conns.room {
					all = append(all, p.open([]string{"", "GET /slow HTTP/1.1\r\nHost: local", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"}[i%3]))
				}
				return all
			}
			slow := "GET /slow HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token + "\r\n\r\n"

			first := p.open(slow)
			all := strangers()
			get("/healthz", http.StatusOK)
			get("/other", http.StatusOK)
			for i, c := range all[:2*p.conns.room] {
				if !closedByServer(c) {
					t.Errorf("the connection of stranger %d is still open although there were enough later ones", i)
				}
			}
			for range p.conns.most - 1 {
				p.open(slow)
			}
			get("/other", http.StatusServiceUnavailable)
			get("/healthz", http.StatusOK)
			strangers()
			get("/readyz", http.StatusOK)
			close(release)
			synctest.Wait()
			if got := status(first); got != http.StatusOK {
				t.Errorf("the first request: %d", got)
			}
			get("/other", http.StatusOK)
			if p.conns.requests != 0 {
				t.Errorf("%d requests in progress", p.conns.requests)
			}
		})
	}
}

// TestAdminSpares: of the connections to the HTTP port, the server first closes those on which
// nothing was ever sent, and none that is younger than 100 ms while there is room, nor one on
// which a probe is being answered.
func TestAdminSpares(t *testing.T) {
	const healthz = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
	spares := func(name string, test func(t *testing.T, p *adminInMemory, release chan struct{})) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				test(t, startAdminInMemory(t, "s3cret", &adminConns{most: 4, kept: 4, room: 16}, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/readyz" {
						<-release
					}
				}), release)
			})
		})
	}
	open := func(p *adminInMemory, n int) (all []net.Conn) {
		for range n {
			all = append(all, p.open(""))
		}
		return all
	}
	closed := func(t *testing.T, all []net.Conn, want int) {
		t.Helper()
		n := 0
		for _, c := range all {
			if closedByServer(c) {
				n++
			}
		}
		if n != want {
			t.Errorf("%d of %d connections are closed, should be %d", n, len(all), want)
		}
	}

	spares("speaks", func(t *testing.T, p *adminInMemory, _ chan struct{}) {
		speaks := p.open(healthz)
		if got := status(speaks); got != http.StatusOK {
			t.Fatalf("status %d", got)
		}
		for range 5 {
			open(p, p.conns.kept-1)
			time.Sleep(adminGrace)
		}
		io.WriteString(speaks, healthz)
		if got := status(speaks); got != http.StatusOK {
			t.Errorf("its connection was closed before those of strangers who say nothing")
		}
	})
	spares("young", func(t *testing.T, p *adminInMemory, _ chan struct{}) {
		old := open(p, p.conns.kept)
		time.Sleep(adminGrace)
		young := open(p, p.conns.room-1)
		closed(t, old, len(old))
		closed(t, young, 0)
		if got := p.get("/healthz"); got != http.StatusOK {
			t.Errorf("status %d", got)
		}
		more := open(p, p.conns.room) // now there is no room for them
		closed(t, young, len(young))
		closed(t, more, 0)
		time.Sleep(adminGrace)
		p.get("/healthz")
		closed(t, more, len(more)-p.conns.kept+1)
	})
	spares("in progress", func(t *testing.T, p *adminInMemory, release chan struct{}) {
		probe := p.open("GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		for range 3 {
			open(p, 2*p.conns.room)
			time.Sleep(adminGrace)
		}
		close(release)
		if got := status(probe); got != http.StatusOK {
			t.Errorf("the connection of a probe was closed before its answer")
		}
	})
}

// TestAdminProbes: a server answers a probe on its HTTP port with TLS while strangers hold more connections to it than
// it keeps.
func TestAdminProbes(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), testkit.NewCA(t)
	cert, key := testkit.WritePair(t, ca.Server(t), dir, "cert.pem", "key.pem")
	p := start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--admin", "0", "--admin-tls-cert", cert, "--admin-tls-key", key).waitReady()
	url, config := p.admin(), &tls.Config{RootCAs: ca.Pool}
	for range keptAdmin + 10 {
		c, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", strings.TrimPrefix(url, "https://"), config)
		check1(t, err)
		defer c.Close()
		io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") // after that it may be idle for two minutes
	}
	if status, _ := fetch(t, httpClient(t, config), url+"/healthz", ""); status != http.StatusOK {
		t.Errorf("status %d", status)
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
		"--admin 0 --admin-write=locks,everything":               {`--admin-write: "everything" is none of sessions, locks, znodes, snapshots and all`},
		"--admin-pprof":                                          {"--admin-pprof: only together with --admin"},
		"--admin-token-file x":                                   {"--admin-token-file: only together with --admin"},
		"--admin 0 --test-control :0":                            {"--test-control: not together with --admin"},
		"--admin 0 --admin-no-token --admin-token-file " + empty: {"--admin-no-token: not together with --admin-token-file"},
	} {
		refuses(t, exitUsage, strings.Fields("serve --memory --listen 127.0.0.1:0 "+args), says...)
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

// TestZooCfgAdmin: what ZooKeeper's AdminServer would do and this port does not is refused.
func TestZooCfgAdmin(t *testing.T) {
	code, _, stderr := call(nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--config", zooCfg(t, "admin.enableServer=true", "admin.serverAddress=0.0.0.0"))
	if code != exitUsage || !strings.Contains(stderr, "admin.enableServer") || !strings.Contains(stderr, "0.0.0.0:8080 may be reached") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	for _, line := range []string{"admin.forceHttps=true", "admin.commandURL=/x", "admin.serverPort=70000"} {
		if code, _, stderr := call(nil, "serve", "--memory", "--config", zooCfg(t, line)); code != exitUsage || !strings.Contains(stderr, line) {
			t.Errorf("%s: exit code %d: %s", line, code, stderr)
		}
	}
}
