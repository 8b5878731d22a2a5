package zk

// This file takes the place of the two files in which this client's own tests
// start Java servers. It gives the other tests the same names to call, and
// starts lockkeeper instead: the binary that LOCKKEEPER_BINARY names. lockkeeper
// copies it into a copy of the module and runs the tests there.

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	_testConfigName   = "zoo.cfg"
	_testMyIDFileName = "myid"

	tickTime    = "500ms"
	superDigest = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=" // the password is "test"
	servingLine = "lockkeeper: serving ZooKeeper clients on "
	serveWithin = time.Minute
)

type server struct {
	args    []string
	stderr  io.Writer
	id      string
	joins   bool // a cluster that runs
	cmd     *exec.Cmd
	serving chan struct{} // closed when this start serves clients
}

// NewIntegrationTestServer is a server with a zoo.cfg that names nobody but
// itself, which a test adds to the cluster by reconfig. ZooKeeper's waits for
// that by itself; lockkeeper's has to be told where the cluster is, and asks to
// be taken in. That is over when it has started, since two changes at a time are
// refused.
func NewIntegrationTestServer(t *testing.T, configPath string, stdout, stderr io.Writer) (*server, error) {
	config, err := os.ReadFile(configPath)
	if err != nil {
		return nil, err
	}
	var id, peerPort, electionPort, clientPort int
	for _, line := range strings.Split(string(config), "\n") {
		fmt.Sscanf(line, "clientPort=%d", &clientPort)
		fmt.Sscanf(line, "server.%d=127.0.0.1:%d:%d", &id, &peerPort, &electionPort)
	}
	if id == 0 || clientPort == 0 {
		return nil, fmt.Errorf("%s has no server and client port", configPath)
	}
	s := newServer(stderr, "--id", strconv.Itoa(id), "--join", newestPeer, "--peer-listen", fmt.Sprintf("127.0.0.1:%d", peerPort),
		"--listen", fmt.Sprintf("127.0.0.1:%d", clientPort), "--data", filepath.Join(filepath.Dir(configPath), "data"))
	s.id, s.joins = strconv.Itoa(id), true
	return s, nil
}

// newestPeer is the peer port of a member of the newest cluster.
var newestPeer string

func newServer(stderr io.Writer, args ...string) *server {
	if stderr == nil {
		stderr = io.Discard
	}
	args = append([]string{"serve", "--tick-time", tickTime, "--super-digest", superDigest, "--reconfig"}, args...)
	return &server{args: args, stderr: stderr}
}

func (s *server) Start() error {
	s.cmd = exec.Command(os.Getenv("LOCKKEEPER_BINARY"), s.args...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "LOCKKEEPER_") {
			s.cmd.Env = append(s.cmd.Env, kv)
		}
	}
	pipe, err := s.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	serving := make(chan struct{})
	s.serving = serving
	go func() {
		lines := bufio.NewScanner(pipe)
		for lines.Scan() {
			if serving != nil && strings.Contains(lines.Text(), servingLine) {
				close(serving)
				serving = nil
			}
			fmt.Fprintln(os.Stderr, "[lockkeeper]", lines.Text())
		}
	}()
	if s.joins {
		return s.awaitVote()
	}
	return nil
}

func (s *server) await() error {
	select {
	case <-s.serving:
		return nil
	case <-time.After(serveWithin):
		return fmt.Errorf("lockkeeper %q does not serve within %v", s.args, serveWithin)
	}
}

// awaitVote waits until the server, which joins, is a member that votes.
func (s *server) awaitVote() error {
	var out []byte
	for deadline := time.Now().Add(serveWithin); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		out, _ = exec.Command(os.Getenv("LOCKKEEPER_BINARY"), "cluster", "status", "--peer", newestPeer).CombinedOutput()
		for _, line := range strings.Split(string(out), "\n") {
			if strings.HasPrefix(line, s.id+" ") && strings.Contains(line, "follower") {
				return nil
			}
		}
	}
	return fmt.Errorf("server %s is no voting member within %v: %s", s.id, serveWithin, out)
}

// Stop kills the server, as the original does.
func (s *server) Stop() error {
	if s.cmd == nil {
		return nil
	}
	s.cmd.Process.Kill()
	err := s.cmd.Wait()
	s.cmd = nil
	return err
}

type TestServer struct {
	Port   int
	Path   string
	Srv    *server
	Config ServerConfigServer
}

type TestCluster struct {
	Path    string
	Config  ServerConfig
	Servers []TestServer
}

func StartTestCluster(t *testing.T, size int, stdout, stderr io.Writer) (*TestCluster, error) {
	t.Helper()
	tc := &TestCluster{Path: t.TempDir()}
	t.Cleanup(func() { tc.Stop() })
	var peers []string
	for i := 0; i < size; i++ {
		member := ServerConfigServer{ID: i + 1, Host: "127.0.0.1", PeerPort: freePort(t), LeaderElectionPort: freePort(t)}
		tc.Config.Servers = append(tc.Config.Servers, member)
		peers = append(peers, fmt.Sprintf("%d=%s:%d", member.ID, member.Host, member.PeerPort))
	}
	newestPeer = fmt.Sprintf("127.0.0.1:%d", tc.Config.Servers[0].PeerPort)
	for _, member := range tc.Config.Servers {
		s := TestServer{Port: freePort(t), Path: filepath.Join(tc.Path, strconv.Itoa(member.ID)), Config: member}
		args := []string{"--listen", fmt.Sprintf("127.0.0.1:%d", s.Port), "--data", s.Path}
		if size > 1 {
			args = append(args, "--id", strconv.Itoa(member.ID), "--peers", strings.Join(peers, ","))
		}
		s.Srv = newServer(stderr, args...)
		tc.Config.ClientPort, tc.Config.DataDir = s.Port, s.Path
		tc.Servers = append(tc.Servers, s)
	}
	return tc, tc.StartAllServers()
}

// freePort takes a port and keeps it until the test ends: who names it can
// listen there.
func freePort(t *testing.T) int {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	addr, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return addr.(*syscall.SockaddrInet4).Port
}

func (tc *TestCluster) Connect(idx int) (*Conn, <-chan Event, error) {
	return Connect([]string{fmt.Sprintf("127.0.0.1:%d", tc.Servers[idx].Port)}, 15*time.Second)
}

func (tc *TestCluster) ConnectAll() (*Conn, <-chan Event, error) {
	return tc.ConnectAllTimeout(15 * time.Second)
}

func (tc *TestCluster) ConnectAllTimeout(sessionTimeout time.Duration) (*Conn, <-chan Event, error) {
	return tc.ConnectWithOptions(sessionTimeout)
}

func (tc *TestCluster) ConnectWithOptions(sessionTimeout time.Duration, options ...connOption) (*Conn, <-chan Event, error) {
	var addrs []string
	for _, s := range tc.Servers {
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", s.Port))
	}
	return Connect(addrs, sessionTimeout, options...)
}

func (tc *TestCluster) Stop() error { return tc.StopAllServers() }

func (tc *TestCluster) StopAllServers() error {
	for _, s := range tc.Servers {
		s.Srv.Stop() // it was killed, of course it failed
	}
	return nil
}

func (tc *TestCluster) StartAllServers() error {
	for _, s := range tc.Servers {
		if err := s.Srv.Start(); err != nil {
			return err
		}
	}
	for _, s := range tc.Servers {
		if err := s.Srv.await(); err != nil {
			return err
		}
	}
	return nil
}

func (tc *TestCluster) StartServer(addr string) { tc.at(addr).Start() }

func (tc *TestCluster) StopServer(addr string) { tc.at(addr).Stop() }

func (tc *TestCluster) at(addr string) *server {
	for _, s := range tc.Servers {
		if strings.HasSuffix(addr, fmt.Sprintf(":%d", s.Port)) {
			return s.Srv
		}
	}
	panic("no server at " + addr)
}

type ServerConfigServer struct {
	ID                 int
	Host               string
	PeerPort           int
	LeaderElectionPort int
}

type ServerConfig struct {
	ClientPort int
	DataDir    string
	Servers    []ServerConfigServer
}

// Marshall writes a zoo.cfg.
func (c ServerConfig) Marshall(w io.Writer) error {
	fmt.Fprintf(w, "dataDir=%s\nclientPort=%d\ninitLimit=10\nsyncLimit=5\n", c.DataDir, c.ClientPort)
	fmt.Fprintf(w, "admin.enableServer=false\nreconfigEnabled=true\n4lw.commands.whitelist=*\n")
	for _, s := range c.Servers {
		fmt.Fprintf(w, "server.%d=%s:%d:%d\n", s.ID, s.Host, s.PeerPort, s.LeaderElectionPort)
	}
	return nil
}

// waitForSession reads events until there is a session.
func waitForSession(ctx context.Context, events <-chan Event) error {
	for {
		select {
		case ev, open := <-events:
			if !open {
				return fmt.Errorf("the client gave up")
			}
			if ev.State == StateHasSession {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func requireNoErrorf(t *testing.T, err error, msgAndArgs ...interface{}) {
	t.Helper()
	if err != nil {
		t.Fatal(append(msgAndArgs, err)...)
	}
}
