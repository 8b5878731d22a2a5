//go:build interop

package interop

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// tap is a proxy between one client and a server. It records when the server can last
// have heard from the client, and the session timeout negotiated in the handshake.
type tap struct {
	addr   string
	server string
	hungUp chan struct{} // gets a value when the client's side of a connection has ended

	mu                      sync.Mutex
	heardAfter, heardBefore time.Time // before and after the last write to the server
	timeout                 time.Duration
}

func startTap(t testing.TB, server string) *tap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	w := &tap{addr: l.Addr().String(), server: server, hungUp: make(chan struct{}, 1)}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go w.carry(client)
		}
	}()
	return w
}

// carry forwards a client's connection until one side closes it.
func (w *tap) carry(client net.Conn) {
	defer client.Close()
	upstream, err := net.Dial("tcp", w.server)
	if err != nil {
		return
	}
	defer upstream.Close()
	go func() {
		w.down(client, upstream)
		client.Close()
	}()
	w.up(upstream, client)
	select {
	case w.hungUp <- struct{}{}:
	default:
	}
}

// up forwards data from the client and records the time.
func (w *tap) up(upstream io.Writer, client io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if n > 0 {
			before := time.Now()
			if _, err := upstream.Write(buf[:n]); err != nil {
				return
			}
			w.mu.Lock()
			w.heardAfter, w.heardBefore = before, time.Now()
			w.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// down forwards data from the server. It starts with the answer to the handshake: frame
// length, protocol version and session timeout in milliseconds, 4 bytes each.
func (w *tap) down(client io.Writer, upstream io.Reader) {
	head := make([]byte, 12)
	if _, err := io.ReadFull(upstream, head); err != nil {
		return
	}
	w.mu.Lock()
	w.timeout = time.Duration(int32(binary.BigEndian.Uint32(head[8:]))) * time.Millisecond
	w.mu.Unlock()
	if _, err := client.Write(head); err != nil {
		return
	}
	io.Copy(client, upstream)
}

// lastHeard returns two times: the server last heard from the client after the first one
// and, apart from scheduling delays, before the second one.
func (w *tap) lastHeard() (after, before time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.heardAfter, w.heardBefore
}

// negotiated returns the session timeout that the server granted.
func (w *tap) negotiated() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.timeout
}
