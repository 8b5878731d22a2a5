package whole

import (
	"crypto/tls"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
)

// TestConfigError breaks each rule of the configuration. The error must name the field
// that is wrong.
func TestConfigError(t *testing.T) {
	type config = lockkeeper.Config
	three := []lockkeeper.Peer{{ID: 1, Addr: "a:1"}, {ID: 2, Addr: "b:1"}, {ID: 3, Addr: "c:1"}}
	first := func(change func(p *lockkeeper.Peer)) config { // three, with another first one
		peers := slices.Clone(three)
		change(&peers[0])
		return config{ID: 2, Peers: peers}
	}
	for _, x := range []struct {
		field, says string
		config      config
	}{
		{"ID", "255 is not in 1 to 254", config{ID: 255}},
		{"ID", "server 4 is not among the members", config{ID: 4, Peers: three}},
		{"Peers", "300 is not in 1 to 254", first(func(p *lockkeeper.Peer) { p.ID = 300 })},
		{"Peers", "id 0 is not in 1 to 254", first(func(p *lockkeeper.Peer) { p.ID = 0 })},
		{"Peers", "server 2 is listed more than once", first(func(p *lockkeeper.Peer) { p.ID = 2 })},
		{"Peers", "servers 1 and 3 have the same address", first(func(p *lockkeeper.Peer) { p.Addr = "c:1" })},
		{"Peers", "server 1 has no address", first(func(p *lockkeeper.Peer) { p.Addr = "" })},
		{"Peers", "vote", config{Peers: []lockkeeper.Peer{{ID: 1, Addr: "a:1", Observer: true}}}},
		{"Peers", `server 1: "2181" is not [HOST]:PORT`, first(func(p *lockkeeper.Peer) { p.ClientAddr = "2181" })},
		{"Peers", "server 1: 65536 is not a port", first(func(p *lockkeeper.Peer) { p.ElectionPort = 65536 })},
		{"Peers", "server 1: -1 is not a port", first(func(p *lockkeeper.Peer) { p.ElectionPort = -1 })},
		{"AdvertisedClientAddr", "peer port", config{AdvertisedClientAddr: ":2181"}},
		{"AdvertisedClientAddr", "the list", config{Peers: three, AdvertisedClientAddr: ":2181"}},
		{"AdvertisedClientAddr", `"a:x" is not`, config{PeerAddr: "a:1", AdvertisedClientAddr: "a:x"}},
		{"AdvertisedElectionPort", "peer port", config{AdvertisedElectionPort: 3888}},
		{"AdvertisedElectionPort", "the list", config{Peers: three, AdvertisedElectionPort: 3888}},
		{"AdvertisedElectionPort", "65536 is not a port", config{PeerAddr: "a:1", AdvertisedElectionPort: 65536}},
		{"PeerAddr", "to join", config{Join: "d:1"}},
		{"Join", "Peers", config{Peers: three, Join: "d:1"}},
		{"JoinAsObserver", "the list", config{Peers: three, JoinAsObserver: true}},
		{"JoinAsObserver", "joins", config{JoinAsObserver: true}},
		{"ElectionTimeout", "99ms is less than 100ms", config{ElectionTimeout: 99 * time.Millisecond}},
		{"TickTime", "1µs is less than 1ms", config{TickTime: time.Microsecond}},
		{"TickTime", "-1s is less than 1ms", config{TickTime: -time.Second}},
		{"Limits.MinSessionTimeout", "1µs is less than 1ms", config{Limits: lockkeeper.Limits{MinSessionTimeout: time.Microsecond}}},
		{"Limits.MaxSessionTimeout", "3s is less than the minimum, 4s", config{Limits: lockkeeper.Limits{MaxSessionTimeout: 3 * time.Second}}},
		{"Limits.MaxSessionTimeout", "more than", config{Limits: lockkeeper.Limits{MaxSessionTimeout: 1 << 62}}},
		{"Auth.DigestAlgorithm", `"MD2" is not supported`, config{Auth: lockkeeper.Auth{DigestAlgorithm: "MD2"}}},
		{"Auth.Enforce", `"sasl"`, config{Auth: lockkeeper.Auth{Enforce: []string{"ip", "sasl"}}}},
		{"Auth.Enforce", `"x509"`, config{Auth: lockkeeper.Auth{Enforce: []string{"x509"}}}},
		{"Auth.Enforce", `""`, config{Auth: lockkeeper.Auth{Enforce: []string{""}}}},
		{"Auth.Enforce", `"world"`, config{Auth: lockkeeper.Auth{Enforce: []string{"world"}}}},
		{"Auth.Enforce", `"digest"`, config{Auth: lockkeeper.Auth{Enforce: []string{"digest"}, NoDigest: true}}},
		{"Auth.SuperDigest", `"x" is not USER:HASH`, config{Auth: lockkeeper.Auth{SuperDigest: "x"}}},
		{"Auth.SASL.Users", `"" is not a name`, config{Auth: lockkeeper.Auth{SASL: lockkeeper.SASL{Users: map[string]string{"": "x"}}}}},
		{"Auth.SASL.Users", `"a@b@c" is not a name`, config{Auth: lockkeeper.Auth{SASL: lockkeeper.SASL{Users: map[string]string{"a": "x", "a@b@c": "x"}}}}},
		{"Auth.SASL.Users", `"\xff" is not a name`, config{Auth: lockkeeper.Auth{SASL: lockkeeper.SASL{Users: map[string]string{"\xff": "x"}}}}},
		{"Auth.SASL.SuperUsers", `no user "b"`, config{Auth: lockkeeper.Auth{SASL: lockkeeper.SASL{Users: map[string]string{"a": "x"}, SuperUsers: []string{"a", "b"}}}}},
		{"Auth.SASL.Mechanism", "as well", config{Auth: lockkeeper.Auth{SASL: lockkeeper.SASL{Users: map[string]string{"a": "x"}, Mechanism: digestMD5}}}},
		{"Auth.SASL.SuperUsers", `"a@b@c" is not a name`, config{Auth: lockkeeper.Auth{SASL: lockkeeper.SASL{Mechanism: digestMD5, SuperUsers: []string{"b@C", "a@b@c"}}}}},
		{"Auth.SASL.AllowFailed", "no users", config{Auth: lockkeeper.Auth{SASL: lockkeeper.SASL{AllowFailed: true}}}},
		{"Auth.SuperX509", "TLS", config{Auth: lockkeeper.Auth{SuperX509: "CN=a"}}},
		{"TLS", "certificate", config{SecureAddr: "127.0.0.1:0"}},
		{"TLS", "certificate", config{SecureAddr: "127.0.0.1:0", TLS: &tls.Config{}}},
		{"TLSOnClientAddr", "no port", config{TLSOnClientAddr: true}},
		{"TLS", "certificate", config{TLSOnClientAddr: true, ClientAddr: "127.0.0.1:0"}},
		{"PeerTLS", "certificate", config{PeerTLS: &tls.Config{}}},
		{"Peers", `server 2: "host2:0" is not HOST:PORT`, config{Peers: []lockkeeper.Peer{{ID: 1, Addr: "host1:7000"}, {ID: 2, Addr: "host2:0"}}}},
		{"Peers", `server 1: "host1" is not HOST:PORT`, config{Peers: []lockkeeper.Peer{{ID: 1, Addr: "host1"}}}},
		{"Peers", `server 1: "0.0.0.0:7000" is not HOST:PORT`, config{Peers: []lockkeeper.Peer{{ID: 1, Addr: "0.0.0.0:7000"}}}},
		{"PeerAddr", `"127.0.0.1:0" is not HOST:PORT`, config{PeerAddr: "127.0.0.1:0"}},
		{"PeerAddr", `":7000" is not HOST:PORT`, config{PeerAddr: ":7000"}},
		{"PeerDialTLS", "PeerTLS", config{PeerDialTLS: func() *tls.Config { return nil }}},
		{"SecureAddr", "without an address", config{TLS: &tls.Config{}}},
		{"Limits.MaxFrameBytes", "16777217 is more than 16777216", config{Limits: lockkeeper.Limits{MaxFrameBytes: lockkeeper.MaxFrameLimit + 1}}},
		{"Limits.MaxFrameBytes", "-1 is negative", config{Limits: lockkeeper.Limits{MaxFrameBytes: -1}}},
		{"Limits.MaxOutboxBytes", "is less than", config{Limits: lockkeeper.Limits{MaxOutboxBytes: 3<<20 - 2}}},
		{"Limits.MaxOutboxBytes", "-1 is negative", config{Limits: lockkeeper.Limits{MaxOutboxBytes: -1}}},
		{"Limits.MaxSessions", "-1 is negative", config{Limits: lockkeeper.Limits{MaxSessions: -1}}},
		{"Limits.MaxWatches", "-1 is negative", config{Limits: lockkeeper.Limits{MaxWatches: -1}}},
		{"Limits.MaxTLSHandshakes", "-1 is negative", config{Limits: lockkeeper.Limits{MaxTLSHandshakes: -1}}},
		{"Limits.MaxOutstanding", "-1 is negative", config{Limits: lockkeeper.Limits{MaxOutstanding: -1}}},
		{"Limits.MaxConnections", "-1 is negative", config{Limits: lockkeeper.Limits{MaxConnections: -1}}},
		{"Limits.MaxConnectionsPerAddress", "-1 is negative", config{Limits: lockkeeper.Limits{MaxConnectionsPerAddress: -1}}},
		{"Limits.SnapshotBytes", "-1 is negative", config{Limits: lockkeeper.Limits{SnapshotBytes: -1}}},
		{"ContainerCheckInterval", "-1s is negative", config{ContainerCheckInterval: -time.Second}},
		{"Limits.HandshakeTimeout", "-1s is negative", config{Limits: lockkeeper.Limits{HandshakeTimeout: -time.Second}}},
	} {
		s, err := lockkeeper.Open(x.config)
		if err == nil {
			s.Close()
		}
		var bad *lockkeeper.ConfigError
		if !errors.As(err, &bad) || bad.Field != x.field || !strings.Contains(bad.Reason, x.says) || err.Error() != "lockkeeper: "+x.field+": "+bad.Reason {
			t.Errorf("%s, %s: %v", x.field, x.says, err)
		}
		in := reflect.TypeFor[config]()
		for name := range strings.SplitSeq(x.field, ".") {
			field, is := in.FieldByName(name)
			if !is {
				t.Fatalf("the configuration has no field %s", x.field)
			}
			in = field.Type
		}
	}
}
