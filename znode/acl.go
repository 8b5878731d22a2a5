package znode

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Permits reports whether one of the identities may do one of the things in
// perms under acl (ZooKeeperServer.checkACL). An empty list permits everything,
// and so does the identity of scheme super.
func Permits(acl []proto.ACL, perms int32, ids []proto.ID) bool {
	if len(acl) == 0 {
		return true
	}
	if len(acl)*len(ids) > longACL {
		return granted(acl, ids)&perms != 0
	}
	for i := range acl {
		a := &acl[i]
		if a.Perms&perms == 0 {
			continue
		}
		if a.Scheme == proto.SchemeWorld && a.ID.ID == proto.Anyone {
			return true
		}
		for _, id := range ids {
			if id.Scheme == a.Scheme && (id.ID == a.ID.ID || id.Scheme == proto.SchemeIP && maskMatches(a.ID.ID, id.ID)) {
				return true
			}
		}
	}
	return slices.ContainsFunc(ids, isSuper)
}

// longACL is the number of comparisons from which on it pays to index the
// identities.
const longACL = 64

func isSuper(id proto.ID) bool { return id.Scheme == proto.SchemeSuper }

// granted is all that a list permits to the identities. It takes time in
// proportion to the sum of their numbers, not to the product.
func granted(acl []proto.ACL, ids []proto.ID) (perms int32) {
	if slices.ContainsFunc(ids, isSuper) {
		return -1
	}
	mine := make(map[proto.ID]struct{}, len(ids))
	var addrs []netip.Addr // one: the server gives a connection a single address
	for _, id := range ids {
		mine[id] = struct{}{}
		if id.Scheme == proto.SchemeIP {
			if a, ok := parseClient(id.ID); ok {
				addrs = append(addrs, a)
			}
		}
	}
	for i := range acl {
		a := &acl[i]
		if a.Perms&^perms == 0 {
			continue
		}
		_, ok := mine[a.ID]
		if ok || a.Scheme == proto.SchemeWorld && a.ID.ID == proto.Anyone {
			perms |= a.Perms
		} else if a.Scheme == proto.SchemeIP && len(addrs) > 0 {
			if p, ok := parseMask(a.ID.ID); ok && slices.ContainsFunc(addrs, p.Contains) {
				perms |= a.Perms
			}
		}
	}
	return perms
}

// Checker is [Permits] for many checks while no znode changes its list in
// place: it remembers what long lists came to. The zero value is ready to use.
type Checker struct{ known map[checked]int32 }

type checked struct {
	acl *proto.ACL
	ids *proto.ID
}

// Permits is [Permits].
func (c *Checker) Permits(acl []proto.ACL, perms int32, ids []proto.ID) bool {
	if len(acl)*len(ids) <= longACL {
		return Permits(acl, perms, ids)
	}
	key := checked{&acl[0], &ids[0]}
	g, ok := c.known[key]
	if !ok {
		if c.known == nil {
			c.known = map[checked]int32{}
		}
		g = granted(acl, ids)
		c.known[key] = g
	}
	return g&perms != 0
}

func maskMatches(mask, addr string) bool {
	p, ok := parseMask(mask)
	a, valid := parseClient(addr)
	return ok && valid && p.Contains(a)
}

// parseClient reads a client's address, without the zone, which is this host's
// name for a link.
func parseClient(addr string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(addr)
	return a.WithZone("").Unmap(), err == nil
}

// parseMask reads the id of an ip entry: an address, or address/bits. It takes
// what ZooKeeper takes (IPAuthenticationProvider), which is not what netip takes.
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

// parseIP4 reads four numbers, which may begin with zeros.
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

// parseIP6 knows neither zones nor an IPv4 address at the end.
func parseIP6(s string) (netip.Addr, bool) {
	if strings.ContainsAny(s, ".%") {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s)
	return a, err == nil
}

// An ACL is stored with every "auth" in it replaced by all identities of the
// connection, of which there may be 64 KiB for 16 bytes that were sent. The
// limits are the same on all servers, whatever their configuration, since
// replicas must agree.
const (
	// maxACL is how many bytes the encoding of a stored list may have, or as
	// many as that of the list that was sent, if it is longer.
	maxACL = 1<<20 - 1
	// aclGrowth is how many bytes a transaction may store for each that was sent,
	// of all its lists together and beyond maxACL: a multi may create thousands
	// of znodes.
	aclGrowth = 16
)

// encodedLen is the length of an ACL entry's encoding.
func encodedLen(id proto.ID) int { return 3*4 + len(id.Scheme) + len(id.ID) }

// fixACL turns the list that a client sent into the one to store
// (PrepRequestProcessor.fixupACL): exact duplicates go, "auth" becomes the
// client's own identities, and every entry must be valid. ZooKeeper sets no
// limit to what "auth" may become; here it is maxACL, and InvalidACL beyond it.
func (x *Txn) fixACL(acl []proto.ACL) ([]proto.ACL, proto.Code) {
	if isOpen(acl) {
		return proto.OpenACL, proto.OK // shared: nearly every znode has it
	}
	sent := 0
	for i := range acl {
		sent += encodedLen(acl[i].ID)
	}
	x.aclSent += sent
	// Whatever the other lists took, this leaves room for the list as it was sent.
	room := min(max(maxACL, sent), maxACL+aclGrowth*x.aclSent-x.aclStored)
	add := func(out []proto.ACL, a proto.ACL) []proto.ACL {
		n := encodedLen(a.ID)
		room -= n
		x.aclStored += n
		return append(out, a)
	}
	out := make([]proto.ACL, 0, len(acl))
	var seen map[proto.ACL]struct{} // of a long list: a frame holds tens of thousands of entries
	if len(acl) > 16 {
		seen = make(map[proto.ACL]struct{}, len(acl))
	}
	for i, a := range acl {
		if seen == nil && slices.Contains(acl[:i], a) {
			continue
		}
		if seen != nil {
			n := len(seen)
			if seen[a] = struct{}{}; len(seen) == n {
				continue
			}
		}
		known := a.Scheme == proto.SchemeWorld || a.Scheme == proto.SchemeDigest || a.Scheme == proto.SchemeIP
		if known && a.ID.ID == jute.Null {
			return nil, proto.MarshallingError
		}
		switch a.Scheme {
		case proto.SchemeAuth:
			n := len(out)
			for _, id := range x.IDs {
				if id.Scheme == proto.SchemeDigest || x.X509 && id.Scheme == proto.SchemeX509 {
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
			if a.ID.ID != proto.Anyone {
				return nil, proto.InvalidACL
			}
		case proto.SchemeDigest:
			if !validDigest(a.ID.ID) {
				return nil, proto.InvalidACL
			}
		case proto.SchemeIP:
			if _, ok := parseMask(a.ID.ID); !ok {
				return nil, proto.InvalidACL
			}
		case proto.SchemeX509:
			if !x.X509 || !validDN(a.ID.ID) {
				return nil, proto.InvalidACL
			}
		default:
			return nil, proto.InvalidACL
		}
		if out = add(out, a); room < 0 {
			return nil, proto.InvalidACL
		}
	}
	if len(out) == 0 {
		return nil, proto.InvalidACL
	}
	return out, proto.OK
}

// validDigest follows Java's split(":"), which drops empty parts at the end:
// there must be exactly two parts.
func validDigest(id string) bool {
	parts := strings.Split(id, ":")
	for len(parts) > 0 && parts[len(parts)-1] == "" {
		parts = parts[:len(parts)-1]
	}
	return len(parts) == 2
}

// MaskACL is the list that getACL shows: whoever may not administer the znode
// sees "user:x" in place of a digest (FinalRequestProcessor).
func MaskACL(acl []proto.ACL, ids []proto.ID) []proto.ACL {
	if Permits(acl, proto.PermAdmin, ids) {
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
