package tlsfiles

import (
	"bytes"
	"crypto"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/pavlo-v-chernykh/keystore-go/v4"
	"github.com/youmark/pkcs8"
	"software.sslmate.com/src/go-pkcs12"
)

// Secret is the password of a file: Text, or what is in File, without a newline at the end.
type Secret struct{ Text, File string }

func (c contents) secret(s Secret) (string, error) {
	if s.File == "" {
		return s.Text, nil
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(c[s.File].Text), "\n"), "\r")
	return text, c[s.File].Err
}

// format is what a file is, by how it begins.
type format int

const (
	inPEM format = iota
	inPKCS12
	inJKS
)

// formatOf refuses the other formats of stores that Java knows, and single certificates and keys in DER.
func formatOf(text []byte) (format, error) {
	begins := func(at int, with ...byte) bool { return bytes.HasPrefix(text[min(at, len(text)):], with) }
	header := 2 // of a sequence in DER, with its length
	if len(text) > 1 && text[1] >= 0x80 {
		header += int(text[1] & 0x7f)
	}
	switch {
	case begins(0, 0xfe, 0xed, 0xfe, 0xed):
		return inJKS, nil
	case begins(0, 0x30) && begins(header, 2, 1, 3): // the version of PKCS #12
		return inPKCS12, nil
	case begins(0, 0x30), begins(0, 0xce, 0xce, 0xce, 0xce):
		return 0, errors.New("it is neither PEM nor a store of type PKCS12 or JKS; openssl converts certificates and keys in DER form to PEM, and keytool stores of types such as BCFKS or JCEKS to PKCS12")
	}
	return inPEM, nil
}

func (c contents) file(name string) ([]byte, format, error) {
	f := c[name]
	if f.Err != nil {
		return nil, 0, f.Err
	}
	kind, err := formatOf(f.Text)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return f.Text, kind, err
}

// keyStore returns the certificates with keys of a PKCS #12 or JKS store.
func keyStore(text []byte, kind format, password string) ([]tls.Certificate, error) {
	if kind == inJKS {
		return jksKeys(text, password)
	}
	key, first, more, err := pkcs12.DecodeChain(text, password)
	if err != nil {
		return nil, plain(err)
	}
	chain, err := chainOf(key, append([]*x509.Certificate{first}, more...))
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	pair, err := pairOf(chain, der)
	return []tls.Certificate{pair}, err
}

// plain returns an error of package pkcs12 without its prefix.
func plain(err error) error {
	text := strings.TrimPrefix(err.Error(), "pkcs12: ")
	if text == "no MAC in data" {
		text = "it has a password, but no MAC that protects it from changes; keytool -importkeystore makes a store of it that has one"
	}
	return errors.New(text)
}

// chainOf returns the certificate of a key and those that connect it to its authority, in that order.
// A store has them in any order, beside others.
func chainOf(key any, all []*x509.Certificate) (chain [][]byte, err error) {
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T cannot be used for TLS", key)
	}
	public, ok := signer.Public().(interface{ Equal(crypto.PublicKey) bool })
	var at *x509.Certificate
	for _, cert := range all {
		if ok && public.Equal(cert.PublicKey) {
			at = cert
			break
		}
	}
	if at == nil {
		return nil, errors.New("it has no certificate for its key")
	}
	for range all { // a chain is not longer, even if certificates have signed each other
		chain = append(chain, at.Raw)
		var next *x509.Certificate
		for _, cert := range all {
			if cert != at && bytes.Equal(cert.RawSubject, at.RawIssuer) && !bytes.Equal(at.RawSubject, at.RawIssuer) && at.CheckSignatureFrom(cert) == nil {
				next = cert
			}
		}
		if next == nil {
			break
		}
		at = next
	}
	return chain, nil
}

// pairOf checks that a key in PKCS #8 form is that of the first certificate.
func pairOf(chain [][]byte, key []byte) (tls.Certificate, error) {
	var text []byte
	for _, der := range chain {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return tls.X509KeyPair(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
}

// openJKS reads a JKS store, whose checksum needs the password.
func openJKS(text, password []byte) (*keystore.KeyStore, error) {
	if !jksWhole(text, password) {
		return nil, errors.New("the store is damaged, or its password is another one")
	}
	store := keystore.New(keystore.WithOrderedAliases())
	if err := store.Load(bytes.NewReader(text), password); err != nil {
		return nil, err
	}
	return &store, nil
}

// jksPassword returns a password for package keystore, which takes each byte for a character: in
// ISO 8859-1. It cannot have other characters, so a store with such a password cannot be read.
func jksPassword(password string) (latin []byte) {
	for _, r := range password {
		if r > 0xff {
			return []byte(password)
		}
		latin = append(latin, byte(r))
	}
	return latin
}

// jksWhole checks the checksum at the end of a store. Package keystore does so only when it has read
// the store, and a damaged number of certificates makes it allocate more memory than there is, which
// ends the process.
func jksWhole(text, password []byte) bool {
	end := len(text) - sha1.Size
	if end < 0 {
		return false
	}
	h := sha1.New()
	for _, b := range password {
		h.Write([]byte{0, b})
	}
	h.Write([]byte("Mighty Aphrodite"))
	h.Write(text[:end])
	return bytes.Equal(h.Sum(nil), text[end:])
}

// jksKeys returns the certificates with keys of a JKS store, by alias. Each key has the password of
// the store, as ZooKeeper requires it.
func jksKeys(text []byte, password string) (pairs []tls.Certificate, err error) {
	secret := jksPassword(password)
	store, err := openJKS(text, secret)
	if err != nil {
		return nil, err
	}
	for _, alias := range store.Aliases() {
		if !store.IsPrivateKeyEntry(alias) {
			continue
		}
		entry, err := store.GetPrivateKeyEntry(alias, secret)
		if err != nil {
			return nil, fmt.Errorf("the key %q: %w", alias, err)
		}
		var chain [][]byte
		for _, cert := range entry.CertificateChain {
			chain = append(chain, cert.Content)
		}
		pair, err := pairOf(chain, entry.PrivateKey)
		if err != nil {
			return nil, fmt.Errorf("the key %q: %w", alias, err)
		}
		pairs = append(pairs, pair)
	}
	if len(pairs) == 0 {
		return nil, errors.New("it has no key")
	}
	return pairs, nil
}

// trustStore returns the certificates that a PKCS #12 or JKS store trusts. In a JKS store they may
// be beside keys, whose certificates do not count.
func trustStore(text []byte, kind format, password string) (certs []*x509.Certificate, err error) {
	if kind == inPKCS12 {
		certs, err = pkcs12.DecodeTrustStore(text, password)
		if _, _, _, is := pkcs12.DecodeChain(text, password); err != nil && is == nil {
			return nil, errors.New("it is a PKCS #12 store with a key, of which the authorities cannot be read; put them into a PEM file, or have keytool -importkeystore -deststoretype JKS convert the store")
		} else if err != nil {
			return nil, plain(err)
		}
	} else {
		store, err := openJKS(text, jksPassword(password))
		if err != nil {
			return nil, err
		}
		for _, alias := range store.Aliases() {
			if !store.IsTrustedCertificateEntry(alias) {
				continue
			}
			entry, err := store.GetTrustedCertificateEntry(alias)
			if err != nil {
				return nil, fmt.Errorf("the certificate %q: %w", alias, err)
			}
			cert, err := x509.ParseCertificate(entry.Certificate.Content)
			if err != nil {
				return nil, fmt.Errorf("the certificate %q: %w", alias, err)
			}
			certs = append(certs, cert)
		}
	}
	if len(certs) == 0 {
		return nil, errors.New("it trusts no certificate")
	}
	return certs, nil
}

// decrypted returns the key of a part ENCRYPTED PRIVATE KEY, in PKCS #8 form.
func decrypted(part []byte, password string) (der []byte, err error) {
	defer func() {
		if why := recover(); why != nil { // package pkcs8 does not check what it gives to the cipher
			der, err = nil, fmt.Errorf("it is damaged: %v", why)
		}
	}()
	if password == "" {
		return nil, errors.New("it is encrypted, and no password is given")
	}
	key, _, err := pkcs8.ParsePrivateKey(part, []byte(password))
	switch {
	case err != nil && strings.HasSuffix(err.Error(), "only PBES2 supported"):
		return nil, errors.New("it is encrypted in an old form, PBES1; openssl pkcs8 -topk8 -v2 aes-256-cbc converts it")
	case err != nil:
		return nil, errors.New(strings.TrimPrefix(err.Error(), "pkcs8: "))
	}
	return x509.MarshalPKCS8PrivateKey(key)
}
