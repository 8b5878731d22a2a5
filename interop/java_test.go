//go:build interop

package interop

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The Java programs in clients use unmodified clients. They print a line for each case,
// "ok NAME" or "FAIL NAME: why". To make the test do something, they print "do WHAT", and
// read "done" from their standard input.

// javaLimit is how long a program may run.
const javaLimit = 6 * time.Minute

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

// javaServer is a server that a program can ask to be restarted.
type javaServer struct {
	name    string
	addr    string
	restart func(t testing.TB)
}

// javaServers start lockkeeper and ZooKeeper with the same settings: short ticks, TTL
// znodes, and a reaper that runs often. A case that fails on ZooKeeper is a bug in the
// program.
var javaServers = map[string]func(t testing.TB) *javaServer{
	"lockkeeper": func(t testing.TB) *javaServer {
		conf := filepath.Join(t.TempDir(), "zoo.cfg")
		text := "tickTime=250\nmaxClientCnxns=0\nextendedTypesEnabled=true\n4lw.commands.whitelist=*\nznode.container.checkIntervalMs=200\n" +
			"DigestAuthenticationProvider.superDigest=" + withSuper["zookeeper.DigestAuthenticationProvider.superDigest"] + "\n"
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l := startLockkeeper(t, "--config", conf)
		return &javaServer{"lockkeeper", l.addr, func(t testing.TB) {
			l.Stop()
			l = startLockkeeper(t, "--config", conf, "--listen", l.addr, "--data", l.dir)
		}}
	},
	"ZooKeeper": func(t testing.TB) *javaServer {
		z := startZooKeeper(t, zk39,
			merged(withTTL, withSuper, map[string]string{"znode.container.checkIntervalMs": "200"}),
			merged(anyClients, withWords, map[string]string{"tickTime": "250"}))
		return &javaServer{"ZooKeeper", z.addr, func(t testing.TB) {
			z.Kill()
			z.Restart(t)
		}}
	},
}

// eachJavaServer runs a test against both servers.
func eachJavaServer(t *testing.T, test func(*testing.T, *javaServer)) {
	for name, start := range javaServers {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // with the other server, because the tests mostly wait
			test(t, start(t))
		})
	}
}

// testJava runs a program of clients/java against both servers. cases are the names of
// its cases.
func testJava(t *testing.T, class string, cases ...string) {
	classpath, err := javaClients()
	if err != nil {
		t.Fatal(err)
	}
	eachJavaServer(t, func(t *testing.T, server *javaServer) {
		do := map[string]func(){"restart": func() { server.restart(t) }}
		checkCases(t, runJava(t, classpath, class, do, server.addr), cases...)
	})
}

// checkCases checks that all of these cases passed and that there are no others.
func checkCases(t *testing.T, outcomes map[string]string, cases ...string) {
	t.Helper()
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			if why, ended := outcomes[name]; !ended {
				t.Error("the case did not end")
			} else if why != "" {
				t.Error(why)
			}
		})
		delete(outcomes, name)
	}
	for name := range outcomes {
		t.Errorf("there is a case %s that the test does not know", name)
	}
}

// runJava runs a program until it ends. It returns by case why the case failed, or "". do
// has the actions that the program may ask for.
func runJava(t *testing.T, classpath, class string, do map[string]func(), args ...string) map[string]string {
	t.Helper()
	cmd := exec.Command("java", append([]string{"-Xmx256m", "-XX:TieredStopAtLevel=1",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", classpath, class}, args...)...)
	log := &tail{}
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(javaLimit, func() {
		cmd.Process.Signal(syscall.SIGQUIT) // a JVM then prints the stacks of its threads
		time.Sleep(time.Second)
		cmd.Process.Kill()
	})
	outcomes := map[string]string{}
	began := time.Now()
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		name, why, _ := strings.Cut(rest, ": ")
		switch {
		case verb == "do" && do[rest] != nil:
			do[rest]()
			if _, err := io.WriteString(stdin, "done\n"); err != nil {
				t.Error(err)
			}
			continue
		case verb == "ok":
			why = ""
		case verb == "FAIL" && why == "":
			why = "no reason given"
		case verb == "FAIL":
		default:
			t.Logf("%s: %s", class, lines.Text())
			continue
		}
		if _, twice := outcomes[name]; twice {
			t.Errorf("the case %s ended twice", name)
		}
		outcomes[name] = why
		t.Logf("%6d ms: %s", time.Since(began).Milliseconds(), lines.Text())
		began = time.Now()
	}
	if !stuck.Stop() {
		t.Errorf("%s was stuck after %v", class, javaLimit)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%s: %v", class, err)
	}
	if slices.ContainsFunc(slices.Collect(maps.Values(outcomes)), func(why string) bool { return why != "" }) || t.Failed() {
		t.Logf("%s, standard error:\n%s", class, log)
	}
	return outcomes
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
	classpath, err := javaClients()
	if err != nil {
		t.Fatal(err)
	}
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
