// Package fsync makes what has changed in a directory durable: files that are new in it, renamed or removed.
package fsync

import (
	"errors"
	"os"
	"runtime"
)

// Dir returns when the names in a directory are on the disk.
//
// On Windows it returns at once, since that cannot sync directories; NTFS logs what changes in them.
func Dir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(Open(d), d.Close())
}

// Open is [Dir] for an open directory.
func Open(d *os.File) error {
	if runtime.GOOS == "windows" { // access is denied
		return nil
	}
	return d.Sync()
}
