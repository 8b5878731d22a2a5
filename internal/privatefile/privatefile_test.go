//go:build unix

package privatefile

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestCreate makes a new file, and one that everybody may read.
func TestCreate(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	for _, before := range []os.FileMode{0, 0o644, 0o400, 0o600} {
		if before != 0 {
			if err := os.Chmod(name, before); err != nil {
				t.Fatal(err)
			}
		}
		f, err := Create(name)
		if before == 0o400 && os.Geteuid() != 0 {
			if err == nil {
				t.Error("a file that may not be written was opened")
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got&0o077 != 0 {
			t.Errorf("the mode was %o and is %o", before, got)
		}
	}

	// What is not a file keeps its mode.
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.Chmod(pipe, 0o666)); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(pipe, os.O_RDWR, 0) // does not wait for another process
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Protect(f); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(pipe); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("the mode of the pipe is %v, %v", info.Mode(), err)
	}
}
