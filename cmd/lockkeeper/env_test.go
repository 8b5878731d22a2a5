package main

import (
	"net"
	"strings"
	"testing"
)

// TestEnvironmentOfOthers sets variables that belong to one command and runs
// another, which must not read them.
func TestEnvironmentOfOthers(t *testing.T) {
	closed := func() string { // an address at which nobody listens
		l, err := net.Listen("tcp", "127.0.0.1:0")
		check1(t, err)
		defer l.Close()
		return l.Addr().String()
	}()
	for name, value := range map[string]string{"LOCKKEEPER_OBSERVER": "true", "LOCKKEEPER_TIMEOUT": "soon", "LOCKKEEPER_PEER": "x"} {
		code, _, stderr := call(map[string]string{name: value, "LOCKKEEPER_SERVER": closed}, "cluster", "status")
		if oneError(t, stderr, "refused"); code != exitFault {
			t.Errorf("cluster status with %s: exit %d", name, code)
		}
	}
	for name, value := range map[string]string{"LOCKKEEPER_TIMEOUT": "soon", "LOCKKEEPER_WIRE_LISTEN": "x"} {
		code, _, stderr := call(map[string]string{name: value}, "wire", "replay", "../../testdata/golden/12-create-persistent.txt", closed)
		if oneError(t, stderr, "differs"); code != exitFault {
			t.Errorf("wire replay with %s: exit %d", name, code)
		}
	}
	p := start(t, []string{"LOCKKEEPER_LISTEN=" + closed}, "wire", "--to", closed).waitReady()
	if p.addr == closed {
		t.Errorf("wire listens on %s, which LOCKKEEPER_LISTEN gives to serve", p.addr)
	}
	p = start(t, []string{"LOCKKEEPER_WIRE_LISTEN=" + closed, "LOCKKEEPER_LISTEN=x"}, "wire", "--to", closed).waitReady()
	if p.addr != closed {
		t.Errorf("wire listens on %s, but LOCKKEEPER_WIRE_LISTEN is %s", p.addr, closed)
	}
}

// TestPeerOverServer: what stands on the command line wins over the
// environment, also between two flags that exclude each other.
func TestPeerOverServer(t *testing.T) {
	for _, x := range []struct {
		env  map[string]string
		args string
		code int
		says string
	}{
		{map[string]string{"LOCKKEEPER_SERVER": "server.invalid:1"}, "--peer 127.0.0.1:1", exitFault, "127.0.0.1:1"},
		{map[string]string{"LOCKKEEPER_CLUSTER_PEER": "peer.invalid:1"}, "--server 127.0.0.1:1", exitFault, "127.0.0.1:1"},
		{map[string]string{"LOCKKEEPER_CLUSTER_PEER": "127.0.0.1:1"}, "", exitFault, "127.0.0.1:1"},
		{map[string]string{"LOCKKEEPER_CLUSTER_PEER": "a:1", "LOCKKEEPER_SERVER": "b:1"}, "", exitUsage, "-peer"},
		{nil, "--peer a:1 --server b:1", exitUsage, "-peer"},
	} {
		code, _, stderr := call(x.env, append([]string{"cluster", "status"}, strings.Fields(x.args)...)...)
		if oneError(t, stderr, x.says); code != x.code {
			t.Errorf("%v %s: exit %d", x.env, x.args, code)
		}
	}
}
