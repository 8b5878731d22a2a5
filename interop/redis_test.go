//go:build interop

package interop

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// startRedis starts Debian's redis-server on a free loopback port, keeping
// nothing on disk, and gives a client of it. Both end with the test.
func startRedis(t testing.TB) *redis.Client {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("these tests need a real Redis: %v (interop/setup.sh installs it)", err)
	}
	// A port found free can be taken by somebody else before Redis has it.
	for attempt := 1; ; attempt++ {
		client, err := tryRedis(t, program, freePort(t))
		if err == nil {
			return client
		}
		if attempt == 5 {
			t.Fatalf("redis-server: %v", err)
		}
	}
}

func tryRedis(t testing.TB, program string, port int) (*redis.Client, error) {
	output := &tail{}
	cmd := exec.Command(program, "--port", strconv.Itoa(port), "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	exited := make(chan struct{})
	go func() {
		cmd.Wait()
		close(exited)
	}()
	client := redis.NewClient(&redis.Options{
		Addr:                     fmt.Sprintf("127.0.0.1:%d", port),
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	stop := func() {
		client.Close()
		cmd.Process.Kill()
		<-exited
	}
	for deadline := time.Now().Add(startDeadline); ; {
		// Ask who answers: the port may belong to another Redis.
		info, err := client.Info(context.Background(), "server").Result()
		if err == nil && strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", cmd.Process.Pid)) {
			t.Cleanup(stop)
			return client, nil
		}
		select {
		case <-exited:
			stop()
			return nil, fmt.Errorf("%v:\n%s", cmd.ProcessState, output)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			stop()
			return nil, fmt.Errorf("no answer on port %d within %v: %v\n%s", port, startDeadline, err, output)
		}
	}
}

// freePort is a loopback port that nobody listens on at the moment.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

const counterKey = "counter"

// addOne reads the counter, adds one and writes it back, in two commands: two
// callers at a time lose an addition, so only the lock makes the sum right.
func addOne(ctx context.Context, client *redis.Client) error {
	n, err := client.Get(ctx, counterKey).Int()
	if err != nil {
		return fmt.Errorf("redis GET: %w", err)
	}
	if err := client.Set(ctx, counterKey, n+1, 0).Err(); err != nil {
		return fmt.Errorf("redis SET: %w", err)
	}
	return nil
}

func setCounter(t testing.TB, client *redis.Client, n int) {
	t.Helper()
	if err := client.Set(context.Background(), counterKey, n, 0).Err(); err != nil {
		t.Fatalf("redis SET: %v", err)
	}
}

func counter(t testing.TB, client *redis.Client) int {
	t.Helper()
	n, err := client.Get(context.Background(), counterKey).Int()
	if err != nil {
		t.Fatalf("redis GET: %v", err)
	}
	return n
}
