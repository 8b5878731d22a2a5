package whole

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"testing"
	"time"

	"log/slog"
	"slices"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestPeerTLS: members authenticate each other. A server that cannot is neither added nor
// answered, and the cluster continues to work.
func TestPeerTLS(t *testing.T) {
	noGoroutineLeft(t)
	ca, foreign := testkit.NewCA(t), testkit.NewCA(t)
	mutual := func(ca *testkit.CA, certificates ...tls.Certificate) *tls.Config {
		return &tls.Config{Certificates: certificates, RootCAs: ca.Pool, ClientCAs: ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert}
	}
	var addrs []string
	for range 5 {
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", testkit.Port(t)))
	}
	peers := map[uint64]string{1: addrs[0], 2: addrs[1], 3: addrs[2]}
	var log testkit.Log
	var audit auditLines
	var servers []*lockkeeper.Server
	for id := range peers {
		s := must(lockkeeper.Open(lockkeeper.Config{ID: id, Peers: peerList(peers), PeerTLS: mutual(ca, ca.Peer(t)), Logger: log.Logger(slog.LevelInfo), Audit: audit.add}))(t)
		defer s.Close()
		servers = append(servers, s)
	}
	for i, s := range servers {
		<-s.Ready()
		must(connect(t, inMemory(s)).Create(fmt.Sprintf("/by%d", i), nil, 0))(t)
	}
	ours := peer.TCP{TLS: mutual(ca, ca.Peer(t))}
	request.Ask(t.Context(), ours, addrs[0], request.Request{Remove: 9})
	eventually(t, "the line of the audit log", func() bool {
		return slices.Contains(audit.all(), "user=127.0.0.1,CN=peer ip=127.0.0.1 operation=reconfig result=failure")
	})
	start := time.Now()
	none := mutual(ca) // Open wants a certificate
	none.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("none") }
	strangers := map[string]*tls.Config{
		"no certificate":         none,
		"of a foreign authority": {Certificates: []tls.Certificate{foreign.Peer(t)}, InsecureSkipVerify: true, ClientCAs: ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert},
		"an expired certificate": mutual(ca, ca.Expired(t, pkix.Name{CommonName: "peer"})),
		"no TLS":                 nil,
	}
	for name, config := range strangers {
		t.Run(name, func(t *testing.T) {
			var own testkit.Log
			if s, err := request.Ask(t.Context(), peer.TCP{TLS: config}, addrs[0], request.Request{Status: true}); err == nil {
				t.Errorf("answered %+v", s)
			}
			cfg := lockkeeper.Config{ID: 4, PeerAddr: addrs[3], Join: addrs[0], PeerTLS: config, Logger: own.Logger(slog.LevelInfo)}
			s := must(lockkeeper.Open(cfg))(t)
			defer s.Close()
			eventually(t, "the message that it is not in the cluster", func() bool { return len(own.Matching("not in the cluster yet")) > 0 })
			select {
			case <-s.Ready():
				t.Error("it serves")
			default:
			}
			q := request.Request{Add: &proto.Peer{ID: 4, Addr: addrs[3]}}
			if s, err := request.Ask(t.Context(), ours, addrs[0], q); err == nil {
				t.Errorf("added on request: %+v", s)
			}
			if s := must(request.Ask(t.Context(), ours, addrs[0], request.Request{Status: true}))(t); len(s.Members) != 3 {
				t.Errorf("members %+v", s.Members)
			}
		})
	}
	said := func() []string { return log.Matching("WARN", "TLS handshake failed", "tls: ") }
	eventually(t, "the warning about strangers", func() bool {
		if len(said()) == 0 { // if a handshake timed out first, the log has another message
			request.Ask(t.Context(), peer.TCP{TLS: strangers["no certificate"]}, addrs[0], request.Request{Status: true})
		}
		return len(said()) > 0
	})
	// Each member may log it once in ten seconds.
	if said := said(); len(said) > len(peers)*(1+int(time.Since(start)/(10*time.Second))) {
		t.Errorf("the log of the others: %q", said)
	}
	s := must(lockkeeper.Open(lockkeeper.Config{ID: 5, PeerAddr: addrs[4], Join: addrs[2], PeerTLS: ours.TLS}))(t)
	defer s.Close()
	if err := ready(s); err != nil {
		t.Error("a server with a good certificate cannot join: ", err)
	}
}
