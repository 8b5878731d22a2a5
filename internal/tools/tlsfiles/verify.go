package tlsfiles

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"
)

// revocations are lists of revoked certificates (CRLs). They do not change.
type revocations []revocation

type revocation struct {
	*x509.RevocationList
	serials map[string]bool
}

// revocations returns the lists in a file: PEM with any number of them, or one in DER.
func (c contents) revocations(file string) (lists revocations, err error) {
	if c[file].Err != nil {
		return nil, c[file].Err
	}
	add := func(der []byte, where string) error {
		list, err := x509.ParseRevocationList(der)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", file, where, err)
		}
		for _, e := range list.Extensions {
			if e.Critical { // such as those of a list that is only the latest changes, or only for some certificates
				return fmt.Errorf("%s: %s has the critical extension %v, which is not supported", file, where, e.Id)
			}
		}
		r := revocation{list, map[string]bool{}}
		for _, e := range list.RevokedCertificateEntries {
			r.serials[e.SerialNumber.String()] = true
		}
		lists = append(lists, r)
		return nil
	}
	if bytes.HasPrefix(c[file].Text, []byte{0x30}) {
		return lists, add(c[file].Text, "the list")
	}
	parts, err := c.pem(file)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		if p.Type != "X509 CRL" {
			continue
		}
		if err := add(p.Bytes, fmt.Sprintf("the list that begins at byte %d", p.at)); err != nil {
			return nil, err
		}
	}
	if len(lists) == 0 {
		return nil, fmt.Errorf("%s: no list of revoked certificates in PEM or DER form", file)
	}
	return lists, nil
}

// end returns when the first of the lists ends; zero if none does.
func (r revocations) end() (end time.Time) {
	for _, list := range r {
		if n := list.NextUpdate; !n.IsZero() && (end.IsZero() || n.Before(end)) {
			end = n
		}
	}
	return end
}

// check refuses a chain unless each certificate in it, except the last one, is not in a list of its
// issuer that has not ended. A certificate whose issuer has no such list is refused, too, as Java does.
func (r revocations) check(chain []*x509.Certificate, now time.Time) error {
	for i, cert := range chain[:len(chain)-1] {
		issuer, known := chain[i+1], false
		for _, list := range r {
			if !bytes.Equal(list.RawIssuer, issuer.RawSubject) || list.CheckSignatureFrom(issuer) != nil || list.ended(now) {
				continue
			}
			if list.serials[cert.SerialNumber.String()] {
				return fmt.Errorf("the certificate %s, serial number %v, is revoked", cert.Subject, cert.SerialNumber)
			}
			known = true
		}
		if !known {
			return fmt.Errorf("no list of revoked certificates of %s is valid now, so %s, serial number %v, is refused", issuer.Subject, cert.Subject, cert.SerialNumber)
		}
	}
	return nil
}

// verify accepts a connection if one of the chains passes check, or if the other side has no certificate.
func (r revocations) verify(s tls.ConnectionState) (err error) {
	now := time.Now()
	for _, chain := range s.VerifiedChains {
		if err = r.check(chain, now); err == nil {
			return nil
		}
	}
	return err
}

// forAddress refuses a client whose certificate is not for its IP address.
func forAddress(s tls.ConnectionState, a net.Addr) error {
	if len(s.PeerCertificates) == 0 {
		return nil
	}
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return errors.New("the address of the client is not known")
	}
	if err := s.PeerCertificates[0].VerifyHostname(tcp.IP.String()); err != nil {
		return fmt.Errorf("the client's certificate is not for its address %s: %w", tcp.IP, err)
	}
	return nil
}
