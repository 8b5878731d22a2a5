package main

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"software.sslmate.com/src/go-pkcs12"

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
	p.stop()
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

// TestTLSFiles: with a missing or wrong file for TLS, of whatever port and command, the program ends with the exit code of
// a mistake and one line, which names the flag, variable or key and then the file.
func TestTLSFiles(t *testing.T) {
	dir, ca := t.TempDir(), testkit.NewCA(t)
	pair := ca.Peer(t)
	authority := ca.WriteCA(t, dir, "ca.pem")
	cert, key := testkit.WritePair(t, pair, dir, "cert.pem", "key.pem")
	_, otherKey := testkit.WritePair(t, ca.Server(t), dir, "other.pem", "otherkey.pem")
	file := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		check1(t, os.WriteFile(path, text, 0o600))
		return path
	}
	missing := filepath.Join(dir, "missing.pem")
	store := file("store.p12", value(pkcs12.Modern.Encode(pair.PrivateKey, pair.Leaf, nil, "right"))(t))
	trust := file("trust.p12", value(pkcs12.Modern.EncodeTrustStore([]*x509.Certificate{pair.Leaf}, "right"))(t))
	wrong := file("wrong", []byte("SECRET\n"))
	tried := 0
	for _, x := range []struct{ cert, key, password, ca, caPassword, crl, flag, says string }{
		{cert: missing, ca: authority, flag: "cert", says: missing},
		{cert: dir, ca: authority, flag: "cert", says: dir},
		{cert: cert, ca: authority, flag: "cert", says: cert}, // no key in it
		{cert: cert, key: missing, ca: authority, flag: "key", says: missing},
		{cert: cert, key: otherKey, ca: authority, flag: "key", says: otherKey + ": tls: private key does not match public key"},
		{cert: cert, key: key, ca: missing, flag: "ca", says: missing},
		{cert: cert, key: key, ca: key, flag: "ca", says: key + ": no certificate in PEM form"},
		{cert: cert, key: key, ca: trust, caPassword: wrong, flag: "ca", says: trust + ": decryption password incorrect"},
		{cert: cert, key: key, ca: authority, caPassword: missing, flag: "ca-password-file", says: missing},
		{cert: store, password: wrong, ca: authority, flag: "cert", says: store + ": decryption password incorrect"},
		{cert: store, password: missing, ca: authority, flag: "password-file", says: missing},
		{cert: cert, key: key, ca: authority, crl: key, flag: "crl", says: key + ": no list of revoked certificates"},
		{cert: cert, key: key, ca: authority, crl: missing, flag: "crl", says: missing},
	} {
		for _, of := range []struct{ prefix, command, more string }{
			{"tls-", "serve", "--memory --listen 127.0.0.1:0 --tls-listen 127.0.0.1:0"}, {"peer-tls-", "serve", "--memory --listen 127.0.0.1:0"},
			{"admin-tls-", "serve", "--memory --listen 127.0.0.1:0 --admin 127.0.0.1:0"}, {"peer-tls-", "cluster status", "--peer 127.0.0.1:1"},
			{"tls-", "zk", "--server 127.0.0.1:1 ls /"}, {"tls-", "lock run", "--server 127.0.0.1:1 /a -- true"}, {"tls-", "wire replay", "x 127.0.0.1:1"},
		} {
			args := strings.Fields(of.command)
			c, _, err := newRoot(io.Discard, io.Discard).Find(args)
			check1(t, err)
			has := true
			for name, path := range map[string]string{"cert": x.cert, "key": x.key, "password-file": x.password, "ca": x.ca, "ca-password-file": x.caPassword, "crl": x.crl} {
				if path == "" {
				} else if c.Flag(of.prefix+name) != nil {
					args = append(args, "--"+of.prefix+name, path)
				} else if name != "ca" { // --admin asks nobody for a certificate
					has = false
				}
			}
			if !has || c.Flag(of.prefix+x.flag) == nil {
				continue
			}
			tried++
			refuses(t, exitUsage, append(args, strings.Fields(of.more)...), "lockkeeper: --"+of.prefix+x.flag+": ", x.says)
		}
	}
	if tried < 50 {
		t.Errorf("only %d cases", tried)
	}
	code, _, stderr := call(map[string]string{"LOCKKEEPER_PEER_TLS_CERT": missing, "LOCKKEEPER_PEER_TLS_CA": authority}, "cluster", "status")
	if oneError(t, stderr, "lockkeeper: LOCKKEEPER_PEER_TLS_CERT: ", missing); code != exitUsage {
		t.Errorf("a variable: exit %d", code)
	}
	for lines, says := range map[string]string{
		"secureClientPort=1\nssl.keyStore.location=" + store + "\nssl.keyStore.password=SECRET":                                                                                               "ssl.keyStore.location in CFG: " + store + ": decryption password incorrect",
		"secureClientPort=1\nssl.keyStore.location=" + store + "\nssl.keyStore.passwordPath=" + wrong:                                                                                         "ssl.keyStore.location in CFG: " + store + ": decryption password incorrect",
		"secureClientPort=1\nssl.keyStore.location=" + store + "\nssl.keyStore.passwordPath=" + missing:                                                                                       "ssl.keyStore.passwordPath in CFG: ",
		"secureClientPort=1\nssl.keyStore.location=" + missing:                                                                                                                                "ssl.keyStore.location in CFG: ",
		"sslQuorum=true\nssl.quorum.keyStore.location=" + store + "\nssl.quorum.keyStore.password=right\nssl.quorum.trustStore.location=" + trust + "\nssl.quorum.trustStore.password=SECRET": "ssl.quorum.trustStore.location in CFG: " + trust + ": ",
	} {
		if strings.HasPrefix(lines, "secure") {
			lines += "\nssl.trustStore.location=" + authority
		}
		cfg := zooCfg(t, strings.Split(lines, "\n")...)
		refuses(t, exitUsage, []string{"serve", "--memory", "--listen", "127.0.0.1:0", "--config", cfg}, "lockkeeper: "+strings.ReplaceAll(says, "CFG", cfg))
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
	p.stop()

	p = start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--config", zooCfg(t, append(keys, "ssl.clientAuth=WANT")...)).waitReady()
	if ids, err := identities(t, p.secureAddr(), ca); err != nil || len(ids) != 1 {
		t.Errorf("without a certificate, which is only wanted: %v, %v", ids, err)
	}
	check1(t, p.connect().Ping())
}
