//go:build interop

package interop

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// pythonPackage returns the Python of a new environment, with the wheel of packages/python for this
// machine, which is built for it from the commit that is checked out, and what its tests need.
var pythonPackage = sync.OnceValues(func() (python string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dist, env := filepath.Join(scratch, "python-dist"), filepath.Join(scratch, "python")
	run := func(dir, name string, args ...string) {
		if err != nil {
			return
		}
		cmd := clientCommand(name, args...)
		cmd.Dir = dir
		if out, e := cmd.CombinedOutput(); e != nil {
			err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), e, out)
		}
	}
	run("../.ci/release", "go", "run", ".", "-only", "wheel", "-pgo", "off", "-platforms", runtime.GOOS+"/"+runtime.GOARCH, "-o", dist)
	run(".", "python3", "-m", "venv", env)
	wheels, _ := filepath.Glob(filepath.Join(dist, "*.whl"))
	if err == nil && len(wheels) != 1 {
		return "", fmt.Errorf("%q, not one wheel", wheels)
	}
	pip := func(args ...string) {
		run(".", filepath.Join(env, "bin/pip"), append([]string{"install", "--quiet", "--disable-pip-version-check", "--no-index"}, args...)...)
	}
	pip("--no-deps", "--require-hashes", "--find-links", filepath.Join(cache, "lockkeeper-interop/python"), "--requirement", "clients/python/requirements.txt")
	// With its dependencies, which must be there already, since pip finds no others.
	pip(wheels...)
	return filepath.Join(env, "bin/python"), err
})

// pytest returns the command that runs pytest where the wheel of packages/python is installed, and
// where its report will be. It finds no other program, neither Go nor lockkeeper.
func pytest(t *testing.T, dir string, args ...string) (cmd *exec.Cmd, report string) {
	t.Helper()
	python, err := pythonPackage()
	if err != nil {
		t.Fatalf("no package to test: %v (interop/setup.sh downloads what it needs)", err)
	}
	report = filepath.Join(t.TempDir(), "report.xml")
	cmd = clientCommand(python, append([]string{"-m", "pytest", "-p", "no:cacheprovider", "--quiet", "--junitxml", report}, args...)...)
	cmd.Env = append(cmd.Env, "PATH=/nowhere", "PYTHONDONTWRITEBYTECODE=1")
	cmd.Dir = dir
	return cmd, report
}

// TestPackagesPython runs the tests of the package for Python, from its wheel.
func TestPackagesPython(t *testing.T) {
	t.Parallel()
	cmd, report := pytest(t, "../packages/python/tests", "-n", "2")
	outcomes := reportOf(t, cmd, report)
	for name, outcome := range outcomes {
		if outcome != "" {
			t.Errorf("%s %s", name, outcome)
		}
	}
	if len(outcomes) < 50 {
		t.Errorf("only %d tests", len(outcomes))
	}
}
