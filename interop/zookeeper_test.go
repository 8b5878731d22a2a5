//go:build interop

package interop

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
)

// zkVersion is a version of ZooKeeper to compare with.
type zkVersion string

const (
	zk38 zkVersion = "3.8" // Debian's
	zk39 zkVersion = "3.9" // Maven Central's, pinned in clients/java/pom.xml
	// With what its AdminServer and its metrics provider for Prometheus need, pinned in
	// clients/admin/pom.xml.
	zk39Admin zkVersion = "3.9 with AdminServer"
)

// classpath returns the class path of the server, the client and the shell.
func (v zkVersion) classpath(t testing.TB) string {
	t.Helper()
	if v == zk39Admin {
		jars := must(jarsOf("admin", "clients/admin/pom.xml"))(t)
		return zk39.classpath(t) + ":" + jars
	}
	if strings.Count(string(v), ".") == 2 { // a release, see TestReleases
		jars := must(jarsOf("zookeeper-"+string(v), "clients/releases/pom.xml"))(t)
		return jars
	}
	if v == zk39 {
		jars := must(jarsOf("zookeeper", "clients/java/pom.xml"))(t)
		return jars
	}
	// The packages zookeeper and libslf4j-java install their jars here. The manifest of
	// the first names all other jars except the parts of Netty that TLS needs.
	const zookeeperJar, slf4jJar = "/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar"
	const nettyJars = "/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar"
	if _, err := os.Stat(zookeeperJar); err != nil {
		t.Fatalf("this test needs a real ZooKeeper: %v (interop/setup.sh installs it)", err)
	}
	return zookeeperJar + ":" + slf4jJar + ":" + nettyJars
}

// jarsOf returns the class path of the jars that setup.sh has downloaded for a pom.xml.
func jarsOf(name, pom string) (string, error) {
	cache, err := os.UserCacheDir() // $XDG_CACHE_HOME or ~/.cache, as in setup.sh
	if err != nil {
		return "", err
	}
	content, err := os.ReadFile(pom)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "lockkeeper-interop", fmt.Sprintf("%s-%.8x", name, sha256.Sum256(content)))
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("the jars of %s are missing: %w (interop/setup.sh fetches them)", pom, err)
	}
	return filepath.Join(dir, "*"), nil
}

// realZooKeeper is a running ZooKeeper server.
type realZooKeeper struct {
	addr string
	pid  int

	cmd     *exec.Cmd
	dir     string // contains its zoo.cfg, its data and its log
	command []string
}

// startZooKeeper starts a standalone ZooKeeper on a port of its own with an empty data
// directory, and kills it at the end of the test. props are JVM system properties, and cfg
// are settings in zoo.cfg that add to or replace the defaults. Some common ones are below.
func startZooKeeper(t testing.TB, version zkVersion, props, cfg map[string]string) *realZooKeeper {
	t.Helper()
	z := launchZooKeeper(t, version, props, cfg)
	waitZooKeeper(t, z.addr, nil)
	return z
}

// launchZooKeeper is like startZooKeeper, but does not wait until the server is ready.
func launchZooKeeper(t testing.TB, version zkVersion, props, cfg map[string]string) *realZooKeeper {
	t.Helper()
	z := &realZooKeeper{dir: t.TempDir()}
	_, port, _ := net.SplitHostPort(freeAddr(t))
	all := map[string]string{
		"dataDir":            filepath.Join(z.dir, "data"),
		"clientPort":         port,
		"clientPortAddress":  "127.0.0.1",
		"admin.enableServer": "false",
	}
	maps.Copy(all, cfg)
	z.addr = net.JoinHostPort(all["clientPortAddress"], all["clientPort"])
	var conf bytes.Buffer
	for _, k := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&conf, "%s=%s\n", k, all[k])
	}
	confFile := filepath.Join(z.dir, "zoo.cfg")
	check(t, os.WriteFile(confFile, conf.Bytes(), 0o600))
	z.command = javaCommand().Args
	if os.Getenv(envPeers) != "" { // it is measured
		z.command = z.command[:1]
	}
	z.command = append(z.command,
		"-Xmx1000m", // the heap size in zkServer.sh
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
	)
	for _, k := range slices.Sorted(maps.Keys(props)) {
		z.command = append(z.command, "-D"+k+"="+props[k])
	}
	z.command = append(z.command, "-cp", version.classpath(t),
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", confFile)
	z.launch(t)
	t.Cleanup(func() {
		z.Kill()
		if t.Failed() {
			text, _ := os.ReadFile(z.logFile())
			t.Logf("the log of ZooKeeper %s at %s ends with:\n%s", version, z.addr, text[max(0, len(text)-4000):])
		}
	})
	return z
}

func (z *realZooKeeper) logFile() string { return filepath.Join(z.dir, "log") }

func (z *realZooKeeper) launch(t testing.TB) {
	t.Helper()
	log := must(os.OpenFile(z.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))(t)
	defer log.Close()
	z.cmd = exec.Command(z.command[0], z.command[1:]...)
	z.cmd.Dir = z.dir
	z.cmd.Stdout, z.cmd.Stderr = log, log
	z.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(t, z.cmd.Start())
	z.pid = z.cmd.Process.Pid
}

// Kill kills the server with SIGKILL and waits until it has ended.
func (z *realZooKeeper) Kill() {
	z.cmd.Process.Kill() // an error means that it has already ended
	z.cmd.Wait()
}

// Restart starts a killed server again, with its data and port, and waits until it is
// ready.
func (z *realZooKeeper) Restart(t testing.TB) {
	t.Helper()
	z.launch(t)
	waitZooKeeper(t, z.addr, nil)
}

// Settings of ZooKeeper that several tests use; merged combines them.
var (
	// JVM properties
	withTTL   = map[string]string{"zookeeper.extendedTypesEnabled": "true"}
	withSuper = map[string]string{ // of super:secret
		"zookeeper.DigestAuthenticationProvider.superDigest": "super:lK75jTNcA+U9vtVEw5vB51mj/w4=",
	}
	// zoo.cfg
	withWords  = map[string]string{"4lw.commands.whitelist": "*"}
	withQuotas = map[string]string{"enforceQuota": "true"}
	anyClients = map[string]string{"maxClientCnxns": "0"}
)

// merged returns all settings in one map.
func merged(settings ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, s := range settings {
		maps.Copy(all, s)
	}
	return all
}

// waitZooKeeper waits until the server at addr serves clients, with TLS if
// secure is not nil.
func waitZooKeeper(t testing.TB, addr string, secure *tls.Config) {
	t.Helper()
	var last string
	patience := 20 * time.Millisecond
	for deadline := time.Now().Add(startDeadline); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		// ZooKeeper never answers a word that it gets while it loads its tree, and does
		// not close the connection, so try again soon. But give a slow server enough time.
		answer, err := askWord(addr, secure, "srvr", patience)
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

// fourLetterWord sends a four-letter word and returns the whole answer.
func fourLetterWord(addr, word string, timeout time.Duration) (string, error) {
	return askWord(addr, nil, word, timeout)
}

// askWord is like fourLetterWord, with TLS if secure is not nil.
func askWord(addr string, secure *tls.Config, word string, timeout time.Duration) (string, error) {
	c, err := net.DialTimeout("tcp", addr, timeout)
	if err != nil {
		return "", err
	}
	if secure != nil {
		c = tls.Client(c, secure)
	}
	return rawclient.Word(c, word, timeout)
}

// freeAddr returns a loopback address whose port is reserved for servers of the test.
func freeAddr(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", testkit.Port(t))
}
