package whole

import (
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/sasl"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

var saslBob = rawtest.DigestMD5{User: "bob", Password: "bobpw"}

// ofSASL returns an ACL for one user of SASL.
func ofSASL(user string) []proto.ACL {
	return []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeSASL, ID: user}}}
}

// digestMD5 is the server's own mechanism, as one of the program.
func digestMD5() lockkeeper.SASLExchange { return sasl.NewDigestMD5(rawtest.SASLUsers).Begin() }

// TestSASL: the settings of SASL, with every kind of connection.
func TestSASL(t *testing.T) {
	settings := func(t *testing.T, s *lockkeeper.Server, dial dialer) {
		bob, admin, none := connect(t, dial), connect(t, dial), connect(t, dial)
		check(t, saslBob.Login(bob))
		check(t, rawtest.DigestMD5{User: "admin", Password: "adminpw"}.Login(admin))
		must(bob.Call(proto.OpCreate, &proto.CreateRequest{Path: "/bob", ACL: ofSASL("bob")}, nil))(t)
		must(bob.Get("/bob", false))(t)
		must(admin.Get("/bob", false))(t)
		if _, err := none.Get("/bob", false); err != proto.NoAuth {
			t.Errorf("without authentication: %v", err)
		}
		if err := (rawtest.DigestMD5{User: "bob", Password: "x"}).Login(none); err != proto.AuthFailed {
			t.Errorf("with a wrong password: %v", err)
		}
		closed(t, none)
	}
	overAll(t, lockkeeper.Config{Auth: lockkeeper.Auth{SASL: lockkeeper.SASL{Users: rawtest.SASLUsers, SuperUsers: []string{"admin"}}}}, settings)
	another := lockkeeper.SASL{Mechanism: digestMD5, SuperUsers: []string{"admin"}}
	s := open(t, lockkeeper.Config{Auth: lockkeeper.Auth{SASL: another}})
	settings(t, s, inMemory(s))
	for name, x := range map[string]struct {
		auth lockkeeper.Auth
		want error // of the first request after a login with a wrong password
	}{
		"AllowFailed":            {lockkeeper.Auth{SASL: lockkeeper.SASL{Users: rawtest.SASLUsers, AllowFailed: true}}, nil},
		"AllowFailed, Mechanism": {lockkeeper.Auth{SASL: lockkeeper.SASL{Mechanism: another.Mechanism, AllowFailed: true}}, nil},
		"Mechanism, Enforce":     {lockkeeper.Auth{SASL: another, Enforce: []string{"sasl"}}, proto.SessionClosedRequireSASLAuth},
		"AllowFailed, Enforce":   {lockkeeper.Auth{SASL: lockkeeper.SASL{Users: rawtest.SASLUsers, AllowFailed: true}, Enforce: []string{"ip", "sasl"}}, proto.SessionClosedRequireSASLAuth},
	} {
		c := connect(t, inMemory(open(t, lockkeeper.Config{Auth: x.auth})))
		response, _ := rawtest.DigestMD5{User: "bob", Password: "x"}.Response(must(rawtest.CallSASL(c, ""))(t))
		if token, err := rawtest.CallSASL(c, response); token != "" || err != x.want {
			t.Errorf("%s: %q, %v, want %v", name, token, err, x.want)
		}
	}
}

// TestClusterSASL: a client authenticates at any member. Its identity goes with each request to
// the leader, and is gone with the connection.
func TestClusterSASL(t *testing.T) {
	inCluster(t, 3, func(c *lockkeeper.Config) { c.Auth.SASL.Users = rawtest.SASLUsers }, func(t *testing.T, m *members) {
		var last *rawclient.Client
		for i := range m.servers {
			c := m.connect(i, 30*time.Second)
			check(t, saslBob.Login(c))
			path := "/" + host(i)
			must(c.Call(proto.OpCreate, &proto.CreateRequest{Path: path, ACL: []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeAuth}}}}, nil))(t)
			var acl proto.ACLReply
			must(c.Call(proto.OpGetACL, &proto.Path{Path: path}, &acl))(t)
			if !slices.Equal(acl.ACL, ofSASL("bob")) {
				t.Errorf("member %d: the ACL is %v", i+1, acl.ACL)
			}
			must(c.Set(path, []byte("x")))(t)
			for j := range m.servers {
				other := m.connect(j, 30*time.Second)
				must(other.Call(proto.OpSync, &proto.Path{Path: path}, nil))(t)
				if _, err := other.Set(path, []byte("y")); err != proto.NoAuth {
					t.Errorf("member %d: set without authentication: %v", j+1, err)
				}
				check(t, saslBob.Login(other))
				must(other.Set(path, []byte("z")))(t)
				must(other.Get(path, false))(t)
			}
			last = c
		}
		moved := must(rawclient.Resume(must(inMemory(m.servers[0])())(t), last.Session))(t)
		if _, err := moved.Set("/"+host(2), nil); err != proto.NoAuth {
			t.Errorf("the session at another member: %v", err)
		}
	})
}
