// Package fsync makes what has changed in a directory durable: files that are new in it, renamed or removed.
package fsync

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// Dir returns when the names in a directory are on the disk.
//
// Windows cannot sync a directory, so there it returns at once; NTFS journals changes of names.
func Dir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(Opened(d), d.Close())
}

// Opened is [Dir] for a directory that is open.
func Opened(d *os.File) error {
	if runtime.GOOS == "windows" { // access is denied
		return nil
	}
	return d.Sync()
}

// Name returns when the name of a directory is on the disk. On Linux, this works even if the process may not read the
// parent directory.
func Name(dir string) error {
	err := Dir(filepath.Dir(dir))
	if errors.Is(err, fs.ErrPermission) {
		if able, err := syncFileSystem(dir); able {
			return err
		}
	}
	return err
}
