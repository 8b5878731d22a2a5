package lockkeeper_test

import (
	"crypto/tls"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
)

// TestConfigError breaks each rule of the configuration. The error must name the field
// that is wrong.
func TestConfigError(t *testing.T) {
	type config = lockkeeper.Config
	three := map[uint64]string{1: "a:1", 2: "b:1", 3: "c:1"}
	for _, x := range []struct {
		field, says string
		config      config
	}{
		{"ID", "255 is not in 1 to 254", config{ID: 255}},
		{"ID", "4", config{ID: 4, Peers: three}},
		{"Peers", "300 is not in 1 to 254", config{Peers: map[uint64]string{1: "a:1", 300: "b:1"}}},
		{"Peers", "servers 1 and 3 have the same address", config{Peers: map[uint64]string{1: "a:1", 2: "b:1", 3: "a:1"}}},
		{"Peers", "vote", config{Peers: map[uint64]string{1: "a:1"}, Observers: []uint64{1}}},
		{"ClientAddrs", "server 4 is not among the members", config{Peers: three, ClientAddrs: map[uint64]string{4: ":2181"}}},
		{"ClientAddrs", "server 1 is not among the members", config{ClientAddrs: map[uint64]string{1: ":2181"}}},
		{"ClientAddrs", `"2181" is not [HOST]:PORT`, config{Peers: three, ClientAddrs: map[uint64]string{1: "2181"}}},
		{"ClientAddrs", `"a:x" is not`, config{PeerAddr: "a:1", ClientAddrs: map[uint64]string{1: "a:x"}}},
		{"ElectionPorts", "server 4 is not", config{Peers: three, ElectionPorts: map[uint64]int{4: 1}}},
		{"ElectionPorts", "65536 is not a port", config{Peers: three, ElectionPorts: map[uint64]int{1: 65536}}},
		{"Join", "not both", config{Peers: three, Join: "d:1", PeerAddr: "a:1"}},
		{"PeerAddr", "to join", config{Join: "d:1"}},
		{"Observers", "9", config{Peers: three, Observers: []uint64{9}}},
		{"Observers", "joins", config{Observers: []uint64{1}}},
		{"ElectionTimeout", "99ms is less than 100ms", config{ElectionTimeout: 99 * time.Millisecond}},
		{"TickTime", "1µs is less than 1ms", config{TickTime: time.Microsecond}},
		{"TickTime", "-1s is less than 1ms", config{TickTime: -time.Second}},
		{"MinSessionTimeout", "1µs is less than 1ms", config{MinSessionTimeout: time.Microsecond}},
		{"MaxSessionTimeout", "3s is less than the minimum, 4s", config{MaxSessionTimeout: 3 * time.Second}},
		{"MaxSessionTimeout", "more than", config{MaxSessionTimeout: 1 << 62}},
		{"DigestAlgorithm", `"MD2" is not supported`, config{DigestAlgorithm: "MD2"}},
		{"EnforceAuth", `"sasl"`, config{EnforceAuth: []string{"ip", "sasl"}}},
		{"EnforceAuth", `"x509"`, config{EnforceAuth: []string{"x509"}}},
		{"EnforceAuth", `""`, config{EnforceAuth: []string{""}}},
		{"EnforceAuth", `"world"`, config{EnforceAuth: []string{"world"}}},
		{"EnforceAuth", `"digest"`, config{EnforceAuth: []string{"digest"}, NoDigest: true}},
		{"SuperDigest", `"x" is not USER:HASH`, config{SuperDigest: "x"}},
		{"X509SuperUser", "TLS", config{X509SuperUser: "CN=a"}},
		{"TLS", "certificate", config{SecureAddr: "127.0.0.1:0"}},
		{"TLS", "certificate", config{SecureAddr: "127.0.0.1:0", TLS: &tls.Config{}}},
		{"SecureAddr", "without an address", config{TLS: &tls.Config{}}},
		{"MaxFrameBytes", "16777217 is more than 16777216", config{MaxFrameBytes: lockkeeper.MaxFrameLimit + 1}},
		{"MaxFrameBytes", "-1 is negative", config{MaxFrameBytes: -1}},
		{"MaxOutboxBytes", "is less than", config{MaxOutboxBytes: 3<<20 - 2}},
		{"MaxOutboxBytes", "-1 is negative", config{MaxOutboxBytes: -1}},
		{"MaxSessions", "-1 is negative", config{MaxSessions: -1}},
		{"MaxWatches", "-1 is negative", config{MaxWatches: -1}},
		{"MaxTLSHandshakes", "-1 is negative", config{MaxTLSHandshakes: -1}},
		{"MaxOutstanding", "-1 is negative", config{MaxOutstanding: -1}},
		{"MaxConnections", "-1 is negative", config{MaxConnections: -1}},
		{"MaxConnectionsPerAddress", "-1 is negative", config{MaxConnectionsPerAddress: -1}},
		{"SnapshotBytes", "-1 is negative", config{SnapshotBytes: -1}},
		{"ContainerCheckInterval", "-1s is negative", config{ContainerCheckInterval: -time.Second}},
		{"HandshakeTimeout", "-1s is negative", config{HandshakeTimeout: -time.Second}},
	} {
		s, err := lockkeeper.Open(x.config)
		if err == nil {
			s.Close()
		}
		var bad *lockkeeper.ConfigError
		if !errors.As(err, &bad) || bad.Field != x.field || !strings.Contains(bad.Reason, x.says) || err.Error() != "lockkeeper: "+x.field+": "+bad.Reason {
			t.Errorf("%s, %s: %v", x.field, x.says, err)
		}
		if _, is := reflect.TypeFor[config]().FieldByName(x.field); !is {
			t.Errorf("the configuration has no field %s", x.field)
		}
	}
}
