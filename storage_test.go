package lockkeeper_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/storage"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestRestart closes a server with all sorts of state and opens it again: all
// is there, and numbers go on from where they were.
func TestRestart(t *testing.T) {
	t.Run("directory", func(t *testing.T) {
		testRestart(t, lockkeeper.Config{DataDir: t.TempDir()})
	})
	t.Run("memory", func(t *testing.T) {
		testRestart(t, withMemory(lockkeeper.Config{}))
	})
	t.Run("directory with snapshots", func(t *testing.T) {
		testRestart(t, lockkeeper.Config{DataDir: t.TempDir(), SnapshotBytes: 1})
	})
	t.Run("memory with snapshots", func(t *testing.T) {
		testRestart(t, withMemory(lockkeeper.Config{SnapshotBytes: 1}))
	})
}

func testRestart(t *testing.T, cfg lockkeeper.Config) {
	noGoroutineLeft(t)
	secret := []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeDigest, ID: "u:Jq7wMyA/w2Vd5WIDAKdu4OIIFEQ="}}} // u:p
	login := func(c *rawclient.Client) {
		t.Helper()
		_, err := c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: proto.SchemeDigest, Auth: []byte("u:p")}, nil)
		check(t, err)
	}

	s := open(t, cfg)
	c := connect(t, inMemory(s))
	login(c)
	for i := range 9 {
		dir := fmt.Sprintf("/dir%d", i)
		must(c.Create(dir, []byte(dir), 0))(t)
		for j := range i {
			must(c.Create(dir+"/seq-", fmt.Append(nil, j), proto.FlagSequential))(t)
		}
		must(c.Set(dir, []byte("set "+dir)))(t)
	}
	must(c.Create("/null", nil, 0))(t)
	must(c.Create("/empty", []byte{}, 0))(t)
	check(t, c.Delete("/dir7/seq-0000000006"))
	_, err := c.Call(proto.OpCreate, &proto.CreateRequest{Path: "/private", Data: []byte("p"), ACL: secret}, nil)
	check(t, err)
	_, err = c.Call(proto.OpSetACL, &proto.SetACLRequest{Path: "/dir3", ACL: secret, Version: 0}, nil)
	check(t, err)
	var container proto.PathStatReply
	_, err = c.Call(proto.OpCreateContainer, &proto.CreateRequest{Path: "/container", ACL: proto.OpenACL, Flags: proto.FlagContainer}, &container)
	check(t, err)
	must(c.Create("/lock", nil, proto.FlagEphemeral))(t)
	gone := connect(t, inMemory(s))
	must(gone.Create("/gone", nil, proto.FlagEphemeral))(t)
	_, err = gone.Call(proto.OpCloseSession, nil, nil)
	check(t, err)
	before, zxid := tree(t, c, "/")
	check(t, s.Close())

	for round := range 3 {
		s = open(t, cfg)
		fresh := connect(t, inMemory(s))
		if _, err := fresh.Get("/private", false); err != proto.NoAuth {
			t.Errorf("round %d: /private without its password: %v", round, err)
		}
		login(fresh)
		after, now := tree(t, fresh, "/")
		if after != before {
			t.Fatalf("round %d: the tree was\n%s\nand is\n%s", round, before, after)
		}
		if now <= zxid {
			t.Errorf("round %d: zxid %#x after a restart, %#x before", round, now, zxid)
		}
		if _, err := rawclient.Resume(must(s.Dial("", "", time.Second))(t), gone.Session); err != rawclient.ErrRefused {
			t.Errorf("round %d: a closed session came back: %v", round, err)
		}
		nc := must(s.Dial("", "", time.Second))(t)
		if c, err = rawclient.Resume(nc, c.Session); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if lock := must(c.Exists("/lock", false))(t); lock.EphemeralOwner != c.Session.SessionID {
			t.Errorf("round %d: the owner of /lock is %#x", round, lock.EphemeralOwner)
		}
		// Seven made, one of them deleted: the next is number 7, and so on.
		want := fmt.Sprintf("/dir7/seq-%010d", 7+round)
		if path := must(c.Create("/dir7/seq-", nil, proto.FlagSequential))(t); path != want {
			t.Errorf("round %d: the next sequential is %s, not %s", round, path, want)
		}
		login(c)
		_, err := fresh.Call(proto.OpCloseSession, nil, nil)
		check(t, err)
		before, zxid = tree(t, c, "/")
		check(t, s.Close())
	}
	s = open(t, cfg)
	c, err = rawclient.Resume(must(s.Dial("", "", time.Second))(t), c.Session)
	check(t, err)
	_, err = c.Call(proto.OpCloseSession, nil, nil)
	check(t, err)
	last := connect(t, inMemory(s))
	if _, err := last.Exists("/lock", false); err != proto.NoNode {
		t.Errorf("/lock without its session: %v", err)
	}
}

// tree is everything that a client can see below path, and the last zxid.
func tree(t testing.TB, c *rawclient.Client, path string) (string, int64) {
	t.Helper()
	var r proto.DataReply
	f, err := c.Call(proto.OpGetData, &proto.PathWatch{Path: path}, &r)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var acl proto.ACLReply
	_, err = c.Call(proto.OpGetACL, &proto.Path{Path: path}, &acl)
	check(t, err)
	var b strings.Builder
	fmt.Fprintf(&b, "%s %q %v %+v %+v\n", path, r.Data, r.Data == nil, r.Stat, acl.ACL)
	var children proto.ChildrenReply
	_, err = c.Call(proto.OpGetChildren, &proto.PathWatch{Path: path}, &children)
	check(t, err)
	slices.Sort(children.Names)
	for _, name := range children.Names {
		below, _ := tree(t, c, strings.TrimSuffix(path, "/")+"/"+name)
		b.WriteString(below)
	}
	return b.String(), f.Zxid
}

// TestLogStaysBounded overwrites a few znodes again and again: the directory's
// size has a bound, and what a restart makes of a snapshot and the log behind it is the same.
func TestLogStaysBounded(t *testing.T) {
	noGoroutineLeft(t)
	const writes = 60_000
	dir := t.TempDir()
	cfg := lockkeeper.Config{DataDir: dir, SnapshotBytes: 256 << 10}
	s := open(t, cfg)
	const connections = 4
	var wg sync.WaitGroup
	for i := range connections {
		c := connect(t, inMemory(s))
		path := fmt.Sprintf("/n%d", i)
		must(c.Create(path, nil, 0))(t)
		const each = writes / connections
		wg.Go(func() {
			for j := range each {
				c.Queue(proto.OpSetData, &proto.SetDataRequest{Path: path, Data: fmt.Append(nil, j, strings.Repeat(".", 512)), Version: int32(j)})
				if c.Queued() > 4<<10 || j == each-1 {
					if err := c.Flush(); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
		wg.Go(func() {
			for j := range each {
				if f, err := c.Read(); err != nil || f.Code != proto.OK {
					t.Errorf("write %d: %v %v", j, f.Code, err)
					c.Close()
					return
				}
			}
		})
	}
	wg.Wait()
	check(t, s.Close())
	const written = writes * 512
	report := must(storage.Check(dir))(t)
	if report.SnapshotIndex == 0 {
		t.Error("no snapshot was taken")
	}
	size := dirBytes(t, dir)
	t.Logf("%d MB written, %d KB on disk, entries %d to %d, snapshot at %d", written>>20, size>>10, report.FirstIndex, report.LastIndex, report.SnapshotIndex)
	// An entry has a megabyte when so much is in flight; a few of them, on pages
	// that are written elsewhere before the old ones are free, make the rest.
	if limit := cfg.SnapshotBytes + 24<<20; size > limit {
		t.Errorf("%d bytes on disk, more than %d", size, limit)
	}
	if snapshots := must(os.ReadDir(filepath.Join(dir, "raft/snapshots")))(t); len(snapshots) > 2 {
		t.Errorf("%d snapshots are kept", len(snapshots))
	}
	for range 2 {
		check(t, open(t, cfg).Close())
		again := must(storage.Check(dir))(t)
		if again.Digest != report.Digest || again.Zxid != report.Zxid || again.Znodes != report.Znodes {
			t.Errorf("after a restart %+v, before %+v", again, report)
		}
	}
}

func dirBytes(t testing.TB, dir string) (size int64) {
	t.Helper()
	check(t, filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return err
	}))
	return size
}

// sample makes a data directory with a log and snapshots, and tells its state.
func sample(t testing.TB) (string, *storage.Report) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	for round := range int64(2) {
		s := open(t, lockkeeper.Config{DataDir: dir, SnapshotBytes: 64 << 10 << (10 * round)}) // a snapshot, and then a log behind it
		c := connect(t, inMemory(s))
		must(c.Create(fmt.Sprintf("/round%d", round), nil, 0))(t)
		for i := range 150 {
			must(c.Create(fmt.Sprintf("/round%d/n", round), []byte(strings.Repeat("data", 10+i)), proto.FlagSequential))(t)
		}
		must(c.Create(fmt.Sprintf("/e%d", round), nil, proto.FlagEphemeral))(t)
		eventually(t, "a snapshot", func() bool {
			list, _ := filepath.Glob(filepath.Join(dir, "raft/snapshots/*-*/meta.json"))
			tmp, _ := filepath.Glob(filepath.Join(dir, "raft/snapshots/*.tmp"))
			return len(list) > 0 && len(tmp) == 0
		})
		check(t, s.Close())
	}
	return dir, must(storage.Check(dir))(t)
}

func copyDir(t testing.TB, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "data")
	check(t, os.CopyFS(to, os.DirFS(from)))
	return to
}

// TestDamagedFiles flips bytes and cuts files short, everywhere. Open must
// return an error that names the file, or the state must be what it was.
func TestDamagedFiles(t *testing.T) {
	noGoroutineLeft(t)
	r := rng(seed(t), 0)
	dir, intact := sample(t)
	newest := newestSnapshot(t, dir)
	each := 24
	if testing.Short() {
		each = 15
	}
	for _, file := range []struct {
		name  string
		times int
	}{
		{"raft/raft.db", 2 * each},
		{filepath.Join(newest, "state.bin"), each / 3},
		{filepath.Join(newest, "meta.json"), each},
		{"meta.json", each / 3},
	} {
		t.Run(filepath.Base(file.name), func(t *testing.T) {
			content := must(os.ReadFile(filepath.Join(dir, file.name)))(t)
			refused := 0
			for i := range file.times {
				damaged, what := damage(r, content)
				if i == 0 {
					damaged, what = nil, "empty"
				}
				if tryDamaged(t, dir, file.name, damaged, what, intact) {
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
}

func newestSnapshot(t testing.TB, dir string) string {
	t.Helper()
	list := must(filepath.Glob(filepath.Join(dir, "raft/snapshots/*-*")))(t)
	if len(list) == 0 {
		t.Fatal("no snapshot")
	}
	index := func(path string) (n int) {
		var term int
		fmt.Sscanf(filepath.Base(path), "%d-%d-", &term, &n)
		return n
	}
	newest := slices.MaxFunc(list, func(a, b string) int { return index(a) - index(b) })
	return must(filepath.Rel(dir, newest))(t)
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
func tryDamaged(t *testing.T, dir, name string, content []byte, what string, intact *storage.Report) bool {
	t.Helper()
	work := copyDir(t, dir)
	defer os.RemoveAll(work)
	path := filepath.Join(work, name)
	check(t, os.WriteFile(path, content, 0o600))
	_, checkErr := storage.Check(work)
	s, err := lockkeeper.Open(lockkeeper.Config{DataDir: work})
	if (err == nil) != (checkErr == nil) {
		t.Errorf("%s, %s: Open says %v, Check says %v", name, what, err, checkErr)
	}
	if err != nil {
		s, again := lockkeeper.Open(lockkeeper.Config{DataDir: work})
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
		} else if name == "meta.json" {
			names = append(names, work)
		}
		if !slices.ContainsFunc(names, func(n string) bool { return strings.Contains(err.Error(), n) }) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s, %s: the error does not name the file in one line: %v", name, what, err)
		}
		return true
	}
	if err := ready(s); err != nil {
		t.Errorf("%s, %s: not ready: %v", name, what, err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("%s, %s: %v", name, what, err)
	}
	now, err := storage.Check(work)
	if err != nil {
		t.Errorf("%s, %s: opened well, but afterwards %v", name, what, err)
		return false
	}
	if now.Digest != intact.Digest || now.Zxid != intact.Zxid || now.Znodes != intact.Znodes || now.Sessions != intact.Sessions {
		t.Errorf("%s, %s: the state is %+v, was %+v", name, what, now, intact)
	}
	return false
}

// TestTornTail leaves behind the log's last page what a write may leave that a
// power cut tore: bytes of any kind, and a file of another length. It is no part
// of the log; what is appended behind it must last.
func TestTornTail(t *testing.T) {
	noGoroutineLeft(t)
	r := rng(seed(t), 0)
	dir := t.TempDir()
	file := filepath.Join(dir, "raft", "raft.db")
	for round := range 6 {
		s := open(t, lockkeeper.Config{DataDir: dir})
		c := connect(t, inMemory(s))
		for before := range round {
			for i := range 30 {
				must(c.Exists(fmt.Sprintf("/round%d-%d", before, i), false))(t)
			}
		}
		for i := range 30 {
			must(c.Create(fmt.Sprintf("/round%d-%d", round, i), make([]byte, r.IntN(5000)), 0))(t)
		}
		check(t, s.Close())

		db := must(bbolt.Open(file, 0o600, &bbolt.Options{ReadOnly: true}))(t)
		var end int64
		check(t, db.View(func(tx *bbolt.Tx) error { end = tx.Size(); return nil }))
		check(t, db.Close())
		content := must(os.ReadFile(file))(t)[:end]
		torn := make([]byte, r.IntN(100_000))
		for i := range torn {
			torn[i] = byte(r.Uint32())
		}
		check(t, os.WriteFile(file, append(content, torn...), 0o600))
		must(storage.Check(dir))(t)
	}
}

// TestRefusedDirectories opens directories that are not to be opened.
func TestRefusedDirectories(t *testing.T) {
	noGoroutineLeft(t)
	dir, intact := sample(t)
	for _, c := range []struct {
		name string
		cfg  lockkeeper.Config
		harm func(t *testing.T, dir string) // to the copy of a good directory
		says []string                       // DIR stands for the directory
	}{
		{"newer format", lockkeeper.Config{}, func(t *testing.T, dir string) {
			check(t, os.WriteFile(filepath.Join(dir, "meta.json"), []byte(`{"format":2,"serverId":1}`), 0o644))
		}, []string{"DIR", "format 2", "newer"}},
		{"other server", lockkeeper.Config{ID: 2}, func(*testing.T, string) {}, []string{"DIR", "server 1", "not 2"}},
		{"no raft.db", lockkeeper.Config{}, func(t *testing.T, dir string) {
			check(t, os.Remove(filepath.Join(dir, "raft/raft.db")))
		}, []string{"DIR/raft/raft.db", "missing"}},
		{"snapshots lost", lockkeeper.Config{}, func(t *testing.T, dir string) {
			check(t, os.RemoveAll(filepath.Join(dir, "raft/snapshots")))
		}, []string{"DIR/raft/raft.db", "snapshot"}},
		{"newest snapshot without state", lockkeeper.Config{}, func(t *testing.T, dir string) {
			check(t, os.Remove(filepath.Join(dir, newestSnapshot(t, dir), "state.bin")))
		}, []string{"DIR/raft/snapshots/", "state.bin"}},
		{"a directory in the place of raft.db", lockkeeper.Config{}, func(t *testing.T, dir string) {
			check(t, os.Remove(filepath.Join(dir, "raft/raft.db")))
			check(t, os.Mkdir(filepath.Join(dir, "raft/raft.db"), 0o755))
		}, []string{"DIR/raft/raft.db"}},
		{"raft.db of somebody else", lockkeeper.Config{}, func(t *testing.T, dir string) {
			check(t, os.WriteFile(filepath.Join(dir, "raft/raft.db"), []byte(strings.Repeat("no database\n", 4000)), 0o600))
		}, []string{"DIR/raft/raft.db", "damaged"}},
		{"a file", lockkeeper.Config{}, func(t *testing.T, dir string) {
			check(t, os.RemoveAll(dir))
			check(t, os.WriteFile(dir, nil, 0o644))
		}, []string{"DIR", "not a directory"}},
		{"below a file", lockkeeper.Config{}, func(t *testing.T, dir string) {
			check(t, os.RemoveAll(dir))
			check(t, os.WriteFile(dir, nil, 0o644))
		}, []string{"DIR"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			work := copyDir(t, dir)
			c.harm(t, work)
			before := listing(t, filepath.Dir(work))
			c.cfg.DataDir = work
			if c.name == "below a file" {
				c.cfg.DataDir = filepath.Join(work, "below")
			}
			for range 2 {
				s, err := lockkeeper.Open(c.cfg)
				if err == nil {
					s.Close()
					t.Fatal("it was opened")
				}
				for _, say := range c.says {
					if say = strings.Replace(say, "DIR", work, 1); !strings.Contains(err.Error(), say) {
						t.Errorf("%q does not say %q", err, say)
					}
				}
				if strings.Contains(err.Error(), "\n") {
					t.Errorf("%q has several lines", err)
				}
			}
			if c.name != "snapshots lost" { // its directory is made again
				if after := listing(t, filepath.Dir(work)); after != before {
					t.Errorf("the refusal changed the files from\n%s\nto\n%s", before, after)
				}
			}
		})
	}
	t.Run("in use", func(t *testing.T) {
		work := copyDir(t, dir)
		s := open(t, lockkeeper.Config{DataDir: work})
		for range 2 {
			if _, err := lockkeeper.Open(lockkeeper.Config{DataDir: work}); !errors.Is(err, lockkeeper.ErrInUse) || !strings.Contains(err.Error(), work) {
				t.Errorf("a second server: %v", err)
			}
			if _, err := storage.Check(work); !errors.Is(err, lockkeeper.ErrInUse) {
				t.Errorf("a check: %v", err)
			}
		}
		must(connect(t, inMemory(s)).Create("/still", nil, 0))(t)
		check(t, s.Close())
		check(t, open(t, lockkeeper.Config{DataDir: work}).Close())
	})
	t.Run("without older snapshots", func(t *testing.T) { // a crash while they were being removed
		work := copyDir(t, dir)
		old := filepath.Join(work, "raft/snapshots/1-1-1")
		check(t, os.Mkdir(old, 0o755))
		check(t, os.WriteFile(filepath.Join(old, "meta.json"), []byte("{}"), 0o644))
		check(t, os.MkdirAll(filepath.Join(work, "raft/snapshots/9-999-9.tmp"), 0o755))
		check(t, open(t, lockkeeper.Config{DataDir: work}).Close())
		if now := must(storage.Check(work))(t); now.Digest != intact.Digest || now.Zxid != intact.Zxid {
			t.Errorf("the state is %+v, was %+v", now, intact)
		}
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
