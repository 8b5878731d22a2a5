package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Times between attempts to listen on an address that this machine does not have yet.
const (
	listenSoon  = 500 * time.Millisecond // at first; then twice as long each time
	listenAgain = 10 * time.Second       // at most
)

// opened returns what open returns, which listens. A machine that is starting may not have all of its
// addresses yet, nor find its own name: while that is so, opened waits and tries again. It returns the
// error of ctx if that ends first.
func opened[T any](ctx context.Context, log *slog.Logger, open func() (T, error)) (T, error) {
	for pause := listenSoon; ; pause = min(2*pause, listenAgain) {
		x, err := open()
		if !mayCome(err) {
			return x, err
		}
		log.Warn("waiting until this machine can listen on an address", "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return x, ctx.Err()
		}
	}
}

// listen listens on addr as soon as this machine has it.
func listen(ctx context.Context, log *slog.Logger, addr string) (net.Listener, error) {
	return opened(ctx, log, func() (net.Listener, error) { return net.Listen("tcp", addr) })
}

// mayCome reports whether err says that this machine does not have an address to listen on yet, or
// that a name cannot be looked up yet. A port that is in use, or that this user may not have, is an
// error of another kind.
func mayCome(err error) bool {
	const windows = syscall.Errno(10049) // WSAEADDRNOTAVAIL
	switch {
	case errors.As(err, new(*net.DNSError)), errors.Is(err, syscall.EADDRNOTAVAIL):
		return true
	case errors.Is(err, syscall.EINVAL): // what Linux says of [fe80::1%eth0] without eth0
		if op, ok := errors.AsType[*net.OpError](err); ok {
			tcp, ok := op.Addr.(*net.TCPAddr)
			return ok && tcp.Zone != ""
		}
	}
	return runtime.GOOS == "windows" && errors.Is(err, windows)
}

// checkHost refuses what is neither an IP address nor the name of a host, and would be looked up
// in vain for ever. An empty host is none.
func checkHost(host string) error {
	if _, err := netip.ParseAddr(host); err == nil || host == "" {
		return nil
	}
	odd := strings.ContainsFunc(host, func(r rune) bool {
		return r < 0x80 && !strings.ContainsRune("-._", r) && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z')
	})
	last := host[strings.LastIndexByte(strings.TrimSuffix(host, "."), '.')+1:]
	if odd || strings.Trim(last, "0123456789.") == "" {
		return fmt.Errorf("%q is neither an IP address nor the name of a host", host)
	}
	return nil
}
