package fsync

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// syncFileSystem syncs the whole file system that a directory is in, and so its name.
func syncFileSystem(dir string) (able bool, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return true, err
	}
	return true, errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}
