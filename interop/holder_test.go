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

// A holder is a lock holder in a process of its own: this test binary once more,
// with a stock client. It says "held" on standard output when it has the lock,
// and "expired" when its client learns that the session is over. A line on its
// standard input makes it close the session, which it reports with "closed".

const (
	envHolderAddr    = "LOCKKEEPER_INTEROP_HOLDER_ADDR"
	envHolderDir     = "LOCKKEEPER_INTEROP_HOLDER_DIR"
	envHolderTimeout = "LOCKKEEPER_INTEROP_HOLDER_TIMEOUT"
)

// play is main for the processes that the tests start of this binary.
func play(role string) int {
	part := map[string]func() error{"holder": playHolder, "locker": playLocker}[role]
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
				return err // the test is gone
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

// startHolder starts a holder and returns when it has the lock.
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

// expect waits for the holder's next line and fails unless it is want.
func (h *holder) expect(want string) {
	h.t.Helper()
	if !h.said.Scan() {
		h.t.Fatalf("the holder should say %q, but: %v", want, h.said.Err())
	}
	if got := h.said.Text(); got != want {
		h.t.Fatalf("the holder should say %q, it says %q", want, got)
	}
}

// kill ends the holder as kill -9 does, and returns when it is gone.
func (h *holder) kill() {
	h.cmd.Process.Kill()
	<-h.gone
}

// next queues for the lock behind the holder, in this process. The channel gets
// the moment at which it has the lock.
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

// TestSilentHolder takes the lock from a holder that went silent, and checks when
// the next in line gets it.
//
// The holder talks through a tap, so both ends are known. Let h be the moment
// when the server last heard the holder: the tap had it later than "after" and,
// but for scheduling, earlier than "before".
//
//   - Not early: the session lives for its timeout after h, so nobody may have
//     the lock before after + timeout. One millisecond is granted to servers
//     that count in whole milliseconds.
//   - Not late: the server rounds the end of the session up to a tick (1 tick)
//     and may look only once a tick (1 more). The rest is the way of the event
//     and two processors: latencySlack, and more where the server is seen to
//     answer late. How exact it is by itself TestExpiry shows in virtual time.
//
// The signal itself does not matter: what counts is the last word heard, up to a
// third of the timeout before the kill, since the client pings that often.
func TestSilentHolder(t *testing.T) {
	const latencySlack = 2 * time.Second
	for _, silence := range []struct {
		name string
		fall func(*testing.T, *holder, *tap)
		rise func(*testing.T, *holder)
	}{
		{
			// The connection ends at once, the session does not.
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
			// The connection stays open and silent. Awake again, the holder
			// must be told by its client that it has lost the lock.
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

			// While it pings, the holder keeps the lock for longer than its
			// timeout.
			select {
			case <-got:
				t.Fatal("the next in line got the lock from a holder that is well")
			case <-time.After(holderTimeout + 2*holderTick):
			}
			late := startLag(t, server.addr)
			silence.fall(t, h, wire)

			limit := time.After(startDeadline)
			var at time.Time
			select {
			case at = <-got:
			case <-limit:
				t.Fatalf("nobody has the lock %v after the holder went silent", startDeadline)
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

// startLag asks a server for a sign of life again and again until late is called,
// and tells the longest that one took, with what this process was late itself.
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

// TestClosingHolder has a holder that closes its session: the next in line gets
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
