package server_test

import (
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// login authenticates a client with a scheme.
func login(c *rawclient.Client, scheme, who string) error {
	_, err := c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: scheme, Auth: []byte(who)}, nil)
	return err
}

// TestDigestAlgorithm: every supported hash works for identities of scheme digest,
// including the super user's.
func TestDigestAlgorithm(t *testing.T) {
	for algorithm, want := range map[string]string{ // the hash of user:pass
		"SHA1":        "smGaoVKd/cQkjm7b88GyorAUz20=",
		"sha-1":       "smGaoVKd/cQkjm7b88GyorAUz20=",
		"SHA":         "smGaoVKd/cQkjm7b88GyorAUz20=",
		"SHA256":      "70yRTFkWmLJo2zxkFj6v2nIJpjDyNuvw7r8EVGDfcjo=",
		"MD5":         "IaOShYhKJo1kWOP96wi+rA==",
		"SHA-224":     "PkKzWnuMzJ0rpktz4O5hvSZFw/3yZFIfOizv2Q==",
		"SHA-256":     "70yRTFkWmLJo2zxkFj6v2nIJpjDyNuvw7r8EVGDfcjo=",
		"SHA-384":     "HCMIuQnSVR4Ge6EqefZYDR5jDoZgKCFDqLIj+NFPNcMCWoRCnlIHxYGRib8lxoES",
		"SHA-512":     "byB8hNs+LzOYofjeMGiIfR/jKrcms8i5ls17owJgMPc/97CxZ1nTVHmKawnszYHC8bu9VMh6GIu6lFZ1BXBL3Q==",
		"SHA-512/224": "L1glB9gK73x7aeL8CvbDYSbBR0KA0VVYa4N+Qg==",
		"SHA-512/256": "htaDe+W52JZuBc/SaAa/Dg0Gkh4PRC+urDUOsga/86s=",
		"SHA3-224":    "V0DUUIgATD5glpGlu3E/zUW5JQct3OS4WSPfcA==",
		"SHA3-256":    "MKfo05p7nYw1Yb/bzA4GEyZLUt02iFpxN0ASiDBnsjw=",
		"SHA3-384":    "tJjZMH1SIBQQtXUh+Rc24S0RVOcCO9mLplyYFS9vdFluhH2azpF4eDdC1BnT7QVl",
		"SHA3-512":    "FWUrHsnpIuI/wA7/wScJDJ8ZlRBU2B3y7nG9wKifhaEpJvvEuDgXE5mhpNHdcvZzjwkNue7X1em4rs5s2IiDdw==",
	} {
		hash, ok := server.DigestAlgorithm(algorithm)
		if !ok {
			t.Errorf("%s is not supported", algorithm)
			continue
		}
		c := connect(t, open(t, server.Config{Auth: server.Auth{Digest: hash, SuperDigest: "user:" + want}}).dial)
		check(t, login(c, "digest", "user:pass"))
		var who proto.WhoAmIReply
		must(c.Call(proto.OpWhoAmI, nil, &who))(t)
		if !slices.Contains(who.IDs, proto.ID{Scheme: proto.SchemeSuper}) {
			t.Errorf("%s: not the super user: %v", algorithm, who.IDs)
		}
		mine := []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeAuth}}}
		must(c.Call(proto.OpCreate, &proto.CreateRequest{Path: "/x", ACL: mine}, nil))(t)
		var acl proto.ACLReply
		must(c.Call(proto.OpGetACL, &proto.Path{Path: "/x"}, &acl))(t)
		if user := (proto.ID{Scheme: "digest", ID: "user:" + want}); len(acl.ACL) != 1 || acl.ACL[0].ID != user {
			t.Errorf("%s: the ACL is %v, not of %v", algorithm, acl.ACL, user)
		}
	}
	for _, bad := range []string{"", "SHA-2", "MD2", "nonsense"} {
		if hash, ok := server.DigestAlgorithm(bad); ok {
			t.Errorf("%q is supported: %v", bad, hash)
		}
	}
}

// TestNoDigest: if the scheme digest is turned off, clients cannot authenticate with it
// and ACLs cannot name it.
func TestNoDigest(t *testing.T) {
	p := open(t, server.Config{Auth: server.Auth{NoDigest: true, SuperDigest: "super:D/InIHSb7yEEbrWz8b9l71RjZJU="}}) // password test
	p.loop.set(fsm.NoDigest)
	c := connect(t, p.dial)
	if err := login(c, "digest", "super:test"); err != proto.AuthFailed {
		t.Errorf("auth: %v", err)
	}
	closed(t, c)
	c = connect(t, p.dial)
	must(c.Create("/x", nil, 0))(t)
	for _, id := range []string{"user:hash", "user", jute.Null} {
		acl := []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeDigest, ID: id}}}
		if _, err := c.Call(proto.OpCreate, &proto.CreateRequest{Path: "/y", ACL: acl}, nil); err != proto.InvalidACL {
			t.Errorf("create with %q: %v", id, err)
		}
		if _, err := c.Call(proto.OpSetACL, &proto.SetACLRequest{Path: "/x", ACL: acl, Version: -1}, nil); err != proto.InvalidACL {
			t.Errorf("setACL with %q: %v", id, err)
		}
	}
	mine := []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeAuth}}}
	if _, err := c.Call(proto.OpCreate, &proto.CreateRequest{Path: "/y", ACL: mine}, nil); err != proto.InvalidACL {
		t.Errorf("create with scheme auth: %v", err)
	}
}

// TestEnforceAuth: a connection without an identity of an enforced scheme is closed after
// the answer to its first request other than auth and sasl. Its session continues.
func TestEnforceAuth(t *testing.T) {
	p := open(t, server.Config{Auth: server.Auth{EnforceAuth: []string{"x509", "digest"}}})
	c := connect(t, p.dial)
	session := c.Session
	for _, x := range []struct {
		name string
		op   proto.OpCode
		body proto.Record
	}{
		{"create", proto.OpCreate, &proto.CreateRequest{Path: "/x", ACL: proto.OpenACL}},
		{"getData", proto.OpGetData, &proto.PathWatch{Path: "/"}},
		{"ping", proto.OpPing, nil},
		{"setWatches", proto.OpSetWatches, nil},
		{"closeSession", proto.OpCloseSession, nil},
		{"an operation that nobody knows", 4711, nil},
		{"a request that cannot be read", proto.OpGetData, nil},
	} {
		must(c.Call(proto.OpSASL, &proto.SASLRequest{Token: []byte{}}, nil))(t)
		check(t, login(c, "ip", ""))
		xid := must(c.Send(x.op, x.body))(t)
		if f := must(c.Read())(t); f.Xid != xid || f.Code != proto.SessionClosedRequireSASLAuth || f.Zxid != 0 || len(f.Body) > 0 {
			t.Errorf("%s: %+v", x.name, f)
		}
		closed(t, c)
		c = must(rawclient.Resume(must(p.dial())(t), session))(t)
	}
	check(t, login(c, "digest", "user:pass"))
	if _, err := c.Exists("/x", false); err != proto.NoNode {
		t.Errorf("with an identity: %v", err)
	}
	must(c.Create("/x", nil, 0))(t)

	p = open(t, server.Config{Auth: server.Auth{EnforceAuth: []string{"ip"}}}) // which everybody has
	must(connect(t, p.dial).Create("/x", nil, 0))(t)
}
