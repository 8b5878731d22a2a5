package proto

import (
	"slices"
	"strings"
	"testing"
)

func TestParseServers(t *testing.T) {
	got, err := ParseServers("server.1=a:2888:3888\nserver.2=b:2888:3888:observer;2181,server.10=[::1]:2888:3888:PARTICIPANT;10.0.0.1:2181;2281\n\nversion=100000003")
	want := []Peer{{1, "a:2888", false, "", 3888}, {2, "b:2888", true, ":2181", 3888}, {10, "[::1]:2888", false, "10.0.0.1:2181", 3888}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for i, text := range []string{
		"server.1=a:2888:3888:participant", "server.2=b:2888:3888:observer;0.0.0.0:2181", "server.10=[::1]:2888:3888:participant;10.0.0.1:2181",
	} {
		if s := want[i].String(); s != text {
			t.Errorf("%q, want %q", s, text)
		}
	}
	for _, bad := range []string{
		"server.-1=a:1:2", "server.x=a:1:2", "host.1=a:1:2", "server.1", "server.1=", "server.1=a", "server.1=a:1",
		"server.1=a:1:x", "server.1=a:0:1", "server.1=a:1:65536", "server.1=:1:2", "server.1=a:1:2:leader", "server.1=a:1:2:observer:x", "server.1=a:1:2;",
		"server.1=a:1:2;x", "server.1=a:1:2;:", "server.1=a:1:2;h:", "server.1=a:1:2;h:x", "server.1=a:1:2;h:1:2", "server.1=a:1:2;::1:2181", "server.1=a:1:2|b:1:2", "server.1=[a]:1:2", "server.1=[::1:1:2",
		"server.1=a:1:2,server.1=b:1:2", "server.1=a:1:2,server.2=a:1:3", "group.1=1:2",
	} {
		if s, err := ParseServers(bad); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, %v", bad, s, err)
		}
	}
}
