package procgroup

import (
	"encoding/binary"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestWatchdogDeadlines: a deadline means the same however late the watchdog reads it, and one that
// comes after the deadline before it has passed changes nothing.
func TestWatchdogDeadlines(t *testing.T) {
	now := Now()
	for name, deadlines := range map[string][]time.Duration{
		"passed":         {now - time.Second},
		"passed by then": {now + time.Hour, now - time.Second},
		"too late":       {now + time.Hour, now - time.Second, now + time.Hour},
	} {
		ok := t.Run(name, func(t *testing.T) {
			group := exec.Command("sleep", "1000")
			group.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			testkit.Check(t, group.Start())
			ended := make(chan struct{})
			go func() { group.Wait(); close(ended) }()
			defer func() { group.Process.Kill(); <-ended }()
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer write.Close()
			messages := binary.BigEndian.AppendUint64(nil, uint64(group.Process.Pid))
			for _, d := range append([]time.Duration{now}, deadlines...) {
				messages = binary.BigEndian.AppendUint64(messages, uint64(d))
			}
			if _, err := write.Write(messages); err != nil { // before there is a watchdog
				t.Fatal(err)
			}
			watchdog := exec.Command(self(), "watchdog")
			watchdog.Stdin = read
			testkit.Check(t, watchdog.Start())
			read.Close()
			defer watchdog.Wait()
			defer watchdog.Process.Kill()
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Error("the group goes on")
			}
		})
		if !ok {
			return // each would take as long
		}
	}
}

// TestTrust: a group goes on while it is trusted, and is killed when it is not any more.
func TestTrust(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	g := testkit.Must(Start(cmd, []string{"watchdog"}, []string{"become"}, Now()+time.Hour))(t)
	defer g.Release()
	defer g.Kill()
	g.Trust(Now() + time.Hour)
	time.Sleep(2 * watchdogLooks) // the watchdog looks at the clock, and does nothing
	select {
	case <-g.Done():
		t.Fatalf("it has ended with exit code %d", g.ExitCode())
	default:
	}
	g.Trust(Now())
	select {
	case <-g.Done():
		if code := g.ExitCode(); code != 128+9 {
			t.Errorf("exit code %d", code)
		}
	case <-time.After(time.Minute):
		t.Error("the group goes on")
	}
	// On a busy machine the watchdog may not have run for a while before it was told.
	if f := g.Release(); f != Unheard && f != Paused {
		t.Errorf("the watchdog's fate is %v", f)
	}
	if _, err := Start(exec.Command("sleep", "1000"), []string{"watchdog"}, []string{"become"}, Now()); err == nil {
		t.Error("a command was started that is not trusted")
	}
}

// startWatchdoged starts a command that is trusted for a while. At the end of the test it and its
// watchdog are killed.
func startWatchdoged(t *testing.T, trusted time.Duration) *Group {
	t.Helper()
	g := testkit.Must(Start(exec.Command("sleep", "1000"), []string{"watchdog"}, []string{"become"}, Now()+trusted))(t)
	t.Cleanup(func() {
		g.Kill()
		g.watchdog.Process.Kill()
		g.Release()
	})
	return g
}

// soon waits for the end of something.
func soon(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("no end of %s", what)
	}
}

// TestReleaseStoppedWatchdog: Release does not wait for a watchdog that is stopped.
func TestReleaseStoppedWatchdog(t *testing.T) {
	g := startWatchdoged(t, time.Hour)
	g.watchdog.Process.Signal(syscall.SIGSTOP)
	g.Kill()
	soon(t, "the command", g.Done())
	released := make(chan struct{})
	go func() {
		defer close(released)
		if f := g.Release(); f != Dismissed {
			t.Errorf("the watchdog's fate is %v", f)
		}
	}()
	soon(t, "Release", released)
}

// TestWatchdogDies: the process that started a watchdog learns that it has ended.
func TestWatchdogDies(t *testing.T) {
	g := startWatchdoged(t, time.Hour)
	select {
	case <-g.Unwatched():
		t.Fatal("the watchdog has ended")
	default:
	}
	g.watchdog.Process.Kill()
	soon(t, "the watchdog", g.Unwatched())
	g.Trust(Now() + time.Hour) // does not fail
	g.Kill()
	soon(t, "the command", g.Done())
	if f := g.Release(); f != Died {
		t.Errorf("the watchdog's fate is %v", f)
	}
}

// TestWatchdogPaused: a watchdog that was stopped when the time of trust was over kills the group when
// it goes on, whatever it was told meanwhile, and knows why. On a busy machine, one in 60 takes itself for not paused
// (the reason is not known), so it may try again.
func TestWatchdogPaused(t *testing.T) {
	const trusted = 2 * time.Second
	var f Fate
	for range 3 {
		g := startWatchdoged(t, trusted)
		until := Now() + trusted // at the latest
		g.watchdog.Process.Signal(syscall.SIGSTOP)
		g.Trust(Now() + time.Hour)
		time.Sleep(until - Now())
		g.watchdog.Process.Signal(syscall.SIGCONT)
		soon(t, "the command", g.Done())
		if f = g.Release(); f == Paused {
			return
		}
	}
	t.Errorf("the watchdog's fate is %v", f)
}
