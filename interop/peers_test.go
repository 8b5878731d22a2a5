//go:build interop

package interop

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/tools/bench"
)

const (
	envPeers     = "LOCKKEEPER_INTEROP_PEERS"      // the number of turns of TestPeers
	envPeersTime = "LOCKKEEPER_INTEROP_PEERS_TIME" // of one measurement
	envPeersDocs = "LOCKKEEPER_INTEROP_PEERS_DOCS" // the directory to write to, by default docs

	peersIdle   = 10_000    // idle sessions
	peersZnodes = 1_000_000 // for memory and the restart
)

// peer is a kind of server to measure.
type peer struct {
	name string
	// start starts n servers with empty directories, and returns when they serve.
	start func(t *testing.T, n int) *bench.Target
	// firstLock takes a lock.
	firstLock func(t *testing.T, target *bench.Target)
}

func peers() []peer {
	zoo := func(name string, v zkVersion) peer {
		return peer{name, func(t *testing.T, n int) *bench.Target { return startZooTarget(t, name, v, n) }, stockLock}
	}
	return []peer{
		{"lockkeeper", startLockkeeperTarget, stockLock},
		zoo("ZooKeeper 3.8", zk38),
		zoo("ZooKeeper 3.9", zk39),
		{"etcd", startEtcd, func(t *testing.T, target *bench.Target) {
			c := newEtcd(target.Addrs[0])
			defer c.close()
			lease, err := c.grant(t.Context())
			if err == nil {
				_, err = c.lock(t.Context(), "first", lease)
			}
			if err != nil {
				t.Fatal(err)
			}
		}},
	}
}

func startLockkeeperTarget(t *testing.T, n int) *bench.Target {
	target := &bench.Target{Name: "lockkeeper"}
	if n > 1 {
		e := startEnsemble(t, n)
		target.Addrs = e.listen
		for _, p := range e.procs {
			target.PIDs = append(target.PIDs, p.pid)
		}
		return target
	}
	dir := t.TempDir()
	l := startLockkeeper(t, "--data", dir)
	target.Addrs, target.PIDs = []string{l.addr}, []int{l.pid}
	target.Restart = func(context.Context) ([]int, error) {
		l.Kill()
		l = execLockkeeper(t, "--data", dir, "--listen", l.addr)
		return []int{l.pid}, nil
	}
	return target
}

func startZooTarget(t *testing.T, name string, v zkVersion, n int) *bench.Target {
	target := &bench.Target{Name: name}
	if n > 1 {
		z := startZooEnsemble(t, v, n)
		target.Addrs = z.listen
		for _, p := range z.procs {
			target.PIDs = append(target.PIDs, p.pid)
		}
		return target
	}
	z := startZooKeeper(t, v, nil, anyClients)
	target.Addrs, target.PIDs = []string{z.addr}, []int{z.pid}
	target.Restart = func(context.Context) ([]int, error) {
		z.Kill()
		z.launch(t)
		return []int{z.pid}, nil
	}
	return target
}

// stockLock takes a lock with a stock client.
func stockLock(t *testing.T, target *bench.Target) {
	conn, _, err := zk.Connect(target.Addrs[:1], 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	check(t, zk.NewLock(conn, "/first", zk.WorldACL(zk.PermAll)).Lock())
}

// TestPeers measures lockkeeper, ZooKeeper 3.8 and 3.9, and etcd in turns, on one machine
// and disk, all durable and with their default settings, as one server and as three, and
// writes docs/performance.md. It runs only if LOCKKEEPER_INTEROP_PEERS is the number of
// turns, since it takes long and needs an otherwise idle machine.
func TestPeers(t *testing.T) {
	turns, err := strconv.Atoi(os.Getenv(envPeers))
	if err != nil || turns < 1 {
		t.Skipf("%s is not the number of turns", envPeers)
	}
	each := 2 * time.Second
	if text := os.Getenv(envPeersTime); text != "" {
		if each, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	quick := each < time.Second // to try it out
	lockkeeperBinary(t)
	p := page{About: describeMachine(t, [2]string{"etcd", firstLine(t, "etcd", "--version")}), Turns: turns, Time: each}
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("servers=%d", n), func(t *testing.T) {
			p.Parts = append(p.Parts, measurePeers(t, n, turns, each, quick))
		})
	}
	if t.Failed() {
		return
	}
	docs := os.Getenv(envPeersDocs)
	if docs == "" {
		docs = "../docs"
	}
	check(t, p.write(docs))
}

// measurePeers measures clusters of n servers.
func measurePeers(t *testing.T, n, turns int, each time.Duration, quick bool) part {
	all := peers()
	o := bench.Options{Turns: turns, Time: each, Ops: 2_000_000, IdleSessions: peersIdle, Znodes: peersZnodes}
	if quick {
		o.IdleSessions, o.Znodes = peersIdle/20, peersZnodes/50
	}
	o.Progress = func(done, of int, text string, matters bool) {
		if matters {
			t.Logf("%d/%d %s", done, of, text)
		}
	}
	var loads, once []bench.Workload
	for _, w := range bench.All() {
		if w.Once {
			once = append(once, w)
		} else {
			loads = append(loads, w)
		}
	}
	part := part{Servers: n, IdleSessions: o.IdleSessions, Znodes: o.Znodes}

	// Starts, and memory, each with new processes.
	part.Fresh = &bench.Row{Workload: "start", Says: "starts on empty directories until a client holds a lock; memory then", Runs: make([][]bench.Result, len(all))}
	for turn := 1; turn <= turns; turn++ {
		for i, p := range all {
			part.Fresh.Runs[i] = append(part.Fresh.Runs[i], startOnce(t, p, n, turn))
		}
	}
	for _, w := range once {
		row := &bench.Row{Workload: w.Name, Says: w.Says, Runs: make([][]bench.Result, len(all))}
		for i, p := range all {
			t.Run(w.Name+" on "+p.name, func(t *testing.T) { // its end stops the servers
				target := p.start(t, n)
				o := o
				o.Targets, o.Workloads = []*bench.Target{target}, []bench.Workload{w}
				report := measure(t, o)
				row.Runs[i] = report.Rows[0].Runs[0]
			})
		}
		part.Report.Rows = append(part.Report.Rows, row)
	}

	t.Run("loads", func(t *testing.T) {
		o := o
		for _, p := range all {
			target := p.start(t, n)
			target.Restart = nil
			o.Targets = append(o.Targets, target)
		}
		o.Targets = append(o.Targets, limitTarget(t))
		o.Workloads = loads
		report := measure(t, o)
		report.Rows = append(report.Rows, part.Report.Rows...)
		part.Report = *report
	})
	return part
}

func measure(t *testing.T, o bench.Options) *bench.Report {
	t.Helper()
	report := must(bench.Measure(t.Context(), o))(t)
	for _, row := range report.Rows {
		for i, runs := range row.Runs {
			for _, r := range runs {
				if r.TwoHolders != "" {
					t.Errorf("%s on %s: %s", row.Workload, report.Targets[i], r.TwoHolders)
				}
			}
		}
	}
	return report
}

// startOnce measures from the start of the processes until a client holds a lock.
func startOnce(t *testing.T, p peer, n, turn int) bench.Result {
	r := bench.Result{Turn: turn, Ops: 1}
	t.Run("start of "+p.name, func(t *testing.T) {
		began := time.Now()
		target := p.start(t, n)
		p.firstLock(t, target)
		r.Seconds = time.Since(began).Seconds()
		r.P50 = r.Seconds * 1e6
		time.Sleep(time.Second) // until work left over from the start is done
		for _, pid := range target.PIDs {
			r.MemoryBytes += int64(residentMiB(t, pid) * (1 << 20))
		}
	})
	return r
}

// limitTarget does what no durable server can do without: it appends 4 KiB to a file and
// syncs it, and makes a round trip to another process that only sends the byte back.
func limitTarget(t *testing.T) *bench.Target {
	echo := exec.Command(os.Args[0])
	echo.Env = append(os.Environ(), envRole+"=echo")
	echo.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := echo.StdoutPipe()
	if err == nil {
		err = echo.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		echo.Process.Kill()
		echo.Wait()
	})
	var addr string
	must(fmt.Fscanln(out, &addr))(t)
	file := must(os.Create(filepath.Join(t.TempDir(), "log")))(t)
	t.Cleanup(func() { file.Close() })
	return &bench.Target{Name: limitName, Addrs: []string{addr}, Workloads: []bench.Workload{{Name: "create-1x1", Run: func(r *bench.Run) error {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		defer conn.Close()
		block := make([]byte, 4<<10)
		return r.Measured(1, func(_ int, w *bench.Worker) {
			for w.More() {
				began := time.Now()
				_, err := file.Write(block)
				if err == nil {
					err = syscall.Fdatasync(int(file.Fd()))
				}
				if err == nil {
					_, err = conn.Write(block[:1])
				}
				if err == nil {
					_, err = io.ReadFull(conn, block[:1])
				}
				if err != nil {
					w.Fail(err)
					return
				}
				w.Done(time.Since(began))
			}
		})
	}}}}
}

const limitName = "the limit"

// playEcho is the server of limitTarget.
func playEcho() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			var b [1]byte
			for {
				if _, err := io.ReadFull(c, b[:]); err != nil {
					return
				}
				if _, err := c.Write(b[:]); err != nil {
					return
				}
			}
		}()
	}
}

// firstLine returns the first line that a command prints.
func firstLine(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}

// describeMachine returns what the figures depend on, by name, with other programs than lockkeeper and ZooKeeper.
func describeMachine(t *testing.T, others ...[2]string) (about [][2]string) {
	t.Helper()
	read := func(file, key string) string {
		text := must(os.ReadFile(file))(t)
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == key {
				return strings.TrimSpace(value)
			}
		}
		return "unknown"
	}
	var disk syscall.Statfs_t
	check(t, syscall.Statfs(t.TempDir(), &disk))
	jar, _ := filepath.Glob(strings.TrimSuffix(zk39.classpath(t), "*") + "zookeeper-3*.jar")
	v39 := "3.9"
	if len(jar) > 0 {
		v39 = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(jar[0]), "zookeeper-"), ".jar")
	}
	v38 := must(filepath.EvalSymlinks("/usr/share/java/zookeeper.jar"))(t)
	v38 = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(v38), "zookeeper-"), ".jar")
	return append([][2]string{
		{"lockkeeper", firstLine(t, lockkeeperBinary(t), "version") + ", commit " + firstLine(t, "git", "rev-parse", "--short", "HEAD")},
		{"ZooKeeper", v38 + " (Debian) and " + v39 + ", on " + firstLine(t, "java", "-version")},
	}, append(others, [][2]string{
		{"processor", fmt.Sprintf("%d × %s", runtime.NumCPU(), read("/proc/cpuinfo", "model name"))},
		{"memory", read("/proc/meminfo", "MemTotal")},
		{"kernel", firstLine(t, "uname", "-sr")},
		{"file system", firstLine(t, "stat", "--file-system", "--format=%T", t.TempDir())},
		{"date", time.Now().UTC().Format(time.DateOnly)},
	}...)...)
}
