//go:build interop

package interop

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// testReport runs a program that writes a report in JUnit's format, and checks that exactly
// the given tests ran, and passed.
func testReport(t *testing.T, cmd *exec.Cmd, report string, tests ...string) {
	t.Helper()
	log := &tail{}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(cmd.Env, "LOCKKEEPER_BINARY="+lockkeeperBinary(t), "PYTHONDONTWRITEBYTECODE=1")
	// The servers that it starts are in its process group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	t.Cleanup(kill)
	stuck := time.AfterFunc(clientDeadline, kill)
	defer stuck.Stop()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%s: %v\n%s", cmd.Path, err, log)
	}
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	// The outermost element is testsuites or testsuite.
	type testcase struct {
		Name    string    `xml:"name,attr"`
		Skipped *struct{} `xml:"skipped"`
		Failure *string   `xml:"failure"`
		Error   *string   `xml:"error"`
	}
	var parsed struct {
		Cases  []testcase `xml:"testcase"`
		Nested []testcase `xml:"testsuite>testcase"`
	}
	if err := xml.Unmarshal(text, &parsed); err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]string{}
	for _, c := range append(parsed.Cases, parsed.Nested...) {
		name, _, _ := strings.Cut(strings.TrimSuffix(c.Name, "()"), "[") // without parameters
		outcomes[name] = ""
		switch {
		case c.Failure != nil:
			outcomes[name] = "failed: " + *c.Failure
		case c.Error != nil:
			outcomes[name] = "failed: " + *c.Error
		case c.Skipped != nil:
			outcomes[name] = "was skipped"
		}
	}
	checkCases(t, outcomes, tests...)
}

// TestExamplePytest runs the example of a fixture for pytest, with kazoo.
func TestExamplePytest(t *testing.T) {
	t.Parallel()
	cmd, report := examplePytest(t)
	testReport(t, cmd, report,
		"test_expired_session_loses_its_lock", "test_lost_reply_leaves_one_znode", "test_create_that_is_not_retried", "test_lock_survives_the_leader")
}

// examplePytest returns the command that runs the tests of the example, and their report.
func examplePytest(t *testing.T) (cmd *exec.Cmd, report string) {
	t.Helper()
	report = filepath.Join(t.TempDir(), "report.xml")
	cmd = clientCommand(clientCache(t, "kazoo/bin/python"), "-m", "pytest", "-p", "no:cacheprovider", "--quiet", "--junitxml", report)
	cmd.Dir = "../docs/examples/pytest"
	return cmd, report
}

// TestExamplesWithoutProgram: if the program cannot be started, the tests of the example say so.
func TestExamplesWithoutProgram(t *testing.T) {
	t.Parallel()
	cmd, _ := examplePytest(t)
	cmd.Env = append(cmd.Env, "LOCKKEEPER_BINARY=/missing", "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if text := string(out); err == nil || !strings.Contains(text, "LOCKKEEPER_BINARY is the path of the program") || strings.Contains(text, "AttributeError") {
		t.Errorf("%v\n%s", err, text)
	}
}
