package main

import (
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

	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/tools/properties"
	"github.com/lockkeeper/lockkeeper/proto"
)

// zooFile is a zoo.cfg that is being read into flags and a configuration.
type zooFile struct {
	path    string
	keys    map[string]string // as written in the file: some may start with "zookeeper."
	flags   *pflag.FlagSet
	cfg     *lockkeeper.Config
	servers []proto.Peer
	id      string            // of this server, if there is no file myid
	places  map[string]string // where keys are from that are not in the file; nil without such
}

const zooPrefix = "zookeeper." // of system properties

// value returns the value of a key, or "".
func (z *zooFile) value(key string) string { return cmp.Or(z.keys[key], z.keys[zooPrefix+key]) }

// address returns the value of a key with an address to listen on. An empty one is this machine alone,
// and one of IPv6 may be in brackets, as for Java; without the key it is otherwise.
func (z *zooFile) address(key, otherwise string) string {
	_, plain := z.keys[key]
	_, prefixed := z.keys[zooPrefix+key]
	if !plain && !prefixed {
		return otherwise
	}
	host := z.value(key)
	if inner, ok := strings.CutPrefix(host, "["); ok && strings.HasSuffix(inner, "]") && strings.Contains(inner, ":") {
		host = strings.TrimSuffix(inner, "]")
	}
	return cmp.Or(host, "127.0.0.1")
}

var portKeys = []string{"clientPort", "secureClientPort"} // of ports for clients

// withoutPorts deletes the keys of ports for clients that are 0: there is no such port, as in ZooKeeper before 3.9. In later
// ones it is any free port, on all addresses. clientPort=0 means that here too, but only if nothing else
// names a port or an address for clients: programs that test with ZooKeeper look for the port in the output.
func (z *zooFile) withoutPorts() {
	named := z.given("tls-listen")
	for key := range z.keys {
		key = strings.TrimPrefix(key, zooPrefix)
		named = named || key == "secureClientPort" || key == "clientPortAddress" || strings.HasPrefix(key, "server.")
	}
	for _, key := range portKeys {
		if n, err := strconv.Atoi(z.value(key)); err == nil && n == 0 && named {
			delete(z.keys, key)
			delete(z.keys, zooPrefix+key)
		}
	}
}

// tlsClients reports whether there is a port where clients may use TLS.
func (z *zooFile) tlsClients() bool {
	port, too := z.flags.Lookup("tls-listen"), z.flags.Lookup("tls-on-listen")
	return port.Value.String() != "" || !z.given(port.Name) && z.value("secureClientPort") != "" ||
		too.Value.String() == "true" || !z.given(too.Name) && z.value("client.portUnification") == "true"
}

// given reports whether a flag has been set by something that takes precedence over the file.
func (z *zooFile) given(flag string) bool {
	by, _ := sourceOf(z.flags.Lookup(flag))
	return by > byFile
}

// place returns where a key is.
func (z *zooFile) place(key string) string { return cmp.Or(z.places[key], z.path) }

// set sets a flag. by is the name to use in messages about an invalid value.
func (z *zooFile) set(flag, by, value string) error {
	return setFrom(z.flags.Lookup(flag), byFile, by+" in "+z.place(by), value)
}

// readZooCfg reads a zoo.cfg. It sets flags that the user has not set and, for keys
// without a flag, fields of cfg. It logs unknown keys.
func readZooCfg(path string, flags *pflag.FlagSet, cfg *lockkeeper.Config) error {
	keys, err := zooKeys(path)
	if err != nil {
		return err
	}
	return (&zooFile{path: path, keys: keys, flags: flags, cfg: cfg}).apply()
}

// apply sets flags and fields by the keys.
func (z *zooFile) apply() error {
	path, keys, flags, cfg := z.path, z.keys, z.flags, z.cfg
	written := maps.Clone(keys)
	bad := func(key string, err error) error {
		value := "=" + written[key]
		if strings.Contains(strings.ToLower(key), "password") { // of a store, or of the user super
			value = ""
		}
		return usageError{fmt.Errorf("%s: %s%s: %w", z.place(strings.TrimPrefix(key, zooPrefix)), key, value, err)}
	}
	if err := z.normalize(cfg.Logger, bad); err != nil {
		return err
	}
	z.withoutPorts()
	rest := slices.Sorted(maps.Keys(keys))
	tlsPeers, tlsKey, tlsClients := z.value("sslQuorum") == "true", "sslQuorum", z.tlsClients()
	if !tlsPeers && z.value("portUnification") == "true" {
		tlsPeers, tlsKey = true, "portUnification"
	}
	var unused []string // keys for TLS with clients, without a port for it
	for _, row := range zooTable {
		var others []string
		if row.absent != "" && z.value(row.key) == "" {
			if err := row.read(z, row.key, row.absent); err != nil {
				return fmt.Errorf("%s is not in %s: %w", row.key, path, err)
			}
		}
		for _, key := range rest {
			name := strings.TrimPrefix(key, zooPrefix)
			switch {
			case !row.matches(name):
				others = append(others, key)
			case strings.HasPrefix(name, "ssl.quorum.") && !tlsPeers: // the peer port does not use TLS
			case strings.HasPrefix(name, "ssl.") && !strings.HasPrefix(name, "ssl.quorum.") && !tlsClients:
				unused = append(unused, key)
			default:
				if err := row.read(z, name, keys[key]); err != nil {
					return bad(key, err)
				}
			}
		}
		rest = others
	}
	if slices.Sort(unused); len(unused) > 0 {
		cfg.Logger.Warn("there is no port for clients with TLS, secureClientPort, so the keys for it have no effect", "file", path, "keys", strings.Join(unused, ", "))
	}
	for _, key := range rest {
		cfg.Logger.Warn("unknown key in the configuration file", "file", path, "key", key)
	}
	if tlsPeers && (flags.Lookup("peer-tls-cert").Value.String() == "" || flags.Lookup("peer-tls-ca").Value.String() == "") {
		return bad(tlsKey, errors.New("without ssl.quorum.keyStore.location and ssl.quorum.trustStore.location"))
	}
	if !z.given("peers") {
		if err := z.members(); err != nil {
			return err
		}
	}
	return z.complete()
}

// complete refuses a file without what ZooKeeper requires, unless flags or variables say it. A port for
// clients without TLS is opened only if something names it.
func (z *zooFile) complete() error {
	from := func(flag string) source {
		by, _ := sourceOf(z.flags.Lookup(flag))
		return by
	}
	// In ZooKeeper minSessionTimeout does not raise the longest timeout.
	longest := cmp.Or(z.cfg.Limits.MaxSessionTimeout, 20*z.cfg.TickTime)
	switch {
	case z.cfg.Limits.MinSessionTimeout > longest:
		return z.fail("minSessionTimeout must not be longer than maxSessionTimeout, which is %v", longest)
	case from("data") == byDefault && from("memory") == byDefault:
		return z.fail("it has no dataDir, and neither --data nor --memory is given")
	case from("listen") > byDefault:
	case z.flags.Lookup("tls-listen").Value.String() == "":
		return z.fail("it has no clientPort and no secureClientPort, or they are 0, and --listen is not given")
	default:
		return z.set("listen", "clientPort", "")
	}
	return nil
}

// members makes this server a cluster member if the file lists the servers of a cluster.
// A single voting server is standalone, unless standaloneEnabled=false
// (QuorumPeerConfig.parseDynamicConfig). The file myid in the data directory has the id
// of this server.
func (z *zooFile) members() error {
	voters := 0
	for _, s := range z.servers {
		if !s.Observer {
			voters++
		}
	}
	standalone := z.value("standaloneEnabled") != "false" && voters < 2
	switch {
	case voters == 0 && !standalone:
		return z.fail("it lists no voting server, which standaloneEnabled=false needs")
	case voters == 0 && len(z.servers) > 0:
		return z.fail("it lists no voting server")
	case standalone && voters < len(z.servers):
		return z.fail("it lists observers and only one voting server, which needs standaloneEnabled=false")
	case len(z.servers) == 0:
		return nil
	}
	if !standalone {
		for _, s := range z.servers {
			if err := checkPeer(s.Addr); err != nil {
				return z.fail("%w", err)
			}
			z.cfg.Peers = append(z.cfg.Peers, lockkeeper.Peer(s))
		}
		slices.SortFunc(z.cfg.Peers, func(a, b lockkeeper.Peer) int { return cmp.Compare(a.ID, b.ID) })
		annotate(z.flags.Lookup("peers"), setBy[byFile], "server.N in "+z.path)
	}
	self, err := z.self(standalone)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(z.servers, func(s proto.Peer) bool { return strconv.FormatUint(s.ID, 10) == self })
	if i < 0 && !standalone {
		return z.fail("there is no server.%s, which this server is according to myid or --id", self)
	}
	s := z.servers[max(i, 0)]
	switch _, port, _ := net.SplitHostPort(s.ClientAddr); {
	case s.ClientAddr == "", z.value("clientPort") == "" && z.given("listen"):
		return nil
	case z.value("clientPort") == "":
		return z.set("listen", fmt.Sprintf("server.%d", s.ID), s.ClientAddr)
	case i >= 0 && port != z.value("clientPort"):
		return z.fail("server.%d has client port %s, but clientPort is %s", s.ID, port, z.value("clientPort"))
	case i >= 0 && anyAddress(z.address("clientPortAddress", "")) && !z.given("listen"):
		return z.set("listen", fmt.Sprintf("server.%d", s.ID), s.ClientAddr) // it may have an address of this host
	}
	return nil
}

// anyAddress reports whether a host to listen on stands for all addresses.
func anyAddress(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// self returns the id of this server: the one that the user has given, or the one in the
// file myid. A standalone server does not need either.
func (z *zooFile) self(standalone bool) (id string, err error) {
	if z.given("id") {
		return z.flags.Lookup("id").Value.String(), nil
	}
	file := filepath.Join(z.value("dataDir"), "myid")
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && z.id != "" {
		b, err = []byte(z.id), nil
	}
	switch id = strings.TrimSpace(string(b)); {
	case errors.Is(err, fs.ErrNotExist) && standalone:
		return "", nil
	case errors.Is(err, fs.ErrNotExist):
		return "", z.fail("it lists %d servers, but %s, which has the id of this server, does not exist: create it, or give --id", len(z.servers), file)
	case err != nil:
		return "", z.fail("%w", err)
	case standalone:
		return id, nil
	}
	if z.set("id", "myid", id) != nil {
		return "", z.fail("%s: %q is not a server id", file, id)
	}
	return id, nil
}

// fail returns an error about the file as a whole.
func (z *zooFile) fail(format string, args ...any) error {
	return usageError{fmt.Errorf("%s: %w", z.path, fmt.Errorf(format, args...))}
}

// zooKeys reads the keys of a zoo.cfg, including those of its dynamic configuration file.
func zooKeys(path string) (map[string]string, error) {
	keys, err := zooLines(path)
	if err != nil {
		return nil, err
	}
	dynamic := keys["dynamicConfigFile"]
	delete(keys, "dynamicConfigFile")
	if dynamic == "" {
		return keys, nil
	}
	more, err := zooLines(dynamic)
	if err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if ofServers(key) {
			return nil, usageError{fmt.Errorf("%s: %s must be in %s, the dynamicConfigFile, with the other servers", path, key, dynamic)}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(more)) {
		switch {
		case key == "version": // of the file
		case !ofServers(key):
			return nil, usageError{fmt.Errorf("%s: %s cannot be in a file of servers", dynamic, key)}
		default:
			keys[key] = more[key]
		}
	}
	return keys, nil
}

// ofServers reports whether a key is one of those that a dynamicConfigFile has.
func ofServers(key string) bool {
	return strings.HasPrefix(key, "server.") || strings.HasPrefix(key, "group.") || strings.HasPrefix(key, "weight.")
}

func zooLines(path string) (map[string]string, error) {
	file, err := os.ReadFile(path)
	if err != nil {
		return nil, usageError{err}
	}
	return zooParse(path, file)
}

// zooParse parses Java properties. Like ZooKeeper, it trims keys and values.
func zooParse(path string, file []byte) (map[string]string, error) {
	lines, err := properties.Parse(file)
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", path, err)}
	}
	keys := map[string]string{}
	for key, value := range lines {
		keys[javaTrim(key)] = javaTrim(value)
	}
	return keys, nil
}

// javaTrim trims a text as Java's String.trim does.
func javaTrim(text string) string {
	return strings.TrimFunc(text, func(r rune) bool { return r <= ' ' })
}

// checkStore refuses a store of keys or certificates of a type that cannot be read. If kind is
// empty, the name of the file decides (KeyStoreFileType). Of the others, what is in the file
// decides how it is read, as Java does with JKS and PKCS12.
func checkStore(location, kind string) error {
	if kind == "" {
		kind = map[string]string{".pem": "PEM", ".jks": "JKS", ".p12": "PKCS12", ".bcfks": "BCFKS"}[filepath.Ext(location)]
	}
	switch strings.ToUpper(kind) {
	case "PEM", "JKS", "PKCS12":
		return nil
	case "":
		return errors.New("neither the name of the store nor another key gives its type, which must be PEM, PKCS12 or JKS")
	}
	return fmt.Errorf("a store of type %s cannot be read, only PEM, PKCS12 and JKS; keytool converts it", kind)
}

// notZooKeepers refuses a directory that holds ZooKeeper's data. A server that started
// there could not read it, and to its clients the data would be lost.
func notZooKeepers(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "version-2")); err == nil {
		return errors.New("this directory holds ZooKeeper's own data, which lockkeeper cannot read; give another one with --data")
	}
	return nil
}
