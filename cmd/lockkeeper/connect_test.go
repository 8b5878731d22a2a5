package main

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestServers: every command that connects to client ports takes servers as ZooKeeper's clients do,
// and a path below which it works, if that has a meaning for it.
func TestServers(t *testing.T) {
	t.Parallel()
	s := lockServer(t, "cons", "wchp", "dump", "srvr")
	conn := client(t, s.Addr())
	node(t, conn, "/app/one/_c_0123456789abcdef0123456789abcdef-lock-", zk.FlagEphemeral|zk.FlagSequence)
	node(t, conn, "/app/one/_c_fedcba9876543210fedcba9876543210-lock-", zk.FlagEphemeral|zk.FlagSequence)
	node(t, conn, "/other/_c_0123456789abcdef0123456789abcdef-lock-", zk.FlagEphemeral|zk.FlagSequence)
	_, _, _, err := conn.GetW("/app/one/_c_0123456789abcdef0123456789abcdef-lock-0000000000")
	check1(t, err)
	at := s.Addr() + "," + s.Addr() + "/app"
	if l := lsJSON(t, at); len(l.Locks) != 1 || l.Locks[0].Path != "/one" {
		t.Errorf("lock ls: %+v", l)
	}
	if l := lsJSON(t, at, "/one"); len(l.Locks) != 1 || l.Locks[0].Path != "/one" {
		t.Errorf("lock ls /one: %+v", l)
	}
	for _, c := range []struct {
		code       int
		args, says string
	}{
		{exitOK, "lock check --settle 0s --server " + at, ""}, // the watch of the one that waits is known
		{exitFault, "lock ls --server " + at + " /other", "/other does not exist"},
		{exitOK, "lock break --yes --server " + at + " /one", "This deletes /one/_c_0123456789abcdef0123456789abcdef-lock-0000000000, "},
		{0, "lock run --server " + at + " /two -- sh -c 'echo $LOCKKEEPER_PATH'", "/two\n"},
		{exitOK, "zk --server " + at + " ls /", "[one, two]"},
		{exitOK, "bench --ops 1 --workload create-1x1 " + at, "create-1x1"},
		{exitFault, "cluster status --server " + at, "is a standalone server"},
	} {
		code, out := shell(t, c.args)
		if code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("%s: %d\n%s", c.args, code, out)
		}
	}
	// The server deletes the container /app/two within a minute or two.
	if children, _, err := conn.Children("/app"); err != nil || len(children) != 2 && !slices.Equal(children, []string{"one"}) {
		t.Errorf("below /app: %q %v", children, err)
	}
	if _, known, err := conn.Exists("/two"); err != nil || known != nil && known.Czxid != 0 {
		t.Errorf("/two: %v %v", known, err)
	}
}

// shell runs the command, and returns its exit code and its whole output. Because lock run starts this program
// again, it runs by itself, from a shell.
func shell(t *testing.T, args string) (code int, out string) {
	t.Helper()
	if !strings.HasPrefix(args, "lock run") {
		code, stdout, stderr := call(nil, strings.Fields(args)...)
		return code, stdout + stderr
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+binary+" "+args)
	b, _ := cmd.CombinedOutput()
	return cmd.ProcessState.ExitCode(), string(b)
}

// secureServer starts a server with a plain port and one for TLS that needs client certificates. It
// returns their addresses, the flags of a client, and those of one that does not trust the server.
func secureServer(t *testing.T) (plain, secure, flags, stranger string) {
	t.Helper()
	dir, ca, other := t.TempDir(), testkit.NewCA(t), testkit.NewCA(t)
	authority := ca.WriteCA(t, dir, "ca.pem")
	both, _ := testkit.WritePair(t, ca.Server(t), dir, "server.pem", "server.pem")
	p := start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--tls-listen", "127.0.0.1:0", "--tls-cert", both, "--tls-ca", authority).waitReady()
	cert, key := testkit.WritePair(t, ca.Client(t, pkix.Name{CommonName: "ann"}), dir, "cert.pem", "key.pem")
	flags = fmt.Sprintf(" --tls-ca %s --tls-cert %s --tls-key %s ", authority, cert, key)
	return p.addr, p.secureAddr(), flags, " --tls-ca " + other.WriteCA(t, dir, "other.pem") + " "
}

// TestTLSEverywhere: every command that connects to client ports can use TLS, by one set of
// flags, and says at once if a port speaks TLS and it does not, or the reverse, or if a
// certificate is refused.
func TestTLSEverywhere(t *testing.T) {
	t.Parallel()
	plain, secure, flags, stranger := secureServer(t)
	recording := filepath.Join("..", "..", "testdata", "golden", "01-connect-ping-close.txt")
	for _, c := range []struct {
		args string // ADDR is a port, and FLAGS the flags for TLS
		code int
	}{
		{"lock run FLAGS --server ADDR /a -- true", 0},
		{"lock ls FLAGS --server ADDR", 0},
		{"lock check FLAGS --server ADDR", 0},
		{"lock break --yes FLAGS --server ADDR /nothing", exitFault},
		{"zk FLAGS --server ADDR ls /", 0},
		{"cluster status FLAGS --server ADDR", exitFault}, // it is standalone
		{"bench FLAGS --ops 1 --workload create-1x1 ADDR", 0},
		{"conform FLAGS --run ^create/sequential$ ADDR", 0},
		{"conform FLAGS --ops 10 --against ADDR ADDR", -1},
		{"wire replay FLAGS " + recording + " ADDR", -1},
	} {
		run := func(addr, flags string) (int, string) {
			return shell(t, strings.NewReplacer("FLAGS", flags, "ADDR", addr).Replace(c.args))
		}
		if code, out := run(secure, flags); code != c.code && c.code >= 0 || strings.Contains(out, "TLS") || strings.Contains(out, "certificate") {
			t.Errorf("%s: %d\n%s", c.args, code, out)
		}
		for says, x := range map[string][2]string{
			secure + " speaks TLS: connect to it with --tls\n":                   {secure, ""},
			plain + " does not speak TLS: connect to it without --tls, --tls-ca": {plain, flags},
			"certificate signed by unknown authority":                            {secure, stranger},
		} {
			began := time.Now()
			code, out := run(x[0], x[1])
			if took := time.Since(began); code == 0 || !strings.Contains(out, says) || took > 9*time.Second { // most commands wait for 10 s or more
				t.Errorf("%s, which should say %q: %d after %v\n%s", c.args, says, code, took, out)
			}
		}
	}
	if code, out := shell(t, "lock ls --server "+secure+flags[:strings.Index(flags, "--tls-cert")]); code != exitFault || !strings.Contains(out, "certificate required") {
		t.Errorf("without a certificate: %d\n%s", code, out)
	}
	for args, says := range map[string]string{
		"lock ls --tls-key x":                          "--tls-cert: --tls-key needs it",
		"lock ls --tls-ca " + t.TempDir() + "/nothing": "no such file",
	} {
		if _, out := shell(t, args); !strings.Contains(out, says) || strings.Count(out, "\n") != 1 {
			t.Errorf("%s: %s", args, out)
		}
	}
}

// TestWireTLS: the proxy connects to the server with TLS, and ends at once if the port is of
// the other kind.
func TestWireTLS(t *testing.T) {
	t.Parallel()
	plain, secure, flags, _ := secureServer(t)
	proxy := func(to, flags string) (*process, string) {
		p := start(t, nil, append([]string{"wire", "--quiet", "--to", to}, strings.Fields(flags)...)...)
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			for _, l := range p.lines() {
				if rest, ok := strings.CutPrefix(l, "lockkeeper: proxying "); ok {
					addr, _, _ := strings.Cut(rest, " ")
					return p, addr
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("not ready: %q", p.lines())
			}
		}
	}
	_, addr := proxy(secure, flags)
	conn := client(t, addr)
	node(t, conn, "/by-wire", 0)
	conn.Close()
	for says, x := range map[string][2]string{
		secure + " speaks TLS: connect to it with --tls":                     {secure, ""},
		plain + " does not speak TLS: connect to it without --tls, --tls-ca": {plain, flags},
	} {
		p, addr := proxy(x[0], x[1])
		if nc, err := net.Dial("tcp", addr); err == nil { // otherwise the proxy has ended already
			defer nc.Close()
			nc.Write(make([]byte, 49)) // a frame
		}
		if code := p.exit(); code != exitFault || !strings.Contains(strings.Join(p.lines(), "\n"), says) {
			t.Errorf("%d %q, not %q", code, p.lines(), says)
		}
	}
}
