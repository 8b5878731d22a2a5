package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/proto"
)

// A zoo.cfg is ZooKeeper's configuration file (QuorumPeerConfig): a key and a
// value on each line. Its keys fall into four: those that are a flag here,
// those that are a field of the configuration, those that mean nothing here,
// and those that would promise something that is not kept, which are refused.

// zooIgnored are keys without a meaning here: of how ZooKeeper's servers elect a
// leader and wait for one that lags (here it catches up for as long as that takes),
// of its own files and threads, and of its other ports.
var zooIgnored = []string{
	"initLimit", "connectToLearnerMasterLimit", "electionAlg", "cnxTimeout", "leaderServes", "syncEnabled",
	"observerMasterPort", "localSessionsEnabled", "localSessionsUpgradingEnabled",
	"dataLogDir", "snapCount", "preAllocSize", "txnLogSizeLimitInKb", "autopurge.", "fsync.warningthresholdms", "globalOutstandingLimit",
	"serverCnxnFactory", "clientPortListenBacklog", "tcpKeepAlive", "clientTcpKeepAlive", "admin.", "metricsProvider.",
	"ssl.hostnameVerification", "digest.enabled", "closeSessionTxn.enabled", "znode.container.maxPerMinute",
}

// zooAlike are keys of which one value is how it is here anyway; any other
// would not be kept.
var zooAlike = map[string][]string{
	"forceSync":                             {"yes"},
	"skipACL":                               {"no"},
	"ssl.quorum.hostnameVerification":       {"true"},
	"ssl.quorum.clientHostnameVerification": {"false"},
	"ssl.quorum.clientAuth":                 {"need"},
	"ssl.quorum.crl":                        {"false"},
	"ssl.quorum.ocsp":                       {"false"},
	"ssl.quorum.keyStore.password":          {""},
	"ssl.quorum.keyStore.passwordPath":      {""},
	"ssl.quorum.trustStore.password":        {""},
	"ssl.quorum.trustStore.passwordPath":    {""},
	"sslQuorumReloadCertFiles":              {"false"},
	"portUnification":                       {"false"},
	"sessionRequireClientSASLAuth":          {"false"},
	"client.portUnification":                {"false"},
	"authProvider.x509":                     {"org.apache.zookeeper.server.auth.X509AuthenticationProvider"},
	"ssl.authProvider":                      {"x509"},
	"ssl.clientHostnameVerification":        {"false"},
	"ssl.crl":                               {"false"},
	"ssl.ocsp":                              {"false"},
	"ssl.keyStore.password":                 {""},
	"ssl.keyStore.passwordPath":             {""},
	"ssl.trustStore.password":               {""},
	"ssl.trustStore.passwordPath":           {""},
	"client.certReload":                     {"false"},
}

// readZooCfg reads a zoo.cfg into flags that were not given, and into cfg where
// there is no flag. Keys that nobody knows are logged.
func readZooCfg(path string, flags *pflag.FlagSet, cfg *lockkeeper.Config) error {
	keys, err := zooKeys(path)
	if err != nil {
		return err
	}
	bad := func(key string, err error) error {
		return usageError{fmt.Errorf("%s: %s=%s: %w", path, key, keys[key], err)}
	}
	given := func(name string) bool {
		from, _ := sourceOf(flags.Lookup(name))
		return from > byFile
	}
	set := func(name, value string) error {
		if given(name) {
			return nil
		}
		return setFrom(flags.Lookup(name), byFile, "--"+name, value)
	}
	number := func(value string, to *int) error {
		n, err := strconv.ParseUint(value, 0, 31) // 0xfffff is a number to Java too
		if err == nil {
			*to = int(n)
		}
		return err
	}
	ms := func(value string, to *time.Duration) error {
		var n int
		if value == "-1" { // the default, to ZooKeeper
			return nil
		}
		err := number(value, &n)
		if err == nil {
			*to = time.Duration(n) * time.Millisecond
		}
		return err
	}
	boolean := func(value string) error {
		if value != "true" && value != "false" {
			return errors.New("neither true nor false")
		}
		return nil
	}
	var servers []proto.QuorumServer
	syncLimit := 0 // ticks
	tlsPeers := keys["sslQuorum"] == "true"
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		value, name := keys[key], strings.TrimPrefix(key, "zookeeper.")
		var err error
		switch {
		case name == "tickTime":
			err = set("tick-time", value+"ms")
		case name == "syncLimit":
			err = number(value, &syncLimit)
		case name == "dataDir":
			err = set("data", value)
			if !given("data") && !given("memory") && err == nil {
				err = notZooKeepers(value)
			}
		case name == "clientPort":
			if _, err = strconv.ParseUint(value, 10, 16); err == nil {
				err = set("listen", net.JoinHostPort(keys["clientPortAddress"], value))
			}
		case name == "clientPortAddress": // with clientPort
		case name == "secureClientPort":
			if _, err = strconv.ParseUint(value, 10, 16); err != nil {
				break
			}
			if err = set("tls-listen", net.JoinHostPort(keys["secureClientPortAddress"], value)); err == nil && keys["clientPort"] == "" {
				err = set("listen", "") // no other port, as in ZooKeeper
			}
		case name == "secureClientPortAddress":
			if keys["secureClientPort"] == "" {
				err = errors.New("without secureClientPort")
			}
		case name == "ssl.keyStore.location", name == "ssl.trustStore.location":
			flag := map[string]string{"ssl.keyStore.location": "tls-cert", "ssl.trustStore.location": "tls-ca"}[name]
			if err = set(flag, value); err == nil && !given(flag) {
				err = onlyPEM(value, keys[strings.TrimSuffix(key, "location")+"type"])
			}
		case name == "ssl.keyStore.type", name == "ssl.trustStore.type": // with the location
		case name == "ssl.clientAuth":
			err = set("tls-client-auth", cmp.Or(strings.ToLower(value), "need"))
		case name == "X509AuthenticationProvider.superUser":
			err = set("x509-super-user", value)
		case name == "maxClientCnxns":
			err = set("max-client-cnxns", value)
		case name == "DigestAuthenticationProvider.superDigest":
			err = set("super-digest", value)
		case name == "DigestAuthenticationProvider.enabled":
			err = set("no-digest", strconv.FormatBool(!strings.EqualFold(value, "true")))
		case name == "enforce.auth.enabled":
			if strings.EqualFold(value, "true") {
				schemes := cmp.Or(keys["enforce.auth.schemes"], keys["zookeeper.enforce.auth.schemes"])
				if err = set("enforce-auth", schemes); schemes == "" {
					err = errors.New("without enforce.auth.schemes")
				}
			}
		case name == "enforce.auth.schemes": // with enforce.auth.enabled
		case name == "DigestAuthenticationProvider.digestAlg":
			err = set("digest-algorithm", value)
		case name == "4lw.commands.whitelist":
			err = set("4lw", value)
		case name == "extendedTypesEnabled":
			err = set("no-ttl", strconv.FormatBool(value != "true"))
		case name == "enforceQuota":
			err = set("enforce-quota", strconv.FormatBool(strings.EqualFold(value, "true"))) // as Java reads it
		case name == "readonlymode.enabled":
			err = set("read-only", strconv.FormatBool(strings.EqualFold(value, "true")))
		case name == "reconfigEnabled":
			err = set("reconfig", strconv.FormatBool(strings.EqualFold(value, "true")))
		case name == "maxCnxns":
			err = number(value, &cfg.MaxConnections)
		case name == "jute.maxbuffer":
			if err = number(value, &cfg.MaxFrameBytes); cfg.MaxFrameBytes > lockkeeper.MaxFrameLimit {
				err = fmt.Errorf("the most is %d", lockkeeper.MaxFrameLimit)
			}
		case name == "minSessionTimeout":
			err = ms(value, &cfg.MinSessionTimeout)
		case name == "maxSessionTimeout":
			err = ms(value, &cfg.MaxSessionTimeout)
		case name == "nio.sessionlessCnxnTimeout":
			err = ms(value, &cfg.HandshakeTimeout)
		case name == "znode.container.checkIntervalMs":
			err = ms(value, &cfg.ContainerCheckInterval)
		case strings.HasPrefix(name, "server."):
			var s proto.QuorumServer
			if s, err = proto.ParseServer(name, value); err == nil && (s.ID == 0 || s.ID > 254) {
				err = errors.New("ids are from 1 to 254")
			}
			servers = append(servers, s)
		case name == "standaloneEnabled":
			if err = boolean(value); err == nil {
				err = set("allow-single-voter", strconv.FormatBool(value == "false"))
			}
		case name == "sslQuorum":
			err = boolean(value)
		case name == "peerType":
			if value != "observer" && value != "participant" { // the server's line says it too, and counts
				err = errors.New("neither observer nor participant")
			}
		case name == "quorumListenOnAllIPs":
			err = set("peer-all-ips", strconv.FormatBool(value == "true"))
		case strings.HasPrefix(name, "ssl.quorum.") && !tlsPeers: // of a port that speaks no TLS
		case name == "ssl.quorum.keyStore.location", name == "ssl.quorum.trustStore.location":
			flag := map[string]string{"ssl.quorum.keyStore.location": "peer-tls-cert", "ssl.quorum.trustStore.location": "peer-tls-ca"}[name]
			if err = set(flag, value); err == nil && !given(flag) {
				err = onlyPEM(value, keys[strings.TrimSuffix(key, "location")+"type"])
			}
		case name == "ssl.quorum.keyStore.type", name == "ssl.quorum.trustStore.type": // with the location
		case strings.HasPrefix(name, "group."), strings.HasPrefix(name, "weight."):
			err = errors.New("not supported: every member that votes has one vote")
		case slices.Contains(zooAlike[name], value):
		case slices.ContainsFunc(zooIgnored, func(k string) bool { return k == name || strings.HasSuffix(k, ".") && strings.HasPrefix(name, k) }):
		case strings.HasPrefix(name, "ssl.") && strings.Contains(name, ".password"):
			err = errors.New("a store in PEM form needs no password here, and a key that does cannot be read")
		case zooAlike[name] != nil, strings.HasPrefix(name, "authProvider"), strings.HasPrefix(name, "ssl."),
			strings.HasPrefix(name, "quorum.auth."), name == "requireClientAuthScheme":
			err = errors.New("not supported")
		default:
			cfg.Logger.Warn("a key of the configuration file means nothing here", "file", path, "key", key)
		}
		if err != nil {
			return bad(key, err)
		}
	}
	if syncLimit > 0 {
		if err := set("election-timeout", (time.Duration(syncLimit) * cfg.TickTime).String()); err != nil {
			return bad("syncLimit", err)
		}
	}
	if tlsPeers && (flags.Lookup("peer-tls-cert").Value.String() == "" || flags.Lookup("peer-tls-ca").Value.String() == "") {
		return bad("sslQuorum", errors.New("without ssl.quorum.keyStore.location and ssl.quorum.trustStore.location"))
	}
	if given("peers") || given("join") {
		return nil
	}
	id := ""
	if given("id") {
		id = flags.Lookup("id").Value.String()
	}
	return zooServers(path, id, servers, keys, set)
}

// zooServers makes this server a member if the file lists a cluster: a single
// server that votes is none, unless standaloneEnabled=false
// (QuorumPeerConfig.parseDynamicConfig). The file myid of the data directory
// says which of the servers this is.
func zooServers(path, id string, servers []proto.QuorumServer, keys map[string]string, set func(name, value string) error) error {
	fail := func(format string, args ...any) error {
		return usageError{fmt.Errorf("%s: %w", path, fmt.Errorf(format, args...))}
	}
	voters := 0
	var peers []string
	for _, s := range servers {
		peer := fmt.Sprintf("%d=%s", s.ID, s.Addr)
		if s.Observer {
			peer += ":observer"
		} else {
			voters++
		}
		peers = append(peers, peer)
	}
	alone := keys["standaloneEnabled"] != "false" && voters < 2
	switch {
	case voters == 0 && !alone:
		return fail("it lists no server that votes, which standaloneEnabled=false needs")
	case voters == 0 && len(servers) > 0:
		return fail("it lists no server that votes")
	case alone && voters < len(servers):
		return fail("it lists observers and only one server that votes, which needs standaloneEnabled=false")
	case len(servers) == 0:
		return nil
	}
	if !alone {
		slices.Sort(peers)
		list := strings.Join(peers, ",")
		if _, _, err := parsePeers(list); err != nil {
			return fail("%w", err)
		}
		if err := set("peers", list); err != nil {
			return fail("%w", err)
		}
	}
	if id == "" {
		file := filepath.Join(keys["dataDir"], "myid")
		switch b, err := os.ReadFile(file); {
		case errors.Is(err, fs.ErrNotExist) && alone:
		case errors.Is(err, fs.ErrNotExist):
			return fail("it lists %d servers, and %s, which tells which of them this is, does not exist: write it, or give --id", len(servers), file)
		case err != nil:
			return fail("%w", err)
		default:
			id = strings.TrimSpace(string(b))
			if alone { // it keeps its default id
				break
			}
			if err := set("id", id); err != nil {
				return fail("%s: %q is no server id", file, id)
			}
		}
	}
	self, _ := strconv.ParseUint(id, 10, 64)
	i := slices.IndexFunc(servers, func(s proto.QuorumServer) bool { return s.ID == self })
	if i < 0 && !alone {
		return fail("there is no server.%s, as this one's myid or --id has it", id)
	}
	s := servers[max(i, 0)]
	switch _, port, _ := net.SplitHostPort(s.Client); {
	case s.Client == "":
		return nil
	case keys["clientPort"] == "":
		return set("listen", s.Client)
	case i >= 0 && port != keys["clientPort"]:
		return fail("server.%d has client port %s, but clientPort is %s", s.ID, port, keys["clientPort"])
	}
	return nil
}

// zooKeys reads the keys of a zoo.cfg, and of the file that it may have its
// servers in.
func zooKeys(path string) (map[string]string, error) {
	keys, err := zooFile(path)
	if err != nil {
		return nil, err
	}
	dynamic := keys["dynamicConfigFile"]
	delete(keys, "dynamicConfigFile")
	if dynamic == "" {
		return keys, nil
	}
	more, err := zooFile(dynamic)
	if err != nil {
		return nil, err
	}
	for key, value := range more {
		switch {
		case key == "version": // of the file
		case !strings.HasPrefix(key, "server.") && !strings.HasPrefix(key, "group.") && !strings.HasPrefix(key, "weight."):
			return nil, usageError{fmt.Errorf("%s: %s is no key of a file of servers", dynamic, key)}
		case keys[key] != "":
			return nil, usageError{fmt.Errorf("%s and %s both have %s", path, dynamic, key)}
		default:
			keys[key] = value
		}
	}
	return keys, nil
}

// zooFile reads a file of Java properties.
func zooFile(path string) (map[string]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	keys := map[string]string{}
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		i := strings.IndexAny(line, "=:")
		if i < 0 {
			return nil, usageError{fmt.Errorf("%s:%d: %q is not KEY=VALUE", path, n, line)}
		}
		keys[strings.TrimSpace(line[:i])] = strings.TrimSpace(line[i+1:])
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return keys, nil
}

// onlyPEM refuses a store of keys or certificates that is not in PEM form.
// Without a type the file's name tells it (KeyStoreFileType).
func onlyPEM(location, kind string) error {
	if kind == "" {
		kind = map[string]string{".pem": "PEM", ".jks": "JKS", ".p12": "PKCS12", ".bcfks": "BCFKS"}[filepath.Ext(location)]
	}
	switch strings.ToUpper(kind) {
	case "PEM":
		return nil
	case "":
		return errors.New("of which type the store is tells neither its name nor a key: it must be PEM")
	}
	return fmt.Errorf("a store of type %s cannot be read, only PEM: keytool and openssl make one of the other", kind)
}

// notZooKeepers refuses a directory that holds ZooKeeper's own data: a server
// that started there without it would have lost everything, to its clients.
func notZooKeepers(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "version-2")); !errors.Is(err, fs.ErrNotExist) {
		return errors.New("this directory holds ZooKeeper's own data, which lockkeeper cannot read; give another with --data")
	}
	return nil
}
