package tlsfiles

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"strings"
	"time"
)

// Part is which of the files an error is about.
type Part string

// The parts have the names by which flags end.
const (
	PartCert       Part = "cert"
	PartKey        Part = "key"
	PartPassword   Part = "password-file"
	PartCA         Part = "ca"
	PartCAPassword Part = "ca-password-file"
	PartCRL        Part = "crl"
)

// FileError is an error about one of the files. Err names it.
type FileError struct {
	Part Part
	Err  error
}

func (e *FileError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *FileError) Unwrap() error { return e.Err }

// load makes the configurations that files say.
func (k *Keeper) load(c contents) (*loaded, error) {
	certificates, err := k.files.certificates(c)
	if err != nil {
		return nil, err
	}
	now := &loaded{end: firstEnd(certificates)}
	for _, pair := range certificates {
		now.own = append(now.own, pair.Leaf)
	}
	var authorities *x509.CertPool
	if k.files.CA != "" {
		if now.authorities, err = k.files.authorities(c); err != nil {
			return nil, err
		}
		authorities = x509.NewCertPool()
		for _, cert := range now.authorities {
			authorities.AddCert(cert)
		}
	}
	base := &tls.Config{
		Certificates: certificates, MinVersion: cmp.Or(k.settings.MinVersion, tls.VersionTLS12), MaxVersion: k.settings.MaxVersion,
		CipherSuites: k.settings.CipherSuites, NextProtos: k.settings.NextProtos,
	}
	if k.files.CRL != "" {
		if now.lists, err = c.revocations(k.files.CRL); err != nil {
			return nil, &FileError{PartCRL, err}
		}
		base.VerifyConnection, now.crlEnd = now.lists.verify, now.lists.end()
	}
	now.server, now.dial = base, base.Clone()
	now.server.ClientAuth, now.server.ClientCAs = k.settings.ClientAuth, authorities
	now.dial.RootCAs = authorities
	return now, nil
}

// firstEnd returns when the first of the certificates ends that are presented.
func firstEnd(certificates []tls.Certificate) (end time.Time) {
	for _, pair := range certificates {
		for _, der := range pair.Certificate {
			// An intermediate certificate that crypto/x509 cannot read is for the other side to judge.
			if cert, err := x509.ParseCertificate(der); err == nil && (end.IsZero() || cert.NotAfter.Before(end)) {
				end = cert.NotAfter
			}
		}
	}
	return end
}

// certificates returns the certificates to present, with their keys; none without a file.
func (f *Files) certificates(c contents) ([]tls.Certificate, error) {
	if f.Cert == "" {
		return nil, nil
	}
	password, err := c.secret(f.Password)
	if err != nil {
		return nil, &FileError{PartPassword, err}
	}
	text, kind, err := c.file(f.Cert)
	if err != nil {
		return nil, &FileError{PartCert, err}
	}
	if kind != inPEM {
		if f.Key != "" && f.Key != f.Cert {
			return nil, &FileError{PartKey, fmt.Errorf("%s: a store has its key in it, so %s cannot be used", f.Cert, f.Key)}
		}
		pairs, err := keyStore(text, kind, password)
		if err != nil {
			return nil, &FileError{PartCert, fmt.Errorf("%s: %w", f.Cert, err)}
		}
		return pairs, nil
	}
	keyFile, part := f.Key, PartKey
	if keyFile == "" {
		keyFile, part = f.Cert, PartCert
	}
	parts, err := c.pem(f.Cert)
	if err != nil {
		return nil, &FileError{PartCert, err}
	}
	key, err := c.key(keyFile, password)
	if err != nil {
		return nil, &FileError{part, err}
	}
	pair, err := tls.X509KeyPair(textOf(parts), key)
	if err != nil {
		return nil, &FileError{part, fmt.Errorf("%s, %s: %w", f.Cert, keyFile, err)}
	}
	return []tls.Certificate{pair}, nil
}

func textOf(parts []part) (text []byte) {
	for _, p := range parts {
		text = append(text, pem.EncodeToMemory(p.Block)...)
	}
	return text
}

// key returns a PEM file or, if a key in it is encrypted, that key in a text of its own.
func (c contents) key(file, password string) ([]byte, error) {
	if _, kind, err := c.file(file); err != nil || kind != inPEM {
		return nil, cmp.Or(err, fmt.Errorf("%s: it is a store, which is named in place of the certificate", file))
	}
	parts, err := c.pem(file)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		switch {
		case p.Headers["DEK-Info"] != "":
			return nil, fmt.Errorf("%s: the key that begins at byte %d is encrypted in an old form without protection; openssl pkcs8 -topk8 converts it", file, p.at)
		case p.Type == "ENCRYPTED PRIVATE KEY":
			der, err := decrypted(p.Bytes, password)
			if err != nil {
				return nil, fmt.Errorf("%s: the key that begins at byte %d: %w", file, p.at, err)
			}
			return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
		}
	}
	return textOf(parts), nil
}

// authorities returns the certificates of a file, at least one.
func (f *Files) authorities(c contents) (certs []*x509.Certificate, err error) {
	password, err := c.secret(f.CAPassword)
	if err != nil {
		return nil, &FileError{PartCAPassword, err}
	}
	text, kind, err := c.file(f.CA)
	switch {
	case err != nil:
	case kind == inPEM:
		certs, err = c.trusted(f.CA)
	default:
		if certs, err = trustStore(text, kind, password); err != nil {
			err = fmt.Errorf("%s: %w", f.CA, err)
		}
	}
	if err != nil {
		return nil, &FileError{PartCA, err}
	}
	return certs, nil
}

func (c contents) trusted(file string) (certs []*x509.Certificate, err error) {
	parts, err := c.pem(file)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		if p.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(p.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: the certificate that begins at byte %d: %w", file, p.at, err)
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, fmt.Errorf("%s: no certificate in PEM form", file)
	}
	return certs, nil
}

type part struct {
	*pem.Block
	at int // where it begins, in bytes
}

// pem returns the parts of a PEM file, whatever stands between them, such as a byte order mark. Certificates in
// openssl's form TRUSTED CERTIFICATE are like others: as in ZooKeeper, what is added to them has no effect. It refuses one with a part that is not whole: the decoder
// of package pem goes on behind it, so that half a list of authorities would do.
func (c contents) pem(file string) (parts []part, err error) {
	text, err := c[file].Text, c[file].Err
	if err != nil {
		return nil, err
	}
	for rest := text; ; {
		begin := bytes.Index(rest, []byte("-----BEGIN"))
		if begin < 0 {
			return parts, nil
		}
		at := len(text) - len(rest) + begin
		block, next := pem.Decode(rest[begin:])
		if block == nil || bytes.Count(rest[begin:len(rest)-len(next)], []byte("-----BEGIN")) != 1 {
			return nil, fmt.Errorf("%s: the part that begins at byte %d is not whole", file, at)
		}
		if first := (asn1.RawValue{}); strings.HasSuffix(block.Type, " CERTIFICATE") {
			if _, err := asn1.Unmarshal(block.Bytes, &first); err == nil {
				block = &pem.Block{Type: "CERTIFICATE", Bytes: first.FullBytes}
			}
		}
		parts = append(parts, part{block, at})
		rest = next
	}
}
