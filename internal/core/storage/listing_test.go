package storage

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestListWhileReplaced: the newest snapshot is replaced by two newer ones, and deleted, while it is being listed. That is no damage.
func TestListWhileReplaced(t *testing.T) {
	dir := testkit.MemoryDir(t)
	testkit.Check(t, os.MkdirAll(filepath.Join(dir, snapshotDir), dirMode))
	s := testkit.Must(openSnapshots(dir, hclog.NewNullLogger()))(t)
	_, trans := raft.NewInmemTransport("")
	var listing sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		listing.Go(func() {
			for open := true; open; {
				select {
				case <-done:
					open = false
				default:
				}
				if _, err := s.List(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range uint64(1000) {
		sink := testkit.Must(s.Create(1, i+1, 1, raft.Configuration{}, 1, trans))(t)
		testkit.Check(t, sink.Close())
	}
	close(done)
	listing.Wait()
}

// TestOthersReadNothing: other users may read no file of a directory, and enter no directory.
func TestOthersReadNothing(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files have no modes")
	}
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		dir, _ := sample(t, disk)
		check(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if info := must(d.Info())(t); info.Mode().Perm()&0o077 != 0 {
				t.Errorf("other users may read %s: %v", path, info.Mode())
			}
			return nil
		}))
	})
}
