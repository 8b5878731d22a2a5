package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// fromZooEnv returns the options of serve with flags and ZOO_ variables.
func fromZooEnv(t *testing.T, env map[string]string, flags ...string) (*serveOptions, error) {
	t.Helper()
	var o serveOptions
	var c cobra.Command
	o.define(&c)
	check1(t, c.ParseFlags(flags))
	if env["ZOO_CONF_DIR"] == "" {
		env["ZOO_CONF_DIR"] = t.TempDir()
	}
	return &o, readZooEnv(func(name string) string { return env[name] }, c.Flags(), &o.config)
}

// TestZooEnvDefaults: without variables the server is that of ZooKeeper's image: standalone, on
// port 2181 of all addresses, with its data in /data.
func TestZooEnvDefaults(t *testing.T) {
	o, err := fromZooEnv(t, map[string]string{})
	check1(t, err)
	c := o.config
	if c.DataDir != "/data" || c.ClientAddr != ":2181" || c.TickTime != 2*time.Second || c.Limits.MaxConnectionsPerAddress != 60 ||
		o.peers != "" || c.Features.AllowSingleVoter || o.words != "srvr" || o.admin.addr != "127.0.0.1:8080" {
		t.Errorf("%+v, peers %q, words %q, admin %q", c, o.peers, o.words, o.admin.addr)
	}
}

// TestZooEnvCluster: each variable does what it does in ZooKeeper's image.
func TestZooEnvCluster(t *testing.T) {
	data := t.TempDir()
	env := map[string]string{
		"ZOO_MY_ID": "2", "ZOO_DATA_DIR": data, "ZOO_TICK_TIME": "500", "ZOO_SYNC_LIMIT": "6", "ZOO_MAX_CLIENT_CNXNS": "0",
		"ZOO_STANDALONE_ENABLED": "false", "ZOO_ADMINSERVER_ENABLED": "false", "ZOO_4LW_COMMANDS_WHITELIST": "srvr, ruok",
		"ZOO_SERVERS":   "server.1=a:2888:3888;2181 server.2=b:2888:3888;2182  server.3=c:2888:3888:observer;2181",
		"ZOO_CFG_EXTRA": "maxSessionTimeout=60000 reconfigEnabled=true",
	}
	o, err := fromZooEnv(t, env)
	check1(t, err)
	c := o.config
	if want := "1=a:2888;:2181,2=b:2888;:2182,3=c:2888:observer;:2181"; o.peers != want {
		t.Errorf("members %q, not %q", o.peers, want)
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
	o, err = fromZooEnv(t, env)
	check1(t, err)
	if o.config.ID != 2 || o.config.TickTime != 900*time.Millisecond || o.peers != "1=a:1,2=b:1,3=c:1" {
		t.Errorf("%+v, members %q", o.config, o.peers)
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
