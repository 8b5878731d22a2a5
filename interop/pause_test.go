//go:build interop

package interop

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestPausedServer stops the process of a standalone server for a little longer than a
// session's timeout. The client, which the server could not hear, sends a request one
// second after the server continues, and must still have its session.
func TestPausedServer(t *testing.T) {
	t.Parallel()
	const timeout = 8 * time.Second
	l := startLockkeeper(t, "--memory", "--tick-time", "400ms")
	nc := must(net.Dial("tcp", l.addr))(t)
	defer nc.Close()
	c := must(rawclient.Open(nc, timeout))(t)
	for _, pause := range []time.Duration{timeout + 500*time.Millisecond, timeout * 5 / 4} {
		must(c.Call(proto.OpPing, nil, nil))(t)
		check(t, syscall.Kill(l.pid, syscall.SIGSTOP))
		time.Sleep(pause)
		check(t, syscall.Kill(l.pid, syscall.SIGCONT))
		time.Sleep(time.Second)
		if _, err := c.Call(proto.OpPing, nil, nil); err != nil {
			t.Fatalf("after a pause of %v: %v", pause, err)
		}
	}
}
