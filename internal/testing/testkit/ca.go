package testkit

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA is a certificate authority for tests. Its certificates are valid from 1990 to 2190,
// and so in virtual time too, except those of Expired and Between.
type CA struct {
	Pool *x509.CertPool // contains only this authority

	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	serial int64
}

var validFrom, validTo = time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2190, 1, 1, 0, 0, 0, 0, time.UTC)

// NewCA creates an authority.
func NewCA(t testing.TB) *CA {
	t.Helper()
	ca := &CA{Pool: x509.NewCertPool()}
	ca.cert, ca.key = ca.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "Test CA"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign})
	ca.Pool.AddCert(ca.cert)
	return ca
}

var (
	localNames = []string{"localhost"}
	loopback   = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	server     = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	client     = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	both       = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
)

// Server issues a certificate for a server on the loopback interface.
func (ca *CA) Server(t testing.TB) tls.Certificate {
	t.Helper()
	return ca.issue(t, x509.Certificate{Subject: pkix.Name{CommonName: "server"}, DNSNames: localNames, IPAddresses: loopback, ExtKeyUsage: server})
}

// Peer issues a certificate for a cluster member on the loopback interface, which is
// both a server and a client to the other members.
func (ca *CA) Peer(t testing.TB) tls.Certificate {
	t.Helper()
	return ca.issue(t, x509.Certificate{Subject: pkix.Name{CommonName: "peer"}, DNSNames: localNames, IPAddresses: loopback, ExtKeyUsage: both})
}

// Named issues a certificate for a server with these host names, which can also be that of a client.
func (ca *CA) Named(t testing.TB, hosts ...string) tls.Certificate {
	t.Helper()
	return ca.issue(t, x509.Certificate{Subject: pkix.Name{CommonName: hosts[0]}, DNSNames: hosts, ExtKeyUsage: both})
}

// Between issues a certificate for a server on the loopback interface that is valid between two times.
func (ca *CA) Between(t testing.TB, from, to time.Time) tls.Certificate {
	t.Helper()
	return ca.issue(t, x509.Certificate{Subject: pkix.Name{CommonName: "server"}, IPAddresses: loopback[:1], ExtKeyUsage: server, NotBefore: from, NotAfter: to})
}

// Bad issues a certificate for a member with the common name localhost, which another member must not accept:
// it has no other name or, if ended is set, it has, but has expired.
func (ca *CA) Bad(t testing.TB, ended bool) tls.Certificate {
	t.Helper()
	c := x509.Certificate{Subject: pkix.Name{CommonName: "localhost"}, ExtKeyUsage: both}
	if ended {
		c.DNSNames, c.NotAfter = localNames, validFrom.Add(time.Hour)
	}
	return ca.issue(t, c)
}

// Client issues a client certificate.
func (ca *CA) Client(t testing.TB, subject pkix.Name) tls.Certificate {
	t.Helper()
	return ca.issue(t, x509.Certificate{Subject: subject, ExtKeyUsage: client})
}

// Expired issues a client certificate that has expired.
func (ca *CA) Expired(t testing.TB, subject pkix.Name) tls.Certificate {
	t.Helper()
	return ca.issue(t, x509.Certificate{Subject: subject, ExtKeyUsage: client, NotAfter: validFrom.Add(time.Hour)})
}

func (ca *CA) issue(t testing.TB, template x509.Certificate) tls.Certificate {
	t.Helper()
	cert, key := ca.sign(t, &template)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

func (ca *CA) sign(t testing.TB, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca.serial++
	template.SerialNumber, template.BasicConstraintsValid = big.NewInt(ca.serial), true
	template.NotBefore, template.NotAfter = cmp.Or(template.NotBefore, validFrom), cmp.Or(template.NotAfter, validTo)
	parent, signer := ca.cert, ca.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// WriteCA writes the authority's certificate to a PEM file of that name, and returns its path.
func (ca *CA) WriteCA(t testing.TB, dir, name string) string {
	t.Helper()
	return write(t, dir, name, &pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}

// WriteCRL writes the authority's list of revoked certificates, which ends at a time, to a PEM file of
// that name, and returns its path.
func (ca *CA) WriteCRL(t testing.TB, dir, name string, end time.Time, revoked ...tls.Certificate) string {
	t.Helper()
	ca.serial++
	list := &x509.RevocationList{Number: big.NewInt(ca.serial), ThisUpdate: validFrom, NextUpdate: end}
	for _, pair := range revoked {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: pair.Leaf.SerialNumber, RevocationTime: validFrom})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, ca.cert, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return write(t, dir, name, &pem.Block{Type: "X509 CRL", Bytes: der})
}

// WritePair writes a certificate and its key to PEM files, and returns their
// paths. With one name for both they go into one file.
func WritePair(t testing.TB, pair tls.Certificate, dir, certName, keyName string) (cert, key string) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	c, k := &pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, &pem.Block{Type: "PRIVATE KEY", Bytes: der}
	if certName == keyName {
		both := write(t, dir, certName, c, k)
		return both, both
	}
	return write(t, dir, certName, c), write(t, dir, keyName, k)
}

func write(t testing.TB, dir, name string, blocks ...*pem.Block) string {
	t.Helper()
	var b []byte
	for _, block := range blocks {
		b = append(b, pem.EncodeToMemory(block)...)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
