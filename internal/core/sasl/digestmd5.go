package sasl

import (
	"bytes"
	"crypto/md5"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
)

// The names by which a ZooKeeper server is known to clients that use DIGEST-MD5.
const (
	realm     = "zk-sasl-md5"
	digestURI = "zookeeper/" + realm
)

// maxResponse limits the length of a client's response, in bytes (RFC 2831, section 2.1.2).
const maxResponse = 4096

// DigestMD5 is the mechanism DIGEST-MD5 (RFC 2831) as Java's SaslServer has it in ZooKeeper: one
// realm, no protection of what follows, and no authentication that begins with the client.
type DigestMD5 struct {
	realm, uri string
	users      atomic.Pointer[map[string]secret] // does not change
	nonce      func() string
}

// secret is MD5(user:realm:password), all that the mechanism needs to know of a password.
type secret [md5.Size]byte

// NewDigestMD5 returns the mechanism for users with the given passwords, by their names.
func NewDigestMD5(passwords map[string]string) *DigestMD5 {
	return newDigestMD5(realm, digestURI, randomNonce, passwords)
}

func newDigestMD5(realm, uri string, nonce func() string, passwords map[string]string) *DigestMD5 {
	m := &DigestMD5{realm: realm, uri: uri, nonce: nonce}
	m.SetUsers(passwords)
	return m
}

// SetUsers replaces the users and their passwords. They count for all who have not authenticated yet, also for
// those who have got their challenge before.
func (m *DigestMD5) SetUsers(passwords map[string]string) {
	users := map[string]secret{}
	for user, password := range passwords {
		users[user] = md5.Sum(bytes.Join([][]byte{hashed(user), hashed(m.realm), hashed(password)}, []byte(":")))
	}
	m.users.Store(&users)
}

// hashed returns the bytes of a name or password from which its hash is computed: ISO 8859-1 if it
// has all the characters, and otherwise UTF-8.
func hashed(text string) []byte {
	var latin []byte
	for _, r := range text {
		if r > 0xff {
			return []byte(text)
		}
		latin = append(latin, byte(r))
	}
	return latin
}

// randomNonce returns a nonce of 240 random bits, as long as Java's.
func randomNonce() string {
	var b [30]byte
	rand.Read(b[:])
	return base64.StdEncoding.EncodeToString(b[:])
}

// Begin implements Mechanism.
func (m *DigestMD5) Begin() Exchange { return &digestExchange{m: m} }

// digestExchange is one exchange: an initial token, which does not count, a challenge, the
// client's response to it, and the proof that the server knows the password too.
type digestExchange struct {
	m     *DigestMD5
	nonce string // of the challenge; "" before
	over  bool   // the client has responded
	user  string
	ok    bool
}

// User implements Exchange.
func (e *digestExchange) User() (string, bool) { return e.user, e.ok }

// Step implements Exchange.
func (e *digestExchange) Step(token []byte) ([]byte, error) {
	switch {
	case len(token) > maxResponse:
		return nil, fmt.Errorf("a token of %d bytes is longer than %d", len(token), maxResponse)
	case e.over:
		return nil, errors.New("the client has already responded on this connection")
	case e.nonce == "":
		e.nonce = e.m.nonce()
		return fmt.Appendf(nil, `realm="%s",nonce="%s",charset=utf-8,algorithm=md5-sess`, e.m.realm, e.nonce), nil
	}
	e.over = true
	r, err := parseResponse(token)
	if err != nil {
		return nil, err
	}
	proof, err := e.m.verify(r, e.nonce)
	if err != nil {
		return nil, err
	}
	e.user, e.ok = string(r["username"]), true
	return append([]byte("rspauth="), proof...), nil
}

// verify checks a response and returns the server's proof. The order of the checks is Java's,
// because those that return ErrUnanswered are among them.
func (m *DigestMD5) verify(r response, nonce string) (proof []byte, err error) {
	if charset, ok := r["charset"]; ok && string(charset) != "utf-8" {
		return nil, fmt.Errorf("charset %.60q", charset)
	}
	if _, err := r.number("maxbuf", 10, 0); err != nil {
		return nil, err
	}
	for _, name := range []string{"username", "realm", "nonce", "cnonce"} {
		if _, ok := r[name]; !ok {
			return nil, fmt.Errorf("there is no %s", name)
		}
	}
	if string(r["realm"]) != m.realm {
		return nil, fmt.Errorf("realm %.60q", r["realm"])
	}
	if string(r["nonce"]) != nonce {
		return nil, errors.New("the nonce is not that of the challenge")
	}
	if count, err := r.number("nonce-count", 16, 1); err != nil {
		return nil, err
	} else if count != 1 {
		return nil, fmt.Errorf("nonce-count %d", count)
	}
	if qop, ok := r["qop"]; ok && string(qop) != "auth" {
		return nil, fmt.Errorf("qop %.60q", qop)
	}
	if !strings.EqualFold(string(r["digest-uri"]), m.uri) {
		return nil, fmt.Errorf("digest-uri %.60q", r["digest-uri"])
	}
	if _, ok := r["response"]; !ok {
		return nil, errors.New("there is no response")
	}
	user := string(r["username"])
	if user == "" {
		return nil, fmt.Errorf("%w: the user has no name", ErrUnanswered)
	}
	// This takes as long for an unknown user as for a wrong password.
	known, ok := (*m.users.Load())[user]
	want := known.value(r, nonce, "AUTHENTICATE")
	if subtle.ConstantTimeCompare(want, r["response"]) != 1 || !ok {
		return nil, fmt.Errorf("user %.60q is unknown or has another password", user)
	}
	return known.value(r, nonce, ""), nil
}

// value computes the response value of RFC 2831, section 2.1.2.1: the client's with the method
// AUTHENTICATE, and the server's with an empty one.
func (s secret) value(r response, nonce, method string) []byte {
	a1 := [][]byte{s[:], []byte(nonce), r["cnonce"]}
	if authzid, ok := r["authzid"]; ok {
		a1 = append(a1, authzid)
	}
	return hexMD5(hexMD5(a1...), []byte(nonce), []byte("00000001"), r["cnonce"], []byte("auth"),
		hexMD5([]byte(method), r["digest-uri"]))
}

// hexMD5 returns the MD5 of the parts with colons between them, in hexadecimal.
func hexMD5(parts ...[]byte) []byte {
	sum := md5.Sum(bytes.Join(parts, []byte(":")))
	return hex.AppendEncode(nil, sum[:])
}

// response has the directives of a client's response by their names.
type response map[string][]byte

// directiveNames are the directives that Java knows; it ignores others. It does not know nc,
// which clients send, but nonce-count, which they do not.
var directiveNames = []string{
	"username", "realm", "nonce", "cnonce", "nonce-count", "qop", "digest-uri", "response", "maxbuf",
	"charset", "cipher", "authzid", "auth-param",
}

const whitespace = " \t\r\n"

// parseResponse parses a response: directives NAME=VALUE or NAME="VALUE", each of which a comma
// or white space ends. It accepts what Java accepts, which is more than RFC 2831 allows.
func parseResponse(b []byte) (response, error) {
	r := response{}
	for {
		b = bytes.TrimLeft(b, whitespace+",")
		if len(b) == 0 {
			return r, nil
		}
		name, value, rest, err := nextDirective(b)
		if err != nil {
			return nil, err
		}
		b = rest
		for _, known := range directiveNames {
			if !strings.EqualFold(known, string(name)) {
				continue
			}
			if _, twice := r[known]; twice {
				return nil, fmt.Errorf("more than one %s", known)
			}
			r[known] = value
		}
	}
}

// nextDirective splits b behind its first directive. A name alone is one with an empty value if
// nothing follows it.
func nextDirective(b []byte) (name, value, rest []byte, err error) {
	end := bytes.IndexAny(b, "=,"+whitespace)
	if end < 0 {
		return b, []byte{}, nil, nil
	}
	name, b = b[:end], bytes.TrimLeft(b[end:], whitespace)
	switch {
	case len(b) == 0 || b[0] != '=':
		return nil, nil, nil, fmt.Errorf("directive %.60q has no value", name)
	case len(name) == 0:
		return nil, nil, nil, errors.New("a value has no name")
	}
	if b = bytes.TrimLeft(b[1:], whitespace); len(b) == 0 {
		return nil, nil, nil, fmt.Errorf("directive %.60q has no value", name)
	}
	if b[0] != '"' {
		if end = bytes.IndexAny(b, ","+whitespace); end < 0 {
			end = len(b)
		}
		return name, b[:end], b[end:], nil
	}
	value = []byte{}
	for b = b[1:]; len(b) > 0 && b[0] != '"'; b = b[1:] {
		if b[0] == '\\' {
			if b = b[1:]; len(b) == 0 {
				break
			}
		}
		value = append(value, b[0])
	}
	if len(b) == 0 {
		return nil, nil, nil, fmt.Errorf("the value of %.60q has no closing quote", name)
	}
	if b = b[1:]; len(b) > 0 && !strings.ContainsRune(","+whitespace, rune(b[0])) {
		return nil, nil, nil, fmt.Errorf("something follows the quoted value of %.60q", name)
	}
	return name, value, b, nil
}

// number returns a directive's value as a number of 32 bits, or absent without the directive.
func (r response) number(name string, base int, absent int64) (int64, error) {
	text, ok := r[name]
	if !ok {
		return absent, nil
	}
	n, err := strconv.ParseInt(string(text), base, 32)
	if err != nil {
		return 0, fmt.Errorf("%w: %s %.60q is not a number", ErrUnanswered, name, text)
	}
	return n, nil
}
