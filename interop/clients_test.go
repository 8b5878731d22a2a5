//go:build interop

package interop

import (
	"bufio"
	"cmp"
	"errors"
	"io"
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

// testClient runs a program against lockkeeper and, to check that its expectations are
// correct, against ZooKeeper. cases are the names of all cases that it must print.
func testClient(t *testing.T, command func(t *testing.T) *exec.Cmd, cases ...string) {
	t.Parallel()
	eachServer(t, zk38, clientTick, func(t *testing.T, server *testServer) {
		checkCases(t, runClient(t, command(t), server, startCutter(t, server.addr)), cases...)
	})
}

// testServer is a server that a program can ask to be restarted.
type testServer struct {
	name, addr  string
	stop, start func()
}

// startTestServer starts lockkeeper or ZooKeeper with the same settings: short ticks, TTL
// znodes, and a reaper that runs often. A case that fails on ZooKeeper is a bug in the
// program.
func startTestServer(t testing.TB, name string, version zkVersion, tick time.Duration) *testServer {
	t.Helper()
	ticks := strconv.FormatInt(tick.Milliseconds(), 10)
	if name == "ZooKeeper" {
		z := startZooKeeper(t, version,
			merged(withTTL, withSuper, map[string]string{"znode.container.checkIntervalMs": "200"}),
			merged(anyClients, withWords, map[string]string{"tickTime": ticks}))
		return &testServer{name, z.addr, z.Kill, func() { z.Restart(t) }}
	}
	conf := filepath.Join(t.TempDir(), "zoo.cfg")
	text := "tickTime=" + ticks + "\nmaxClientCnxns=0\nextendedTypesEnabled=true\n4lw.commands.whitelist=*\nznode.container.checkIntervalMs=200\n" +
		"DigestAuthenticationProvider.superDigest=" + withSuper["zookeeper.DigestAuthenticationProvider.superDigest"] + "\n"
	check(t, os.WriteFile(conf, []byte(text), 0o600))
	l := startLockkeeper(t, "--config", conf)
	return &testServer{name, l.addr, func() { l.Stop() }, func() {
		l = startLockkeeper(t, "--config", conf, "--listen", l.addr, "--data", l.dir)
	}}
}

var serverNames = []string{"lockkeeper", "ZooKeeper"}

// envOnly leaves out the runs of programs and suites on ZooKeeper that only say whether their expectations are right, if
// it is lockkeeper: for a change that touches neither them nor interop.
const envOnly = "LOCKKEEPER_INTEROP_ONLY"

// confirmed skips a run on ZooKeeper that envOnly leaves out.
func confirmed(t *testing.T, server string) {
	t.Helper()
	if only := os.Getenv(envOnly); only != "" && !strings.HasPrefix(server, only) {
		t.Skipf("%s is %s", envOnly, only)
	}
}

// eachServer runs a test against both servers.
func eachServer(t *testing.T, version zkVersion, tick time.Duration, test func(*testing.T, *testServer)) {
	for _, name := range serverNames {
		t.Run(name, func(t *testing.T) {
			confirmed(t, name)
			t.Parallel() // with the other server, because the tests mostly wait
			test(t, startTestServer(t, name, version, tick))
		})
	}
}

// stopBehind stops the server, and startBehind starts it again, with its data and its address, for clients that
// connect through the proxy. While ZooKeeper starts, it may never answer a handshake, and not every client can handle
// that. So the proxy is blocked until the server is ready.
func (s *testServer) stopBehind(wire *cutter)  { wire.block(); s.stop() }
func (s *testServer) startBehind(wire *cutter) { s.start(); wire.open() }

// runClient runs a program whose connections can be closed. Its further arguments are the addresses of the proxy and
// of the server.
func runClient(t *testing.T, cmd *exec.Cmd, server *testServer, wire *cutter) map[string]string {
	t.Helper()
	cmd.Args = append(cmd.Args, wire.addr, server.addr)
	stop := func() { server.stopBehind(wire) }
	start := func() { server.startBehind(wire) }
	return runProgram(t, cmd, map[string]func(){
		"cut":     wire.cut,
		"block":   wire.block,
		"open":    wire.open,
		"stop":    stop,
		"start":   start,
		"restart": func() { stop(); start() },
	})
}

// runProgram runs a program until it ends. It returns by case why the case failed, or "". do
// has the actions that the program may ask for.
func runProgram(t *testing.T, cmd *exec.Cmd, do map[string]func()) map[string]string {
	t.Helper()
	log := &tail{}
	cmd.Stderr = log
	// If the program is stuck, all processes of its group are ended. A JVM then prints the stacks of its threads.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdin := must(cmd.StdinPipe())(t)
	stdout := must(cmd.StdoutPipe())(t)
	check(t, cmd.Start())
	stuck := time.AfterFunc(clientDeadline, func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGQUIT)
		time.Sleep(time.Second)
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	})
	outcomes := make(map[string]string)
	failed := false
	began := time.Now()
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
			failed = true
		default:
			t.Logf("the program says %q", lines.Text())
			continue
		}
		if _, twice := outcomes[name]; twice {
			t.Errorf("case %s ended twice", name)
		}
		outcomes[name] = why
		t.Logf("%6d ms: %s", time.Since(began).Milliseconds(), lines.Text())
		began = time.Now()
	}
	if !stuck.Stop() {
		t.Errorf("the program was stuck after %v", clientDeadline)
	}
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil {
		t.Error(err)
	}
	if failed || t.Failed() {
		t.Logf("%s, standard error:\n%s", cmd, log)
	}
	return outcomes
}

// checkCases checks that all of these cases passed and that there are no others.
func checkCases(t *testing.T, outcomes map[string]string, cases ...string) {
	t.Helper()
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			if why, ended := outcomes[name]; !ended {
				t.Error("the case did not end")
			} else if why != "" {
				t.Error(why)
			}
		})
		delete(outcomes, name)
	}
	for name := range outcomes {
		t.Errorf("there is a case %s that the test does not know", name)
	}
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
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
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
	cache := must(os.UserCacheDir())(t)
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
