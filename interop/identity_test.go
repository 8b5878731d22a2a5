//go:build interop

package interop

import (
	"os"
	"path/filepath"
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
	t.Parallel()
	e := newEnsemble(t, 3)
	for i := range 2 {
		e.launch(i)
	}
	e.procs[2] = &lockkeeper{t: t, exited: make(chan struct{}), stderr: &tail{match: make(chan string, 1)}, quiet: true}
	e.unserved("before the third was ever started")
	e.launch(2)
	e.await()
	c := connect(t, e.listen[0], 10*time.Second)
	must(c.Create("/acknowledged", []byte("x"), 0, openACL))(t)
	c.Close()
	for i := range e.procs {
		e.kill(i)
	}
	check(t, os.RemoveAll(e.data(1)))
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
	t.Parallel()
	e := startEnsemble(t, 3)
	for i := range e.procs {
		e.stop(i)
	}
	old := e.data(2)
	first := must(storage.Check(old))(t)
	check(t, os.Rename(e.dir, e.dir+".old"))
	for i := range e.procs {
		e.launch(i)
	}
	e.await()
	e.stop(2)
	own := e.data(2)
	check(t, os.Rename(own, own+".own"))
	check(t, os.Rename(filepath.Join(e.dir+".old", "3"), own))
	w := startWriter(t, e.listen[0])
	e.launch(2)
	p := e.procs[2]
	p.quiet = true
	select {
	case <-p.exited:
	case <-time.After(startDeadline):
		t.Fatal("it goes on")
	}
	second := must(e.cluster(0, "status"))(t)
	text := p.stderr.String()
	last := text[strings.LastIndex(strings.TrimSpace(text), "\n")+1:]
	if p.state.ExitCode() != 1 || !strings.Contains(last, first.Cluster.String()) || !strings.Contains(last, second.Cluster) || first.Cluster.String() == second.Cluster {
		t.Errorf("exit code %d, cluster %v in %s:\n%s", p.state.ExitCode(), first.Cluster, second.Cluster, last)
	}
	w.answers(20)
	w.end()
	check(t, os.RemoveAll(own))
	check(t, os.Rename(own+".own", own))
	e.launch(2)
	e.await()
	e.agree()
}
