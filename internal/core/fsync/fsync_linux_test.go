package fsync

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNameInUnreadable: the directory that has the name belongs to another user, who lets others pass through it and not
// read it, as home directories often do.
func TestNameInUnreadable(t *testing.T) {
	top := t.TempDir()
	parent := filepath.Join(top, "parent")
	dir := filepath.Join(parent, "data")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(filepath.Dir(top), 0o711), os.Chmod(parent, 0o311)); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(parent, 0o755)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good, so that no other goroutine gets the thread
		if os.Getuid() == 0 {
			unix.SetfsuidRetUid(65534) // root may read everything
		}
		if err := Dir(parent); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("the directory can be synced: %v", err)
		}
		if err := Name(dir); err != nil {
			t.Error(err)
		}
		if err := Name(filepath.Join(parent, "none")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a name that is not there: %v", err)
		}
	}()
	<-done
}
