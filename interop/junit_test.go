//go:build interop

package interop

import (
	"encoding/xml"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// skipped is the outcome of a junitCase that was not run.
const skipped = "was skipped"

// junitCase is a test in a report in JUnit's format.
type junitCase struct {
	class, name string
	outcome     string // why it did not pass, or ""
}

// junitCases reads a report in JUnit's format.
func junitCases(report string) (all []junitCase, err error) {
	text, err := os.ReadFile(report)
	if err != nil {
		return nil, err
	}
	type testcase struct {
		Name    string    `xml:"name,attr"`
		Class   string    `xml:"classname,attr"`
		Skipped *struct{} `xml:"skipped"`
		Failure *string   `xml:"failure"`
		Error   *string   `xml:"error"`
	}
	// The outermost element is testsuites or testsuite.
	var parsed struct {
		Cases  []testcase `xml:"testcase"`
		Nested []testcase `xml:"testsuite>testcase"`
	}
	if err := xml.Unmarshal(text, &parsed); err != nil {
		return nil, err
	}
	for _, c := range append(parsed.Cases, parsed.Nested...) {
		outcome := ""
		switch {
		case c.Failure != nil:
			outcome = "failed: " + *c.Failure
		case c.Error != nil:
			outcome = "failed: " + *c.Error
		case c.Skipped != nil:
			outcome = skipped
		}
		all = append(all, junitCase{c.Class, c.Name, outcome})
	}
	return all, nil
}

// runGroup runs a program in a process group of its own, in which the servers that it starts are too. It kills
// them at the end, or after limit. It returns the end of what the program says.
func runGroup(t *testing.T, cmd *exec.Cmd, limit time.Duration) (said string, err error) {
	t.Helper()
	log := &tail{}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second
	check(t, cmd.Start())
	kill := func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	defer kill()
	stuck := time.AfterFunc(limit, kill)
	defer stuck.Stop()
	err = cmd.Wait()
	return log.String(), err
}
