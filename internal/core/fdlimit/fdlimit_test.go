//go:build unix

package fdlimit

import (
	"crypto/tls"
	"net"
	"syscall"
	"testing"
)

// TestLast accepts connections until one has one of the last file descriptors.
func TestLast(t *testing.T) {
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if n := Sixteenth(3); n != 3 {
		t.Errorf("a sixteenth, at most 3, is %d", n)
	}
	low := before
	low.Cur = 160
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Skip(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before)
	if n := Sixteenth(1000); n != 10 {
		t.Errorf("a sixteenth of 160 is %d", n)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := map[uint64]int{} // connections before the first one that is among the last, by share
	for i := range 160 {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, share := range []uint64{ForClients, ForPeers} {
			if last := Last(c, share); last != Last(tls.Server(c, nil), share) {
				t.Error("with TLS it is different")
			} else if _, found := taken[share]; last && !found {
				taken[share] = i
			}
		}
		if len(taken) == 2 {
			break
		}
	}
	// Each connection takes two descriptors here, and some are in use by the test itself.
	if d := taken[ForPeers] - taken[ForClients]; d != 5 || taken[ForClients] > 60 || taken[ForClients] < 40 {
		t.Errorf("the last are reached after %v connections", taken)
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if Last(a, 16) {
		t.Error("a connection in memory has a descriptor")
	}
}
