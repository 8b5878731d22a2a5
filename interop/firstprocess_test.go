//go:build interop

package interop

import (
	"context"
	"os/exec"
	"testing"
	"time"
)

// orphans leaves three processes without a parent, and waits until nothing of them is left: no
// zombie either, which kill -0 finds.
const orphans = `
for i in 1 2 3; do (sleep 0.1 & echo $! >>pids); done
for pid in $(cat pids); do
	n=0
	while kill -0 $pid 2>/dev/null; do
		n=$((n + 1))
		[ $n -lt 600 ] || { echo "process $pid is left"; exit 9; }
		sleep 0.1
	done
done
exit 7
`

// TestFirstProcess: lock run as process 1 of a PID namespace, as in a container, waits for the processes that lose
// their parents, and its command's exit code is still known.
func TestFirstProcess(t *testing.T) {
	t.Parallel()
	addr := startLockkeeper(t).addr
	ctx, cancel := context.WithTimeout(t.Context(), programDeadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", lockkeeperBinary(t), "lock", "run", "--server", addr, "/a", "--", "sh", "-c", orphans)
	cmd.Dir, cmd.Env, cmd.WaitDelay = t.TempDir(), cleanEnv(), time.Second
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 7 || len(out) != 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
