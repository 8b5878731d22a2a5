//go:build unix

package main

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/internal/tools/tlsfiles"
	"github.com/lockkeeper/lockkeeper/proto"
)

func (p *process) hangUp() {
	p.t.Helper()
	check1(p.t, p.Process.Signal(syscall.SIGHUP))
}

// TestHangup: SIGHUP ends no server, whatever it serves.
func TestHangup(t *testing.T) {
	for name, more := range map[string][]string{"plain": nil, "tests": {"--test-control", "127.0.0.1:0"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, nil, append([]string{"serve", "--memory", "--listen", "127.0.0.1:0"}, more...)...)
			p.waitReady()
			for range 3 {
				p.hangUp()
				check1(t, p.connect().Ping())
			}
			check1(t, p.Process.Signal(syscall.SIGTERM))
			p.hangUp()
			if code := p.exit(); code != exitOK {
				t.Errorf("exit code %d, %q", code, p.lines())
			}
		})
	}
}

// replace gives a file new contents by a rename, as most programs do that renew certificates.
func replace(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	check1(t, err)
	check1(t, os.WriteFile(to+".new", b, 0o600))
	check1(t, os.Rename(to+".new", to))
}

// TestReload renews certificate and authority of the port for clients while a client holds a
// znode, breaks them, and puts a certificate there that has ended.
func TestReload(t *testing.T) {
	t.Parallel()
	dir, next, before, after := t.TempDir(), t.TempDir(), testkit.NewCA(t), testkit.NewCA(t)
	authority, newAuthority := before.WriteCA(t, dir, "ca.pem"), after.WriteCA(t, next, "ca.pem")
	cert, _ := testkit.WritePair(t, before.Server(t), dir, "both.pem", "both.pem")
	newCert, _ := testkit.WritePair(t, after.Server(t), next, "both.pem", "both.pem")
	p := start(t, nil, "serve", "--memory", "--listen=127.0.0.1:0", "--admin", "127.0.0.1:0", "--tls-listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-ca", authority)
	addr := p.waitReady().secureAddr()
	metrics := func(name string) string {
		_, body := fetch(t, http.DefaultClient, p.admin()+"/metrics", "")
		m := regexp.MustCompile(`(?m)^lockkeeper_` + name + `\{for="clients"\} (\S+)$`).FindStringSubmatch(body)
		if m == nil {
			t.Fatalf("no metric %s: %s", name, body)
		}
		return m[1]
	}
	nc, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: before.Pool, Certificates: []tls.Certificate{before.Client(t, pkix.Name{CommonName: "ann"})}})
	check1(t, err)
	defer nc.Close()
	c, err := rawclient.Open(nc, 40*time.Second)
	check1(t, err)
	_, err = c.Create("/mine", nil, proto.FlagEphemeral)
	check1(t, err)

	replace(t, newCert, cert)
	replace(t, newAuthority, authority)
	p.hangUp()
	waitFor(t, "the new files", func() bool { return metrics("file_reloads_total") == "1" })
	bob := after.Client(t, pkix.Name{CommonName: "bob"})
	if ids, err := identities(t, addr, after, bob); err != nil || len(ids) != 2 || ids[0].ID != "CN=bob" {
		t.Errorf("with the new authority: %v, %v", ids, err)
	}
	if ids, err := identities(t, addr, after, before.Client(t, pkix.Name{CommonName: "ann"})); err == nil {
		t.Errorf("with a certificate of the former authority: %v", ids)
	}
	check1(t, os.WriteFile(cert, []byte("-----BEGIN CERT"), 0o600))
	p.hangUp()
	waitFor(t, "the failure", func() bool { return metrics("file_reload_failures_total") == "1" && metrics("files_refused") == "1" })
	p.waitSaid(cert + ": the part that begins at byte 0 is not whole")
	testkit.WritePair(t, after.Between(t, time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)), dir, "both.pem", "both.pem")
	p.hangUp()
	waitFor(t, "the next failure", func() bool { return metrics("file_reload_failures_total") == "2" && metrics("files_refused") == "1" })
	p.waitSaid(cert + ": a certificate has ended at ")
	if ids, err := identities(t, addr, after, bob); err != nil || len(ids) != 2 {
		t.Errorf("after that: %v, %v", ids, err)
	}
	if _, err := c.Exists("/mine", false); err != nil {
		t.Errorf("the connection from before: %v", err)
	}
	if left := metrics("tls_certificate_seconds"); !regexp.MustCompile(`^[0-9.]+e\+0[89]$`).MatchString(left) {
		t.Errorf("the certificate ends in %s s", left)
	}
}

// TestReloadUsers replaces the users of a JAAS file while one of them is connected, and then breaks it.
func TestReloadUsers(t *testing.T) {
	t.Parallel()
	file := jaasFile(t, rawtest.JAAS(map[string]string{"bob": "x"}))
	p := start(t, nil, "serve", "--memory", "--listen=127.0.0.1:0", "--admin", "127.0.0.1:0", "--jaas", file, "--sasl-super-user", "bob").waitReady()
	metrics := func() string {
		_, body := fetch(t, http.DefaultClient, p.admin()+"/metrics", "")
		return strings.Join(regexp.MustCompile(`(?m)^lockkeeper_\w*\{for="sasl"\} \S+$`).FindAllString(body, -1), "\n")
	}
	login := func(password string) (*rawclient.Client, error) {
		c := p.connect()
		return c, rawtest.DigestMD5{User: "bob", Password: password}.Login(c)
	}
	bob, err := login("x")
	check1(t, err)
	for _, x := range []struct{ text, metrics, says string }{
		{rawtest.JAAS(map[string]string{"bob": "SECRET"}), `lockkeeper_file_reloads_total{for="sasl"} 1`, ""},
		{"Server {\n x required user_bob=\"SECRET;\n};", `lockkeeper_files_refused{for="sasl"} 1`, file + ": line 2: "},
		{rawtest.JAAS(map[string]string{"eve": "SECRET"}), `lockkeeper_file_reload_failures_total{for="sasl"} 2`, `there is no user \"bob\"`},
	} {
		check1(t, os.WriteFile(file+".new", []byte(x.text), 0o600))
		check1(t, os.Rename(file+".new", file))
		p.hangUp()
		waitFor(t, x.metrics, func() bool { return strings.Contains(metrics(), x.metrics) })
		p.waitSaid(x.says)
		if lines := strings.Join(p.lines(), "\n"); strings.Contains(lines, "SECRET") {
			t.Errorf("the log has a password: %s", lines)
		}
		if _, err := login("x"); err != proto.AuthFailed {
			t.Errorf("with the former password: %v", err)
		}
		_, err := login("SECRET")
		check1(t, err)
		_, err = bob.Set("/zookeeper/config", nil) // only a super user may
		check1(t, err)
	}
	if all := metrics(); strings.Contains(all, "certificate") {
		t.Errorf("there is a certificate: %s", all)
	}
}

// TestReloadTestServers: the servers of --test-control read their users again, too.
func TestReloadTestServers(t *testing.T) {
	t.Parallel()
	file := jaasFile(t, rawtest.JAAS(map[string]string{"bob": "x"}))
	p := start(t, nil, "serve", "--memory", "--listen=127.0.0.1:0", "--test-control", "127.0.0.1:0", "--jaas", file).waitReady()
	login := func(password string) error {
		c := p.connect()
		defer c.Close()
		return rawtest.DigestMD5{User: "bob", Password: password}.Login(c)
	}
	check1(t, login("x"))
	check1(t, os.WriteFile(file, []byte(rawtest.JAAS(map[string]string{"bob": "y"})), 0o600))
	p.hangUp()
	waitFor(t, "the new password", func() bool { return login("y") == nil })
	if err := login("x"); err != proto.AuthFailed {
		t.Errorf("with the former password: %v", err)
	}
}

// TestAuditLog: the file has the start and the stop of the server and what a client did, and after
// SIGHUP a new one is begun.
func TestAuditLog(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "audit.log")
	p := start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--audit-log", file).waitReady()
	c := p.connect()
	_, err := c.Create("/a", nil, 0)
	check1(t, err)
	waitFor(t, "the line", func() bool { return strings.Contains(string(value(os.ReadFile(file))(t)), "znode=/a\t") })
	check1(t, os.Rename(file, file+".1"))
	p.hangUp()
	waitFor(t, "the new file", func() bool { _, err := os.Stat(file); return err == nil })
	check1(t, c.Delete("/a"))
	if _, body := fetch(t, http.DefaultClient, p.admin()+"/metrics", ""); !strings.Contains(body, "\nlockkeeper_audit_lines_dropped_total 0\n") {
		t.Error("the metrics do not have the lines that were dropped")
	}
	p.stop()
	var ends []string
	for _, name := range []string{file + ".1", file} {
		for line := range strings.Lines(string(value(os.ReadFile(name))(t))) {
			_, event, _ := strings.Cut(line, " audit.Slf4jAuditLogger: ")
			fields := strings.Split(strings.TrimSpace(event), "\t")
			ends = append(ends, strings.Join(fields[max(0, len(fields)-3):], " "))
		}
	}
	user := "user=" + userName()
	want := []string{user + " operation=serverStart result=success", "znode=/a znode_type=persistent result=success", "operation=delete znode=/a result=success",
		user + " operation=serverStop result=invoked"}
	if !slices.Equal(ends, want) {
		t.Errorf("%q, not %q", ends, want)
	}
	refuses(t, exitUsage, []string{"serve", "--memory", "--listen", "127.0.0.1:0", "--audit-log", filepath.Join(file, "x")}, "--audit-log: ")
}

// TestRotateMembersCA changes the authority of three members in the three steps of
// docs/operations.md, while a client holds an ephemeral node. In each step another member is restarted,
// so that its connections with the other two are made anew. These have what they read while they ran.
// The client has no watches: go-zookeeper has a data race when one with watches reconnects.
func TestRotateMembersCA(t *testing.T) {
	t.Parallel()
	dir, before, after := t.TempDir(), testkit.NewCA(t), testkit.NewCA(t)
	authority := before.WriteCA(t, dir, "ca.pem")
	addrs := freeAddrs(t, 6)
	peers, servers := addrs[:3], addrs[3:]
	var files [4]string
	for id := 1; id <= 3; id++ {
		files[id], _ = testkit.WritePair(t, before.Peer(t), dir, fmt.Sprintf("%d.pem", id), fmt.Sprintf("%d.pem", id))
	}
	var members [4]*process
	begin := func(id int) {
		members[id] = start(t, nil, "serve", "--id", fmt.Sprint(id), "--data", filepath.Join(dir, fmt.Sprint(id)), "--log-level", "info",
			"--peers", peersAt(peers...), "--listen", servers[id-1], "--peer-tls-cert", files[id], "--peer-tls-ca", authority)
	}
	for id := 1; id <= 3; id++ {
		begin(id)
	}
	for id := 1; id <= 3; id++ {
		members[id].waitReady()
	}
	conn, _, err := zk.Connect(servers, 40*time.Second, zk.WithLogger(silent{}))
	check1(t, err)
	defer conn.Close()
	_, err = conn.Create("/lock", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	check1(t, err)
	session := conn.SessionID()

	step := func(restart int, name string) {
		t.Helper()
		for id := 1; id <= 3; id++ {
			was := strings.Count(strings.Join(members[id].lines(), "\n"), "have been read again")
			members[id].hangUp()
			waitFor(t, name, func() bool {
				return strings.Count(strings.Join(members[id].lines(), "\n"), "have been read again") > was
			})
		}
		members[restart].stop()
		begin(restart)
		members[restart].waitReady()
		waitFor(t, name+": the lock", func() bool {
			_, err := conn.Set("/lock", []byte(name), -1)
			return err == nil
		})
		if _, stat, err := conn.Get("/lock"); err != nil || stat.EphemeralOwner != session {
			t.Fatalf("%s: the lock of session %#x: %+v, %v", name, session, stat, err)
		}
		for id := 1; id <= 3; id++ {
			if lines := strings.Join(members[id].lines(), "\n"); strings.Contains(lines, "x509: ") {
				t.Errorf("%s: member %d: %s", name, id, lines)
			}
		}
	}
	other := t.TempDir()
	one, two := value(os.ReadFile(authority))(t), value(os.ReadFile(after.WriteCA(t, other, "ca.pem")))(t)
	both := filepath.Join(other, "both.pem")
	check1(t, os.WriteFile(both, append(one, two...), 0o600))
	replace(t, both, authority)
	step(1, "trust both authorities")
	for id := 1; id <= 3; id++ {
		cert, _ := testkit.WritePair(t, after.Peer(t), other, "pair.pem", "pair.pem")
		replace(t, cert, files[id])
	}
	step(2, "certificates of the new authority")
	replace(t, filepath.Join(other, "ca.pem"), authority)
	step(3, "trust only the new authority")

	old, _ := testkit.WritePair(t, before.Peer(t), other, "old.pem", "old.pem")
	env := map[string]string{"LOCKKEEPER_PEER_TLS_CERT": old, "LOCKKEEPER_PEER_TLS_CA": authority}
	if code, _, stderr := call(env, "cluster", "status", "--peer", peers[0]); code != exitFault {
		t.Errorf("with a certificate of the former authority: %d %q", code, stderr)
	}
}

// silent is a zk.Logger.
type silent struct{}

func (silent) Printf(string, ...any) {}

// TestReloadStuck: a file that cannot be read and gives no error, as on a network disk that is gone, keeps
// a server neither from ending nor from opening its audit log anew.
func TestReloadStuck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, _ := testkit.WritePair(t, testkit.NewCA(t).Server(t), dir, "both.pem", "both.pem")
	keeper, err := tlsfiles.Open(tlsfiles.Files{Cert: cert}, tlsfiles.Settings{}, testkit.Quiet)
	check1(t, err)
	check1(t, os.Remove(cert))
	check1(t, syscall.Mkfifo(cert, 0o600))
	r := reloads{hangup: make(chan os.Signal), tls: []*tlsfiles.Keeper{keeper}}
	audit := filepath.Join(dir, "audit.log")
	closeAudit, err := r.openAudit(audit, &lockkeeper.Config{Logger: testkit.Quiet})
	check1(t, err)
	defer closeAudit()
	check1(t, os.Remove(audit))
	stop := r.start()
	r.hangup <- syscall.SIGHUP
	waitFor(t, "the new audit log", func() bool { _, err := os.Stat(audit); return err == nil })
	stopped := make(chan struct{})
	go func() {
		stop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(10 * stopTime):
		t.Error("a file that cannot be read keeps the server from ending")
	}
	fifo, err := os.OpenFile(cert, os.O_WRONLY, 0) // lets the reader go on
	check1(t, err)
	fifo.Close()
	<-stopped
}
