package lockscan_test

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/lockscan"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// TestNames: the dialer gets the names of servers and not their addresses, since a certificate is
// for a name; one server after the other is tried.
func TestNames(t *testing.T) {
	s := lockkeepertest.Start(t, lockkeepertest.WithTCP())
	_, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	down := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	down.Close()
	servers := []string{"localhost:" + port, down.Addr().String()}
	seen := map[string]bool{}
	for range 100 { // the order is random
		conn, err := lockscan.Connect(t.Context(), slices.Clone(servers), time.Minute, lockscan.Options{Dial: func(network, address string, timeout time.Duration) (net.Conn, error) {
			seen[address] = true
			return net.DialTimeout(network, address, timeout)
		}})
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if len(seen) == 2 {
			break
		}
	}
	for _, server := range servers {
		if !seen[server] || len(seen) != 2 {
			t.Errorf("dialed: %v", seen)
		}
	}
}
