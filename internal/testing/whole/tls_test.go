package whole

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
	"log/slog"
)

// secure returns a configuration with a plain port and a TLS port.
func secure(t testing.TB, ca *testkit.CA, auth tls.ClientAuthType) lockkeeper.Config {
	return lockkeeper.Config{
		ClientAddr: "127.0.0.1:0", SecureAddr: "127.0.0.1:0",
		TLS: &tls.Config{Certificates: []tls.Certificate{ca.Server(t)}, ClientAuth: auth, ClientCAs: ca.Pool},
	}
}

// TestTLSAndPlain: clients with and without TLS are served at the same time, and take the
// same lock in turn.
func TestTLSAndPlain(t *testing.T) {
	noGoroutineLeft(t)
	ca := testkit.NewCA(t)
	s := open(t, secure(t, ca, tls.NoClientCert))
	secured := overTLS(s, ca)
	conns := []zk.Dialer{
		func(string, string, time.Duration) (net.Conn, error) { return secured() },
		func(string, string, time.Duration) (net.Conn, error) { return overTCP(s)() },
	}
	var mu sync.Mutex
	holder, held := "", map[string]int{}
	var wg sync.WaitGroup
	for i, dial := range conns {
		c, _, err := zk.Connect([]string{"127.0.0.1:1"}, 10*time.Second, zk.WithDialer(dial), zk.WithLogInfo(false))
		check(t, err)
		defer c.Close()
		name := []string{"TLS", "plain"}[i]
		wg.Go(func() {
			lock := zk.NewLock(c, "/lock", zk.WorldACL(zk.PermAll))
			for range 20 {
				if err := lock.Lock(); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if holder != "" {
					t.Errorf("%s and %s both hold the lock", holder, name)
				}
				holder = name
				held[name]++
				mu.Unlock()
				mu.Lock()
				holder = ""
				mu.Unlock()
				if err := lock.Unlock(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if held["TLS"] != 20 || held["plain"] != 20 {
		t.Errorf("held %v", held)
	}

	// A session moves from one port to the other.
	first := connect(t, secured)
	must(first.Create("/e", nil, proto.FlagEphemeral))(t)
	second := must(rawclient.Resume(must(overTCP(s)())(t), first.Session))(t)
	closed(t, first)
	must(second.Call(proto.OpCloseSession, nil, nil))(t)
	closed(t, second)
	if third := connect(t, secured); exists(t, third, "/e") {
		t.Error("the session's ephemeral is still there")
	}

	// The plain port does not speak TLS, and the TLS port nothing else.
	if nc, err := overTCP(s)(); err != nil {
		t.Error(err)
	} else if err := tls.Client(nc, &tls.Config{RootCAs: ca.Pool, ServerName: "localhost"}).Handshake(); err == nil {
		t.Error("TLS is spoken on the plain port")
	}
	nc := must(net.Dial("tcp", s.SecureAddr().String()))(t)
	defer nc.Close()
	if _, err := rawclient.Open(nc, time.Second); err == nil {
		t.Error("a client without TLS got a session on the TLS port")
	}
	if got := word(t, secured, "ruok"); got != "imok" {
		t.Errorf("ruok over TLS: %q", got)
	}
	eventually(t, "the counts in mntr", func() bool { // the client notices a failure before the server counts it
		m := counts(t, word(t, secured, "mntr"))
		return number(t, m, "non_mtls_local_conn_count") >= 3 && m["non_mtls_remote_conn_count"] == "0" && number(t, m, "unsuccessful_handshake") == 1 &&
			m["outstanding_tls_handshake"] == "0" && m["tls_handshake_exceeded"] == "0"
	})
}

// TestX509: a client has the identity that its certificate names.
func TestX509(t *testing.T) {
	noGoroutineLeft(t)
	var log testkit.Log
	ca, other := testkit.NewCA(t), testkit.NewCA(t)
	cfg := secure(t, ca, tls.RequireAndVerifyClientCert)
	cfg.Logger, cfg.Auth.SuperX509, cfg.DataDir = log.Logger(slog.LevelInfo), "CN=root,O=Example", t.TempDir()
	s := open(t, cfg)
	name := func(cn string) pkix.Name { return pkix.Name{CommonName: cn, Organization: []string{"Example"}} }
	is := func(cn string) dialer { return overTLS(s, ca, ca.Client(t, name(cn))) }
	create := func(c *rawclient.Client, path string, acl ...proto.ACL) error {
		_, err := c.Call(proto.OpCreate, &proto.CreateRequest{Path: path, ACL: acl}, nil)
		return err
	}
	entry := func(perms int32, scheme, id string) proto.ACL {
		return proto.ACL{Perms: perms, ID: proto.ID{Scheme: scheme, ID: id}}
	}
	get := func(c *rawclient.Client, path string) error {
		_, err := c.Get(path, false)
		return err
	}
	want := func(err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%v, should be %v", err, want)
		}
	}

	ann, bob, root, plain := connect(t, is("ann")), connect(t, is("bob")), connect(t, is("root")), connect(t, overTCP(s))
	want(create(ann, "/ann", entry(proto.PermAll, proto.SchemeAuth, "")), nil)
	want(create(ann, "/both", entry(proto.PermAll, proto.SchemeX509, "CN=ann,O=Example"), entry(proto.PermRead, proto.SchemeX509, "CN=bob,O=Example")), nil)
	want(get(ann, "/ann"), nil)
	want(get(bob, "/ann"), proto.NoAuth)
	want(get(plain, "/ann"), proto.NoAuth)
	want(get(root, "/ann"), nil)
	want(get(bob, "/both"), nil)
	want(bob.Delete("/both"), nil) // its parent's ACL decides
	var acl proto.ACLReply
	must(ann.Call(proto.OpGetACL, &proto.Path{Path: "/ann"}, &acl))(t)
	if !slices.Equal(acl.ACL, []proto.ACL{entry(proto.PermAll, "x509", "CN=ann,O=Example")}) {
		t.Errorf("ACL %v", acl.ACL)
	}

	// Entries with invalid names, and entries for a client without a certificate.
	want(create(ann, "/x", entry(proto.PermAll, proto.SchemeX509, "ann")), proto.InvalidACL)
	want(create(plain, "/x", entry(proto.PermAll, proto.SchemeAuth, "")), proto.InvalidACL)
	want(create(plain, "/plain", entry(proto.PermAll, proto.SchemeX509, "cn=Ann , 1.2.3 = x")), nil)

	// The operation auth adds nothing.
	auth := func(c *rawclient.Client) error {
		_, err := c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: proto.SchemeX509}, nil)
		return err
	}
	want(auth(ann), nil)
	want(auth(plain), proto.AuthFailed)
	closed(t, plain)
	for c, want := range map[*rawclient.Client][]proto.ID{
		ann:  {{Scheme: "x509", ID: "CN=ann,O=Example"}, {Scheme: "ip", ID: "127.0.0.1"}},
		root: {{Scheme: "super"}, {Scheme: "x509", ID: "CN=root,O=Example"}, {Scheme: "ip", ID: "127.0.0.1"}},
	} {
		var who proto.WhoAmIReply
		must(c.Call(proto.OpWhoAmI, nil, &who))(t)
		if !slices.Equal(who.IDs, want) {
			t.Errorf("whoAmI %v, should be %v", who.IDs, want)
		}
	}

	// The identity belongs to the connection, not to the session, and a digest identity is
	// added to it.
	moved := must(rawclient.Resume(must(overTCP(s)())(t), ann.Session))(t)
	want(get(moved, "/ann"), proto.NoAuth)
	moved.Close()
	must(bob.Call(proto.OpAuth, &proto.AuthRequest{Scheme: proto.SchemeDigest, Auth: []byte("u:p")}, nil))(t)
	want(create(bob, "/two", entry(proto.PermAll, proto.SchemeAuth, "")), nil)
	must(bob.Call(proto.OpGetACL, &proto.Path{Path: "/two"}, &acl))(t)
	if len(acl.ACL) != 2 {
		t.Errorf("ACL %v", acl.ACL)
	}

	// A client that resumes its TLS session does not send its certificate again.
	config := &tls.Config{RootCAs: ca.Pool, Certificates: []tls.Certificate{ca.Client(t, name("ann"))}, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	for i := range 2 {
		nc := must(tls.Dial("tcp", s.SecureAddr().String(), config))(t)
		if c := must(rawclient.Open(nc, 10*time.Second))(t); nc.ConnectionState().DidResume != (i == 1) {
			t.Errorf("connection %d: resumed %v", i, i == 0)
		} else {
			want(get(c, "/ann"), nil)
		}
		nc.Close()
	}

	// A client gets no session without a certificate, or with an invalid or expired one.
	log.Reset()
	for what, d := range map[string]dialer{
		"none": overTLS(s, ca), "another's": overTLS(s, ca, other.Client(t, name("ann"))), "expired": overTLS(s, ca, ca.Expired(t, name("ann"))),
		"a server's": overTLS(s, ca, ca.Server(t)),
	} {
		nc, err := d()
		if err != nil { // with TLS 1.3, only the first read fails
			continue
		}
		if _, err := rawclient.Open(nc, time.Second); err == nil || os.IsTimeout(err) {
			t.Errorf("%s: %v", what, err)
		}
		nc.Close()
	}
	eventually(t, "the log messages", func() bool { return len(log.Matching("TLS handshake failed")) == 4 })
	if m := counts(t, word(t, is("ann"), "mntr")); number(t, m, "unsuccessful_handshake") != 4 || number(t, m, "auth_failed_count") != 5 {
		t.Errorf("unsuccessful_handshake %s, auth_failed_count %s", m["unsuccessful_handshake"], m["auth_failed_count"])
	}

	// A server without TLS applies the log's entries in the same way, but refuses new ACLs
	// with the scheme.
	check(t, s.Close())
	without := open(t, lockkeeper.Config{DataDir: cfg.DataDir})
	c := connect(t, inMemory(without))
	want(get(c, "/ann"), proto.NoAuth)
	want(get(c, "/plain"), proto.NoAuth)
	want(create(c, "/y", entry(proto.PermAll, proto.SchemeX509, "CN=ann")), proto.InvalidACL)
	want(auth(c), proto.AuthFailed)
}

// TestX509Wanted: if a certificate is only requested, it may be missing, but not be bad.
func TestX509Wanted(t *testing.T) {
	ca, other := testkit.NewCA(t), testkit.NewCA(t)
	s := open(t, secure(t, ca, tls.VerifyClientCertIfGiven))
	who := func(d dialer) (string, error) {
		nc, err := d()
		if err != nil {
			return "", err
		}
		defer nc.Close()
		c, err := rawclient.Open(nc, 10*time.Second)
		if err != nil {
			return "", err
		}
		var r proto.WhoAmIReply
		_, err = c.Call(proto.OpWhoAmI, nil, &r)
		return r.IDs[0].Scheme, err
	}
	ann := pkix.Name{CommonName: "ann"}
	if scheme, err := who(overTLS(s, ca)); scheme != "ip" || err != nil {
		t.Errorf("without one: %s, %v", scheme, err)
	}
	if scheme, err := who(overTLS(s, ca, ca.Client(t, ann))); scheme != "x509" || err != nil {
		t.Errorf("with one: %s, %v", scheme, err)
	}
	if scheme, err := who(overTLS(s, ca, other.Client(t, ann))); err == nil {
		t.Errorf("with one of another authority: %s", scheme)
	}
	long := pkix.Name{CommonName: strings.Repeat("long", 20_000)}
	if scheme, err := who(overTLS(s, ca, ca.Client(t, long))); err == nil {
		t.Errorf("with a name that fills the log: %s", scheme)
	}
	// A certificate that was not verified gives no identity.
	s = open(t, secure(t, ca, tls.RequireAnyClientCert))
	if scheme, err := who(overTLS(s, ca, other.Client(t, ann))); scheme != "ip" || err != nil {
		t.Errorf("unverified: %s, %v", scheme, err)
	}
}

// TestTLSConfig: a server with an invalid configuration does not start, and leaves no port
// open.
func TestTLSConfig(t *testing.T) {
	ca := testkit.NewCA(t)
	good := secure(t, ca, tls.NoClientCert)
	taken := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	port := fmt.Sprintf("127.0.0.1:%d", testkit.Port(t))
	for says, change := range map[string]func(c *lockkeeper.Config){
		"lockkeeper: TLS: ":            func(c *lockkeeper.Config) { c.TLS = nil },
		"lockkeeper: SecureAddr: ":     func(c *lockkeeper.Config) { c.SecureAddr = "" },
		"needs a certificate":          func(c *lockkeeper.Config) { c.TLS = &tls.Config{} },
		"lockkeeper: Auth.SuperX509: ": func(c *lockkeeper.Config) { c.TLS, c.SecureAddr, c.Auth.SuperX509 = nil, "", "CN=a" },
		"address already in use":       func(c *lockkeeper.Config) { c.SecureAddr = taken.Addr().String() },
	} {
		cfg := good
		cfg.ClientAddr = port
		change(&cfg)
		s, err := lockkeeper.Open(cfg)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, should say %q", err, says)
		}
		if again, err := net.Listen("tcp", cfg.ClientAddr); err != nil {
			t.Errorf("%s: its port is still taken: %v", says, err)
		} else {
			again.Close()
		}
	}
}

// TestTLSOnClientAddr: one port serves clients with and without TLS and answers four-letter words.
// A client that says nothing is closed in time, and keeps the server from nothing.
func TestTLSOnClientAddr(t *testing.T) {
	noGoroutineLeft(t)
	ca := testkit.NewCA(t)
	cfg := secure(t, ca, tls.VerifyClientCertIfGiven)
	cfg.SecureAddr, cfg.TLSOnClientAddr = "", true
	cfg.Limits.HandshakeTimeout = 5 * time.Second // in which the other clients must have said something
	s := open(t, cfg)
	silent := must(overTCP(s)())(t)
	dialTLS := func() (net.Conn, error) {
		return tls.Dial("tcp", s.Addr().String(), &tls.Config{RootCAs: ca.Pool, Certificates: []tls.Certificate{ca.Client(t, pkix.Name{CommonName: "ann"})}})
	}
	plain, secured := connect(t, overTCP(s)), connect(t, dialTLS)
	for c, want := range map[*rawclient.Client]int{plain: 1, secured: 2} {
		var who proto.WhoAmIReply
		if must(c.Call(proto.OpWhoAmI, nil, &who))(t); len(who.IDs) != want {
			t.Errorf("identities %v", who.IDs)
		}
	}
	must(secured.Create("/big", make([]byte, 500_000), 0))(t)
	if r := must(plain.Get("/big", false))(t); len(r.Data) != 500_000 {
		t.Errorf("%d bytes", len(r.Data))
	}
	if answer := must(rawclient.Word(must(overTCP(s)())(t), "ruok", time.Minute))(t); answer != "imok" {
		t.Errorf("ruok: %q", answer)
	}
	if answer := must(rawclient.Word(must(dialTLS())(t), "ruok", time.Minute))(t); answer != "imok" {
		t.Errorf("ruok with TLS: %q", answer)
	}
	if n, err := silent.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("a client that says nothing: %d bytes, %v", n, err)
	}
	second := must(rawclient.Resume(must(dialTLS())(t), plain.Session))(t)
	closed(t, plain)
	check(t, second.Ping())
	must(overTCP(s)())(t) // says nothing when the server is shut down
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}
