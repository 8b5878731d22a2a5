//go:build interop

package interop

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// kazooModules are kazoo's own tests that need a server, in groups that run in parallel,
// because the tests mostly wait.
var kazooModules = [][]string{
	{"partitioner", "barrier", "counter", "election", "lease", "party", "queue"},
	{"watchers", "cache"},
	{"client", "connection"},
	{"sasl"},
	{"lock"},
}

// kazooSuite are kazoo's own tests, which are part of its package, where the wheel of packages/python is installed.
type kazooSuite struct {
	python, packages string
}

// kazooTest is the name with which pytest selects a test.
func kazooTest(c junitCase) string {
	file, class, _ := strings.Cut(strings.TrimPrefix(c.class, "kazoo.tests."), ".")
	return "kazoo/tests/" + file + ".py::" + class + "::" + c.name
}

func newKazooSuite(t *testing.T) *kazooSuite {
	t.Helper()
	python := must(pythonPackage())(t)
	packages, _ := filepath.Glob(filepath.Dir(filepath.Dir(python)) + "/lib/python*/site-packages")
	if len(packages) != 1 {
		t.Fatalf("kazoo's virtual environment has %d folders of packages", len(packages))
	}
	return &kazooSuite{python: python, packages: packages[0]}
}

// kazooFiles returns the files of modules.
func kazooFiles(modules ...string) (files []string) {
	for _, module := range modules {
		files = append(files, "kazoo/tests/test_"+module+".py")
	}
	return files
}

// withLockkeeper returns the arguments of pytest, and the environment, with which the tests start lockkeeper: the program
// of the wheel, or that of LOCKKEEPER_INTEROP_BINARY, with
// TLS, and have a realm of Kerberos.
func (k *kazooSuite) withLockkeeper(t *testing.T) (args, env []string) {
	t.Helper()
	program := ""
	if os.Getenv(envBinary) != "" {
		program = lockkeeperBinary(t)
	}
	plugins := must(filepath.Abs("clients/kazoo"))(t)
	realm := startKerberos(t, map[string][]string{"client.keytab": {"client"}, "server.keytab": {"zookeeper/127.0.0.1"}})
	tls, ca := t.TempDir(), testkit.NewCA(t)
	ca.WriteCA(t, tls, "ca.pem")
	testkit.WritePair(t, ca.Peer(t), tls, "cert.pem", "key.pem")
	return []string{"-p", "lockkeeper_servers"}, append(realm.env(), "LOCKKEEPER_INTEROP_TLS="+tls, "PYTHONPATH="+plugins+":"+kerberosModules(t), "LOCKKEEPER_BINARY="+program)
}

// run runs tests, which may take so long, and returns their outcomes by kazooTest.
func (k *kazooSuite) run(t *testing.T, limit time.Duration, args, env, tests []string) map[string]string {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report.xml")
	cmd := clientCommand(k.python, "-m", "pytest", "-p", "no:cacheprovider", "--quiet", "--junitxml", report)
	cmd.Args = slices.Concat(cmd.Args, args, tests)
	cmd.Env = slices.Concat(cmd.Env, []string{"PYTHONDONTWRITEBYTECODE=1", "PYTHONFAULTHANDLER=1", "ZOOKEEPER_VERSION=3.9.0"}, env)
	cmd.Dir = k.packages
	said, err := runGroup(t, cmd, limit)
	const testsFailed = 1 // the report has the details
	if code := cmd.ProcessState.ExitCode(); code != 0 && code != testsFailed {
		t.Errorf("pytest: %v\n%s", err, said)
	}
	cases, err := junitCases(report)
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	outcomes := map[string]string{}
	for _, c := range cases {
		outcomes[kazooTest(c)] = c.outcome
	}
	return outcomes
}

// TestKazooOwn runs kazoo's own tests, which are part of its package. They start the program that
// the wheel of packages/python has, or the one of LOCKKEEPER_INTEROP_BINARY.
func TestKazooOwn(t *testing.T) {
	t.Parallel()
	k := newKazooSuite(t)
	args, env := k.withLockkeeper(t)
	reports := make(chan map[string]string, len(kazooModules))
	t.Run("all", func(t *testing.T) {
		for _, modules := range kazooModules {
			t.Run(modules[0], func(t *testing.T) {
				t.Parallel()
				all := k.run(t, clientDeadline, args, env, kazooFiles(modules...))
				for range 2 { // they count on a machine that is at rest: what fails is tried again by itself
					if failed := failedOf(all); len(failed) > 0 {
						t.Logf("once more: %s", whyFailed(all))
						maps.Copy(all, k.run(t, clientDeadline, args, env, failed))
					}
				}
				if len(all) == 0 {
					t.Fatal("no test has run")
				}
				reports <- all
			})
		}
	})
	close(reports)
	total := 0
	for report := range reports {
		total += len(report)
		if why := whyFailed(report); why != "" {
			t.Error(why)
		}
	}
	t.Logf("%d tests of kazoo ran", total)
}
