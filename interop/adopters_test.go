//go:build interop

package interop

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	envAdopters = "LOCKKEEPER_INTEROP_ADOPTERS" // a part of the name of those that TestAdopters runs, or all; the page keeps the others

	adoptersFile = "../docs/adopters.md"
)

// adopter is a project with tests that need a ZooKeeper, for docs/adopters.md.
type adopter struct {
	name string
	what string // which of its tests
	java string // how it has a ZooKeeper without us
	ours string // what is changed
	gain string // what the project would have of it, beside time
	// least is how many must pass, with either server.
	least int
	// prepare does what is no part of the measurement, and returns run, which starts servers, runs the tests and
	// returns why each has not passed, by its name, or "". If only is not nil, these are the only tests to run.
	prepare func(t *testing.T) (run func(t *testing.T, ours bool, only []string) map[string]string)
	// retry tells which tests must be run again after some have failed. Without it, all are.
	retry func(outcomes map[string]string) (only []string)
}

func adopters() []adopter {
	// Its tests of semaphores and shared counters mostly wait, for five minutes, with any server.
	curatorTests, ofCurator := mavenCuratorTests("atomic.TestDistributedAtomicLong", "barriers.TestDistributedBarrier", "leader.TestLeaderLatchCluster",
		"locks.TestInterProcessMutex", "locks.TestInterProcessReadWriteLock", "locks.TestInterProcessSemaphoreMutex", "locks.TestLockACLs")
	const packaged = "the package's TestingServer and TestingCluster"
	const noServerInJVM = "no ZooKeeper server in the JVM; tests can end sessions, aim faults at requests and cut off members"
	const noJava = "no Java, and nothing to download"
	return []adopter{
		{
			name: "kazoo 2.11.0", what: "its own tests that need a server, one after the other", least: 242,
			java: "three ZooKeepers 3.9.5, by kazoo's harness", ours: "[a plugin for pytest](../interop/clients/kazoo/lockkeeper_servers.py) with the wheel's program", gain: noJava,
			prepare: prepareKazoo, retry: failedOf,
		},
		{
			name: "Curator 5.9.0, recipes", what: "its own tests of locks, counters and barriers, and of leaders in a cluster", least: ofCurator,
			java: "curator-test, ZooKeeper 3.9.3 in the JVM", ours: packaged, gain: noServerInJVM,
			prepare: func(t *testing.T) func(*testing.T, bool, []string) map[string]string {
				return prepareCuratorTest(t, "curator", curatorTests)
			}, retry: selectFailed,
		},
		{
			name: "Flink 1.20.4, high availability", what: "its own tests of leader election and of the stores of job graphs and checkpoints", least: flinkSystem().least,
			java: "curator-test, ZooKeeper in the JVM", ours: packaged, gain: noServerInJVM,
			prepare: func(t *testing.T) func(*testing.T, bool, []string) map[string]string {
				return prepareCuratorTest(t, "flink", flinkSystem().tests)
			}, retry: selectFailed,
		},
		{
			name: "Spring Cloud Zookeeper 4.3.0, discovery", what: "[services](../interop/clients/maven/src/test/java/tests/DiscoveryTest.java) that register, are found, lose their session and come back", least: 3,
			java: "curator-test 5.9.0, ZooKeeper 3.9.3 in the JVM", ours: "an import", gain: noServerInJVM,
			prepare: func(t *testing.T) func(*testing.T, bool, []string) map[string]string {
				return prepareImport(t, "DiscoveryTest")
			}, retry: selectFailed,
		},
		{
			name: "Curator 5.9.0, as a client", what: "[locks, semaphores and counters](../interop/clients/maven/src/test/java/tests/RecipesTest.java), also in clusters that lose servers", least: 7,
			java: "curator-test, ZooKeeper 3.9.3 in the JVM", ours: "an import", gain: noServerInJVM,
			prepare: func(t *testing.T) func(*testing.T, bool, []string) map[string]string {
				return prepareImport(t, "RecipesTest")
			}, retry: selectFailed,
		},
		{
			name: "Patroni 4.1.5", what: "[steps](systems.md#clickhouse-and-patroni) of three PostgreSQL servers, with switchover, failover and lost coordination servers", least: len(patroniSteps),
			java: "three ZooKeepers 3.9.5", ours: "three processes", gain: noJava, prepare: preparePatroni,
		},
		{
			name: "node-zookeeper-client 1.1.3", what: "[a program](../interop/clients/node/program.js) that uses all of it, through lost connections and restarts", least: 15,
			java: "ZooKeeper 3.8.0", ours: "a process", gain: noJava, prepare: func(t *testing.T) func(*testing.T, bool, []string) map[string]string {
				return prepareProgram(t, nodeProgram)
			},
		},
		{
			name: "zookeeper 7.3.0, the native client for Node", what: "its own tests that need a server", least: 14,
			java: "ZooKeeper 3.8.0", ours: "the package's server", gain: noJava, prepare: prepareNativeNode,
		},
		{
			name: "the crate zookeeper-client 0.11.2", what: "[a program](../interop/clients/rust/src/main.rs) that uses all of it, through lost connections and restarts", least: 13,
			java: "ZooKeeper 3.8.0", ours: "a process", gain: "no Java", prepare: func(t *testing.T) func(*testing.T, bool, []string) map[string]string {
				return prepareProgram(t, rustProgram)
			},
		},
	}
}

func flinkSystem() system {
	return systems[slices.IndexFunc(systems, func(s system) bool { return s.pom == "flink" })]
}

// failedOf returns the names of those that have failed.
func failedOf(outcomes map[string]string) (names []string) {
	for name, why := range outcomes {
		if why != "" {
			names = append(names, name)
		}
	}
	return names
}

func whyFailed(outcomes map[string]string) string {
	var b strings.Builder
	for _, name := range failedOf(outcomes) {
		why := outcomes[name]
		fmt.Fprintf(&b, "\n%s: %s", name, why[:min(len(why), 2000)])
	}
	return b.String()
}

// prepareKazoo runs kazoo's own tests in one process, as kazoo's developers do: with kazoo's harness, which starts
// ZooKeepers, or with lockkeeper.
func prepareKazoo(t *testing.T) func(*testing.T, bool, []string) map[string]string {
	k := newKazooSuite(t)
	harness, err := filepath.Glob(clientCache(t, "kazoo-harness") + "/lib/python*/site-packages")
	if err != nil || len(harness) != 1 {
		t.Fatal(harness, err)
	}
	return func(t *testing.T, ours bool, only []string) map[string]string {
		args, env := k.withLockkeeper(t)
		if !ours {
			args, env = nil, []string{"PYTHONPATH=" + harness[0], "PYTHONWARNINGS=ignore", "ZOOKEEPER_CLASSPATH=" + zk39.classpath(t)}
		}
		if only == nil {
			only = kazooFiles(slices.Concat(kazooModules...)...)
		}
		return k.run(t, time.Hour, args, env, only)
	}
}

// prepareCuratorTest runs published tests that use curator-test, with its servers or with the look-alike.
func prepareCuratorTest(t *testing.T, pom string, tests []string) func(*testing.T, bool, []string) map[string]string {
	jars := must(jarsOf(pom, "clients/"+pom+"/pom.xml"))(t)
	changed := must(lookAlike(jars))(t)
	return func(t *testing.T, ours bool, only []string) map[string]string {
		classpath := jars
		if ours {
			classpath = changed
		}
		if only == nil {
			only = tests
		}
		return runJUnit(t, classpath, only)
	}
}

// prepareImport runs a class of the project in clients/maven: with the packages for Maven, or with curator-test, for
// which it has another import.
func prepareImport(t *testing.T, class string) func(*testing.T, bool, []string) map[string]string {
	p := newMavenProject(t, "clients/maven")
	if out, err := p.run(t, nil, "dependency:build-classpath", "-Dmdep.outputFile=target/classpath"); err != nil {
		t.Fatalf("mvn: %v\n%s", err, out)
	}
	jars := must(jarsOf("curator", "clients/curator/pom.xml"))(t)
	libraries := slices.DeleteFunc(filepath.SplitList(fileText(t, filepath.Join(p.dir, "target/classpath"))), func(jar string) bool {
		return strings.Contains(jar, "/org/junit/") // the console, of jars, has JUnit
	})
	classpath := map[bool]string{}
	for _, ours := range []bool{false, true} {
		var sources []string
		for _, name := range []string{class, "Clients", "Application"} {
			text := fileText(t, filepath.Join(p.dir, "src/test/java/tests", name+".java"))
			if !ours {
				text = strings.ReplaceAll(text, "import io.github.lockkeeper.curator.", "import org.apache.curator.test.")
			}
			source := filepath.Join(p.dir, strconv.FormatBool(ours), name+".java")
			writeFile(t, source, []byte(text))
			sources = append(sources, source)
		}
		path := strings.Join(append(slices.Clone(libraries), jars), ":")
		classes := must(compileJava(fmt.Sprintf("import-%s-%v", class, ours), path, sources...))(t)
		classpath[ours] = classes + ":" + path
	}
	return func(t *testing.T, ours bool, only []string) map[string]string {
		if only == nil {
			only = classes("tests.", class)
		}
		return runJUnit(t, classpath[ours], only)
	}
}

// preparePatroni runs the steps of TestSystemsPatroni.
func preparePatroni(*testing.T) func(*testing.T, bool, []string) map[string]string {
	return func(t *testing.T, ours bool, _ []string) map[string]string {
		var servers coordinators
		if ours {
			servers = startEnsemble(t, 3)
		} else {
			servers = startZooEnsemble(t, zk39, 3)
		}
		passed, outcomes := runPatroni(t, servers), map[string]string{}
		for i, step := range patroniSteps {
			outcomes[step.name] = ""
			if i >= passed {
				outcomes[step.name] = "failed"
			}
		}
		return outcomes
	}
}

// prepareProgram runs a program as testClient does.
func prepareProgram(t *testing.T, command func(*testing.T) *exec.Cmd) func(*testing.T, bool, []string) map[string]string {
	built := command(t)
	return func(t *testing.T, ours bool, _ []string) map[string]string {
		server := startTestServer(t, serverNames[map[bool]int{true: 0, false: 1}[ours]], zk38, clientTick)
		cmd := exec.Command(built.Path, built.Args[1:]...)
		cmd.Env = built.Env
		return runClient(t, cmd, server, startCutter(t, server.addr))
	}
}

// prepareNativeNode runs the tests of TestSystemsNativeNode.
func prepareNativeNode(t *testing.T) func(*testing.T, bool, []string) map[string]string {
	p := newNativeNode(t)
	return func(t *testing.T, ours bool, _ []string) map[string]string {
		command := "node ../native.mjs " + nativeNodeTests
		if !ours {
			command = "node " + nativeNodeTests + " " + startZooKeeper(t, zk38, nil, anyClients).addr
		}
		out, err := p.run(t, command)
		outcomes := map[string]string{}
		for _, line := range regexp.MustCompile(`(?m)^ *([✔✘]) (.*?)( \([0-9.]+m?s\))?$`).FindAllStringSubmatch(out, -1) {
			outcomes[line[2]] = ""
			if line[1] != "✔" {
				outcomes[line[2]] = "failed"
			}
		}
		if err != nil || len(outcomes) == 0 {
			t.Logf("%v\n%s", err, out)
		}
		return outcomes
	}
}

// TestAdopters runs tests of other projects with Java's ZooKeeper and with lockkeeper, and writes docs/adopters.md. It
// runs only if LOCKKEEPER_INTEROP_ADOPTERS says which of them. make adopters sets it.
func TestAdopters(t *testing.T) {
	only := os.Getenv(envAdopters)
	if only == "" {
		t.Skip(envAdopters + " is not set")
	}
	lockkeeperBinary(t)
	rows := map[string]string{} // by what is not found out
	for line := range strings.Lines(fileText(t, adoptersFile)) {
		for _, a := range adopters() {
			if strings.HasPrefix(line, a.row()) {
				rows[a.row()] = strings.TrimSpace(line)
			}
		}
	}
	for _, a := range adopters() {
		if only != "all" && !strings.Contains(a.name, only) {
			continue
		}
		passed := t.Run(a.name, func(t *testing.T) {
			run := a.prepare(t)
			java, ours := a.passed(t, run, false), a.passed(t, run, true)
			if ours < a.least {
				t.Errorf("%d tests passed, and at least %d must", ours, a.least)
			}
			rows[a.row()] = fmt.Sprintf("%s%d | %d | %s |", a.row(), java, ours, time.Now().UTC().Format(time.DateOnly))
		})
		if passed { // what is known is kept, also if a later one fails
			writeFile(t, adoptersFile, []byte(adoptersPage(rows, describeMachine(t))))
		}
	}
}

// passed returns how many tests pass with one of the servers.
func (a *adopter) passed(t *testing.T, run func(t *testing.T, ours bool, only []string) map[string]string, ours bool) (n int) {
	t.Run(map[bool]string{true: "lockkeeper", false: "Java"}[ours], func(t *testing.T) { // its end stops the servers
		outcomes := run(t, ours, nil)
		// What fails may need an idle machine, as in TestSystems.
		for attempt := 0; attempt < 2 && len(failedOf(outcomes)) > 0 && !t.Failed(); attempt++ {
			var again []string
			if a.retry != nil {
				again = a.retry(outcomes)
			}
			t.Logf("again: %s", whyFailed(outcomes))
			maps.Copy(outcomes, run(t, ours, again))
		}
		t.Log(whyFailed(outcomes))
		n = len(outcomes) - len(failedOf(outcomes))
	})
	return n
}

// adoptersPage returns the text of docs/adopters.md.
func adoptersPage(rows map[string]string, about [][2]string) string {
	var b strings.Builder
	fmt.Fprint(&b, `# Tests that could switch

<!-- `+"`make adopters`"+` writes this page. Do not edit it. -->

Tests of projects that start a ZooKeeper in Java, or talk to one, and the same tests with lockkeeper in its place. A test
that failed was run again by itself, twice at most, and the number counts it if it passed then. What they would gain is in
the table.

To run them again, on an otherwise idle Debian, as root; the second line runs one project and keeps the other rows:

    make adopters
    LOCKKEEPER_INTEROP_ADOPTERS=Flink go test -C interop -tags interop -timeout 0 -v -run '^TestAdopters$' .

| project | tests | in place of | change | gained | passed with ZooKeeper | with lockkeeper | date |
|---|---|---|---|---|---|---|---|
`)
	for _, a := range adopters() {
		fmt.Fprintln(&b, cmp.Or(rows[a.row()], a.row()+notMeasured))
	}
	fmt.Fprint(&b, "\nThe machine of the last run:\n\n| | |\n|---|---|\n")
	for _, x := range about {
		fmt.Fprintf(&b, "| %s | %s |\n", x[0], x[1])
	}
	return b.String()
}

// notMeasured is the rest of a row whose project has not been run.
const notMeasured = "not run yet | | |"

// row is the part of a row that is not found out.
func (a adopter) row() string {
	return fmt.Sprintf("| %s | %s | %s | %s | %s | ", a.name, a.what, a.java, a.ours, a.gain)
}

// TestAdoptersPage checks that docs/adopters.md has a row for each adopter, and no other, with enough tests.
func TestAdoptersPage(t *testing.T) {
	page := fileText(t, adoptersFile)
	for _, a := range adopters() {
		_, rest, found := strings.Cut(page, "\n"+a.row())
		line, _, _ := strings.Cut(rest, "\n")
		var java, ours int
		if line == notMeasured {
			continue
		}
		if _, err := fmt.Sscanf(line, "%d | %d | ", &java, &ours); !found || err != nil || ours < a.least {
			t.Errorf("docs/adopters.md has no row %q with %d tests: make adopters writes it", a.row(), a.least)
		}
	}
	_, table, _ := strings.Cut(page, "\n| project | ")
	table, _, _ = strings.Cut(table, "\n\n")
	if rows := strings.Count(table, "\n| "); rows != len(adopters()) {
		t.Errorf("docs/adopters.md has rows for %d projects, and there are %d", rows, len(adopters()))
	}
}
