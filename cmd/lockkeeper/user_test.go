//go:build unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestDirectoryNotWritable runs the command on a read-only directory. Root could write
// anyway, so it runs the command as the user nobody.
func TestDirectoryNotWritable(t *testing.T) {
	for name, data := range map[string]func(root string) string{
		"new":      func(root string) string { return filepath.Join(root, "new") },
		"existing": func(string) string { return filled(t) },
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			dir := data(root)
			for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) { // readable all the way
				if err := os.Chmod(d, 0o755); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
			}
			for path, mode := range map[string]os.FileMode{root: 0o555, filepath.Join(dir, "raft/wal/stable.db"): 0o444} {
				if err := os.Chmod(path, mode); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
			}
			t.Cleanup(func() { os.Chmod(root, 0o755) })
			cmd := exec.Command(binary, "serve", "--listen", "127.0.0.1:0", "--data", dir)
			cmd.Dir = "/"
			if os.Getuid() == 0 {
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			}
			fails(t, startCmd(t, cmd), dir, "permission denied")
		})
	}
}
