package tlsfiles

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestRevoked: a client is let in if a list of its authority that has not ended does not name it. A new
// list counts when it is read.
func TestRevoked(t *testing.T) {
	s := newStores(t)
	other, later := testkit.NewCA(t), time.Now().Add(time.Hour)
	ann, bob := s.ca.Client(t, pkix.Name{CommonName: "ann"}), s.ca.Client(t, pkix.Name{CommonName: "bob"})
	cert, _ := testkit.WritePair(t, s.pair, s.dir, "both.pem", "both.pem")
	list := s.ca.WriteCRL(t, s.dir, "crl.pem", later, bob)
	f := Files{Cert: cert, CA: s.ca.WriteCA(t, s.dir, "ca.pem"), CRL: list}
	k := testkit.Must(openFiles(f))(t)
	in := func(who string, client tls.Certificate, want bool) {
		t.Helper()
		if _, err := presented(t, k.Server(), client); (err == nil) != want {
			t.Errorf("%s: %v", who, err)
		}
	}
	in("ann", ann, true)
	in("bob, who is revoked", bob, false)
	if end := k.State().CRLEnd; !end.Equal(later.UTC().Truncate(time.Second)) {
		t.Errorf("the list ends at %v", end)
	}
	s.ca.WriteCRL(t, s.dir, "crl.pem", later, ann)
	k.Reload()
	in("ann, who is revoked now", ann, false)
	in("bob", bob, true)
	s.ca.WriteCRL(t, s.dir, "crl.pem", time.Now().Add(-time.Hour), ann)
	k = testkit.Must(openFiles(f))(t)
	in("bob, with a list that has ended", bob, false)
	other.WriteCRL(t, s.dir, "crl.pem", later)
	k.Reload()
	in("bob, with a list of another authority of the same name", bob, false)
	block, _ := pem.Decode(testkit.Must(os.ReadFile(s.ca.WriteCRL(t, s.dir, "crl.pem", later, ann)))(t))
	s.write(t, "crl.pem", block.Bytes)
	k.Reload()
	in("ann, with a list in DER", ann, false)
	in("bob, with a list in DER", bob, true)
	if s := k.State(); s.Failures != 0 || s.Reloads != 2 {
		t.Errorf("%+v", s)
	}

	wanted := Settings{ClientAuth: tls.VerifyClientCertIfGiven}
	k = testkit.Must(Open(f, wanted, testkit.Quiet))(t)
	if _, err := presented(t, k.Server()); err != nil {
		t.Errorf("a client without a certificate, which is only wanted: %v", err)
	}
	for says, text := range map[string]string{
		"no list of revoked certificates in PEM or DER form": "text",
		"the list: ":                       "0abc",
		"the list that begins at byte 2: ": "x\n-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n",
	} {
		f.CRL = s.write(t, "bad.pem", []byte(text))
		if _, err := openFiles(f); err == nil || !strings.HasPrefix(err.Error(), f.CRL+": "+says) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestClientAddresses: a client whose certificate is for another address is refused.
func TestClientAddresses(t *testing.T) {
	s := newStores(t)
	cert, _ := testkit.WritePair(t, s.pair, s.dir, "both.pem", "both.pem")
	bob := s.ca.Peer(t)
	f := Files{Cert: cert, CA: s.ca.WriteCA(t, s.dir, "ca.pem"), CRL: s.ca.WriteCRL(t, s.dir, "crl.pem", time.Now().Add(time.Hour), bob)}
	k := testkit.Must(Open(f, Settings{ClientAuth: tls.VerifyClientCertIfGiven, ClientAddresses: true}, testkit.Quiet))(t)
	l := testkit.Must(tls.Listen("tcp", "127.0.0.1:0", k.Server()))(t)
	defer l.Close()
	judge := func(certificates ...tls.Certificate) error {
		done := make(chan error, 1)
		go func() {
			c, err := l.Accept()
			if err == nil {
				err = c.(*tls.Conn).Handshake()
				c.Close()
			}
			done <- err
		}()
		c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: s.ca.Pool, Certificates: certificates})
		if err == nil {
			c.Read(make([]byte, 1))
			c.Close()
		}
		return <-done
	}
	if err := judge(s.ca.Peer(t)); err != nil { // for 127.0.0.1
		t.Error(err)
	}
	if err := judge(); err != nil {
		t.Errorf("a client without a certificate: %v", err)
	}
	if err := judge(s.ca.Client(t, pkix.Name{CommonName: "127.0.0.1"})); err == nil || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("a client with a certificate for no address: %v", err)
	}
	if err := judge(bob); err == nil || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("a client who is revoked: %v", err)
	}
	if err := forAddress(tls.ConnectionState{PeerCertificates: nil}, &net.UnixAddr{}); err != nil {
		t.Error(err)
	}
}

func TestVersions(t *testing.T) {
	const (
		ecdsa = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
		cbc   = "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256"
		newer = "TLS_AES_128_GCM_SHA256"
	)
	for _, x := range []struct {
		protocols, suites string
		min, max          uint16
		says              string
	}{
		{"", "", 0, 0, ""},
		{"TLSv1.2", "", tls.VersionTLS12, tls.VersionTLS12, ""},
		{"TLSv1.3,TLSv1.2", "", tls.VersionTLS12, tls.VersionTLS13, ""},
		{"TLSv1.3", "", tls.VersionTLS13, tls.VersionTLS13, ""},
		{"TLSv1,TLSv1.1", "", tls.VersionTLS10, tls.VersionTLS11, ""},
		{"TLSv1.1,TLSv1.3", "", 0, 0, "leaves out a version"},
		{"SSLv3", "", 0, 0, `"SSLv3" is none of TLSv1`},
		{"", ecdsa + "," + cbc, 0, tls.VersionTLS12, ""},
		{"", newer, tls.VersionTLS13, 0, ""},
		{"TLSv1.2,TLSv1.3", ecdsa + "," + newer, tls.VersionTLS12, tls.VersionTLS13, ""},
		{"TLSv1.2", newer, 0, 0, "of TLSv1.3"},
		{"TLSv1.3", ecdsa, 0, 0, "of TLSv1.3"},
		{"", "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256", 0, 0, "crypto/tls has no cipher suite"},
	} {
		split := func(list string) []string {
			return slices.DeleteFunc(strings.Split(list, ","), func(name string) bool { return name == "" })
		}
		var s Settings
		err := s.SetProtocols(split(x.protocols))
		if err == nil {
			err = s.SetCipherSuites(split(x.suites))
		}
		if x.says != "" {
			if err == nil || !strings.Contains(err.Error(), x.says) {
				t.Errorf("%s, %s: %v", x.protocols, x.suites, err)
			}
		} else if err != nil || s.MinVersion != x.min || s.MaxVersion != x.max {
			t.Errorf("%s, %s: %x to %x, %v", x.protocols, x.suites, s.MinVersion, s.MaxVersion, err)
		}
	}

	// What is set is what a client gets.
	st := newStores(t)
	cert, _ := testkit.WritePair(t, st.pair, st.dir, "both.pem", "both.pem")
	var s Settings
	check(t, s.SetCipherSuites([]string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}))
	k := testkit.Must(Open(Files{Cert: cert}, s, testkit.Quiet))(t)
	l := testkit.Must(tls.Listen("tcp", "127.0.0.1:0", k.Server()))(t)
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			c.(*tls.Conn).Handshake()
			c.Close()
		}
	}()
	c := testkit.Must(tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: st.ca.Pool}))(t)
	defer c.Close()
	if cs := c.ConnectionState(); cs.Version != tls.VersionTLS12 || tls.CipherSuiteName(cs.CipherSuite) != "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384" {
		t.Errorf("%x with %s", cs.Version, tls.CipherSuiteName(cs.CipherSuite))
	}
}
