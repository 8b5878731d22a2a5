//go:build interop

package interop

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// A holder is a lock holder in a process of its own, which runs this test binary with an
// unmodified client. It prints "held" when it has the lock, and "expired" when its client
// learns that the session has expired. A line on its standard input makes it close the
// session and print "closed".

const (
	envHolderAddr    = "LOCKKEEPER_INTEROP_HOLDER_ADDR"
	envHolderDir     = "LOCKKEEPER_INTEROP_HOLDER_DIR"
	envHolderTimeout = "LOCKKEEPER_INTEROP_HOLDER_TIMEOUT"
)

// play is the main function of processes that the tests start from this binary.
func play(role string) int {
	part := map[string]func() error{"holder": playHolder, "locker": playLocker, "echo": playEcho}[role]
	if part == nil {
		fmt.Fprintf(os.Stderr, "no such part to play: %q\n", role)
		return 2
	}
	if err := part(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func playHolder() error {
	timeout, err := time.ParseDuration(os.Getenv(envHolderTimeout))
	if err != nil {
		return err
	}
	conn, events, err := zk.Connect([]string{os.Getenv(envHolderAddr)}, timeout, zk.WithLogInfo(false))
	if err != nil {
		return err
	}
	if _, err := lock(context.Background(), conn, os.Getenv(envHolderDir)); err != nil {
		return err
	}
	fmt.Println("held")
	told := make(chan error, 1)
	go func() {
		_, err := bufio.NewReader(os.Stdin).ReadString('\n')
		told <- err
	}()
	for {
		select {
		case ev := <-events:
			if ev.State == zk.StateExpired {
				fmt.Println("expired")
			}
		case err := <-told:
			if err != nil {
				return err // the test has ended
			}
			conn.Close()
			fmt.Println("closed")
			return nil
		}
	}
}

type holder struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.Writer
	said  *bufio.Scanner
	gone  chan struct{}
}

// startHolder starts a holder and waits until it has the lock.
func startHolder(t testing.TB, addr, dir string, timeout time.Duration) *holder {
	t.Helper()
	self := must(os.Executable())(t)
	h := &holder{t: t, cmd: exec.Command(self), gone: make(chan struct{})}
	h.cmd.Env = append(cleanEnv(), envRole+"=holder",
		envHolderAddr+"="+addr, envHolderDir+"="+dir, envHolderTimeout+"="+timeout.String())
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log := &tail{}
	read, write, err := os.Pipe() // unlike StdoutPipe, readable after Wait
	if err != nil {
		t.Fatal(err)
	}
	h.cmd.Stdout, h.cmd.Stderr = write, log
	if h.stdin, err = h.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	check(t, h.cmd.Start())
	write.Close()
	go func() {
		h.cmd.Wait()
		close(h.gone)
	}()
	t.Cleanup(func() {
		h.kill()
		read.Close()
		if t.Failed() {
			t.Logf("holder %v, standard error:\n%s", h.cmd.ProcessState, log)
		}
	})
	h.said = bufio.NewScanner(read)
	read.SetReadDeadline(time.Now().Add(programDeadline))
	h.expect("held")
	return h
}

// expect waits for the holder's next line, which must be want.
func (h *holder) expect(want string) {
	h.t.Helper()
	if !h.said.Scan() {
		h.t.Fatalf("the holder should say %q, but: %v", want, h.said.Err())
	}
	if got := h.said.Text(); got != want {
		h.t.Fatalf("the holder should say %q, it says %q", want, got)
	}
}

// kill kills the holder with SIGKILL and waits until it has ended.
func (h *holder) kill() {
	h.cmd.Process.Kill()
	<-h.gone
}

// next waits for the lock behind the holder, in this process. It sends the time at which
// it gets the lock to the channel.
func next(t testing.TB, addr, dir string) <-chan time.Time {
	t.Helper()
	conn := connect(t, addr, 10*time.Second)
	place := must(enqueue(conn, dir))(t)
	if queue := children(t, conn, dir); len(queue) != 2 {
		t.Fatalf("%q in line, want the holder and the next", queue)
	}
	got := make(chan time.Time, 1)
	go func() {
		if err := await(context.Background(), conn, place); err != nil {
			if !strings.Contains(err.Error(), zk.ErrClosing.Error()) {
				t.Errorf("the next in line: %v", err)
			}
			return
		}
		got <- time.Now()
	}()
	return got
}

// TestSilentHolder silences a lock holder, or has it close its session, after which the next client gets the lock.
// While the holder pings, and for its session timeout after that, no other client may have the lock. Its last ping was
// sent up to a third of the timeout before it fell silent. TestExpiry checks the exact time, in virtual time.
func TestSilentHolder(t *testing.T) {
	const timeout, long, dir = 9 * time.Second, 40 * time.Second, "/lock"
	const least = timeout*2/3 - time.Second // on a busy machine, the last ping may be late
	for _, silence := range []struct {
		name        string
		timeout     time.Duration // of the session
		fall        func(*holder) error
		least, most time.Duration // until the next one has the lock; most only tells a close from the end of a session
		after       func(*testing.T, *holder)
	}{
		// The connection ends at once, but the session does not.
		{"kill -9", timeout, func(h *holder) error { h.kill(); return nil }, least, startDeadline, func(*testing.T, *holder) {}},
		// The connection stays open and silent. When the holder continues, its client must report that the session has
		// expired.
		{"SIGSTOP", timeout, func(h *holder) error { return h.cmd.Process.Signal(syscall.SIGSTOP) }, least, startDeadline, func(t *testing.T, h *holder) {
			check(t, h.cmd.Process.Signal(syscall.SIGCONT))
			h.expect("expired")
		}},
		{"close", long, func(h *holder) error {
			_, err := io.WriteString(h.stdin, "close\n")
			return err
		}, 0, long * 2 / 3, func(t *testing.T, h *holder) {
			h.expect("closed")
		}},
	} {
		t.Run(silence.name, func(t *testing.T) {
			t.Parallel()
			server := startLockkeeper(t, "--tick-time", (silence.timeout / 20).String())
			create(t, connect(t, server.addr, 10*time.Second), dir)
			h := startHolder(t, server.addr, dir, silence.timeout)
			got := next(t, server.addr, dir)
			select {
			case <-got:
				t.Fatal("the next client got the lock although the holder is alive")
			case <-time.After(timeout + time.Second):
			}
			fell := time.Now()
			check(t, silence.fall(h))
			select {
			case at := <-got:
				t.Logf("the next client has the lock %v later", at.Sub(fell))
				if at.Sub(fell) < silence.least || at.Sub(fell) > silence.most {
					t.Errorf("the lock changed hands after %v", at.Sub(fell))
				}
			case <-time.After(startDeadline):
				t.Fatalf("no client has the lock %v after the holder went silent", startDeadline)
			}
			silence.after(t, h)
		})
	}
}
