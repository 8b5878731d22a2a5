package server

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

func (s *Server) EndConnections(identity string) (ended report.Ended, err error) {
	who, err := parseIdentity(identity)
	if err != nil {
		return ended, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		// In this order: once nothing is being proved, the identity is there.
		proving := c.proving.Load()
		switch {
		case slices.ContainsFunc(c.Identities(), func(id proto.ID) bool { return znode.Names(who, id) || isDigestOf(who, id) }):
			ended.Connections++
			if c.session != 0 {
				ended.Sessions = append(ended.Sessions, c.session)
			}
		case !proving:
			continue
		}
		if s.sessions[c.session] == c { // it counts as not connected at once
			delete(s.sessions, c.session)
		}
		c.kill()
	}
	slices.Sort(ended.Sessions)
	return ended, nil
}

// parseIdentity parses SCHEME:ID.
func parseIdentity(text string) (proto.ID, error) {
	scheme, id, _ := strings.Cut(text, ":")
	who := proto.ID{Scheme: scheme, ID: id}
	switch scheme {
	case proto.SchemeDigest, proto.SchemeX509, proto.SchemeSASL:
		if id == "" {
			return who, fmt.Errorf("%q has no id behind the scheme", text)
		}
	case proto.SchemeIP:
		if !znode.ValidIP(id) {
			return who, fmt.Errorf("%q is no address, or address and mask: ip:10.0.0.5, ip:10.0.0.0/24", id)
		}
	default:
		return who, fmt.Errorf("%q is not the identity of a client: digest:NAME, x509:SUBJECT, sasl:USER or ip:ADDRESS, as in an ACL", text)
	}
	return who, nil
}

// isDigestOf reports whether an identity is of scheme digest and has the name in who, whatever its password.
func isDigestOf(who, id proto.ID) bool {
	name, _, _ := strings.Cut(id.ID, ":")
	return who.Scheme == proto.SchemeDigest && id.Scheme == who.Scheme && name == who.ID
}
