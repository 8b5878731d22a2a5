//go:build unix

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// brokenPipe returns the writing end of a pipe whose reader has gone.
func brokenPipe(t *testing.T) *os.File {
	t.Helper()
	read, write, err := os.Pipe()
	check1(t, err)
	t.Cleanup(func() { write.Close() })
	check1(t, read.Close())
	return write
}

// ends waits until a process ends, and returns its state.
func ends(t *testing.T, cmd *exec.Cmd) *os.ProcessState {
	t.Helper()
	late := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer late.Stop()
	cmd.Wait() // the state says how it ended
	return cmd.ProcessState
}

// startUnread starts a command, waits until it says at which address it serves clients, and reads nothing more that it says.
func startUnread(t *testing.T, args ...string) (cmd *exec.Cmd, addr string) {
	t.Helper()
	read, write, err := os.Pipe()
	check1(t, err)
	cmd = exec.Command(binary, args...)
	cmd.Stderr = write
	check1(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	write.Close()
	ready := regexp.MustCompile(`lockkeeper: (?:serving ZooKeeper clients on|proxying) ([^\s"]+)`)
	for lines := bufio.NewScanner(read); addr == "" && lines.Scan(); {
		if m := ready.FindStringSubmatch(lines.Text()); m != nil {
			addr = m[1]
		}
	}
	check1(t, read.Close())
	return cmd, addr
}

// TestServeWithoutReader: serve goes on when the reader of its log has gone, at any level, and ends as always.
func TestServeWithoutReader(t *testing.T) {
	for _, more := range [][]string{{"--log-level", "error"}, {"--log-level", "debug"}, {"--log-level", "debug", "--log-format", "json"}, {"--test-control", "127.0.0.1:0", "--log-level", "debug"}} {
		t.Run(strings.Join(more, " "), func(t *testing.T) {
			t.Parallel()
			cmd, addr := startUnread(t, append([]string{"serve", "--memory", "--listen", "127.0.0.1:0"}, more...)...)
			for range 3 {
				nc, err := net.Dial("tcp", addr)
				check1(t, err)
				nc.Write([]byte{0, 0, 0, 1, 0}) // no handshake: this is logged
				io.Copy(io.Discard, nc)
				nc.Close()
			}
			nc, err := net.Dial("tcp", addr)
			check1(t, err)
			defer nc.Close()
			c, err := rawclient.Open(nc, 40*time.Second)
			check1(t, err)
			check1(t, c.Ping())
			check1(t, cmd.Process.Signal(syscall.SIGTERM))
			if s := ends(t, cmd); s.ExitCode() != exitOK {
				t.Errorf("it has ended with %v", s)
			}
		})
	}
	t.Run("a fault", func(t *testing.T) {
		t.Parallel()
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		check1(t, err)
		defer taken.Close()
		cmd := exec.Command(binary, "serve", "--memory", "--listen", taken.Addr().String())
		cmd.Stderr = brokenPipe(t)
		check1(t, cmd.Start())
		if s := ends(t, cmd); s.ExitCode() != exitFault { // systemd would take the signal for a clean end
			t.Errorf("it has ended with %v", s)
		}
	})
}

// TestServeUnread: serve ends although its log takes nothing more, and a client leaves its answers unread, which is logged.
func TestServeUnread(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	check1(t, err)
	defer read.Close()
	defer write.Close()
	cmd := exec.Command(binary, "serve", "--memory", "--listen", "127.0.0.1:0")
	cmd.Stderr = write
	check1(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	line, err := bufio.NewReader(read).ReadString('\n')
	check1(t, err)
	nc, err := net.Dial("tcp", readyLine.FindStringSubmatch(strings.TrimSpace(line))[1])
	check1(t, err)
	defer nc.Close()
	c, err := rawclient.Open(nc, 40*time.Second)
	check1(t, err)
	_, err = c.Create("/a", make([]byte, 900_000), 0)
	check1(t, err)
	ask := (&proto.PathWatch{Path: "/a"}).Append((&proto.RequestHeader{Xid: 1, Op: proto.OpGetData}).Append(nil))
	for range 30 {
		nc.Write(append(jute.AppendInt(nil, int32(len(ask))), ask...))
	}
	fill(t, write)
	check1(t, cmd.Process.Signal(syscall.SIGTERM))
	if s := ends(t, cmd); s.ExitCode() != exitOK {
		t.Errorf("it has ended with %v", s)
	}
}

// fill fills a pipe.
func fill(t *testing.T, write *os.File) {
	fd := int(write.Fd())
	check1(t, syscall.SetNonblock(fd, true))
	for err := error(nil); err == nil; {
		_, err = syscall.Write(fd, []byte{'\n'})
	}
	check1(t, syscall.SetNonblock(fd, false))
}

// fullPipe returns a full pipe that nobody reads.
func fullPipe(t *testing.T) *os.File {
	read, write, err := os.Pipe()
	check1(t, err)
	t.Cleanup(func() { read.Close(); write.Close() })
	fill(t, write)
	return write
}

// TestServeUnreadWrongFlag: nobody reads standard error, and serve has nothing else to do than to say what is wrong.
func TestServeUnreadWrongFlag(t *testing.T) {
	for _, flag := range []string{"--nonsense", "--tick-time=x", "--log-format=xml"} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			write := fullPipe(t)
			cmd := exec.Command(binary, "serve", flag)
			cmd.Stderr = write
			check1(t, cmd.Start())
			if s := ends(t, cmd); s.ExitCode() != exitUsage {
				t.Errorf("it has ended with %v", s)
			}
		})
	}
}

// slowReader takes every line, but needs some time for each, as a pipe does whose reader is slow.
type slowReader struct {
	mu sync.Mutex
	bytes.Buffer
}

func (s *slowReader) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	time.Sleep(20 * time.Millisecond)
	return s.Buffer.Write(b)
}

// TestServeSaysErrorLast: serve ends with an error while more lines wait than a slow reader takes in a second. It says the error.
func TestServeSaysErrorLast(t *testing.T) {
	file := filepath.Join(t.TempDir(), "zoo.cfg")
	text := fmt.Sprintf("dataDir=%s\nclientPort=0\n", t.TempDir())
	for i := range 100 {
		text += fmt.Sprintf("unknown%d=1\n", i)
	}
	check1(t, os.WriteFile(file, []byte(text), 0o600))
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			var errs slowReader
			code := run([]string{"serve", "--config", file, "--peers", "nonsense", "--log-format", format}, func(string) string { return "" }, io.Discard, &errs)
			lines := strings.Split(strings.TrimSpace(errs.String()), "\n")
			if last := lines[len(lines)-1]; code != exitUsage || len(lines) > 90 || !strings.Contains(last, "nonsense") {
				t.Errorf("exit code %d, and the last of %d lines is %q", code, len(lines), last)
			}
		})
	}
}

// TestServeUnreadFromStart: standard error takes nothing from the start. serve ends all the same, after a signal or a fault.
func TestServeUnreadFromStart(t *testing.T) {
	for _, fault := range []bool{false, true} {
		for _, format := range []string{"text", "json"} {
			t.Run(fmt.Sprint("fault ", fault, ", ", format), func(t *testing.T) {
				t.Parallel()
				write := fullPipe(t)
				port, err := net.Listen("tcp", "127.0.0.1:0")
				check1(t, err)
				defer port.Close()
				want := exitFault
				if !fault {
					port.Close()
					want = exitOK
				}
				cmd := exec.Command(binary, "serve", "--memory", "--listen", port.Addr().String(), "--log-format", format)
				cmd.Stderr = write
				check1(t, cmd.Start())
				for deadline := time.Now().Add(time.Minute); !fault && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
					nc, err := net.Dial("tcp", port.Addr().String())
					if err != nil {
						continue
					}
					_, err = rawclient.Open(nc, 40*time.Second)
					nc.Close()
					if err == nil {
						check1(t, cmd.Process.Signal(syscall.SIGTERM))
						break
					}
				}
				if s := ends(t, cmd); s.ExitCode() != want {
					t.Errorf("it has ended with %v", s)
				}
			})
		}
	}
}

// TestLockRunWithoutReader: lock run waits for the lock and holds it when nobody reads what it says of that, and the
// signal is for the command as it always is.
func TestLockRunWithoutReader(t *testing.T) {
	t.Parallel()
	s := runServer(t)
	first := startRun(t, s, "/locks/a", "--", "sh", "-c", "echo held; exec sleep 1000")
	first.line()
	var out bytes.Buffer
	cmd := exec.Command(binary, "lock", "run", "--server", s.Addr(), "--verbose", "/locks/a", "--", "sh", "-c", "echo goes on; kill -PIPE $$; echo ignored")
	cmd.Stderr, cmd.Stdout = brokenPipe(t), &out
	check1(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	s.WaitWaiters("/locks/a", 1)
	check1(t, first.Process.Signal(syscall.SIGTERM))
	if state := ends(t, cmd); state.ExitCode() != 128+int(syscall.SIGPIPE) || out.String() != "goes on\n" {
		t.Errorf("it has ended with %v, and printed %q", state, out.String())
	}
}

// TestCommandsWithoutReader: no command ends because nobody reads what it says on standard error.
func TestCommandsWithoutReader(t *testing.T) {
	t.Parallel()
	s := lockkeepertest.Start(t, lockkeepertest.WithTCP())
	addr := s.Addr()
	for name, c := range map[string]struct {
		args  []string
		stdin string
		code  int
		says  string // on standard output
	}{
		"zk":      {[]string{"zk", "--server", addr}, "get /none\nls /\n", exitOK, "zookeeper]"},
		"bench":   {[]string{"bench", "--workload", "read", "--ops", "10", "--time", "1s", addr}, "", exitOK, "read"},
		"conform": {[]string{"conform", "--run", "^create", "--parallel", "4", addr}, "", exitOK, "passed"},
		"wire":    {[]string{"wire", "--to", addr, "--listen", addr}, "", exitFault, ""}, // it is taken
		"status":  {[]string{"cluster", "status", "--server", addr}, "", exitFault, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			cmd := exec.Command(binary, c.args...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(c.stdin), &out, brokenPipe(t)
			check1(t, cmd.Start())
			if state := ends(t, cmd); state.ExitCode() != c.code || !strings.Contains(out.String(), c.says) {
				t.Errorf("it has ended with %v, and printed %q", state, out.String())
			}
		})
	}
}

// TestWithoutReaderOfOutput: what a command prints is all that some commands are for. They end without a word when nobody
// reads it.
func TestWithoutReaderOfOutput(t *testing.T) {
	t.Parallel()
	s := lockkeepertest.Start(t, lockkeepertest.WithTCP())
	conn := s.Connect(t, time.Minute)
	_, err := conn.Create("/lock-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
	check1(t, err)
	for name, c := range map[string]struct {
		args  []string
		stdin string
	}{
		"version":     {[]string{"version"}, ""},
		"help":        {[]string{"help", "serve"}, ""},
		"lock ls":     {[]string{"lock", "ls", "--server", s.Addr()}, ""},
		"lock ls all": {[]string{"lock", "ls", "--watch", "--json", "--server", s.Addr()}, ""},
		"zk":          {[]string{"zk", "--server", s.Addr()}, strings.Repeat("ls /\n", 1000) + "create /late x\n"},
		"zk once":     {[]string{"zk", "--server", s.Addr(), "ls", "/"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var errs bytes.Buffer
			cmd := exec.Command(binary, c.args...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(c.stdin), brokenPipe(t), &errs
			check1(t, cmd.Start())
			if state := ends(t, cmd); state.Sys().(syscall.WaitStatus).Signal() != syscall.SIGPIPE || errs.Len() > 0 {
				t.Errorf("it has ended with %v, and said %q", state, errs.String())
			}
		})
	}
	t.Run("wire", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "recording")
		cmd := exec.Command(binary, "wire", "--record", file, "--to", s.Addr(), "--listen", "127.0.0.1:0")
		cmd.Stdout = brokenPipe(t)
		p := startCmd(t, cmd).waitReady()
		// The proxy may end before the answer, or as soon as it has accepted the connection.
		if nc, err := net.Dial("tcp", p.addr); err == nil {
			defer nc.Close()
			rawclient.Open(nc, 40*time.Second)
		}
		p.exit()
		recording, err := os.ReadFile(file)
		check1(t, err)
		if p.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGPIPE || len(p.lines()) != 1 ||
			!bytes.HasPrefix(recording, []byte("zk-golden 1\n")) || bytes.Contains(recording, []byte(" open\n")) && !bytes.Contains(recording, []byte("close")) {
			t.Errorf("it has ended with %v, said %q, and recorded %q", p.ProcessState, p.lines(), recording)
		}
	})
	t.Cleanup(func() { // when all have ended
		if _, _, err := s.Get("/late"); err == nil {
			t.Error("the shell goes on")
		}
	})
}
