package tlsfiles

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pavlo-v-chernykh/keystore-go/v4"
	"github.com/youmark/pkcs8"
	"software.sslmate.com/src/go-pkcs12"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

const password = "changeit"

// stores are files with the certificate of a server and its authority.
type stores struct {
	dir  string
	ca   *testkit.CA
	pair tls.Certificate
}

func newStores(t *testing.T) stores {
	ca := testkit.NewCA(t)
	return stores{t.TempDir(), ca, ca.Server(t)}
}

func (s *stores) write(t *testing.T, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(s.dir, name)
	check(t, os.WriteFile(path, text, 0o600))
	return path
}

func (s *stores) authority(t *testing.T) *x509.Certificate {
	block, _ := pem.Decode(testkit.Must(os.ReadFile(s.ca.WriteCA(t, s.dir, "ca.pem")))(t))
	return testkit.Must(x509.ParseCertificate(block.Bytes))(t)
}

// jks returns a JKS store with the given keys, and with the authority as a trusted certificate.
func (s *stores) jks(t *testing.T, keys ...tls.Certificate) []byte {
	t.Helper()
	k := keystore.New()
	for i, pair := range keys {
		key := testkit.Must(x509.MarshalPKCS8PrivateKey(pair.PrivateKey))(t)
		check(t, k.SetPrivateKeyEntry(string(rune('a'+i)), keystore.PrivateKeyEntry{CreationTime: time.Now(), PrivateKey: key,
			CertificateChain: []keystore.Certificate{{Type: "X509", Content: pair.Certificate[0]}}}, []byte(password)))
	}
	check(t, k.SetTrustedCertificateEntry("ca", keystore.TrustedCertificateEntry{CreationTime: time.Now(), Certificate: keystore.Certificate{Type: "X509", Content: s.authority(t).Raw}}))
	var b bytes.Buffer
	check(t, k.Store(&b, []byte(password)))
	return b.Bytes()
}

func (s *stores) pkcs12(t *testing.T, e *pkcs12.Encoder) []byte {
	t.Helper()
	return testkit.Must(e.Encode(s.pair.PrivateKey, s.pair.Leaf, []*x509.Certificate{s.authority(t)}, password))(t)
}

// encrypted returns the certificate and its key as PEM, encrypted in a way.
func (s *stores) encrypted(t *testing.T, o *pkcs8.Opts) []byte {
	t.Helper()
	der := testkit.Must(pkcs8.MarshalPrivateKey(s.pair.PrivateKey, []byte(password), o))(t)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.pair.Certificate[0]})
	return append(text, pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: der})...)
}

func openFiles(f Files) (*Keeper, error) {
	f.Use = "clients"
	return Open(f, mutual, slog.New(slog.DiscardHandler))
}

// TestStores presents a certificate, and judges a client, by stores of each format. Each of them
// cut at any point is refused with the name of the file, and so is a wrong password.
func TestStores(t *testing.T) {
	s := newStores(t)
	trusted := []*x509.Certificate{s.authority(t)}
	pbkdf2 := func(cipher pkcs8.Cipher, hash crypto.Hash) *pkcs8.Opts {
		return &pkcs8.Opts{Cipher: cipher, KDFOpts: pkcs8.PBKDF2Opts{SaltSize: 8, IterationCount: 1000, HMACHash: hash}}
	}
	keys := map[string][]byte{
		"jks":              s.jks(t, s.pair),
		"pkcs12, modern":   s.pkcs12(t, pkcs12.Modern),
		"pkcs12, 3DES":     s.pkcs12(t, pkcs12.LegacyDES),
		"pkcs12, RC2":      s.pkcs12(t, pkcs12.LegacyRC2),
		"AES-256, SHA-256": s.encrypted(t, pbkdf2(pkcs8.AES256CBC, crypto.SHA256)),
		"AES-192, SHA-1":   s.encrypted(t, pbkdf2(pkcs8.AES192CBC, crypto.SHA1)),
		"AES-128, SHA-256": s.encrypted(t, pbkdf2(pkcs8.AES128CBC, crypto.SHA256)),
		"3DES, SHA-1":      s.encrypted(t, pbkdf2(pkcs8.TripleDESCBC, crypto.SHA1)),
		"AES-256, scrypt":  s.encrypted(t, &pkcs8.Opts{Cipher: pkcs8.AES256CBC, KDFOpts: pkcs8.ScryptOpts{SaltSize: 8, CostParameter: 1 << 10, BlockSize: 8, ParallelizationParameter: 1}}),
	}
	cas := map[string][]byte{
		"jks":    s.jks(t, s.pair),
		"pkcs12": testkit.Must(pkcs12.Modern.EncodeTrustStore(trusted, password))(t),
		"pem":    testkit.Must(os.ReadFile(filepath.Join(s.dir, "ca.pem")))(t),
	}
	ann, stranger := s.ca.Client(t, pkix.Name{CommonName: "ann"}), testkit.NewCA(t).Client(t, pkix.Name{CommonName: "ann"})
	pass := s.write(t, "password", []byte(password+"\n"))
	for name, text := range keys {
		for of, authorities := range cas {
			f := Files{Cert: s.write(t, "key", text), Password: Secret{File: pass}, CA: s.write(t, "ca", authorities), CAPassword: Secret{Text: password}}
			k, err := openFiles(f)
			if err != nil {
				t.Errorf("%s, %s: %v", name, of, err)
				continue
			}
			shows(t, k, s.pair, ann)
			if _, err := presented(t, k.Server(), stranger); err == nil {
				t.Errorf("%s, %s: a stranger is let in", name, of)
			}
			f.Password = Secret{Text: "wrong"}
			if _, err := openFiles(f); err == nil || !strings.HasPrefix(err.Error(), f.Cert+": ") {
				t.Errorf("%s with a wrong password: %v", name, err)
			}
			f.Password, f.CAPassword = Secret{File: pass}, Secret{}
			if _, err := openFiles(f); of != "pem" && (err == nil || !strings.HasPrefix(err.Error(), f.CA+": ")) {
				t.Errorf("authorities in %s without a password: %v", of, err)
			}
		}
	}
	for _, text := range [][]byte{keys["jks"], keys["pkcs12, modern"], keys["AES-256, SHA-256"]} {
		for n := 0; n < len(text)-1; n += 1 + n/50 {
			cert := s.write(t, "key", text[:n])
			if _, err := openFiles(Files{Cert: cert, Password: Secret{Text: password}}); err == nil || !strings.HasPrefix(err.Error(), cert) {
				t.Fatalf("a store cut after %d of %d bytes: %v", n, len(text), err)
			}
		}
	}
}

// TestDamagedKeys changes each byte of an encrypted key, also those that say how it is encrypted. The error
// names the file.
func TestDamagedKeys(t *testing.T) {
	s := newStores(t)
	_, rest := pem.Decode(s.encrypted(t, &pkcs8.Opts{Cipher: pkcs8.AES256CBC, KDFOpts: pkcs8.PBKDF2Opts{SaltSize: 8, IterationCount: 1000, HMACHash: crypto.SHA256}}))
	key, _ := pem.Decode(rest)
	cert, _ := testkit.WritePair(t, s.pair, s.dir, "cert.pem", "key.pem")
	for i := range key.Bytes {
		for _, bit := range []byte{0x10, 0x80} {
			damaged := bytes.Clone(key.Bytes)
			damaged[i] ^= bit
			file := s.write(t, "key", pem.EncodeToMemory(&pem.Block{Type: key.Type, Bytes: damaged}))
			if _, err := openFiles(Files{Cert: cert, Key: file, Password: Secret{Text: password}}); err != nil && !strings.Contains(err.Error(), file) {
				t.Fatalf("a key that is damaged in byte %d: %v", i, err)
			}
		}
	}
}

// TestDamagedStores changes each byte of a store. Some of them are lengths: a store that says that it has
// billions of certificates must not end the process.
func TestDamagedStores(t *testing.T) {
	s := newStores(t)
	text := s.jks(t, s.pair)
	for i := range text {
		damaged := bytes.Clone(text)
		damaged[i] ^= 0x80
		cert := s.write(t, "key", damaged)
		if _, err := openFiles(Files{Cert: cert, Password: Secret{Text: password}}); err == nil || !strings.HasPrefix(err.Error(), cert) {
			t.Fatalf("a store that is damaged in byte %d: %v", i, err)
		}
	}
}

// umlauts is a store that keytool has made with -storetype JKS and -storepass pässwörd.
const umlauts = "/u3+7QAAAAIAAAABAAAAAQABYQAAAaIdjWnAAAAAfzB9MA4GCisGAQQBKgIRAQEFAARrtYXHaDp+8U2Pu3msVCrOAWRn5wywmTbe4H3ObodEYn4jDd3VoY11" +
	"0RRSY0vuB4KdQNDvp55V43BzXV+CpjFUAN/t/3uDFm55zlWxrBsxuTf27lWNQx98+HGU7tSGNKg4LOtSGHz1bjxVxQcAAAABAAVYLjUwOQAAATQwggEwMIHX" +
	"oAMCAQICCEEsqD1QG/8cMAoGCCqGSM49BAMCMAwxCjAIBgNVBAMTAXgwIBcNMjYxMTI3MTUwODU2WhgPMjA1MTA3MTkxNTA4NTZaMAwxCjAIBgNVBAMTAXgw" +
	"WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQqqgA664iEOtRcsOsf+m8TCkrkX89uviaPpAuJzNjCmwWSuKHqMal1HPBGsWigyNM0pNdSKZ0E8/rqVv6qmW9u" +
	"oyEwHzAdBgNVHQ4EFgQURH55A3v8WbVERpOHNbiDzFjdBkowCgYIKoZIzj0EAwIDSAAwRQIhALs+5oQKO4TTcia8OygR5XM1M8QUYZR3H20FUxQA8I6kAiB/" +
	"Bkjs/O+XFzm+WKyHYDYB2VnU1c2JefmHCdqWa+ExdO8bVgtEhtGMoWIx9Yf5vaSdXe5/"

// TestPasswordOfJava: a password has Java's encoding, whatever that of the file with it.
func TestPasswordOfJava(t *testing.T) {
	s := newStores(t)
	cert := s.write(t, "umlauts.jks", testkit.Must(base64.StdEncoding.DecodeString(umlauts))(t))
	for _, password := range []string{"pässwörd", "p\xe4ssw\xf6rd"} {
		if k, err := openFiles(Files{Cert: cert, Password: Secret{Text: password}}); err != nil || k.Dial().Certificates[0].Leaf.Subject.CommonName != "x" {
			t.Errorf("with %q: %v", password, err)
		}
	}
}

// TestStoresOfJava has what only stores can have: several keys, and certificates in any order.
func TestStoresOfJava(t *testing.T) {
	s := newStores(t)
	two := s.ca.Server(t)
	k := testkit.Must(openFiles(Files{Cert: s.write(t, "two.jks", s.jks(t, s.pair, two)), Password: Secret{Text: password}}))(t)
	if certs := k.Dial().Certificates; len(certs) != 2 || !certs[0].Leaf.Equal(s.pair.Leaf) || !certs[1].Leaf.Equal(two.Leaf) {
		t.Errorf("%d certificates of a store with two keys", len(certs))
	}
	text := testkit.Must(pkcs12.Modern.Encode(s.pair.PrivateKey, s.authority(t), []*x509.Certificate{two.Leaf, s.pair.Leaf}, password))(t)
	k = testkit.Must(openFiles(Files{Cert: s.write(t, "order.p12", text), Password: Secret{Text: password}}))(t)
	chain := k.Dial().Certificates[0].Certificate
	if len(chain) != 2 || !bytes.Equal(chain[0], s.pair.Leaf.Raw) || !bytes.Equal(chain[1], s.authority(t).Raw) {
		t.Errorf("a chain of %d certificates", len(chain))
	}
}

// TestUnreadable checks what is said about files that cannot be used in the way they are.
func TestUnreadable(t *testing.T) {
	s := newStores(t)
	jks := s.write(t, "store.jks", s.jks(t, s.pair))
	trust := s.write(t, "trust.jks", s.jks(t))
	certFile, key := testkit.WritePair(t, s.pair, s.dir, "cert.pem", "key.pem")
	encrypted := s.write(t, "encrypted.pem", s.encrypted(t, pkcs8.DefaultOpts))
	old := s.write(t, "old.pem", []byte("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: DES-EDE3-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n"))
	p := Secret{Text: password}
	derKey := s.write(t, "key.der", testkit.Must(x509.MarshalPKCS8PrivateKey(s.pair.PrivateKey))(t))
	derCert := s.write(t, "cert.der", s.pair.Certificate[0])
	both := s.write(t, "both.p12", s.pkcs12(t, pkcs12.Modern))
	noMAC := s.write(t, "no-mac.p12", testkit.Must(pkcs12.Passwordless.Encode(s.pair.PrivateKey, s.pair.Leaf, nil, ""))(t))
	pbes1 := s.write(t, "pbes1.pem", pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: testkit.Must(asn1.Marshal(struct {
		Algorithm pkix.AlgorithmIdentifier
		Data      []byte
	}{pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 12, 1, 3}, Parameters: asn1.RawValue{FullBytes: []byte{0x30, 0}}}, make([]byte, 16)}))(t)}))
	if _, err := openFiles(Files{Cert: noMAC}); err != nil {
		t.Errorf("a store without a MAC and without a password: %v", err)
	}
	for says, f := range map[string]Files{
		encrypted + ": the key that begins at byte ":                              {Cert: encrypted},
		"no password is given":                                                    {Cert: encrypted},
		old + ": the key that begins at byte ":                                    {Cert: key, Key: old, Password: p},
		trust + ": it has no key":                                                 {Cert: trust, Password: p},
		jks + ": a store has its key in it, so " + key + " cannot be used":        {Cert: jks, Key: key, Password: p},
		"x.bcfks: it is neither PEM nor a store of type PKCS12 or JKS":            {Cert: s.write(t, "x.bcfks", []byte{0x30, 0x82, 1, 0, 0x30, 0x80})},
		derCert + ": it is neither PEM nor a store":                               {Cert: certFile, Key: key, CA: derCert},
		derKey + ": it is neither PEM nor a store":                                {Cert: derKey},
		jks + ": it is a store":                                                   {Cert: certFile, Key: jks},
		both + ": it is a PKCS #12 store with a key, of which":                    {Cert: both, Password: p, CA: both, CAPassword: p},
		noMAC + ": it has a password, but no MAC":                                 {Cert: noMAC, Password: p},
		pbes1 + ": the key that begins at byte 0: it is encrypted in an old form": {Cert: key, Key: pbes1, Password: p},
		"x.jceks: it is neither PEM nor a store of type PKCS12 or JKS":            {Cert: s.write(t, "x.jceks", []byte{0xce, 0xce, 0xce, 0xce})},
		filepath.Join(s.dir, "none") + ": no such file":                           {Cert: jks, Password: Secret{File: filepath.Join(s.dir, "none")}},
	} {
		if _, err := openFiles(f); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, not %q", err, says)
		}
	}
}

// TestOddPEM: a byte order mark and openssl's form of a certificate that it trusts do no harm, as in ZooKeeper.
func TestOddPEM(t *testing.T) {
	s := newStores(t)
	cert, key := testkit.WritePair(t, s.pair, s.dir, "cert.pem", "key.pem")
	bom := func(file string) string {
		return s.write(t, "bom-"+filepath.Base(file), append([]byte("\ufeff"), testkit.Must(os.ReadFile(file))(t)...))
	}
	s.authority(t)
	ca := filepath.Join(s.dir, "ca.pem")
	trusted := func(name string, der []byte) string { // with what openssl x509 -addtrust serverAuth adds
		return s.write(t, name, pem.EncodeToMemory(&pem.Block{Type: "TRUSTED CERTIFICATE", Bytes: append(bytes.Clone(der), 0x30, 0x0c, 0x30, 0x0a, 0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01)}))
	}
	for _, f := range []Files{
		{Cert: bom(cert), Key: bom(key), CA: bom(ca)},
		{Cert: trusted("trusted.pem", s.pair.Certificate[0]), Key: key, CA: trusted("trusted-ca.pem", s.authority(t).Raw)},
	} {
		k, err := openFiles(f)
		if err != nil {
			t.Errorf("%+v: %v", f, err)
			continue
		}
		shows(t, k, s.pair, s.ca.Client(t, pkix.Name{CommonName: "ann"}))
	}
}
