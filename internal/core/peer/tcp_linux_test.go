package peer

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestTCPLimitsSilence: both ends of a connection between members, with and without TLS, end
// when what they send is not acknowledged, and probe when they are not used.
func TestTCPLimitsSilence(t *testing.T) {
	ca := testkit.NewCA(t)
	cert := ca.Peer(t)
	secure := &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: ca.Pool, ClientCAs: ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert}
	for name, network := range map[string]TCP{"plain": {ElectionTimeout: 3 * time.Second}, "TLS": {ElectionTimeout: 3 * time.Second, TLS: secure}} {
		t.Run(name, func(t *testing.T) {
			l, err := network.Listen("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			accepted := make(chan net.Conn, 1)
			go func() {
				c, err := l.Accept()
				if err == nil {
					if s, ok := c.(*tls.Conn); ok {
						s.Handshake()
					}
					accepted <- c
				}
			}()
			dialed, err := network.Dial(t.Context(), l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			for end, c := range map[string]net.Conn{"dialed": dialed, "accepted": <-accepted} {
				defer c.Close()
				if s, ok := c.(*tls.Conn); ok {
					c = s.NetConn()
				}
				raw, err := c.(*net.TCPConn).SyscallConn()
				if err != nil {
					t.Fatal(err)
				}
				raw.Control(func(fd uintptr) {
					for option, want := range map[int]int{unix.TCP_USER_TIMEOUT: 3000, unix.TCP_KEEPIDLE: 3, unix.TCP_KEEPINTVL: 3, unix.TCP_KEEPCNT: 2} {
						if got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); err != nil || got != want {
							t.Errorf("%s: option %d is %d, want %d; %v", end, option, got, want, err)
						}
					}
				})
			}
		})
	}
}
