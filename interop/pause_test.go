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
	nc, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c, err := rawclient.Open(nc, timeout)
	if err != nil {
		t.Fatal(err)
	}
	for _, pause := range []time.Duration{timeout + 500*time.Millisecond, timeout * 5 / 4} {
		if _, err := c.Call(proto.OpPing, nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(l.pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pause)
		if err := syscall.Kill(l.pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if _, err := c.Call(proto.OpPing, nil, nil); err != nil {
			t.Fatalf("after a pause of %v: %v", pause, err)
		}
	}
}
