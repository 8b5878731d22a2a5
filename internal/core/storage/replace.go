package storage

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/lockkeeper/lockkeeper/internal/core/fsync"
)

// While Replace is at work for dir, and after a crash, there is a directory dir.new.tmp with the first two. Nothing else is
// in it, and what is in it has never been in use.
const (
	besideEnd = ".new.tmp"
	madeName  = "data"    // the directory that is being made
	aloneName = "lock.db" // locked, so that there is only one Replace for dir at a time

	// unusedName is a file in a directory that has got another name than dir and that Replace is about to give the name dir,
	// so that after a crash nobody takes it for what was in dir before. It has the last part of that name.
	unusedName = "never-used.tmp"
)

// Replace has fill make a directory, and gives it the name dir. What had that name before is kept
// under another one, dir.1 or a number above all that are there, which Replace returns; the result is empty if there was nothing. While
// another process has the data directory open, or replaces it, the error is [ErrInUse]. After an error without old, dir is as
// it was; with old, the new directory has the name dir, but a crash may undo that.
//
// If dir is a symbolic link, Replace does all that where the link leads to. A directory that [MakeDir] takes for
// empty is filled where it is.
//
// A crash leaves dir as it was or as it is to be. Where the system cannot exchange two names at once, it may also leave
// dir without a directory; then [Open] does not make one there. In all cases Replace can be called again. It deletes
// nothing that was in use. A crash may leave a complete directory under the next number that has never had the name dir. It has
// a file never-used.tmp, and the next Replace removes it if the system lets it.
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
		to, err := filepath.EvalSymlinks(dir)
		if errors.Is(err, fs.ErrNotExist) {
			to = leadsTo(dir)
			if _, begun := os.Lstat(to + besideEnd); begun == nil { // a Replace that did not end has left nothing there
				err = nil
			}
		}
		if err != nil {
			return "", err
		}
		dir = to
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return "", fmt.Errorf("%s is not a directory", dir)
	}
	return dir, nil
}

// leadsTo returns where a symbolic link leads to. Nothing needs to be there.
func leadsTo(link string) string {
	for range 40 { // as the kernel does
		to, err := os.Readlink(link)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			in, err := filepath.EvalSymlinks(filepath.Dir(link))
			if err != nil {
				break
			}
			to = filepath.Join(in, to)
		}
		link = filepath.Clean(to)
	}
	return link
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
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("another restore at %s has just ended: try again (%w)", dir, err)
		}
		return err
	}
	lock, err := bbolt.Open(name.path, fileMode, &bbolt.Options{Timeout: lockTimeout, OpenFile: name.open})
	if errors.Is(err, berrors.ErrTimeout) {
		return fmt.Errorf("%s is %w, which restores a snapshot there", dir, ErrInUse)
	} else if err != nil {
		return fmt.Errorf("%s: %w", name.path, err)
	}
	if err := name.lost(); err != nil { // the other one has just ended, and what is there now is a third one's
		lock.Close()
		return err
	}
	made := filepath.Join(beside, madeName)
	defer func() {
		free, e := isFree(dir)
		ended := err == nil || e == nil && !free // otherwise halfReplaced needs it, also if somebody has made an empty dir
		if ended {
			os.RemoveAll(made)
			for _, e := range entries { // of one that did not end
				if name := e.Name(); name != madeName && name != aloneName {
					os.Remove(filepath.Join(beside, name))
				}
			}
			os.Remove(name.path) // now another one may begin
		}
		lock.Close()
		if ended {
			if runtime.GOOS == "windows" { // which removes no file that is open
				os.Remove(name.path)
			}
			if os.Remove(beside) == nil { // if it is empty
				fsync.Dir(filepath.Dir(dir)) // otherwise it may come back, and the next server would warn of it
			}
		}
	}()
	if err := os.RemoveAll(made); err != nil { // of one that did not end
		return err
	}
	if err := removeUnused(dir, made); err != nil {
		return err
	}
	return f(made)
}

// removeUnused removes directories that a Replace which did not end has left under the numbers for what was in dir, if nothing was
// ever written to their logs. Those that it cannot remove stay.
func removeUnused(dir, made string) (err error) {
	numbers, _ := keptNumbers(dir)
	for _, n := range numbers {
		kept := nameOfKept(dir, n)
		unused := func() bool { // and not restored for a server whose directory has this name
			name, err := os.ReadFile(filepath.Join(kept, unusedName))
			return err == nil && string(name) == filepath.Base(dir)
		}
		if !unused() {
			continue
		}
		remove := func() {
			if os.Rename(kept, made) == nil { // so that no part of it keeps the name
				err = errors.Join(err, os.RemoveAll(made))
			}
		}
		found := withoutServer(kept, func() error { // somebody may have started one there
			r, err := Check(kept)
			if err == nil && (r.LastIndex > 0 || !unused()) {
				err = errors.New("it was used")
			}
			if err == nil && runtime.GOOS != "windows" { // see Replace
				remove()
			}
			return err
		})
		if found == nil && runtime.GOOS == "windows" {
			remove()
		}
	}
	return err
}

// keptNumbers returns the numbers of names like dir.1, in ascending order.
func keptNumbers(dir string) (numbers []int64, err error) {
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		text, ok := strings.CutPrefix(e.Name(), filepath.Base(dir)+".")
		if n, err := strconv.ParseInt(text, 10, 64); ok && err == nil && n > 0 && n < math.MaxInt64 && strconv.FormatInt(n, 10) == text {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

func nameOfKept(dir string, n int64) string { return fmt.Sprintf("%s.%d", dir, n) }

// setUnused durably notes that the directory made, which is to have the name dir, has never been in use. wasUsed durably removes
// that note.
func setUnused(made, dir string) error {
	f, err := os.OpenFile(filepath.Join(made, unusedName), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	_, err = f.WriteString(filepath.Base(dir))
	return cmp.Or(errors.Join(err, f.Sync(), f.Close()), fsync.Dir(made))
}

func wasUsed(dir string) error {
	if err := os.Remove(filepath.Join(dir, unusedName)); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	} else if err != nil {
		return err
	}
	return fsync.Dir(dir)
}

// swap gives the directory made the name dir, and dir another one, which it returns.
func swap(made, dir string) (old string, err error) {
	if err := os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) { // it has become empty meanwhile
		return "", errors.Join(os.Rename(made, dir), fsync.Dir(filepath.Dir(dir)))
	}
	numbers, err := keptNumbers(dir)
	if err != nil {
		return "", err
	}
	n := int64(1)
	if len(numbers) > 0 { // above all, so that the highest is what was there last, whichever were deleted
		n = numbers[len(numbers)-1] + 1
	}
	old = nameOfKept(dir, n)
	if err := setUnused(made, dir); err != nil {
		return "", err
	}
	if err := wasUsed(dir); err != nil { // one that did not end may have left this
		return "", err
	}
	done := func() (string, error) {
		os.Remove(filepath.Join(dir, unusedName)) // otherwise a server removes it when it starts
		if err := fsync.Dir(filepath.Dir(dir)); err != nil {
			return old, fmt.Errorf("%s is the new directory, and what it had before is kept as %s, but a crash may undo that: %w", dir, old, err)
		}
		return old, nil
	}
	if err := os.Rename(made, old); err != nil {
		return "", err
	}
	err = fsync.Dir(filepath.Dir(dir))
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
	if errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EXDEV) {
		err = fmt.Errorf("%s cannot be renamed, so what is in it cannot be kept under another name: if a disk is mounted there, or it is from the image of a container, "+
			"use a directory on that disk, or on another one (%w)", dir, err)
	}
	return "", errors.Join(err, back)
}

// leftBeside returns the place of dir, and the directory beside that if Replace has begun there, and has not ended.
func leftBeside(dir string) (place, beside string) {
	place, err := placeOf(dir)
	if err != nil {
		return "", ""
	}
	if _, err := os.Lstat(place + besideEnd); err != nil {
		return place, ""
	}
	return place, place + besideEnd
}

// halfReplaced returns an error if Replace has begun at dir, and has not ended. A server that finds no state in dir must not begin
// then: where the system cannot exchange two names at once, the state may have another name for a moment, or after a crash.
func halfReplaced(dir string) error {
	place, beside := leftBeside(dir)
	if beside == "" {
		return nil
	}
	numbers, _ := keptNumbers(place)
	if len(numbers) == 0 {
		return fmt.Errorf("there is no state in %s, and %s shows that a restore of a snapshot has not ended: run it again, or remove %[2]s to begin without one", dir, beside)
	}
	return fmt.Errorf("there is no state in %s, and %s shows that a restore of a snapshot has not ended: run it again. "+
		"What was there before is %s; to go back to it, rename it to %[4]s, after moving away what has that name, and remove %[2]s",
		dir, beside, nameOfKept(place, numbers[len(numbers)-1]), place)
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
