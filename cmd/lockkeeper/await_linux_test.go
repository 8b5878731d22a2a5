package main

import (
	"errors"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestServeAwaitsAddresses: serve waits for the addresses that its machine gets later. The machine is a network
// namespace here.
func TestServeAwaitsAddresses(t *testing.T) {
	t.Parallel()
	const at = "192.0.2.1:" // of TEST-NET-1
	for name, args := range map[string][]string{
		"client": {"--listen", at + "0"}, "admin": {"--listen", ":0", "--admin-no-token", "--admin", at + "0"}, "metrics": {"--listen", ":0", "--metrics-listen", at + "0"},
		"peer": {"--listen", ":0", "--peers", "1=" + at + "7000"}, "peer-listen": {"--listen", ":0", "--peer-listen", at + "7000", "--peers", "1=" + at + "7000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, giveAddress := elsewhere(t, args...)
			awaits := ""
			waitFor(t, "the line that says what is awaited", func() bool {
				for _, line := range p.lines() {
					if strings.Contains(line, "waiting until this machine can listen on an address") {
						awaits = line
					}
				}
				return awaits != ""
			})
			if !strings.Contains(awaits, at) {
				t.Error(awaits)
			}
			giveAddress()
			p.waitReady()
		})
	}
	t.Run("signal", func(t *testing.T) {
		t.Parallel()
		for _, args := range [][]string{{"--listen", at + "0"}, {"--admin-no-token", "--admin", at + "0"}, {"--metrics-listen", at + "0"}} {
			p, _ := elsewhere(t, args...)
			waitFor(t, "a line", func() bool { return len(p.lines()) > 0 })
			p.stop()
		}
	})
}

// elsewhere starts serve in a network namespace of its own, and returns what gives that the address.
func elsewhere(t *testing.T, args ...string) (p *process, giveAddress func()) {
	t.Helper()
	inside := make(chan func() error)
	done := make(chan error)
	t.Cleanup(func() { close(inside) })
	go func() { // until the end of the test
		defer close(done)
		runtime.LockOSThread() // for good: the thread, which has another namespace, ends with this goroutine
		for f := range inside {
			done <- f()
		}
	}()
	do := func(f func() error) error {
		inside <- f
		return <-done
	}
	if err := do(func() error { return unix.Unshare(unix.CLONE_NEWNET) }); errors.Is(err, unix.EPERM) {
		t.Skip("this user may not make network namespaces")
	} else {
		check1(t, err)
	}
	check1(t, do(func() error { // before it has any address, Linux lets programs listen on all of them
		return change("lo", unix.SIOCSIFFLAGS, func(lo *unix.Ifreq) { lo.SetUint16(unix.IFF_UP) })
	}))
	cmd := exec.Command(binary, append([]string{"serve", "--memory"}, args...)...)
	cmd.Dir = t.TempDir()
	check1(t, do(func() error {
		p = startCmd(t, cmd)
		return nil
	}))
	return p, func() {
		check1(t, do(func() error {
			return change("lo", unix.SIOCSIFADDR, func(lo *unix.Ifreq) { check1(t, lo.SetInet4Addr([]byte{192, 0, 2, 1})) })
		}))
	}
}

// change changes a network interface.
func change(name string, request uint, set func(*unix.Ifreq)) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	ifreq, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	set(ifreq)
	return unix.IoctlIfreq(s, request, ifreq)
}
