package storage

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// makeSample makes a data directory of server 1 with the state of a snapshot.
func makeSample(disk testedDisk, dir string, snapshot []byte) error {
	return Make(dir, disk.name(), 1, testkit.Quiet, hclog.NewNullLogger(), func(s *Storage) error {
		m, err := fsm.ReadSnapshot(bytes.NewReader(snapshot))
		if err != nil {
			return err
		}
		_, trans := raft.NewInmemTransport("")
		sink, err := s.Snapshots.Create(1, m.Index()+1, m.Term(), Configuration(alone), 1, trans)
		if err != nil {
			return err
		}
		return errors.Join(s.Stable.SetUint64([]byte(TermKey), m.Term()), m.Snapshot().Write(sink), sink.Close())
	})
}

// contents lists the names in a directory; it is empty if there is none.
func contents(t *testing.T, dir string) (names string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		names += e.Name() + " "
	}
	return names
}

// TestSaveAndMake saves the state of a data directory, and makes another one with it.
func TestSaveAndMake(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		dir, intact := sample(t, disk)
		var b bytes.Buffer
		s := disk.mustOpen(t, dir)
		if _, err := Save(dir, &b); !errors.Is(err, ErrInUse) || b.Len() > 0 {
			t.Errorf("while a server runs: %v, %d bytes", err, b.Len())
		}
		check(t, s.Close())
		if r := must(Save(dir, &b))(t); *r != *intact {
			t.Errorf("it saves %+v, not %+v", r, intact)
		}
		if state := must(VerifySnapshot(bytes.NewReader(b.Bytes())))(t); state != intact.State {
			t.Errorf("the snapshot has %+v, not %+v", state, intact.State)
		}
		if _, err := VerifySnapshot(bytes.NewReader(b.Bytes()[:b.Len()-1])); !errors.Is(err, fsm.ErrSnapshot) {
			t.Errorf("a snapshot that was cut short: %v", err)
		}

		base := testkit.MemoryDir(t)
		for name, prepare := range map[string]func(dir string) error{
			"new":                     func(string) error { return nil },
			"empty":                   func(dir string) error { return os.Mkdir(dir, 0o700) },
			"after a crash":           func(dir string) error { return os.MkdirAll(filepath.Join(dir, "making.tmp", raftDir, "x"), 0o700) },
			"root of a file system":   func(dir string) error { return os.MkdirAll(filepath.Join(dir, "lost+found"), 0o700) },
			"below what is not there": func(dir string) error { return os.Remove(filepath.Dir(dir)) },
		} {
			check(t, os.MkdirAll(filepath.Join(base, name), 0o700))
			made := filepath.Join(base, name, "data")
			check(t, prepare(made))
			if err := makeSample(disk, made, b.Bytes()); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if r := must(Check(made))(t); r.State != intact.State || r.LogStore != disk.name() || r.SnapshotIndex <= intact.SnapshotIndex || r.LastIndex != 0 {
				t.Errorf("%s: %+v, made from %+v", name, r, intact)
			}
			if left := strings.TrimPrefix(contents(t, made), "lost+found "); left != "meta.json raft " {
				t.Errorf("%s: it has %s", name, left)
			}
			if err := makeSample(disk, made, b.Bytes()); err == nil || !strings.Contains(err.Error(), made+" is not empty") {
				t.Errorf("%s: made twice: %v", name, err)
			}
			if name == "new" { // a crash before meta.json was moved
				check(t, os.Remove(filepath.Join(made, metaFile)))
				check(t, os.MkdirAll(filepath.Join(made, "making.1.tmp"), 0o700))
			}
			m := start(t, disk.mustOpen(t, made))
			if left := strings.TrimPrefix(contents(t, made), "lost+found "); left != "meta.json raft " {
				t.Errorf("%s: after a start it has %s", name, left)
			}
			if m.term != must(fsm.ReadSnapshot(bytes.NewReader(b.Bytes())))(t).Term()+1 {
				t.Errorf("%s: it goes on in term %d", name, m.term)
			}
			m.openSession(77)
			m.stop()
			if r := must(Check(made))(t); r.Sessions != intact.Sessions+1 || r.Zxid <= intact.Zxid {
				t.Errorf("%s: it goes on to %+v", name, r)
			}
		}
	})
}

// TestMakeFails: if a directory cannot be made, it is as before.
func TestMakeFails(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		dir := filepath.Join(testkit.MemoryDir(t), "data")
		for _, exists := range []bool{false, true} {
			if exists {
				check(t, os.Mkdir(dir, 0o700))
			}
			if err := makeSample(disk, dir, []byte("LKSNAP\x01no")); !errors.Is(err, fsm.ErrSnapshot) {
				t.Errorf("%v", err)
			}
			err := Make(dir, disk.name(), 1, testkit.Quiet, hclog.NewNullLogger(), func(s *Storage) error {
				return s.Stable.Set([]byte(voteKey), []byte("no vote"))
			})
			if err == nil || !strings.Contains(err.Error(), "is damaged") {
				t.Errorf("what does not stand up to Check was made: %v", err)
			}
			err = Make(dir, disk.name(), 1, testkit.Quiet, hclog.NewNullLogger(), func(*Storage) error { return syscall.ENOSPC })
			if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), dir) {
				t.Errorf("a full disk: %v", err)
			}
			if _, err := os.Stat(dir); exists != (err == nil) || contents(t, dir) != "" {
				t.Errorf("exists %v before; now %v with %s", exists, err, contents(t, dir))
			}
		}
		other := filepath.Join(dir, "other")
		check(t, os.WriteFile(other, []byte("x"), 0o600))
		if err := makeSample(disk, dir, nil); err == nil || !strings.Contains(err.Error(), dir+" is not empty") || contents(t, dir) != "other " {
			t.Errorf("a directory with a file: %v", err)
		}
		if err := makeSample(disk, other, nil); err == nil || !strings.Contains(err.Error(), other) || contents(t, dir) != "other " {
			t.Errorf("a file: %v", err)
		}
	})
}

// TestServerBesideMake: no server begins without a state while a directory is being made, or after a crash.
func TestServerBesideMake(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		dir := filepath.Join(testkit.MemoryDir(t), "data")
		refused := func() {
			t.Helper()
			if s, err := disk.tryOpen(dir); err == nil {
				s.Close()
				t.Error("a server begins without a state")
			} else if !strings.Contains(err.Error(), filepath.Join(dir, "making.")) || !strings.Contains(err.Error(), "run it again") {
				t.Errorf("it does not say what to do: %v", err)
			}
		}
		fill := func(s *Storage) error { refused(); return s.Bootstrap(alone) }
		check(t, Make(dir, disk.name(), 1, testkit.Quiet, hclog.NewNullLogger(), fill))
		start(t, disk.mustOpen(t, dir)).stop()

		check(t, os.RemoveAll(dir))
		check(t, os.MkdirAll(filepath.Join(dir, "making.1.tmp", raftDir), 0o700)) // a crash
		refused()
		check(t, Make(dir, disk.name(), 1, testkit.Quiet, hclog.NewNullLogger(), fill))
		check(t, os.RemoveAll(dir))
		check(t, os.MkdirAll(filepath.Join(dir, raftDir), 0o700))
		check(t, os.Mkdir(filepath.Join(dir, "making.1.tmp"), 0o700)) // a crash when the log had its place
		check(t, disk.mustOpen(t, dir).Close())
	})
}

// TestMakeBesideServer: a server is started on the directory just when it begins to be made, or another
// Make makes it. Then this one fails, and what the other one has stored stays.
func TestMakeBesideServer(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		dir := ""
		make := func(fill func(*Storage) error) error {
			return Make(dir, disk.name(), 1, testkit.Quiet, hclog.NewNullLogger(), fill)
		}
		var server *member
		justBefore := func(f func()) { // as if it had looked before there was a directory in dir
			making := filepath.Join(dir, must(os.ReadDir(dir))(t)[0].Name())
			check(t, os.Rename(making, dir+".aside"))
			f()
			check(t, os.Rename(dir+".aside", making))
		}
		for name, other := range map[string]func(){
			"a server":     func() { justBefore(func() { server = start(t, disk.mustOpen(t, dir)) }) },
			"it has ended": func() { justBefore(func() { start(t, disk.mustOpen(t, dir)).stop() }) },
			"another Make": func() { check(t, make(func(s *Storage) error { return s.Bootstrap(alone) })) },
			"two at a time": func() {
				err := make(func(s *Storage) error {
					return errors.Join(s.Bootstrap(alone), make(func(s *Storage) error { return s.Bootstrap(alone) }))
				})
				if err == nil {
					t.Error("both have made it")
				}
			},
		} {
			server, dir = nil, filepath.Join(testkit.MemoryDir(t), "data")
			if err := make(func(*Storage) error { other(); return nil }); err == nil {
				t.Errorf("%s: it was made", name)
			}
			if server != nil {
				server.openSession(1)
				server.stop()
			}
			if r, err := checkDirectory(disk, dir); err != nil || r.LastIndex == 0 {
				t.Errorf("%s: %+v, %v", name, r, err)
			}
			if got := contents(t, dir); got != "meta.json raft " {
				t.Errorf("%s: it has %s", name, got)
			}
		}
	})
}

// TestSetAside: a new directory is made in the place of one that is there, which keeps all that it has under another name. After an
// error, all is as it was, and after a crash in between, no server begins without a state.
func TestSetAside(t *testing.T) {
	onEachDisk(t, func(t *testing.T, disk testedDisk) {
		dir, intact := sample(t, disk)
		var b bytes.Buffer
		must(Save(dir, &b))(t)
		base := filepath.Dir(dir)
		link := filepath.Join(base, "link")
		check(t, os.Symlink(filepath.Base(dir), link))
		setAside := func(dir string, snapshot []byte) (string, error) {
			return SetAside(dir, func(dir string) error { return makeSample(disk, dir, snapshot) })
		}
		before := contents(t, base)
		s := disk.mustOpen(t, dir)
		if _, err := setAside(dir, b.Bytes()); !errors.Is(err, ErrInUse) || contents(t, base) != before {
			t.Errorf("while a server runs: %v; there is %s", err, contents(t, base))
		}
		check(t, s.Close())
		if old, err := setAside(dir, []byte("LKSNAP\x01no")); !errors.Is(err, fsm.ErrSnapshot) || old != "" || contents(t, base) != before {
			t.Errorf("a damaged snapshot: %q, %v; there is %s", old, err, contents(t, base))
		}
		for n, at := range []string{dir + string(filepath.Separator), link} {
			old, err := setAside(at, b.Bytes())
			if err != nil || !strings.HasPrefix(old, dir+oldEnd) {
				t.Fatalf("%s: %q, %v", at, old, err)
			}
			if r := must(Check(old))(t); (*r == *intact) != (n == 0) {
				t.Errorf("%s is %+v", old, r)
			}
			if r := must(Check(dir))(t); r.State != intact.State || r.SnapshotIndex <= intact.SnapshotIndex {
				t.Errorf("it is %+v, made from %+v", r, intact)
			}
		}
		check(t, os.WriteFile(filepath.Join(dir, metaFile), []byte("damaged"), 0o600))
		kept, err := setAside(dir, b.Bytes())
		if err != nil || kept == "" {
			t.Errorf("a damaged directory: %q, %v", kept, err)
		}
		check(t, os.RemoveAll(dir)) // as after a crash
		for _, dir := range []string{dir, link} {
			_, err := disk.tryOpen(dir)
			_, checked := Check(dir)
			for _, err := range []error{err, checked} {
				if err == nil || !strings.Contains(err.Error(), "what was there is "+kept) {
					t.Errorf("nothing is at %s: %v", dir, err)
				}
			}
		}
		if old, err := setAside(dir, b.Bytes()); err != nil || old != "" {
			t.Errorf("nothing was there: %q, %v", old, err)
		}
		must(Check(dir))(t)
		check(t, os.RemoveAll(dir))
		check(t, os.WriteFile(dir, []byte("mine"), 0o600))
		if old, err := setAside(dir, b.Bytes()); err == nil || old != "" || string(must(os.ReadFile(dir))(t)) != "mine" {
			t.Errorf("a file: %q, %v", old, err)
		}
	})
}
