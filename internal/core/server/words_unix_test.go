//go:build unix

package server_test

import (
	"cmp"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
)

// TestWordWithMore: a client that sends more after a word, as nc does with the newline, gets the
// whole answer, however late that arrives and however slowly the client reads.
func TestWordWithMore(t *testing.T) {
	p := open(t, server.Config{})
	p.listen(t)
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return cmp.Or(c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) }), err)
	}}
	for range 300 {
		rawtest.Connect(t, p.dial)
	}
	for _, wait := range []time.Duration{0, 500 * time.Microsecond, 2 * time.Millisecond} {
		for range 10 {
			nc := must(dialer.Dial("tcp", p.plain.Addr().String()))(t)
			must(nc.Write([]byte("stat")))(t)
			time.Sleep(wait)
			must(nc.Write([]byte("\n")))(t)
			time.Sleep(5 * time.Millisecond)
			text, err := io.ReadAll(nc)
			nc.Close()
			if err != nil || strings.Count(string(text), "queued=0") < 300 || !strings.HasSuffix(string(text), "Node count: 5\n") {
				t.Fatalf("newline after %v: %d bytes, %v: %s", wait, len(text), err, text[max(0, len(text)-100):])
			}
		}
	}
}
