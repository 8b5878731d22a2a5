package server

import (
	"crypto/sha1"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// maxIdentity is how many bytes a connection's identities may have: each of its
// writes takes them into the log.
const maxIdentity = 4 << 10

// auth adds an identity to the connection, for the requests that come after
// it. A request that cannot be read is an error, and gets no reply.
func (c *conn) auth(body []byte) (proto.Code, error) {
	var q proto.AuthRequest
	d := jute.NewDecoder(body)
	if q.Decode(&d); d.Err() != nil {
		return 0, errAuth
	}
	switch {
	case q.Scheme == proto.SchemeIP: // given at accept
		return proto.OK, nil
	case q.Scheme == proto.SchemeX509 && c.hasX509(): // given at accept, too
		return proto.OK, nil
	case q.Scheme == proto.SchemeDigest && q.Auth != nil:
		id := proto.ID{Scheme: proto.SchemeDigest, ID: digest(jute.Text(q.Auth))}
		ids := slices.Clone(c.identity.Load().ids)
		if id.ID == c.s.cfg.SuperDigest {
			ids = appendNew(ids, proto.ID{Scheme: proto.SchemeSuper})
		}
		if who := newIdentity(appendNew(ids, id)); len(who.encoded) <= maxIdentity {
			c.identity.Store(who)
			return proto.OK, nil
		}
	}
	c.s.stats.authFailed.Add(1)
	c.warn("authentication failed", "scheme", q.Scheme)
	return proto.AuthFailed, nil
}

func appendNew(ids []proto.ID, id proto.ID) []proto.ID {
	if slices.Contains(ids, id) {
		return ids
	}
	return append(ids, id)
}

// digest is the identity that "user:password" proves
// (DigestAuthenticationProvider.generateDigest). SHA-1 is what clients and
// stored ACLs expect.
func digest(userPassword string) string {
	user, _, _ := strings.Cut(userPassword, ":")
	sum := sha1.Sum([]byte(userPassword))
	return user + ":" + base64.StdEncoding.EncodeToString(sum[:])
}
