//go:build interop

package interop

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// downloadModule downloads a Go module, PATH@VERSION, from the module proxy and returns
// its directory, which is read-only, and its checksum as in a go.sum.
func downloadModule(t *testing.T, module string) (dir, sum string) {
	t.Helper()
	download := exec.Command("go", "mod", "download", "-json", module)
	download.Dir = ".."
	out, err := download.Output()
	if err != nil {
		t.Fatalf("go mod download %s: %v\n%s%s", module, err, out, stderrOf(err))
	}
	var m struct{ Dir, Sum string }
	check(t, json.Unmarshal(out, &m))
	return m.Dir, m.Sum
}

// goTestThrice runs tests of another module, each of which must pass. command returns a
// command go test -json for the tests that match a pattern. Some tests depend on an idle
// machine, so those that do not pass are run again, twice.
func goTestThrice(t *testing.T, tests []string, command func(pattern string) *exec.Cmd) {
	t.Helper()
	outcomes := make(map[string]*outcome)
	var err error
	waiting := tests
	for attempt := 1; attempt <= 3 && len(waiting) > 0; attempt++ {
		var last map[string]*outcome
		last, err = goTest(t, command("^("+strings.Join(waiting, "|")+")$"))
		maps.Copy(outcomes, last)
		waiting = slices.DeleteFunc(slices.Clone(waiting), func(name string) bool { return outcomes[name].passed() })
		for _, name := range waiting {
			t.Logf("attempt %d: %s %s\n%s", attempt, name, outcomes[name].verdict(), outcomes[name].text())
		}
	}
	if err != nil {
		t.Error(err)
	}
	for _, name := range tests {
		t.Run(name, func(t *testing.T) {
			if o := outcomes[name]; !o.passed() {
				t.Errorf("%s\n%s", o.verdict(), o.text())
			}
		})
	}
}

// outcome is the result of a test and its output.
type outcome struct {
	action string
	output bytes.Buffer
}

func (o *outcome) passed() bool { return o != nil && o.action == "pass" }

func (o *outcome) verdict() string {
	switch {
	case o == nil:
		return "did not run"
	case o.action == "":
		return "did not end"
	case o.action == "skip":
		return "was skipped"
	}
	return o.action
}

func (o *outcome) text() string {
	if o == nil {
		return ""
	}
	return o.output.String()
}

// goTest runs a command go test -json and returns the outcome of each test.
func goTest(t *testing.T, cmd *exec.Cmd) (map[string]*outcome, error) {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	check(t, cmd.Start())
	outcomes := make(map[string]*outcome) // by test; "" for the package
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
		var event struct{ Action, Test, Output string }
		if err := json.Unmarshal(line, &event); err != nil {
			stderr.Write(line) // not an event of a test
			continue
		}
		top, _, isSub := strings.Cut(event.Test, "/")
		o := outcomes[top]
		if o == nil {
			o = new(outcome)
			outcomes[top] = o
		}
		o.output.WriteString(event.Output)
		if !isSub && slices.Contains([]string{"pass", "fail", "skip"}, event.Action) {
			o.action = event.Action
		}
	}
	if err = cmd.Wait(); err != nil {
		err = fmt.Errorf("%s: %w\n%s%s", cmd, err, stderr.String(), outcomes[""].text())
	}
	return outcomes, err
}

func stderrOf(err error) []byte {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.Stderr
	}
	return nil
}
