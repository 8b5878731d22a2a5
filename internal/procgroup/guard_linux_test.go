package procgroup

import (
	"encoding/binary"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestGuardDeadlines: a deadline means the same however late the guard reads it, and one that
// comes after the deadline before it has passed changes nothing.
func TestGuardDeadlines(t *testing.T) {
	now := Now()
	for name, deadlines := range map[string][]time.Duration{
		"passed":         {now - time.Second},
		"passed by then": {now + time.Hour, now - time.Second},
		"too late":       {now + time.Hour, now - time.Second, now + time.Hour},
	} {
		ok := t.Run(name, func(t *testing.T) {
			group := exec.Command("sleep", "1000")
			group.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := group.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { group.Wait(); close(ended) }()
			defer func() { group.Process.Kill(); <-ended }()
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer write.Close()
			messages := binary.BigEndian.AppendUint64(nil, uint64(group.Process.Pid))
			for _, d := range deadlines {
				messages = binary.BigEndian.AppendUint64(messages, uint64(d))
			}
			if _, err := write.Write(messages); err != nil { // before there is a guard
				t.Fatal(err)
			}
			guard := exec.Command(self(), "guard")
			guard.Stdin = read
			if err := guard.Start(); err != nil {
				t.Fatal(err)
			}
			read.Close()
			defer guard.Wait()
			defer guard.Process.Kill()
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
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
	g, err := Start(cmd, []string{"guard"}, []string{"become"}, Now()+time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Release()
	defer g.Kill()
	g.Trust(Now() + time.Hour)
	time.Sleep(2 * guardLooks) // the guard looks at the clock, and does nothing
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
	case <-time.After(20 * time.Second):
		t.Error("the group goes on")
	}
	if _, err := Start(exec.Command("sleep", "1000"), []string{"guard"}, []string{"become"}, Now()); err == nil {
		t.Error("a command was started that is not trusted")
	}
}
