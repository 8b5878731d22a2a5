package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper"
)

// readZooEnv configures a server as the entry point of ZooKeeper's container image does: by the
// file zoo.cfg in $ZOO_CONF_DIR or, if there is none, by one that it makes up from ZOO_ variables, and by
// the properties in $SERVER_JVMFLAGS and $JVMFLAGS. $ZOO_MY_ID is the id of this server, unless there is a
// file myid. It logs what it does not read.
func readZooEnv(environ []string, flags *pflag.FlagSet, cfg *lockkeeper.Config) error {
	unread := variablesIn(environ)
	getenv := func(name string) string {
		defer delete(unread, name)
		return unread[name]
	}
	dir := cmp.Or(getenv("ZOO_CONF_DIR"), "/conf")
	z := &zooFile{path: filepath.Join(dir, "zoo.cfg"), flags: flags, cfg: cfg, id: cmp.Or(getenv("ZOO_MY_ID"), "1")}
	var err error
	if _, e := os.Stat(z.path); e == nil {
		z.keys, err = zooKeys(z.path)
	} else {
		z.path = "the ZOO_ variables"
		z.keys, err = zooParse(z.path, zooEnvFile(getenv))
	}
	if err != nil {
		return err
	}
	if err := z.properties(getenv); err != nil {
		return err
	}
	warnOfZooVariables(unread, cfg.Logger)
	for _, name := range []string{"java.env", "zookeeper-env.sh"} { // scripts, which may set JVMFLAGS
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); err == nil {
			cfg.Logger.Warn("a script that ZooKeeper's image runs is not read: put what it sets into the environment", "file", file)
		}
	}
	return z.apply()
}

func variablesIn(environ []string) map[string]string {
	all := map[string]string{}
	for _, text := range environ {
		name, value, _ := strings.Cut(text, "=")
		all[name] = value
	}
	return all
}

// zooVariables matches what configures the server in ZooKeeper's image: variables of its entry point, of
// zkServer.sh and of Java.
var zooVariables = regexp.MustCompile(`^(ZOO_.*|ZOOCFG.*|ZOOMAIN|JMX.*|ZK_SERVER_HEAP|(SERVER_)?JVMFLAGS|JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS|_JAVA_OPTIONS)$`)

// warnOfZooVariables logs those of the variables that would configure the server in ZooKeeper's image.
func warnOfZooVariables(unread map[string]string, log *slog.Logger) {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(unread)) {
		if value := unread[name]; value != "" && zooVariables.MatchString(name) && !ofService(name, value) {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		log.Warn("variables of ZooKeeper's image that are not read have no effect", "variables", strings.Join(names, ", "))
	}
}

// bareProperties are the keys that ZooKeeper gets only as properties of the JVM with just that name. In its
// zoo.cfg they have no effect.
var bareProperties = []string{
	"jute.maxbuffer", "java.security.auth.login.config", "readonlymode.enabled", "znode.container.checkIntervalMs", "znode.container.maxPerMinute",
}

// noProperties are the keys that ZooKeeper gets only from zoo.cfg; those that end with a dot stand for all
// that begin so. Each other key is, with the prefix zookeeper., a property of the JVM, too.
var noProperties = []string{
	"autopurge.", "clientPort", "clientPortAddress", "clientPortListenBacklog", "connectToLearnerMasterLimit", "dataDir", "dataLogDir",
	"dynamicConfigFile", "electionAlg", "group.", "initLimit", "localSessionsEnabled", "localSessionsUpgradingEnabled", "maxClientCnxns",
	"maxSessionTimeout", "metricsProvider.", "minSessionTimeout", "observerMasterPort", "peerType", "portUnification", "quorum.auth.",
	"quorumListenOnAllIPs", "reconfigEnabled", "secureClientPort", "secureClientPortAddress", "server.", "sslQuorum", "sslQuorumReloadCertFiles",
	"standaloneEnabled", "syncEnabled", "syncLimit", "tickTime", "weight.",
}

// propertyKey returns the key of zoo.cfg that a property of the JVM is, or "".
func propertyKey(property string) string {
	if slices.Contains(bareProperties, property) {
		return property
	}
	key, ok := strings.CutPrefix(property, zooPrefix)
	known := slices.ContainsFunc(zooTable, func(r zooRow) bool { return r.matches(key) })
	if !ok || !known || slices.Contains(bareProperties, key) ||
		slices.ContainsFunc(noProperties, func(n string) bool { return key == n || strings.HasSuffix(n, ".") && strings.HasPrefix(key, n) }) {
		return ""
	}
	return key
}

// properties adds to the keys what the flags for Java say, -Dzookeeper.KEY=VALUE. As in ZooKeeper, the file
// takes precedence over them, except for bareProperties. It logs flags that mean nothing to a server here.
func (z *zooFile) properties(getenv func(string) string) error {
	z.places = map[string]string{}
	given := map[string]string{}
	for _, variable := range []string{"SERVER_JVMFLAGS", "JVMFLAGS"} { // Java takes the last value, and gets them so
		var unread []string
		for _, flag := range strings.Fields(getenv(variable)) { // zkServer.sh knows no quotes either
			name, value, _ := strings.Cut(flag, "=")
			property, isProperty := strings.CutPrefix(name, "-D")
			key := propertyKey(property)
			if !isProperty || key == "" {
				unread = append(unread, name) // without its value, which may be a password
				continue
			}
			if strings.Trim(value, `"'`) != value {
				return usageError{fmt.Errorf("%s: %s: its value has a quotation mark at an end, which zkServer.sh gives to Java as it is: leave them out", variable, property)}
			}
			given[key], z.places[key] = value, variable
		}
		if len(unread) > 0 {
			z.cfg.Logger.Warn("flags for Java that are not read have no effect", "variable", variable, "flags", strings.Join(unread, " "))
		}
	}
	for key, value := range given {
		if _, has := z.keys[key]; has && !slices.Contains(bareProperties, key) {
			z.cfg.Logger.Warn("a property of the JVM has no effect, since its key is in the configuration file", "variable", z.places[key], "key", key, "file", z.path)
			delete(z.places, key)
			continue
		}
		delete(z.keys, key)
		z.keys[zooPrefix+key] = value
	}
	return nil
}

// zooEnvFile returns the zoo.cfg that the image of ZooKeeper 3.9 makes from the variables. Those without a
// default here set keys that a server ignores.
func zooEnvFile(getenv func(string) string) []byte {
	var b strings.Builder
	for _, v := range []struct{ key, name, absent string }{
		{"dataDir", "ZOO_DATA_DIR", "/data"},
		{"dataLogDir", "ZOO_DATA_LOG_DIR", ""},
		{"tickTime", "ZOO_TICK_TIME", "2000"},
		{"initLimit", "ZOO_INIT_LIMIT", ""},
		{"syncLimit", "ZOO_SYNC_LIMIT", "2"},
		{"autopurge.snapRetainCount", "ZOO_AUTOPURGE_SNAPRETAINCOUNT", ""},
		{"autopurge.purgeInterval", "ZOO_AUTOPURGE_PURGEINTERVAL", ""},
		{"maxClientCnxns", "ZOO_MAX_CLIENT_CNXNS", "60"},
		{"standaloneEnabled", "ZOO_STANDALONE_ENABLED", "true"},
		{"admin.enableServer", "ZOO_ADMINSERVER_ENABLED", "true"},
		{"4lw.commands.whitelist", "ZOO_4LW_COMMANDS_WHITELIST", ""},
	} {
		if value := cmp.Or(getenv(v.name), v.absent); value != "" {
			fmt.Fprintf(&b, "%s=%s\n", v.key, value)
		}
	}
	for _, line := range strings.Fields(cmp.Or(getenv("ZOO_SERVERS"), "server.1=localhost:2888:3888;2181") + " " + getenv("ZOO_CFG_EXTRA")) {
		fmt.Fprintln(&b, line)
	}
	return []byte(b.String())
}
