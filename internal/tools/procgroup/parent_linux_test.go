package procgroup

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

func init() {
	// The main goroutine stays on the main thread, so that all others are on other threads.
	if len(os.Args) > 1 && os.Args[1] == "become" {
		runtime.LockOSThread()
	}
}

// TestMain is also the three processes of a group.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "lead":
			lead()
		case "watchdog":
			os.Exit(int(Watchdog(os.Stdin)))
		case "become":
			result := make(chan error)
			go func() { result <- Become(os.Args[2:]) }()
			if err := <-result; err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			return
		}
	}
	os.Exit(m.Run())
}

// lead starts a command, kills its watchdog, and waits to be killed.
func lead() {
	cmd := exec.Command("sh", "-c", "echo $$; exec sleep 1000")
	cmd.Stdout = os.Stdout
	g, err := Start(cmd, []string{"watchdog"}, []string{"become"}, Now()+time.Hour)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	g.watchdog.Process.Kill()
	<-g.Unwatched()
	fmt.Println("no watchdog")
	<-g.Done()
}

// TestDiesWithParent: the kernel kills the command when the process that started it is
// killed, even if a thread other than the main one has executed the command.
func TestDiesWithParent(t *testing.T) {
	leader := exec.Command(self(), "lead")
	out := testkit.Must(leader.StdoutPipe())(t)
	testkit.Check(t, leader.Start())
	defer leader.Wait()
	defer leader.Process.Kill()
	pid := 0
	for lines, n := bufio.NewScanner(out), 0; n < 2; n++ { // one line from each of the two processes
		if !lines.Scan() {
			t.Fatal("a process printed nothing")
		}
		if line := lines.Text(); line != "no watchdog" {
			pid = testkit.Must(strconv.Atoi(line))(t)
		}
	}
	testkit.Check(t, leader.Process.Kill())
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if _, rest, _ := strings.Cut(string(text), ") "); err != nil || strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X") {
			return
		}
		if time.Now().After(deadline) {
			if p, err := os.FindProcess(pid); err == nil {
				p.Kill()
			}
			t.Fatal("the command goes on")
		}
	}
}
