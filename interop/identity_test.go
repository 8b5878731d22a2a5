//go:build interop

package interop

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// unserved checks that no running member serves clients for a while.
func (e *ensemble) unserved(why string) {
	e.t.Helper()
	time.Sleep(4 * time.Second) // two election timeouts
	for i, p := range e.procs {
		select {
		case <-p.stderr.match:
			e.t.Fatalf("server %d serves %s", i+1, why)
		default:
		}
	}
}

// TestClusterFormedOnce: servers form a cluster when all of them are there, and no majority of
// them whose disks are empty forms it a second time.
func TestClusterFormedOnce(t *testing.T) {
	e := newEnsemble(t, 3)
	for i := range 2 {
		e.launch(i)
	}
	e.procs[2] = &lockkeeper{t: t, exited: make(chan struct{}), stderr: &tail{match: make(chan string, 1)}, quiet: true}
	e.unserved("before the third was ever started")
	e.launch(2)
	e.await()
	c := connect(t, e.listen[0], 10*time.Second)
	if _, err := c.Create("/acknowledged", []byte("x"), 0, openACL); err != nil {
		t.Fatal(err)
	}
	c.Close()
	for i := range e.procs {
		e.kill(i)
	}
	if err := os.RemoveAll(e.data(1)); err != nil {
		t.Fatal(err)
	}
	// Server 3 has been formed, but may not have the write.
	e.launch(1)
	e.launch(2)
	e.unserved("while the only one that surely has the write is down")
	e.launch(0)
	e.await()
	e.agree()
	c = connect(t, e.listen[1], 10*time.Second)
	defer c.Close()
	if b, _, err := c.Get("/acknowledged"); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestClusterForeignDirectory: a server that is started on the directory of another cluster with
// the same ids and ports exits with a line that names both, and the others go on without it.
func TestClusterForeignDirectory(t *testing.T) {
	e := startEnsemble(t, 3)
	for i := range e.procs {
		e.stop(i)
	}
	old := e.data(2)
	first, err := storage.Check(old)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(e.dir, e.dir+".old"); err != nil {
		t.Fatal(err)
	}
	for i := range e.procs {
		e.launch(i)
	}
	e.await()
	e.stop(2)
	own := e.data(2)
	if err := os.Rename(own, own+".own"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(e.dir+".old", "3"), own); err != nil {
		t.Fatal(err)
	}
	w := startWriter(t, e.listen[0])
	e.launch(2)
	p := e.procs[2]
	p.quiet = true
	select {
	case <-p.exited:
	case <-time.After(startDeadline):
		t.Fatal("it goes on")
	}
	second, err := e.cluster(0, "status")
	if err != nil {
		t.Fatal(err)
	}
	text := p.stderr.String()
	last := text[strings.LastIndex(strings.TrimSpace(text), "\n")+1:]
	if p.state.ExitCode() != 1 || !strings.Contains(last, first.Cluster.String()) || !strings.Contains(last, second.Cluster) || first.Cluster.String() == second.Cluster {
		t.Errorf("exit code %d, cluster %v in %s:\n%s", p.state.ExitCode(), first.Cluster, second.Cluster, last)
	}
	w.answers(20)
	w.end()
	if err := os.RemoveAll(own); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(own+".own", own); err != nil {
		t.Fatal(err)
	}
	e.launch(2)
	e.await()
	e.agree()
}

// restore restores the directory of member i from a snapshot, for a cluster of all members.
func (e *ensemble) restore(i int, snapshot string) {
	e.t.Helper()
	var members []string
	for j, addr := range e.peers {
		members = append(members, fmt.Sprintf("%d=%s", j+1, addr))
	}
	runLockkeeper(e.t, "snapshot", "restore", snapshot, "--data", e.data(i), "--id", strconv.Itoa(i+1), "--peers", strings.Join(members, ","))
}

// runLockkeeper runs a command of the program, which must end well.
func runLockkeeper(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command(lockkeeperBinary(t), args...)
	cmd.Env = cleanEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("lockkeeper %q: %v\n%s", args, err, out)
	}
}

// twoMoments returns snapshots of a server before and after some writes.
func twoMoments(t *testing.T) (earlier, later string) {
	t.Helper()
	s := startLockkeeper(t)
	file := func(name string) string { return filepath.Join(t.TempDir(), name) }
	write := func(from, to int) {
		c := connect(t, s.addr, 10*time.Second)
		defer c.Close()
		for i := from; i < to; i++ {
			if _, err := c.Create(fmt.Sprintf("/%d", i), nil, 0, openACL); err != nil {
				t.Fatal(err)
			}
		}
	}
	save := func(file string) string {
		s.Stop()
		runLockkeeper(t, "snapshot", "save", file, "--data", s.dir)
		return file
	}
	write(0, 3)
	earlier = save(file("earlier"))
	s = startLockkeeper(t, "--data", s.dir)
	write(3, 300)
	return earlier, save(file("later"))
}

// TestClusterDifferentSnapshots: servers that were restored from different snapshots form no cluster, and say why. Restored
// from the same one, they do.
func TestClusterDifferentSnapshots(t *testing.T) {
	earlier, later := twoMoments(t)
	e := newEnsemble(t, 3)
	for i, from := range []string{earlier, later, later} {
		e.restore(i, from)
		e.launch(i)
	}
	e.unserved("although their snapshots differ")
	if text := e.procs[0].stderr.String(); !strings.Contains(text, "restore the same snapshot on all") {
		t.Errorf("server 1 says:\n%s", text)
	}
	e.kill(0)
	if err := os.RemoveAll(e.data(0)); err != nil {
		t.Fatal(err)
	}
	e.restore(0, later)
	e.launch(0)
	e.await()
	e.agree()
	c := connect(t, e.listen[0], 10*time.Second)
	defer c.Close()
	if _, _, err := c.Get("/299"); err != nil {
		t.Error(err)
	}
}

// TestClusterAheadOfLeader: the directory of a member is restored from a later snapshot, and gets the meta.json of the directory
// before it, so that the others take it for the member. It ends, and says that members differ. The others go on.
func TestClusterAheadOfLeader(t *testing.T) {
	earlier, later := twoMoments(t)
	e := newEnsemble(t, 3)
	for i := range e.procs {
		e.restore(i, earlier)
		e.launch(i)
	}
	e.await()
	for i := range e.procs {
		e.stop(i)
	}
	meta, err := os.ReadFile(filepath.Join(e.data(2), "meta.json"))
	if err == nil {
		err = os.RemoveAll(e.data(2))
	}
	if err != nil {
		t.Fatal(err)
	}
	e.restore(2, later)
	if err := os.WriteFile(filepath.Join(e.data(2), "meta.json"), meta, 0o600); err != nil {
		t.Fatal(err)
	}
	e.launch(0)
	e.launch(1)
	w := startWriter(t, e.listen[0])
	w.answers(1)
	e.launch(2)
	p := e.procs[2]
	p.quiet = true
	select {
	case <-p.exited:
	case <-time.After(startDeadline):
		t.Fatal("it goes on")
	}
	if text := p.stderr.String(); p.state.ExitCode() != 1 || !strings.Contains(text, "Two members differ") {
		t.Errorf("exit code %d:\n%s", p.state.ExitCode(), text)
	}
	w.answers(20)
	w.end()
}
