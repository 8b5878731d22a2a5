package testkit

import (
	"os"
	"testing"
)

// MemoryDir is like t.TempDir, but the directory is in memory where the system has a
// file system for that. There a sync costs nothing. Tests of what reaches the disk, and
// when, need t.TempDir.
func MemoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "lockkeeper-test-")
	if err != nil {
		return t.TempDir()
	}
	if err := os.Chmod(dir, 0o755); err != nil { // like t.TempDir's, since tests check who may read the files
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
