package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/zklog"
	"github.com/lockkeeper/lockkeeper/internal/tools/migrate"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/zkdata"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// zooDir makes a dataDir of ZooKeeper with a session that has the lock /l, and a znode with a TTL. The
// last transaction has zxid 4.
func zooDir(t *testing.T) string {
	t.Helper()
	var snapshot bytes.Buffer
	check1(t, zkdata.NewState().Content().Write(&snapshot))
	dir := filepath.Join(t.TempDir(), "zookeeper")
	check1(t, os.MkdirAll(filepath.Join(dir, "version-2"), 0o700))
	check1(t, os.WriteFile(filepath.Join(dir, "version-2", "snapshot.0"), snapshot.Bytes(), 0o600))
	check1(t, os.WriteFile(filepath.Join(dir, "version-2", "log.1"), zklog.File(50,
		zkdata.Txn{Op: proto.OpCreateSession, Session: 0x123456789, Zxid: 1, Timeout: 20000},
		zkdata.Txn{Op: proto.OpCreate, Session: 0x123456789, Zxid: 2, Time: 5, Path: "/l", ACL: proto.OpenACL, ParentCversion: 1},
		zkdata.Txn{Op: proto.OpCreate2, Session: 0x123456789, Zxid: 3, Time: 6, Path: "/l/lock-0000000000", Data: []byte("x"), ACL: proto.OpenACL, Ephemeral: true, ParentCversion: 1},
		zkdata.Txn{Op: proto.OpCreateTTL, Session: 0x123456789, Zxid: 4, Time: time.Now().UnixMilli(), Path: "/t", ACL: proto.OpenACL, ParentCversion: 2, TTL: 1 << 38},
	), 0o600))
	return dir
}

// resumeBy resumes a session with a password.
func resumeBy(t *testing.T, addr string, id int64, password session.Password) *rawclient.Client {
	t.Helper()
	nc, err := net.DialTimeout("tcp", addr, time.Minute)
	check1(t, err)
	t.Cleanup(func() { nc.Close() })
	c, err := rawclient.Resume(nc, proto.ConnectReply{SessionID: id, Password: password[:], Timeout: 20000})
	check1(t, err)
	return c
}

// TestMigrate moves the state of a ZooKeeper to a server, whose session goes on with its lock, and back
// to ZooKeeper, with a session of the server.
func TestMigrate(t *testing.T) {
	from := zooDir(t)
	data := filepath.Join(t.TempDir(), "data")
	text := succeeds(t, "migrate", "from", from, "--data", data)
	for _, says := range []string{"zxid 0x4", "7 znodes (1 ephemeral, 0 containers, 1 with a TTL)", "1 sessions, 4 transactions", "start it with: lockkeeper serve --data " + data + " --id 1\n"} {
		if !strings.Contains(text, says) {
			t.Errorf("%q does not say %q", text, says)
		}
	}
	if code, _, stderr := call(nil, "migrate", "from", from, "--data", data); code != exitFault || !strings.Contains(stderr, "is not empty") {
		t.Errorf("a second time: %d %q", code, stderr)
	}

	const id = 0x123456789
	p := start(t, nil, "serve", "--data", data, "--listen", "127.0.0.1:0", "--zookeeper-passwords").waitReady()
	c := resumeBy(t, p.addr, id, session.ZooKeeperPassword(id))
	if c.Session.SessionID != id {
		t.Fatalf("the session was not resumed: %+v", c.Session)
	}
	stat, err := c.Exists("/l/lock-0000000000", false)
	check1(t, err)
	want := proto.Stat{Czxid: 3, Mzxid: 3, Pzxid: 3, Ctime: 6, Mtime: 6, EphemeralOwner: id, DataLength: 1}
	if stat != want {
		t.Errorf("%+v, should be %+v", stat, want)
	}
	next, err := c.Create("/l/lock-", nil, proto.FlagEphemeralSeq)
	check1(t, err)
	if next != "/l/lock-0000000001" {
		t.Errorf("the next znode is %s", next)
	}
	if stat, err = c.Exists(next, false); err != nil || stat.Czxid <= 4<<32 {
		t.Errorf("token %#x, %v", stat.Czxid, err)
	}
	late := p.connect()
	if got := session.Password(late.Session.Password); got != session.ZooKeeperPassword(late.Session.SessionID) {
		t.Errorf("the password of a new session is %x", got)
	}
	p.stop()

	to := filepath.Join(t.TempDir(), "to")
	text = succeeds(t, "migrate", "to", to, "--data", data, "--id", "2")
	if !strings.Contains(text, "8 znodes, 2 sessions\nnote: 1 znodes have a TTL: start ZooKeeper with -Dzookeeper.extendedTypesEnabled=true, or it deletes them\n") {
		t.Errorf("%q", text)
	}
	var found migrate.Found
	check1(t, json.Unmarshal([]byte(succeeds(t, "migrate", "check", to, "--without-log", "--json")), &found))
	if found.Zxid <= stat.Czxid || found.Zxid != found.Epoch<<32 || found.Sessions != 2 || found.Ephemerals != 2 || len(found.Notes) > 0 {
		t.Errorf("%+v", found)
	}
}

// TestMigrateStrangers: sessions with random passwords cannot go to ZooKeeper.
func TestMigrateStrangers(t *testing.T) {
	p := start(t, nil, "serve", "--data", "d", "--listen", "127.0.0.1:0").waitReady()
	p.connect()
	check1(t, p.Process.Kill())
	<-p.done
	data, to := filepath.Join(p.Dir, "d"), filepath.Join(t.TempDir(), "to")
	refuses(t, exitFault, []string{"migrate", "to", to, "--data", data}, "the passwords of 1 of 1 sessions", "--zookeeper-passwords", "--let-sessions-expire")
	notThere(t, to)
	if text := succeeds(t, "migrate", "to", to, "--data", data, "--let-sessions-expire"); !strings.Contains(text, "note: 1 of the sessions will expire") {
		t.Errorf("%q", text)
	}
}

// TestMigrateLongData: ZooKeeper does not start if data is longer than its jute.maxbuffer allows.
func TestMigrateLongData(t *testing.T) {
	from := zooDir(t)
	log := filepath.Join(from, "version-2", "log.1")
	b, err := os.ReadFile(log)
	check1(t, err)
	b = append(bytes.TrimRight(b, "\x00"), zklog.Entry(zklog.Body(&zkdata.Txn{Op: proto.OpSetData, Zxid: 5, Path: "/l", Data: make([]byte, 3<<20), Version: 1}))...)
	check1(t, os.WriteFile(log, append(b, make([]byte, 50)...), 0o600))
	data, to := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "to")
	succeeds(t, "migrate", "from", from, "--data", data)
	if text := succeeds(t, "migrate", "to", to, "--data", data); !strings.Contains(text, "note: a znode has 3145728 bytes of data: start ZooKeeper with a higher -Djute.maxbuffer") {
		t.Errorf("%q", text)
	}
}

// TestMigrateCluster: members of a new cluster begin with the same state.
func TestMigrateCluster(t *testing.T) {
	from := zooDir(t)
	digests := map[string]bool{}
	for i := 1; i <= 3; i++ {
		data := filepath.Join(t.TempDir(), "data")
		text := succeeds(t, "migrate", "from", from, "--data", data, "--id", fmt.Sprint(i), "--peers", "1=a:1;2181,2=b:1,3=c:1")
		if !strings.Contains(text, fmt.Sprintf("--id %d --peers '1=a:1;2181,2=b:1,3=c:1'", i)) {
			t.Errorf("%q", text)
		}
		var report struct{ Digest string }
		check1(t, json.Unmarshal([]byte(succeeds(t, "check", data, "--json")), &report))
		digests[report.Digest] = true
	}
	if len(digests) != 1 {
		t.Errorf("they differ: %v", digests)
	}
}

// TestMigrateEmpty: tokens begin above a zxid.
func TestMigrateEmpty(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	const above = 0x7000000000000abc
	if text := succeeds(t, "migrate", "empty", "--above", fmt.Sprintf("%#x", int64(above)), "--data", data); !strings.Contains(text, "lockkeeper serve --data "+data) {
		t.Errorf("%q", text)
	}
	c := start(t, nil, "serve", "--data", data, "--listen", "127.0.0.1:0").waitReady().connect()
	_, err := c.Create("/a", nil, 0)
	check1(t, err)
	if stat, err := c.Exists("/a", false); err != nil || stat.Czxid <= above {
		t.Errorf("token %#x, %v", stat.Czxid, err)
	}
}

// TestMigrateCheckSeveral: of several directories, check names the one to start from, by the epoch and then the zxid, and from
// says that another one is further.
func TestMigrateCheckSeveral(t *testing.T) {
	top := t.TempDir()
	dir := func(name, epoch string) string {
		dir := filepath.Join(top, name)
		check1(t, os.CopyFS(dir, os.DirFS(zooDir(t))))
		check1(t, os.WriteFile(filepath.Join(dir, "version-2", "currentEpoch"), []byte(epoch), 0o600))
		return dir
	}
	a, b, c := dir("a", "1"), dir("b", "2"), dir("c", "1")
	if text := succeeds(t, "migrate", "check", a, b, c); !strings.HasSuffix(text, "start from "+b+": with epoch 2, zxid 0x4 it is further than the others\n") || strings.Count(text, " is good\n") != 3 {
		t.Errorf("%q", text)
	}
	if text := succeeds(t, "migrate", "check", a, c); !strings.HasSuffix(text, "start from "+a+" or "+c+", which are equally far: epoch 1, zxid 0x4\n") {
		t.Errorf("%q", text)
	}
	logs := filepath.Join(top, "logs", "version-2")
	check1(t, os.MkdirAll(logs, 0o700))
	check1(t, os.Rename(filepath.Join(b, "version-2", "log.1"), filepath.Join(logs, "log.1")))
	var out struct {
		Directories []struct {
			Dir         string
			Epoch, Zxid int64
			Error       string
		}
		Best []string
	}
	check1(t, json.Unmarshal([]byte(succeeds(t, "migrate", "check", a, b, "--log", a, "--log", filepath.Dir(logs), "--json")), &out))
	if len(out.Directories) != 2 || out.Directories[1].Dir != b || out.Directories[1].Epoch != 2 || out.Directories[1].Zxid != 4 || len(out.Best) != 1 || out.Best[0] != b {
		t.Errorf("%+v", out)
	}

	if text := succeeds(t, "migrate", "from", a, "--data", filepath.Join(t.TempDir(), "d")); !strings.Contains(text, "note: "+b+" is further, with epoch 2, zxid 0x0: if it is of a server of the same ensemble") {
		t.Errorf("%q", text)
	}
	check1(t, os.Rename(filepath.Join(logs, "log.1"), filepath.Join(b, "version-2", "log.1")))
	if text := succeeds(t, "migrate", "from", b, "--data", filepath.Join(t.TempDir(), "d")); strings.Contains(text, "note: ") {
		t.Errorf("%q", text)
	}

	// One that cannot be used may be of a server that is further.
	check1(t, os.Truncate(filepath.Join(b, "version-2", "currentEpoch"), 0))
	code, text, stderr := call(nil, "migrate", "check", a, b, c)
	if code != exitFault || !strings.Contains(text, b+" cannot be used: "+filepath.Join(b, "version-2", "currentEpoch")+" has \"\"") || !strings.Contains(text, "start from "+a+" or "+c) {
		t.Errorf("%d %q", code, text)
	}
	oneError(t, stderr, "1 of 3 directories cannot be used, and may be of a server that is further: "+b+".")
}

// TestMigrateRunning: two services would give out the same locks if ZooKeeper went on.
func TestMigrateRunning(t *testing.T) {
	from, data := zooDir(t), filepath.Join(t.TempDir(), "data")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check1(t, err)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	cfg := filepath.Join(t.TempDir(), "zoo.cfg")
	check1(t, os.WriteFile(cfg, []byte("clientPort="+port+"\n"), 0o600))
	for _, args := range [][]string{{"check", from, "--config", cfg}, {"from", from, "--config", cfg, "--data", data}} {
		refuses(t, exitFault, append([]string{"migrate"}, args...), "ZooKeeper seems to run on "+from+": somebody listens on :"+port, "--while-running")
		notThere(t, data)
		if text := succeeds(t, append([]string{"migrate", args[0], "--while-running"}, args[1:]...)...); !strings.Contains(text, "note: ZooKeeper seems to run on "+from) {
			t.Errorf("%q: %q", args, text)
		}
	}
}

// TestMigrateIncomplete: a log that ends without zeros may be an incomplete copy.
func TestMigrateIncomplete(t *testing.T) {
	from, data := zooDir(t), filepath.Join(t.TempDir(), "data")
	log := filepath.Join(from, "version-2", "log.1")
	check1(t, os.Truncate(log, 200))
	refuses(t, exitFault, []string{"migrate", "from", from, "--data", data}, log+" ends after zxid 0x", "probably an incomplete copy", "--without-padding")
	notThere(t, data)
	if text := succeeds(t, "migrate", "from", from, "--data", data, "--without-padding"); !strings.Contains(text, "note: "+log+" ends after zxid 0x") {
		t.Errorf("%q", text)
	}
}

func TestMigrateUsage(t *testing.T) {
	t.Chdir(t.TempDir())
	for args, says := range map[string][]string{
		"migrate fro":                       {`"migrate fro"`, "did you mean from or to?"},
		"migrate from":                      {"usage: lockkeeper migrate from DIR"},
		"migrate from d":                    {"--data: "},
		"migrate check a b --log c":         {"--log: it is given 1 times for 2 directories"},
		"migrate check a b --config c":      {"--config: a zoo.cfg is that of one directory"},
		"migrate empty --data d":            {"--above: ", `""`},
		"migrate empty --above 0x1":         {"--data: "},
		"migrate empty --above -1 --data d": {"--above: ", `"-1"`},
		"migrate to d":                      {"--data: "},
		"migrate to d --data e --id 256":    {"--id: 256 is not between 1 and 255"},
		"migrate to d --data e --id 0":      {"--id: 0 is not between 1 and 255"},
	} {
		refuses(t, exitUsage, strings.Fields(args), says...)
	}
	from := zooDir(t)
	for args, says := range map[string]string{
		"migrate from missing --data e":                     "missing is no dataDir of ZooKeeper",
		"migrate from " + from + " --data e --log missing":  "missing is no dataLogDir of ZooKeeper",
		"migrate empty --data e --above 0x7fffffff00000000": "zxid 0x7fffffff00000000 leaves too few epochs",
		"migrate to d --data missing":                       "missing is no data directory",
	} {
		refuses(t, exitFault, strings.Fields(args), says)
		notThere(t, "e")
		notThere(t, "d")
	}
	// A field that only Restore checks is an error of the usage, too.
	refuses(t, exitUsage, []string{"migrate", "from", from, "--data", "e", "--id", "255"}, "--id: 255 is not in 1 to 254")
	notThere(t, "e")
	b, err := os.ReadFile(filepath.Join(from, "version-2", "log.1"))
	check1(t, err)
	b[100] ^= 1
	check1(t, os.WriteFile(filepath.Join(from, "version-2", "log.1"), b, 0o600))
	refuses(t, exitFault, []string{"migrate", "from", from, "--data", "e"}, filepath.Join("version-2", "log.1")+": damaged at offset ")
	notThere(t, "e")
}
