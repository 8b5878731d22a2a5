//go:build interop

package interop

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestEmbedOutside builds and runs a program in another module whose go.mod requires only
// lockkeeper, because an embedder inherits no replace directives.
func TestEmbedOutside(t *testing.T) {
	t.Parallel()
	root := must(filepath.Abs(".."))(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com/outside\n\ngo 1.26\n\nreplace github.com/lockkeeper/lockkeeper => " + root + "\n",
		"main.go": `package main

import "github.com/lockkeeper/lockkeeper"

func main() {
	s, err := lockkeeper.Open(lockkeeper.Config{})
	if err != nil {
		panic(err)
	}
	<-s.Ready()
	if err := s.Close(); err != nil {
		panic(err)
	}
	print("served")
}
`,
		"main_test.go": `package main

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

func TestConnect(t *testing.T) { lockkeepertest.Start(t).Connect(t, time.Minute) }
`,
	} {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("mod", "tidy")
	mod := must(os.ReadFile(filepath.Join(dir, "go.mod")))(t)
	for _, module := range []string{"anishathalye/porcupine", "spf13/cobra", "spf13/pflag", "prometheus/", "golang.org/x/term", "klauspost/"} {
		if strings.Contains(string(mod), module) {
			t.Errorf("an embedder's go.mod has %s, which only the command, package admin or the tests need", module)
		}
	}
	if out := run("run", "."); out != "served" {
		t.Errorf("the program printed %q", out)
	}
	run("test", ".")
}
