package storage

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// exchange gives each of two directories the name of the other one, both at the same moment. The error is
// [errors.ErrUnsupported] if the system, or this file system, cannot do that.
func exchange(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	switch {
	case err == nil:
		return nil
	case err == unix.EINVAL: // this file system
		err = errors.ErrUnsupported
	}
	return fmt.Errorf("exchanging names: %w", &os.LinkError{Op: "rename", Old: a, New: b, Err: err})
}
