//go:build interop

package interop

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// migrateRefuses runs a migrate command, which must exit with code 1, print nothing else and say all of this in one line.
func migrateRefuses(t *testing.T, args []string, says ...string) {
	t.Helper()
	cmd := exec.Command(lockkeeperBinary(t), append([]string{"migrate"}, args...)...)
	cmd.Env = cleanEnv()
	out, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || len(out) > 0 || bytes.Count(exit.Stderr, []byte("\n")) != 1 {
		t.Fatalf("migrate %s: %v, %q", strings.Join(args, " "), err, out)
	}
	for _, text := range says {
		if !strings.Contains(string(exit.Stderr), text) {
			t.Errorf("migrate %s: %q does not say %q", strings.Join(args, " "), exit.Stderr, text)
		}
	}
}

// onlyLog returns the only log of a ZooKeeper.
func onlyLog(t *testing.T, z *realZooKeeper) string {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(z.dir, "data", "version-2", "log.*"))
	if err != nil || len(logs) != 1 {
		t.Fatal(logs, err)
	}
	return logs[0]
}

// TestMigrateCopiedLog: somebody has copied a log of ZooKeeper into its directory. The transactions in the copy are not applied
// again.
func TestMigrateCopiedLog(t *testing.T) {
	t.Parallel()
	real := startZooKeeper(t, zk39, nil, anyClients)
	conn := connect(t, real.addr, 20*time.Second)
	create(t, conn, "/balance")
	create(t, conn, "/gone")
	must(conn.Set("/balance", []byte("old"), -1))(t)
	log := onlyLog(t, real)
	early := must(os.ReadFile(log))(t)
	check(t, conn.Delete("/gone", -1))
	must(conn.Set("/balance", []byte("new"), -1))(t)
	conn.Close()
	real.Kill()
	late := must(os.ReadFile(log))(t)
	for name, b := range map[string][]byte{"early": early, "complete": late} {
		check(t, os.WriteFile(log+".bak", b, 0o600))
		data := filepath.Join(t.TempDir(), "data")
		var m migrated
		migrateCommand(t, &m, "from", filepath.Join(real.dir, "data"), "--data", data)
		if len(m.Notes) != 1 || !strings.Contains(m.Notes[0], log+".bak was left out") || m.Digests == 0 {
			t.Errorf("%s: %+v", name, m)
		}
		ours := startLockkeeper(t, "--listen", freeAddr(t), "--data", data)
		conn := connect(t, ours.addr, 20*time.Second)
		balance, _, err := conn.Get("/balance")
		if there, _, err2 := conn.Exists("/gone"); string(balance) != "new" || there || err != nil || err2 != nil {
			t.Errorf("%s: the balance is %q, /gone is there: %v; %v, %v", name, balance, there, err, err2)
		}
		conn.Close()
		ours.Stop()
	}
	// A log that was put back and lacks what the copy has is refused.
	check(t, errors.Join(os.WriteFile(log, early, 0o600), os.WriteFile(log+".bak", late, 0o600)))
	migrateRefuses(t, []string{"check", filepath.Join(real.dir, "data")}, log+".bak", "no copy of a file that is there")
}

// TestMigrateRunning: a ZooKeeper that runs is noticed although nothing changes in its directory, before the first transaction and
// after it, by its process and by its port. Its directory can be used when it has ended, and a copy of it before that.
func TestMigrateRunning(t *testing.T) {
	t.Parallel()
	real := startZooKeeper(t, zk39, nil, anyClients)
	dir, data := filepath.Join(real.dir, "data"), filepath.Join(t.TempDir(), "data")
	process := fmt.Sprintf("process %d ", real.pid)
	migrateRefuses(t, []string{"check", dir}, "ZooKeeper seems to run on "+dir, process+"is a ZooKeeper, and "+filepath.Join(real.dir, "zoo.cfg")+" names the directory", "--while-running")
	conn := connect(t, real.addr, 20*time.Second)
	create(t, conn, "/a")
	conn.Close()
	for _, args := range [][]string{{"check", dir}, {"from", dir, "--data", data}} {
		migrateRefuses(t, args, "ZooKeeper seems to run on "+dir, process+"has "+onlyLog(t, real)+" open for writing", "--while-running")
	}
	copied := filepath.Join(t.TempDir(), "copied")
	check(t, os.CopyFS(copied, os.DirFS(dir)))
	var m migrated
	migrateCommand(t, &m, "check", copied)
	if len(m.Notes) > 0 {
		t.Errorf("%+v", m)
	}
	cfg := filepath.Join(real.dir, "zoo.cfg")
	migrateRefuses(t, []string{"check", copied, "--config", cfg}, "somebody listens on "+real.addr+", the port for clients in "+cfg)
	m = migrated{}
	migrateCommand(t, &m, "check", dir, "--while-running")
	if len(m.Notes) != 1 || !strings.Contains(m.Notes[0], "ZooKeeper seems to run on "+dir) {
		t.Errorf("%+v", m)
	}
	real.Kill()
	m = migrated{}
	migrateCommand(t, &m, "from", dir, "--config", cfg, "--data", data)
	if len(m.Notes) > 0 {
		t.Errorf("%+v", m)
	}
}

// TestMigrateIncompleteCopy: the newest log of ZooKeeper was copied incompletely, up to the end of a transaction or into one.
// It is refused, and what is accepted with --without-padding has a note. The whole log is accepted without one.
func TestMigrateIncompleteCopy(t *testing.T) {
	t.Parallel()
	real := startZooKeeper(t, zk39, map[string]string{"zookeeper.forceSync": "no"}, anyClients)
	conn := connect(t, real.addr, 20*time.Second)
	for i := range 1000 {
		create(t, conn, fmt.Sprintf("/n%d", i))
	}
	conn.Close()
	real.Kill()
	dir := filepath.Join(real.dir, "data")
	log := onlyLog(t, real)
	b := must(os.ReadFile(log))(t)
	var whole migrated
	migrateCommand(t, &whole, "check", dir)
	if len(whole.Notes) > 0 || whole.Znodes < 1000 {
		t.Errorf("%+v", whole)
	}
	written := len(bytes.TrimRight(b, "\x00"))
	nth := bytes.Index(b, []byte("/n500"))
	end := nth + bytes.IndexByte(b[nth:], 'B') + 1 // of its transaction, or a byte within it
	for _, cut := range []int{0, 16, nth, end, end + 1, end + 9, end + 40, written - 1, written, written + 3} {
		copied := filepath.Join(t.TempDir(), "copied")
		name := filepath.Join(copied, "version-2", filepath.Base(log))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, b[:cut], 0o600),
			os.Link(filepath.Join(dir, "version-2", "snapshot.0"), filepath.Join(copied, "version-2", "snapshot.0"))); err != nil {
			t.Fatal(err)
		}
		migrateRefuses(t, []string{"check", copied}, name, "without the zeros that ZooKeeper allocates", "probably an incomplete copy", "--without-padding")
		migrateRefuses(t, []string{"from", copied, "--data", filepath.Join(copied, "new")}, name, "--without-padding")
		var m migrated
		migrateCommand(t, &m, "check", copied, "--without-padding")
		if len(m.Notes) != 1 || !strings.Contains(m.Notes[0], "if it is an incomplete copy, transactions are missing") || (cut < written) != (m.Transactions < whole.Transactions) {
			t.Errorf("cut at %d of %d: %+v", cut, written, m)
		}
	}
}
