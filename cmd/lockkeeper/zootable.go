package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/proto"
)

// zooTable lists the keys of zoo.cfg, ZooKeeper's configuration file, and what each of
// them does. Rows are applied in their order; for each key, the first row that matches
// counts. docs/zoo.cfg.md is generated from the table.
var zooTable = []zooRow{
	{"tickTime", toFlag("tick-time", "in milliseconds", milliseconds).as(parseInt).without("3000")},
	{"syncLimit", toFlag("election-timeout", "in ticks; 0 leaves the default", ticks).as(parseInt).unset("an election timeout of 2 s; ZooKeeper needs the key in a cluster")},
	{"dataDir", toFlag("data", "refused if ZooKeeper's own data is in it", dataDir).unset("refused, unless `--data` or `--memory` is given")},
	{"clientPort", toFlag("listen", "with clientPortAddress; 0 counts as absent, as in ZooKeeper before 3.9, if anything else names a port or an address for clients, or there is a list of servers; otherwise it is any free port, as in later ones", clientPort).as(parseInt).unset("no such port; refused if no other key or flag names a port for clients")},
	{"clientPortAddress", readWith("clientPort").unset("all addresses")},
	{"secureClientPort", toFlag("tls-listen", "with secureClientPortAddress; without clientPort it is the only port; 0 counts as absent, as in ZooKeeper before 3.9; in later ones it is any free port", clientPort).as(parseInt).unset("no such port")},
	{"secureClientPortAddress", readWith("secureClientPort").unset("all addresses")},
	{"ssl.keyStore.location", toFlag("tls-cert", storeNote+", with the key in it", store).unset("none")},
	{"ssl.keyStore.type", readWith("ssl.keyStore.location").unset("by the name of the file")},
	{"ssl.keyStore.password", toSecret("tls-password-file").unset("none")},
	{"ssl.keyStore.passwordPath", toFlag("tls-password-file", "", same).unset("none")},
	{"ssl.trustStore.location", toFlag("tls-ca", storeNote, store).unset("none")},
	{"ssl.trustStore.type", readWith("ssl.trustStore.location").unset("by the name of the file")},
	{"ssl.trustStore.password", toSecret("tls-ca-password-file").unset("none")},
	{"ssl.trustStore.passwordPath", toFlag("tls-ca-password-file", "", same).unset("none")},
	{"ssl.clientAuth", toFlag("tls-client-auth", "", func(_ *zooFile, _, value string) (string, error) {
		return cmp.Or(value, "need"), nil
	}).as(anyCase).unset("`need`")},
	{"ssl.clientHostnameVerification", toFlag("tls-client-addresses", "unless ssl.hostnameVerification is false", clientAddresses).as(parseBoolean).unset("`false`")},
	{"ssl.hostnameVerification", readWith("ssl.clientHostnameVerification").as(parseBoolean).unset("`true`")},
	{"client.portUnification", toFlag("tls-on-listen", "", same).as(parseBoolean).unset("`false`")},
	{"ssl.crl", needsCRL("tls-crl").as(parseBoolean).unset("`false`")},
	{"ssl.protocol", toFlag("tls-protocols", "the only one", protocol).unset("TLS 1.2 and 1.3; in ZooKeeper the newest that Java has")},
	{"ssl.enabledProtocols", toFlag("tls-protocols", "in place of ssl.protocol", same).unset("that of ssl.protocol")},
	{"ssl.ciphersuites", toFlag("tls-ciphers", "", same).unset("those of Go")},
	{"X509AuthenticationProvider.superUser", toFlag("x509-super-user", "", same).unset("none")},
	{"DigestAuthenticationProvider.superDigest", toFlag("super-digest", "", same).unset("none")},
	{"DigestAuthenticationProvider.digestAlg", toFlag("digest-algorithm", "", same).unset("`SHA1`")},
	{"DigestAuthenticationProvider.enabled", toFlag("no-digest", "if it is false", not).as(parseBoolean).unset("`true`")},
	{"enforce.auth.enabled", toFlag("enforce-auth", "with enforce.auth.schemes", enforcedSchemes).as(parseBoolean).unset("`false`")},
	{"enforce.auth.schemes", readWith("enforce.auth.enabled").unset("none")},
	{"audit.enable", zooRule{kind: used, note: "true needs `--audit-log`, which names the file", read: func(z *zooFile, _, value string) error {
		if value == "true" && z.flags.Lookup("audit-log").Value.String() == "" {
			return errors.New("name the file of the audit log with --audit-log")
		}
		return nil
	}}.as(parseBoolean).unset("`false`")},
	{"sessionRequireClientSASLAuth", toFlag("enforce-auth", "true means the scheme sasl, whatever enforce.auth.schemes says", enforcedSchemes).as(parseBoolean).unset("`false`")},
	{"java.security.auth.login.config", toFlag("jaas", "ZooKeeper gets it only as a property of the JVM", same).unset("no SASL")},
	{"sasl.serverconfig", toFlag("jaas-section", "", same).unset("`Server`")},
	{"superUser", toFlag("sasl-super-user", "", same).unset("none")},
	{"superUser.", toFlag("sasl-super-user", "more of them", same).unset("none")},
	{"kerberos.removeHostFromPrincipal", toFlag("kerberos-remove-host", "", same).as(exactly("true", "false")).unset("`false`")},
	{"kerberos.removeRealmFromPrincipal", toFlag("kerberos-remove-realm", "", same).as(exactly("true", "false")).unset("`false`")},
	{"allowSaslFailedClients", toFlag("sasl-allow-failed", "", same).as(parseBoolean).unset("`false`")},
	{"4lw.commands.whitelist", toFlag("4lw", "", same).without("srvr")},
	{"extendedTypesEnabled", toFlag("no-ttl", "if it is false", not).as(parseBoolean).without("false")},
	{"enforceQuota", toFlag("enforce-quota", "", same).as(parseBoolean).unset("`false`")},
	{"readonlymode.enabled", toFlag("read-only", "", same).as(parseBoolean).unset("`false`")},
	{"maxClientCnxns", toFlag("max-client-cnxns", "0 and less mean no limit", connections).as(parseInt).without("60")},
	{"maxCnxns", toFlag("max-cnxns", "the limit on all connections together; 0 and less mean none", connections).as(getInteger).unset("`0`, no limit")},
	{"jute.maxbuffer", toField("Limits.MaxFrameBytes", "the longest request; at most 16 MiB", func(c *lockkeeper.Config, v string) error { return limit(v, &c.Limits.MaxFrameBytes) }).as(getInteger).unset("`0xfffff`")},
	{"minSessionTimeout", toField("Limits.MinSessionTimeout", "in milliseconds; -1 counts as absent; the server warns of less than 2 ticks", func(c *lockkeeper.Config, v string) error { return sessionTimeout(v, &c.Limits.MinSessionTimeout) }).as(parseInt).unset("2 ticks")},
	{"maxSessionTimeout", toField("Limits.MaxSessionTimeout", "in milliseconds; -1 counts as absent", func(c *lockkeeper.Config, v string) error { return sessionTimeout(v, &c.Limits.MaxSessionTimeout) }).as(parseInt).unset("20 ticks")},
	{"nio.sessionlessCnxnTimeout", toField("Limits.HandshakeTimeout", "how long a client may take for the handshake, in milliseconds", func(c *lockkeeper.Config, v string) error { return duration(v, &c.Limits.HandshakeTimeout) }).as(getInteger).unset("`10000`")},
	{"znode.container.checkIntervalMs", toField("ContainerCheckInterval", "how often to look for empty containers, in milliseconds", func(c *lockkeeper.Config, v string) error { return duration(v, &c.ContainerCheckInterval) }).as(getInteger).unset("`60000`")},
	{"admin.enableServer", toFlag("admin", "true without admin.serverPort means port 8080. Without either key nothing is served", adminServer).as(exactly("false", "true")).unset("nothing is served; ZooKeeper serves its commands to everyone on port 8080")},
	{"admin.serverPort", toFlag("admin", "with admin.serverAddress, and on 127.0.0.1 without it; not if admin.enableServer=false", adminServer).as(getInteger).unset("`8080`, if admin.enableServer is true")},
	{"admin.serverAddress", readWith("admin.serverPort").unset("`127.0.0.1`; ZooKeeper's is all addresses")},

	{"metricsProvider.className", toFlag("metrics-listen", "PrometheusMetricsProvider: with metricsProvider.httpHost and metricsProvider.httpPort; the other providers of ZooKeeper serve nothing", metricsProvider).unset("nothing is served")},
	{"metricsProvider.httpHost", readWith("metricsProvider.className").unset("all addresses")},
	{"metricsProvider.httpPort", readWith("metricsProvider.className").unset("`7000`")},

	{"server.", zooRule{kind: used, what: "`--peers`", note: "and the file myid in dataDir, `--id`; only the first of the two ports is used, and /zookeeper/config shows both, and the address for clients. A single voting server is standalone, unless standaloneEnabled=false", read: serverLine}.unset("a standalone server")},
	{"dynamicConfigFile", zooRule{kind: used, note: "a file with the lines server.N"}.unset("none")},
	{"standaloneEnabled", toFlag("allow-single-voter", "if it is false", not).as(trueOrFalse).unset("`true`")},
	{"reconfigEnabled", toFlag("reconfig", "", same).as(trueOrFalse).unset("`false`")},
	{"quorumListenOnAllIPs", toFlag("peer-all-ips", "", same).as(trueOrFalse).unset("`false`")},
	{"peerType", zooRule{kind: used, note: "observer or participant; the server's own line server.N decides", read: func(_ *zooFile, _, value string) error {
		if value != "observer" && value != "participant" {
			return errors.New("neither observer nor participant")
		}
		return nil
	}}.as(anyCase).unset("`participant`")},
	{"sslQuorum", zooRule{kind: used, note: "whether members use TLS with each other; without it and portUnification the keys ssl.quorum.* are ignored", read: unread}.as(trueOrFalse).unset("`false`")},
	{"portUnification", toFlag("peer-tls-mode", "true is accept, and use with sslQuorum: members connect with and without TLS while a cluster moves to it", func(z *zooFile, _, value string) (string, error) {
		switch {
		case value != "true":
			return "", nil
		case z.value("sslQuorum") == "true":
			return string(lockkeeper.PeerTLSUse), nil
		}
		return string(lockkeeper.PeerTLSAccept), nil
	}).as(trueOrFalse).unset("`false`")},
	{"ssl.quorum.keyStore.location", toFlag("peer-tls-cert", storeNote+", with the key in it", store).unset("none")},
	{"ssl.quorum.keyStore.type", readWith("ssl.quorum.keyStore.location").unset("by the name of the file")},
	{"ssl.quorum.keyStore.password", toSecret("peer-tls-password-file").unset("none")},
	{"ssl.quorum.keyStore.passwordPath", toFlag("peer-tls-password-file", "", same).unset("none")},
	{"ssl.quorum.trustStore.location", toFlag("peer-tls-ca", storeNote, store).unset("none")},
	{"ssl.quorum.trustStore.type", readWith("ssl.quorum.trustStore.location").unset("by the name of the file")},
	{"ssl.quorum.trustStore.password", toSecret("peer-tls-ca-password-file").unset("none")},
	{"ssl.quorum.trustStore.passwordPath", toFlag("peer-tls-ca-password-file", "", same).unset("none")},

	{"ssl.quorum.crl", needsCRL("peer-tls-crl").as(parseBoolean).unset("`false`")},
	{"ssl.quorum.protocol", toFlag("peer-tls-protocols", "TLSv1.3 includes TLSv1.2, as in Java", quorumProtocol).unset("TLS 1.2 and 1.3")},
	{"ssl.quorum.enabledProtocols", toFlag("peer-tls-protocols", "in place of ssl.quorum.protocol", same).unset("those of ssl.quorum.protocol")},
	{"ssl.quorum.ciphersuites", toFlag("peer-tls-ciphers", "", same).unset("those of Go")},

	{"electionAlg", only("3", "").as(parseInt)},
	{"forceSync", only("yes", "").as(exactly("no", "yes"))},
	{"skipACL", only("no", "").as(exactly("yes", "no"))},
	{"authProvider.x509", only(providers+"X509AuthenticationProvider", "")},
	{"authProvider.", zooRule{kind: used, note: "with any suffix: the providers of ZooKeeper for digest, ip and x509, which are there anyway, and for sasl, with a JAAS file", read: authProvider}.unset("digest and ip; x509 with secureClientPort, sasl with a JAAS file")},
	{"ssl.authProvider", only("x509", "")},
	{"ssl.allowReverseDnsLookup", only("false", "a client's certificate must name its IP address").as(parseBoolean)},
	{"ssl.ocsp", only("false", "").as(parseBoolean)},
	{"ssl.quorum.hostnameVerification", only("true", "").as(parseBoolean)},
	{"ssl.quorum.clientHostnameVerification", only("false", "").as(parseBoolean)},
	{"ssl.quorum.clientAuth", only("need", "").as(anyCase)},
	{"ssl.quorum.ocsp", only("false", "").as(parseBoolean)},

	{"admin.commandURL", only("/commands", "")},
	{"admin.forceHttps", only("false", "--admin-tls-cert makes the port of --admin use TLS").as(parseBoolean)},
	{"admin.portUnification", only("false", "").as(parseBoolean)},
	{"admin.needClientAuth", only("false", "--admin-token-file limits who may use the port of --admin").as(parseBoolean)},

	{"initLimit", ignore("a server has as long as it needs to catch up").as(parseInt)},
	{"connectToLearnerMasterLimit", ignore("likewise").as(parseInt)},
	{"cnxTimeout", ignore("Raft elects the leader")},
	{"leaderServes", ignore("the leader serves clients")},
	{"syncEnabled", ignore("observers keep their state on disk").as(trueOrFalse)},
	{"observerMasterPort", ignore("observers are served by the leader").as(parseInt)},
	{"localSessionsEnabled", ignore("there are no local sessions").as(trueOrFalse)},
	{"localSessionsUpgradingEnabled", ignore("likewise").as(trueOrFalse)},
	{"dataLogDir", ignore("the log is in dataDir")},
	{"snapCount", ignore("snapshots are taken by the size of the log")},
	{"preAllocSize", ignore("it concerns ZooKeeper's log files")},
	{"txnLogSizeLimitInKb", ignore("likewise")},
	{"fsync.warningthresholdms", ignore("likewise")},
	{"autopurge.", ignore("the log is compacted and old snapshots are deleted anyway")},
	{"globalOutstandingLimit", ignore("the limit on requests is per connection")},
	{"audit.impl.class", only("org.apache.zookeeper.audit.Slf4jAuditLogger", "")},
	{"serverCnxnFactory", ignore("it names a Java class")},
	{"clientPortListenBacklog", ignore("the system's value is used").as(parseInt)},
	{"tcpKeepAlive", ignore("keep-alives are on")},
	{"clientTcpKeepAlive", ignore("likewise")},
	{"admin.", ignore("the port of --admin has no such setting")},
	{"metricsProvider.httpsPort", refuse("/metrics is served without TLS; --admin-tls-cert makes the port of --admin use TLS, which has the metrics too")},
	{"metricsProvider.ssl.", refuse("/metrics is served without TLS; --admin-tls-cert makes the port of --admin use TLS, which has the metrics too")},
	{"metricsProvider.", ignore("the metrics have no such setting")},
	{"client.certReload", ignore("certificates are read again when they change")},
	{"sslQuorumReloadCertFiles", ignore("likewise").as(trueOrFalse)},
	{"requireClientAuthScheme", ignore("ZooKeeper does not read it either; sessionRequireClientSASLAuth and enforce.auth.schemes require SASL")},
	{"requireKerberosConfig", ignore("krb5.conf is not read")},
	{"digest.enabled", ignore("every entry of the log is checked anyway")},
	{"closeSessionTxn.enabled", ignore("it concerns ZooKeeper's log")},
	{"znode.container.maxPerMinute", ignore("the rate at which containers are deleted is not limited")},

	{"group.", refuse("every member that votes has one vote")},
	{"weight.", refuse("every member that votes has one vote")},
	{"SASLAuthenticationProvider.superPassword", refuse("the password of the user super is that in the JAAS file")},
	{"security.auth_to_local", refuse("principals of the server's realm are users, and those of others are not")},
	{"letAnySaslUserDoX", refuse("an ACL has to name the users, or the scheme auth")},
	{"quorum.auth.", refuse("there is no SASL between members; use TLS instead")},
	{"ssl.", refuse("TLS has no other settings")},
}

const storeNote = "a file in PEM, PKCS12 or JKS format"

const providers = "org.apache.zookeeper.server.auth." // of authentication

// zooRow is a row of zooTable. A key that ends with a dot stands for all keys with that prefix.
type zooRow struct {
	key string
	zooRule
}

// prefix reports whether the row is for several keys.
func (r *zooRow) prefix() bool { return strings.HasSuffix(r.key, ".") }

func (r *zooRow) matches(key string) bool {
	return key == r.key || r.prefix() && strings.HasPrefix(key, r.key)
}

type zooRule struct {
	kind zooKind
	what string // the flag or field that is set, or the only value
	note string // for the documentation
	form zooForm
	read func(z *zooFile, key, value string) error // its value is as the form gives it

	absent string // the value that counts if the key is absent; empty if nothing needs to be done
	means  string // what holds if the key is absent, for the documentation
}

// without returns the rule of a key that has a value when it is absent.
func (r zooRule) without(value string) zooRule {
	r.absent, r.means = value, "`"+value+"`"
	return r
}

// unset returns the rule of a key with what its absence means, for the documentation.
func (r zooRule) unset(means string) zooRule {
	r.means = means
	return r
}

// as returns the rule of a key whose value ZooKeeper reads in a form.
func (r zooRule) as(form zooForm) zooRule {
	r.form = form
	return r
}

type zooKind int

const (
	used zooKind = iota
	onlyValue
	ignored
	refused
)

// toFlag returns the rule of a key that sets a flag, unless the user has set the flag.
func toFlag(flag, note string, convert func(z *zooFile, key, value string) (string, error)) zooRule {
	return zooRule{kind: used, what: "`--" + flag + "`", note: note, read: func(z *zooFile, key, value string) error {
		text, err := convert(z, key, value)
		if err != nil || z.given(flag) {
			return err
		}
		return z.set(flag, key, text)
	}}
}

// toField returns the rule of a key that sets a field of the configuration without a flag. The flag --config
// gets a note where the key is, for badField.
func toField(field, note string, set func(c *lockkeeper.Config, value string) error) zooRule {
	return zooRule{kind: used, what: "`Config." + field + "`", note: note, read: func(z *zooFile, key, value string) error {
		annotate(z.flags.Lookup("config"), key, z.place(key))
		return set(z.cfg, value)
	}}
}

// toSecret returns the rule of a key with the password itself, in place of a flag that names a file
// with it.
func toSecret(flag string) zooRule {
	return zooRule{kind: used, what: "`--" + flag + "`", note: "the password itself; the file of passwordPath takes precedence", read: func(z *zooFile, _, value string) error {
		if !z.given(flag) {
			z.flags.Lookup(flag).Value.(*secret).Text = value
		}
		return nil
	}}
}

// needsCRL returns the rule of a key that has certificates checked against lists, which Java gets from
// the addresses in the certificates. A server here only has those in a file.
func needsCRL(flag string) zooRule {
	return zooRule{kind: used, note: "true needs `--" + flag + "`: no lists are fetched", read: func(z *zooFile, _, value string) error {
		if value == "true" && z.flags.Lookup(flag).Value.String() == "" {
			return fmt.Errorf("lists of revoked certificates are not fetched; name a file with them with --%s", flag)
		}
		return nil
	}}
}

// readWith returns the rule of a key that is read together with another key.
func readWith(other string) zooRule {
	return zooRule{kind: used, note: "with " + other, read: func(z *zooFile, _, _ string) error {
		if slices.Contains(portKeys, other) && z.value(other) == "" {
			return errors.New("without " + other + ", or that is 0")
		}
		return nil
	}}
}

func only(value, why string) zooRule {
	return zooRule{kind: onlyValue, what: value, note: why, read: func(_ *zooFile, _, is string) error {
		if is == value {
			return nil
		}
		return errors.New(cmp.Or(why, fmt.Sprintf("not supported, only %q is", value)))
	}}
}

func ignore(why string) zooRule {
	return zooRule{kind: ignored, note: why, read: unread}
}

func unread(*zooFile, string, string) error { return nil }

func refuse(why string) zooRule {
	return zooRule{kind: refused, note: why, read: func(*zooFile, string, string) error { return errors.New("not supported: " + why) }}
}

// zooKeyOf returns the key for a field of the configuration, or "".
func zooKeyOf(field string) string {
	for _, row := range zooTable {
		if row.what == "`Config."+field+"`" {
			return row.key
		}
	}
	return ""
}

// The following functions convert values of keys to values of flags.

func same(_ *zooFile, _, value string) (string, error) { return value, nil }

func not(_ *zooFile, _, value string) (string, error) {
	return strconv.FormatBool(value != "true"), nil
}

func milliseconds(_ *zooFile, _, value string) (string, error) { return value + "ms", nil }

// connections converts a limit on connections, of which there is none if it is not above 0.
func connections(_ *zooFile, _, value string) (string, error) {
	if strings.HasPrefix(value, "-") {
		return "0", nil
	}
	return value, nil
}

// clientAddresses converts ssl.clientHostnameVerification, for which ssl.hostnameVerification must be
// on, too, as in X509Util.
func clientAddresses(z *zooFile, _, value string) (string, error) {
	return strconv.FormatBool(value == "true" && z.value("ssl.hostnameVerification") != "false"), nil
}

// protocol converts a name of Java's SSLContext, of which TLS means any version.
func protocol(_ *zooFile, _, value string) (string, error) {
	if value == "TLS" {
		return "", nil
	}
	return value, nil
}

// quorumProtocol is like protocol, for sockets, which have TLSv1.2 beside TLSv1.3.
func quorumProtocol(z *zooFile, key, value string) (string, error) {
	if value == "TLSv1.3" {
		return "TLSv1.2,TLSv1.3", nil
	}
	return protocol(z, key, value)
}

func ticks(z *zooFile, _, value string) (string, error) {
	n, err := strconv.Atoi(value)
	switch {
	case err != nil || n < 0:
		return "", errors.New("it cannot be below 0")
	case n == 0:
		return z.flags.Lookup("election-timeout").Value.String(), nil
	}
	return (time.Duration(n) * z.cfg.TickTime).String(), nil
}

func dataDir(z *zooFile, _, value string) (string, error) {
	if z.given("data") || z.given("memory") {
		return value, nil
	}
	return value, notZooKeepers(value)
}

func clientPort(z *zooFile, key, value string) (string, error) {
	err := checkPort(value)
	return net.JoinHostPort(z.address(key+"Address", ""), value), err
}

func checkPort(value string) error {
	if _, err := strconv.ParseUint(value, 10, 16); err != nil {
		return errors.New("not a port number")
	}
	return nil
}

// adminServer converts the keys of ZooKeeper's AdminServer, which has port 8080 by default.
func adminServer(z *zooFile, _, _ string) (string, error) {
	if z.value("admin.enableServer") == "false" {
		return "", nil
	}
	port := cmp.Or(z.value("admin.serverPort"), "8080")
	return net.JoinHostPort(z.address("admin.serverAddress", "127.0.0.1"), port), checkPort(port)
}

// metricsProvider converts the keys of ZooKeeper's PrometheusMetricsProvider.
func metricsProvider(z *zooFile, _, value string) (string, error) {
	switch value {
	case "org.apache.zookeeper.metrics.impl.DefaultMetricsProvider", "org.apache.zookeeper.metrics.impl.NullMetricsProvider":
		return "", nil
	case "org.apache.zookeeper.metrics.prometheus.PrometheusMetricsProvider":
	default:
		return "", errors.New("not supported: the only provider that serves anything is org.apache.zookeeper.metrics.prometheus.PrometheusMetricsProvider")
	}
	port := cmp.Or(z.value("metricsProvider.httpPort"), "7000")
	return net.JoinHostPort(z.address("metricsProvider.httpHost", "0.0.0.0"), port), checkPort(port)
}

// store converts the location of a store of keys or certificates.
func store(z *zooFile, key, value string) (string, error) {
	flag := map[string]string{
		"ssl.keyStore.location": "tls-cert", "ssl.trustStore.location": "tls-ca",
		"ssl.quorum.keyStore.location": "peer-tls-cert", "ssl.quorum.trustStore.location": "peer-tls-ca",
	}[key]
	if z.given(flag) {
		return value, nil
	}
	return value, checkStore(value, z.value(strings.TrimSuffix(key, "location")+"type"))
}

func enforcedSchemes(z *zooFile, _, _ string) (string, error) {
	switch {
	case z.value("sessionRequireClientSASLAuth") == "true":
		return proto.SchemeSASL, nil
	case z.value("enforce.auth.enabled") != "true":
		return "", nil
	}
	schemes := z.value("enforce.auth.schemes")
	if schemes == "" {
		return "", errors.New("without enforce.auth.schemes")
	}
	return schemes, nil
}

func serverLine(z *zooFile, key, value string) error {
	s, err := proto.ParseServer(key, value)
	if _, client, _ := strings.Cut(value, ";"); err == nil && strings.HasPrefix(client, ":") { // for Java, the loopback address
		err = errors.New("the address for clients is empty: write 127.0.0.1, or the port alone for all addresses")
	}
	if err == nil && (s.ID == 0 || s.ID > 254) {
		err = errors.New("ids are from 1 to 254: give this server another one, and change its file myid")
	}
	z.servers = append(z.servers, s)
	return err
}

// authProvider reads the class of a provider. ZooKeeper has that for digest then even if DigestAuthenticationProvider.enabled
// is false.
func authProvider(z *zooFile, key, value string) error {
	switch strings.TrimPrefix(value, providers) {
	case "IPAuthenticationProvider", "X509AuthenticationProvider":
	case "DigestAuthenticationProvider":
		if !z.given("no-digest") {
			return z.set("no-digest", key, "false")
		}
	case "SASLAuthenticationProvider":
		if z.value("java.security.auth.login.config") == "" && !z.given("jaas") {
			return errors.New("its users are missing: name the JAAS file with java.security.auth.login.config or --jaas")
		}
	default:
		return errors.New("not supported: the providers are those of ZooKeeper for digest, ip, x509 and sasl")
	}
	return nil
}

// limit reads a number for a field of the configuration, where 0 would mean the default.
func limit(value string, to *int) error {
	n, err := strconv.Atoi(value)
	if err != nil || n <= 0 {
		return errors.New("it must be above 0")
	}
	*to = n
	return nil
}

// duration reads milliseconds.
func duration(value string, to *time.Duration) error {
	var n int
	err := limit(value, &n)
	if err == nil {
		*to = time.Duration(n) * time.Millisecond
	}
	return err
}

func sessionTimeout(value string, to *time.Duration) error {
	if value == "-1" {
		return nil
	}
	return duration(value, to)
}
