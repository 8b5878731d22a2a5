package storage

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// While Replace is at work for dir, and after a crash, there is a directory dir.new.tmp with these two. Nothing else is
// in it, and what is in it has never been in use.
const (
	besideEnd = ".new.tmp"
	madeName  = "data"    // the directory that is being made
	aloneName = "lock.db" // locked, so that there is only one Replace for dir at a time
)

// Replace has fill make a directory, and gives it the name dir. What had that name before is kept
// under another one, dir.1 or the next that is free, which Replace returns; the result is empty if there was nothing. While
// another process has the data directory open, or replaces it, the error is [ErrInUse]. After an error without old, dir is as
// it was; with old, the new directory has the name dir, but a crash may undo that.
//
// If dir is a symbolic link, Replace does all that where the link leads to. A directory that [MakeDir] takes for
// empty is filled where it is.
//
// A crash leaves dir as it was or as it is to be. Where the system cannot exchange two names at once, it may also leave
// dir without a directory; then [Open] does not make one there. In all cases Replace can be called again. It deletes
// nothing that was in use. It may keep a directory under the next number that was complete but has never had the name dir.
func Replace(dir string, fill func(made string) error) (old string, err error) {
	if dir, err = placeOf(dir); err != nil {
		return "", err
	}
	free, err := isFree(dir)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(dir + besideEnd); free && errors.Is(err, fs.ErrNotExist) {
		return "", fill(dir)
	}
	err = exclusively(dir, func(made string) error {
		if free, err = isFree(dir); err != nil {
			return err
		} else if free { // a crash has left it like this
			return fill(dir)
		}
		if err := withoutServer(dir, func() error { return nil }); err != nil { // before the work is done in vain
			return err
		}
		if err := fill(made); err != nil {
			return err
		}
		if runtime.GOOS == "windows" { // which renames no directory with a file that is open, whoever has it open
			old, err = swap(made, dir)
			return err
		}
		var swapped error // which says what it is about, and is not about the file that withoutServer locks
		err := withoutServer(dir, func() error { old, swapped = swap(made, dir); return nil })
		return cmp.Or(err, swapped)
	})
	return old, err
}

// placeOf returns a path of dir whose last part is its name, which another directory can get.
func placeOf(dir string) (string, error) {
	dir = filepath.Clean(dir) // without a slash at its end, so that filepath.Dir is its parent
	if base := filepath.Base(dir); base == "." || base == ".." {
		var err error
		if dir, err = filepath.Abs(dir); err != nil {
			return "", err
		}
	}
	if info, err := os.Lstat(dir); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			return "", err
		}
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return "", fmt.Errorf("%s is not a directory", dir)
	}
	return dir, nil
}

// exclusively calls f while no other process does the same for dir. f may make the directory made, which is removed afterwards.
func exclusively(dir string, f func(made string) error) (err error) {
	beside := dir + besideEnd
	entries, err := os.ReadDir(beside)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); name != madeName && !strings.HasPrefix(name, aloneName) {
			return fmt.Errorf("%s has %s in it, which no restore has made: move it away", beside, name)
		}
	}
	if err := os.Mkdir(beside, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("the new directory is made beside %s: %w", dir, err)
	}
	name := &nameOfOpen{path: filepath.Join(beside, aloneName)}
	if err := createDatabase(name.path); err != nil {
		os.Remove(beside) // if it is empty
		return err
	}
	lock, err := bbolt.Open(name.path, fileMode, &bbolt.Options{Timeout: lockTimeout, OpenFile: name.open})
	if errors.Is(err, berrors.ErrTimeout) {
		return fmt.Errorf("%s is %w, which restores a snapshot there", dir, ErrInUse)
	} else if err != nil {
		return fmt.Errorf("%s: %w", name.path, err)
	}
	defer func() {
		if _, gone := os.Lstat(dir); err == nil || gone == nil { // otherwise halfReplaced needs it
			os.RemoveAll(beside)
		}
		lock.Close()
		if runtime.GOOS == "windows" { // which removes no file that is open
			os.Remove(name.path)
			os.Remove(beside)
		}
	}()
	if err := name.lost(); err != nil { // the other one has just ended
		return err
	}
	made := filepath.Join(beside, madeName)
	if err := os.RemoveAll(made); err != nil { // of one that did not end
		return err
	}
	return f(made)
}

// swap gives the directory made the name dir, and dir another one, which it returns.
func swap(made, dir string) (old string, err error) {
	if err := os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) { // it has become empty meanwhile
		return "", errors.Join(os.Rename(made, dir), syncDir(filepath.Dir(dir)))
	}
	for n := 1; old == ""; n++ {
		next := fmt.Sprintf("%s.%d", dir, n)
		if _, err := os.Lstat(next); errors.Is(err, fs.ErrNotExist) {
			old = next
		} else if err != nil {
			return "", err
		}
	}
	done := func() (string, error) {
		if err := syncDir(filepath.Dir(dir)); err != nil {
			return old, fmt.Errorf("%s is the new directory, and what it had before is kept as %s, but a crash may undo that: %w", dir, old, err)
		}
		return old, nil
	}
	if err := os.Rename(made, old); err != nil {
		return "", err
	}
	err = syncDir(filepath.Dir(dir))
	if err == nil {
		err = exchange(old, dir)
	}
	if err == nil {
		return done()
	}
	back := os.Rename(old, made)
	if errors.Is(err, errors.ErrUnsupported) && back == nil {
		if err = os.Rename(dir, old); err == nil {
			if err = os.Rename(made, dir); err == nil {
				return done()
			}
			back = os.Rename(old, dir)
		}
	}
	if errors.Is(err, syscall.EBUSY) {
		err = fmt.Errorf("%s cannot be renamed, so what is in it cannot be kept under another name: if a disk is mounted there, use a directory on that disk (%w)", dir, err)
	}
	return "", errors.Join(err, back)
}

// halfReplaced returns an error if there is no dir because a crash has ended Replace: a server must not begin there
// without a state.
func halfReplaced(dir string) error {
	dir = filepath.Clean(dir)
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return nil // if it is an error, the caller gets it, too
	}
	if _, err := os.Lstat(dir + besideEnd); err != nil {
		return nil
	}
	return fmt.Errorf("there is no %s, because a restore of a snapshot has not ended: run it again. "+
		"What was there before is %[1]s.1, or has the highest such number; to go back to it, rename it, and remove %[1]s%s", dir, besideEnd)
}

// withoutServer runs f while no other process has the data directory open to write to it. The directory may be
// damaged, or may not exist.
func withoutServer(dir string, f func() error) error {
	for _, file := range []string{walStable, boltFile} {
		path, inner := filepath.Join(dir, file), f
		f = func() error {
			called := false
			err := withoutOthers(path, func() error { called = true; return inner() })
			if !called && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) { // there is a file where a directory should be
				return inner()
			}
			return err
		}
	}
	return f()
}
