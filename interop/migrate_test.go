//go:build interop

package interop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/core/persona"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/tools/migrate"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	locks "github.com/lockkeeper/lockkeeper/lock"
	"github.com/lockkeeper/lockkeeper/proto"
)

// migrateCommand runs a migrate command with --json, which must succeed.
func migrateCommand(t testing.TB, result any, args ...string) (took string) {
	t.Helper()
	began := time.Now()
	cmd := exec.Command(lockkeeperBinary(t), slices.Concat([]string{"migrate"}, args, []string{"--json"})...)
	cmd.Env = cleanEnv()
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			out = exit.Stderr
		}
		t.Fatalf("migrate %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	if err := json.Unmarshal(out, result); err != nil {
		t.Fatalf("migrate %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return fmt.Sprintf("%v, %v of it of a processor", time.Since(began).Round(10*time.Millisecond), cmd.ProcessState.UserTime().Round(10*time.Millisecond))
}

// migrated is what migrate from and check print.
type migrated struct {
	Epoch, Zxid                             int64
	Znodes, Sessions, Transactions, Digests int
	Notes                                   []string
}

// census is all znodes of a server: data, ACL and the whole Stat, by path.
type census map[string]string

// takeCensus walks the tree, or only what is at and below some paths. The znodes must not change
// meanwhile. It reads as u:p.
func takeCensus(t testing.TB, addr string, roots ...string) census {
	t.Helper()
	conn := connect(t, addr, 20*time.Second)
	defer conn.Close()
	check(t, conn.AddAuth("digest", []byte("u:p")))
	all := census{}
	var walk func(path string)
	walk = func(path string) {
		data, stat, err := conn.Get(path)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		acl, _, err := conn.GetACL(path)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all[path] = fmt.Sprintf("%+v %v %q", *stat, acl, data)
		names, _, err := conn.Children(path)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, name := range names {
			walk(strings.TrimSuffix(path, "/") + "/" + name)
		}
	}
	if len(roots) == 0 {
		roots = []string{"/"}
	}
	for _, root := range roots {
		walk(root)
	}
	return all
}

// same compares two censuses, except for the given paths.
func (c census) same(t testing.TB, now census, except ...string) {
	t.Helper()
	wrong := 0
	for _, path := range slices.Sorted(maps.Keys(c)) {
		if now[path] != c[path] && !slices.Contains(except, path) {
			if wrong++; wrong <= 5 {
				t.Errorf("%s was\n%s and is\n%s", path, c[path], now[path])
			}
		}
	}
	if len(now) != len(c) || wrong > 0 {
		t.Fatalf("%d of %d znodes differ, and there are %d", wrong, len(c), len(now))
	}
}

// churn makes changes of all kinds on a server until stop is closed. Each client only changes what is its own,
// except that all create children of /shared.
func churn(t *testing.T, addr string, line persona.Line, r *rand.Rand, stop <-chan struct{}) *sync.WaitGroup {
	t.Helper()
	var clients sync.WaitGroup
	setup := connect(t, addr, 20*time.Second)
	create(t, setup, "/shared")
	create(t, setup, "/limited")
	for _, quota := range [][2]string{{"", ""}, {"/zookeeper_limits", "count=1000,bytes=-1"}, {"/zookeeper_stats", "count=0,bytes=0"}} {
		must(setup.Create("/zookeeper/quota/limited"+quota[0], []byte(quota[1]), 0, openACL))(t)
	}
	for i := range 6 {
		r := rand.New(rand.NewPCG(r.Uint64(), uint64(i)))
		clients.Go(func() {
			own := fmt.Sprintf("/client%d", i)
			conn := connect(t, addr, 20*time.Second)
			conn.AddAuth("digest", []byte("u:p"))
			conn.Create(own, nil, 0, openACL)
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				path := fmt.Sprintf("%s/%d", own, r.IntN(20))
				data := fmt.Append(nil, "data ", n)
				acl := openACL
				if r.IntN(3) == 0 {
					acl = zk.AuthACL(zk.PermAll)
				}
				switch k := r.IntN(14); { // many of these fail
				case k < 3:
					conn.Create(path, data, 0, acl)
				case k < 5:
					conn.Create("/shared/n-", data, zk.FlagEphemeral|zk.FlagSequence, acl)
				case k < 6:
					conn.Create(path+"/below", data, zk.FlagSequence, acl)
				case k < 7:
					conn.Delete(path, -1)
				case k < 8:
					conn.Delete(path+"/below0000000000", -1)
				case k < 9:
					conn.Set(path, data, -1)
				case k < 10:
					conn.SetACL(path, acl, -1)
				case k < 11:
					conn.Multi(&zk.CreateRequest{Path: path, Data: data, Acl: acl}, &zk.SetDataRequest{Path: own, Data: data, Version: -1},
						&zk.CheckVersionRequest{Path: own, Version: -1}, &zk.DeleteRequest{Path: path, Version: -1})
				case k < 12:
					conn.Create(fmt.Sprintf("/limited/%d-%d", i, n), data, 0, openACL)
				case k < 13 && line >= 5:
					conn.CreateContainer(path, data, zk.FlagTTL, acl)
					conn.CreateTTL(path+"/ttl", data, zk.FlagTTL, openACL, time.Hour)
				case r.IntN(4) == 0: // close the session, with what it has in /shared
					conn.Close()
					conn = connect(t, addr, 20*time.Second)
					conn.AddAuth("digest", []byte("u:p"))
				}
			}
		})
	}
	return &clients
}

// keeper is a client with a session that must last.
type keeper struct {
	conn    *zk.Conn
	session int64
	path    string
}

func startKeepers(t *testing.T, addr, prefix string, n int, dial zk.Dialer) (all []*keeper) {
	t.Helper()
	for i := range n {
		k := &keeper{conn: connectBy(t, addr, 40*time.Second, dial), path: fmt.Sprintf("/%s%d", prefix, i)}
		must(k.conn.Create(k.path, nil, zk.FlagEphemeral, openACL))(t)
		k.session = k.conn.SessionID()
		all = append(all, k)
	}
	return all
}

// check waits until the client has its session again, and sets its znode, which must still be its own.
func (k *keeper) check(t *testing.T) (zxid int64) {
	t.Helper()
	for deadline := time.Now().Add(startDeadline); ; time.Sleep(10 * time.Millisecond) {
		stat, err := k.conn.Set(k.path, []byte("x"), -1)
		if err == nil && (k.conn.SessionID() != k.session || stat.EphemeralOwner != k.session) {
			t.Fatalf("%s: session %#x became %#x", k.path, k.session, k.conn.SessionID())
		}
		if err == nil {
			return stat.Mzxid
		}
		if errors.Is(err, zk.ErrNoNode) || time.Now().After(deadline) {
			t.Fatalf("%s: %v", k.path, err)
		}
	}
}

// TestMigrateReleases moves from each release line of ZooKeeper, while it writes snapshots, and from
// the newest two back. No znode may differ in anything, and the sessions go on.
func TestMigrateReleases(t *testing.T) {
	t.Parallel()
	type from struct {
		name    string
		version zkVersion
		line    persona.Line
		props   map[string]string
		kill    bool // with SIGKILL
	}
	runs := []from{
		{"3.8", zk38, 8, nil, true},
		{"3.9 snappy", zk39, 9, map[string]string{"zookeeper.snapshot.compression.method": "snappy"}, false},
		{"3.9 gzip without digests", zk39, 9, map[string]string{
			"zookeeper.snapshot.compression.method": "gz", "zookeeper.digest.enabled": "false", "zookeeper.closeSessionTxn.enabled": "false"}, true},
	}
	if os.Getenv(envSystems) != "" {
		for line := persona.Oldest; line < persona.Newest; line++ {
			runs = append(runs, from{line.Release(), zkVersion(line.Release()), line, nil, line%2 == 0})
		}
	}
	for _, run := range runs {
		t.Run(run.name, func(t *testing.T) {
			t.Parallel()
			r := seeded(t)
			logs := t.TempDir()
			props := merged(withTTL, map[string]string{"zookeeper.forceSync": "no", "zookeeper.preAllocSize": "100"}, run.props)
			real := startZooKeeper(t, run.version, props, merged(anyClients, map[string]string{"snapCount": "100", "dataLogDir": logs}))
			var door door
			keepers := startKeepers(t, real.addr, "keeper", 5, door.dial)
			stop := make(chan struct{})
			clients := churn(t, real.addr, run.line, r, stop)
			time.Sleep(2 * time.Second)
			for deadline := time.Now().Add(startDeadline); len(snapshotsIn(t, real)) < 6 && time.Now().Before(deadline); { // on a slow machine
				time.Sleep(100 * time.Millisecond)
			}
			close(stop)
			clients.Wait()
			last := keepers[0].check(t)
			before := takeCensus(t, real.addr)
			door.shut.Store(true)
			if run.kill {
				real.Kill()
			} else {
				real.cmd.Process.Signal(syscall.SIGTERM)
				real.cmd.Wait()
			}

			data := filepath.Join(t.TempDir(), "data")
			var m migrated
			migrateCommand(t, &m, "from", filepath.Join(real.dir, "data"), "--log", logs, "--data", data)
			t.Logf("%d znodes, %d sessions, %d transactions after the snapshot, %d digests compared, notes %q",
				m.Znodes, m.Sessions, m.Transactions, m.Digests, m.Notes)
			if withDigests := run.line >= 6 && !strings.Contains(run.name, "without"); withDigests != (m.Digests > 0) {
				t.Errorf("%d digests compared", m.Digests)
			}
			for _, note := range m.Notes {
				if strings.Contains(note, "digest") || strings.Contains(note, "cversion") {
					t.Error(note)
				}
			}
			fromEarlierSnapshots(t, snapshotsIn(t, real), logs, run.line < 6 || strings.Contains(run.name, "without"))
			ours := startLockkeeper(t, "--listen", real.addr, "--data", data, "--zookeeper-passwords")
			now := takeCensus(t, ours.addr)
			if run.line == 4 { // it has no /zookeeper/config, and 3.5 adds it in the same way
				now["/zookeeper"] = before["/zookeeper"]
				delete(now, "/zookeeper/config")
			}
			before.same(t, now)
			door.shut.Store(false)
			last = goOn(t, keepers, last)
			if run.line < 8 {
				return
			}

			keepers = append(keepers, startKeepers(t, ours.addr, "late", 3, door.dial)...) // sessions of lockkeeper
			before = takeCensus(t, ours.addr)
			door.shut.Store(true)
			ours.Stop()
			back := filepath.Join(t.TempDir(), "back")
			var made struct{ Sessions, Expiring, TTLs int }
			migrateCommand(t, &made, "to", back, "--data", data)
			if made.Sessions < 8 || made.Expiring != 0 || made.TTLs == 0 {
				t.Errorf("%+v", made)
			}
			_, port, _ := net.SplitHostPort(real.addr)
			again := startZooKeeper(t, run.version, props, merged(anyClients, map[string]string{"clientPort": port, "dataDir": back}))
			before.same(t, takeCensus(t, again.addr))
			door.shut.Store(false)
			last = goOn(t, keepers, last)
			// What it goes on with is read again.
			again.Kill()
			migrateCommand(t, &m, "check", back)
			if m.Zxid < last {
				t.Errorf("zxid %#x, should be at least %#x", m.Zxid, last)
			}
		})
	}
}

// door lets clients connect while it is open. ZooKeeper does not answer a client that connects before it has
// loaded its snapshot, so such a client would lose its session on a slow machine.
type door struct{ shut atomic.Bool }

func (d *door) dial(network, addr string, timeout time.Duration) (net.Conn, error) {
	if d.shut.Load() {
		return nil, errors.New("the server is not ready")
	}
	return net.DialTimeout(network, addr, timeout)
}

// goOn checks all keepers, whose zxids must be above last, and returns the newest.
func goOn(t *testing.T, keepers []*keeper, last int64) int64 {
	t.Helper()
	for _, k := range keepers {
		zxid := k.check(t)
		if zxid <= last {
			t.Fatalf("zxid %#x after %#x", zxid, last)
		}
		last = zxid
	}
	return last
}

// snapshotsIn returns the files of a ZooKeeper's snapshots.
func snapshotsIn(t *testing.T, server *realZooKeeper) []string {
	t.Helper()
	files := must(filepath.Glob(filepath.Join(server.dir, "data", "version-2", "snapshot.*")))(t)
	return files
}

// fromEarlierSnapshots reads the state from some of the snapshots, which ZooKeeper has written while it went on,
// and the transactions after it. They must all lead to the same state. If a closeSession has no paths, a
// parent's pzxid may be lower: ZooKeeper has it so, too.
func fromEarlierSnapshots(t *testing.T, files []string, logs string, withoutPaths bool) {
	t.Helper()
	if len(files) < 4 {
		t.Fatalf("only the snapshots %v", files)
	}
	read := func(file string) string {
		dir := t.TempDir()
		check(t, os.Mkdir(filepath.Join(dir, "version-2"), 0o700))
		check(t, os.Link(file, filepath.Join(dir, "version-2", filepath.Base(file))))
		s, f, err := migrate.Read(migrate.Source{Data: dir, Log: logs})
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, note := range f.Notes {
			if strings.Contains(note, "digest") {
				t.Errorf("%s: %s", file, note)
			}
		}
		var b strings.Builder
		for _, path := range s.Paths() {
			n := *s.Get(path)
			if strings.HasSuffix(path, "/zookeeper_stats") {
				n.Data = nil // is counted again
			}
			if withoutPaths {
				n.Pzxid = 0
			}
			fmt.Fprintf(&b, "%s %q %v %d %d %d %d %d %d %d %d %#x\n", path, n.Data, n.ACL, n.Czxid, n.Mzxid, n.Pzxid, n.Ctime, n.Mtime,
				n.Version, n.Cversion, n.Aversion, uint64(n.Owner))
		}
		fmt.Fprint(&b, s.Zxid, s.Sessions)
		return b.String()
	}
	first := read(files[0])
	for _, i := range []int{1, len(files) / 4, len(files) / 2, len(files) * 3 / 4, len(files) - 1} {
		file := files[i]
		if state := read(file); state != first {
			a, b := strings.Split(first, "\n"), strings.Split(state, "\n")
			for i := range min(len(a), len(b)) {
				if a[i] != b[i] {
					t.Fatalf("from %s\n%s\nbut from %s\n%s", files[0], a[i], file, b[i])
				}
			}
			t.Fatalf("%d znodes from %s, %d from %s", len(a), files[0], len(b), file)
		}
	}
	t.Logf("five of %d snapshots lead to the same state as the first", len(files))
}

// contest is locks that many clients take in turns, through moves from server to server.
type contest struct {
	t       *testing.T
	holders []atomic.Int32 // how many hold each lock: at most one
	tokens  []atomic.Int64 // of the last holder of each lock

	turns, overlaps, backwards, lost atomic.Int64
}

// enter notes that a lock is taken, and leave that it is given back.
func (c *contest) enter(lock int, token int64) {
	c.turns.Add(1)
	if c.holders[lock].Add(1) != 1 {
		c.overlaps.Add(1)
	}
	if c.tokens[lock].Swap(token) >= token {
		c.backwards.Add(1)
	}
}

func (c *contest) leave(lock int) { c.holders[lock].Add(-1) }

// client takes one lock after the other until the context ends. One that is patient holds a single lock all
// the time.
func (c *contest) client(ctx context.Context, addr string, r *rand.Rand, patient int) func() {
	var dialer locks.Dialer
	conn := connectBy(c.t, addr, 40*time.Second, dialer.Dial)
	session := conn.SessionID()
	return func() {
		defer func() {
			if conn.SessionID() != session {
				c.lost.Add(1)
			}
			conn.Close()
		}()
		for ctx.Err() == nil {
			lock := r.IntN(len(c.holders) - 4) // the last ones are for those that are patient
			if patient >= 0 {
				lock = len(c.holders) - 4 + patient
			}
			mutex := locks.NewMutex(conn, fmt.Sprintf("/contest/%d", lock), locks.WithDialer(&dialer))
			held, err := mutex.Lock(ctx)
			if err != nil {
				if ctx.Err() == nil {
					c.t.Errorf("lock: %v", err)
					c.lost.Add(1)
				}
				return
			}
			c.enter(lock, held.Token())
			if patient >= 0 {
				select {
				case <-ctx.Done():
				case <-held.Lost():
				}
			} else {
				time.Sleep(time.Duration(r.IntN(10)) * time.Millisecond)
			}
			select {
			case <-held.Lost():
				c.lost.Add(1)
			default:
			}
			c.leave(lock)
			held.Unlock(context.Background())
		}
	}
}

// TestMigrateLocks lets 200 clients take and hold locks while ZooKeeper is replaced by lockkeeper on the
// same port, and that by a ZooKeeper of another release. No session may be lost, no two clients may
// hold a lock at a time, and tokens must rise.
func TestMigrateLocks(t *testing.T) {
	lockkeeperBinary(t) // is built before ZooKeeper is stopped
	r := seeded(t)
	real := startZooKeeper(t, zk38, nil, merged(anyClients, map[string]string{"snapCount": "1000"}))
	create(t, connect(t, real.addr, 40*time.Second), "/contest")
	classpath := must(javaClients())(t)
	hold(t, clientCommand(clientCache(t, "kazoo/bin/python"), "-u", "clients/kazoo/holder.py", real.addr))
	hold(t, javaCommand("-Xmx256m", "-cp", classpath, "LockHolder", real.addr))

	c := &contest{t: t, holders: make([]atomic.Int32, 24), tokens: make([]atomic.Int64, 24)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients sync.WaitGroup
	join := func(n int, patient bool) {
		for i := range n {
			if !patient {
				i = -1
			}
			clients.Go(c.client(ctx, real.addr, rand.New(rand.NewPCG(r.Uint64(), 1)), i))
		}
	}
	progress := func(what string) {
		t.Helper()
		n := c.turns.Load()
		for deadline := time.Now().Add(startDeadline); c.turns.Load() < n+500; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: only %d turns", what, c.turns.Load()-n)
			}
		}
		t.Logf("%s: %d turns so far", what, c.turns.Load())
	}
	join(4, true)
	join(170, false)
	progress("ZooKeeper 3.8")
	others := takeCensus(t, real.addr, "/kazoo", "/curator")
	if len(others) < 20 {
		t.Fatalf("kazoo and Curator have only %d znodes", len(others))
	}

	down := time.Now()
	real.cmd.Process.Signal(syscall.SIGTERM)
	real.cmd.Wait()
	data := filepath.Join(t.TempDir(), "data")
	var m migrated
	migrateCommand(t, &m, "from", filepath.Join(real.dir, "data"), "--data", data)
	ours := startLockkeeper(t, "--listen", real.addr, "--data", data, "--zookeeper-passwords")
	t.Logf("%d sessions moved, with %d znodes; down for %v; notes %q", m.Sessions, m.Znodes, time.Since(down).Round(time.Millisecond), m.Notes)
	progress("lockkeeper")
	join(26, false)
	progress("lockkeeper with more clients")
	others.same(t, takeCensus(t, ours.addr, "/kazoo", "/curator"))

	down = time.Now()
	ours.Stop()
	back := filepath.Join(t.TempDir(), "back")
	var made struct{ Sessions, Expiring int }
	migrateCommand(t, &made, "to", back, "--data", data)
	_, port, _ := net.SplitHostPort(real.addr)
	again := startZooKeeper(t, zk39, nil, merged(anyClients, map[string]string{"clientPort": port, "dataDir": back}))
	t.Logf("%d sessions moved back; down for %v", made.Sessions, time.Since(down).Round(time.Millisecond))
	if made.Expiring != 0 || made.Sessions < 200 {
		t.Errorf("%+v", made)
	}
	progress("ZooKeeper 3.9")
	others.same(t, takeCensus(t, again.addr, "/kazoo", "/curator"))

	cancel()
	clients.Wait()
	t.Logf("%d turns, %d overlaps, %d tokens backwards, %d sessions or locks lost", c.turns.Load(), c.overlaps.Load(), c.backwards.Load(), c.lost.Load())
	if c.overlaps.Load()+c.backwards.Load()+c.lost.Load() > 0 {
		t.Error("the moves were not safe")
	}
}

// TestMigrateEnsemble moves three servers to a cluster of three, and back.
func TestMigrateEnsemble(t *testing.T) {
	t.Parallel()
	real := startZooEnsemble(t, zk39, 3)
	r := seeded(t)
	var keepers []*keeper
	for i, addr := range real.listen {
		keepers = append(keepers, startKeepers(t, addr, fmt.Sprintf("keeper%d-", i), 2, net.DialTimeout)...)
	}
	stop := make(chan struct{})
	lags := (real.leader() + 1) % 3
	clients := churn(t, real.listen[(lags+1+r.IntN(2))%3], 9, r, stop) // new clients wait for their server
	time.Sleep(time.Second)
	real.kill(lags)
	time.Sleep(time.Second)
	close(stop)
	clients.Wait()
	var last int64
	for i, k := range keepers {
		if i/2 != real.down {
			last = max(last, k.check(t))
		}
	}
	before := takeCensus(t, real.listen[(real.down+1)%3])
	// The server that has everything has the highest epoch, and then the highest zxid.
	var dirs []string
	best := -1
	var found [3]migrated
	for i := range real.procs {
		real.procs[i].Kill()
		dirs = append(dirs, dataDirOf(t, real.procs[i]))
	}
	for i, dir := range dirs {
		migrateCommand(t, &found[i], "check", dir)
		if f, b := found[i], found[max(best, 0)]; best < 0 || f.Epoch > b.Epoch || f.Epoch == b.Epoch && f.Zxid > b.Zxid {
			best = i
		}
	}
	if best == real.down {
		t.Fatalf("the server that was down first has the highest zxid: %+v", found)
	}

	e := newEnsemble(t, 3, "--zookeeper-passwords")
	e.listen = real.listen
	var members []string
	for i, addr := range e.peers {
		members = append(members, fmt.Sprintf("%d=%s", i+1, addr))
	}
	for i := range 3 {
		var m migrated
		migrateCommand(t, &m, "from", dirs[best], "--data", e.data(i), "--id", strconv.Itoa(i+1), "--peers", strings.Join(members, ","))
		e.launch(i)
	}
	e.await()
	before.same(t, takeCensus(t, e.listen[0]), "/zookeeper/config")
	last = goOn(t, keepers, last)
	keepers = append(keepers, startKeepers(t, e.listen[1], "late", 2, net.DialTimeout)...)
	before = takeCensus(t, e.listen[2])
	for i := range 3 {
		e.stop(i)
	}
	best = 0
	var reports [3]*storage.Report
	for i := range 3 {
		var err error
		if reports[i], err = storage.Check(e.data(i)); err != nil {
			t.Fatal(err)
		}
		if a, b := reports[i], reports[best]; a.Term > b.Term || a.Term == b.Term && a.LastIndex > b.LastIndex {
			best = i
		}
	}
	for i, dir := range dirs {
		check(t, os.Rename(dir, dir+".old"))
		var made struct{ Expiring int }
		migrateCommand(t, &made, "to", dir, "--data", e.data(best), "--id", strconv.Itoa(i+1))
		if made.Expiring > 0 {
			t.Errorf("%+v", made)
		}
	}
	for i := range 3 {
		real.launch(i)
	}
	real.await()
	before.same(t, takeCensus(t, real.listen[0]), "/zookeeper/config")
	goOn(t, keepers, last)
}

func dataDirOf(t *testing.T, z *realZooKeeper) string {
	t.Helper()
	b := must(os.ReadFile(filepath.Join(z.dir, "zoo.cfg")))(t)
	_, dir, _ := strings.Cut(string(b), "dataDir=")
	dir, _, _ = strings.Cut(dir, "\n")
	return dir
}

// TestMigrateMillion measures how long it takes with a million znodes.
func TestMigrateMillion(t *testing.T) {
	atNight(t)
	t.Setenv("_JAVA_OPTIONS", "-Xmx3g")
	real := launchZooKeeper(t, zk39, map[string]string{"zookeeper.forceSync": "no"},
		merged(anyClients, map[string]string{"snapCount": "400000"}))
	waitZooKeeper(t, real.addr, nil)
	nc := must(net.Dial("tcp", real.addr))(t)
	c, err := rawclient.Open(nc, 40*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	const znodes = 1_000_000
	n := 0
	data := []byte("forty bytes of data, as small znodes have")
	began := time.Now()
	err = c.Pipeline(1000, func(b []byte, xid int32) []byte {
		if n == znodes+1000 {
			return b
		}
		path := fmt.Sprintf("/%d", n)
		if n >= 1000 {
			path = fmt.Sprintf("/%d/%d", n%1000, n)
		}
		n++
		return rawclient.Request(b, xid, proto.OpCreate, &proto.CreateRequest{Path: path, Data: data, ACL: proto.OpenACL})
	}, func(f *rawclient.Frame, _ time.Time) error {
		if f.Code != proto.OK {
			return f.Code
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d creates took %v", n, time.Since(began).Round(time.Second))
	real.Kill()
	data2 := filepath.Join(t.TempDir(), "data")
	var m migrated
	took := migrateCommand(t, &m, "from", filepath.Join(real.dir, "data"), "--data", data2)
	t.Logf("migrate from: %s, with %d transactions after the snapshot", took, m.Transactions)
	if m.Znodes < znodes {
		t.Errorf("only %d znodes", m.Znodes)
	}
	var made struct{ Znodes int }
	t.Logf("migrate to: %s", migrateCommand(t, &made, "to", filepath.Join(t.TempDir(), "back"), "--data", data2, "--let-sessions-expire"))
	if made.Znodes != m.Znodes {
		t.Errorf("%d znodes of %d", made.Znodes, m.Znodes)
	}
}
