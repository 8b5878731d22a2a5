//go:build interop

package interop

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// goZK is the client whose own tests run here. It is downloaded from the module proxy;
// this repository contains no part of it.
const goZK = "github.com/go-zookeeper/zk@v1.0.4"

// goZKServers are the files of goZK that start Java servers, which the file
// below replaces.
var goZKServers = []string{"server_help_test.go", "server_java_test.go"}

//go:embed testdata/gozk_servers_test.go
var goZKReplacement []byte

// TestGoZooKeeper runs go-zookeeper's own tests against lockkeeper.
func TestGoZooKeeper(t *testing.T) {
	t.Parallel()
	dir := goZKCopy(t)
	goTestThrice(t, goZKList(t, dir), func(pattern string) *exec.Cmd {
		return goZKCommand(t, dir, "test", "-json", "-count=1", "-vet=off", "-timeout=8m", "-run", pattern, ".")
	})
}

// goZKCopy returns the directory of a writable copy of goZK with goZKServers replaced.
func goZKCopy(t *testing.T) string {
	t.Helper()
	from, _ := downloadModule(t, goZK)
	dir := filepath.Join(t.TempDir(), "zk")
	check(t, os.CopyFS(dir, os.DirFS(from)))
	for _, name := range goZKServers {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatalf("%s is not what this test was written for: %v", goZK, err)
		}
	}
	check(t, os.WriteFile(filepath.Join(dir, "lockkeeper_servers_test.go"), goZKReplacement, 0o644))
	return dir
}

func goZKList(t *testing.T, dir string) []string {
	t.Helper()
	out, err := goZKCommand(t, dir, "test", "-list", ".", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("the tests of %s do not build: %v\n%s", goZK, err, out)
	}
	tests := regexp.MustCompile(`(?m)^Test\w+$`).FindAllString(string(out), -1)
	if len(tests) == 0 {
		t.Fatalf("%s has no tests:\n%s", goZK, out)
	}
	return tests
}

func goZKCommand(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(cleanEnv(), "GOWORK=off", "GOFLAGS=-mod=mod", "LOCKKEEPER_BINARY="+lockkeeperBinary(t), "ZK_VERSION=3.9.0")
	return cmd
}
