// Package privatefile keeps files private that have passwords, data or ACLs.
package privatefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Create creates a file that only its owner may read. A file that is there is replaced by a new
// one, because another user who could read it may have it open, unless it may not be written.
// If name is a symbolic link, the file to which it leads is replaced; one that leads to nothing
// is an error. What is not a file, such as a device or a pipe, is opened as it is, and so is what
// this process has open under names like /dev/stdout.
func Create(name string) (*os.File, error) {
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	}
	// With O_CREATE, Linux refuses the pipe of another user in a directory like /tmp.
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		return f, nil
	case ofDescriptor(name) || runtime.GOOS == "windows": // where an open file cannot be replaced, and modes say nothing
		if err = errors.Join(f.Truncate(0), protect(f, info)); err == nil {
			return f, nil
		}
	default:
		return replace(f, 0)
	}
	return nil, errors.Join(err, f.Close())
}

// Protect makes sure that only its owner may read what is written to a file from now on, at its
// offset. If others may read the file, it is replaced by a new one with what is before that
// offset, and f is closed. Protect leaves alone what is not a file, such as a device or a pipe.
// After an error f is closed.
func Protect(f *os.File) (*os.File, error) {
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Mode().Perm()&0o077 == 0) {
		return f, nil
	}
	if err == nil && (ofDescriptor(f.Name()) || runtime.GOOS == "windows") {
		if err = protect(f, info); err == nil {
			return f, nil
		}
	}
	keep := int64(0)
	if err == nil {
		keep, err = f.Seek(0, io.SeekCurrent)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return replace(f, keep)
}

func protect(f *os.File, info fs.FileInfo) error {
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	return f.Chmod(0o600)
}

// ofDescriptor reports whether name stands for a file that a process has open.
func ofDescriptor(name string) bool {
	name = filepath.Clean(name)
	return slices.Contains([]string{"/dev/stdin", "/dev/stdout", "/dev/stderr"}, name) || strings.HasPrefix(name, "/dev/fd/") || strings.HasPrefix(name, "/proc/")
}

// replace puts a new file in the place of f, with the first bytes of f, as many as keep says. It
// closes f.
func replace(f *os.File, keep int64) (_ *os.File, err error) {
	defer f.Close()
	name, err := filepath.EvalSymlinks(f.Name())
	if err != nil {
		return nil, err
	}
	made, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*.tmp") // new, and only for this user
	if err != nil {
		return nil, err
	}
	defer made.Close()
	if keep > 0 {
		_, err = io.Copy(made, io.NewSectionReader(f, 0, keep))
		err = errors.Join(err, made.Sync())
	}
	if err == nil {
		err = os.Rename(made.Name(), name)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(made.Name()))
	}
	// Open it by its own name, which is that in errors.
	g, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	is, err := g.Stat()
	if err == nil {
		_, err = g.Seek(keep, io.SeekStart)
	}
	if was, e := made.Stat(); err == nil && (e != nil || !os.SameFile(was, is)) {
		err = fmt.Errorf("%s: another process has replaced it", name)
	}
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}
