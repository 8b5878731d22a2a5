//go:build interop

package interop

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestUpgrade upgrades a cluster from the last release to this version, a member at a time and the
// leader last, as docs/operations.md says, and then downgrades it in the same way. Meanwhile clients
// write: no session ends, so no lock is lost, and no acknowledged write is. On each way one
// member comes back without its data, so that it gets a snapshot from members of the other version.
func TestUpgrade(t *testing.T) {
	old := olderBinary(t)
	e := newEnsemble(t, 3)
	this := e.runs[0]
	for i := range e.procs {
		e.runs[i] = old
		e.launch(i)
	}
	e.await()
	rewrite(t, e.listen[0], "/large", func() bool {
		for i := range e.procs {
			if oldestEntry(t, e.data(i)) == 1 {
				return false
			}
		}
		return true
	})
	streams := startStreams(t, e.listen, seeded(t))
	var stays []*stayer
	for range 4 {
		stays = append(stays, startStayer(t, e.listen))
	}
	progress := func() {
		t.Helper()
		for _, s := range stays {
			s.progress()
		}
	}
	for _, way := range []struct{ name, to string }{{"upgrade", this}, {"downgrade", old}} {
		began := time.Now()
		leader := e.leader()
		for n := range e.procs {
			i := (leader + 1 + n) % len(e.procs) // the leader last
			e.stop(i)
			if n == 0 {
				check(t, os.RemoveAll(e.data(i)))
			}
			progress()
			e.runs[i] = way.to
			e.launch(i)
			e.await()
			progress()
			if n == 0 {
				e.caughtUp(i)
			}
			if e.up(i).cmd.Path != way.to {
				t.Fatalf("server %d runs %s", i+1, e.procs[i].cmd.Path)
			}
		}
		t.Logf("%s of all members, one by one: %v", way.name, time.Since(began).Round(time.Millisecond))
	}
	writes := 0
	for _, s := range stays {
		writes += s.end()
	}
	sent, acked, segments := endStreams(t, e.listen[0], streams)
	t.Logf("%d clients kept their sessions and wrote %d times; %d creates sent on %d connections, %d acknowledged", len(stays), writes, sent, segments, acked)
	e.finish()
}

// caughtUp waits until a member that came back without its data has it again and votes, so that
// the next one may be stopped.
func (e *ensemble) caughtUp(i int) {
	e.t.Helper()
	var out []byte
	for deadline := time.Now().Add(startDeadline); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		status := exec.Command(lockkeeperBinary(e.t), "cluster", "status", "--peer", e.peers[i])
		status.Env = cleanEnv()
		var err error
		if out, err = status.CombinedOutput(); err == nil { // all members are well
			if oldestEntry(e.t, e.data(i)) == 1 {
				e.t.Fatalf("server %d got no snapshot", i+1)
			}
			return
		}
	}
	e.t.Fatalf("the cluster is not well again:\n%s", out)
}

// olderBinary builds the version of the last tag. It skips the test if there is none.
func olderBinary(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("../.ci/base").Output()
	commit, what, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err != nil || !strings.HasPrefix(what, "tag ") {
		t.Skip("there is no release before this version")
	}
	dir := filepath.Join(scratch, "old")
	path := filepath.Join(scratch, "lockkeeper-old")
	build := exec.Command("bash", "-euo", "pipefail", "-c", `mkdir "$1" && git -C .. -c safe.directory='*' archive "$3" | tar -x -C "$1"
		go build -C "$1" -buildvcs=false -pgo=off -o "$2" ./cmd/lockkeeper`, "bash", dir, path, commit)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", what, err, out)
	}
	t.Logf("the earlier version is %s", what)
	return path
}
