package storage

import (
	"os"
	"path/filepath"
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
