package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestMayCome: serve waits for what a machine may have later, and for nothing else.
func TestMayCome(t *testing.T) {
	listen := func(zone string, err error) error {
		return fmt.Errorf("client port: %w", &net.OpError{Op: "listen", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv6loopback, Zone: zone}, Err: err})
	}
	bind := func(err syscall.Errno) error { return listen("", os.NewSyscallError("bind", err)) }
	for _, err := range []error{
		bind(syscall.EADDRNOTAVAIL), listen("eth0", syscall.EINVAL),
		listen("", &net.DNSError{Err: "no such host", Name: "a", IsNotFound: true}),
		listen("", &net.DNSError{Err: "server misbehaving", Name: "a", IsTemporary: true}),
	} {
		if !mayCome(err) {
			t.Errorf("%v", err)
		}
	}
	for _, err := range []error{
		nil, bind(syscall.EADDRINUSE), bind(syscall.EACCES), bind(syscall.EINVAL), bind(syscall.EAFNOSUPPORT), bind(syscall.EMFILE),
		listen("", &net.AddrError{Err: "no suitable address found", Addr: "a"}), errors.New("another"),
	} {
		if mayCome(err) {
			t.Errorf("%v", err)
		}
	}
}

// TestOpenedAgain: what has failed because of an address is tried again, with growing pauses, until it
// fails otherwise.
func TestOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		missing, other := fmt.Errorf("listen: %w", syscall.EADDRNOTAVAIL), errors.New("another")
		tries, began := 0, time.Now()
		open := func() (int, error) {
			if tries++; tries < 3 {
				return 0, missing
			}
			return tries, other
		}
		n, err := opened(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), open)
		if n != 3 || err != other || time.Since(began) != 3*listenSoon || !strings.Contains(log.String(), "error=\"listen: ") {
			t.Errorf("%d, %v after %v: %s", n, err, time.Since(began), log.String())
		}
		tries, began = -1000, time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = opened(ctx, slog.New(slog.DiscardHandler), open)
		if err != context.DeadlineExceeded || tries != -990 || time.Since(began) != time.Minute { // after .5, 1.5, 3.5, 7.5, 15.5, 25.5 s and so on
			t.Errorf("%v in attempt %d, after %v", err, tries+1000, time.Since(began))
		}
	})
}

// TestCheckHost: a name that can never be looked up is an error in the configuration.
func TestCheckHost(t *testing.T) {
	for _, host := range []string{"", "a", "a.b.", "db-1", "_x.svc", "1a", "10.0.0.1", "::1", "fe80::1%eth0", "3.example", "höst", "xn--hst-sna"} {
		if err := checkHost(host); err != nil {
			t.Error(err)
		}
	}
	for _, host := range []string{"a b", "10.0.0", "300.1.1.1", "1", "a.1", "a/b", "a,b", "a_b!", "::x", "1.1.1.1.", "."} {
		if checkHost(host) == nil {
			t.Errorf("%q is accepted", host)
		}
		for _, flag := range []string{"--listen", "--tls-listen", "--admin", "--metrics-listen", "--peer-listen", "--join"} {
			addr := net.JoinHostPort(host, "7000")
			if code, _, stderr := call(nil, "serve", "--memory", flag, addr); code != exitUsage || !strings.Contains(stderr, flag) {
				t.Errorf("%s %s: exit code %d: %s", flag, addr, code, stderr)
			}
		}
	}
}
