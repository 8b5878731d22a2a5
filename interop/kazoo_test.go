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
)

// kazooModules are kazoo's own tests that need a server, in groups that run in parallel,
// because the tests mostly wait.
var kazooModules = [][]string{
	{"partitioner", "barrier", "counter", "election", "lease", "party", "queue"},
	{"watchers", "cache"},
	{"client", "connection"},
	{"lock"},
}

// kazooWaiting lists the tests of kazoo that do not pass yet, and why. All others must
// pass, and each listed test must exist.
var kazooWaiting = map[string]string{
	"test_client.TestSSLClient.test_create": "needs TLS",
}

// TestKazooOwn runs kazoo's own tests, which are part of its package. They start the program that
// the wheel of packages/python has, or the one of LOCKKEEPER_INTEROP_BINARY.
func TestKazooOwn(t *testing.T) {
	t.Parallel()
	type outcome struct {
		Name    string  `xml:"name,attr"`
		Class   string  `xml:"classname,attr"`
		Skipped *string `xml:"skipped"`
		Failure string  `xml:"failure"`
		Error   string  `xml:"error"`
	}
	python, err := pythonPackage()
	if err != nil {
		t.Fatal(err)
	}
	packages, _ := filepath.Glob(filepath.Dir(filepath.Dir(python)) + "/lib/python*/site-packages")
	if len(packages) != 1 {
		t.Fatalf("kazoo's virtual environment has %d folders of packages", len(packages))
	}
	var deselect []string
	for name, why := range kazooWaiting {
		parts := strings.Split(name, ".")
		file := "kazoo/tests/" + parts[0] + ".py"
		text, err := os.ReadFile(filepath.Join(packages[0], file))
		if err != nil || !strings.Contains(string(text), "class "+parts[1]+"(") || !strings.Contains(string(text), "def "+parts[2]+"(") {
			t.Errorf("%s waits (%s), but kazoo has no such test", name, why)
		}
		deselect = append(deselect, "--deselect", file+"::"+parts[1]+"::"+parts[2])
	}
	program := "" // that of the wheel
	if os.Getenv(envBinary) != "" {
		program = lockkeeperBinary(t)
	}
	plugins, err := filepath.Abs("clients/kazoo")
	if err != nil {
		t.Fatal(err)
	}
	reports := make(chan []outcome, len(kazooModules))
	t.Run("all", func(t *testing.T) {
		for _, modules := range kazooModules {
			t.Run(modules[0], func(t *testing.T) {
				t.Parallel()
				run := func(tests []string) []outcome {
					report := filepath.Join(t.TempDir(), "report.xml")
					cmd := clientCommand(python, "-m", "pytest", "-p", "lockkeeper_servers",
						"-p", "no:cacheprovider", "--quiet", "--junitxml", report)
					cmd.Args = slices.Concat(cmd.Args, deselect, tests)
					cmd.Env = append(cmd.Env, "PYTHONPATH="+plugins, "PYTHONDONTWRITEBYTECODE=1", "PYTHONFAULTHANDLER=1", "ZOOKEEPER_VERSION=3.9.0", "LOCKKEEPER_BINARY="+program)
					cmd.Dir = packages[0]
					log := &tail{}
					cmd.Stdout, cmd.Stderr = log, log
					cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
					cmd.WaitDelay = 10 * time.Second
					if err := cmd.Start(); err != nil {
						t.Fatal(err)
					}
					// Its servers are in the same process group.
					t.Cleanup(func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
					stuck := time.AfterFunc(clientDeadline, func() {
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
						Cases []outcome `xml:"testsuite>testcase"`
					}
					if err := xml.Unmarshal(text, &parsed); err != nil {
						t.Fatal(err)
					}
					return parsed.Cases
				}
				var files []string
				for _, module := range modules {
					files = append(files, "kazoo/tests/test_"+module+".py")
				}
				all := run(files)
				for range 2 { // they count on a machine that is at rest: what fails is tried again by itself
					var failed []string
					for _, o := range all {
						if o.Failure+o.Error != "" {
							file, class, _ := strings.Cut(strings.TrimPrefix(o.Class, "kazoo.tests."), ".")
							failed = append(failed, "kazoo/tests/"+file+".py::"+class+"::"+o.Name)
						}
					}
					if len(failed) == 0 {
						break
					}
					t.Logf("once more: %q", failed)
					for _, o := range run(failed) {
						i := slices.IndexFunc(all, func(x outcome) bool { return x.Class == o.Class && x.Name == o.Name })
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
					t.Error("was skipped; a test that cannot run belongs in kazooWaiting")
				}
			})
		}
	}
	t.Logf("%d tests of kazoo ran, %d wait", total, len(kazooWaiting))
}
