//go:build interop

package interop

import (
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
)

// TestNetcat: scripts send a newline after a four-letter word. The answer, here of some 30 KB, comes
// whole nevertheless.
func TestNetcat(t *testing.T) {
	t.Parallel()
	l := startLockkeeper(t, "--memory", "--4lw", "*", "--max-client-cnxns", "0")
	host, port, _ := net.SplitHostPort(l.addr)
	const clients = 300
	for range clients {
		nc := must(net.Dial("tcp", l.addr))(t)
		defer nc.Close()
		must(rawclient.Open(nc, 40*time.Second))(t)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			nc := exec.Command("nc", "-w", "20", host, port)
			nc.Stdin = strings.NewReader("stat\nand more that nobody reads\n")
			out, err := nc.CombinedOutput()
			if lines := strings.Count(string(out), "(queued="); err != nil || lines < clients || !strings.Contains(string(out), "\nNode count: ") {
				t.Errorf("%v: %d bytes, %d connections", err, len(out), lines)
			}
		})
	}
	wg.Wait()
}

// TestOldProbes: a probe that speaks HTTP/1.0 and sends no Host, as load balancers do, gets the same
// answers as others.
func TestOldProbes(t *testing.T) {
	t.Parallel()
	admin := freeAddr(t)
	startLockkeeper(t, "--memory", "--admin", admin)
	for path, want := range map[string]string{"/healthz": "", "/metrics": "lockkeeper_", "/commands/ruok": "ruok"} {
		out, err := exec.Command("curl", "--silent", "--show-error", "--fail", "--http1.0", "--header", "Host:", "http://"+admin+path).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v\n%s", path, err, out)
		}
	}
}
