package server

import (
	"crypto/tls"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/lockkeeper/lockkeeper/internal/core/fdlimit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// tlsHandshakes are the TLS handshakes in progress. It is safe for concurrent use.
type tlsHandshakes struct {
	mu    sync.Mutex
	conns []*conn // the oldest first
}

func (h *tlsHandshakes) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.conns)
}

// begin adds a handshake. If there are more than most, it ends the oldest, so that clients that
// say nothing cannot keep others out.
func (h *tlsHandshakes) begin(c *conn, most int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, c)
	if len(h.conns) > most {
		h.conns[0].raw.Close()
		h.conns = slices.Delete(h.conns, 0, 1)
	}
}

// end removes a handshake. It returns false if begin has ended it.
func (h *tlsHandshakes) end(c *conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.Index(h.conns, c)
	if i < 0 {
		return false
	}
	h.conns = slices.Delete(h.conns, i, i+1)
	return true
}

// mostTLSHandshakes is Config.MaxTLSHandshakes, or a quarter of the file descriptors that this
// process may have if that is less: clients may take three quarters.
func (s *Server) mostTLSHandshakes() int {
	return max(1, min(s.cfg.MaxTLSHandshakes, 4*fdlimit.Sixteenth(s.cfg.MaxTLSHandshakes)))
}

// handshakeTLS runs the TLS handshake of a connection and adds the identity that its
// client certificate proves. It returns false if the connection is to end. The
// caller has set a deadline.
func (c *conn) handshakeTLS(t *tls.Conn) bool {
	stats := &c.s.stats
	c.s.tlsHandshakes.begin(c, c.s.mostTLSHandshakes())
	c.proving.Store(true)
	defer c.proving.Store(false)
	err := t.Handshake()
	if !c.s.tlsHandshakes.end(c) {
		stats.tlsExceeded.Add(1)
		c.warn("closing a connection: too many TLS handshakes under way, and this one is the oldest")
		return false
	}
	if err == nil {
		err = c.addX509(t.ConnectionState())
	}
	if err == nil {
		return true
	}
	stats.tlsFailed.Add(1)
	switch {
	case errors.Is(err, io.EOF): // a client that only checked whether the port is open
		c.s.cfg.Log.Debug("TLS handshake ends", "client", c.remote())
	default:
		stats.authFailed.Add(1)
		c.warn("TLS handshake failed", "error", err)
	}
	return false
}

// addX509 adds the identity that a verified client certificate proves
// (X509AuthenticationProvider). It is not an error if there is no certificate; the
// TLS configuration decides whether one is required.
func (c *conn) addX509(state tls.ConnectionState) error {
	if len(state.VerifiedChains) == 0 {
		return nil
	}
	name, err := distinguishedName(state.PeerCertificates[0].RawSubject)
	if err != nil {
		return err
	}
	return c.prove(proto.SchemeX509, name, name != "" && name == c.s.cfg.SuperX509)
}

// dnNames are the attributes that have a name in RFC 2253; others are written as
// numbers.
var dnNames = map[string]string{
	"2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.10": "O", "2.5.4.11": "OU",
	"2.5.4.9": "STREET", "0.9.2342.19200300.100.1.25": "DC", "0.9.2342.19200300.100.1.1": "UID",
}

// nameSET is one part of a distinguished name. The suffix SET tells encoding/asn1
// that it is a set.
type nameSET []struct {
	Type  asn1.ObjectIdentifier
	Value asn1.RawValue
}

// distinguishedName formats a subject as Java's X500Principal.getName does, because
// ACLs contain that form: RFC 2253, the last part first.
func distinguishedName(der []byte) (string, error) {
	var parts []nameSET
	if rest, err := asn1.Unmarshal(der, &parts); err != nil || len(rest) > 0 {
		return "", errors.New("the certificate's subject cannot be read")
	}
	var b strings.Builder
	for i, part := range slices.Backward(parts) {
		if i < len(parts)-1 {
			b.WriteByte(',')
		}
		for j, a := range part {
			if j > 0 {
				b.WriteByte('+')
			}
			name, named := dnNames[a.Type.String()]
			if !named {
				name = a.Type.String()
			}
			b.WriteString(name)
			b.WriteByte('=')
			if named && isText(a.Value) {
				writeDNValue(&b, string(a.Value.Bytes))
			} else {
				b.WriteString("#" + hex.EncodeToString(a.Value.FullBytes))
			}
		}
	}
	return b.String(), nil
}

// isText reports whether Java treats a value as text. It reads all of these types as
// UTF-8.
func isText(v asn1.RawValue) bool {
	return v.Class == asn1.ClassUniversal && slices.Contains([]int{asn1.TagPrintableString, asn1.TagUTF8String, asn1.TagT61String,
		asn1.TagIA5String, asn1.TagGeneralString, asn1.TagBMPString}, v.Tag)
}

func writeDNValue(b *strings.Builder, s string) {
	const blank = " \r"
	inner := strings.Trim(s, blank)
	before := len(s) - len(strings.TrimLeft(s, blank))
	for i, r := range s {
		switch {
		case r == 0:
			b.WriteString("\\00")
			continue
		case strings.ContainsRune(",=+<>#;\"\\", r), i < before, i >= before+len(inner):
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
}
