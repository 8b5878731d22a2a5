package main

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// manager is what a service manager hears of a process.
type manager struct {
	t    *testing.T
	addr string
	conn *net.UnixConn
}

func newManager(t *testing.T, addr string) *manager {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: addr, Net: "unixgram"})
	check1(t, err)
	t.Cleanup(func() { conn.Close() })
	return &manager{t, addr, conn}
}

// hear returns the next announcement.
func (m *manager) hear() string {
	m.t.Helper()
	b := make([]byte, 100)
	m.conn.SetReadDeadline(time.Now().Add(time.Minute))
	n, err := m.conn.Read(b)
	check1(m.t, err)
	return string(b[:n])
}

func (m *manager) silent() bool {
	m.conn.SetReadDeadline(time.Now())
	_, err := m.conn.Read(make([]byte, 100))
	return err != nil
}

func (m *manager) start(args ...string) *process {
	return start(m.t, []string{"NOTIFY_SOCKET=" + m.addr}, append([]string{"serve", "--memory", "--listen", "127.0.0.1:0"}, args...)...)
}

// TestNotify: a service manager hears when clients are served, and when the server stops.
func TestNotify(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{filepath.Join(t.TempDir(), "notify"), fmt.Sprintf("@lockkeeper-test-%d", time.Now().UnixNano())} {
		m := newManager(t, addr)
		p := m.start()
		if said := m.hear(); said != "READY=1" {
			t.Errorf("%s: %q", addr, said)
		}
		p.waitReady()
		check1(t, p.Process.Signal(syscall.SIGTERM))
		if said := m.hear(); said != "STOPPING=1" {
			t.Errorf("%s: %q", addr, said)
		}
		if code := p.exit(); code != exitOK || len(p.lines()) != 1 {
			t.Errorf("%s: exit code %d: %q", addr, code, p.lines())
		}
	}
}

// TestNotifyCluster: a member that waits for the others is not ready.
func TestNotifyCluster(t *testing.T) {
	t.Parallel()
	peers := peersAt(freeAddrs(t, 2)...)
	a, b := newManager(t, filepath.Join(t.TempDir(), "a")), newManager(t, filepath.Join(t.TempDir(), "b"))
	first := a.start("--peers", peers, "--log-level", "info")
	waitFor(t, "a line that says what is awaited", func() bool {
		return strings.Contains(strings.Join(first.lines(), "\n"), "not in the cluster yet")
	})
	if !a.silent() {
		t.Error("it announces something before it serves")
	}
	b.start("--peers", peers, "--id", "2")
	if said := a.hear() + " " + b.hear(); said != "READY=1 READY=1" {
		t.Errorf("they say %q", said)
	}
}

// TestNotifyNobody: a server that cannot tell its manager that it is ready says so, and serves all the same.
func TestNotifyNobody(t *testing.T) {
	t.Parallel()
	m := manager{t: t, addr: filepath.Join(t.TempDir(), "none")}
	p := m.start().waitReady()
	waitFor(t, "a line about it", func() bool {
		return strings.Contains(strings.Join(p.lines(), "\n"), "cannot tell the service manager")
	})
	p.connect()
}
