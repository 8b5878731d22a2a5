package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
)

func testSeed(t *testing.T) uint64 {
	s := rand.Uint64()
	if v := os.Getenv("LOCKKEEPER_SEED"); v != "" {
		var err error
		if s, err = strconv.ParseUint(v, 0, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("LOCKKEEPER_SEED=%d", s)
	return s
}

// boltFile makes a raft.db with small and large entries, and free pages.
func boltFile(t *testing.T, entries int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "raft.db")
	db, err := openBolt(path, false)
	if err != nil {
		t.Fatal(err)
	}
	log, stable := sealedLog{db}, sealedStable{db}
	for i := 1; i <= entries; i++ {
		data := bytes.Repeat([]byte{byte(i)}, 20*i)
		if i%17 == 0 {
			data = bytes.Repeat([]byte{byte(i)}, 9000) // spreads over pages
		}
		if err := log.StoreLog(&raft.Log{Index: uint64(i), Term: 2, Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(stable.SetUint64([]byte("CurrentTerm"), 2), stable.Set([]byte(vote), []byte("x")), log.DeleteRange(1, uint64(entries/3)), db.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

type keyValue struct{ bucket, key, value string }

// content is all that is found in a file.
func content(file []byte) (list []keyValue, err error) {
	keys := raftKeys()
	c := pageChecker{f: bytes.NewReader(file), each: func(bucket, key, value []byte) error {
		list = append(list, keyValue{string(bucket), string(key), string(value)})
		return keys(bucket, key, value)
	}}
	return list, c.check()
}

// TestCheckPages flips a bit in every byte of every page's head, and in others.
// Either that is found, or every key is still there, with its value or one
// that has other bytes or another length: a value's checksum tells.
func TestCheckPages(t *testing.T) {
	r := rand.New(rand.NewPCG(testSeed(t), 0))
	for _, entries := range []int{0, 2, 60} {
		t.Run(fmt.Sprint(entries, " entries"), func(t *testing.T) {
			file, err := os.ReadFile(boltFile(t, entries))
			if err != nil {
				t.Fatal(err)
			}
			want, err := content(file)
			if err != nil {
				t.Fatal(err)
			}
			found, same := 0, 0
			for at := range file {
				if at%4096 >= 100 && r.IntN(50) > 0 {
					continue
				}
				bit := byte(1) << r.IntN(8)
				file[at] ^= bit
				got, err := content(file)
				file[at] ^= bit
				switch {
				case err != nil:
					found++
				case slices.Equal(got, want):
					same++
				case !slices.EqualFunc(got, want, func(g, w keyValue) bool {
					return g.bucket == w.bucket && g.key == w.key && (len(g.value) == len(w.value) || strings.HasPrefix(g.value, w.value) || strings.HasPrefix(w.value, g.value))
				}):
					t.Errorf("bit %#x at %d (of page %d) goes unseen, and changes what is found", bit, at%4096, at/4096)
				}
			}
			t.Logf("%d found, %d of no effect", found, same)
			for at := 0; at < len(file); at += 997 {
				if got, err := content(file[:at]); err == nil && !slices.Equal(got, want) {
					t.Errorf("cut at %d goes unseen", at)
				}
			}
		})
	}
}

// TestCheckMetaPages: every flipped bit in the two pages that say where everything is
// is found, also where it would change nothing.
func TestCheckMetaPages(t *testing.T) {
	file, err := os.ReadFile(boltFile(t, 2))
	if err != nil {
		t.Fatal(err)
	}
	for page := range 2 {
		for at := page*4096 + pageHeader; at < page*4096+pageHeader+64; at++ {
			for bit := byte(1); bit != 0; bit <<= 1 {
				file[at] ^= bit
				if _, err := content(file); err == nil {
					t.Errorf("bit %#x at %d of page %d goes unseen", bit, at%4096, page)
				}
				file[at] ^= bit
			}
		}
	}
}

// TestRaftKeys: the keys of a log are its indices, which begin with 1 or later and
// have no gap. A flipped bit in the first one can make it 0.
func TestRaftKeys(t *testing.T) {
	for _, c := range []struct {
		indices []uint64
		good    bool
	}{
		{[]uint64{1, 2, 3}, true},
		{[]uint64{7, 8}, true},
		{[]uint64{0}, false},
		{[]uint64{0, 2}, false},
		{[]uint64{1, 3}, false},
		{[]uint64{2, 2}, false},
	} {
		keys := raftKeys()
		var err error
		for _, i := range c.indices {
			err = errors.Join(err, keys([]byte("logs"), binary.BigEndian.AppendUint64(nil, i), nil))
		}
		if good := err == nil; good != c.good {
			t.Errorf("%v: %v", c.indices, err)
		}
	}
}

// TestSeals flips every bit of what the sealed stores wrote.
func TestSeals(t *testing.T) {
	mem := raft.NewInmemStore()
	stable := sealedStable{mem}
	if v, err := stable.GetUint64([]byte("n")); v != 0 || err != nil && err.Error() != "not found" {
		t.Errorf("a number that is not there: %d, %v", v, err)
	}
	if err := errors.Join(stable.SetUint64([]byte("n"), 7), stable.Set([]byte("v"), []byte("value"))); err != nil {
		t.Fatal(err)
	}
	if v, err := stable.GetUint64([]byte("n")); v != 7 || err != nil {
		t.Errorf("%d, %v", v, err)
	}
	if v, err := stable.Get([]byte("v")); string(v) != "value" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	raw, _ := mem.Get([]byte("n"))
	for i := range len(raw) * 8 {
		flipped := bytes.Clone(raw)
		flipped[i/8] ^= 1 << (i % 8)
		mem.Set([]byte("n"), flipped)
		if v, err := stable.GetUint64([]byte("n")); err == nil {
			t.Errorf("bit %d: %d", i, v)
		}
	}
	mem.Set([]byte("n"), raw)
	mem.Set([]byte("v"), raw)
	if v, err := stable.Get([]byte("v")); err == nil {
		t.Errorf("the value of another key: %x", v)
	}

	log := sealedLog{mem}
	mine := &raft.Log{Index: 5, Term: 3, Type: raft.LogCommand, Data: []byte("data"), Extensions: []byte("ext")}
	if err := log.StoreLogs([]*raft.Log{mine, {Index: 6, Term: 3, Type: raft.LogNoop}}); err != nil {
		t.Fatal(err)
	}
	if string(mine.Extensions) != "ext" {
		t.Errorf("the caller's entry was changed: %q", mine.Extensions)
	}
	var got raft.Log
	if err := log.GetLog(5, &got); err != nil || string(got.Data) != "data" || string(got.Extensions) != "ext" {
		t.Errorf("%+v, %v", got, err)
	}
	if err := log.GetLog(6, &got); err != nil || got.Extensions != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if err := log.GetLog(7, &got); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("an entry that is not there: %v", err)
	}
	for name, change := range map[string]func(l *raft.Log){
		"index":      func(l *raft.Log) { l.Index++ },
		"term":       func(l *raft.Log) { l.Term++ },
		"type":       func(l *raft.Log) { l.Type = raft.LogNoop },
		"data":       func(l *raft.Log) { l.Data = []byte("date") },
		"no data":    func(l *raft.Log) { l.Data = nil },
		"extensions": func(l *raft.Log) { l.Extensions = append([]byte("x"), l.Extensions...) },
		"no seal":    func(l *raft.Log) { l.Extensions = nil },
	} {
		var l raft.Log
		if err := mem.GetLog(5, &l); err != nil {
			t.Fatal(err)
		}
		keep := l
		change(&l)
		tampered := sealedLog{oneLog{mem, l}}
		if err := tampered.GetLog(5, &got); !errors.Is(err, errSeal) {
			t.Errorf("%s: %v", name, err)
		}
		if err := mem.StoreLog(&keep); err != nil {
			t.Fatal(err)
		}
	}
}

type oneLog struct {
	raft.LogStore
	l raft.Log
}

func (o oneLog) GetLog(_ uint64, l *raft.Log) error { *l = o.l; return nil }

func testConfig(dir string) Config {
	return Config{ID: 1, Dir: dir, Tick: time.Second, ReapInterval: time.Minute, SnapshotBytes: 1 << 20, Log: slog.New(slog.DiscardHandler)}
}

// openReady opens a member, waits until it leads, and closes it.
func openReady(t *testing.T, cfg Config) {
	t.Helper()
	m, err := Open(cfg, fsm.NewReplica())
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.Ready():
	case err := <-m.Err():
		t.Error(err)
	case <-time.After(time.Minute):
		t.Error("never ready")
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// TestCrashWhileNew crashes a member while it makes its directory: the next one finishes that.
func TestCrashWhileNew(t *testing.T) {
	t.Run("raft.db is empty", func(t *testing.T) {
		dir := t.TempDir()
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, snapshotDir), 0o755), os.WriteFile(filepath.Join(dir, raftFile), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		openReady(t, testConfig(dir))
	})
	t.Run("raft.db is not whole", func(t *testing.T) {
		dir := t.TempDir()
		unfinished := filepath.Join(dir, raftFile+".1.tmp")
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, snapshotDir), 0o755), os.WriteFile(unfinished, make([]byte, 5000), 0o600)); err != nil {
			t.Fatal(err)
		}
		openReady(t, testConfig(dir))
		if _, err := os.Stat(unfinished); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", unfinished, err)
		}
	})
	t.Run("raft.db without meta.json", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, snapshotDir), 0o755); err != nil {
			t.Fatal(err)
		}
		db, err := openBolt(filepath.Join(dir, raftFile), false)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		openReady(t, testConfig(dir))
	})
	t.Run("a term and no entry", func(t *testing.T) {
		dir := t.TempDir()
		s, err := openDir(dir, 1, testConfig("").Log)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.stable.SetUint64([]byte("CurrentTerm"), 1), s.close()); err != nil {
			t.Fatal(err)
		}
		openReady(t, testConfig(dir))
	})
}

// TestLostEntries takes the newest entries away, whole: what is left is not
// damaged in itself, but the vote tells of more.
func TestLostEntries(t *testing.T) {
	dir := t.TempDir()
	openReady(t, testConfig(dir))
	db, err := openBolt(filepath.Join(dir, raftFile), false)
	if err != nil {
		t.Fatal(err)
	}
	last, err := db.LastIndex()
	if err := errors.Join(err, db.DeleteRange(1, last), db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(testConfig(dir), fsm.NewReplica()); err == nil {
		t.Error("a member without its log was opened")
	}
}

// TestProposeAfterClose tells every waiter, also those that come late.
func TestProposeAfterClose(t *testing.T) {
	m, err := Open(testConfig(""), fsm.NewReplica())
	if err != nil {
		t.Fatal(err)
	}
	<-m.Ready()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	w := make(result, 1)
	m.Propose(&fsm.Command{Op: proto.OpSync}, w, nil)
	if err := <-w; !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}

// TestPrivateFiles: only the owner may read what a member writes, and Check
// names a file that others may read.
func TestPrivateFiles(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no such modes")
	}
	dir := filepath.Join(t.TempDir(), "data")
	cfg := testConfig(dir)
	cfg.SnapshotBytes = 1
	m, err := Open(cfg, fsm.NewReplica())
	if err != nil {
		t.Fatal(err)
	}
	<-m.Ready()
	until(t, "a snapshot", func() bool {
		done := make(outcome, 1)
		m.Propose(fsm.Nothing(), done, nil)
		<-done
		newest, err := m.stores.newest()
		return err == nil && newest.Index > 0
	})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	var paths []string
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode()&0o77 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		paths = append(paths, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	state := slices.IndexFunc(paths, func(p string) bool { return filepath.Base(p) == stateFile })
	if state < 0 {
		t.Fatalf("no snapshot in %v", paths)
	}
	checkExposed := func(when, want string) {
		t.Helper()
		if r, err := Check(dir); err != nil || r.Exposed != want {
			t.Errorf("%s: Check says %+v, %v, should name %q", when, r, err, want)
		}
	}
	checkExposed("as it was made", "")
	chmod := func(path string, mode os.FileMode) {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for d := filepath.Dir(paths[state]); d != dir; d = filepath.Dir(d) {
		chmod(d, 0o755)
	}
	chmod(paths[state], 0o644)
	checkExposed("below a private directory", "")
	chmod(dir, 0o710)
	checkExposed("readable for the group", paths[state])
	chmod(paths[state], 0o604)
	checkExposed("readable for those who may not enter", "")
}

// TestLogIsSynced: the database in which a member keeps its log, term and vote leaves no
// sync out. (TestAcknowledgedIsOnDisk asks the kernel, where it tells.)
func TestLogIsSynced(t *testing.T) {
	m, err := Open(testConfig(t.TempDir()), fsm.NewReplica())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	log := m.stores.log.(sealedLog).LogStore.(*latchedStore).LogStore.(*raftboltdb.BoltStore)
	stable := m.stores.stable.(*voteStore).StableStore.(sealedStable).StableStore.(*latchedStore).StableStore.(*raftboltdb.BoltStore)
	if log != stable {
		t.Error("the log and the term are in different files")
	}
	db := reflect.ValueOf(log).Elem().FieldByName("conn").Elem()
	for _, option := range []string{"NoSync", "NoGrowSync", "NoFreelistSync"} {
		if db.FieldByName(option).Bool() {
			t.Errorf("the database is open with %s", option)
		}
	}
}
