//go:build interop

package interop

import (
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// cargoTest runs the tests of a crate with the program under test, in the directory where setup.sh has
// built what they need. It returns what cargo says.
func cargoTest(t *testing.T, crate string) (string, error) {
	t.Helper()
	cmd := clientCommand("cargo", "test", "--quiet", "--locked", "--offline", "--manifest-path", crate+"/Cargo.toml", "--target-dir", clientCache(t, "rust"))
	cmd.Env = append(cmd.Env, "LOCKKEEPER_BINARY="+lockkeeperBinary(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestPackagesRust runs the tests of the crate in packages/rust, those in its documentation, and those of the
// example that uses it.
func TestPackagesRust(t *testing.T) {
	t.Parallel()
	blocks := regexp.MustCompile("(?s)(?:<!-- (\\S+) -->\n)?```rust\n(.*?)```\n").FindAllStringSubmatch(fileText(t, "../packages/rust/README.md"), -1)
	if len(blocks) != 3 {
		t.Errorf("the README of packages/rust has %d tests", len(blocks))
	}
	for _, block := range blocks {
		if block[2] != fileText(t, "../packages/rust/"+block[1]) {
			t.Errorf("the README of packages/rust has another %s", block[1])
		}
	}
	for crate, want := range map[string][]string{
		"../packages/rust":      {"4 passed", "14 passed", "1 passed", "4 passed"}, // unit tests, tests/control.rs, those of the README, documentation
		"../docs/examples/rust": {"2 passed"},
	} {
		out, err := cargoTest(t, crate)
		if err != nil {
			t.Errorf("%s: %v\n%s", crate, err, out)
		}
		for _, passed := range want {
			if !strings.Contains(out, "ok. "+passed) {
				t.Errorf("%s: not %s:\n%s", crate, passed, out)
			}
		}
	}
}
