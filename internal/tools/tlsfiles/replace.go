package tlsfiles

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/reread"
)

// replaces refuses files that are worse than those in use, which may be nil: the server's certificates if one is not
// valid now and those in use are; authorities none of which is valid, if one in use is; and lists of revoked
// certificates that are older than those in use, or have ended and those in use have not. An older list would let
// in again whoever was revoked since.
//
// Certificates that are presented together with the server's own do not count. An authority that signs another one's
// key may end long before chains become invalid.
func (next *loaded) replaces(was *loaded, f *Files, at time.Time) error {
	if was == nil {
		return nil
	}
	bad := func(cert *x509.Certificate) bool { return !valid(cert, at) }
	if i := slices.IndexFunc(next.own, bad); i >= 0 && !slices.ContainsFunc(was.own, bad) {
		return later(&FileError{PartCert, fmt.Errorf("%s: a certificate %s, and the one in use is valid", f.Cert, why(next.own[i], at))}, next.own, at)
	}
	if len(next.authorities) > 0 && !anyValid(next.authorities, at) && anyValid(was.authorities, at) {
		return later(&FileError{PartCA, fmt.Errorf("%s: no authority in it is valid now, and one of those in use is", f.CA)}, next.authorities, at)
	}
	for i := range next.lists {
		list := &next.lists[i]
		newest, old := next.lists.newest(list), was.lists.newest(list)
		switch {
		case old == nil:
		case newest.before(old):
			return &FileError{PartCRL, fmt.Errorf("%s: the list of %s, of %s, is older than the one in use, of %s", f.CRL, list.Issuer, stamp(newest.ThisUpdate), stamp(old.ThisUpdate))}
		case newest.ended(at) && !old.ended(at):
			return &FileError{PartCRL, fmt.Errorf("%s: the list of %s has ended at %s, and the one in use has not", f.CRL, list.Issuer, stamp(newest.NextUpdate))}
		}
	}
	return nil
}

// later says when files are to be tried again that have a certificate which is not valid yet.
func later(err error, certs []*x509.Certificate, at time.Time) error {
	var from time.Time
	for _, cert := range certs {
		if cert.NotBefore.After(at) && (from.IsZero() || cert.NotBefore.Before(from)) {
			from = cert.NotBefore
		}
	}
	if from.IsZero() {
		return err
	}
	return &reread.NotYet{From: from, Err: err}
}

func valid(cert *x509.Certificate, at time.Time) bool {
	return !at.Before(cert.NotBefore) && !at.After(cert.NotAfter)
}

func anyValid(certs []*x509.Certificate, at time.Time) bool {
	return slices.ContainsFunc(certs, func(cert *x509.Certificate) bool { return valid(cert, at) })
}

func why(cert *x509.Certificate, at time.Time) string {
	if at.Before(cert.NotBefore) {
		return "is not valid before " + stamp(cert.NotBefore)
	}
	return "has ended at " + stamp(cert.NotAfter)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// newest returns the newest list of the issuer of another one, or nil. An issuer that has a new key begins anew.
func (r revocations) newest(other *revocation) (newest *revocation) {
	for i := range r {
		if bytes.Equal(r[i].RawIssuer, other.RawIssuer) && bytes.Equal(r[i].AuthorityKeyId, other.AuthorityKeyId) && (newest == nil || newest.before(&r[i])) {
			newest = &r[i]
		}
	}
	return newest
}

// before reports whether r is older than another list of the same issuer.
func (r *revocation) before(other *revocation) bool {
	if r.ThisUpdate.Equal(other.ThisUpdate) && r.Number != nil && other.Number != nil {
		return r.Number.Cmp(other.Number) < 0
	}
	return r.ThisUpdate.Before(other.ThisUpdate)
}

func (r *revocation) ended(at time.Time) bool {
	return !r.NextUpdate.IsZero() && at.After(r.NextUpdate)
}
