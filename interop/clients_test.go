//go:build interop

package interop

import (
	"bufio"
	"cmp"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The programs in the directory clients are written in other languages and use
// unmodified clients. A program prints a line for each of its cases, "ok NAME" or "FAIL
// NAME: why". If the test is to do something to the server or the connections, the
// program prints "do WHAT", and reads "done" from its standard input when that is done.
// WHAT is one of
//
//	cut      close every connection through the proxy
//	block    the same, and accept no connections until open
//	open     accept connections again
//	stop     stop the server, and block the proxy
//	start    start it again, with its data and its address, and open the proxy
//	restart  stop and start
//
// The arguments of a program are two addresses: that of the proxy and that of the server.

// clientTick is the servers' tick time. Session timeouts are between 1 s and 10 s.
const clientTick = 500 * time.Millisecond

// clientDeadline is how long a program may run.
const clientDeadline = 6 * time.Minute

// clientSuper is super:secret in the form of superDigest.
const clientSuper = "super:lK75jTNcA+U9vtVEw5vB51mj/w4="

// testClient runs a program against lockkeeper and, to check that its expectations are
// correct, against ZooKeeper. cases are the names of all cases that it must print.
func testClient(t *testing.T, command func(t *testing.T) *exec.Cmd, cases ...string) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) restartable{
		"lockkeeper": startClientLockkeeper,
		"ZooKeeper":  startClientZooKeeper,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			outcomes := runClient(t, command(t), server, startCutter(t, server.address()))
			for _, name := range cases {
				t.Run(name, func(t *testing.T) {
					switch why, ended := outcomes[name]; {
					case !ended:
						t.Error("did not end")
					case why != "":
						t.Error(why)
					}
				})
				delete(outcomes, name)
			}
			for name := range maps.Keys(outcomes) {
				t.Errorf("the test does not know the case %s", name)
			}
		})
	}
}

// restartable is a server that runClient can restart.
type restartable interface {
	address() string
	stop()
	start()
}

// runClient runs a program until it ends. It returns by case why the case failed, or "".
func runClient(t *testing.T, cmd *exec.Cmd, server restartable, wire *cutter) map[string]string {
	t.Helper()
	cmd.Args = append(cmd.Args, wire.addr, server.address())
	log := &tail{}
	cmd.Stderr = log
	// If the program is stuck, all processes of its group are killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(clientDeadline, func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s, standard error:\n%s", cmd, log)
		}
	})

	// While ZooKeeper starts, it may never answer a handshake, which not every client can
	// handle. So the proxy is blocked until the server is ready.
	stop := func() { wire.block(); server.stop() }
	start := func() { server.start(); wire.open() }
	do := map[string]func(){
		"cut":     wire.cut,
		"block":   wire.block,
		"open":    wire.open,
		"stop":    stop,
		"start":   start,
		"restart": func() { stop(); start() },
	}
	outcomes := make(map[string]string)
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		name, why, _ := strings.Cut(rest, ": ")
		switch {
		case verb == "do" && do[rest] != nil:
			do[rest]()
			if _, err := io.WriteString(stdin, "done\n"); err != nil {
				t.Error(err)
			}
			continue
		case verb == "ok":
			why = ""
		case verb == "FAIL":
			why = cmp.Or(why, "no reason given")
		default:
			t.Errorf("the program says %q", lines.Text())
			continue
		}
		if _, twice := outcomes[name]; twice {
			t.Errorf("case %s ended twice", name)
		}
		outcomes[name] = why
	}
	if !stuck.Stop() {
		t.Errorf("the program was stuck after %v", clientDeadline)
	}
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil {
		t.Error(err)
	}
	return outcomes
}

type clientLockkeeper struct {
	t *testing.T
	*lockkeeper
}

func startClientLockkeeper(t *testing.T) restartable {
	c := &clientLockkeeper{t: t}
	c.lockkeeper = startLockkeeper(t, c.flags()...)
	return c
}

func (c *clientLockkeeper) flags() []string {
	return []string{"--tick-time", clientTick.String(), "--super-digest", clientSuper}
}

func (c *clientLockkeeper) address() string { return c.addr }

func (c *clientLockkeeper) stop() { c.Stop() }

func (c *clientLockkeeper) start() {
	c.lockkeeper = startLockkeeper(c.t, append(c.flags(), "--listen", c.addr, "--data", c.dir)...)
}

type clientZooKeeper struct {
	t    *testing.T
	addr string
	dir  string
	pid  int
}

func startClientZooKeeper(t *testing.T) restartable {
	c := &clientZooKeeper{t: t, addr: freeAddr(t), dir: t.TempDir()}
	c.start()
	return c
}

func (c *clientZooKeeper) address() string { return c.addr }

func (c *clientZooKeeper) start() {
	_, port, _ := net.SplitHostPort(c.addr)
	c.pid = startZooKeeper(c.t, zk38, map[string]string{
		"zookeeper.extendedTypesEnabled":                     "true",
		"zookeeper.DigestAuthenticationProvider.superDigest": clientSuper,
	}, map[string]string{
		"dataDir":                c.dir,
		"clientPort":             port,
		"tickTime":               strconv.FormatInt(clientTick.Milliseconds(), 10),
		"maxClientCnxns":         "0",
		"4lw.commands.whitelist": "*",
	}).pid
}

// stop kills the server and waits until its port is free.
func (c *clientZooKeeper) stop() {
	if err := syscall.Kill(c.pid, syscall.SIGKILL); err != nil {
		c.t.Errorf("kill ZooKeeper: %v", err)
	}
	for deadline := time.Now().Add(startDeadline); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		conn, err := net.Dial("tcp", c.addr)
		if err != nil {
			return
		}
		conn.Close()
	}
	c.t.Errorf("the killed ZooKeeper still answers at %s", c.addr)
}

// cutter is a proxy to a server that can close its connections.
type cutter struct {
	addr, server string

	mu      sync.Mutex
	blocked bool
	ends    map[net.Conn]bool
}

func startCutter(t *testing.T, server string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &cutter{addr: l.Addr().String(), server: server, ends: make(map[net.Conn]bool)}
	t.Cleanup(func() {
		l.Close()
		w.block()
	})
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go w.carry(client)
		}
	}()
	return w
}

// carry forwards a client's connection until one side closes it or cut is called.
func (w *cutter) carry(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", w.server)
	if err != nil {
		return
	}
	defer server.Close()
	if !w.join(client, server) {
		return
	}
	defer w.part(client, server)
	go func() {
		io.Copy(client, server)
		client.Close()
	}()
	io.Copy(server, client)
}

func (w *cutter) join(ends ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, end := range ends {
		w.ends[end] = true
	}
	return !w.blocked
}

func (w *cutter) part(ends ...net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, end := range ends {
		delete(w.ends, end)
	}
}

func (w *cutter) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for end := range w.ends {
		end.Close()
	}
	clear(w.ends)
}

func (w *cutter) block() {
	w.mu.Lock()
	w.blocked = true
	w.mu.Unlock()
	w.cut()
}

func (w *cutter) open() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.blocked = false
}

// clientCache returns the path of a client that setup.sh has installed, which must exist.
func clientCache(t *testing.T, name string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cache, "lockkeeper-interop", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("a client is missing: %v (interop/setup.sh installs it)", err)
	}
	return path
}

func clientCommand(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env = cleanEnv()
	return cmd
}

// TestKazoo runs a Python program with kazoo.
func TestKazoo(t *testing.T) {
	testClient(t, func(t *testing.T) *exec.Cmd {
		return clientCommand(clientCache(t, "kazoo/bin/python"), "-u", "clients/kazoo/program.py")
	},
		"create_modes",
		"data",
		"pipeline",
		"ensure_path",
		"lock_processes",
		"lock",
		"lock_of_closed_session",
		"read_write_lock",
		"semaphore",
		"election",
		"barrier",
		"double_barrier",
		"queue",
		"locking_queue",
		"party",
		"shallow_party",
		"counter",
		"lease",
		"partitioner",
		"one_shot_watches",
		"watches_over_cut",
		"watches_over_restart",
		"missed_changes",
		"transaction",
		"failed_transaction",
		"acl_and_auth",
		"auth_over_cut",
		"tree_cache",
		"server_version",
		"words",
		"read_only_client",
		"reconfig",
		"session_resumed",
		"session_expired",
		"lock_of_expired_session",
		"bad_resume",
		"retry_over_restart",
		"lock_over_restart",
	)
}

// TestC runs a program with the C client, on which clients in many languages are based.
func TestC(t *testing.T) {
	testClient(t, func(t *testing.T) *exec.Cmd {
		program := filepath.Join(t.TempDir(), "program")
		build := clientCommand("gcc", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o", program, "clients/c/program.c", "-lzookeeper_mt", "-lpthread")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("the program does not build: %v (interop/setup.sh installs what it needs)\n%s", err, out)
		}
		return clientCommand(program)
	},
		"create_modes",
		"data",
		"async_pipeline",
		"async_operations",
		"multi",
		"failed_multi",
		"watches",
		"remove_watches",
		"acl_and_auth",
		"unknown_scheme",
		"config",
		"lock_processes",
		"watches_over_cut",
		"watches_over_restart",
		"session_resumed",
		"wrong_password",
		"session_expired",
		"several_hosts",
		"lock_of_expired_session",
	)
}

// nodeProgram is a program with node-zookeeper-client.
func nodeProgram(t *testing.T) *exec.Cmd {
	program := clientCommand("node", "clients/node/program.js")
	program.Env = append(program.Env, "NODE_PATH="+clientCache(t, "node/node_modules"))
	return program
}

func TestNode(t *testing.T) {
	testClient(t, nodeProgram,
		"create_modes",
		"data",
		"pipeline",
		"watches",
		"transaction",
		"failed_transaction",
		"acl_and_auth",
		"unknown_scheme",
		"watches_over_cut",
		"watches_over_restart",
		"session_resumed",
		"wrong_password",
		"session_expired",
		"lock_processes",
		"lock_of_expired_session",
	)
}

// rustProgram builds a program with the crate zookeeper-client.
func rustProgram(t *testing.T) *exec.Cmd {
	target := clientCache(t, "rust")
	build := clientCommand("cargo", "build", "--quiet", "--locked", "--offline", "--manifest-path", "clients/rust/Cargo.toml", "--target-dir", target)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the program does not build: %v (interop/setup.sh installs what it needs)\n%s", err, out)
	}
	return clientCommand(filepath.Join(target, "debug", "program"))
}

func TestRust(t *testing.T) {
	testClient(t, rustProgram,
		"create_modes",
		"data",
		"pipeline",
		"watches",
		"persistent_watches",
		"multi",
		"acl_and_auth",
		"watches_over_cut",
		"watches_over_restart",
		"session_resumed",
		"session_expired",
		"lock_processes",
		"lock_of_expired_session",
	)
}
