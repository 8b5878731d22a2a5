package fsync

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// fileSystem syncs everything in the file system that a directory is in, and so its name.
func fileSystem(dir string) (able bool, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return true, err
	}
	return true, errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}
