package connect

import (
	"bufio"
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

func TestParse(t *testing.T) {
	for text, want := range map[string][]string{
		"a":                          {"", "a:2181"},
		"a:1,b":                      {"", "a:1", "b:2181"},
		" a , b:2 ,":                 {"", "a:2181", "b:2"},
		"a/":                         {"", "a:2181"},
		"a,b:1/app/x":                {"/app/x", "a:2181", "b:1"},
		"a/app,b:1":                  {"/app,b:1", "a:2181"}, // the servers come first
		"127.0.0.1":                  {"", "127.0.0.1:2181"},
		"::1":                        {"", "[::1]:2181"},
		"[::1],[2001:db8::7]:3/x":    {"/x", "[::1]:2181", "[2001:db8::7]:3"},
		"2001:db8:0:0:0:0:0:7":       {"", "[2001:db8:0:0:0:0:0:7]:2181"},
		"[fe80::1%eth0]:3":           {"", "[fe80::1%eth0]:3"},
		"[fe80::1%eth0]":             {"", "[fe80::1%eth0]:2181"},
		"a.example:2181,b.example:1": {"", "a.example:2181", "b.example:1"},
	} {
		servers, chroot, err := Parse(text)
		if got := append([]string{chroot}, servers...); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q %v", text, got, err)
		}
	}
	for _, text := range []string{"", ",", "/a", "a:", "a:b", "a:0", "a:65536", "a:-1", "[::1", "::1]", "[::1]x", "[::1]:", "a:1:2", "http://a:1"} {
		if servers, _, err := Parse(text); err == nil {
			t.Errorf("%q: %q", text, servers)
		}
	}
}

// TestSpeaksOnce: the Dialer finds out only once that a port is of the right kind, and its server
// serves nobody.
func TestSpeaksOnce(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	accepted := make(chan struct{}, 100)
	go func() { // ends with the listener
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- struct{}{}
			if b, _ := bufio.NewReader(nc).Peek(4); string(b) == "srvr" {
				nc.Write([]byte("This ZooKeeper instance is not currently serving requests\n"))
			}
			nc.Close()
		}
	}()
	d := Dialer{OnHopeless: func(h Hopeless) { t.Error(h) }}
	for i, connections := range []int{3, 1, 1} {
		nc := testkit.Must(d.DialContext(t.Context(), "tcp", l.Addr().String()))(t)
		nc.Write(make([]byte, 45))
		if _, err := nc.Read(make([]byte, 1)); err == nil || errors.As(err, &Hopeless{}) {
			t.Errorf("attempt %d: %v", i, err)
		}
		nc.Close()
		for range connections {
			select {
			case <-accepted:
			case <-time.After(time.Minute):
				t.Fatal("fewer connections")
			}
		}
	}
	if len(accepted) > 0 {
		t.Errorf("%d more connections", len(accepted))
	}
	if err := d.Check(context.Background(), l.Addr().String()); err != nil {
		t.Error(err)
	}
}
