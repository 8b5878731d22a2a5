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
	"sync"
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
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
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
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
	place, err := enqueue(conn, dir)
	if err != nil {
		t.Fatal(err)
	}
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

const (
	holderTick    = 500 * time.Millisecond
	holderTimeout = 8 * time.Second // 16 ticks, within the 2 to 20 that a server grants
)

// TestSilentHolder silences a lock holder and checks when the next client gets the lock.
//
// The holder is connected through a tap, which knows two times: the server last heard
// from the holder after "after" and, apart from scheduling delays, before "before".
//
//   - Not too early: the session lives for its timeout after the server last heard from
//     the holder, so no client may get the lock before after + timeout. One millisecond
//     is allowed for servers that count whole milliseconds.
//   - Not too late: the server rounds the end of the session up to a tick (1 tick), and
//     may check only once per tick (1 more). latencySlack allows for the event's way on
//     two processors, and more is allowed if the server is seen to answer late.
//     TestExpiry checks the exact time in virtual time.
//
// The time of the signal does not matter, only when the server last heard from the
// holder. That is up to a third of the timeout before the kill, because the client pings
// that often.
func TestSilentHolder(t *testing.T) {
	const latencySlack = 2 * time.Second
	for _, silence := range []struct {
		name string
		fall func(*testing.T, *holder, *tap)
		rise func(*testing.T, *holder)
	}{
		{
			// The connection ends at once, but the session does not.
			name: "kill -9",
			fall: func(t *testing.T, h *holder, w *tap) {
				h.kill()
				select {
				case <-w.hungUp:
				case <-time.After(startDeadline):
					t.Fatal("the killed holder's connection is still open")
				}
			},
		},
		{
			// The connection stays open and silent. When the holder continues, its client
			// must report that the session has expired.
			name: "SIGSTOP",
			fall: func(t *testing.T, h *holder, _ *tap) {
				if err := h.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			},
			rise: func(t *testing.T, h *holder) {
				if err := h.cmd.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				h.expect("expired")
			},
		},
	} {
		t.Run(silence.name, func(t *testing.T) {
			t.Parallel()
			server := startLockkeeper(t, "--tick-time", holderTick.String())
			dir := "/lock"
			create(t, connect(t, server.addr, 10*time.Second), dir)
			wire := startTap(t, server.addr)
			h := startHolder(t, wire.addr, dir, holderTimeout)
			if got := wire.negotiated(); got != holderTimeout {
				t.Fatalf("session timeout %v, asked for %v with a tick of %v", got, holderTimeout, holderTick)
			}
			got := next(t, server.addr, dir)

			// While the holder pings, it keeps the lock for longer than its timeout.
			select {
			case <-got:
				t.Fatal("the next client got the lock although the holder is alive")
			case <-time.After(holderTimeout + 2*holderTick):
			}
			late := startLag(t, server.addr)
			silence.fall(t, h, wire)

			limit := time.After(startDeadline)
			var at time.Time
			select {
			case at = <-got:
			case <-limit:
				t.Fatalf("no client has the lock %v after the holder went silent", startDeadline)
			}
			after, before := wire.lastHeard()
			earliest := after.Add(holderTimeout - time.Millisecond)
			lag := late()
			latest := before.Add(holderTimeout + 2*holderTick + latencySlack + 5*lag)
			t.Logf("last heard, then the lock %v later; session timeout %v, tick %v, an answer at most %v late", at.Sub(before), holderTimeout, holderTick, lag)
			if at.Before(earliest) {
				t.Errorf("the lock changed hands %v too early", earliest.Sub(at))
			}
			if at.After(latest) {
				t.Errorf("the lock changed hands %v too late", at.Sub(latest))
			}
			if silence.rise != nil {
				silence.rise(t, h)
			}
		})
	}
}

// startLag measures how long a server takes to answer ruok until late is called. late
// returns the longest time, including delays of this process.
func startLag(t *testing.T, addr string) (late func() time.Duration) {
	const every = 5 * time.Millisecond
	stop, most := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		var longest time.Duration
		for {
			select {
			case <-stop:
				most <- longest
				return
			default:
			}
			began := time.Now()
			time.Sleep(every)
			if _, err := fourLetterWord(addr, "ruok", rawTimeout); err != nil {
				t.Errorf("ruok: %v", err)
			}
			longest = max(longest, time.Since(began)-every)
		}
	}()
	late = sync.OnceValue(func() time.Duration { close(stop); return <-most })
	t.Cleanup(func() { late() })
	return late
}

// TestClosingHolder checks that when a holder closes its session, the next client gets
// the lock at once, long before any timeout.
func TestClosingHolder(t *testing.T) {
	addr, base := endpoint(t)
	dir := base + "/lock"
	create(t, connect(t, addr, 10*time.Second), dir)
	const timeout = 40 * time.Second
	h := startHolder(t, addr, dir, timeout)
	got := next(t, addr, dir)
	select {
	case <-got:
		t.Fatal("the next in line got a lock that is held")
	default:
	}
	told := time.Now()
	if _, err := io.WriteString(h.stdin, "close\n"); err != nil {
		t.Fatal(err)
	}
	h.expect("closed")
	const atOnce = timeout - 10*time.Second // on any machine; it takes about a millisecond
	select {
	case at := <-got:
		t.Logf("the lock changed hands %v after the holder was told to close", at.Sub(told).Round(10*time.Microsecond))
		if at.Sub(told) > atOnce {
			t.Errorf("the lock changed hands %v after the session was closed", at.Sub(told))
		}
	case <-time.After(timeout):
		t.Fatal("the next in line never got the lock")
	}
}
