package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// TestReasons: commands that need a server say why it opens no session, as others do: nobody listens, or it serves no clients.
func TestReasons(t *testing.T) {
	t.Parallel()
	addrs := freeAddrs(t, 4)
	at := func(i int) string { return addrs[i] }
	start(t, nil, "serve", "--memory", "--listen", at(0), "--peers", "1="+at(1)+",2="+at(2))
	waitFor(t, "the client port", func() bool {
		nc, err := net.Dial("tcp", at(0))
		if err == nil {
			nc.Close()
		}
		return err == nil
	})
	recording := filepath.Join("..", "..", "testdata", "golden", "01-connect-ping-close.txt")
	for _, command := range []string{"bench --workload create-1x1 --time 100ms", "conform --group create", "conform --ops 10 --against " + at(0), "wire replay " + recording} {
		for addr, says := range map[string][]string{
			at(0): {at(0) + " serves no clients at the moment", "lockkeeper cluster status --peer " + at(1)},
			at(3): {"cannot connect to " + at(3), "connection refused"},
		} {
			command := command
			if strings.Contains(command, "--against") && addr == at(3) {
				command = strings.ReplaceAll(command, at(0), at(3)) // the other server is asked first
			}
			code, stdout, stderr := call(nil, append(strings.Fields(command), addr)...)
			if _, rest, ok := strings.Cut(stderr, ", seed "); ok {
				_, stderr, _ = strings.Cut(rest, "\n")
			}
			if oneError(t, stderr, says...); code != exitFault || stdout != "" {
				t.Errorf("%s %s: exit code %d, %q", command, addr, code, stdout)
			}
		}
	}
}
