package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/tools/bench"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// TestBench measures a server, and compares two.
func TestBench(t *testing.T) {
	a, b := lockkeepertest.Start(t, lockkeepertest.WithTCP()), lockkeepertest.Start(t, lockkeepertest.WithTCP())
	code, stdout, stderr := call(nil, "bench", a.Addr(), "--workload", "create,lock-1", "--ops", "50")
	if code != exitOK || strings.Count(stdout, "\n") != 5 || !strings.Contains(stdout, "create-64x16") || !strings.Contains(stderr, "4/4 lock-1 ") {
		t.Errorf("exit %d\n%s\n%s", code, stdout, stderr)
	}

	env := map[string]string{"LOCKKEEPER_BENCH_COMPARE": b.Addr(), "LOCKKEEPER_JSON": "true"}
	code, stdout, stderr = call(env, "bench", a.Addr(), "--workload", "read-1x1,handover-8", "--ops", "50", "--quick")
	var r bench.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK || len(r.Rows) != 2 || len(r.Rows[0].Runs[1]) != 3 || r.Rows[0].Runs[1][0].Ops < 1 || r.Rows[0].Runs[1][0].Ops > 50 || len(r.Rows[1].Ratios) < 4 {
		t.Errorf("exit %d, %v\n%s\n%s", code, err, stdout, stderr)
	}

	code, stdout, _ = call(nil, "bench", "--list")
	if code != exitOK || strings.Count(stdout, "\n") != len(bench.All())+len(bench.Crowds()) {
		t.Errorf("exit %d\n%s", code, stdout)
	}
	code, stdout, _ = call(nil, "bench", a.Addr(), "--workload", "idle")
	if code != exitOK || !strings.Contains(stdout, "needs the server's process id") {
		t.Errorf("exit %d\n%s", code, stdout)
	}
}

// TestBenchProcess measures the processor time and memory of a process, and restarts it.
func TestBenchProcess(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux shows what a process uses")
	}
	dir := t.TempDir()
	p := start(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(dir, "data")).waitReady()
	// The command kills the server, starts it again when it has released its files, and
	// prints its new process id.
	script := fmt.Sprintf(`kill -9 %[1]d; while kill -0 %[1]d 2>/dev/null; do sleep 0.01; done; %[2]s serve --listen "$ENDPOINT" --data %[3]s/data >/dev/null 2>&1 & echo $! | tee %[3]s/pid`, p.Process.Pid, binary, dir)
	t.Cleanup(func() {
		var pid int
		if b, err := os.ReadFile(filepath.Join(dir, "pid")); err == nil {
			fmt.Sscan(string(b), &pid)
		}
		if pid > 0 {
			if server, err := os.FindProcess(pid); err == nil {
				server.Kill()
			}
		}
	})
	code, stdout, stderr := call(nil, "bench", p.addr, "--pid", fmt.Sprint(p.Process.Pid), "--json",
		"--workload", "idle,create-1x1,znodes", "--ops", "100", "--idle-sessions", "50", "--znodes", "500", "--restart-cmd", script)
	var r bench.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK || len(r.Rows) != 3 {
		t.Fatalf("exit %d, %v\n%s\n%s", code, err, stdout, stderr)
	}
	for _, row := range r.Rows {
		if x := row.Runs[0][0]; x.CPUPerOp <= 0 || x.MemoryBytes < 1<<20 || x.ServerCores <= 0 || row.Workload == "znodes" && x.RestartSeconds <= 0 {
			t.Errorf("%s: %+v", row.Workload, x)
		}
	}
}

// TestBenchFaults measures a server that is not there, and one that refuses connections.
func TestBenchFaults(t *testing.T) {
	s := lockkeepertest.Start(t, lockkeepertest.WithTCP())
	addr := s.Addr()
	code, _, stderr := call(nil, "bench", addr, "--pid", "999999999")
	if code != exitFault || !strings.Contains(stderr, "there is no process 999999999") && !strings.Contains(stderr, "only on Linux") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	s.Kill()
	refuses(t, exitFault, []string{"bench", addr}, addr)
}
