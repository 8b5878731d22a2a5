package migrate_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/tools/migrate"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	check(t, os.MkdirAll(filepath.Dir(path), 0o700))
	check(t, os.WriteFile(path, []byte(text), 0o600))
}

// TestProcesses finds the processes that use a directory in what Linux says about them.
func TestProcesses(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("it makes symbolic links, and Windows has no /proc")
	}
	dir := directory(t, map[string][]byte{"snapshot.0": snapshot(t, 0), "log.1": log(1, 3)})
	other := directory(t, map[string][]byte{"snapshot.0": snapshot(t, 0), "log.1": log(1, 3)})
	const main = "java\x00-Xmx1g\x00org.apache.zookeeper.server.quorum.QuorumPeerMain\x00"
	for _, x := range []struct {
		name    string
		cmdline string
		cfg     string // of the process, zoo.cfg in its working directory
		open    string // a file that it has open
		flags   string // how
		why     string // a part of it; empty for none
		doubt   string
	}{
		{name: "appends to the log", open: filepath.Join(dir, "version-2", "log.1"), flags: "0102001", why: "process 7 has " + filepath.Join(dir, "version-2", "log.1") + " open for writing"},
		{name: "reads the log", open: filepath.Join(dir, "version-2", "log.1"), flags: "0100000"},
		{name: "appends to another log of that name", open: filepath.Join(other, "version-2", "log.1"), flags: "0102001"},
		{name: "is idle", cmdline: main + "zoo.cfg\x00", cfg: "dataDir=" + dir + "\n", why: "process 7 is a ZooKeeper, and zoo.cfg names the directory"},
		{name: "is idle, with spaces", cmdline: main + "zoo.cfg\x00", cfg: "dataDir = " + dir + " \n", why: "process 7 is a ZooKeeper"},
		{name: "has its logs there", cmdline: main + "zoo.cfg\x00", cfg: "dataDir=" + other + "\ndataLogDir=" + dir, why: "process 7 is a ZooKeeper"},
		{name: "without a zoo.cfg", cmdline: main + "2181\x00" + dir + "\x00", why: "its command line names the directory"},
		{name: "the other main class", cmdline: "java\x00org.apache.zookeeper.server.ZooKeeperServerMain\x002181\x00" + dir + "\x00", why: "its command line names the directory"},
		{name: "on another directory", cmdline: main + "zoo.cfg\x00", cfg: "dataDir=" + other},
		{name: "a client", cmdline: "java\x00org.apache.zookeeper.ZooKeeperMain\x00" + dir + "\x00"},
		{name: "with a zoo.cfg that cannot be read", cmdline: main + "missing.cfg\x00", doubt: "process 7 is a ZooKeeper, and may use " + dir},
	} {
		proc, cwd := t.TempDir(), t.TempDir()
		p := filepath.Join(proc, "7")
		write(t, filepath.Join(proc, "cpuinfo"), "")
		write(t, filepath.Join(p, "cmdline"), x.cmdline)
		write(t, filepath.Join(p, "fdinfo", "5"), "pos:\t0\nflags:\t"+x.flags+"\nmnt_id:\t1\n")
		write(t, filepath.Join(p, "fd", "file"), "")
		write(t, filepath.Join(cwd, "zoo.cfg"), x.cfg)
		for link, to := range map[string]string{"cwd": cwd, "fd/5": x.open} {
			if to == "" {
				continue
			}
			check(t, os.Symlink(to, filepath.Join(p, link)))
		}
		why, doubts := (&migrate.Source{Data: dir}).Processes(proc)
		if x.why == "" && why != "" || !strings.Contains(why, x.why) {
			t.Errorf("%s: %q, should be %q", x.name, why, x.why)
		}
		if text := strings.Join(doubts, "\n"); x.doubt == "" && text != "" || !strings.Contains(text, x.doubt) {
			t.Errorf("%s: doubts %q, should be %q", x.name, text, x.doubt)
		}
	}
}

// TestOpenLog: a process of this machine that has the log open for writing is found, and so is one whose log is in the
// dataLogDir.
func TestOpenLog(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux says which files a process has open")
	}
	data := directory(t, map[string][]byte{"snapshot.0": snapshot(t, 0)})
	logs := directory(t, map[string][]byte{"log.1": log(1, 3)})
	src := migrate.Source{Data: data, Log: logs}
	if why, _, err := src.InUse(""); why != "" || err != nil {
		t.Fatalf("%q, %v", why, err)
	}
	file := must(os.OpenFile(filepath.Join(logs, "version-2", "log.1"), os.O_WRONLY, 0))(t)
	defer file.Close()
	holder := exec.Command("cat")
	holder.Stdout = file
	in := must(holder.StdinPipe())(t)
	check(t, holder.Start())
	if why, _, err := src.InUse(""); !strings.Contains(why, fmt.Sprintf("process %d has ", holder.Process.Pid)) || err != nil {
		t.Errorf("%q, %v", why, err)
	}
	in.Close()
	holder.Wait()
	if why, _, err := src.InUse(""); why != "" || err != nil {
		t.Errorf("%q, %v", why, err)
	}
}

// TestClientPort: a server listens on a port for clients that a zoo.cfg names.
func TestClientPort(t *testing.T) {
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, x := range []struct {
		name string
		cfg  string // DIR is the dataDir
		at   string // where zoo.cfg is, if it is not named
		used bool
	}{
		{"named", "dataDir=DIR\nclientPort=" + port, "", true},
		{"named, with an address", "dataDir=DIR\nclientPort=" + port + "\nclientPortAddress=127.0.0.1", "", true},
		{"named, on all addresses", "dataDir=DIR\nclientPort=" + port + "\nclientPortAddress=0.0.0.0", "", true},
		{"named, for TLS", "dataDir=DIR\nsecureClientPort=" + port, "", true},
		{"named, of another directory", "dataDir=/elsewhere\nclientPort=" + port, "", true},
		{"named, in the list of servers", "dataDir=DIR\nserver.3=127.0.0.1:1:2;127.0.0.1:" + port + "\nserver.4=127.0.0.1:3:4;1", "", true},
		{"named, in a file of servers", "dataDir=DIR\ndynamicConfigFile=DIR/servers", "", true},
		{"named, without a port", "dataDir=DIR", "", false},
		{"in the directory", "dataDir=DIR\nclientPort=" + port, "zoo.cfg", true},
		{"beside the directory", "dataDir=DIR\nclientPort=" + port, "../zoo.cfg", true},
		{"in conf beside the directory", "dataDir=DIR\nclientPort=" + port, "../conf/zoo.cfg", true},
		{"of another directory", "dataDir=/elsewhere\nclientPort=" + port, "../zoo.cfg", false},
	} {
		top := t.TempDir()
		dir := filepath.Join(top, "data")
		write(t, filepath.Join(dir, "version-2", "snapshot.0"), string(snapshot(t, 0)))
		write(t, filepath.Join(dir, "myid"), "3\n")
		write(t, filepath.Join(dir, "servers"), "server.3=127.0.0.1:1:2;127.0.0.1:"+port)
		src := migrate.Source{Data: dir}
		config, path := "", filepath.Join(dir, x.at)
		if x.at == "" {
			path = filepath.Join(top, "z.cfg")
			config = path
		}
		write(t, path, strings.ReplaceAll(x.cfg, "DIR", filepath.ToSlash(dir)))
		why, _, err := src.InUse(config)
		if used := strings.Contains(why, ":"+port+", the port for clients in "+path); err != nil || used != x.used || !used && why != "" {
			t.Errorf("%s: %q, %v", x.name, why, err)
		}
	}
	if _, _, err := (&migrate.Source{Data: t.TempDir()}).InUse("missing.cfg"); err == nil || !strings.Contains(err.Error(), "missing.cfg") {
		t.Error(err)
	}
}

// TestBest: the server to start from has the highest epoch, and of these the highest zxid.
func TestBest(t *testing.T) {
	all := []*migrate.Found{{Epoch: 3, Zxid: epoch(2, 9)}, nil, {Epoch: 2, Zxid: epoch(2, 10)}, {Zxid: epoch(3, 0)}, {Epoch: 3, Zxid: epoch(3, 0)}, {Epoch: 3, Zxid: epoch(2, 7)}}
	if best := migrate.Best(all); fmt.Sprint(best) != "[3 4]" {
		t.Errorf("%v", best)
	}
	if best := migrate.Best(all[:3]); fmt.Sprint(best) != "[0]" {
		t.Errorf("%v", best)
	}
	if best := migrate.Best([]*migrate.Found{nil, nil}); len(best) > 0 {
		t.Errorf("%v", best)
	}
}

// TestNoteOthers: a directory beside the one that is read may be of a server that is further.
func TestNoteOthers(t *testing.T) {
	top := t.TempDir()
	server := func(dir, epoch string, last int64) migrate.Source {
		write(t, filepath.Join(top, dir, "version-2", "snapshot.0"), string(snapshot(t, 0)))
		write(t, filepath.Join(top, dir, "version-2", "log.1"), string(log(1, last)))
		if epoch != "" {
			write(t, filepath.Join(top, dir, "version-2", "currentEpoch"), epoch)
		}
		return migrate.Source{Data: filepath.Join(top, dir)}
	}
	for name, x := range map[string]struct {
		src   migrate.Source
		other string // that is further; empty for none
	}{
		"a higher zxid":             {func() migrate.Source { server("a/a2", "", 9); return server("a/a1", "", 8) }(), filepath.Join(top, "a", "a2")},
		"a lower zxid":              {func() migrate.Source { server("b/b2", "", 8); return server("b/b1", "", 9) }(), ""},
		"the same":                  {func() migrate.Source { server("c/c2", "", 9); return server("c/c1", "", 9) }(), ""},
		"a higher epoch":            {func() migrate.Source { server("d/d2", "2", 7); return server("d/d1", "1", 9) }(), filepath.Join(top, "d", "d2")},
		"a directory with the name": {func() migrate.Source { server("e/2/data", "", 9); return server("e/1/data", "", 8) }(), filepath.Join(top, "e", "2", "data")},
	} {
		_, f, err := migrate.Read(x.src)
		if err != nil {
			t.Fatal(err)
		}
		f.NoteOthers(x.src)
		if x.other == "" && len(f.Notes) > 0 || x.other != "" && (len(f.Notes) != 1 || !strings.HasPrefix(f.Notes[0], x.other+" is further, with epoch ")) {
			t.Errorf("%s: notes %q, should be %q", name, f.Notes, x.other)
		}
	}
}
