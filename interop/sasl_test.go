//go:build interop

package interop

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// jaasFile writes a JAAS file whose section Server has these users, and whose other sections are
// more.
func jaasFile(t testing.TB, users map[string]string, more string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "jaas.conf")
	check(t, os.WriteFile(file, []byte(rawtest.JAAS(users)+more), 0o600))
	return file
}

// ZooKeeper needs the class for ACLs with the scheme sasl.
var withSASL = map[string]string{"zookeeper.authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}

// startSASL starts ZooKeeper 3.9 and lockkeeper with the users of a JAAS file and the same
// settings, and returns their addresses.
func startSASL(t *testing.T, jaas string, settings map[string]string) (theirs, ours string) {
	props := merged(withSASL, map[string]string{"java.security.auth.login.config": jaas})
	for key, value := range settings {
		props["zookeeper."+key] = value
	}
	z := launchZooKeeper(t, zk39, props, merged(anyClients, withWords))
	all := merged(settings, map[string]string{"authProvider.1": withSASL["zookeeper.authProvider.1"], "java.security.auth.login.config": jaas, "maxClientCnxns": "0", "tickTime": "3000"})
	ours = startConfigured(t, all).addr
	waitZooKeeper(t, z.addr, nil)
	return z.addr, ours
}

func dialSASL(t *testing.T, addr string) *rawclient.Client {
	t.Helper()
	return rawtest.Connect(t, func() (net.Conn, error) { return net.Dial("tcp", addr) })
}

// TestSASLAgainstZooKeeper sends the same tokens to ZooKeeper 3.9 and to lockkeeper, with the same
// JAAS file. The same follows from each, and what a user of SASL may do is the same.
func TestSASLAgainstZooKeeper(t *testing.T) {
	t.Parallel()
	users := merged(rawtest.SASLUsers, map[string]string{"\t tab": "\x01\x7f é\\101", "$x-1.*": "_"})
	jaas := jaasFile(t, users, `// a comment
/* and
another */
Other { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true; };
`)
	t.Run("responses", func(t *testing.T) {
		t.Parallel()
		theirs, ours := startSASL(t, jaas, nil)
		for _, x := range rawtest.SASLCases() {
			for name, addr := range map[string]string{"ZooKeeper": theirs, "lockkeeper": ours} {
				if got, err := x.Run(dialSASL(t, addr)); got != x.Want || err != nil {
					t.Errorf("%s on %s: %s, %v, want %s", x.Name, name, got, err, x.Want)
				}
			}
		}
	})
	for name, settings := range map[string]map[string]string{
		"super user":              {"superUser": "admin", "superUser.2": "a/b"},
		"failed":                  {"allowSaslFailedClients": "true"},
		"required":                {"sessionRequireClientSASLAuth": "true", "allowSaslFailedClients": "true"},
		"enforced, one of two":    {"enforce.auth.enabled": "true", "enforce.auth.schemes": "digest,sasl"},
		"enforced, but not SASL":  {"enforce.auth.enabled": "true", "enforce.auth.schemes": "ip", "allowSaslFailedClients": "true"},
		"required and not others": {"sessionRequireClientSASLAuth": "true", "enforce.auth.enabled": "true", "enforce.auth.schemes": "ip"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			theirs, ours := startSASL(t, jaas, settings)
			want, got := saslAnswers(t, theirs, users), saslAnswers(t, ours, users)
			if len(want) < 40 || len(want) != len(got) {
				t.Errorf("%d answers of ZooKeeper, %d of lockkeeper", len(want), len(got))
			}
			for i := range min(len(want), len(got)) {
				if got[i] != want[i] {
					t.Errorf("%s\nZooKeeper: %s", got[i], want[i])
				}
			}
		})
	}
}

var nonceIs = regexp.MustCompile(`nonce="[A-Za-z0-9+/]{40}"`)

// saslAnswers has clients do things with a server and returns what it answers, with nonces masked.
func saslAnswers(t *testing.T, addr string, users map[string]string) (answers []string) {
	say := func(format string, args ...any) { answers = append(answers, fmt.Sprintf(format, args...)) }
	// call says what the answer to a request is, and whether the connection ends after an error.
	call := func(c *rawclient.Client, what string, op proto.OpCode, body, reply proto.Record) {
		f, err := c.Call(op, body, reply)
		ends := ""
		_, answered := err.(proto.Code)
		if err != nil && !answered {
			err = errors.New("no answer")
		}
		if err == proto.AuthFailed || err == proto.SessionClosedRequireSASLAuth || err != nil && !answered {
			if _, e := c.Read(); e != nil && !os.IsTimeout(e) {
				ends = ", and the connection ends"
			}
		}
		say("%s: %v, zxid is 0: %v%s", what, err, f.Zxid == 0, ends)
	}
	token := func(c *rawclient.Client, what, token string) string {
		var reply proto.SASLReply
		call(c, what, proto.OpSASL, &proto.SASLRequest{Token: []byte(token)}, &reply)
		text := string(reply.Token)
		if masked := nonceIs.ReplaceAllString(text, "nonce=(masked)"); strings.HasPrefix(masked, "realm=") {
			say("token %s", masked)
		} else {
			say("a token: %v of %d bytes", reply.Token != nil, len(text))
		}
		return text
	}
	who := func(c *rawclient.Client) {
		var reply proto.WhoAmIReply
		call(c, "whoAmI", proto.OpWhoAmI, nil, &reply)
		slices.SortFunc(reply.IDs, func(a, b proto.ID) int { return strings.Compare(a.Scheme, b.Scheme) }) // a set, in ZooKeeper
		say("is %q", reply.IDs)
	}
	login := func(c *rawclient.Client, user, password string) {
		response, _ := rawtest.DigestMD5{User: user, Password: password}.Response(token(c, "begin", ""))
		token(c, "login of "+user, response)
	}
	acl := func(scheme, id string) []proto.ACL {
		return []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: scheme, ID: id}}}
	}

	none := dialSASL(t, addr)
	who(none)
	clients := map[string]*rawclient.Client{}
	for i, user := range []string{"bob", "admin", "super", "jürgen", "嬉", "a@B", "a/b", `quo"te`, "$x-1.*", "\t tab"} {
		c := dialSASL(t, addr)
		clients[user] = c
		response, proof := rawtest.DigestMD5{User: strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(user), Password: users[user]}.Response(token(c, "begin", ""))
		if user == `quo"te` { // quoted on the way, but not in the hash
			plain, p := rawtest.DigestMD5{User: user, Password: users[user]}.Response("nonce=\"" + nonceOf(response) + "\"")
			response, proof = strings.Replace(plain, `quo"te`, `quo\"te`, 1), p
		}
		if token(c, "login of "+user, response) != proof {
			t.Errorf("%s: no proof for %q", addr, user)
		}
		who(c)
		path := fmt.Sprintf("/%d", i)
		call(c, "create", proto.OpCreate, &proto.CreateRequest{Path: path, ACL: acl("auth", "")}, nil)
		var reply proto.ACLReply
		call(c, "getACL", proto.OpGetACL, &proto.Path{Path: path}, &reply)
		say("ACL %q", reply.ACL)
	}
	reader := dialSASL(t, addr)
	login(reader, "bob", users["bob"])
	for n, id := range []string{"bob", "", "a@b", "a/b", "a/b/c", "a/b@c", "@", "a\nb@c", "bob:x", "super", "a@b@c", "a/b/c@d", "a@b/c", jute.Null} {
		path := fmt.Sprintf("/acl%d", n)
		call(reader, fmt.Sprintf("ACL with %q", id), proto.OpCreate, &proto.CreateRequest{Path: path, ACL: acl("sasl", id)}, nil)
		for _, user := range []string{"bob", "super", "admin", "jürgen"} {
			call(clients[user], "read by "+user, proto.OpGetData, &proto.PathWatch{Path: path}, nil)
		}
	}
	call(none, "ACL of nobody", proto.OpCreate, &proto.CreateRequest{Path: "/nobody", ACL: acl("auth", "")}, nil)
	call(dialSASL(t, addr), "read", proto.OpGetData, &proto.PathWatch{Path: "/0"}, nil)
	call(dialSASL(t, addr), "auth", proto.OpAuth, &proto.AuthRequest{Scheme: "sasl", Auth: []byte("bob")}, nil)

	digest := dialSASL(t, addr)
	call(digest, "auth", proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte("u:p")}, nil)
	call(digest, "read", proto.OpGetData, &proto.PathWatch{Path: "/0"}, nil)
	for _, failed := range []string{"bob", "nobody"} {
		c := dialSASL(t, addr)
		login(c, failed, "wrong")
		if _, err := c.Exists("/", false); err == nil { // it may continue
			who(c)
			login(c, "bob", users["bob"])
			who(c)
		}
	}
	again := dialSASL(t, addr)
	login(again, "bob", users["bob"])
	login(again, "admin", users["admin"])
	begun := dialSASL(t, addr)
	token(begun, "begin with something", "something")
	call(begun, "read in between", proto.OpGetData, &proto.PathWatch{Path: "/"}, nil)
	null := dialSASL(t, addr)
	call(null, "a null token", proto.OpSASL, &proto.SASLRequest{}, nil)
	resumed := must(net.DialTimeout("tcp", addr, rawTimeout))(t)
	defer resumed.Close()
	session := reader.Session
	reader.Close()
	c := must(rawclient.Resume(resumed, session))(t)
	who(c)
	return answers
}

// TestSASLJava has ZooKeeper's Java client and Curator authenticate, with ZooKeeper 3.9 and with
// lockkeeper, and with a cluster of three, where each request goes through any member.
func TestSASLJava(t *testing.T) {
	t.Parallel()
	classpath := must(javaClients())(t)
	var sections strings.Builder
	for section, user := range map[string]string{"Bob": "bob", "Latin": "jürgen", "Chinese": "嬉", "Slash": "a/b", "Super": "super", "Admin": "admin", "Wrong": "bob", "Unknown": "bib"} {
		password := rawtest.SASLUsers[user]
		if section == "Wrong" || section == "Unknown" {
			password = "x"
		}
		fmt.Fprintf(&sections, "%s { org.apache.zookeeper.server.auth.DigestLoginModule required username=\"%s\" password=\"%s\"; };\n", section, user, password)
	}
	jaas := jaasFile(t, rawtest.SASLUsers, sections.String())
	flags := []string{"--jaas", jaas, "--sasl-super-user", "admin", "--tick-time", "500ms"}
	cases := []string{"login", "characters", "acl", "super", "wrong-password", "unknown-user", "without-sasl", "curator", "restart"}
	run := func(t *testing.T, addr string, restart func()) {
		checkCases(t, runJava(t, classpath, "SaslCases", map[string]func(){"restart": restart}, addr, jaas), cases...)
	}
	t.Run("ZooKeeper", func(t *testing.T) {
		z := startZooKeeper(t, zk39, merged(withSASL, map[string]string{"java.security.auth.login.config": jaas, "zookeeper.superUser": "admin"}), merged(anyClients, withWords))
		run(t, z.addr, func() {
			z.Kill()
			z.Restart(t)
		})
	})
	t.Run("lockkeeper", func(t *testing.T) {
		l := startLockkeeper(t, flags...)
		run(t, l.addr, func() {
			l.Stop()
			l = startLockkeeper(t, slices.Concat(flags, []string{"--listen", l.addr, "--data", l.dir})...)
		})
	})
	t.Run("cluster", func(t *testing.T) {
		e := startEnsemble(t, 3, flags...)
		run(t, e.addrs(), func() { // one after another, so that the client has to move
			for i := range e.procs {
				e.stop(i)
				e.launch(i)
				e.await()
			}
		})
	})
}

func nonceOf(response string) string {
	_, rest, _ := strings.Cut(response, `nonce="`)
	nonce, _, _ := strings.Cut(rest, `"`)
	return nonce
}
