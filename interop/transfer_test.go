//go:build interop

package interop

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestShellTransfer exports a subtree of ZooKeeper and imports it into lockkeeper, and the other way. The tests of
// package zkshell do so over lost connections, and with znodes of each type.
func TestShellTransfer(t *testing.T) {
	t.Parallel()
	const znodes = 600
	for _, way := range [][2]string{{"ZooKeeper", "lockkeeper"}, {"lockkeeper", "ZooKeeper"}} {
		t.Run(way[0]+" to "+way[1], func(t *testing.T) {
			t.Parallel()
			from, to := startTestServer(t, way[0], zk39, javaTick), startTestServer(t, way[1], zk39, javaTick)
			dir := t.TempDir()
			file := func(name string) string { return filepath.Join(dir, name) }
			zk := func(addr string, args ...string) *exec.Cmd {
				return shells["lockkeeper zk"](t, addr, append([]string{"--auth", "digest:super:secret"}, args...)...)
			}
			run := func(cmd *exec.Cmd) string {
				t.Helper()
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%q: %v\n%s", cmd.Args, err, out)
				}
				return string(out)
			}
			var lines strings.Builder
			lines.WriteString("addauth digest user:secret\ncreate /app\ncreate /app/mine 'some data' auth::cdrwa\ncreate /app/mine/x y auth::r\n" +
				"create /app/read x world:anyone:r,digest:other:hash:cdrwa\ncreate /app/bytes x\nset -b /app/bytes //79\ncreate /app/empty ''\n")
			for i := range znodes {
				if i%100 == 0 {
					fmt.Fprintf(&lines, "create /app/%03d\n", i/100)
				}
				fmt.Fprintf(&lines, "create /app/%03d/%d %s\n", i/100, i%100, strings.Repeat("data", 20))
			}
			script := zk(from.addr)
			script.Stdin = strings.NewReader(lines.String())
			run(script)
			run(zk(from.addr, "export", file("whole"), "/app"))
			run(zk(to.addr, "import", file("whole")))
			run(zk(to.addr, "export", file("copy"), "/app"))
			whole, copied := fileText(t, file("whole")), fileText(t, file("copy"))
			if got, want := strings.Count(whole, "\n"), znodes+znodes/100+6+2; got != want {
				t.Errorf("the export has %d lines, not %d", got, want)
			}
			if copied != whole {
				t.Errorf("the copy differs\n%s", lineDiff(whole, copied))
			}
		})
	}
}
