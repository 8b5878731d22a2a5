package cluster

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// unwritten is how many pages of a file are not on the disk yet; false if the kernel
// cannot tell (cachestat, since Linux 6.5).
func unwritten(t *testing.T, path string) (pages uint64, known bool) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all struct{ offset, length uint64 }
	var stat struct{ cached, dirty, writing, evicted, recentlyEvicted uint64 }
	const cachestat = 451
	_, _, errno := syscall.Syscall6(cachestat, f.Fd(), uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&stat)), 0, 0, 0)
	return stat.dirty + stat.writing, errno == 0
}

// tellsUnwritten reports whether unwritten can be trusted in a directory: bytes that
// were just written are not on the disk, and are after a sync.
func tellsUnwritten(t *testing.T, dir string) bool {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "probe"))
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.Write(make([]byte, 10_000)); err != nil {
		t.Fatal(err)
	}
	before, known := unwritten(t, f.Name())
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	after, _ := unwritten(t, f.Name())
	return known && before > 0 && after == 0
}

// TestAcknowledgedIsOnDisk: when a write is acknowledged, all of the log is on the
// disk, and when a snapshot is taken, all of the snapshot is.
func TestAcknowledgedIsOnDisk(t *testing.T) {
	dir := t.TempDir()
	if !tellsUnwritten(t, dir) {
		t.Skip("the kernel or the file system does not tell what is on the disk")
	}
	cfg := testConfig(filepath.Join(dir, "data"))
	m, err := Open(cfg, fsm.NewReplica())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	<-m.Ready()
	synced := func(when string) {
		t.Helper()
		err := filepath.WalkDir(cfg.Dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			if pages, _ := unwritten(t, path); pages > 0 {
				t.Errorf("%s, %d pages of %s are not on the disk", when, pages, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		done := make(result, 1)
		m.Propose(fsm.Reap("/none"), done, nil)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if synced("after a write"); t.Failed() {
			t.Fatalf("write %d", i)
		}
	}
	if err := m.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	synced("after a snapshot")
}
