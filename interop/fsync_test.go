//go:build interop

package interop

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSnapshotIsSynced traces the system calls of a server that takes a snapshot. The
// files must be synced before the snapshot gets its name, and the directory with the name
// right after. Otherwise a power failure could remove the snapshot after the log that it
// replaces has been deleted.
func TestSnapshotIsSynced(t *testing.T) {
	dir := t.TempDir()
	trace := filepath.Join(dir, "trace")
	cmd := exec.Command("strace", "-f", "-y", "-qq", "-e", "trace=fsync,fdatasync,rename,renameat,renameat2", "-o", trace,
		lockkeeperBinary(t), "serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(dir, "data"))
	cmd.Env = cleanEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stderr := &tail{want: servingLine, match: make(chan string, 1)}
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v (interop/setup.sh installs strace)", err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	var addr string
	select {
	case line := <-stderr.match:
		addr = strings.TrimSpace(line[strings.Index(line, servingLine)+len(servingLine):])
	case err := <-exited:
		if strings.Contains(stderr.String(), "ptrace") {
			t.Skipf("this kernel does not allow strace: %s", stderr)
		}
		t.Fatalf("the server ended: %v\n%s", err, stderr)
	case <-time.After(startDeadline):
		t.Fatalf("the server does not start\n%s", stderr)
	}
	conn := connect(t, addr, 10*time.Second)
	data := make([]byte, 500_000) // written often enough for 16 MiB of log, after which the server takes a snapshot
	for i := range 40 {
		if _, err := conn.Create(fmt.Sprintf("/n%d", i), data, 0, openACL); err != nil {
			t.Fatal(err)
		}
	}
	conn.Close()
	// Strace does not forward signals to the server, which is its child.
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	server, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		t.Fatalf("the children of strace: %v", err)
	}
	if err := syscall.Kill(server, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-exited:
		if err != nil {
			t.Fatalf("%v\n%s", err, stderr)
		}
	case <-time.After(startDeadline):
		cmd.Process.Kill()
		t.Fatal("the server does not stop")
	}
	text, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	synced := regexp.MustCompile(`f(?:data)?sync\([0-9]+<([^>]+)>`)
	renamed := regexp.MustCompile(`rename.*"([^"]+)\.tmp", .*"([^"]+)"`)
	snapshots := 0
	done := map[string]bool{} // synced files
	var waiting string        // a directory with a new name that is not synced yet
	for line := range strings.Lines(string(text)) {
		if m := synced.FindStringSubmatch(line); m != nil {
			done[m[1]] = true
			if m[1] == waiting {
				waiting = ""
			}
		}
		if m := renamed.FindStringSubmatch(line); m != nil && strings.Contains(m[1], "/snapshots/") {
			snapshots++
			for _, file := range []string{"state.bin", "meta.json"} {
				if !done[m[1]+".tmp/"+file] {
					t.Errorf("%s got its name before its %s was on the disk", m[1], file)
				}
			}
			if !done[m[1]+".tmp"] {
				t.Errorf("%s got its name before those of its files were on the disk", m[1])
			}
			waiting = filepath.Dir(m[1])
		}
	}
	if snapshots == 0 {
		t.Fatalf("no snapshot was taken:\n%s", text)
	}
	if waiting != "" {
		t.Errorf("%s was not synced after a snapshot got its name", waiting)
	}
}
