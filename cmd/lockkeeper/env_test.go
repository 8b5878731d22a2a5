package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestEnvironmentOfOthers sets variables that belong to one command and runs
// another, which must not read them.
func TestEnvironmentOfOthers(t *testing.T) {
	t.Parallel()
	closed := fmt.Sprintf("127.0.0.1:%d", testkit.Port(t)) // where no server listens
	for name, value := range map[string]string{"LOCKKEEPER_OBSERVER": "true", "LOCKKEEPER_TIMEOUT": "soon", "LOCKKEEPER_PEER": "x"} {
		code, _, stderr := call(map[string]string{name: value, "LOCKKEEPER_SERVER": closed}, "cluster", "status", "--timeout", "200ms")
		if oneError(t, stderr, "refused"); code != exitFault {
			t.Errorf("cluster status with %s: exit %d", name, code)
		}
	}
	p := start(t, []string{"LOCKKEEPER_WIRE_LISTEN=" + closed, "LOCKKEEPER_LISTEN=x"}, "wire", "--to", closed).waitReady()
	if p.addr != closed {
		t.Errorf("wire listens on %s, but LOCKKEEPER_WIRE_LISTEN is %s", p.addr, closed)
	}
}

// TestPeerOverServer checks that the command line takes precedence over the environment,
// even between two flags that exclude each other.
func TestPeerOverServer(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		env  map[string]string
		args string
		code int
		says string
	}{
		{map[string]string{"LOCKKEEPER_SERVER": "server.invalid:1"}, "--peer 127.0.0.1:1", exitFault, "127.0.0.1:1"},
		{map[string]string{"LOCKKEEPER_CLUSTER_PEER": "peer.invalid:1"}, "--server 127.0.0.1:1", exitFault, "127.0.0.1:1"},
		{map[string]string{"LOCKKEEPER_CLUSTER_PEER": "127.0.0.1:1"}, "", exitFault, "127.0.0.1:1"},
		{map[string]string{"LOCKKEEPER_CLUSTER_PEER": "a:1", "LOCKKEEPER_SERVER": "b:1"}, "", exitUsage, "LOCKKEEPER_CLUSTER_PEER: it cannot be combined with LOCKKEEPER_SERVER"},
		{nil, "--peer a:1 --server b:1", exitUsage, "--peer: it cannot be combined with --server"},
	} {
		code, _, stderr := call(x.env, append([]string{"cluster", "status", "--timeout", "200ms"}, strings.Fields(x.args)...)...)
		if oneError(t, stderr, x.says); code != x.code {
			t.Errorf("%v %s: exit %d", x.env, x.args, code)
		}
	}
}

// TestVariables checks that only shared flags of several commands have the same variable.
func TestVariables(t *testing.T) {
	users := map[string]string{}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		own := pflag.NewFlagSet("", pflag.ContinueOnError)
		own.AddFlagSet(c.LocalFlags())
		own.VisitAll(func(f *pflag.Flag) {
			name := variable(c, f)
			if other := users[name]; other != "" && !slices.Contains(shared, f.Name) {
				t.Errorf("both %[2]s and %[3]s read %[1]s", name, other, words(c))
			}
			users[name] = words(c)
		})
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(newRoot(io.Discard, io.Discard))
	for _, want := range []string{"LOCKKEEPER_TICK_TIME", "LOCKKEEPER_4LW", "LOCKKEEPER_WIRE_LISTEN", "LOCKKEEPER_WIRE_REPLAY_TIMEOUT",
		"LOCKKEEPER_CLUSTER_TIMEOUT", "LOCKKEEPER_CLUSTER_ADD_OBSERVER", "LOCKKEEPER_SERVER", "LOCKKEEPER_JSON", "LOCKKEEPER_PEER_TLS_CERT"} {
		if users[want] == "" {
			t.Errorf("no command reads %s", want)
		}
	}
}

// TestStrayVariables: serve names variables that look like those of flags and are none, with the one that was
// meant, and those whose emptiness has no effect. It is silent about what others use.
func TestStrayVariables(t *testing.T) {
	t.Parallel()
	silent := []string{
		"LOCKKEEPER_TICK_TIME=1s", "LOCKKEEPER_WIRE_LISTEN=x", "LOCKKEEPER_CLUSTER_ADD_OBSERVER=x", "LOCKKEEPER_PEER_TLS_CERT=", "LOCKKEEPER_TOKEN=1", "LOCKKEEPER_PATH=/a", "LOCKKEEPER_SESSION=0x1",
		"LOCKKEEPER_BINARY=x", "LOCKKEEPER_TEST_URL=x", "LOCKKEEPER_INTEROP_TLS=1", "LOCKKEEPER_THOROUGH=1", "LOCKKEEPERS=1",
		"LOCKKEEPER_SERVICE_HOST=10.0.0.1", "LOCKKEEPER_SERVICE_PORT=2181", "LOCKKEEPER_SERVICE_PORT_CLIENT_TLS=2281", "LOCKKEEPER_PORT=tcp://10.0.0.1:2181", "LOCKKEEPER_PORT_2181_TCP=tcp://10.0.0.1:2181",
		"LOCKKEEPER_PORT_2181_TCP_ADDR=10.0.0.1", "LOCKKEEPER_ADMIN_PORT_8080_TCP_PROTO=tcp", "LOCKKEEPER_ADMIN_PORT=tcp://10.0.0.2:8080",
	}
	warnings := func(env ...string) string {
		p := start(t, env, "serve", "--memory", "--listen", "127.0.0.1:0").waitReady()
		return strings.Join(slices.DeleteFunc(p.lines(), func(l string) bool { return !strings.Contains(l, "WARN") }), "\n")
	}
	if w := warnings(silent...); w != "" {
		t.Error(w)
	}
	w := warnings(append(silent, "LOCKKEEPER_ENFORCE_AUTHS=digest", "LOCKKEEPER_ADMIN_PORT=8080", "LOCKKEEPER_LISTEN=")...)
	for _, says := range []string{`variables="LOCKKEEPER_ADMIN_PORT, LOCKKEEPER_ENFORCE_AUTHS; did you mean LOCKKEEPER_ENFORCE_AUTH?"`, "counts as one that is not set", "variables=LOCKKEEPER_LISTEN\n"} {
		if strings.Count(w+"\n", says) != 1 {
			t.Errorf("the log does not say %s: %s", says, w)
		}
	}
	if strings.Count(w, "WARN") != 2 {
		t.Error(w)
	}
}
