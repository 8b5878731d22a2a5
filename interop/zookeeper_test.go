//go:build interop

package interop

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Where Debian's packages zookeeper and libslf4j-java put their jars. The
// manifest of the first names what else it needs, but for the parts of Netty
// that TLS takes.
const (
	zookeeperJar = "/usr/share/java/zookeeper.jar"
	slf4jJar     = "/usr/share/java/slf4j-simple.jar"
	nettyJars    = "/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar"
)

// startZooKeeper starts Debian's ZooKeeper, standalone, on a port of its own
// with an empty data directory, and stops it when the test ends. props are
// JVM system properties, cfg is what zoo.cfg has beyond the defaults or
// instead of them.
func startZooKeeper(t testing.TB, props, cfg map[string]string) (addr string, pid int) {
	t.Helper()
	addr, pid = launchZooKeeper(t, props, cfg)
	waitZooKeeper(t, addr)
	return addr, pid
}

// launchZooKeeper is startZooKeeper without the wait until it serves.
func launchZooKeeper(t testing.TB, props, cfg map[string]string) (addr string, pid int) {
	t.Helper()
	if _, err := os.Stat(zookeeperJar); err != nil {
		t.Fatalf("this test needs a real ZooKeeper: %v (interop/setup.sh installs it)", err)
	}
	dir := t.TempDir()
	_, port, _ := net.SplitHostPort(freeAddr(t))
	all := map[string]string{
		"dataDir":            filepath.Join(dir, "data"),
		"clientPort":         port,
		"clientPortAddress":  "127.0.0.1",
		"admin.enableServer": "false",
	}
	maps.Copy(all, cfg)
	var conf bytes.Buffer
	for _, k := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&conf, "%s=%s\n", k, all[k])
	}
	confFile := filepath.Join(dir, "zoo.cfg")
	if err := os.WriteFile(confFile, conf.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	logFile, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer logFile.Close()

	args := []string{
		"-Xmx1000m", // the heap that zkServer.sh gives
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
	}
	for _, k := range slices.Sorted(maps.Keys(props)) {
		args = append(args, "-D"+k+"="+props[k])
	}
	args = append(args, "-cp", zookeeperJar+":"+slf4jJar+":"+nettyJars,
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", confFile)
	cmd := exec.Command("java", args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(logFile.Name())
			t.Logf("the log of ZooKeeper at %s ends with:\n%s", addr, text[max(0, len(text)-4000):])
		}
	})
	return net.JoinHostPort(all["clientPortAddress"], all["clientPort"]), cmd.Process.Pid
}

// waitZooKeeper waits until the server at addr serves clients.
func waitZooKeeper(t testing.TB, addr string) {
	t.Helper()
	var last string
	patience := 20 * time.Millisecond
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		// ZooKeeper fails on a word that comes while it loads its tree, and then
		// neither answers nor closes: ask again soon, but let a slow one answer.
		answer, err := fourLetterWord(addr, "srvr", patience)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			patience = min(2*patience, 5*time.Second)
		}
		if err == nil && strings.Contains(answer, "Mode:") {
			return
		}
		last = fmt.Sprintf("%q, %v", answer, err)
	}
	t.Fatalf("ZooKeeper at %s does not serve; srvr gives %s", addr, last)
}

// fourLetterWord sends one and returns the whole answer.
func fourLetterWord(addr, word string, timeout time.Duration) (string, error) {
	c, err := net.DialTimeout("tcp", addr, timeout)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(timeout))
	if _, err := io.WriteString(c, word); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}

// freeAddr is a loopback address that nothing listened on a moment ago.
func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
