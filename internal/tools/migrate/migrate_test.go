package migrate_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/adler32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/testing/zklog"
	"github.com/lockkeeper/lockkeeper/internal/tools/migrate"
	"github.com/lockkeeper/lockkeeper/internal/tools/zkdata"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

var check = testkit.Check

func must[T any](v T, err error) func(t testing.TB) T { return testkit.Must(v, err) }

// directory writes files of ZooKeeper below version-2, and returns their parent.
func directory(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	check(t, os.Mkdir(filepath.Join(dir, "version-2"), 0o700))
	for name, b := range files {
		check(t, os.WriteFile(filepath.Join(dir, "version-2", name), b, 0o600))
	}
	return dir
}

// create is the n-th transaction of a log that creates znodes.
func create(zxid int64) zkdata.Txn {
	return zkdata.Txn{Op: proto.OpCreate, Zxid: zxid, Time: zxid, Path: fmt.Sprintf("/z%x", zxid), ACL: proto.OpenACL, ParentCversion: int32(zxid & 0xffffffff)}
}

func creates(from, to int64) (all []zkdata.Txn) {
	for zxid := from; zxid <= to; zxid++ {
		all = append(all, create(zxid))
	}
	return all
}

func log(from, to int64) []byte { return zklog.File(100, creates(from, to)...) }

// snapshot is that after the transactions up to zxid, from the first on.
func snapshot(t *testing.T, zxid int64) []byte {
	t.Helper()
	s := zkdata.NewState()
	for _, x := range creates(1, zxid&0xffffffff) {
		check(t, s.Apply(&x))
	}
	s.Zxid = zxid
	var b bytes.Buffer
	check(t, s.Content().Write(&b))
	return b.Bytes()
}

func damaged(b []byte) []byte {
	b = bytes.Clone(b)
	b[len(b)/2] ^= 1
	return b
}

// epoch1 is the zxid of a transaction of the first leader.
func epoch(n, counter int64) int64 { return n<<32 + counter }

// TestRead reads directories as they are after crashes, and as they are when something is missing.
func TestRead(t *testing.T) {
	second := zklog.File(100, create(epoch(2, 1)), create(epoch(2, 2)))
	torn := append(bytes.Clone(log(6, 8)[:170]), make([]byte, 200)...)
	for _, x := range []struct {
		name         string
		files        map[string][]byte
		znodes, txns int    // znodes besides the four that are always there
		note         string // a part of the only note; empty for none
		err          string // a part of the error
	}{
		{"snapshot and log", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.3": log(3, 9)}, 9, 4, "", ""},
		{"nothing happened yet", map[string][]byte{"snapshot.0": snapshot(t, 0)}, 0, 0, "", ""},
		{"several logs", map[string][]byte{"snapshot.2": snapshot(t, 2), "log.1": log(1, 4), "log.5": log(5, 6), "log.7": log(7, 8)}, 8, 6, "", ""},
		{"logs before the snapshot are not read", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.1": []byte("?"), "log.4": log(4, 6)}, 6, 1, "", ""},
		{"log begins right after the snapshot", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.6": log(6, 6)}, 6, 1, "", ""},
		{"log ends at the snapshot", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.1": log(1, 5)}, 5, 0, "", ""},
		{"log ends at the snapshot, and an empty one follows", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.1": log(1, 5), "log.6": nil}, 0, 0, "", "log.6 is empty, without the zeros"},
		{"other files", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.6": log(6, 6), "snapshot.x": nil, "log": nil, "acceptedEpoch": []byte("1"), "logs.9": nil}, 6, 1, "", ""},
		{"a new leader", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.6": log(6, 6), "log.200000001": second}, 8, 3, "", ""},
		{"torn log", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.6": torn}, 6, 1, "after zxid 0x6 are 63 bytes of a transaction that is not complete", ""},
		{"torn log in the middle", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.6": torn, "log.7": log(7, 7)}, 7, 2, "after zxid 0x6 are 63 bytes of a transaction that is not complete", ""},
		{"empty last log", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.6": log(6, 6), "log.7": nil}, 0, 0, "", "log.7 is empty, without the zeros"},
		{"snapshot of a leader that wrote nothing", map[string][]byte{"snapshot.200000000": snapshot(t, epoch(2, 0)), "log.100000001": zklog.File(100, create(epoch(1, 1)))}, 0, 0, "", ""},
		{"incomplete snapshot of a leader that wrote nothing", map[string][]byte{"snapshot.2": snapshot(t, 2), "snapshot.100000000": snapshot(t, epoch(1, 0))[:50], "log.1": log(1, 4)}, 4, 2, "cut short", ""},
		{"no snapshot", map[string][]byte{"log.1": log(1, 3)}, 3, 3, "no snapshot", ""},
		{"no snapshot, of an ensemble", map[string][]byte{"log.100000001": zklog.File(100, create(epoch(1, 1)))}, 1, 1, "no snapshot", ""},
		{"damaged newest snapshot", map[string][]byte{"snapshot.2": snapshot(t, 2), "snapshot.5": damaged(snapshot(t, 5)), "log.1": log(1, 6)}, 6, 4, "snapshot.5: damaged at offset", ""},
		{"incomplete newest snapshot", map[string][]byte{"snapshot.2": snapshot(t, 2), "snapshot.5": snapshot(t, 5)[:50], "log.1": log(1, 6)}, 6, 4, "cut short", ""},
		{"a znode of a session that does not exist", map[string][]byte{"snapshot.2": snapshot(t, 2), "log.3": zklog.File(100, zkdata.Txn{
			Op: proto.OpCreate, Session: 77, Zxid: 3, Path: "/e", ACL: proto.OpenACL, Ephemeral: true, ParentCversion: 3})}, 2, 1, "1 ephemeral znodes of sessions that do not exist were deleted, as ZooKeeper does when it starts; the first is /e", ""},
		{"more children than creates", map[string][]byte{"snapshot.2": snapshot(t, 2), "log.3": zklog.File(100, create(3), zkdata.Txn{
			Op: proto.OpCreate2, Zxid: 4, Path: "/z1/c", ACL: proto.OpenACL, ParentCversion: 0})}, 4, 2, "1 znodes had more children than were ever created", ""},

		{"nothing", nil, 0, 0, "", "neither a snapshot nor a transaction log"},
		{"no log", map[string][]byte{"snapshot.5": snapshot(t, 5)}, 0, 0, "", "--log"},
		{"log ends before the snapshot", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.1": log(1, 4)}, 0, 0, "", "the logs end at zxid 0x4, but the server was at 0x5"},
		{"log begins after the snapshot, and is empty", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.6": nil}, 0, 0, "", "log.6 is empty, without the zeros"},
		{"empty log in the middle", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.6": nil, "log.7": log(7, 8)}, 0, 0, "", "log.6: damaged: it is empty"},
		{"damaged log", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.6": damaged(zklog.File(0, creates(6, 9)...))}, 0, 0, "", "log.6: damaged at offset"},
		{"all snapshots damaged", map[string][]byte{"snapshot.5": damaged(snapshot(t, 5)), "log.1": log(1, 6)}, 0, 0, "", "no snapshot can be read: "},
		{"log ends before the damaged snapshot", map[string][]byte{"snapshot.2": snapshot(t, 2), "snapshot.5": damaged(snapshot(t, 5)), "log.1": log(1, 4)}, 0, 0, "", "the snapshot of zxid 0x5 is damaged"},
		{"gap after the snapshot", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.7": log(7, 9)}, 0, 0, "", "log.7: damaged at offset 16: transactions are missing: zxid 0x7 comes after 0x5"},
		{"gap between logs", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.6": log(6, 7), "log.9": log(9, 9)}, 0, 0, "", "transactions are missing: zxid 0x9 comes after 0x7"},
		{"gap in a log", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.6": zklog.File(0, create(6), create(8))}, 0, 0, "", "transactions are missing"},
		{"gap at a new leader", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.6": zklog.File(0, create(6), create(epoch(2, 2)))}, 0, 0, "", "transactions are missing"},
		{"no snapshot and not the beginning", map[string][]byte{"log.3": log(3, 5)}, 0, 0, "", "transactions are missing"},
		{"no snapshot and not the first leader", map[string][]byte{"log.700000001": zklog.File(0, create(epoch(7, 1)))}, 0, 0, "", "transactions are missing"},
		{"bad epoch", map[string][]byte{"snapshot.0": snapshot(t, 0), "currentEpoch": []byte("x")}, 0, 0, "", `currentEpoch has "x", and should have the server's epoch.`},
		{"empty epoch", map[string][]byte{"snapshot.200000000": snapshot(t, epoch(2, 0)), "log.200000001": second, "currentEpoch": []byte("\n")}, 0, 0, "",
			"currentEpoch has \"\", and should have the server's epoch. ZooKeeper does not start with it either. Use the directory of another server; if this is the only one, move the file away: the epoch is then that of the last zxid, 2,"},
		{"a session twice", map[string][]byte{"snapshot.0": {'Z', 'K', 'S', 'N', 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
			0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1}}, 0, 0, "", "session 0x1 occurs twice"},
	} {
		t.Run(x.name, func(t *testing.T) {
			s, f, err := migrate.Read(migrate.Source{Data: directory(t, x.files)})
			var m *fsm.Machine
			if err == nil {
				m, err = migrate.Machine(s, f)
			}
			if x.err != "" {
				if err == nil || !strings.Contains(err.Error(), x.err) {
					t.Fatalf("%v, should have %q", err, x.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if f.Transactions != x.txns || f.Znodes != x.znodes+4 || m.Tree().Len() != x.znodes+4 {
				t.Errorf("%+v, should be %d transactions, %d znodes", f, x.txns, x.znodes+4)
			}
			if x.note == "" && len(f.Notes) > 0 || x.note != "" && (len(f.Notes) != 1 || !strings.Contains(f.Notes[0], x.note)) {
				t.Errorf("notes %q, should be %q", f.Notes, x.note)
			}
		})
	}
	if _, _, err := migrate.Read(migrate.Source{Data: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "is no dataDir of ZooKeeper") {
		t.Error(err)
	}
}

// TestLogDirectory: the logs may be in a directory of their own.
func TestLogDirectory(t *testing.T) {
	data := directory(t, map[string][]byte{"snapshot.5": snapshot(t, 5), "currentEpoch": []byte("7\n")})
	logs := directory(t, map[string][]byte{"log.6": log(6, 7)})
	if _, f, err := migrate.Read(migrate.Source{Data: data, Log: logs}); err != nil || f.Znodes != 7+4 || f.Epoch != 7 {
		t.Errorf("%+v, %v", f, err)
	}
	if _, f, err := migrate.Read(migrate.Source{Data: data, WithoutLog: true}); err != nil || f.Znodes != 5+4 {
		t.Errorf("%+v, %v", f, err)
	}
	if _, _, err := migrate.Read(migrate.Source{Data: data, Log: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "is no dataLogDir of ZooKeeper") {
		t.Error(err)
	}
}

// TestLogsThatEndEarly: a snapshot may have a part of the transactions after its zxid, up to the zxid of its digest.
// Without them the state is none that the server has had.
func TestLogsThatEndEarly(t *testing.T) {
	b := snapshot(t, 5)
	b = jute.AppendLong(jute.AppendInt(jute.AppendLong(b, 8), 2), 77)
	b = jute.AppendString(jute.AppendLong(b, int64(adler32.Checksum(b))), "/")
	short := directory(t, map[string][]byte{"snapshot.5": b, "log.1": log(1, 7)})
	if _, f, err := migrate.Read(migrate.Source{Data: short}); err == nil || !strings.Contains(err.Error(), "the logs end at zxid 0x7, but the server was at 0x8") {
		t.Errorf("%+v, %v", f, err)
	}
	if _, f, err := migrate.Read(migrate.Source{Data: short, WithoutLog: true}); err != nil || f.Zxid != 7 {
		t.Errorf("%+v, %v", f, err)
	}
	if _, f, err := migrate.Read(migrate.Source{Data: directory(t, map[string][]byte{"snapshot.5": b, "log.1": log(1, 8)})}); err != nil || f.Zxid != 8 {
		t.Errorf("%+v, %v", f, err)
	}
}

// TestMixedDirectories: ZooKeeper does not start if there are logs next to the snapshots, or snapshots
// next to the logs, although the dataLogDir is another one. Either the wrong one is named, or its files were
// never moved.
func TestMixedDirectories(t *testing.T) {
	data := directory(t, map[string][]byte{"snapshot.5": snapshot(t, 5), "log.6": log(6, 9)})
	logs := directory(t, map[string][]byte{"log.6": log(6, 7)})
	if _, f, err := migrate.Read(migrate.Source{Data: data, Log: logs}); err == nil || !strings.Contains(err.Error(), "log.6: a log in ZooKeeper's dataDir") {
		t.Errorf("%+v, %v", f, err)
	}
	data = directory(t, map[string][]byte{"snapshot.5": snapshot(t, 5)})
	logs = directory(t, map[string][]byte{"log.6": log(6, 9), "snapshot.9": snapshot(t, 9)})
	if _, f, err := migrate.Read(migrate.Source{Data: data, Log: logs}); err == nil || !strings.Contains(err.Error(), "snapshot.9: a snapshot in ZooKeeper's dataLogDir") {
		t.Errorf("%+v, %v", f, err)
	}
	// The same directory may be named twice.
	same := directory(t, map[string][]byte{"snapshot.5": snapshot(t, 5), "log.6": log(6, 9)})
	if _, f, err := migrate.Read(migrate.Source{Data: same, Log: same + "/."}); err != nil || f.Zxid != 9 {
		t.Errorf("%+v, %v", f, err)
	}
}

// TestLinkedFiles: files may be elsewhere, with links to them, as ZooKeeper reads them.
func TestLinkedFiles(t *testing.T) {
	link := func(to, from string) {
		t.Helper()
		check(t, os.Symlink(to, from))
	}
	elsewhere := directory(t, map[string][]byte{"s": snapshot(t, 5), "l": log(6, 9)})
	dir := directory(t, map[string][]byte{"snapshot.2": snapshot(t, 2), "log.1": log(1, 5)})
	link(filepath.Join(elsewhere, "version-2", "s"), filepath.Join(dir, "version-2", "snapshot.5"))
	link(filepath.Join(elsewhere, "version-2", "l"), filepath.Join(dir, "version-2", "log.6"))
	if _, f, err := migrate.Read(migrate.Source{Data: dir}); err != nil || f.Zxid != 9 || f.Transactions != 4 {
		t.Errorf("%+v, %v", f, err)
	}
	link("missing", filepath.Join(dir, "version-2", "log.a"))
	if _, f, err := migrate.Read(migrate.Source{Data: dir}); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "version-2", "log.a")) {
		t.Errorf("%+v, %v", f, err)
	}
	dir = directory(t, map[string][]byte{"snapshot.2": snapshot(t, 2), "log.1": log(1, 5)})
	check(t, os.Mkdir(filepath.Join(dir, "version-2", "log.6"), 0o700))
	if _, f, err := migrate.Read(migrate.Source{Data: dir}); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "version-2", "log.6")+": it is no regular file") {
		t.Errorf("%+v, %v", f, err)
	}
}

// TestRunningZooKeeper: files that change while they are read are of a server that runs.
func TestRunningZooKeeper(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"a longer log":   func(dir string) error { return os.WriteFile(filepath.Join(dir, "log.6"), log(6, 9), 0o600) },
		"a new log":      func(dir string) error { return os.WriteFile(filepath.Join(dir, "log.7"), nil, 0o600) },
		"a new snapshot": func(dir string) error { return os.WriteFile(filepath.Join(dir, "snapshot.6"), nil, 0o600) },
	} {
		dir := directory(t, map[string][]byte{"snapshot.5": snapshot(t, 5), "log.6": log(6, 6)})
		_, _, err := migrate.ReadAnd(migrate.Source{Data: dir}, func() {
			check(t, change(filepath.Join(dir, "version-2")))
		})
		if err == nil || !strings.Contains(err.Error(), "stop ZooKeeper first") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

var digestACL = []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: "digest", ID: "u:x"}}}

// rich has all kinds of znodes, a quota and sessions.
func rich() []zkdata.Txn {
	return []zkdata.Txn{
		{Op: proto.OpCreateSession, Session: 0x77, Zxid: 1, Timeout: 4000},
		{Op: proto.OpCreate, Session: 0x77, Zxid: 2, Time: 20, Path: "/a", Data: []byte("x"), ACL: digestACL, ParentCversion: 1},
		{Op: proto.OpCreate, Session: 0x77, Zxid: 3, Time: 30, Path: "/a/e", ACL: proto.OpenACL, Ephemeral: true, ParentCversion: 1},
		{Op: proto.OpCreateContainer, Zxid: 4, Time: 40, Path: "/c", Data: []byte{}, ACL: proto.OpenACL, ParentCversion: 2},
		{Op: proto.OpCreateTTL, Zxid: 5, Time: 50, Path: "/t", Data: []byte{}, ACL: proto.OpenACL, ParentCversion: 3, TTL: 1234},
		{Op: proto.OpCreate, Zxid: 6, Time: 60, Path: "/zookeeper/quota/a", Data: []byte{}, ACL: proto.OpenACL, ParentCversion: 1},
		{Op: proto.OpCreate, Zxid: 7, Time: 70, Path: "/zookeeper/quota/a/zookeeper_limits", Data: []byte("count=9,bytes=-1"), ACL: proto.OpenACL, ParentCversion: 1},
		{Op: proto.OpCreate, Zxid: 8, Time: 80, Path: "/zookeeper/quota/a/zookeeper_stats", Data: []byte("count=0,bytes=0"), ACL: proto.OpenACL, ParentCversion: 2},
		{Op: proto.OpSetData, Zxid: 9, Time: 90, Path: "/a/e", Data: []byte("abc"), Version: 1},
		{Op: proto.OpReconfig, Zxid: 10, Time: 100, Path: "/zookeeper/config", Data: []byte("server.1=a:1:2:participant"), Version: -1},
	}
}

// TestMachine: what lockkeeper makes of the state.
func TestMachine(t *testing.T) {
	dir := directory(t, map[string][]byte{"snapshot.0": snapshot(t, 0), "log.1": zklog.File(100, rich()...)})
	s, f, err := migrate.Read(migrate.Source{Data: dir})
	if err != nil {
		t.Fatal(err)
	}
	m := must(migrate.Machine(s, f))(t)
	if x := m.Sessions().Get(0x77); x == nil || x.Timeout != 4000 || x.Password != session.ZooKeeperPassword(0x77) || m.Sessions().Len() != 1 {
		t.Errorf("session %+v", x)
	}
	if f.Ephemerals != 1 || f.Containers != 1 || f.TTLs != 1 || f.Sessions != 1 || len(f.Notes) > 0 {
		t.Errorf("%+v", f)
	}
	want := znode.Record{Path: "/a/e", Data: []byte("abc"), ACL: proto.OpenACL, Czxid: 3, Mzxid: 9, Pzxid: 3, Ctime: 30, Mtime: 90, Owner: 0x77, Version: 1, Kind: znode.Ephemeral}
	if got := m.Tree().Lookup("/a/e").Record(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%+v, should be %+v", got, want)
	}
	if got := m.Tree().Lookup("/a").Record(); got.Creates != 1 || got.Pzxid != 3 || !slices.Equal(got.ACL, digestACL) {
		t.Errorf("%+v", got)
	}
	if got := m.Tree().Lookup("/t").Record(); got.Kind != znode.TTL || got.Owner != 1234 {
		t.Errorf("%+v", got)
	}
	if got := m.Tree().Lookup("/c").Record(); got.Kind != znode.Container || got.Owner != 0 {
		t.Errorf("%+v", got)
	}
	if got := m.Tree().Lookup("/zookeeper/quota/a/zookeeper_stats").Record(); string(got.Data) != "count=2,bytes=4" {
		t.Errorf("the quota was not counted: %q", got.Data)
	}
	// No client must go to ZooKeeper's servers because it finds them there.
	if got := m.Tree().Lookup(znode.ConfigPath).Record(); len(got.Data) > 0 || got.Mzxid <= 10 {
		t.Errorf("%+v", got)
	}
	m.Restart(1, nil)
	if m.Zxid() <= 10 {
		t.Errorf("zxid %d after ZooKeeper's 10", m.Zxid())
	}
}

// TestManyCreates: ZooKeeper's counter of the children ever created has 32 bits and goes on below zero. The
// names of sequential znodes do not begin again.
func TestManyCreates(t *testing.T) {
	c := zkdata.NewState().Content()
	others := c.Nodes
	c.Nodes = func(write func(string, *zkdata.Node) error) error {
		return errors.Join(others(write), write("/a", &zkdata.Node{ACL: proto.OpenACL, Cversion: -1 << 31}), write("/a/c", &zkdata.Node{ACL: proto.OpenACL}))
	}
	var b bytes.Buffer
	check(t, c.Write(&b))
	s := must(zkdata.ReadSnapshot(&b, 0))(t)
	f := &migrate.Found{}
	m := must(migrate.Machine(s, f))(t)
	if got := m.Tree().Lookup("/a").Record().Creates; got != 1<<31 || len(f.Notes) > 0 {
		t.Errorf("%d creates, notes %q", got, f.Notes)
	}
}

// TestThereAndBack: a state that is migrated, and back, has the same znodes and sessions.
func TestThereAndBack(t *testing.T) {
	dir := directory(t, map[string][]byte{"snapshot.0": snapshot(t, 0), "log.1": zklog.File(100, rich()...)})
	s, f, err := migrate.Read(migrate.Source{Data: dir})
	if err != nil {
		t.Fatal(err)
	}
	m := must(migrate.Machine(s, f))(t)
	m.Restart(1, nil)
	back, err := migrate.ForZooKeeper(t.Context(), m.Snapshot())
	if err != nil || len(back.Strangers) > 0 {
		t.Fatal(back.Strangers, err)
	}
	if back.Zxid <= m.Zxid() || back.Znodes != s.Len() || back.TTLs != 1 || back.LongestData < 3 || back.Sessions[0x77] != 4000 {
		t.Errorf("zxid %#x after %#x, %d znodes, %d with TTLs, %d bytes, sessions %v", back.Zxid, m.Zxid(), back.Znodes, back.TTLs, back.LongestData, back.Sessions)
	}
	to := filepath.Join(t.TempDir(), "new")
	check(t, migrate.Write(to, 3, &back.Content))
	again, f, err := migrate.Read(migrate.Source{Data: to, WithoutLog: true})
	if err != nil || len(f.Notes) > 0 || again.Len() != s.Len() || f.Epoch != back.Zxid>>32 || f.Zxid != back.Zxid || f.Sessions != 1 {
		t.Fatalf("%+v, %v", f, err)
	}
	for path, n := range s.All() {
		if got := again.Get(path); path != znode.ConfigPath && !strings.HasSuffix(path, "_stats") && (got == nil || show(got) != show(n)) {
			t.Errorf("%s: %v, was %v", path, got, n)
		}
	}
	for name, want := range map[string]string{"myid": "3", "version-2/currentEpoch": fmt.Sprint(f.Epoch), "version-2/acceptedEpoch": fmt.Sprint(f.Epoch)} {
		if b, err := os.ReadFile(filepath.Join(to, name)); err != nil || strings.TrimSpace(string(b)) != want {
			t.Errorf("%s has %q, should be %s: %v", name, b, want, err)
		}
	}
	if entries, _ := os.ReadDir(to); len(entries) != 2 {
		t.Errorf("there is %v", entries)
	}
}

func show(n *zkdata.Node) string {
	return fmt.Sprintf("%q %v %v %v %v %v %v %v %v %v %#x", n.Data, n.Data == nil, n.ACL, n.Czxid, n.Mzxid, n.Pzxid, n.Ctime, n.Mtime, n.Version, n.Cversion, n.Owner)
}

// TestWrite: a directory that is not empty stays as it is, one where an earlier call crashed does
// not matter, and an error leaves nothing.
func TestWrite(t *testing.T) {
	s := zkdata.NewState().Content()
	s.Zxid = 1 << 32
	full := t.TempDir()
	check(t, os.WriteFile(filepath.Join(full, "x"), nil, 0o600))
	if err := migrate.Write(full, 0, s); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Error(err)
	}
	crashed := t.TempDir()
	check(t, os.MkdirAll(filepath.Join(crashed, "making.1.tmp", "version-2"), 0o700))
	check(t, migrate.Write(crashed, 0, s))
	if entries, _ := os.ReadDir(crashed); len(entries) != 1 || entries[0].Name() != "version-2" {
		t.Errorf("there is %v", entries)
	}
	if _, err := os.Stat(filepath.Join(full, "version-2")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestForZooKeeper: what ZooKeeper cannot have is refused, and foreign passwords are counted.
func TestForZooKeeper(t *testing.T) {
	tree := func(records ...znode.Record) *znode.Restorer {
		r := znode.NewRestorer()
		for _, x := range append([]znode.Record{{Path: "/"}, {Path: "/zookeeper"}, {Path: "/zookeeper/quota"}, {Path: "/zookeeper/config"}}, records...) {
			x.ACL = proto.OpenACL
			check(t, r.Add(&x))
		}
		return r
	}
	machine := func(nodes *znode.Restorer, sessions ...session.Session) *fsm.Machine {
		m := must(fsm.Import(5, nodes, sessions))(t)
		return m
	}
	own := session.Session{ID: 7, Timeout: 1000, Password: session.ZooKeeperPassword(7)}
	s, err := migrate.ForZooKeeper(t.Context(), machine(tree(), own, session.Session{ID: 8, Timeout: 1000}).Snapshot())
	if err != nil || !slices.Equal(s.Strangers, []int64{8}) || len(s.Sessions) != 2 || s.Zxid != 1<<32 {
		t.Errorf("%v %v", s, err)
	}
	for says, m := range map[string]*fsm.Machine{
		"takes such an owner": machine(tree(), session.Session{ID: -5}),
		"ZooKeeper does not start with /zookeeper/quota/zookeeper_limits:":                  machine(tree(znode.Record{Path: "/zookeeper/quota/zookeeper_limits"})),
		"ZooKeeper does not start with /zookeeper/quota/zookeeper_limits2/zookeeper_limits": machine(tree(znode.Record{Path: "/zookeeper/quota/zookeeper_limits2", Creates: 1}, znode.Record{Path: "/zookeeper/quota/zookeeper_limits2/zookeeper_limits"})),
		"2147483648 children": machine(tree(znode.Record{Path: "/a", Creates: 1 << 31})),
	} {
		if _, err := migrate.ForZooKeeper(t.Context(), m.Snapshot()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, should have %q", err, says)
		}
	}
	damaged := machine(tree(znode.Record{Path: "/a", Data: []byte("data")}))
	text := *(*string)(unsafe.Pointer(damaged.Tree().Lookup("/a"))) // name, then data
	unsafe.Slice(unsafe.StringData(text), len(text))[3] ^= 1
	if _, err := migrate.ForZooKeeper(t.Context(), damaged.Snapshot()); !errors.Is(err, fsm.ErrMemory) {
		t.Errorf("a bit of a znode has flipped in memory: %v", err)
	}
	for says, sessions := range map[string][]session.Session{"occurs twice": {own, own}, "cannot exist": {{}}} {
		if _, err := fsm.Import(5, tree(), sessions); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, should have %q", err, says)
		}
	}
	orphan := znode.NewRestorer()
	orphan.Add(&znode.Record{Path: "/", ACL: proto.OpenACL})
	if _, err := fsm.Import(5, orphan, nil); err == nil || !strings.Contains(err.Error(), "there is no /zookeeper") {
		t.Error(err)
	}
	// An ephemeral needs its session.
	if _, err := fsm.Import(5, tree(znode.Record{Path: "/e", Kind: znode.Ephemeral, Owner: 9}), nil); err == nil || !strings.Contains(err.Error(), "its session 0x9 does not exist") {
		t.Error(err)
	}
}
