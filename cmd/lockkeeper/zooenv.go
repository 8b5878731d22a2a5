package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper"
)

// readZooEnv configures a server as the entry point of ZooKeeper's container image does: by the
// file zoo.cfg in $ZOO_CONF_DIR or, if there is none, by one that it makes up from ZOO_ variables.
// $ZOO_MY_ID is the id of this server, unless there is a file myid.
func readZooEnv(getenv func(string) string, flags *pflag.FlagSet, cfg *lockkeeper.Config) error {
	z := &zooFile{path: filepath.Join(cmp.Or(getenv("ZOO_CONF_DIR"), "/conf"), "zoo.cfg"), flags: flags, cfg: cfg, id: cmp.Or(getenv("ZOO_MY_ID"), "1")}
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
	return z.apply()
}

// zooEnvFile returns the zoo.cfg that the image of ZooKeeper 3.9 makes from the variables.
// It leaves out dataLogDir, initLimit and autopurge, which a server here ignores anyway.
func zooEnvFile(getenv func(string) string) []byte {
	var b strings.Builder
	for _, v := range []struct{ key, name, absent string }{
		{"dataDir", "ZOO_DATA_DIR", "/data"},
		{"tickTime", "ZOO_TICK_TIME", "2000"},
		{"syncLimit", "ZOO_SYNC_LIMIT", "2"},
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
