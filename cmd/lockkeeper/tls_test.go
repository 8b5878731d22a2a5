package main

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

const secureLine = "lockkeeper: serving ZooKeeper clients with TLS on "

// secureAddr waits until the server is ready for clients with TLS, and returns its address.
func (p *process) secureAddr() string {
	p.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, l := range p.lines() {
			if addr, ok := strings.CutPrefix(l, secureLine); ok {
				return addr
			}
		}
	}
	p.t.Fatalf("not ready: %q", p.lines())
	return ""
}

// identities opens a session with TLS and returns its identities.
func identities(t *testing.T, addr string, ca *testkit.CA, certificates ...tls.Certificate) (ids []proto.ID, err error) {
	nc, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", addr, &tls.Config{RootCAs: ca.Pool, Certificates: certificates})
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	c, err := rawclient.Open(nc, 30*time.Second)
	if err != nil {
		return nil, err
	}
	var r proto.WhoAmIReply
	_, err = c.Call(proto.OpWhoAmI, nil, &r)
	return r.IDs, err
}

func isAnn(ids []proto.ID) bool {
	return len(ids) == 2 && ids[0] == proto.ID{Scheme: "x509", ID: "CN=ann"}
}

// TestServeTLS configures TLS by flags, with and without a plain port.
func TestServeTLS(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), testkit.NewCA(t)
	authority := ca.WriteCA(t, dir, "ca.pem")
	cert, key := testkit.WritePair(t, ca.Server(t), dir, "cert.pem", "key.pem")
	ann := ca.Client(t, pkix.Name{CommonName: "ann"})

	p := start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--tls-listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key,
		"--tls-ca", authority, "--x509-super-user", "CN=root").waitReady()
	addr := p.secureAddr()
	if ids, err := identities(t, addr, ca, ann); err != nil || !isAnn(ids) {
		t.Errorf("%v, %v", ids, err)
	}
	if ids, err := identities(t, addr, ca, ca.Client(t, pkix.Name{CommonName: "root"})); err != nil || len(ids) != 3 || ids[0].Scheme != proto.SchemeSuper {
		t.Errorf("the super user is %v, %v", ids, err)
	}
	if ids, err := identities(t, addr, ca); err == nil {
		t.Errorf("without a certificate: %v", ids)
	}
	if err := p.connect().Ping(); err != nil {
		t.Error(err)
	}
	_, port, _ := net.SplitHostPort(addr)
	if conf := p.conf(); !strings.Contains(conf, "secureClientPort="+port+"\n") {
		t.Error(conf)
	}

	// One file for certificate and key, no plain port, and no client certificates.
	both, _ := testkit.WritePair(t, ca.Server(t), dir, "both.pem", "both.pem")
	p = start(t, []string{"LOCKKEEPER_TLS_CERT=" + both, "LOCKKEEPER_TLS_CLIENT_AUTH=NONE"}, "serve", "--memory", "--listen=", "--tls-listen", "127.0.0.1:0")
	if ids, err := identities(t, p.secureAddr(), ca, ann); err != nil || len(ids) != 1 {
		t.Errorf("%v, %v", ids, err)
	}
	for _, l := range p.lines() {
		if readyLine.MatchString(l) {
			t.Errorf("a plain port, too: %s", l)
		}
	}
	check1(t, p.Process.Signal(os.Interrupt))
	if code := p.exit(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// TestZooCfgTLSLimits serves TLS on the plain port, and only to clients with TLS 1.2 and a certificate
// that is not revoked and names their address.
func TestZooCfgTLSLimits(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), testkit.NewCA(t)
	both, _ := testkit.WritePair(t, ca.Server(t), dir, "both.pem", "both.pem")
	ann, bob := ca.Peer(t), ca.Peer(t)
	cfg := zooCfg(t, "client.portUnification=true", "ssl.keyStore.location="+both,
		"ssl.trustStore.location="+ca.WriteCA(t, dir, "ca.pem"), "ssl.clientHostnameVerification=true", "ssl.crl=true",
		"ssl.protocol=TLSv1.3", "ssl.enabledProtocols=TLSv1.2", "ssl.ciphersuites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")
	p := start(t, []string{"LOCKKEEPER_TLS_CRL=" + ca.WriteCRL(t, dir, "crl.pem", time.Now().Add(time.Hour), bob)}, "serve", "--memory", "--listen", "127.0.0.1:0", "--config", cfg).waitReady()
	check1(t, p.connect().Ping())
	nc, err := tls.Dial("tcp", p.addr, &tls.Config{RootCAs: ca.Pool, Certificates: []tls.Certificate{ann}})
	check1(t, err)
	defer nc.Close()
	if s := nc.ConnectionState(); s.Version != tls.VersionTLS12 || s.CipherSuite != tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 {
		t.Errorf("%x, %s", s.Version, tls.CipherSuiteName(s.CipherSuite))
	}
	if ids, err := identities(t, p.addr, ca, ann); err != nil || len(ids) != 2 || ids[0].ID != "CN=peer" {
		t.Errorf("%v, %v", ids, err)
	}
	if ids, err := identities(t, p.addr, ca, bob); err == nil {
		t.Errorf("with a certificate that is revoked: %v", ids)
	}
	if ids, err := identities(t, p.addr, ca, ca.Client(t, pkix.Name{CommonName: "eve"})); err == nil {
		t.Errorf("with a certificate for no address: %v", ids)
	}
}

// TestServeTLSFiles checks that the server does not start with a missing or wrong file, and names it.
func TestServeTLSFiles(t *testing.T) {
	dir, ca := t.TempDir(), testkit.NewCA(t)
	authority := ca.WriteCA(t, dir, "ca.pem")
	cert, key := testkit.WritePair(t, ca.Server(t), dir, "cert.pem", "key.pem")
	_, otherKey := testkit.WritePair(t, ca.Server(t), dir, "other.pem", "otherkey.pem")
	missing := filepath.Join(dir, "missing.pem")
	for says, files := range map[string][3]string{
		missing:                              {missing, key, authority},
		missing + ":":                        {cert, missing, authority},
		"missing.pem:":                       {cert, key, missing},
		otherKey:                             {cert, otherKey, authority},
		cert:                                 {cert, "", authority}, // no key in it
		key + ": no certificate in PEM form": {cert, key, key},
	} {
		code, _, stderr := call(nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--tls-listen", "127.0.0.1:0",
			"--tls-cert", files[0], "--tls-key", files[1], "--tls-ca", files[2])
		if code != exitFault {
			t.Errorf("%v: exit %d", files, code)
		}
		oneError(t, stderr, says)
	}
}

// TestZooCfgTLS configures TLS with ZooKeeper's keys.
func TestZooCfgTLS(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), testkit.NewCA(t)
	authority := ca.WriteCA(t, dir, "ca.crt")
	both, _ := testkit.WritePair(t, ca.Server(t), dir, "both.pem", "both.pem")
	ann := ca.Client(t, pkix.Name{CommonName: "ann"})
	keys := []string{"secureClientPort=" + fmt.Sprint(testkit.Port(t)), "secureClientPortAddress=127.0.0.1", "clientPort=0", "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
		"ssl.keyStore.location=" + both, "ssl.keyStore.password=", "ssl.trustStore.location=" + authority, "ssl.trustStore.type=PEM",
		"authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider", "zookeeper.X509AuthenticationProvider.superUser=CN=root",
		"ssl.hostnameVerification=true", "ssl.quorum.keyStore.location=/x.jks", "sslQuorum=false"}

	p := start(t, nil, "serve", "--memory", "--config", zooCfg(t, keys...))
	addr := p.secureAddr()
	if ids, err := identities(t, addr, ca, ann); err != nil || !isAnn(ids) {
		t.Errorf("%v, %v", ids, err)
	}
	if ids, err := identities(t, addr, ca); err == nil {
		t.Errorf("without a certificate, which is needed by default: %v", ids)
	}
	for _, l := range p.lines() {
		if readyLine.MatchString(l) || strings.Contains(l, "level=WARN") && !strings.Contains(l, "handshake") {
			t.Errorf("clientPort is 0, and every key is known, but: %s", l)
		}
	}
	check1(t, p.Process.Signal(os.Interrupt))
	p.exit()

	p = start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--config", zooCfg(t, append(keys, "ssl.clientAuth=WANT")...)).waitReady()
	if ids, err := identities(t, p.secureAddr(), ca); err != nil || len(ids) != 1 {
		t.Errorf("without a certificate, which is only wanted: %v, %v", ids, err)
	}
	check1(t, p.connect().Ping())
}
