package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
)

// fromZooEnv returns the options of serve with flags and ZOO_ variables.
func fromZooEnv(t *testing.T, env map[string]string, flags ...string) (*serveOptions, error) {
	t.Helper()
	o, log, err := logZooEnv(t, env, flags...)
	if err == nil && log.String() != "" {
		t.Errorf("all of %v counts, but: %s", env, log)
	}
	return o, err
}

// logZooEnv also returns the log.
func logZooEnv(t *testing.T, env map[string]string, flags ...string) (*serveOptions, *testkit.Log, error) {
	t.Helper()
	var o serveOptions
	var c cobra.Command
	var log testkit.Log
	o.define(&c)
	o.config.Logger = log.Logger(slog.LevelWarn)
	check1(t, c.ParseFlags(flags))
	if env["ZOO_CONF_DIR"] == "" {
		env["ZOO_CONF_DIR"] = t.TempDir()
	}
	var environ []string
	for name, value := range env {
		environ = append(environ, name+"="+value)
	}
	return &o, &log, readZooEnv(environ, c.Flags(), &o.config)
}

// TestZooEnvDefaults: without variables the server is that of ZooKeeper's image: standalone, on
// port 2181 of all addresses, with its data in /data.
func TestZooEnvDefaults(t *testing.T) {
	o, err := fromZooEnv(t, map[string]string{})
	check1(t, err)
	c := o.config
	if c.DataDir != "/data" || c.ClientAddr != ":2181" || c.TickTime != 2*time.Second || c.Limits.MaxConnectionsPerAddress != 60 ||
		len(c.Peers) > 0 || c.Features.AllowSingleVoter || o.words != "srvr" || o.admin.addr != "127.0.0.1:8080" {
		t.Errorf("%+v, words %q, admin %q", c, o.words, o.admin.addr)
	}
}

// TestZooEnvCluster: each variable does what it does in ZooKeeper's image.
func TestZooEnvCluster(t *testing.T) {
	data := t.TempDir()
	env := map[string]string{
		"ZOO_MY_ID": "2", "ZOO_DATA_DIR": data, "ZOO_DATA_LOG_DIR": "/datalog", "ZOO_TICK_TIME": "500", "ZOO_INIT_LIMIT": "5", "ZOO_AUTOPURGE_PURGEINTERVAL": "1", "ZOO_SYNC_LIMIT": "6", "ZOO_MAX_CLIENT_CNXNS": "0",
		"ZOO_STANDALONE_ENABLED": "false", "ZOO_ADMINSERVER_ENABLED": "false", "ZOO_4LW_COMMANDS_WHITELIST": "srvr, ruok",
		"ZOO_SERVERS":   "server.1=a:2888:3888;2181 server.2=b:2888:3888;2182  server.3=c:2888:3888:observer;2181",
		"ZOO_CFG_EXTRA": "maxSessionTimeout=60000 reconfigEnabled=true",
	}
	o, err := fromZooEnv(t, env)
	check1(t, err)
	c := o.config
	if want := "1=a:2888;:2181 2=b:2888;:2182 3=c:2888:observer;:2181"; peersText(o) != want {
		t.Errorf("members %q, not %q", peersText(o), want)
	}
	if c.ID != 2 || c.DataDir != data || c.ClientAddr != ":2182" || c.TickTime != 500*time.Millisecond || c.ElectionTimeout != 3*time.Second ||
		c.Limits.MaxConnectionsPerAddress != 0 || !c.Features.AllowSingleVoter || !c.Features.Reconfig || c.Limits.MaxSessionTimeout != time.Minute || o.admin.addr != "" || o.words != "srvr, ruok" {
		t.Errorf("%+v, words %q, admin %q", c, o.words, o.admin.addr)
	}

	// The file myid takes precedence over ZOO_MY_ID, and flags over all.
	check1(t, os.WriteFile(filepath.Join(data, "myid"), []byte("1\n"), 0o600))
	o, err = fromZooEnv(t, env, "--max-client-cnxns=7")
	check1(t, err)
	if o.config.ID != 1 || o.config.Limits.MaxConnectionsPerAddress != 7 {
		t.Errorf("%+v", o.config)
	}

	// So does a zoo.cfg, but the id still comes from the variable.
	conf := t.TempDir()
	check1(t, os.WriteFile(filepath.Join(conf, "zoo.cfg"),
		[]byte("tickTime=900\ndataDir="+t.TempDir()+"\nclientPort=2181\nserver.1=a:1:2\nserver.2=b:1:2\nserver.3=c:1:2\n"), 0o600))
	env["ZOO_CONF_DIR"] = conf
	o, log, err := logZooEnv(t, env)
	check1(t, err)
	if lines := log.Matching("that are not read", "ZOO_4LW_COMMANDS_WHITELIST, ZOO_ADMINSERVER_ENABLED, ", "ZOO_CFG_EXTRA, ZOO_DATA_DIR, "); len(lines) != 1 || len(log.Matching()) != 1 {
		t.Errorf("the file counts, and the log does not say so: %s", log)
	}
	if o.config.ID != 2 || o.config.TickTime != 900*time.Millisecond || peersText(o) != "1=a:1 2=b:1 3=c:1" {
		t.Errorf("%+v", o.config)
	}
}

// TestZooEnvErrors: a message says that the value comes from a variable.
func TestZooEnvErrors(t *testing.T) {
	for name, value := range map[string]string{"ZOO_TICK_TIME": "soon", "ZOO_SERVERS": "server.x=a", "ZOO_MY_ID": "9 or so"} {
		env := map[string]string{"ZOO_DATA_DIR": t.TempDir(), name: value}
		if name == "ZOO_MY_ID" {
			env["ZOO_SERVERS"] = "server.1=a:1:2;3 server.2=b:1:2;3"
		}
		if _, err := fromZooEnv(t, env); err == nil || !strings.Contains(err.Error(), "ZOO_ variables") && !strings.Contains(err.Error(), value) {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
}

// TestZooEnv starts a server by variables alone.
func TestZooEnv(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	p := start(t, []string{"LOCKKEEPER_ZOO_ENV=true", "ZOO_DATA_DIR=" + dir, "ZOO_TICK_TIME=700", "ZOO_4LW_COMMANDS_WHITELIST=*", "ZOO_ADMINSERVER_ENABLED=false"},
		"serve", "--listen", "127.0.0.1:0").waitReady()
	if conf := p.conf(); !strings.Contains(conf, "dataDir="+dir+"\n") || !strings.Contains(conf, "tickTime=700\n") {
		t.Errorf("its configuration:\n%s", conf)
	}
	for _, l := range p.lines() {
		if strings.Contains(l, "WARN") {
			t.Errorf("every key is known, but: %s", l)
		}
	}
}

// TestZooEnvProperties: the properties of the JVM in JVMFLAGS and SERVER_JVMFLAGS do what they do in ZooKeeper.
func TestZooEnvProperties(t *testing.T) {
	users := jaasFile(t, rawtest.JAAS(map[string]string{"bob": "x"}))
	o, err := fromZooEnv(t, map[string]string{
		"ZOO_CFG_EXTRA":   "secureClientPort=2281", // without which the keys ssl.* have no effect
		"SERVER_JVMFLAGS": "-Dzookeeper.enforce.auth.enabled=false -Dzookeeper.enforce.auth.schemes=digest,sasl -Djute.maxbuffer=0x1fffff",
		"JVMFLAGS": " -Dzookeeper.enforce.auth.enabled=TRUE\t-Dzookeeper.DigestAuthenticationProvider.superDigest=super:abc= -Dzookeeper.superUser=bob " +
			"-Dzookeeper.superUser.2=ann -Dreadonlymode.enabled=true -Djava.security.auth.login.config=" + users + " -Dzookeeper.extendedTypesEnabled " +
			"-Dznode.container.checkIntervalMs=500 -Dzookeeper.ssl.keyStore.password=SECRET -Dzookeeper.maxCnxns=7",
	})
	check1(t, err)
	c := o.config
	if o.enforceAuth != "digest,sasl" || c.Limits.MaxFrameBytes != 0x1fffff || c.Auth.SuperDigest != "super:abc=" || !slices.Equal(c.Auth.SASL.SuperUsers, []string{"bob", "ann"}) ||
		!c.Features.ReadOnly || o.sasl.file != users || !c.Features.NoTTL || c.ContainerCheckInterval != 500*time.Millisecond || o.tls.password.Text != "SECRET" || c.Limits.MaxConnections != 7 {
		t.Errorf("%+v, authentication by %q, users in %q, password of the store %q", c, o.enforceAuth, o.sasl.file, o.tls.password.Text)
	}

	// The file takes precedence, except for what ZooKeeper does not read there, and flags over both.
	o, log, err := logZooEnv(t, map[string]string{
		"ZOO_CFG_EXTRA": "jute.maxbuffer=1000 enforceQuota=false zookeeper.maxCnxns=8 tickTime=700",
		"JVMFLAGS":      "-Djute.maxbuffer=2000 -Dzookeeper.enforceQuota=true -Dzookeeper.maxCnxns=9 -Dzookeeper.tickTime=800 -Dzookeeper.superUser=SECRET -Dzookeeper.superDigest=SECRET",
	}, "--sasl-super-user=eve")
	check1(t, err)
	c = o.config
	if c.Limits.MaxFrameBytes != 2000 || c.Features.EnforceQuota || c.Limits.MaxConnections != 9 || c.TickTime != 700*time.Millisecond || !slices.Equal(c.Auth.SASL.SuperUsers, []string{"eve"}) {
		t.Errorf("%+v", c)
	}
	for _, says := range []string{"variable=JVMFLAGS key=enforceQuota", `variable=JVMFLAGS flags="-Dzookeeper.tickTime -Dzookeeper.superDigest"`} {
		if len(log.Matching("WARN", says)) != 1 {
			t.Errorf("the log does not say %q: %s", says, log)
		}
	}
	if len(log.Matching()) != 2 || strings.Contains(log.String(), "SECRET") {
		t.Errorf("the log: %s", log)
	}
	for _, key := range slices.Concat(bareProperties, noProperties) {
		if !slices.ContainsFunc(zooTable, func(r zooRow) bool { return r.matches(key) }) {
			t.Errorf("%s is no key", key)
		}
	}
}

// TestZooEnvBadProperties: an error names the variable with the property, and shows no password.
func TestZooEnvBadProperties(t *testing.T) {
	for flags, says := range map[string]string{
		"-Dzookeeper.skipACL=yes": "JVMFLAGS: zookeeper.skipACL=yes: not supported",
		"-Dzookeeper.client.portUnification=true -Dzookeeper.ssl.ocsp=true":                "JVMFLAGS: zookeeper.ssl.ocsp=true: not supported",
		"-Dzookeeper.client.portUnification=true -Dzookeeper.ssl.context.supplier.class=x": "JVMFLAGS: zookeeper.ssl.context.supplier.class=x: not supported",
		"-Dzookeeper.SASLAuthenticationProvider.superPassword=SECRET":                      "JVMFLAGS: zookeeper.SASLAuthenticationProvider.superPassword: not supported",
		"-Djute.maxbuffer=-1":                                          "JVMFLAGS: zookeeper.jute.maxbuffer=-1: it must be above 0",
		"-Djute.maxbuffer=0x1000001":                                   "jute.maxbuffer in JVMFLAGS: 16777217 is more than 16777216",
		`-Dzookeeper.ssl.keyStore.password="SECRET"`:                   "JVMFLAGS: zookeeper.ssl.keyStore.password: its value has a quotation mark",
		"-Dzookeeper.X509AuthenticationProvider.superUser='CN=a, O=b'": "JVMFLAGS: zookeeper.X509AuthenticationProvider.superUser: its value has a quotation mark",
		"-Dzookeeper.enforce.auth.enabled=true":                        "without enforce.auth.schemes",
		"-Dzookeeper.superUser=bob":                                    "superUser in JVMFLAGS: it needs --jaas",
	} {
		t.Setenv("ZOO_CONF_DIR", t.TempDir())
		t.Setenv("JVMFLAGS", flags)
		code, _, stderr := call(nil, "serve", "--zoo-env", "--memory", "--listen", "127.0.0.1:0", "--log-level", "error")
		if code != exitUsage || !strings.Contains(stderr, says) || strings.Contains(stderr, "SECRET") {
			t.Errorf("%s: exit code %d\n%s", flags, code, stderr)
		}
	}
}

// TestZooEnvUnread: what would have an effect in ZooKeeper's image, and has none here, is named.
func TestZooEnvUnread(t *testing.T) {
	conf := t.TempDir()
	check1(t, os.WriteFile(filepath.Join(conf, "java.env"), []byte("export JVMFLAGS=-Dzookeeper.skipACL=yes\n"), 0o600))
	_, log, err := logZooEnv(t, map[string]string{
		"ZOO_CONF_DIR": conf, "ZOO_LOG4J_PROP": "INFO,CONSOLE", "ZOO_ENABLE_AUTH": "yes", "ZOO_LOG_DIR": "", "JAVA_TOOL_OPTIONS": "-Dx=SECRET", "JMXPORT": "9000", "ZOOCFGDIR": "/conf", "HOME": "/",
		"ZOO_PORT": "tcp://10.0.0.1:2181", "ZOO_SERVICE_HOST": "10.0.0.1", "ZOO_SERVICE_PORT_CLIENT": "2181", "ZOO_PORT_2181_TCP": "tcp://10.0.0.1:2181", "ZOO_PORT_2181_TCP_ADDR": "10.0.0.1",
		"SERVER_JVMFLAGS": "-Xmx1g -XX:OnError=SECRET -Djava.security.krb5.conf=/etc/krb5.conf",
	})
	check1(t, err)
	for _, says := range []string{
		`variables="JAVA_TOOL_OPTIONS, JMXPORT, ZOOCFGDIR, ZOO_ENABLE_AUTH, ZOO_LOG4J_PROP"`,
		`variable=SERVER_JVMFLAGS flags="-Xmx1g -XX:OnError -Djava.security.krb5.conf"`,
		"file=" + filepath.Join(conf, "java.env"),
	} {
		if len(log.Matching("WARN", says)) != 1 {
			t.Errorf("the log does not say %s: %s", says, log)
		}
	}
	if len(log.Matching()) != 3 || strings.Contains(log.String(), "SECRET") {
		t.Errorf("the log: %s", log)
	}

	// With --config, the whole image's environment is not read.
	p := start(t, []string{"LOCKKEEPER_ZOO_ENV=true", "ZOO_MY_ID=1", "JVMFLAGS=-Dzookeeper.enforceQuota=true"},
		"serve", "--memory", "--listen", "127.0.0.1:0", "--config", zooCfg(t, "clientPort=1")).waitReady()
	if lines := strings.Join(p.lines(), "\n"); !strings.Contains(lines, `variables="JVMFLAGS, ZOO_MY_ID"`) {
		t.Errorf("the log: %s", lines)
	}
}

// peersText returns the members as --peers has them, separated by spaces.
func peersText(o *serveOptions) string {
	var all []string
	for _, p := range o.config.Peers {
		text := fmt.Sprintf("%d=%s", p.ID, p.Addr)
		if p.Observer {
			text += ":observer"
		}
		if p.ClientAddr != "" {
			text += ";" + p.ClientAddr
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}
