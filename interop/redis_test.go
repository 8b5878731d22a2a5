//go:build interop

package interop

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// startRedis starts Debian's redis-server on a free loopback port, without files on disk,
// and returns a client. Both end with the test.
func startRedis(t testing.TB) *redis.Client {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("these tests need a real Redis: %v (interop/setup.sh installs it)", err)
	}
	port := testkit.Port(t)
	output := &tail{}
	cmd := exec.Command(program, "--port", strconv.Itoa(port), "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stdout, cmd.Stderr = output, output
	check(t, cmd.Start())
	exited := make(chan struct{})
	go func() {
		cmd.Wait()
		close(exited)
	}()
	client := redis.NewClient(&redis.Options{
		Addr:                     fmt.Sprintf("127.0.0.1:%d", port),
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() {
		client.Close()
		cmd.Process.Kill()
		<-exited
	})
	for deadline := time.Now().Add(startDeadline); ; {
		// Check which process answers: the port may belong to another Redis.
		info, err := client.Info(context.Background(), "server").Result()
		if err == nil && strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", cmd.Process.Pid)) {
			return client
		}
		select {
		case <-exited:
			t.Fatalf("redis-server: %v:\n%s", cmd.ProcessState, output)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("redis-server: no answer on port %d within %v: %v\n%s", port, startDeadline, err, output)
		}
	}
}

const counterKey = "counter"

// addOne increments the counter with two commands, a read and a write. Concurrent calls
// would lose an increment, so the sum is correct only if the lock works.
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
