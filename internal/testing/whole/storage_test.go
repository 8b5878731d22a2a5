package whole

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestRestart closes a server with state of all kinds and opens it again. The state must
// be the same, and zxids and sequence numbers must continue.
func TestRestart(t *testing.T) {
	t.Run("directory", func(t *testing.T) {
		testRestart(t, lockkeeper.Config{DataDir: testkit.MemoryDir(t)})
	})
	t.Run("directory with boltdb", func(t *testing.T) {
		testRestart(t, lockkeeper.Config{DataDir: testkit.MemoryDir(t), LogStore: "boltdb"})
	})
	t.Run("memory", func(t *testing.T) {
		testRestart(t, withMemory(lockkeeper.Config{}))
	})
	t.Run("directory with snapshots", func(t *testing.T) {
		testRestart(t, lockkeeper.Config{DataDir: testkit.MemoryDir(t), Limits: lockkeeper.Limits{SnapshotBytes: 1}})
	})
	t.Run("memory with snapshots", func(t *testing.T) {
		testRestart(t, withMemory(lockkeeper.Config{Limits: lockkeeper.Limits{SnapshotBytes: 1}}))
	})
}

func testRestart(t *testing.T, cfg lockkeeper.Config) {
	noGoroutineLeft(t)
	secret := []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeDigest, ID: "u:Jq7wMyA/w2Vd5WIDAKdu4OIIFEQ="}}} // u:p
	login := func(c *rawclient.Client) {
		t.Helper()
		must(c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: proto.SchemeDigest, Auth: []byte("u:p")}, nil))(t)
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
	must(c.Call(proto.OpCreate, &proto.CreateRequest{Path: "/private", Data: []byte("p"), ACL: secret}, nil))(t)
	must(c.Call(proto.OpSetACL, &proto.SetACLRequest{Path: "/dir3", ACL: secret, Version: 0}, nil))(t)
	var container proto.PathStatReply
	must(c.Call(proto.OpCreateContainer, &proto.CreateRequest{Path: "/container", ACL: proto.OpenACL, Flags: proto.FlagContainer}, &container))(t)
	must(c.Create("/lock", nil, proto.FlagEphemeral))(t)
	gone := connect(t, inMemory(s))
	must(gone.Create("/gone", nil, proto.FlagEphemeral))(t)
	must(gone.Call(proto.OpCloseSession, nil, nil))(t)
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
			t.Fatalf("round %d: the tree was\n%s\nbut is\n%s", round, before, after)
		}
		if now <= zxid {
			t.Errorf("round %d: zxid %#x after a restart, %#x before", round, now, zxid)
		}
		if _, err := rawclient.Resume(must(s.Dial("", "", time.Second))(t), gone.Session); err != rawclient.ErrRefused {
			t.Errorf("round %d: a closed session came back: %v", round, err)
		}
		nc := must(s.Dial("", "", time.Second))(t)
		c = must(rawclient.Resume(nc, c.Session))(t)
		if lock := must(c.Exists("/lock", false))(t); lock.EphemeralOwner != c.Session.SessionID {
			t.Errorf("round %d: the owner of /lock is %#x", round, lock.EphemeralOwner)
		}
		// Seven were created and one deleted, so the next has number 7.
		want := fmt.Sprintf("/dir7/seq-%010d", 7+round)
		if path := must(c.Create("/dir7/seq-", nil, proto.FlagSequential))(t); path != want {
			t.Errorf("round %d: the next sequential is %s, not %s", round, path, want)
		}
		login(c)
		must(fresh.Call(proto.OpCloseSession, nil, nil))(t)
		before, zxid = tree(t, c, "/")
		check(t, s.Close())
	}
	s = open(t, cfg)
	c = must(rawclient.Resume(must(s.Dial("", "", time.Second))(t), c.Session))(t)
	must(c.Call(proto.OpCloseSession, nil, nil))(t)
	last := connect(t, inMemory(s))
	if _, err := last.Exists("/lock", false); err != proto.NoNode {
		t.Errorf("/lock without its session: %v", err)
	}
}

// tree returns everything that a client can see at and below path, and the last zxid.
func tree(t testing.TB, c *rawclient.Client, path string) (string, int64) {
	t.Helper()
	var r proto.DataReply
	f, err := c.Call(proto.OpGetData, &proto.PathWatch{Path: path}, &r)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var acl proto.ACLReply
	must(c.Call(proto.OpGetACL, &proto.Path{Path: path}, &acl))(t)
	var b strings.Builder
	fmt.Fprintf(&b, "%s %q %v %+v %+v\n", path, r.Data, r.Data == nil, r.Stat, acl.ACL)
	var children proto.ChildrenReply
	must(c.Call(proto.OpGetChildren, &proto.PathWatch{Path: path}, &children))(t)
	slices.Sort(children.Names)
	for _, name := range children.Names {
		below, _ := tree(t, c, strings.TrimSuffix(path, "/")+"/"+name)
		b.WriteString(below)
	}
	return b.String(), f.Zxid
}

// TestLogStaysBounded overwrites a few znodes many times. The size of the directory stays
// limited, and a restart from a snapshot and the log after it gives the same state.
func TestLogStaysBounded(t *testing.T) {
	for _, store := range []lockkeeper.LogStore{lockkeeper.LogStoreWAL, lockkeeper.LogStoreBoltDB} {
		t.Run(string(store), func(t *testing.T) { testLogStaysBounded(t, store) })
	}
}

func testLogStaysBounded(t *testing.T, store lockkeeper.LogStore) {
	noGoroutineLeft(t)
	const writes, dataBytes = 15_000, 2048
	dir := testkit.MemoryDir(t)
	cfg := lockkeeper.Config{DataDir: dir, LogStore: store, Limits: lockkeeper.Limits{SnapshotBytes: 256 << 10}}
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
				c.Queue(proto.OpSetData, &proto.SetDataRequest{Path: path, Data: fmt.Append(nil, j, strings.Repeat(".", dataBytes)), Version: int32(j)})
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
	const written = writes * dataBytes
	report := must(storage.Check(dir))(t)
	if report.SnapshotIndex == 0 || string(report.LogStore) != string(store) {
		t.Errorf("no snapshot was taken, or the log is in %s", report.LogStore)
	}
	size := dirBytes(t, dir)
	t.Logf("%d MB written, %d KB on disk, entries %d to %d, snapshot at %d", written>>20, size>>10, report.FirstIndex, report.LastIndex, report.SnapshotIndex)
	// With so much in flight entries have up to a megabyte, and bbolt writes pages
	// elsewhere before it frees the old ones.
	if limit := cfg.Limits.SnapshotBytes + 24<<20; size > limit {
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

// TestRefusedDirectory: a server does not start on a data directory that is damaged or in
// use. It names the directory, and leaves no goroutine behind. The tests of
// internal/core/storage check which directories are refused.
func TestRefusedDirectory(t *testing.T) {
	noGoroutineLeft(t)
	dir := filepath.Join(t.TempDir(), "data")
	refused := func(what string) error {
		t.Helper()
		s, err := lockkeeper.Open(lockkeeper.Config{DataDir: dir})
		if err == nil {
			s.Close()
			t.Fatalf("a directory that is %s was opened", what)
		}
		if !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
			t.Errorf("a directory that is %s: %q", what, err)
		}
		return err
	}
	s := open(t, lockkeeper.Config{DataDir: dir})
	if err := refused("in use"); !errors.Is(err, lockkeeper.ErrInUse) {
		t.Errorf("a directory that is in use: %v", err)
	}
	must(connect(t, inMemory(s)).Create("/still", nil, 0))(t)
	check(t, s.Close())
	check(t, open(t, lockkeeper.Config{DataDir: dir}).Close())

	file := filepath.Join(dir, "raft", "wal", "stable.db")
	content := must(os.ReadFile(file))(t)
	content[20] ^= 1 // in the first meta page
	check(t, os.WriteFile(file, content, 0o600))
	if err := refused("damaged"); !strings.Contains(err.Error(), file+" is damaged") {
		t.Errorf("a directory that is damaged: %v", err)
	}
}

// TestHash: the digests that the word hash shows are the same after a restart.
func TestHash(t *testing.T) {
	dir := t.TempDir()
	s := must(lockkeeper.Open(lockkeeper.Config{DataDir: dir}))(t)
	c := connect(t, inMemory(s))
	if got := word(t, inMemory(s), "hash"); got != "" {
		t.Errorf("of a new server: %q", got)
	}
	for i := range 300 {
		c.Queue(proto.OpCreate, &proto.CreateRequest{Path: fmt.Sprintf("/%d", i), ACL: proto.OpenACL})
	}
	go c.Flush()
	for range 300 {
		must(c.Read())(t)
	}
	first := word(t, inMemory(s), "hash")
	if !regexp.MustCompile(`^[0-9a-f]*80: -?\d+\n[0-9a-f]*00: -?\d+\n$`).MatchString(first) {
		t.Errorf("after 300 transactions: %q", first)
	}
	check(t, s.Close())
	again := open(t, lockkeeper.Config{DataDir: dir})
	if got := word(t, inMemory(again), "hash"); got != first {
		t.Errorf("after a restart %q, before it %q", got, first)
	}
}
