package storage

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestDamagedFiles flips bytes and cuts files short, everywhere. Open must
// return an error that names the file, or the state must be what it was.
func TestDamagedFiles(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		r := rand.New(rand.NewPCG(testkit.Seed(t), 0))
		dir, intact := sample(t, disk)
		newest := newestSnapshot(t, dir)
		each := 36
		if !testkit.Thorough {
			each = 15
		}
		type damagedFile struct {
			name  string
			times int
		}
		files := []damagedFile{{filepath.Join(newest, stateFile), each / 3}, {filepath.Join(newest, metaFile), each}, {metaFile, each / 3}}
		names := disk.files(dir)
		if len(names) > 4 { // the first segment, the last two, and what is beside them
			names = append(names[:2:2], names[len(names)-2:]...)
		}
		for _, name := range names {
			files = append(files, damagedFile{name, 2 * each})
		}
		for _, file := range files {
			t.Run(filepath.Base(file.name), func(t *testing.T) {
				content := must(os.ReadFile(filepath.Join(dir, file.name)))(t)
				refused := 0
				for i := range file.times {
					damaged, what := damage(r, content)
					if i == 0 {
						damaged, what = nil, "empty"
					}
					if tryDamaged(t, disk, dir, file.name, damaged, what, intact) {
						refused++
					}
					if t.Failed() {
						return
					}
				}
				t.Logf("%d of %d were refused", refused, file.times)
				if refused == 0 {
					t.Error("no damage was found")
				}
			})
		}
	})
}

// damage changes content in one place: mostly one byte, at times more or a cut.
func damage(r *rand.Rand, content []byte) ([]byte, string) {
	const page = 4096
	b := slices.Clone(content)
	at := r.IntN(len(b))
	if pages := len(b) / page; pages > 0 && r.IntN(2) == 0 { // where a page says what it is
		at = min(page*r.IntN(pages)+r.IntN(96), len(b)-1)
	}
	switch r.IntN(10) {
	case 0:
		return b[:at], fmt.Sprintf("cut at %d of %d", at, len(content))
	case 1:
		n := min(1+r.IntN(600), len(b)-at)
		clear(b[at : at+n])
		return b, fmt.Sprintf("%d bytes of zero at %d", n, at)
	case 2, 3, 4:
		old := b[at]
		for b[at] == old {
			b[at] = byte(r.Uint32())
		}
		return b, fmt.Sprintf("byte %d is %#x, was %#x", at, b[at], old)
	}
	b[at] ^= 1 << r.IntN(8)
	return b, fmt.Sprintf("byte %d is %#x, was %#x", at, b[at], content[at])
}

// tryDamaged opens a copy of dir with one file replaced, and reports whether that was refused.
func tryDamaged(t *testing.T, disk testedDisk, dir, name string, content []byte, what string, intact *Report) bool {
	t.Helper()
	work := copyDir(t, dir)
	defer os.RemoveAll(work)
	path := filepath.Join(work, name)
	check(t, os.WriteFile(path, content, fileMode))
	_, checkErr := checkDirectory(disk, work)
	s, err := disk.tryOpen(work)
	if (err == nil) != (checkErr == nil) {
		t.Errorf("%s, %s: Open says %v, Check says %v", name, what, err, checkErr)
	}
	if err != nil {
		s, again := disk.tryOpen(work)
		if again == nil {
			s.Close()
		}
		if again == nil || again.Error() != err.Error() {
			t.Errorf("%s, %s: %v at first, then %v", name, what, err, again)
		}
		// A snapshot is named by its directory.
		names := []string{path}
		if strings.Contains(name, "snapshots") {
			names = []string{filepath.Dir(path)}
		} else if name == metaFile {
			names = append(names, work)
		}
		if !slices.ContainsFunc(names, func(n string) bool { return strings.Contains(err.Error(), n) }) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s, %s: the error does not name the file in one line: %v", name, what, err)
		}
		// It begins with the file that is damaged, not with another one that is good.
		if first, _, _ := strings.Cut(err.Error(), " is damaged: "); !slices.Contains(names, first) || !errors.Is(err, ErrDamaged) {
			t.Errorf("%s, %s: the error begins with another file: %v", name, what, err)
		}
		return true
	}
	start(t, s).stop() // reads all of it, and writes
	if now, err := checkDirectory(disk, work); err != nil {
		t.Errorf("%s, %s: opened well, but afterwards %v", name, what, err)
	} else if !sameState(now, intact) {
		t.Errorf("%s, %s: the state is %+v, was %+v", name, what, now, intact)
	}
	return false
}

// TestDamagedIdentity flips each bit of meta.json: it is refused, or says what it said before.
func TestDamagedIdentity(t *testing.T) {
	dir := filepath.Join(testkit.MemoryDir(t), "data")
	check(t, os.MkdirAll(filepath.Join(dir, raftDir), dirMode))
	first := []proto.Peer{{ID: 1, Addr: "a:1"}}
	want := meta{formatVersion, 7, WAL, Identity{Cluster: 0x1234567890abcdef, Agreed: true, First: first, Since: 1234}}
	check(t, writeMeta(dir, &want))
	path := filepath.Join(dir, metaFile)
	content := must(os.ReadFile(path))(t)
	missed := 0
	for bit := range len(content) * 8 {
		damaged := bytes.Clone(content)
		damaged[bit/8] ^= 1 << (bit % 8)
		check(t, os.WriteFile(path, damaged, fileMode))
		if got, err := readMeta(dir); err == nil && !reflect.DeepEqual(*got, want) {
			if missed++; missed < 4 {
				t.Errorf("%s is read as %+v", damaged, got)
			}
		} else if err != nil && (!errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), dir)) {
			t.Errorf("%s: %v", damaged, err)
		}
	}
	if missed > 0 {
		t.Errorf("%d of %d flipped bits are not noticed", missed, len(content)*8)
	}
	other := want
	for _, other.Format = range []int{formatVersion - 1, formatVersion + 1} {
		check(t, writeMeta(dir, &other))
		if _, err := readMeta(dir); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("has format %d", other.Format)) {
			t.Errorf("format %d: %v", other.Format, err)
		}
	}
}

// TestDamagedTerm damages the stored term, which only its checksum protects. The error
// names the file that has it.
func TestDamagedTerm(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		dir, intact := sample(t, disk)
		name := must(filepath.Rel(dir, disk.stablePath(dir)))(t)
		content := must(os.ReadFile(disk.stablePath(dir)))(t)
		// In a page of bbolt, the value is right behind its key. Older pages have it, too.
		key, found := []byte(TermKey), 0
		for at := 0; ; found++ {
			i := bytes.Index(content[at:], key)
			if i < 0 {
				break
			}
			at += i + len(key)
			content[at+7] ^= 1
		}
		if found == 0 || !tryDamaged(t, disk, dir, name, content, "another term", intact) {
			t.Errorf("%d places were damaged, and the directory was opened", found)
		}
	})
}

// TestRefusedDirectories opens directories that are not to be opened.
func TestRefusedDirectories(t *testing.T) {
	onEachDisk(t, testRefusedDirectories)
}

func testRefusedDirectories(t *testing.T, disk testedDisk) {
	t.Parallel() // a directory in use is refused only after some time
	dir, _ := sample(t, disk)
	for _, c := range []struct {
		name string
		id   uint64                         // of the server that opens it
		harm func(t *testing.T, dir string) // to the copy of a good directory
		says []string                       // DIR stands for the directory, LOG for the path of the log
	}{
		{"newer format", 1, func(t *testing.T, dir string) {
			check(t, writeMeta(dir, &meta{Format: formatVersion + 1, ServerID: 1, LogStore: disk.name()}))
		}, []string{"DIR", "format 4", "newer"}},
		{"other server", 2, func(*testing.T, string) {}, []string{"DIR", "server 1", "not 2"}},
		{"no log", 1, func(t *testing.T, dir string) {
			check(t, os.RemoveAll(disk.logPath(dir)))
		}, []string{"LOG", "missing"}},
		{"snapshots lost", 1, func(t *testing.T, dir string) {
			check(t, os.RemoveAll(filepath.Join(dir, snapshotDir)))
		}, []string{"LOG", "snapshot"}},
		{"newest snapshot without state", 1, func(t *testing.T, dir string) {
			check(t, os.Remove(filepath.Join(dir, newestSnapshot(t, dir), stateFile)))
		}, []string{"DIR/raft/snapshots/", stateFile}},
		{"an unknown directory among the snapshots", 1, func(t *testing.T, dir string) {
			check(t, os.Mkdir(filepath.Join(dir, snapshotDir, "1-x-3"), dirMode))
		}, []string{"DIR/raft/snapshots/1-x-3"}},
		{"a newer snapshot", 1, func(t *testing.T, dir string) {
			path := filepath.Join(dir, newestSnapshot(t, dir), stateFile)
			b := must(os.ReadFile(path))(t)
			b[6]++ // the version follows six bytes of magic
			check(t, os.WriteFile(path, b, fileMode))
		}, []string{"DIR/raft/snapshots/", "upgrade this one"}},
		{"a file", 1, func(t *testing.T, dir string) {
			check(t, os.RemoveAll(dir))
			check(t, os.WriteFile(dir, nil, fileMode))
		}, []string{"DIR", "not a directory"}},
		{"below a file", 1, func(t *testing.T, dir string) {
			check(t, os.RemoveAll(dir))
			check(t, os.WriteFile(dir, nil, fileMode))
		}, []string{"DIR"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			work := copyDir(t, dir)
			c.harm(t, work)
			before := listing(t, filepath.Dir(work))
			open := work
			if c.name == "below a file" {
				open = filepath.Join(work, "below")
			}
			for range 2 {
				s, err := disk.tryOpenAs(c.id, open)
				if err == nil {
					s.Close()
					t.Fatal("it was opened")
				}
				for _, say := range c.says {
					if say = strings.NewReplacer("DIR", work, "LOG", disk.logPath(work)).Replace(say); !strings.Contains(err.Error(), say) {
						t.Errorf("%q does not say %q", err, say)
					}
				}
				if strings.Contains(err.Error(), "\n") {
					t.Errorf("%q has several lines", err)
				}
				if c.name == "a newer snapshot" && strings.Contains(err.Error(), "damaged") {
					t.Errorf("%q: it is not damaged", err)
				}
			}
			if c.name != "snapshots lost" { // its directory is made again
				if after := listing(t, filepath.Dir(work)); after != before {
					t.Errorf("the refusal changed the files from\n%s\nto\n%s", before, after)
				}
			}
		})
	}
	t.Run("a directory in the place of a file", func(t *testing.T) {
		for _, name := range disk.files(dir) {
			work := copyDir(t, dir)
			path := filepath.Join(work, name)
			check(t, errors.Join(os.Remove(path), os.Mkdir(path, dirMode)))
			if _, err := disk.tryOpen(work); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v", path, err)
			}
		}
	})
	t.Run("another program's file", func(t *testing.T) {
		for _, name := range disk.files(dir) {
			work := copyDir(t, dir)
			path := filepath.Join(work, name)
			check(t, os.WriteFile(path, []byte(strings.Repeat("no database\n", 4000)), fileMode))
			if _, err := disk.tryOpen(work); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "damaged") {
				t.Errorf("%s: %v", path, err)
			}
		}
	})
	t.Run("in use", func(t *testing.T) {
		work := copyDir(t, dir)
		m := start(t, disk.mustOpen(t, work))
		for range 2 {
			if _, err := disk.tryOpen(work); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), work) {
				t.Errorf("a second server: %v", err)
			}
			if _, err := checkDirectory(disk, work); !errors.Is(err, ErrInUse) {
				t.Errorf("a check: %v", err)
			}
		}
		m.openSession(9)
		m.stop()
		check(t, disk.mustOpen(t, work).Close())
	})
}

func listing(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	check(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			fmt.Fprintf(&b, "%s %v", path, info.Mode())
			if info.Mode().IsRegular() {
				fmt.Fprintf(&b, " %d", info.Size())
			}
			b.WriteByte('\n')
		}
		return err
	}))
	return b.String()
}
