package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
)

// readForm reads a zoo.cfg together with flags, and returns the flags, the options and the log.
func readForm(t *testing.T, flags []string, lines ...string) (flag func(name string) string, o *serveOptions, log string, err error) {
	t.Helper()
	var c cobra.Command
	var logged bytes.Buffer
	o = &serveOptions{}
	o.define(&c)
	o.config.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	check1(t, c.ParseFlags(flags))
	err = readZooCfg(zooCfg(t, lines...), c.Flags(), &o.config)
	return func(name string) string { return c.Flags().Lookup(name).Value.String() }, o, logged.String(), err
}

// listening is a flag that makes a zoo.cfg need no port for clients.
var listening = []string{"--listen=127.0.0.1:0"}

// TestZooForms checks that a value counts as the class of ZooKeeper 3.9 reads it that has its key. TestBadZooCfg has
// those that ZooKeeper refuses, and interop compares whole files.
func TestZooForms(t *testing.T) {
	for _, x := range []struct{ line, flag, want string }{
		{"tickTime=500", "election-timeout", "2s"},
		{"tickTime=500\nsyncLimit=5", "election-timeout", "2.5s"},
		{"syncLimit=0", "election-timeout", "2s"},
		{"syncLimit=5", "election-timeout", "15s"},
		{"DigestAuthenticationProvider.digestAlg=SHA-256", "digest-algorithm", "SHA-256"},
		{`DigestAuthenticationProvider.superDigest=super\:D/InIHSb7yEEbrWz8b9l71RjZJU\=`, "super-digest", "super:D/InIHSb7yEEbrWz8b9l71RjZJU="},
		{"DigestAuthenticationProvider.enabled=false", "no-digest", "true"},
		{"DigestAuthenticationProvider.enabled=TRUE", "no-digest", "false"},
		{"enforce.auth.schemes=digest", "enforce-auth", ""},
		{"enforce.auth.enabled=True\nenforce.auth.schemes=digest", "enforce-auth", "digest"},
		{"zookeeper.enforce.auth.enabled=true\nzookeeper.enforce.auth.schemes=digest, ip", "enforce-auth", "digest, ip"},
		{"sessionRequireClientSASLAuth=true", "enforce-auth", "sasl"},
		{"sessionRequireClientSASLAuth=TRUE\nenforce.auth.enabled=true\nenforce.auth.schemes=ip", "enforce-auth", "sasl"},
		{"java.security.auth.login.config=/users", "jaas", "/users"},
		{"superUser=ann\nzookeeper.superUser.2=eve\nrequireClientAuthScheme=sasl", "sasl-super-user", "[ann,eve]"},
		{"zookeeper.sasl.serverconfig=Other", "jaas-section", "Other"},
		{"allowSaslFailedClients=true", "sasl-allow-failed", "true"},
		{"admin.enableServer=true", "admin", "127.0.0.1:8080"},
		{"admin.serverPort=9", "admin", "127.0.0.1:9"},
		{"zookeeper.admin.serverPort=9\nadmin.enableServer=TRUE", "admin", "127.0.0.1:9"},
		{"admin.serverPort=9\nadmin.enableServer=false", "admin", ""},
		{"admin.serverPort=9\nadmin.serverAddress=0.0.0.0", "admin", "0.0.0.0:9"},
		{"admin.serverAddress=0.0.0.0", "admin", ""},
		{"4lw.commands.whitelist=conf,\\\n   ruok", "4lw", "conf,ruok"},
		{`dataDir=/with\ space`, "data", "/with space"},
		{"tickTime=+0500", "tick-time", "500ms"},
		{"maxClientCnxns=-1", "max-client-cnxns", "0"},
		{"maxClientCnxns=007", "max-client-cnxns", "7"},
		{"maxCnxns=-0x5", "max-cnxns", "0"},
		{"maxCnxns=010", "max-cnxns", "8"},
		{"maxCnxns=#10", "max-cnxns", "16"},
		{"maxCnxns=0XfF", "max-cnxns", "255"},
		{"reconfigEnabled=True", "reconfig", "true"},
		{"reconfigEnabled=FALSE", "reconfig", "false"},
		{"quorumListenOnAllIPs=TRUE", "peer-all-ips", "true"},
		{"standaloneEnabled=True", "allow-single-voter", "false"},
		{"peerType=PARTICIPANT", "peers", ""},
		{"enforceQuota=yes", "enforce-quota", "false"},
		{"enforceQuota=tRUE", "enforce-quota", "true"},
		{"extendedTypesEnabled=", "no-ttl", "true"},
		{"kerberos.removeHostFromPrincipal=True", "kerberos-remove-host", "false"},
		{"kerberos.removeHostFromPrincipal=true", "kerberos-remove-host", "true"},
		{"admin.enableServer=no", "admin", "127.0.0.1:8080"},
		{"admin.enableServer=false", "admin", ""},
		{"admin.enableServer=true\nadmin.serverPort=0x10", "admin", "127.0.0.1:16"},
		{"admin.enableServer=true\nadmin.serverAddress=[::1]", "admin", "[::1]:8080"},
		{"secureClientPort=+2281\nsecureClientPortAddress=[::1]", "tls-listen", "[::1]:2281"},
		{"secureClientPort=2281\nssl.clientAuth=NONE", "tls-client-auth", "none"},
		{"secureClientPort=2281\nssl.clientAuth=", "tls-client-auth", "need"},
		{"secureClientPort=2281\nssl.clientHostnameVerification=True\nssl.hostnameVerification=TRUE", "tls-client-addresses", "true"},
		{"secureClientPort=2281\nssl.clientHostnameVerification=True\nssl.hostnameVerification=yes", "tls-client-addresses", "false"},
		{"skipACL=true", "no-digest", "false"},
		{"skipACL=YES", "no-digest", "false"},
		{"forceSync=true", "no-digest", "false"},
		{"leaderServes=x\nelectionAlg=3", "no-digest", "false"},
		{"authProvider.1=" + providers + "DigestAuthenticationProvider\nauthProvider.ip=" + providers + "IPAuthenticationProvider\nauthProvider.7=" + providers + "X509AuthenticationProvider\nauthProvider.x509=" + providers + "X509AuthenticationProvider", "no-digest", "false"},
		{"DigestAuthenticationProvider.enabled=no", "no-digest", "true"},
		{"DigestAuthenticationProvider.enabled=no\nauthProvider.1=" + providers + "DigestAuthenticationProvider", "no-digest", "false"},
		{"java.security.auth.login.config=" + jaasFile(t, rawtest.JAAS(map[string]string{"bob": "x"})) + "\nauthProvider.9=" + providers + "SASLAuthenticationProvider", "no-digest", "false"},
		{"sslQuorum=False\nssl.quorum.crl=true", "peer-tls-crl", ""},
		{"sslQuorum=FALSE\nportUnification=False", "peer-tls-cert", ""},
	} {
		flag, _, log, err := readForm(t, listening, x.line)
		if err != nil || flag(x.flag) != x.want || log != "" {
			t.Errorf("%q: --%s is %q, %v, %s", x.line, x.flag, flag(x.flag), err, log)
		}
	}

	_, o, _, err := readForm(t, listening, "minSessionTimeout=04000", "maxSessionTimeout=+09000", "jute.maxbuffer=01000", "nio.sessionlessCnxnTimeout=0x100")
	if l := o.config.Limits; err != nil || l.MinSessionTimeout != 4*time.Second || l.MaxSessionTimeout != 9*time.Second || l.MaxFrameBytes != 0o1000 || l.HandshakeTimeout != 256*time.Millisecond {
		t.Errorf("%+v, %v", l, err)
	}
}

// TestZooGetInteger: where ZooKeeper takes the default instead of what is no number, the file is read so, with a warning.
func TestZooGetInteger(t *testing.T) {
	for _, value := range []string{"", "many", "0x", "09", "--1", "0x-5", "+", "1_000", "0b1", "0o7", "2147483648"} {
		flag, o, log, err := readForm(t, listening, "maxCnxns="+value, "admin.enableServer=true", "admin.serverPort="+value, "jute.maxbuffer="+value)
		if err != nil || flag("max-cnxns") != "0" || flag("admin") != "127.0.0.1:8080" || o.config.Limits.MaxFrameBytes != 0 || strings.Count(log, "no effect, as in ZooKeeper") != 3 {
			t.Errorf("%q: %v, %s", value, err, log)
		}
	}
}

// TestZooTLSWithoutPort: as in ZooKeeper, keys for TLS with clients do nothing without a port for it. A warning names them.
func TestZooTLSWithoutPort(t *testing.T) {
	_, o, log, err := readForm(t, listening, "clientPort=2181", "ssl.keyStore.location=/does/not/exist.bcfks", "zookeeper.ssl.keyStore.password=SECRET", "ssl.ocsp=true", "sslQuorum=false")
	if err != nil || o.tls.cert != "" || !strings.Contains(log, `keys="ssl.keyStore.location, ssl.ocsp, zookeeper.ssl.keyStore.password"`) || strings.Contains(log, "SECRET") {
		t.Errorf("%v, %s", err, log)
	}
	for _, port := range []string{"secureClientPort=2281", "client.portUnification=True"} {
		_, _, log, err = readForm(t, listening, "clientPort=2181", "ssl.keyStore.location=/does/not/exist.bcfks", port)
		if err == nil || log != "" {
			t.Errorf("%s: %v, %s", port, err, log)
		}
	}
	start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--config", zooCfg(t, "ssl.keyStore.location=/does/not/exist.jks", "ssl.trustStore.password=x")).waitReady()
}

// TestZooIPv6 listens on an address in brackets.
func TestZooIPv6(t *testing.T) {
	port := "2181"
	_, o, _, err := readForm(t, listening, "clientPortAddress=[::1]")
	if err == nil {
		t.Errorf("clientPortAddress without clientPort: %v", o.config.ClientAddr)
	}
	var c cobra.Command
	var with serveOptions
	with.define(&c)
	check1(t, readZooCfg(zooCfg(t, "clientPortAddress=[::1]", "clientPort="+port), c.Flags(), &with.config))
	if want := "[::1]:" + port; with.config.ClientAddr != want {
		t.Errorf("it listens on %q, not %q", with.config.ClientAddr, want)
	}
}

// TestZooCfgDefaults checks what ZooKeeper assumes for keys that a file does not have, and that flags win over that.
func TestZooCfgDefaults(t *testing.T) {
	for _, x := range []struct {
		flags                 []string
		tick, ttl, words, max string
	}{
		{nil, "3s", "true", "srvr", "60"},
		{[]string{"--tick-time=1s", "--max-client-cnxns=0", "--no-ttl=false", "--4lw=*", "--election-timeout=1m", "--admin=7"}, "1s", "false", "*", "0"},
	} {
		flag, o, _, err := readForm(t, x.flags, "clientPort=2181", "zookeeper.nio.sessionlessCnxnTimeout=300", "syncLimit=5", "admin.serverPort=9")
		check1(t, err)
		if flag("tick-time") != x.tick || flag("no-ttl") != x.ttl || flag("4lw") != x.words || flag("max-client-cnxns") != x.max || flag("listen") != ":2181" || o.config.Limits.HandshakeTimeout != 300*time.Millisecond {
			t.Errorf("%q: %+v, words %q", x.flags, o.config, o.words)
		}
		if x.flags != nil && (flag("election-timeout") != "1m0s" || flag("admin") != "7") {
			t.Errorf("an election timeout of %s, and --admin %s", flag("election-timeout"), flag("admin"))
		}
	}
	for line, says := range map[string]string{"clientPort=0": "it has no dataDir", "dataDir=" + t.TempDir(): "it has no clientPort and no secureClientPort"} {
		path := filepath.Join(t.TempDir(), "zoo.cfg")
		check1(t, os.WriteFile(path, []byte(line), 0o644))
		refuses(t, exitUsage, []string{"serve", "--config", path}, says)
	}
}

// TestZooCfgOneServer checks that a single server.N line makes a standalone server, which
// takes its client port from that line if there is no clientPort. As in ZooKeeper, N does
// not matter then, and no myid is needed.
func TestZooCfgOneServer(t *testing.T) {
	for _, c := range []struct{ name, myid, line, clientPort, want string }{
		{"no myid", "", "server.1=127.0.0.1:1:2;127.0.0.1:5", "", "127.0.0.1:5"},
		{"its own line", "1", "server.1=127.0.0.1:1:2;127.0.0.1:5", "", "127.0.0.1:5"},
		{"another server's line", "7", "server.1=127.0.0.1:1:2;127.0.0.1:1", "5", ":5"},
		{"clientPort without a myid", "", "server.1=127.0.0.1:1:2;127.0.0.1:1", "5", ":5"},
		{"two client ports", "1", "server.1=127.0.0.1:1:2;2182", "2181", "server.1 has client port 2182, but clientPort is 2181"},
	} {
		dir := t.TempDir()
		if c.myid != "" {
			check1(t, os.WriteFile(filepath.Join(dir, "myid"), []byte(c.myid+"\n"), 0o600))
		}
		lines := []string{"dataDir=" + dir, c.line}
		if c.clientPort != "" {
			lines = append(lines, "clientPort="+c.clientPort)
		}
		flag, o, _, err := readForm(t, nil, lines...)
		if err != nil && strings.HasSuffix(err.Error(), c.want) {
			continue
		}
		if err != nil || flag("listen") != c.want || flag("peers") != "" || o.config.Peers != nil {
			t.Errorf("%s: not standalone on %s: %s, %v, %v", c.name, c.want, flag("listen"), o.config.Peers, err)
		}
	}
}
