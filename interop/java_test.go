//go:build interop

package interop

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// javaCommand returns a command that starts quickly, because few of these programs run long.
func javaCommand(args ...string) *exec.Cmd {
	return exec.Command("java", append([]string{"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"}, args...)...)
}

// compileJava compiles sources into a subdirectory of scratch.
func compileJava(name, jars string, sources ...string) (string, error) {
	dir := filepath.Join(scratch, "classes", name)
	javac := exec.Command("javac", append([]string{"-proc:none", "-d", dir, "-cp", jars}, sources...)...)
	if out, err := javac.CombinedOutput(); err != nil {
		return "", fmt.Errorf("javac: %w\n%s", err, out)
	}
	return dir, nil
}

// javaClients returns the class path of the programs in clients/java.
var javaClients = sync.OnceValues(func() (string, error) {
	jars, err := jarsOf("zookeeper", "clients/java/pom.xml")
	if err != nil {
		return "", err
	}
	sources, err := filepath.Glob("clients/java/*.java")
	if err != nil {
		return "", err
	}
	classes, err := compileJava("java", jars, sources...)
	return classes + ":" + jars, err
})

// testJava runs a program of clients/java against both servers. cases are the names of
// its cases.
func testJava(t *testing.T, class string, cases ...string) {
	classpath := must(javaClients())(t)
	eachServer(t, zk39, javaTick, func(t *testing.T, server *testServer) {
		wire := startCutter(t, server.addr)
		restart := func() { server.stopBehind(wire); server.startBehind(wire) }
		checkCases(t, runJava(t, classpath, class, map[string]func(){"restart": restart}, wire.addr), cases...)
	})
}

// javaTick is the tick time of the servers of Java programs.
const javaTick = 250 * time.Millisecond

// runJava runs a program in Java as runProgram does.
func runJava(t *testing.T, classpath, class string, do map[string]func(), args ...string) map[string]string {
	t.Helper()
	return runProgram(t, javaCommand(append([]string{"-Xmx256m",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", classpath, class}, args...)...), do)
}

// TestCurator runs the recipes of Curator.
func TestCurator(t *testing.T) {
	testJava(t, "CuratorCases",
		"mutex-contended", "mutex-reentrant", "mutex-timeout", "mutex-revocable", "mutex-killed-session",
		"read-write-lock", "semaphore", "semaphore-shared-count", "semaphore-mutex", "multi-lock",
		"leader-latch", "leader-selector", "cache", "cache-restart", "persistent-node", "persistent-ttl-node",
		"barrier", "double-barrier", "shared-count", "atomic-long", "queue", "group-member",
		"container-parents", "protected-create", "transaction", "namespace", "background", "watchers")
}

// TestJavaClient tests ZooKeeper's own client.
func TestJavaClient(t *testing.T) {
	testJava(t, "ClientCases",
		"create-modes", "create-errors", "set-get", "delete", "parent-stat", "large-data", "children",
		"one-shot-watches", "default-watcher", "persistent-watch", "recursive-watch", "remove-watches",
		"multi", "multi-errors", "multi-read", "async", "async-order",
		"acl", "digest", "super", "auth-failed", "who-am-i",
		"get-ephemerals", "all-children-number", "get-config", "reconfig", "chroot",
		"session-timeout", "read-only-flag", "resume", "wrong-password", "close", "expiry", "ttl-and-container",
		"reconnect", "many-watches", "restart", "delete-recursive", "netty")
}

// TestClusterJava runs Curator's lock and ZooKeeper's own client while the leader of
// three servers is killed.
func TestClusterJava(t *testing.T) {
	classpath := must(javaClients())(t)
	e := startEnsemble(t, 3)
	down := 0
	outcomes := runJava(t, classpath, "ClusterCases", map[string]func(){
		"kill leader": func() {
			down = e.leader()
			e.kill(down)
		},
		"start": func() {
			e.launch(down)
			e.await()
		},
	}, e.addrs())
	checkCases(t, outcomes, "mutex", "watches")
	e.finish()
}
