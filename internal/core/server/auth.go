package server

import (
	"crypto"
	_ "crypto/md5" // the hashes that digests can have
	_ "crypto/sha1"
	_ "crypto/sha256"
	_ "crypto/sha3"
	_ "crypto/sha512"
	"encoding/base64"
	"errors"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/core/sasl"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// maxIdentity limits the encoded identities of a connection, in bytes, because each
// of its writes carries them into the log.
const maxIdentity = 4 << 10

// auth adds an identity to the connection, which counts for later requests. If the
// request cannot be decoded, auth returns an error and the client gets no reply.
func (c *conn) auth(body []byte) (proto.Code, error) {
	var q proto.AuthRequest
	d := jute.NewDecoder(body)
	if q.Decode(&d); d.Err() != nil {
		return 0, errAuth
	}
	switch {
	case q.Scheme == proto.SchemeIP: // every connection has it from the start
		return proto.OK, nil
	case q.Scheme == proto.SchemeX509 && // given by the TLS handshake
		slices.ContainsFunc(c.identity.Load().ids, func(id proto.ID) bool { return id.Scheme == proto.SchemeX509 }):
		return proto.OK, nil
	case q.Scheme == proto.SchemeDigest && !c.s.cfg.NoDigest && q.Auth != nil:
		id := digest(c.s.cfg.Digest, jute.Text(q.Auth))
		if c.prove(proto.SchemeDigest, id, id == c.s.cfg.SuperDigest) == nil {
			return proto.OK, nil
		}
	}
	c.s.stats.authFailed.Add(1)
	c.warn("authentication failed", "scheme", q.Scheme)
	return proto.AuthFailed, nil
}

// authSASL answers a request sasl with a code and a token (ZooKeeperServer.processSasl). A client
// that has authenticated gets an identity, which counts for later requests. If authSASL returns an
// error, the client gets no reply.
func (c *conn) authSASL(body []byte) (proto.Code, []byte, error) {
	var q proto.SASLRequest
	d := jute.NewDecoder(body)
	if q.Decode(&d); d.Err() != nil {
		return 0, nil, errSASL
	}
	if c.s.cfg.SASL == nil { // ZooKeeper answers OK then, and gives the client no identity
		return proto.OK, nil, nil
	}
	if c.sasl == nil {
		c.proving.Store(true)
		c.sasl = c.s.cfg.SASL()
	}
	token, err := c.sasl.Step(q.Token)
	if user, ok := c.sasl.User(); ok && err == nil {
		err = c.prove(proto.SchemeSASL, user, slices.Contains(c.s.cfg.SuperSASL, user))
		c.proving.Store(false)
	}
	if err == nil {
		return proto.OK, token, nil
	}
	c.s.stats.authFailed.Add(1)
	c.warn("authentication failed", "scheme", proto.SchemeSASL, "error", err)
	switch required := slices.Contains(c.s.cfg.EnforceAuth, proto.SchemeSASL); {
	case errors.Is(err, sasl.ErrUnanswered):
		return 0, nil, errSASL
	case required:
		return proto.SessionClosedRequireSASLAuth, nil, nil
	case c.s.cfg.AllowSASLFailed:
		return proto.OK, nil, nil
	}
	return proto.AuthFailed, nil, nil
}

// prove adds an identity that the client has proved, which may be that of the super user.
func (c *conn) prove(scheme, id string, super bool) error {
	ids := c.identity.Load().ids
	proved := []proto.ID{{Scheme: scheme, ID: id}}
	if super {
		proved = append(proved, proto.ID{Scheme: proto.SchemeSuper})
		if scheme != proto.SchemeSASL { // ZooKeeper's order
			slices.Reverse(proved)
		}
	}
	for _, id := range proved {
		if !slices.Contains(ids, id) {
			ids = append(slices.Clip(ids), id)
		}
	}
	who := newIdentity(ids)
	if len(who.encoded) > maxIdentity {
		return errors.New("the identities of the connection are too long")
	}
	c.identity.Store(who)
	return nil
}

// refuseUnauthenticated refuses a request if authentication is enforced and the
// connection has no identity of an enforced scheme, and ends the connection
// (AuthenticationHelper). It returns false if the request may proceed. It replies
// directly, because the queue is still empty: no earlier request can have proceeded.
func (c *conn) refuseUnauthenticated(q *request) bool {
	if c.s.authenticated(c.identity.Load().ids) {
		return false
	}
	c.warn("closing a connection without authentication", "wanted", c.s.cfg.EnforceAuth)
	c.unsent = true
	c.stopped.Store(true)
	c.reply(q, &proto.ReplyHeader{Xid: q.xid, Code: proto.SessionClosedRequireSASLAuth}, nil)
	c.end()
	return true
}

// authenticated reports whether identities are those of a client that has authenticated as far as
// the configuration enforces it.
func (s *Server) authenticated(ids []proto.ID) bool {
	wanted := s.cfg.EnforceAuth
	return len(wanted) == 0 || slices.ContainsFunc(ids, func(id proto.ID) bool { return slices.Contains(wanted, id.Scheme) })
}

// inProcess are the identities of a client in this process: its connection in memory is local.
var inProcess = []proto.ID{{Scheme: proto.SchemeIP, ID: "127.0.0.1"}}

// digest returns the id of scheme digest for "user:password"
// (DigestAuthenticationProvider.generateDigest).
func digest(hash crypto.Hash, userPassword string) string {
	user, _, _ := strings.Cut(userPassword, ":")
	h := hash.New()
	h.Write([]byte(userPassword))
	return user + ":" + base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// digestAlgorithms maps Java's names of hashes, in upper case.
var digestAlgorithms = map[string]crypto.Hash{
	"MD5": crypto.MD5, "SHA": crypto.SHA1, "SHA1": crypto.SHA1, "SHA-1": crypto.SHA1,
	"SHA224": crypto.SHA224, "SHA-224": crypto.SHA224, "SHA256": crypto.SHA256, "SHA-256": crypto.SHA256,
	"SHA384": crypto.SHA384, "SHA-384": crypto.SHA384, "SHA512": crypto.SHA512, "SHA-512": crypto.SHA512,
	"SHA512/224": crypto.SHA512_224, "SHA-512/224": crypto.SHA512_224, "SHA512/256": crypto.SHA512_256, "SHA-512/256": crypto.SHA512_256,
	"SHA3-224": crypto.SHA3_224, "SHA3-256": crypto.SHA3_256, "SHA3-384": crypto.SHA3_384, "SHA3-512": crypto.SHA3_512,
}

// DigestAlgorithm returns the hash that has that name in Java; case does not
// matter. It returns false if the hash is not supported.
func DigestAlgorithm(name string) (crypto.Hash, bool) {
	h, ok := digestAlgorithms[strings.ToUpper(name)]
	return h, ok
}
