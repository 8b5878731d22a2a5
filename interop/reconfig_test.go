//go:build interop

package interop

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestClusterReconfig changes the members with ZooKeeper's shell, through a follower.
func TestClusterReconfig(t *testing.T) {
	enabled := []string{"--reconfig", "--super-digest", clientSuper}
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
	cmd := exec.Command("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", zk39.classpath(t),
		"org.apache.zookeeper.ZooKeeperMain", "-waitforconnection", "-timeout", "30000", "-server", e.listen[follower])
	cmd.Stdin = strings.NewReader(strings.Join(script, "\n") + "\n")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stuck := time.AfterFunc(javaLimit, func() { cmd.Process.Kill() })
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
		if text := gone.stderr.String(); gone.state.ExitCode() != 1 || !strings.Contains(text, fmt.Sprintf("lockkeeper: server %d was removed from its cluster: ", leaves+1)) {
			t.Errorf("exit code %d: %s", gone.state.ExitCode(), text)
		}
	case <-time.After(startDeadline):
		t.Error("the removed server is still running")
	}
}

// TestClusterReadOnly checks that ZooKeeper's own client can read from a server without a
// majority, and gets its session back when there is a majority again.
func TestClusterReadOnly(t *testing.T) {
	classpath, err := javaClients()
	if err != nil {
		t.Fatal(err)
	}
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
