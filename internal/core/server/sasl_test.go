package server_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/sasl"
	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// withSASL adds SASL with the users of the tests to a configuration.
func withSASL(auth server.Auth) server.Config {
	auth.SASL = sasl.NewDigestMD5(rawtest.SASLUsers).Begin
	return server.Config{Auth: auth}
}

var bob = rawtest.DigestMD5{User: "bob", Password: "bobpw"}

func entry(scheme, id string) []proto.ACL {
	return []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: scheme, ID: id}}}
}

// createWith creates a znode with an ACL of one entry.
func createWith(c *rawclient.Client, path, scheme, id string) error {
	_, err := c.Call(proto.OpCreate, &proto.CreateRequest{Path: path, ACL: entry(scheme, id)}, nil)
	return err
}

// whoAmI returns the identities of a client.
func whoAmI(t *testing.T, c *rawclient.Client) []proto.ID {
	t.Helper()
	var who proto.WhoAmIReply
	must(c.Call(proto.OpWhoAmI, nil, &who))(t)
	return who.IDs
}

// TestSASLResponses: the same follows from each response as from ZooKeeper's answer to it.
func TestSASLResponses(t *testing.T) {
	p := open(t, withSASL(server.Auth{}))
	users := map[string]int{}
	for _, x := range rawtest.SASLCases() {
		got, err := x.Run(connect(t, p.dial))
		if got != x.Want || err != nil {
			t.Errorf("%s: %s, %v, want %s", x.Name, got, err, x.Want)
		}
		users[got]++
	}
	if users[rawtest.SASLRefused] < 20 || users[rawtest.SASLClosed] < 5 || users["bob"] < 20 || len(users) != 2+8 {
		t.Errorf("the test does not show much: %v", users)
	}
}

// TestSASLOnce: a connection can authenticate once. The next token ends it, and the session
// continues on another connection, without the identity.
func TestSASLOnce(t *testing.T) {
	p := open(t, withSASL(server.Auth{}))
	p.loop.set(fsm.SASL)
	c := connect(t, p.dial)
	check(t, bob.Login(c))
	check(t, createWith(c, "/bob", "sasl", "bob"))
	if _, err := rawtest.CallSASL(c, ""); err != proto.AuthFailed {
		t.Errorf("once more: %v", err)
	}
	closed(t, c)
	c = must(rawclient.Resume(must(p.dial())(t), c.Session))(t)
	if _, err := c.Get("/bob", false); err != proto.NoAuth {
		t.Errorf("without the identity: %v", err)
	}
	check(t, bob.Login(c))
	must(c.Get("/bob", false))(t)

	// A response counts only for the challenge of its own connection.
	a, b := connect(t, p.dial), connect(t, p.dial)
	response, _ := bob.Response(must(rawtest.CallSASL(a, ""))(t))
	must(rawtest.CallSASL(b, ""))(t)
	if _, err := rawtest.CallSASL(b, response); err != proto.AuthFailed {
		t.Errorf("with the response to another challenge: %v", err)
	}
	closed(t, b)
	must(rawtest.CallSASL(a, response))(t)
}

// TestSASLInACLs: who matches an entry of scheme sasl, and which entries are valid.
func TestSASLInACLs(t *testing.T) {
	p := open(t, withSASL(server.Auth{SuperSASL: []string{"admin"}}))
	p.loop.set(fsm.SASL)
	users := map[string]*rawclient.Client{"": connect(t, p.dial)}
	for _, d := range []rawtest.DigestMD5{bob, {User: "super", Password: "superpw"}, {User: "admin", Password: "adminpw"}, {User: "jürgen", Password: "pässwörd"}} {
		users[d.User] = connect(t, p.dial)
		check(t, d.Login(users[d.User]))
	}
	if ids := whoAmI(t, users["bob"]); len(ids) != 2 || !slices.Contains(ids, proto.ID{Scheme: "sasl", ID: "bob"}) {
		t.Errorf("bob is %v", ids)
	}
	if ids := whoAmI(t, users["admin"]); len(ids) != 3 || !slices.Contains(ids, proto.ID{Scheme: "sasl", ID: "admin"}) || !slices.Contains(ids, proto.ID{Scheme: "super"}) {
		t.Errorf("admin is %v", ids)
	}
	if ids := whoAmI(t, users["super"]); len(ids) != 2 {
		t.Errorf("super is %v", ids)
	}
	long := entry("sasl", "bob")
	for i := range 40 {
		long = append(long, proto.ACL{Perms: proto.PermAll, ID: proto.ID{Scheme: "digest", ID: "nobody:" + strings.Repeat("x", i+1)}})
	}
	for path, x := range map[string]struct {
		acl []proto.ACL
		may []string // read it
	}{
		"/bob":   {entry("sasl", "bob"), []string{"bob", "super", "admin"}},
		"/long":  {long, []string{"bob", "super", "admin"}},
		"/u":     {entry("sasl", "jürgen"), []string{"jürgen", "super", "admin"}},
		"/other": {entry("digest", "bob:x"), []string{"admin"}},
	} {
		must(users["admin"].Call(proto.OpCreate, &proto.CreateRequest{Path: path, ACL: x.acl}, nil))(t)
		for user, c := range users {
			_, err := c.Get(path, false)
			if may := slices.Contains(x.may, user); may && err != nil || !may && err != proto.NoAuth {
				t.Errorf("%s by user %q: %v", path, user, err)
			}
		}
	}

	// The scheme auth stands for the identity of scheme sasl, and not for the super user's.
	check(t, createWith(users["admin"], "/auth", "auth", ""))
	var acl proto.ACLReply
	must(users["admin"].Call(proto.OpGetACL, &proto.Path{Path: "/auth"}, &acl))(t)
	if !slices.Equal(acl.ACL, entry("sasl", "admin")) {
		t.Errorf("the ACL is %v", acl.ACL)
	}
	for id, want := range map[string]error{
		"bob": nil, "": nil, "a@b": nil, "a/b": nil, "a/b/c": nil, "a/b@c": nil, "@": nil, "a\nb@c": nil, "bob:x": nil,
		"a@b@c": proto.InvalidACL, "a/b/c@d": proto.InvalidACL, "a@b/c": proto.InvalidACL, jute.Null: proto.MarshallingError,
	} {
		if _, err := users["admin"].Call(proto.OpSetACL, &proto.SetACLRequest{Path: "/u", ACL: entry("sasl", id), Version: -1}, nil); err != want {
			t.Errorf("setACL with %q: %v, want %v", id, err, want)
		}
	}
	if err := login(users["bob"], "sasl", "bob"); err != proto.AuthFailed { // as in ZooKeeper, auth cannot do it
		t.Errorf("auth: %v", err)
	}
	closed(t, users["bob"])

	// Without SASL no entry can have the scheme.
	p.loop.set(0)
	if err := createWith(users["admin"], "/none", "sasl", "bob"); err != proto.InvalidACL {
		t.Errorf("without the setting: %v", err)
	}
	if err := createWith(users["admin"], "/none", "auth", ""); err != proto.InvalidACL {
		t.Errorf("auth without the setting: %v", err)
	}
}

// TestSASLFailed: what a client is told that fails to authenticate, and whether it may continue.
func TestSASLFailed(t *testing.T) {
	wrong := rawtest.DigestMD5{User: "bob", Password: "x"}
	for _, x := range []struct {
		name string
		auth server.Auth
		want error
	}{
		{"by default", server.Auth{}, proto.AuthFailed},
		{"if it may fail", server.Auth{AllowSASLFailed: true}, nil},
		{"if another scheme is enforced", server.Auth{AllowSASLFailed: true, EnforceAuth: []string{"ip"}}, nil},
		{"if SASL is enforced", server.Auth{AllowSASLFailed: true, EnforceAuth: []string{"digest", "sasl"}}, proto.SessionClosedRequireSASLAuth},
	} {
		p := open(t, withSASL(x.auth))
		c := connect(t, p.dial)
		challenge := must(rawtest.CallSASL(c, ""))(t)
		response, _ := wrong.Response(challenge)
		f, err := c.Call(proto.OpSASL, &proto.SASLRequest{Token: []byte(response)}, nil)
		if err != x.want || f.Zxid != 0 || string(f.Body) != "\xff\xff\xff\xff" {
			t.Errorf("%s: %v, %+v", x.name, err, f)
		}
		if x.want != nil {
			closed(t, c)
			continue
		}
		if ids := whoAmI(t, c); len(ids) != 1 {
			t.Errorf("%s: identities %v", x.name, ids)
		}
		// It cannot authenticate on this connection any more.
		response, _ = bob.Response(challenge)
		if token := must(rawtest.CallSASL(c, response))(t); token != "" {
			t.Errorf("%s: answered with %q", x.name, token)
		}
		if ids := whoAmI(t, c); len(ids) != 1 {
			t.Errorf("%s: identities %v afterwards", x.name, ids)
		}
	}
}

// TestSASLEnforced: a client that authenticates with SASL may go on, and others may not.
func TestSASLEnforced(t *testing.T) {
	p := open(t, withSASL(server.Auth{EnforceAuth: []string{"sasl"}}))
	c := connect(t, p.dial)
	must(rawtest.CallSASL(c, ""))(t) // is not enough
	if _, err := c.Exists("/", false); err != proto.SessionClosedRequireSASLAuth {
		t.Errorf("without an identity: %v", err)
	}
	closed(t, c)
	c = connect(t, p.dial)
	check(t, login(c, "digest", "user:pass"))
	if _, err := c.Exists("/", false); err != proto.SessionClosedRequireSASLAuth {
		t.Errorf("with an identity of scheme digest: %v", err)
	}
	closed(t, c)
	c = connect(t, p.dial)
	check(t, bob.Login(c))
	must(c.Exists("/", false))(t)
}

// TestSASLPipelined: tokens are answered in their turn, and an identity counts for requests behind
// the response that has proved it, not for those before.
func TestSASLPipelined(t *testing.T) {
	p := open(t, withSASL(server.Auth{}))
	p.loop.set(fsm.SASL)
	c := connect(t, p.dial)
	check(t, createWith(c, "/bob", "sasl", "bob"))
	response, proof := bob.Response(must(rawtest.CallSASL(c, ""))(t))
	write := &proto.SetDataRequest{Path: "/bob", Data: []byte("x"), Version: -1}
	var want []proto.Code
	for range 20 {
		c.Queue(proto.OpCreate, &proto.CreateRequest{Path: "/bob/x", ACL: proto.OpenACL})
		c.Queue(proto.OpSetData, write)
		want = append(want, proto.NoAuth, proto.NoAuth)
	}
	c.Queue(proto.OpSASL, &proto.SASLRequest{Token: []byte(response)})
	for range 20 {
		c.Queue(proto.OpSetData, write)
		c.Queue(proto.OpGetData, &proto.PathWatch{Path: "/bob"})
	}
	want = append(want, make([]proto.Code, 41)...)
	c.Queue(proto.OpSASL, &proto.SASLRequest{})
	c.Queue(proto.OpSetData, write) // is not done: the connection ends before
	check(t, c.Flush())
	first := int32(0)
	for i, code := range append(want, proto.AuthFailed) {
		f := must(c.Read())(t)
		if i == 0 {
			first = f.Xid
		}
		if f.Xid != first+int32(i) || f.Code != code {
			t.Fatalf("answer %d: %+v, want %v", i, f.ReplyHeader, code)
		}
		var reply proto.SASLReply
		if i == 40 {
			if check(t, f.Decode(&reply)); string(reply.Token) != proof {
				t.Errorf("answer %q, want %q", reply.Token, proof)
			}
		}
	}
	closed(t, c)
	c = connect(t, p.dial)
	check(t, bob.Login(c))
	if stat := must(c.Exists("/bob", false))(t); stat.Version != 20 {
		t.Errorf("version %d", stat.Version)
	}
}

// TestSASLIdentities: the limit on a connection's identities holds for SASL, too.
func TestSASLIdentities(t *testing.T) {
	p := open(t, withSASL(server.Auth{}))
	for n := 4096; ; n-- { // as long as an identity of scheme digest can be
		c := connect(t, p.dial)
		if err := login(c, "digest", strings.Repeat("x", n)+":p"); err == proto.AuthFailed {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		if err := bob.Login(c); err != proto.AuthFailed {
			t.Errorf("with an identity of %d bytes: %v", n, err)
		}
		closed(t, c)
		return
	}
}
