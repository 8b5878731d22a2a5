package znode

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// access is a znode's ACL in a form in which it can be checked quickly.
type access struct {
	list  []proto.ACL
	hash  uint64
	index *aclIndex // only for a long list or one with addresses
}

var openAccess = &access{list: proto.OpenACL}

// longACL is the maximum length of a list without an index.
const longACL = 16

func newAccess(acl []proto.ACL) *access {
	if isOpen(acl) { // nearly every znode
		return openAccess
	}
	a := &access{list: acl, hash: new(digester).aclHash(acl)}
	address := func(a proto.ACL) bool { return a.Scheme == proto.SchemeIP } // else each check would parse it
	if len(acl) > longACL || slices.ContainsFunc(acl, address) {
		a.index = newIndex(acl)
	}
	return a
}

// Permits reports whether one of the identities has one of the permissions in perms
// (ZooKeeperServer.checkACL). An empty list gives all permissions to everybody, and an
// identity of scheme super has all permissions. Permits takes time in proportion to the
// number of identities, however long the list is.
func (a *access) Permits(perms int32, ids []proto.ID) bool {
	if a.index != nil {
		return a.index.granted(ids)&perms != 0
	}
	return permits(a.list, perms, ids)
}

// String returns the list, by which tests compare two ACLs.
func (a *access) String() string { return fmt.Sprint(a.list) }

func permits(acl []proto.ACL, perms int32, ids []proto.ID) bool {
	if len(acl) == 0 {
		return true
	}
	for i := range acl {
		a := &acl[i]
		if a.Perms&perms == 0 {
			continue
		}
		if isAnyone(a.ID) {
			return true
		}
		for _, id := range ids {
			if Names(a.ID, id) || id == saslSuper && a.Scheme == id.Scheme {
				return true
			}
		}
	}
	return slices.ContainsFunc(ids, isSuper)
}

// Names reports whether the id of an ACL's entry names an identity of a client. With scheme ip it may have a mask, and name
// many.
func Names(entry, id proto.ID) bool {
	return id.Scheme == entry.Scheme && (id.ID == entry.ID || id.Scheme == proto.SchemeIP && maskMatches(entry.ID, id.ID))
}

// ValidIP reports whether an entry of scheme ip may have the id.
func ValidIP(id string) bool {
	_, ok := parseMask(id)
	return ok
}

func isAnyone(id proto.ID) bool { return id.Scheme == proto.SchemeWorld && id.ID == proto.Anyone }
func isSuper(id proto.ID) bool  { return id.Scheme == proto.SchemeSuper }

// saslSuper is the identity that matches every entry of scheme sasl (SASLAuthenticationProvider).
// For other entries it is like any other.
var saslSuper = proto.ID{Scheme: proto.SchemeSASL, ID: "super"}

// aclIndex finds the permissions that a list grants to an identity.
type aclIndex struct {
	anyone int32                  // permissions of everybody
	sasl   int32                  // permissions of all entries of scheme sasl, for saslSuper
	byID   map[proto.ID]int32     // by the entry's id
	masks  map[netip.Prefix]int32 // by the entry's address and mask, for scheme ip
	bits   []int                  // different lengths of the masks
}

func newIndex(acl []proto.ACL) *aclIndex {
	x := &aclIndex{byID: make(map[proto.ID]int32, len(acl))}
	for _, a := range acl {
		x.byID[a.ID] |= a.Perms
		if isAnyone(a.ID) {
			x.anyone |= a.Perms
		}
		if a.Scheme == proto.SchemeSASL {
			x.sasl |= a.Perms
		}
		if a.Scheme != proto.SchemeIP {
			continue
		}
		if p, ok := parseMask(a.ID.ID); ok {
			if x.masks == nil {
				x.masks = map[netip.Prefix]int32{}
			}
			x.masks[p] |= a.Perms
			if !slices.Contains(x.bits, p.Bits()) {
				x.bits = append(x.bits, p.Bits())
			}
		}
	}
	return x
}

// granted returns the permissions that the list grants to any of the identities.
func (x *aclIndex) granted(ids []proto.ID) int32 {
	perms := x.anyone
	for _, id := range ids {
		if isSuper(id) {
			return -1
		}
		perms |= x.byID[id]
		if id == saslSuper {
			perms |= x.sasl
		}
		if id.Scheme != proto.SchemeIP || x.masks == nil {
			continue
		}
		if a, ok := parseClient(id.ID); ok {
			for _, bits := range x.bits {
				if p, err := a.Prefix(bits); err == nil {
					perms |= x.masks[p]
				}
			}
		}
	}
	return perms
}

// Checker caches checks of ACLs for clients with many identities, during one transaction or
// request. The zero value is ready to use.
type Checker struct{ known map[checkKey]bool }

type checkKey struct {
	access proto.Access
	perms  int32
	ids    *proto.ID // the first one
}

// Permits returns a.Permits(perms, ids). While a Checker is used, ids must not change.
func (c *Checker) Permits(a proto.Access, perms int32, ids []proto.ID) bool {
	if len(ids) <= 4 {
		return a.Permits(perms, ids)
	}
	key := checkKey{a, perms, &ids[0]}
	permitted, ok := c.known[key]
	if !ok {
		if c.known == nil {
			c.known = map[checkKey]bool{}
		}
		permitted = a.Permits(perms, ids)
		c.known[key] = permitted
	}
	return permitted
}

func maskMatches(mask, addr string) bool {
	p, ok := parseMask(mask)
	a, valid := parseClient(addr)
	return ok && valid && p.Contains(a)
}

// parseClient parses a client's address. It removes the zone, which is only this host's name
// of a network interface.
func parseClient(addr string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(addr)
	return a.WithZone("").Unmap(), err == nil
}

// parseMask parses the id of an ACL entry of scheme ip: an address, or address/bits. It
// accepts what ZooKeeper accepts (IPAuthenticationProvider), which is different from netip.
func parseMask(s string) (netip.Prefix, bool) {
	host, bits, masked := strings.Cut(s, "/")
	a, ok := parseIP4(host)
	if strings.Contains(host, ":") {
		a, ok = parseIP6(host)
	}
	if !ok {
		return netip.Prefix{}, false
	}
	n := a.BitLen()
	if masked {
		var err error
		if n, err = strconv.Atoi(bits); err != nil || n < 0 || n > a.BitLen() {
			return netip.Prefix{}, false
		}
	}
	return netip.PrefixFrom(a, n).Masked(), true
}

// parseIP4 parses an IPv4 address whose numbers may have leading zeros.
func parseIP4(s string) (netip.Addr, bool) {
	parts := strings.Split(s, ".")
	if len(parts) != 4 {
		return netip.Addr{}, false
	}
	var b [4]byte
	for i, part := range parts {
		v, err := strconv.Atoi(part)
		if err != nil || v < 0 || v > 255 {
			return netip.Addr{}, false
		}
		b[i] = byte(v)
	}
	return netip.AddrFrom4(b), true
}

// parseIP6 parses an IPv6 address. It accepts neither a zone nor an IPv4 address at the end.
func parseIP6(s string) (netip.Addr, bool) {
	if strings.ContainsAny(s, ".%") {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s)
	return a, err == nil
}

// When an ACL is stored, each entry of scheme auth is replaced by all identities of the
// connection: 16 bytes of a request may become 64 KiB. These constants limit that. They
// cannot be configured, since all replicas must agree.
const (
	// maxACL is the maximum length of the encoding of a stored list, unless the list
	// was longer when it was sent.
	maxACL = 1<<20 - 1
	// aclGrowth limits the lists of a whole transaction, since a multi may create
	// thousands of znodes: together, they may be aclGrowth times as long as they were
	// sent, plus maxACL.
	aclGrowth = 16
)

// encodedLen returns the length of an ACL entry's encoding.
func encodedLen(id proto.ID) int { return 3*4 + len(id.Scheme) + len(id.ID) }

// fixACL returns the list to store for the one that a client sent
// (PrepRequestProcessor.fixupACL). It removes duplicate entries, replaces scheme auth with the
// client's identities, and checks that every entry is valid. Unlike ZooKeeper, it returns
// InvalidACL if scheme auth makes the list too long; see maxACL.
func (x *Txn) fixACL(acl []proto.ACL) ([]proto.ACL, proto.Code) {
	if isOpen(acl) {
		return proto.OpenACL, proto.OK // shared: nearly every znode has it
	}
	sent := 0
	for i := range acl {
		sent += encodedLen(acl[i].ID)
	}
	x.aclSent += sent
	// There is always room for this list as it was sent, however long the transaction's
	// other lists became.
	room := min(max(maxACL, sent), maxACL+aclGrowth*x.aclSent-x.aclStored)
	add := func(out []proto.ACL, a proto.ACL) []proto.ACL {
		n := encodedLen(a.ID)
		room -= n
		x.aclStored += n
		return append(out, a)
	}
	out := make([]proto.ACL, 0, len(acl))
	seen := make(map[proto.ACL]bool, len(acl)) // a list may have tens of thousands of entries
	for _, a := range acl {
		if seen[a] {
			continue
		}
		seen[a] = true
		id := a.ID.ID
		var known, valid bool
		switch a.Scheme {
		case proto.SchemeAuth:
			n := len(out)
			for _, id := range x.IDs {
				if id.Scheme == proto.SchemeDigest && !x.NoDigest || x.X509 && id.Scheme == proto.SchemeX509 || x.SASL && id.Scheme == proto.SchemeSASL {
					if out = add(out, proto.ACL{Perms: a.Perms, ID: id}); room < 0 {
						return nil, proto.InvalidACL
					}
				}
			}
			if len(out) == n {
				return nil, proto.InvalidACL
			}
			continue
		case proto.SchemeWorld:
			known, valid = true, id == proto.Anyone
		case proto.SchemeDigest:
			known, valid = !x.NoDigest, validDigest(id)
		case proto.SchemeIP:
			known, valid = true, ValidIP(id)
		case proto.SchemeX509:
			known, valid = x.X509 && id != jute.Null, validDN(id)
		case proto.SchemeSASL:
			known, valid = x.SASL, ValidSASL(id)
		}
		if known && id == jute.Null {
			return nil, proto.MarshallingError
		}
		if out = add(out, a); !known || !valid || room < 0 {
			return nil, proto.InvalidACL
		}
	}
	if len(out) == 0 {
		return nil, proto.InvalidACL
	}
	return out, proto.OK
}

// validDigest reports whether an id of scheme digest has two parts, as Java's split(":")
// counts them: it drops empty parts at the end.
func validDigest(id string) bool {
	parts := strings.Split(id, ":")
	for len(parts) > 0 && parts[len(parts)-1] == "" {
		parts = parts[:len(parts)-1]
	}
	return len(parts) == 2
}

// ValidSASL reports whether ZooKeeper accepts an id of scheme sasl (KerberosName): any text without
// an @, or PRIMARY@REALM or PRIMARY/INSTANCE@REALM, whose parts may be empty.
func ValidSASL(id string) bool {
	principal, realm, has := strings.Cut(id, "@")
	return !has || !strings.ContainsAny(realm, "@/") && strings.Count(principal, "/") <= 1
}

// MaskedACL returns the ACL as getACL shows it to a client with these identities: without
// ADMIN permission, it sees "user:x" instead of each digest (FinalRequestProcessor).
func (n *Node) MaskedACL(ids []proto.ID) []proto.ACL {
	acl := n.acl().list
	if n.acl().Permits(proto.PermAdmin, ids) {
		return acl
	}
	out := slices.Clone(acl)
	for i := range out {
		if a := &out[i]; a.Scheme == proto.SchemeDigest {
			user, _, _ := strings.Cut(a.ID.ID, ":")
			a.ID.ID = user + ":x"
		}
	}
	return out
}
