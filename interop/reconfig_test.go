//go:build interop

package interop

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestClusterReconfig changes the members with ZooKeeper's shell, through a follower.
func TestClusterReconfig(t *testing.T) {
	t.Parallel()
	enabled := []string{"--reconfig", "--super-digest", withSuper["zookeeper.DigestAuthenticationProvider.superDigest"]}
	e := startEnsemble(t, 3, enabled...)
	peer, clients := freeAddr(t), freeAddr(t)
	fourth := execLockkeeper(t, append(enabled, "--id", "4", "--peer-listen", peer, "--listen", clients)...) // waits to be added
	follower := (e.leader() + 1) % 3
	leaves := (e.leader() + 2) % 3
	host, port, _ := strings.Cut(peer, ":")
	script := []string{
		"config -w",
		fmt.Sprintf("reconfig -remove %d", leaves+1),
		"addauth digest super:secret",
		fmt.Sprintf(`reconfig -add "server.4=%s:%s:3888;%s"`, host, port, clients),
		fmt.Sprintf("reconfig -remove %d", leaves+1),
		"reconfig -v 1 -remove 4",
		"config -c",
		"quit",
	}
	cmd := javaCommand("-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", zk39.classpath(t),
		"org.apache.zookeeper.ZooKeeperMain", "-waitforconnection", "-timeout", "30000", "-server", e.listen[follower])
	cmd.Stdin = strings.NewReader(strings.Join(script, "\n") + "\n")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stuck := time.AfterFunc(clientDeadline, func() { cmd.Process.Kill() })
	defer stuck.Stop()
	out, _ := cmd.CombinedOutput() // its exit code is that of a command that fails
	text := string(out)
	for _, want := range []string{
		"server.1=", "Insufficient permission", "type:NodeDataChanged path:/zookeeper/config",
		"server.4=" + peer, "version No is not valid",
	} {
		_, rest, ok := strings.Cut(text, want)
		if !ok {
			t.Fatalf("%q is missing or in the wrong place in\n%s", want, out)
		}
		text = rest
	}
	if n := strings.Count(string(out), "Committed new configuration:"); n != 2 || strings.Contains(string(out), "Exception") {
		t.Errorf("%d changes:\n%s", n, out)
	}
	select {
	case <-fourth.stderr.match:
	case <-time.After(startDeadline):
		t.Error("the added server does not serve")
	}
	gone := e.procs[leaves]
	gone.quiet = true
	select {
	case <-gone.exited:
		if text := gone.stderr.String(); gone.state.ExitCode() != 1 || !strings.Contains(text, fmt.Sprintf("lockkeeper: server %d was removed from its cluster; ", leaves+1)) {
			t.Errorf("exit code %d: %s", gone.state.ExitCode(), text)
		}
	case <-time.After(startDeadline):
		t.Error("the removed server is still running")
	}
}

// TestClusterReadOnly checks that ZooKeeper's own client can read from a server without a
// majority, and gets its session back when there is a majority again.
func TestClusterReadOnly(t *testing.T) {
	t.Parallel()
	classpath := must(javaClients())(t)
	e := startEnsemble(t, 3, "--read-only")
	outcomes := runJava(t, classpath, "ReadOnlyCases", map[string]func(){
		"kill the others": func() {
			e.kill(1)
			e.kill(2)
		},
		"start one": func() {
			e.launch(1)
			e.await()
		},
	}, e.listen[0])
	checkCases(t, outcomes, "read-only")
}

// TestConfigShown: what three files name is shown in /zookeeper/config, and by config -c of
// ZooKeeper's shell, as three ZooKeepers with such files show it.
func TestConfigShown(t *testing.T) {
	t.Parallel()
	// shown returns what a cluster's second server shows; start starts server i with these lines.
	shown := func(name string, start func(lines map[string]string, i int, client string) (addr string)) (config, list string) {
		var ports []string // in the order in which they are named in what is returned
		lines := map[string]string{}
		var clients []string
		for i, form := range []string{"127.0.0.1:%s:%s;127.0.0.1:%s", "127.0.0.1:%s:%s:participant;%s", "127.0.0.1:%s:%s:observer;0.0.0.0:%s"} {
			var own []any
			for range 3 {
				_, port, _ := net.SplitHostPort(freeAddr(t))
				ports, own = append(ports, port), append(own, port)
			}
			lines[fmt.Sprintf("server.%d", i+1)] = fmt.Sprintf(form, own...)
			clients = append(clients, ports[len(ports)-1])
		}
		var at string
		for i := range 3 {
			if addr := start(lines, i, clients[i]); i == 1 {
				at = addr
			}
		}
		_, port, _ := net.SplitHostPort(at)
		waitZooKeeper(t, "127.0.0.1:"+port, nil)
		shell := func(args ...string) string {
			cmd := javaCommand(append([]string{"-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", zk39.classpath(t),
				"org.apache.zookeeper.ZooKeeperMain", "-waitforconnection", "-timeout", "30000", "-server", "127.0.0.1:" + port}, args...)...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			stuck := time.AfterFunc(clientDeadline, func() { cmd.Process.Kill() })
			defer stuck.Stop()
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, out)
			}
			text := string(out)
			for i, p := range ports {
				text = strings.ReplaceAll(text, ":"+p, fmt.Sprintf(":PORT%d", i))
			}
			return text
		}
		config = shell("config")
		config = strings.TrimSpace(config[max(0, strings.Index(config, "server.1=")):])
		list = strings.TrimSpace(shell("config", "-c"))
		return config, list[strings.LastIndex(list, "\n")+1:]
	}
	theirs, theirList := shown("ZooKeeper", func(lines map[string]string, i int, client string) string {
		dir := t.TempDir()
		cfg := merged(lines, map[string]string{"reconfigEnabled": "true", "initLimit": "10", "syncLimit": "5", "dataDir": dir, "clientPort": client, "clientPortAddress": "0.0.0.0"})
		if i == 0 {
			cfg["clientPortAddress"] = "127.0.0.1"
		}
		check(t, os.WriteFile(filepath.Join(dir, "myid"), fmt.Append(nil, i+1), 0o600))
		return launchZooKeeper(t, zk39, nil, cfg).addr
	})
	ours, ourList := shown("lockkeeper", func(lines map[string]string, i int, client string) string {
		text := "reconfigEnabled=true\ninitLimit=10\nsyncLimit=5\nclientPort=" + client + "\n"
		for key, value := range lines {
			text += key + "=" + value + "\n"
		}
		file := filepath.Join(t.TempDir(), "zoo.cfg")
		check(t, os.WriteFile(file, []byte(text), 0o600))
		return execLockkeeper(t, "--listen", "127.0.0.1:"+client, "--config", file, "--id", fmt.Sprint(i+1)).addr
	})
	if ours != theirs || ourList != theirList || !strings.HasPrefix(ourList, "100000000 ") || !strings.Contains(ourList, "127.0.0.1:PORT2") {
		t.Errorf("lockkeeper shows\n%s\n%s\nand ZooKeeper\n%s\n%s", ours, ourList, theirs, theirList)
	}
}
