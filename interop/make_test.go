//go:build interop

package interop

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// makefile has a build under a lock with two jobs, each of which waits until the other one
// has begun.
const makefile = `
all:
	+$(UNDER) $(MAKE) both
both: one two
one:
	@touch one.began; until test -e two.began; do sleep 0.01; done
two:
	@touch two.began; until test -e one.began; do sleep 0.01; done
`

// TestMake: a GNU make that runs under lock run shares the jobs of the make that has started
// lock run, as it does under flock. It takes them from a pipe whose descriptors, 3 and 4, it
// inherits, and without them it runs one job at a time.
func TestMake(t *testing.T) {
	t.Parallel()
	addr := startLockkeeper(t).addr
	args := []string{"-j2"}
	if help, err := exec.Command("make", "--help").Output(); err != nil {
		t.Fatal(err)
	} else if strings.Contains(string(help), "--jobserver-style") { // from 4.4 on, a FIFO is the default
		args = append(args, "--jobserver-style=pipe")
	}
	for name, under := range map[string]string{
		"flock":    "flock lock",
		"lock run": lockkeeperBinary(t) + " lock run --server " + addr + " /build --",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			check(t, os.WriteFile(filepath.Join(dir, "Makefile"), []byte(makefile), 0o600))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "make", append(args, "UNDER="+under)...)
			cmd.Dir, cmd.Env, cmd.WaitDelay = dir, cleanEnv(), time.Second
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Run(); err != nil || strings.Contains(out.String(), "jobserver") {
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}
