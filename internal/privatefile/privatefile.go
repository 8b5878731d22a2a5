// Package privatefile keeps files private that have passwords, data or ACLs.
package privatefile

import (
	"errors"
	"os"
)

// Create creates a file that only its owner may read, or empties the one that is there and
// makes it private.
func Create(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := Protect(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Protect makes a file one that only its owner may read. It leaves alone what is not a file,
// such as a device or a pipe.
func Protect(f *os.File) error {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o077 == 0 {
		return err
	}
	return f.Chmod(0o600)
}
