// Package fsync makes what has changed in a directory durable: files that are new in it, renamed or removed.
package fsync

import (
	"errors"
	"os"
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
