//go:build interop

package interop

import (
	"cmp"
	"os/exec"
	"strings"
	"testing"
)

// testReport runs a program that writes a report in JUnit's format, and checks that exactly
// the given tests ran, and passed.
func testReport(t *testing.T, cmd *exec.Cmd, report string, tests ...string) {
	t.Helper()
	checkCases(t, reportOf(t, cmd, report), tests...)
}

// reportOf runs a program that writes a report in JUnit's format. It returns by name, without
// parameters, why a test did not pass, or "".
func reportOf(t *testing.T, cmd *exec.Cmd, report string) map[string]string {
	t.Helper()
	said, err := runGroup(t, cmd, clientDeadline)
	if err != nil {
		t.Errorf("%s: %v\n%s", cmd.Path, err, said)
	}
	cases, err := junitCases(report)
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	outcomes := map[string]string{}
	for _, c := range cases {
		name, _, _ := strings.Cut(strings.TrimSuffix(c.name, "()"), "[") // without parameters
		outcomes[name] = cmp.Or(outcomes[name], c.outcome)               // of all parameters
	}
	return outcomes
}

// TestExamplePytest runs the example of a project with pytest and kazoo, which has the package of
// packages/python installed.
func TestExamplePytest(t *testing.T) {
	t.Parallel()
	cmd, report := pytest(t, "../docs/examples/pytest")
	testReport(t, cmd, report,
		"test_stale_token_is_refused", "test_stale_token_is_not_looked_at",
		"test_expired_session_loses_its_lock", "test_lost_reply_leaves_one_znode", "test_create_that_is_not_retried", "test_lock_survives_the_leader")
}

// TestExamplesWithoutProgram: if the program cannot be started, the tests of the example say so.
func TestExamplesWithoutProgram(t *testing.T) {
	t.Parallel()
	cmd, _ := pytest(t, "../docs/examples/pytest")
	cmd.Env = append(cmd.Env, "LOCKKEEPER_BINARY=/missing")
	out, err := cmd.CombinedOutput()
	if text := string(out); err == nil || !strings.Contains(text, "LOCKKEEPER_BINARY is the path of the program") || strings.Contains(text, "AttributeError") {
		t.Errorf("%v\n%s", err, text)
	}
}
