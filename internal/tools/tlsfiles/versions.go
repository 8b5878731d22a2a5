package tlsfiles

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
)

// protocols are the versions of TLS by Java's names, the oldest first.
var protocols = []string{"TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"}

// SetProtocols sets the versions of TLS, by Java's names, in any order.
func (s *Settings) SetProtocols(names []string) error {
	var versions []uint16
	for _, name := range names {
		i := slices.Index(protocols, name)
		if i < 0 {
			return fmt.Errorf("%q is none of %s", name, strings.Join(protocols, ", "))
		}
		versions = append(versions, tls.VersionTLS10+uint16(i))
	}
	slices.Sort(versions)
	versions = slices.Compact(versions)
	if len(versions) == 0 {
		return nil
	}
	s.MinVersion, s.MaxVersion = versions[0], versions[len(versions)-1]
	if int(s.MaxVersion-s.MinVersion) != len(versions)-1 {
		return fmt.Errorf("%s leaves out a version between others, which crypto/tls cannot do", strings.Join(names, ","))
	}
	return nil
}

// SetCipherSuites sets the cipher suites, by the names of IANA, which are Java's, too. It may be
// called after SetProtocols.
//
// With TLS 1.3, crypto/tls always uses all of its suites. So if there is none of them in the list, TLS 1.3
// is not used, and if there is one, all of them are; if there are only such, older versions are not used.
func (s *Settings) SetCipherSuites(names []string) error {
	known := append(tls.CipherSuites(), tls.InsecureCipherSuites()...)
	older, newest := 0, 0
	for _, name := range names {
		i := slices.IndexFunc(known, func(c *tls.CipherSuite) bool { return c.Name == name })
		switch {
		case i < 0:
			var have []string
			for _, c := range known {
				have = append(have, c.Name)
			}
			return fmt.Errorf("crypto/tls has no cipher suite %q; it has %s", name, strings.Join(have, ", "))
		case slices.Contains(known[i].SupportedVersions, uint16(tls.VersionTLS13)):
			newest++
		default:
			older++
			s.CipherSuites = append(s.CipherSuites, known[i].ID)
		}
	}
	switch {
	case older > 0 && newest == 0:
		if s.MinVersion == tls.VersionTLS13 {
			return fmt.Errorf("none of the cipher suites is one of TLSv1.3, the only protocol")
		}
		if s.MaxVersion == 0 || s.MaxVersion > tls.VersionTLS12 {
			s.MaxVersion = tls.VersionTLS12
		}
	case newest > 0 && older == 0:
		if s.MaxVersion != 0 && s.MaxVersion < tls.VersionTLS13 {
			return fmt.Errorf("all cipher suites are of TLSv1.3, which is not one of the protocols")
		}
		s.MinVersion = tls.VersionTLS13
	}
	return nil
}
