package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/spf13/cobra"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/gssapi/gssapitest"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// zooCfg writes a configuration file. If lines have no dataDir, it adds one.
func zooCfg(t *testing.T, lines ...string) string {
	t.Helper()
	if !strings.Contains(strings.Join(lines, "\n"), "dataDir") {
		lines = append(lines, "dataDir="+filepath.Join(t.TempDir(), "data"))
	}
	path := filepath.Join(t.TempDir(), "zoo.cfg")
	check1(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644))
	return path
}

// TestZooCfg starts a server with a typical file and checks its configuration.
func TestZooCfg(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	path := zooCfg(t,
		"# The number of milliseconds of each tick", "tickTime=500", "", "initLimit = 10", "syncLimit: 5", "! another comment",
		"dataDir="+dir, "clientPort=2181", "maxClientCnxns=17", "maxSessionTimeout=60000",
		"minSessionTimeout=-1", "4lw.commands.whitelist=conf, ruok", "autopurge.purgeInterval=1", "admin.enableServer=false",
		"server.1=localhost:2888:3888", "reconfigEnabled=true", "readonlymode.enabled=true", "jute.maxbuffer=0x1fffff", "forceSync=yes")
	says := func(p *process, want ...string) {
		t.Helper()
		conf := p.conf()
		for _, w := range want {
			if !strings.Contains(conf, w+"\n") {
				t.Errorf("%q is not in\n%s", w, conf)
			}
		}
	}
	p := start(t, nil, "serve", "--listen", "127.0.0.1:0", "--config", path).waitReady()
	says(p, "dataDir="+dir, "tickTime=500", "maxClientCnxns=17", "minSessionTimeout=1000", "maxSessionTimeout=60000")
	for _, l := range p.lines() {
		if strings.Contains(l, "WARN") {
			t.Errorf("every key is known, but: %s", l)
		}
	}
	p.stop()

	// Flags and the environment take precedence over the file.
	p = start(t, []string{"LOCKKEEPER_MAX_CLIENT_CNXNS=18"}, "serve", "--config", path, "--tick-time", "250ms", "--memory").waitReady()
	says(p, "dataDir=", "tickTime=250", "maxClientCnxns=18")

	p = start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--config", zooCfg(t, "clientPort=2181", "nonsense=1")).waitReady()
	if log := strings.Join(p.lines(), "\n"); !strings.Contains(log, "key=nonsense") {
		t.Errorf("an unknown key is not logged: %s", log)
	}
}

// TestKerberosJAAS: with a principal of Kerberos, clients authenticate by GSSAPI, and a keytab that cannot
// be used is an error.
func TestKerberosJAAS(t *testing.T) {
	t.Parallel()
	keys := keytab.New()
	check1(t, keys.AddEntry("zookeeper/h", "R", "password", time.Now(), 1, 18))
	text, err := keys.Marshal()
	check1(t, err)
	file := filepath.Join(t.TempDir(), "keytab")
	check1(t, os.WriteFile(file, text, 0o600))
	section := func(keytab, principal string) string {
		return jaasFile(t, fmt.Sprintf("Server {\n com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab=%q principal=%q;\n};\n", keytab, principal))
	}
	cfg := zooCfg(t, "java.security.auth.login.config="+section(file, "zookeeper/h@R"), "kerberos.removeHostFromPrincipal=true",
		"kerberos.removeRealmFromPrincipal=true", "superUser=admin", "enforce.auth.enabled=true", "enforce.auth.schemes=ip,sasl", "tickTime=2000")
	c := start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--config", cfg).waitReady().connect()
	acl := []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeSASL, ID: "bob"}}}
	_, err = c.Call(proto.OpCreate, &proto.CreateRequest{Path: "/bob", ACL: acl}, nil)
	check1(t, err)
	if _, err := rawtest.CallSASL(c, ""); err != proto.SessionClosedRequireSASLAuth { // DIGEST-MD5 would send a challenge
		t.Errorf("an empty token: %v", err)
	}
	for jaas, says := range map[string]string{
		section(file, "zookeeper/h"):                `principal "zookeeper/h" is not NAME/HOST@REALM`,
		section(file, "zookeeper/other@R"):          file + ": it has no key of zookeeper/other@R",
		section(cfg, "zookeeper/h@R"):               cfg + ": it is not a keytab, or is damaged",
		section("/does/not/exist", "zookeeper/h@R"): "/does/not/exist",
	} {
		refuses(t, exitUsage, []string{"serve", "--memory", "--listen", "127.0.0.1:0", "--jaas", jaas}, "--jaas: ", says)
	}
	users := jaasFile(t, rawtest.JAAS(map[string]string{"bob": "x"}))
	for _, flag := range []string{"--kerberos-remove-host", "--kerberos-remove-realm"} {
		refuses(t, exitUsage, []string{"serve", "--memory", "--listen", "127.0.0.1:0", "--jaas", users, flag}, flag+": ", "not a principal of Kerberos")
	}
}

// TestOddPrincipal: a principal with characters that end lines or fields is one user, in ACLs and in each line of
// the audit log, and writes no line of its own into the log.
func TestOddPrincipal(t *testing.T) {
	t.Parallel()
	keys := keytab.New()
	check1(t, keys.AddEntry("zookeeper/h", "R", "password", time.Now(), 1, 18))
	dir := t.TempDir()
	check1(t, os.WriteFile(filepath.Join(dir, "keytab"), value(keys.Marshal())(t), 0o600))
	jaas := jaasFile(t, fmt.Sprintf("Server {\n com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab=%q principal=\"zookeeper/h@R\";\n};\n", filepath.Join(dir, "keytab")))
	audit := filepath.Join(dir, "audit.log")
	p := start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--jaas", jaas, "--audit-log", audit).waitReady()
	login := func(name, realm string) (*rawclient.Client, error) {
		k := gssapitest.New(name, "zookeeper/h", "R", keys)
		k.Realm = realm
		c := p.connect()
		offer, err := rawtest.CallSASL(c, string(value(k.First())(t)))
		if err == nil {
			_, err = rawtest.CallSASL(c, string(value(k.Choice([]byte(offer), gssapitest.NoLayer+"super\n", 0))(t)))
		}
		return c, err
	}
	const odd = "bob\n\r\x00\tuser=super\u2028<b>\x1b[1m"
	c, err := login(odd, "R")
	check1(t, err)
	_, err = c.Call(proto.OpCreate, &proto.CreateRequest{Path: "/a", ACL: []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: "auth"}}}}, nil)
	check1(t, err)
	var acl proto.ACLReply
	_, err = c.Call(proto.OpGetACL, &proto.Path{Path: "/a"}, &acl)
	check1(t, err)
	if len(acl.ACL) != 1 || acl.ACL[0].ID != (proto.ID{Scheme: proto.SchemeSASL, ID: odd + "@R"}) {
		t.Errorf("the ACL is %q", acl.ACL)
	}
	check1(t, c.Delete("/a"))
	if _, err := login("x", "OTHER\nlevel=ERROR"); err == nil {
		t.Error("a client of another realm can authenticate")
	}
	waitFor(t, "the refusal", func() bool { return strings.Contains(strings.Join(p.lines(), "\n"), "authentication failed") })
	for _, line := range p.lines() {
		if !strings.HasPrefix(line, "time=") && !strings.HasPrefix(line, "lockkeeper: ") {
			t.Errorf("the log has the line %q", line)
		}
	}
	var lines []string
	waitFor(t, "the audit log", func() bool {
		lines = strings.Split(strings.TrimSuffix(string(value(os.ReadFile(audit))(t)), "\n"), "\n")
		return len(lines) >= 3
	})
	for _, line := range lines[1:] {
		if strings.ContainsAny(line, "\r\x00\x1b") || strings.Count(line, "\tuser=") != 1 || !strings.Contains(line, `,bob\u000a\u000d\u0000\u0009user=super`) && !strings.Contains(line, `=bob\u000a\u000d\u0000\u0009user=super`) {
			t.Errorf("the audit log has the line %q", line)
		}
	}
	if len(lines) != 3 {
		t.Errorf("the audit log has %d lines: %q", len(lines), lines)
	}
}

// jaasFile writes a JAAS file.
func jaasFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "jaas.conf")
	check1(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// TestBadJAAS: what is wrong with the file of users is said in one line, which shows no password.
func TestBadJAAS(t *testing.T) {
	const module = "Server {\n org.apache.zookeeper.server.auth.DigestLoginModule required\n "
	for text, says := range map[string]string{
		module + "user_bob=\"SECRET\"\n};":                        ": line 3: the name of an option, or ; is missing",
		module + "user_bob=\"SECRET;\n};":                         ": line 3: a text in double quotes does not end on its line",
		module + "user_a@b@c=\"SECRET\";\n};":                     `: line 3: = is missing after the name of option "user_a"`,
		module + "\"user_a@b@c\"=\"SECRET\";\n};":                 `: "a@b@c" is not a name with which ZooKeeper lets a user authenticate`,
		module + "user_=\"SECRET\";\n};":                          `: "" is not a name`,
		"Client { x required;\n};\n":                              `there is no section "Server"`,
		"Server {\n x.Krb5LoginModule required keyTab=\"x\";\n};": ": line 2: the only login module",
	} {
		refuses(t, exitUsage, []string{"serve", "--memory", "--listen", "127.0.0.1:0", "--jaas", jaasFile(t, text)}, "--jaas: ", says)
	}
	for _, flags := range [][]string{{"--sasl-super-user", "bob"}, {"--sasl-allow-failed"}, {"--jaas-section", "Other"}, {"--kerberos-remove-host"}, {"--kerberos-remove-realm"}} {
		refuses(t, exitUsage, append([]string{"serve", "--memory", "--listen", "127.0.0.1:0"}, flags...), flags[0]+": ", "--jaas")
	}
}

func TestBadZooCfg(t *testing.T) {
	theirs := t.TempDir()
	users := jaasFile(t, rawtest.JAAS(map[string]string{"bob": "x"}))
	check1(t, os.Mkdir(filepath.Join(theirs, "version-2"), 0o755))
	for line, says := range map[string]string{
		"tickTime":                      "tickTime=: not a whole number",
		"\nsuperDigest=\\u12":           "zoo.cfg: line 2: an escape \\u does not have four hexadecimal digits",
		"clientPort=65536":              "clientPort=65536: not a port number",
		"clientPort=-1":                 "clientPort=-1: not a port number",
		"jute.maxbuffer=-5":             "jute.maxbuffer=-5: it must be above 0",
		"metricsProvider.className=a.B": "not supported: the only provider",
		"metricsProvider.httpsPort=1":   "without TLS",
		"metricsProvider.className=org.apache.zookeeper.metrics.prometheus.PrometheusMetricsProvider\nmetricsProvider.httpPort=x": "not a port number",
		"server.2 host":                      "server.2=host: ",
		"jute.maxbuffer=0x1000001":           "zoo.cfg: 16777217 is more than 16777216",
		"syncLimit=-1":                       "syncLimit=-1: it cannot be below 0",
		"reconfigEnabled=yes":                "reconfigEnabled=yes: neither true nor false",
		"initLimit=0x10":                     "initLimit=0x10: not a whole number",
		"minSessionTimeout=70000":            "minSessionTimeout must not be longer than maxSessionTimeout, which is 1m0s",
		"znode.container.checkIntervalMs=-1": "it must be above 0",
		"maxSessionTimeout=1000":             "maxSessionTimeout in /",
		"secureClientPort=2281":              "--tls-cert: a port for TLS needs a certificate",
		"secureClientPort=70000":             "secureClientPort=70000: ",
		"secureClientPortAddress=127.0.0.1":  "without secureClientPort",
		"ssl.keyStore.location=/a/store.bcfks\nsecureClientPort=2281":                              "ssl.keyStore.location=/a/store.bcfks: a store of type BCFKS cannot be read, only PEM, PKCS12 and JKS",
		"ssl.keyStore.location=/a/store\nsecureClientPort=2281":                                    "must be PEM",
		"ssl.trustStore.location=/a/x\nssl.trustStore.type=DKS\nsecureClientPort=2281":             "of type DKS",
		"secureClientPort=2281\nssl.clientAuth=some":                                               `"some"`,
		"ssl.crl=true\nsecureClientPort=2281":                                                      "are not fetched; name a file with them with --tls-crl",
		"ssl.ciphersuites=x\nsecureClientPort=2281":                                                `crypto/tls has no cipher suite "x"`,
		"ssl.enabledProtocols=SSLv3\nsecureClientPort=2281":                                        `"SSLv3" is none of`,
		"ssl.allowReverseDnsLookup=true\nsecureClientPort=2281":                                    "must name its IP address",
		"sslQuorum=true\nssl.quorum.crl=true":                                                      "are not fetched; name a file with them with --peer-tls-crl",
		"audit.enable=true":                                                                        "name the file of the audit log with --audit-log",
		"client.portUnification=true":                                                              "a port for TLS needs a certificate",
		"authProvider.x509=com.example.Mine":                                                       "not supported",
		"authProvider.1=x.SASL":                                                                    "not supported",
		"server.1=a:1:2\nserver.2=b:1:2":                                                           "myid, which has the id of this server, does not exist",
		"server.1=a:1:2\nstandaloneEnabled=false":                                                  "myid",
		"standaloneEnabled=false":                                                                  "no voting server, which standaloneEnabled=false needs",
		"server.1=a:1:2:observer":                                                                  "no voting server",
		"server.1=a:1:2\nserver.2=b:1:2:observer":                                                  "observers and only one voting server",
		"server.1=a:1:2\nserver.2=b:1:2:observer\nserver.3=c:1:2:observer\nstandaloneEnabled=true": "observers and only one voting server",
		"server.1=a:1:2\nserver.0=b:1:2":                                                           "server.0=b:1:2: ",
		"server.1=0.0.0.0:1:2\nserver.2=b:1:2":                                                     "as other members reach it",
		"server.1=a:1:2|b:1:2":                                                                     "server.1=a:1:2|b:1:2: ",
		"server.1=a:1":                                                                             "server.1=a:1: ",
		"peerType=leader":                                                                          "neither observer nor participant",
		"sslQuorum=true":                                                                           "without ssl.quorum.keyStore.location",
		"sslQuorum=true\nssl.quorum.keyStore.location=/a.bcfks":                                    "a store of type BCFKS cannot be read",
		"sslQuorum=true\nssl.quorum.hostnameVerification=false":                                    "not supported",
		"dataDir=" + theirs:                                                                        "ZooKeeper's own data",
		"DigestAuthenticationProvider.digestAlg=MD2":                                               `zoo.cfg: "MD2" is not supported`,
		"enforce.auth.enabled=true":                                                                "without enforce.auth.schemes",
		"enforce.auth.enabled=true\nenforce.auth.schemes=sasl":                                     `scheme "sasl"`,
		"enforce.auth.enabled=true\nenforce.auth.schemes=digest\nDigestAuthenticationProvider.enabled=false": `scheme "digest"`,
		"sessionRequireClientSASLAuth=true":                                          `scheme "sasl"`,
		"security.auth_to_local=DEFAULT":                                             "not supported: principals of the server's realm are users",
		"SASLAuthenticationProvider.superPassword=SECRET":                            "SASLAuthenticationProvider.superPassword: not supported",
		"metricsProvider.ssl.keyStore.password=SECRET":                               "metricsProvider.ssl.keyStore.password: not supported",
		"authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider": "its users are missing",
		"superUser=bob":                                                          "superUser in ",
		"allowSaslFailedClients=true":                                            "it needs --jaas",
		"java.security.auth.login.config=/does/not/exist":                        "java.security.auth.login.config in ",
		"java.security.auth.login.config=" + users + "\nsuperUser=ann":           `there is no user "ann"`,
		"java.security.auth.login.config=" + users + "\nsasl.serverconfig=Other": `there is no section "Other"`,
		"DigestAuthenticationProvider.superDigest=x":                             "not USER:HASH",
	} {
		refuses(t, exitUsage, []string{"serve", "--listen", "127.0.0.1:0", "--config", zooCfg(t, line)}, says)
	}
	refuses(t, exitUsage, []string{"serve", "--config", filepath.Join(t.TempDir(), "none.cfg")}, "none.cfg")
	refuses(t, exitUsage, []string{"serve", "--config", zooCfg(t, "dynamicConfigFile=/does/not/exist")}, "/does/not/exist")
	servers := filepath.Join(t.TempDir(), "servers")
	check1(t, os.WriteFile(servers, []byte("server.1=a:1:2\n"), 0o644))
	refuses(t, exitUsage, []string{"serve", "--config", zooCfg(t, "dynamicConfigFile="+servers, "server.2=b:1:2")}, "server.2 must be in "+servers)
}

// TestZooCfgDoors: a file opens no port and no address that ZooKeeper would not open. Among what it says about
// ports for clients, 0 stands for none, and an empty address is the loopback address.
func TestZooCfgDoors(t *testing.T) {
	const prometheus = "metricsProvider.className=org.apache.zookeeper.metrics.prometheus.PrometheusMetricsProvider"
	own := func(more ...string) []string { // of server 1
		dir := t.TempDir()
		check1(t, os.WriteFile(filepath.Join(dir, "myid"), []byte("1"), 0o600))
		return append([]string{"dataDir=" + dir, "server.1=a:1:2;10.0.0.1:2181", "server.2=b:1:2;2181"}, more...)
	}
	for _, x := range []struct {
		lines, flags                      []string
		listen, tls, admin, metrics, says string
	}{
		{lines: []string{"clientPort=0", "secureClientPort=2281"}, tls: ":2281"},
		{lines: []string{"zookeeper.clientPort=00", "secureClientPort=2281", "secureClientPortAddress="}, tls: "127.0.0.1:2281"},
		{lines: []string{"clientPort=2181", "secureClientPort=0"}, listen: ":2181"},
		{lines: []string{"clientPort=2181", "clientPortAddress="}, listen: "127.0.0.1:2181"},
		{lines: []string{"clientPort=0"}, listen: ":0"},
		{lines: []string{"clientPort=0", "clientPortAddress=127.0.0.1"}, says: "clientPortAddress=127.0.0.1: without clientPort"},
		{lines: []string{"clientPort=0"}, flags: []string{"--listen=:1"}, listen: ":1"},
		{lines: []string{"clientPort=0"}, flags: []string{"--tls-listen=:1"}, tls: ":1"},
		{lines: []string{"tickTime=1"}, flags: []string{"--tls-listen=:1"}, tls: ":1"},
		{lines: []string{"tickTime=1"}, flags: []string{"--tls-listen=", "--tls-cert=x"}, says: "no clientPort and no secureClientPort"},
		{lines: []string{"clientPort=0", "secureClientPort=0"}, says: "no clientPort and no secureClientPort"},
		{lines: []string{"clientPort=0", "clientPortAddress=127.0.0.1", "secureClientPort=2281"}, says: "clientPortAddress=127.0.0.1: without clientPort"},
		{lines: []string{"clientPortAddress=127.0.0.1", "secureClientPort=2281"}, says: "clientPortAddress=127.0.0.1: without clientPort"},
		{lines: []string{"clientPort=2181", "secureClientPort=0", "secureClientPortAddress=127.0.0.1"}, says: "secureClientPortAddress=127.0.0.1: without secureClientPort"},
		{lines: []string{"clientPort="}, says: "clientPort=: not a whole number"},

		{lines: own(), listen: "10.0.0.1:2181"},
		{lines: own("clientPort=0"), listen: "10.0.0.1:2181"},
		{lines: own("clientPort=2181"), listen: "10.0.0.1:2181"},
		{lines: own("clientPort=2181", "clientPortAddress=::"), listen: "10.0.0.1:2181"},
		{lines: own("clientPort=2181", "clientPortAddress=10.0.0.2"), listen: "10.0.0.2:2181"},
		{lines: own("clientPort=2181"), flags: []string{"--listen=:1"}, listen: ":1"},
		{lines: own("server.3=c:1:2;:2181"), says: "server.3=c:1:2;:2181: the address for clients is empty"},

		{lines: []string{"clientPort=1", prometheus, "metricsProvider.httpHost="}, listen: ":1", metrics: "127.0.0.1:7000"},
		{lines: []string{"clientPort=1", prometheus}, listen: ":1", metrics: "0.0.0.0:7000"},
		{lines: []string{"clientPort=1", "admin.serverPort=0", "admin.serverAddress="}, listen: ":1", admin: "127.0.0.1:0"},

		{lines: []string{"clientPort=1", "jute.maxbuffer=0"}, says: "jute.maxbuffer=0: it must be above 0"},
		{lines: []string{"clientPort=1", "minSessionTimeout=0"}, says: "minSessionTimeout=0: it must be above 0"},
		{lines: []string{"clientPort=1", "maxSessionTimeout=0"}, says: "maxSessionTimeout=0: it must be above 0"},
		{lines: []string{"clientPort=1", "nio.sessionlessCnxnTimeout=0"}, says: "nio.sessionlessCnxnTimeout=0: it must be above 0"},
		{lines: []string{"clientPort=1", "znode.container.checkIntervalMs=0"}, says: "znode.container.checkIntervalMs=0: it must be above 0"},
	} {
		var o serveOptions
		var c cobra.Command
		o.define(&c)
		check1(t, c.ParseFlags(x.flags))
		err := readZooCfg(zooCfg(t, x.lines...), c.Flags(), &o.config)
		if x.says != "" {
			if !errors.As(err, &usageError{}) || !strings.Contains(err.Error(), x.says) {
				t.Errorf("%q with %q: %v", x.lines, x.flags, err)
			}
			continue
		}
		if err != nil || o.config.ClientAddr != x.listen || o.config.SecureAddr != x.tls || o.admin.addr != x.admin || o.admin.metrics != x.metrics {
			t.Errorf("%q with %q: port for clients %q, with TLS %q, admin %q, metrics %q, %v", x.lines, x.flags, o.config.ClientAddr, o.config.SecureAddr, o.admin.addr, o.admin.metrics, err)
		}
	}
}

// TestListsOfNothing: a list without items is refused where it would count as no list, and so limit nothing.
func TestListsOfNothing(t *testing.T) {
	for _, flag := range []string{"enforce-auth", "tls-protocols", "tls-ciphers"} {
		refuses(t, exitUsage, []string{"serve", "--memory", "--listen", "127.0.0.1:0", "--" + flag + "=, "}, "--"+flag+`: ", " lists nothing`)
	}
	refuses(t, exitUsage, []string{"serve", "--listen", "127.0.0.1:0", "--config", zooCfg(t, "enforce.auth.enabled=true", "enforce.auth.schemes=,")}, "enforce.auth.enabled in ", `"," lists nothing`)
}

// TestZooCfgMetrics scrapes the port of ZooKeeper's PrometheusMetricsProvider.
func TestZooCfgMetrics(t *testing.T) {
	t.Parallel()
	port := fmt.Sprint(testkit.Port(t))
	start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--config", zooCfg(t,
		"metricsProvider.className=org.apache.zookeeper.metrics.prometheus.PrometheusMetricsProvider",
		"metricsProvider.httpHost=127.0.0.1", "metricsProvider.httpPort="+port, "metricsProvider.exportJvmInfo=true")).waitReady()
	for path, want := range map[string]int{"/metrics": http.StatusOK, "/": http.StatusNotFound, "/commands/stat": http.StatusNotFound, "/console/locks/break": http.StatusNotFound, "/snapshot": http.StatusNotFound,
		"/healthz": http.StatusOK, "/readyz": http.StatusOK} {
		r, err := http.Get("http://127.0.0.1:" + port + path)
		check1(t, err)
		body, err := io.ReadAll(r.Body)
		check1(t, err)
		r.Body.Close()
		if r.StatusCode != want || path == "/metrics" && !strings.Contains(string(body), "\nznode_count ") {
			t.Errorf("%s: %d\n%s", path, r.StatusCode, body)
		}
	}
}

// TestMemoryOrData checks that --memory and --data exclude each other, and that ZooKeeper's own
// data is refused in --data, too.
func TestMemoryOrData(t *testing.T) {
	theirs := t.TempDir()
	check1(t, os.Mkdir(filepath.Join(theirs, "version-2"), 0o755))
	for _, x := range []struct {
		env  map[string]string
		args []string
		says string
	}{
		{nil, []string{"--memory", "--data", "x"}, "--data: not together with --memory"},
		{map[string]string{"LOCKKEEPER_MEMORY": "true"}, []string{"--data", "x"}, "--data: not together with LOCKKEEPER_MEMORY"},
		{nil, []string{"--data", theirs}, "--data: " + theirs + ": this directory holds ZooKeeper's own data"},
	} {
		code, _, stderr := call(x.env, append([]string{"serve", "--listen", "127.0.0.1:0"}, x.args...)...)
		if oneError(t, stderr, x.says); code != exitUsage {
			t.Errorf("%v: exit %d", x.args, code)
		}
		if _, err := os.Stat(filepath.Join(theirs, "meta.json")); err == nil {
			t.Error("it has written into ZooKeeper's directory")
		}
	}
	start(t, []string{"LOCKKEEPER_DATA=x"}, "serve", "--memory", "--listen", "127.0.0.1:0").waitReady() // the flag wins
}

// TestZooCfgMyID checks that the id in myid, or the given one, must be that of a server
// in the file.
func TestZooCfgMyID(t *testing.T) {
	dir := t.TempDir()
	lines := func(more ...string) []string {
		return append([]string{"dataDir=" + dir, "clientPort=2182", "server.1=127.0.0.1:1:2", "server.2=127.0.0.1:2:2;2181"}, more...)
	}
	for _, c := range []struct {
		myid string
		args []string
		says string
	}{
		{"x", nil, `myid: "x" is not a server id`},
		{"3", nil, "there is no server.3"},
		{"1", []string{"--id", "4"}, "there is no server.4"},
		{"1", []string{"--config", zooCfg(t, "dataDir="+dir, "clientPort=2182", "server.1=a:1:2", "server.2=a:1:2")}, "server.N in /"},
		{"1", []string{"--config", zooCfg(t, "dataDir="+dir, "clientPort=2182", "server.1=a:1:2", "server.2=a:1:2")}, "servers 1 and 2 have the same address"},
		{"2", nil, "server.2 has client port 2181, but clientPort is 2182"},
	} {
		check1(t, os.WriteFile(filepath.Join(dir, "myid"), []byte(c.myid), 0o600))
		refuses(t, exitUsage, append([]string{"serve", "--config", zooCfg(t, lines()...)}, c.args...), c.says)
	}
}

// TestZooTable reads a file with the key of each row. Ignored keys and the only accepted
// value of a key must pass; other values and refused keys must fail.
func TestZooTable(t *testing.T) {
	read := func(key, value string) error {
		t.Helper()
		var o serveOptions
		var c cobra.Command
		var logged bytes.Buffer
		o.define(&c)
		o.config.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		lines := []string{key + "=" + value}
		if strings.Contains(key, "ssl.quorum.") { // ignored without sslQuorum
			check1(t, c.ParseFlags([]string{"--peer-tls-cert=x.pem", "--peer-tls-ca=x.pem"}))
			lines = append(lines, "sslQuorum=true")
		} else if strings.Contains(key, "ssl.") { // ignored without a port for it
			lines = append(lines, "secureClientPort=2281")
		}
		check1(t, c.ParseFlags([]string{"--listen=127.0.0.1:0"}))
		err := readZooCfg(zooCfg(t, lines...), c.Flags(), &o.config)
		if logged.Len() > 0 {
			t.Errorf("%s: %s", key, &logged)
		}
		return err
	}
	for i, row := range zooTable {
		for _, earlier := range zooTable[:i] {
			if row.key == earlier.key || earlier.prefix() && strings.HasPrefix(row.key, earlier.key) {
				t.Errorf("the row %s is never used, because that of %s comes first", row.key, earlier.key)
			}
		}
		key := row.key
		if row.prefix() {
			key += ".1"
		}
		switch row.kind {
		case used:
			if row.what == "" && row.note == "" || row.means == "" {
				t.Errorf("%s: the row does not say what the key does, or what holds without it", key)
			}
		case onlyValue:
			if err := read(key, row.what); err != nil {
				t.Error(err)
			}
			other := cmp.Or(map[string]string{"true": "false", "false": "true", "no": "yes", "yes": "no"}[row.what], "4")
			if err := read("zookeeper."+key, other); !errors.As(err, &usageError{}) {
				t.Errorf("%s=%s: %v", key, other, err)
			}
		case ignored:
			value := "x"
			if row.form.says != "" {
				value = map[string]string{parseInt.says: "1", trueOrFalse.says: "True"}[row.form.says]
			}
			if err := read(key, value); err != nil || row.note == "" {
				t.Errorf("%s: %v", key, err)
			}
		case refused:
			if err := read(key, "x"); !errors.As(err, &usageError{}) || !strings.Contains(err.Error(), row.note) {
				t.Errorf("%s: %v", key, err)
			}
		}
	}
}

// TestZooDocs checks that docs/zoo.cfg.md matches the table of keys. With -rewrite it
// updates the file.
func TestZooDocs(t *testing.T) {
	heads := map[zooKind]string{
		used:      "| key | sets | value | | without it |\n|---|---|---|---|---|\n",
		onlyValue: "| key | only value | read as | |\n|---|---|---|---|\n",
		ignored:   "| key | why | refused unless it is |\n|---|---|---|\n",
		refused:   "| key | why |\n|---|---|\n",
	}
	for kind, part := range map[zooKind]string{used: "used", onlyValue: "one value", ignored: "ignored", refused: "refused"} {
		var b strings.Builder
		b.WriteString(heads[kind])
		why := ""
		for _, row := range zooTable {
			if row.kind != kind {
				continue
			}
			if row.note != "likewise" {
				why = row.note
			}
			key := row.key
			if row.prefix() {
				key += "*"
			}
			switch kind {
			case used:
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", key, row.what, row.form.says, why, row.means)
			case onlyValue:
				value := "empty"
				if row.what != "" {
					value = "`" + row.what + "`"
				}
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", key, value, row.form.says, why)
			case ignored:
				fmt.Fprintf(&b, "| `%s` | %s | %s |\n", key, why, row.form.says)
			default:
				fmt.Fprintf(&b, "| `%s` | %s |\n", key, why)
			}
		}
		testkit.Generated(t, "../../docs/zoo.cfg.md", part, b.String())
	}
}
