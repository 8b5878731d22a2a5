package storage

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/bbolt"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// replaced is a data directory that is to be replaced, and what Replace puts in its place: an older state.
type replaced struct {
	t        *testing.T
	disk     testedDisk
	dir      string
	intact   *Report // of dir
	snapshot []byte
}

func newReplaced(t *testing.T, disk testedDisk) *replaced {
	t.Helper()
	dir, intact := sample(t, disk)
	r := &replaced{t: t, disk: disk, dir: dir, intact: intact}
	m := fsm.NewMachine()
	m.Restart(intact.LastIndex-2, nil) // so that the last entry of the old log would go on after it
	var b bytes.Buffer
	check(t, m.Snapshot().Write(&b))
	r.snapshot = b.Bytes()
	return r
}

func (r *replaced) fill(beside string) error { return makeSample(r.disk, beside, r.snapshot) }

// isOld and isNew report what a directory has.
func (r *replaced) isOld(dir string) bool {
	report, err := checkDirectory(r.disk, dir)
	return err == nil && *report == *r.intact
}

func (r *replaced) isNew(dir string) bool {
	report, err := checkDirectory(r.disk, dir)
	return err == nil && report.Sessions == 0 && report.LastIndex == 0 && report.SnapshotIndex == r.intact.LastIndex-1
}

// TestReplaceAtomic looks all the time while a directory is replaced, and replaced again: there always is one, and it always
// has one of the two states. A server that starts at any moment, also after a crash, must not find none and begin without
// any state.
func TestReplaceAtomic(t *testing.T) {
	base := testkit.MemoryDir(t)
	dir := filepath.Join(base, "data")
	check(t, os.Mkdir(dir, 0o700))
	check(t, os.WriteFile(filepath.Join(dir, "x"), nil, 0o600))
	other := filepath.Join(base, "other")
	check(t, os.Mkdir(other, 0o700))
	if exchange(dir, other) != nil {
		t.Skip("this system cannot exchange the names of two directories")
	}
	check(t, exchange(dir, other))
	stop, looked, gone := make(chan struct{}), make(chan struct{}), 0
	go func() {
		defer close(looked)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := os.Lstat(filepath.Join(dir, "x")); err != nil {
				gone++
			}
		}
	}()
	for range 300 {
		must(Replace(dir, func(beside string) error {
			return errors.Join(os.Mkdir(beside, 0o700), os.WriteFile(filepath.Join(beside, "x"), nil, 0o600))
		}))(t)
	}
	close(stop)
	if <-looked; gone > 0 {
		t.Errorf("there was no directory %d times", gone)
	}
}

// TestReplaceAfterCrash begins where a crash may have ended another Replace. Where directories cannot be exchanged, dir may be
// gone: no server begins there without a state. The next Replace works, and deletes no state.
func TestReplaceAfterCrash(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		for name, crash := range map[string]func(dir, made string) error{
			"while the directory was made": func(dir, made string) error {
				return os.Rename(filepath.Join(made, metaFile), filepath.Join(made, "making.1.tmp"))
			},
			"before it got a name": func(dir, made string) error { return nil },
			"before the exchange":  func(dir, made string) error { return os.Rename(made, dir+".1") },
			"before the exchange, with a note": func(dir, made string) error {
				return errors.Join(setUnused(made, dir), os.Rename(made, dir+".1"))
			},
			"before the note is removed": func(dir, made string) error {
				return errors.Join(setUnused(made, dir), os.Rename(dir, dir+".1"), os.Rename(made, dir))
			},
			"after the exchange": func(dir, made string) error {
				return errors.Join(os.Rename(dir, dir+".1"), os.Rename(made, dir))
			},
			"without an exchange":          func(dir, made string) error { return os.Rename(dir, dir+".1") },
			"without an exchange, by link": func(dir, made string) error { return os.Rename(dir, dir+".1") },
		} {
			t.Run(name, func(t *testing.T) {
				r := newReplaced(t, disk)
				beside := r.dir + ".new.tmp"
				check(t, os.Mkdir(beside, 0o700))
				check(t, r.fill(filepath.Join(beside, "data")))
				check(t, crash(r.dir, filepath.Join(beside, "data")))
				link := filepath.Join(filepath.Dir(r.dir), "link")
				linked := os.Symlink(filepath.Base(r.dir), link+".2") == nil && os.Symlink(filepath.Base(link)+".2", link) == nil
				by := r.dir
				if strings.HasSuffix(name, "by link") {
					if !linked {
						t.Skip("no symbolic links")
					}
					by = link
				}
				if _, err := os.Lstat(r.dir); errors.Is(err, fs.ErrNotExist) {
					refused := func(dir string) {
						t.Helper()
						if s, err := disk.tryOpen(dir); err == nil {
							s.Close()
							t.Fatal("a server begins without a state")
						} else if !strings.Contains(err.Error(), r.dir+".1") || !strings.Contains(err.Error(), "again") {
							t.Errorf("it does not say what to do: %v", err)
						}
					}
					if refused(r.dir); linked {
						refused(link)
					}
					failed := func() {
						t.Helper()
						broken := func(made string) error { return makeSample(disk, made, r.snapshot[:len(r.snapshot)-1]) }
						if _, err := Replace(by, broken); !errors.Is(err, fsm.ErrSnapshot) {
							t.Errorf("a part of a snapshot: %v", err)
						}
						refused(r.dir)
					}
					if failed(); by == r.dir {
						check(t, os.Mkdir(r.dir, 0o700)) // as systemd does for StateDirectory= at each start
						refused(r.dir)
						failed()
					}
				}
				if strings.HasPrefix(name, "after") {
					var log bytes.Buffer
					opened := r.dir
					if linked {
						opened = link
					}
					s := must(openDirectory(disk, opened, 1, slog.New(slog.NewTextHandler(&log, nil)), hclog.NewNullLogger()))(t)
					if check(t, s.Close()); !strings.Contains(log.String(), "has not ended") || !strings.Contains(log.String(), "left="+beside) {
						t.Errorf("a server does not warn: %s", &log)
					}
				}
				old := must(Replace(by, r.fill))(t)
				if !r.isNew(r.dir) {
					t.Error("the next one has not replaced it")
				}
				left, _ := filepath.Glob(filepath.Join(filepath.Dir(r.dir), "*", unusedName))
				if len(left) > 0 {
					t.Errorf("there is %q", left)
				}
				if strings.HasSuffix(name, "with a note") && (old != r.dir+".1" || !r.isOld(old)) {
					t.Errorf("the old state is %s; there is %s", old, contents(t, filepath.Dir(r.dir)))
				}
				if kept := filepath.Join(filepath.Dir(r.dir), filepath.Base(r.dir)+".1"); !r.isOld(kept) && !r.isOld(old) {
					t.Errorf("the old state is gone: there is %s", contents(t, filepath.Dir(r.dir)))
				}
				if _, err := os.Lstat(beside); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s stays: %v", beside, err)
				}
			})
		}
	})
}

// TestReplaceTwice: while a directory is being replaced, another Replace does nothing to what the first one makes.
func TestReplaceTwice(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		r := newReplaced(t, disk)
		old, err := Replace(r.dir, func(beside string) error {
			check(t, r.fill(beside))
			if _, err := Replace(r.dir, r.fill); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), r.dir) {
				t.Errorf("another one meanwhile: %v", err)
			}
			return nil
		})
		if err != nil || !r.isOld(old) || !r.isNew(r.dir) {
			t.Errorf("the first one: %q, %v; there is %s", old, err, contents(t, filepath.Dir(r.dir)))
		}
	})
}

// TestReplaceUsed: a directory with a note that it was never used stays if it was used all the same. A server that starts on one
// removes the note.
func TestReplaceUsed(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		r := newReplaced(t, disk)
		kept := r.dir + ".7"
		check(t, r.fill(kept))
		check(t, setUnused(kept, r.dir))
		s := disk.mustOpen(t, kept)
		must(Replace(r.dir, r.fill))(t)
		check(t, s.Close())
		if _, err := os.Lstat(filepath.Join(kept, unusedName)); !errors.Is(err, fs.ErrNotExist) || !r.isNew(kept) {
			t.Errorf("a server has started: %v", err)
		}
		used := r.dir + ".20"
		other, intact := sample(t, disk)
		check(t, os.Rename(other, used))
		check(t, setUnused(used, r.dir))
		others := r.dir + ".19" // restored a moment ago for another server
		check(t, r.fill(others))
		check(t, setUnused(others, others))
		if old := must(Replace(r.dir, r.fill))(t); old != r.dir+".21" {
			t.Errorf("kept as %s", old)
		}
		if report, err := checkDirectory(disk, used); err != nil || *report != *intact {
			t.Errorf("what was used: %+v, %v", report, err)
		}
		if !r.isNew(others) {
			t.Error("what another server is to use is gone")
		}
	})
}

// TestReplaceThird: one that has waited for another to end leaves alone what a third one has begun meanwhile.
func TestReplaceThird(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("it looks in /proc")
	}
	r := newReplaced(t, disks[0])
	beside := r.dir + besideEnd
	begin := func() *bbolt.DB {
		check(t, os.Mkdir(beside, 0o700))
		check(t, createDatabase(filepath.Join(beside, aloneName)))
		return must(bbolt.Open(filepath.Join(beside, aloneName), fileMode, nil))(t)
	}
	first, ended := begin(), make(chan error, 1)
	go func() {
		_, err := Replace(r.dir, r.fill)
		ended <- err
	}()
	for waits := false; !waits && len(ended) == 0; { // until that one has the file open, too
		n := 0
		for _, fd := range must(os.ReadDir("/proc/self/fd"))(t) {
			if to, _ := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())); to == filepath.Join(beside, aloneName) {
				n++
			}
		}
		waits = n > 1
	}
	check(t, os.RemoveAll(beside))
	third := begin()
	defer third.Close()
	made := filepath.Join(beside, madeName)
	check(t, r.fill(made))
	check(t, first.Close())
	if err := <-ended; err == nil {
		t.Error("it has gone on with a lock that is gone")
	}
	if !r.isNew(made) || !r.isOld(r.dir) {
		t.Errorf("what the third one makes has %s", contents(t, made))
	}
}

// TestReplaceNumbers: what was there is kept under the highest number, also if lower ones are free.
func TestReplaceNumbers(t *testing.T) {
	r := newReplaced(t, disks[0])
	for _, name := range []string{".3", ".04", ".-5", ".6x", ".99999999999999999999"} {
		check(t, os.Mkdir(r.dir+name, 0o700))
	}
	if old := must(Replace(r.dir, r.fill))(t); old != r.dir+".4" || !r.isOld(old) || !r.isNew(r.dir) {
		t.Errorf("%s; there is %s", old, contents(t, filepath.Dir(r.dir)))
	}
	check(t, os.Mkdir(r.dir+".20261128093000", 0o700)) // somebody has moved it away at that time
	if old := must(Replace(r.dir, r.fill))(t); old != r.dir+".20261128093001" {
		t.Errorf("%s; there is %s", old, contents(t, filepath.Dir(r.dir)))
	}
	if err := makeSnapshotDir(r.dir + ".9"); err == nil {
		t.Error("it has made the data directory")
	}
}

// TestReplaceStrange replaces directories that are not as a server leaves them, and that have odd names.
func TestReplaceStrange(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		t.Run("a file in place of a directory inside", func(t *testing.T) {
			r := newReplaced(t, disk)
			check(t, os.RemoveAll(filepath.Join(r.dir, raftDir)))
			check(t, os.WriteFile(filepath.Join(r.dir, raftDir), []byte("mine"), 0o600))
			old := must(Replace(r.dir, r.fill))(t)
			if !r.isNew(r.dir) || string(must(os.ReadFile(filepath.Join(old, raftDir)))(t)) != "mine" {
				t.Errorf("there is %s", contents(t, r.dir))
			}
		})
		t.Run("symbolic link", func(t *testing.T) { // to another disk, for instance
			r := newReplaced(t, disk)
			link := filepath.Join(testkit.MemoryDir(t), "link")
			if err := os.Symlink(r.dir, link); err != nil {
				t.Skip(err)
			}
			old := must(Replace(link, r.fill))(t)
			if to, err := os.Readlink(link); err != nil || to != r.dir || !r.isNew(r.dir) || !r.isOld(old) || filepath.Dir(old) != filepath.Dir(r.dir) {
				t.Errorf("kept as %s; the link: %s, %v; beside it there is %s", old, to, err, contents(t, filepath.Dir(link)))
			}
			check(t, os.RemoveAll(r.dir)) // that disk is not there
			if old, err := Replace(link, r.fill); err == nil || contents(t, filepath.Dir(link)) != "link " {
				t.Errorf("a link to nothing: %q, %v; there is %s", old, err, contents(t, filepath.Dir(link)))
			}
		})
		t.Run("the working directory", func(t *testing.T) {
			r := newReplaced(t, disk)
			t.Chdir(r.dir)
			old := must(Replace(".", r.fill))(t)
			if !r.isNew(r.dir) || !r.isOld(old) {
				t.Errorf("kept as %s; there is %s and %s", old, contents(t, r.dir), contents(t, filepath.Dir(r.dir)))
			}
		})
		t.Run("a new file system", func(t *testing.T) { // it has nothing to be kept, and its root cannot be renamed
			r := newReplaced(t, disk)
			check(t, os.RemoveAll(r.dir))
			check(t, os.MkdirAll(filepath.Join(r.dir, "lost+found"), 0o700))
			mounted := must(os.Stat(r.dir))(t)
			old, err := Replace(r.dir, r.fill)
			if old != "" || err != nil || !os.SameFile(mounted, must(os.Stat(r.dir))(t)) || !r.isNew(r.dir) {
				t.Errorf("%q, %v; there is %s", old, err, contents(t, r.dir))
			}
		})
		t.Run("what somebody else has made", func(t *testing.T) {
			r := newReplaced(t, disk)
			mine := filepath.Join(r.dir+".new.tmp", "mine")
			check(t, os.MkdirAll(mine, 0o700))
			if old, err := Replace(r.dir, r.fill); err == nil || !strings.Contains(err.Error(), r.dir+".new.tmp") || !r.isOld(r.dir) {
				t.Errorf("%q, %v", old, err)
			}
			if _, err := os.Stat(mine); err != nil {
				t.Errorf("%v", err)
			}
		})
	})
}

// TestReplaceBesideStart: a server that waits for the lock on a directory while that is replaced does not open the log of the old
// one together with the snapshot of the new one. It may or may not be waiting at the right moment; what it opens is right.
func TestReplaceBesideStart(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		for range 10 {
			r := newReplaced(t, disk)
			opened := make(chan error, 1)
			started := make(chan struct{})
			check(t, withoutServer(r.dir, func() error {
				go func() {
					close(started)
					store, err := disk.open(r.dir, false)
					if err == nil {
						var last uint64
						if last, err = store.LastIndex(); err == nil && last != 0 {
							err = errNotReplaced
						}
						store.Close()
					}
					opened <- err
				}()
				<-started
				for range 5 { // so that it waits, most likely
					must(Check(r.dir))(t)
				}
				check(t, os.Rename(r.dir, r.dir+".1"))
				return r.fill(r.dir)
			}))
			if err := <-opened; errors.Is(err, errNotReplaced) {
				t.Fatal("it has opened the old log at the name of the new directory")
			} else if err != nil && !errors.Is(err, ErrInUse) && !strings.Contains(err.Error(), "try again") {
				t.Errorf("%v", err)
			}
		}
	})
}

// TestReplaceBesideSave: what reads a directory that is replaced meanwhile has one of the two states or an error, and not the log
// of the one with the snapshot of the other.
func TestReplaceBesideSave(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		r := newReplaced(t, disk)
		report, m, err := verifyDirectory(replacedWhenOpen{disk, r}, r.dir)
		if err == nil && *report != *r.intact || err != nil && !strings.Contains(err.Error(), r.dir) {
			t.Errorf("it has read %+v with zxid %#x, %v", report, m.Zxid(), err)
		}
		if !r.isNew(r.dir) {
			t.Error("it was not replaced")
		}
	})
}

// replacedWhenOpen is the store of a directory that is replaced as soon as the store is open.
type replacedWhenOpen struct {
	testedDisk
	r *replaced
}

func (d replacedWhenOpen) open(dir string, readOnly bool) (raftStore, error) {
	store, err := d.testedDisk.open(dir, readOnly)
	if err == nil {
		must(Replace(d.r.dir, d.r.fill))(d.r.t)
	}
	return store, err
}

var errNotReplaced = errors.New("the log of the directory that was replaced")
