//go:build interop

package interop

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

const withTLSLine = "lockkeeper: serving ZooKeeper clients with TLS on "

// TestTLS sends the same requests over TLS to ZooKeeper and to lockkeeper, with the same
// configuration. Both must derive the same identities from certificates and accept the
// same ACLs. Then ZooKeeper's own Java client connects to lockkeeper over TLS.
func TestTLS(t *testing.T) {
	t.Parallel()
	for _, version := range []zkVersion{zk38, zk39} {
		t.Run(string(version), func(t *testing.T) { compareTLS(t, version) })
	}
}

func compareTLS(t *testing.T, version zkVersion) {
	dir, ca := t.TempDir(), testkit.NewCA(t)
	authority := ca.WriteCA(t, dir, "ca.pem")
	store, _ := testkit.WritePair(t, ca.Server(t), dir, "server.pem", "server.pem")
	_, port, _ := net.SplitHostPort(freeAddr(t))
	cfg := map[string]string{
		"secureClientPort": port, "secureClientPortAddress": "127.0.0.1", "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
		"ssl.keyStore.location": store, "ssl.trustStore.location": authority, "ssl.clientAuth": "want",
		"X509AuthenticationProvider.superUser": "CN=root,O=Example",
	}
	startZooKeeper(t, version, nil, cfg)
	l := startLockkeeper(t, "--tls-listen", freeAddr(t), "--tls-cert", store, "--tls-ca", authority, "--tls-client-auth", "want",
		"--x509-super-user", "CN=root,O=Example")
	theirs, ours := net.JoinHostPort("127.0.0.1", port), secureAddr(t, l)
	// ZooKeeper opens this port after the other one.
	waitZooKeeper(t, theirs, &tls.Config{RootCAs: ca.Pool, ServerName: "127.0.0.1"})

	subjects := []pkix.Name{
		{CommonName: "ann", Organization: []string{"Example"}, Country: []string{"DE"}},
		{CommonName: `A "quoted", name; with + and \ <#>`, OrganizationalUnit: []string{" blank "}},
		{CommonName: "Zoë 日本", Locality: []string{"Genève"}, Province: []string{"GE"}, StreetAddress: []string{"Rue 1"}, SerialNumber: "77"},
		{ExtraNames: []pkix.AttributeTypeAndValue{
			{Type: asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 25}, Value: "example"}, {Type: asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 1}, Value: "uid"},
			{Type: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 1}, Value: "a@example.com"},
		}},
		{CommonName: "root", Organization: []string{"Example"}},
	}
	var answers [2][]string
	for i, addr := range []string{theirs, ours} {
		say := func(format string, args ...any) { answers[i] = append(answers[i], fmt.Sprintf(format, args...)) }
		dial := func(certificates ...tls.Certificate) *rawclient.Client {
			t.Helper()
			nc, err := tls.DialWithDialer(&net.Dialer{Timeout: rawTimeout}, "tcp", addr, &tls.Config{RootCAs: ca.Pool, Certificates: certificates})
			if err != nil {
				t.Fatalf("%s: %v", addr, err)
			}
			t.Cleanup(func() { nc.Close() })
			c, err := rawclient.Open(nc, 40*time.Second)
			if err != nil {
				t.Fatalf("%s: %v", addr, err)
			}
			return c
		}
		none := dial()
		for n, subject := range subjects {
			c := dial(ca.Client(t, subject))
			var who proto.WhoAmIReply
			_, err := c.Call(proto.OpWhoAmI, nil, &who)
			slices.SortFunc(who.IDs, func(a, b proto.ID) int { return strings.Compare(a.Scheme, b.Scheme) }) // a set, in ZooKeeper
			say("%d is %q, %v", n, who.IDs, err)
			path := fmt.Sprintf("/%d", n)
			_, err = c.Call(proto.OpCreate, &proto.CreateRequest{Path: path, ACL: []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: "auth"}}}}, nil)
			say("create: %v", err)
			var acl proto.ACLReply
			_, err = c.Call(proto.OpGetACL, &proto.Path{Path: path}, &acl)
			say("ACL %q, %v", acl.ACL, err)
			_, err = none.Get(path, false)
			say("nobody reads it: %v", err)
			_, err = c.Get("/0", false)
			say("%d reads /0: %v", n, err)
			_, err = c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "x509"}, nil)
			say("auth: %v", err)
		}
		for n, name := range []string{"", "ann", "CN=ann", "cn=ann , O = x", "CN=a;OU=b", "CN=a+", "1.2.3=x", "9.9=x", "OID.1.2.3=x", "XX=1", `CN="a, b"`, `CN="a`, "CN=#0c0161", "CN=#01", `CN=a\,b`, `CN=a\`, "CN=a<b", "CN=ä"} {
			_, err := none.Call(proto.OpCreate, &proto.CreateRequest{Path: fmt.Sprintf("/name%d", n), ACL: []proto.ACL{{Perms: 31, ID: proto.ID{Scheme: "x509", ID: name}}}}, nil)
			say("an ACL with %q: %v", name, err)
		}
		_, err := none.Call(proto.OpCreate, &proto.CreateRequest{Path: "/nobody", ACL: []proto.ACL{{Perms: 31, ID: proto.ID{Scheme: "auth"}}}}, nil)
		say("auth of nobody: %v", err)
		_, err = none.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "x509"}, nil)
		say("auth: %v", err)
		_, err = none.Read()
		say("and then: %v", err)
	}
	for i := range answers[0] {
		if answers[1][i] != answers[0][i] {
			t.Errorf("%s\nZooKeeper: %s", answers[1][i], answers[0][i])
		}
	}
	if len(answers[0]) < 50 {
		t.Errorf("only %d answers: %q", len(answers[0]), answers[0])
	}

	client, _ := testkit.WritePair(t, ca.Client(t, subjects[0]), dir, "client.pem", "client.pem")
	java := javaCommand("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dzookeeper.client.secure=true",
		"-Dzookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty",
		"-Dzookeeper.ssl.keyStore.location="+client, "-Dzookeeper.ssl.trustStore.location="+authority,
		"-cp", version.classpath(t), "org.apache.zookeeper.ZooKeeperMain", "-server", ours, "whoami")
	out, err := java.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "x509: CN=ann,O=Example,C=DE") {
		t.Errorf("the Java client: %v\n%s", err, out)
	}
}

// secureAddr returns the address for clients with TLS of a lockkeeper that has started.
func secureAddr(t testing.TB, l *lockkeeper) string {
	t.Helper()
	for line := range strings.Lines(l.stderr.String()) {
		if addr, ok := strings.CutPrefix(line, withTLSLine); ok {
			return strings.TrimSpace(addr)
		}
	}
	t.Fatalf("the server does not print its address for TLS: %s", l.stderr)
	return ""
}
