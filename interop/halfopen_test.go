//go:build interop

package interop

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

// TestHalfOpen opens 10,000 connections without a handshake: half of them send nothing,
// and half send only the length of a frame of one megabyte. Other clients must be served
// meanwhile, the server must use little memory, and it must close the connections after
// the time limit of a handshake.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	const (
		conns   = 10_000
		maxEach = 32 << 10 // bytes of the server's memory
	)
	var files syscall.Rlimit
	check(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files))
	if files.Cur = files.Max; files.Cur < conns*3/2 {
		t.Fatalf("the limit on open files is %d, but this test needs %d: raise ulimit -n", files.Max, conns*3/2)
	}
	check(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files))
	l := startLockkeeper(t)
	before := residentMiB(t, l.pid)
	lie := binary.BigEndian.AppendUint32(nil, 0xfffff)
	open := make([]net.Conn, 0, conns)
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for i := range conns {
		c, err := net.DialTimeout("tcp", l.addr, rawTimeout)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		open = append(open, c)
		if i%2 == 0 {
			if _, err := c.Write(lie); err != nil {
				t.Fatalf("connection %d: %v", i, err)
			}
		}
	}
	c, err := dialRaw(l.addr, 30*time.Second, 0, proto.ConnectReply{})
	if err != nil {
		t.Fatalf("a client beside them: %v", err)
	}
	began := time.Now()
	if _, err := c.Create("/beside", nil, 0); err != nil {
		t.Fatalf("a client beside them: %v", err)
	}
	t.Logf("a create beside %d half-open connections took %v", conns, time.Since(began))
	each := (residentMiB(t, l.pid) - before) * (1 << 20) / conns
	t.Logf("each half-open connection costs %.1f KiB", each/1024)
	if each > maxEach {
		t.Errorf("each half-open connection costs %.0f bytes, more than %d", each, maxEach)
	}
	for i, c := range open {
		c.SetReadDeadline(time.Now().Add(time.Minute))
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Fatalf("connection %d got an answer", i)
		} else if e, ok := err.(net.Error); ok && e.Timeout() {
			t.Fatalf("connection %d is still open", i)
		}
	}
}

// residentMiB returns the resident memory of a process.
func residentMiB(t testing.TB, pid int) float64 {
	t.Helper()
	text := must(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	for line := range strings.Lines(string(text)) {
		var kib float64
		if _, err := fmt.Sscanf(line, "VmRSS: %f kB", &kib); err == nil {
			return kib / 1024
		}
	}
	t.Fatalf("no VmRSS in /proc/%d/status", pid)
	return 0
}
