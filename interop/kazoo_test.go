//go:build interop

package interop

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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

// kazooOutcome is the outcome of a test.
type kazooOutcome struct {
	Name    string  `xml:"name,attr"`
	Class   string  `xml:"classname,attr"`
	Skipped *string `xml:"skipped"`
	Failure string  `xml:"failure"`
	Error   string  `xml:"error"`
}

// test is the name with which pytest selects it.
func (o *kazooOutcome) test() string {
	file, class, _ := strings.Cut(strings.TrimPrefix(o.Class, "kazoo.tests."), ".")
	return "kazoo/tests/" + file + ".py::" + class + "::" + o.Name
}

func newKazooSuite(t *testing.T) *kazooSuite {
	t.Helper()
	python, err := pythonPackage()
	if err != nil {
		t.Fatal(err)
	}
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
	plugins, err := filepath.Abs("clients/kazoo")
	if err != nil {
		t.Fatal(err)
	}
	realm := startKerberos(t, map[string][]string{"client.keytab": {"client"}, "server.keytab": {"zookeeper/127.0.0.1"}})
	tls, ca := t.TempDir(), testkit.NewCA(t)
	ca.WriteCA(t, tls, "ca.pem")
	testkit.WritePair(t, ca.Peer(t), tls, "cert.pem", "key.pem")
	return []string{"-p", "lockkeeper_servers"}, append(realm.env(), "LOCKKEEPER_INTEROP_TLS="+tls, "PYTHONPATH="+plugins+":"+kerberosModules(t), "LOCKKEEPER_BINARY="+program)
}

// run runs tests, which may take so long.
func (k *kazooSuite) run(t *testing.T, limit time.Duration, args, env, tests []string) []kazooOutcome {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report.xml")
	cmd := clientCommand(k.python, "-m", "pytest", "-p", "no:cacheprovider", "--quiet", "--junitxml", report)
	cmd.Args = slices.Concat(cmd.Args, args, tests)
	cmd.Env = slices.Concat(cmd.Env, []string{"PYTHONDONTWRITEBYTECODE=1", "PYTHONFAULTHANDLER=1", "ZOOKEEPER_VERSION=3.9.0"}, env)
	cmd.Dir = k.packages
	log := &tail{}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Its servers are in the same process group.
	t.Cleanup(func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	stuck := time.AfterFunc(limit, func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGABRT) // Python and Go print where they are
		time.Sleep(2 * time.Second)
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	})
	defer stuck.Stop()
	err := cmd.Wait()
	if err != nil {
		t.Logf("pytest: %v\n%s", err, log)
	}
	const testsFailed = 1 // the report has the details
	if code := cmd.ProcessState.ExitCode(); code != 0 && code != testsFailed {
		t.Errorf("pytest: %v", err)
	}
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var parsed struct {
		Cases []kazooOutcome `xml:"testsuite>testcase"`
	}
	if err := xml.Unmarshal(text, &parsed); err != nil {
		t.Fatal(err)
	}
	return parsed.Cases
}

// TestKazooOwn runs kazoo's own tests, which are part of its package. They start the program that
// the wheel of packages/python has, or the one of LOCKKEEPER_INTEROP_BINARY.
func TestKazooOwn(t *testing.T) {
	t.Parallel()
	k := newKazooSuite(t)
	args, env := k.withLockkeeper(t)
	reports := make(chan []kazooOutcome, len(kazooModules))
	t.Run("all", func(t *testing.T) {
		for _, modules := range kazooModules {
			t.Run(modules[0], func(t *testing.T) {
				t.Parallel()
				all := k.run(t, clientDeadline, args, env, kazooFiles(modules...))
				for range 2 { // they count on a machine that is at rest: what fails is tried again by itself
					var failed []string
					for _, o := range all {
						if o.Failure+o.Error != "" {
							failed = append(failed, o.test())
						}
					}
					if len(failed) == 0 {
						break
					}
					t.Logf("once more: %q", failed)
					for _, o := range k.run(t, clientDeadline, args, env, failed) {
						i := slices.IndexFunc(all, func(x kazooOutcome) bool { return x.Class == o.Class && x.Name == o.Name })
						if i < 0 {
							t.Errorf("%s.%s has run, who knows why", o.Class, o.Name)
							continue
						}
						all[i] = o
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
		for _, o := range report {
			total++
			t.Run(strings.TrimPrefix(o.Class, "kazoo.tests.")+"."+o.Name, func(t *testing.T) {
				if why := o.Failure + o.Error; why != "" {
					t.Error(why)
				}
				if o.Skipped != nil {
					t.Error("was skipped")
				}
			})
		}
	}
	t.Logf("%d tests of kazoo ran", total)
}
