//go:build interop

package interop

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// quotaProxy is a proxy to a server that ends each connection when the client has sent so
// many bytes on it.
type quotaProxy struct {
	addr string
	cuts atomic.Int32 // connections that were ended
	cut  chan struct{}
}

func startQuotaProxy(t *testing.T, server string, bytes int64) *quotaProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &quotaProxy{addr: l.Addr().String(), cut: make(chan struct{}, 1000)}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer client.Close()
				server, err := net.Dial("tcp", server)
				if err != nil {
					return
				}
				defer server.Close()
				conns.Go(func() {
					io.Copy(client, server)
					client.Close()
				})
				if n, _ := io.CopyN(server, client, bytes); n == bytes {
					p.cuts.Add(1)
					p.cut <- struct{}{}
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Wait()
	})
	return p
}

// transferZnodes is how many plain znodes TestShellTransfer transfers.
const transferZnodes = 600

// TestShellTransfer exports a subtree of one server, and imports it into another, over lost
// connections, killed commands and a restart of the server.
func TestShellTransfer(t *testing.T) {
	t.Parallel()
	for _, way := range [][2]string{{"ZooKeeper", "lockkeeper"}, {"lockkeeper", "ZooKeeper"}} {
		t.Run(way[0]+" to "+way[1], func(t *testing.T) {
			t.Parallel()
			from, to := startTestServer(t, way[0], zk39, javaTick), startTestServer(t, way[1], zk39, javaTick)
			dir := t.TempDir()
			file := func(name string) string { return filepath.Join(dir, name) }
			zk := func(addr string, args ...string) *exec.Cmd {
				return shells["lockkeeper zk"](t, addr, append([]string{"--auth", "digest:super:secret"}, args...)...)
			}
			do := func(addr string, args ...string) string {
				t.Helper()
				out, err := zk(addr, args...).CombinedOutput()
				if err != nil {
					t.Fatalf("%q: %v\n%s", args, err, out)
				}
				return string(out)
			}
			script := func(addr, lines string) {
				t.Helper()
				cmd := zk(addr)
				cmd.Stdin = strings.NewReader(lines)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			var lines strings.Builder
			lines.WriteString("addauth digest user:secret\ncreate /app\ncreate /app/mine 'some data' auth::cdrwa\ncreate /app/mine/x y auth::r\n" +
				"create /app/read x world:anyone:r,digest:other:hash:cdrwa\ncreate /app/bytes x\nset -b /app/bytes //79\ncreate /app/empty ''\n")
			for i := range transferZnodes {
				if i%100 == 0 {
					fmt.Fprintf(&lines, "create /app/%03d\n", i/100)
				}
				fmt.Fprintf(&lines, "create /app/%03d/%d %s\n", i/100, i%100, strings.Repeat("data", 20))
			}
			script(from.addr, lines.String())

			// An ephemeral znode, whose session must live until the export is done.
			holder := zk(from.addr)
			typed, err := holder.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := holder.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				typed.Close()
				holder.Wait()
			}()
			io.WriteString(typed, "create -e /app/ephemeral x\n")
			testkit.Eventually(t, "the ephemeral znode", func() bool { return strings.Contains(do(from.addr, "ls", "/app"), "ephemeral") })

			do(from.addr, "export", file("whole"), "/app")
			whole, err := os.ReadFile(file("whole"))
			if err != nil {
				t.Fatal(err)
			}
			if got, want := strings.Count(string(whole), "\n"), transferZnodes+transferZnodes/100+6+1+2; got != want {
				t.Fatalf("the export has %d lines, not %d", got, want)
			}

			// Killed by kill -9 when its first connection ends; then over lost connections.
			killed := func(addr string, args ...string) {
				t.Helper()
				proxy := startQuotaProxy(t, addr, 18_000)
				cmd := zk(proxy.addr, args...)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				<-proxy.cut
				cmd.Process.Kill()
				cmd.Wait()
			}
			survives := func(addr string, args ...string) string {
				t.Helper()
				proxy := startQuotaProxy(t, addr, 15_000)
				out := do(proxy.addr, args...)
				if n := proxy.cuts.Load(); n < 2 {
					t.Errorf("%q lost its connection only %d times", args, n)
				}
				return out
			}
			killed(from.addr, "export", file("part"), "/app")
			survives(from.addr, "export", file("part"), "/app")
			if part, _ := os.ReadFile(file("part")); string(part) != string(whole) {
				t.Errorf("an interrupted export differs\n%s", lineDiff(string(whole), string(part)))
			}

			killed(to.addr, "import", file("whole"))
			to.restart()
			out := survives(to.addr, "import", file("whole"))
			if !strings.Contains(out, "1 ephemeral ones skipped") {
				t.Errorf("import printed %s", out)
			}
			do(to.addr, "export", file("copy"), "/app")
			var want strings.Builder
			for line := range strings.Lines(string(whole)) {
				if !strings.Contains(line, `"type":"ephemeral"`) {
					want.WriteString(strings.Replace(line, fmt.Sprintf(`"znodes":%d}`, transferZnodes+transferZnodes/100+7), fmt.Sprintf(`"znodes":%d}`, transferZnodes+transferZnodes/100+6), 1))
				}
			}
			if got, _ := os.ReadFile(file("copy")); string(got) != want.String() {
				t.Errorf("the copy differs\n%s", lineDiff(want.String(), string(got)))
			}

			// Types that no export can know.
			types := `{"format":"lockkeeper znodes","version":1,"path":"/types"}` + "\n" + `{"path":"/"}` + "\n" +
				`{"path":"/container","type":"container"}` + "\n" + `{"path":"/container/ttl","type":"ttl","ttl":100}` + "\n" + `{"end":true,"znodes":3}` + "\n"
			if err := os.WriteFile(file("types"), []byte(types), 0o600); err != nil {
				t.Fatal(err)
			}
			do(to.addr, "import", file("types"))
			testkit.Eventually(t, "the end of the znode with a TTL and of its container", func() bool { return do(to.addr, "ls", "/types") == "[]\n" })
		})
	}
}
