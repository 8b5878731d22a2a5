package zkshell_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/zkshell"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// terminal is a terminal of the test's own: what is written to it is typed.
type terminal struct {
	*os.File
	tty *os.File // the side of the program

	mu    sync.Mutex
	shown strings.Builder
	more  chan struct{} // has a value when something was shown
}

func newTerminal(t *testing.T) *terminal {
	master := testkit.Must(os.OpenFile("/dev/ptmx", os.O_RDWR, 0))(t)
	t.Cleanup(func() { master.Close() })
	number, unlock := 0, 0
	control(t, master, func(fd int) error { return unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, unlock) })
	control(t, master, func(fd int) (err error) { number, err = unix.IoctlGetInt(fd, unix.TIOCGPTN); return err })
	tty := testkit.Must(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	w := &terminal{File: master, tty: tty, more: make(chan struct{}, 1)}
	go func() { // until the terminal is closed
		buf := make([]byte, 1000)
		for {
			n, err := master.Read(buf)
			w.mu.Lock()
			w.shown.Write(buf[:n])
			w.mu.Unlock()
			select {
			case w.more <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	return w
}

func control(t *testing.T, f *os.File, do func(fd int) error) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if e := raw.Control(func(fd uintptr) { err = do(int(fd)) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
}

// await waits until the text is shown, and forgets everything up to it.
func (w *terminal) await(t *testing.T, text string) {
	t.Helper()
	for limit := time.After(time.Minute); ; {
		w.mu.Lock()
		shown := w.shown.String()
		if _, rest, ok := strings.Cut(shown, text); ok {
			w.shown.Reset()
			w.shown.WriteString(rest)
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		select {
		case <-w.more:
		case <-limit:
			t.Fatalf("%q is not shown, but %q", text, shown)
		}
	}
}

func (w *terminal) typed(t *testing.T, keys string) {
	t.Helper()
	testkit.Must(w.WriteString(keys))(t)
}

// TestTerminal uses the shell on a terminal: the prompt, completion, an event while a line
// is edited, the history, and the end.
func TestTerminal(t *testing.T) {
	server := lockkeepertest.Start(t)
	once(t, server, 0, "create", "/application", "\x1b[31mred")
	w := newTerminal(t)
	o := newShell(server, func(cfg *zkshell.Config) { cfg.Visible = true })
	exit := make(chan int, 1)
	go func() {
		code, err := o.shell.Interactive(context.Background(), w.tty, w.tty)
		if err != nil {
			t.Error(err)
		}
		exit <- code
	}()
	w.await(t, "[zk: server:2181(")
	w.typed(t, "ls -w /\r")
	w.await(t, "[application, zookeeper]")
	w.await(t, "(CONNECTED) 1] ")
	w.typed(t, "getA\t") // ambiguous
	w.await(t, "getAcl  getAllChildrenNumber")
	w.typed(t, "c\t /ap\t")
	w.await(t, "/application")
	once(t, server, 0, "create", "/other") // above the line
	w.await(t, "type:NodeChildrenChanged path:/ ")
	w.typed(t, "\r")
	w.await(t, "'world,'anyone")
	w.typed(t, "get /app\t\r")
	w.await(t, "\ufffd[31mred") // not an escape sequence
	w.await(t, "(CONNECTED) 3] ")
	w.typed(t, "\x1b[A\x1b[A\r") // twice up
	w.await(t, "'world,'anyone")
	w.typed(t, "get /none\r")
	w.await(t, "Node does not exist: /none")
	w.await(t, "5] ")
	w.typed(t, "\x04")
	if code := <-exit; code != 1 {
		t.Errorf("exit code %d, not that of the last command", code)
	}
	w.tty.Close()
}
