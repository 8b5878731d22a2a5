//go:build interop

package interop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// envChaos sets how long TestClusterLocks and TestClusterNetwork run.
const envChaos = "LOCKKEEPER_INTEROP_CHAOS"

const (
	chaosLockers = 30
	chaosTick    = 500 * time.Millisecond
)

// TestClusterLocks kills, terminates and stops three servers and thirty clients at
// random, while the clients increment a counter under the cluster's lock with a fencing
// token, and other clients create znodes. It checks that
//
//   - the counter equals the number of writes that Redis accepted;
//   - when a client held the lock, no znode before its own in the queue existed; no token
//     was used twice; and a create that was retried made only one znode;
//   - every acknowledged create exists, with its data and its zxid, and none that was not
//     sent; of each connection's creates a prefix exists; and no server served a client
//     that had seen a later state;
//   - the members have the same state, and their files are valid;
//   - no client waits forever, and no znode is left in the queue.
func TestClusterLocks(t *testing.T) {
	t.Parallel()
	c := newChaos(t, newEnsemble(t, 3, "--tick-time", chaosTick.String()).followed().start(), chaosLockers)
	c.strike(holderStopped) // at least once
	for end := c.began.Add(chaosLength(t, longer(15*time.Second, time.Minute))); time.Now().Before(end); {
		c.strike("")
	}
	c.end()
}

// chaosLength returns how long the test runs: length, unless envChaos is set.
func chaosLength(t *testing.T, length time.Duration) time.Duration {
	t.Helper()
	if s := os.Getenv(envChaos); s != "" {
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatalf("%s: %v", envChaos, err)
		}
	}
	return length
}

// blow is a fault to inject. The fault is over when do returns.
type blow struct {
	name string
	do   func()
}

// chaos is a cluster under load into which faults are injected.
type chaos struct {
	*ensemble
	random  *rand.Rand
	began   time.Time
	redis   *redis.Client
	lockers []*lockerProcess
	streams []*stream
	started int // number of lockers started
	blows   []blow
	struck  map[string]int
	stopped sync.WaitGroup // lockers that are stopped and will be continued
}

func newChaos(t *testing.T, e *ensemble, lockers int) *chaos {
	c := &chaos{ensemble: e, random: seeded(t), began: time.Now(), redis: startRedis(t), struck: map[string]int{}, lockers: make([]*lockerProcess, lockers)}
	setCounter(t, c.redis, 0)
	conn := connect(t, e.listen[0], 10*time.Second)
	create(t, conn, lockerDir)
	conn.Close()
	for i := range c.lockers {
		c.startLocker(i)
	}
	c.streams = startStreams(t, e.listen, c.random)
	c.blows = c.processBlows()
	return c
}

func (c *chaos) startLocker(i int) {
	c.started++
	c.lockers[i] = startLocker(c.t, fmt.Sprintf("%08d", c.started), c.addrs(), c.redis.Options().Addr)
}

// moment returns a random duration up to limit.
func (c *chaos) moment(limit time.Duration) time.Duration {
	return time.Duration(c.random.Int64N(int64(limit)))
}

// server picks a server, in half of the cases the leader.
func (c *chaos) server() int {
	if i := c.random.IntN(2 * len(c.procs)); i < len(c.procs) {
		return i
	}
	return c.leader()
}

const holderStopped = "holder SIGSTOP"

// processBlows returns the faults of processes.
func (c *chaos) processBlows() []blow {
	return []blow{
		{"kill -9", func() {
			i := c.server()
			c.kill(i)
			time.Sleep(c.moment(800 * time.Millisecond))
			c.launch(i)
		}},
		{"kill -9 of two", func() {
			i := c.server()
			j := (i + 1) % len(c.procs)
			c.kill(i)
			time.Sleep(c.moment(20 * time.Millisecond))
			c.kill(j)
			time.Sleep(c.moment(500 * time.Millisecond))
			c.launch(i)
			c.launch(j)
		}},
		{"kill -9 in a start", func() {
			i := c.server()
			c.kill(i)
			c.launch(i)
			time.Sleep(c.moment(40 * time.Millisecond))
			c.kill(i)
			c.launch(i)
		}},
		{"SIGTERM", func() {
			i := c.server()
			c.stop(i)
			time.Sleep(c.moment(800 * time.Millisecond))
			c.launch(i)
		}},
		{"SIGSTOP", func() {
			i := c.server()
			c.signal(i, syscall.SIGSTOP)
			time.Sleep(c.moment(2500 * time.Millisecond))
			c.signal(i, syscall.SIGCONT)
		}},
		{"transfer", func() {
			// This fails if there is no leader, or if the leader is stopping.
			_, err := c.cluster(c.random.IntN(len(c.procs)), "transfer")
			if err != nil {
				c.t.Log(err)
			}
		}},
		{"client kill -9", func() {
			for range 3 {
				i := c.random.IntN(len(c.lockers))
				c.lockers[i].kill()
				c.startLocker(i)
			}
		}},
		{"client SIGSTOP", func() {
			for range 3 {
				c.suspend(c.lockers[c.random.IntN(len(c.lockers))], c.moment(2*lockerSession))
			}
		}},
		{holderStopped, func() {
			// Maybe no client holds the lock now, or a dead one holds it until its session expires.
			for late := time.Now().Add(10 * time.Second); time.Now().Before(late); {
				if p := c.holder(); p != nil {
					p.cmd.Process.Signal(syscall.SIGSTOP)
					if c.holder() == p { // still during its turn
						// Inject no other fault: each new leader would extend the session.
						time.Sleep(lockerSession + 2*chaosTick + c.moment(time.Second))
						p.cmd.Process.Signal(syscall.SIGCONT)
						return
					}
					p.cmd.Process.Signal(syscall.SIGCONT)
				}
				time.Sleep(time.Millisecond)
			}
		}},
	}
}

// strike injects the fault of that name, or a random one if name is empty.
func (c *chaos) strike(name string) {
	c.t.Helper()
	b := c.blows[c.random.IntN(len(c.blows))]
	for _, named := range c.blows {
		if named.name == name {
			b = named
		}
	}
	c.struck[b.name]++
	b.do()
	if c.random.IntN(4) > 0 {
		c.await()
	}
	time.Sleep(c.moment(700 * time.Millisecond))
}

// holder returns the client that is in its turn now, or nil.
func (c *chaos) holder() *lockerProcess {
	name := c.redis.Get(context.Background(), holderKey).Val()
	for _, p := range c.lockers {
		if p.name == name {
			return p
		}
	}
	return nil
}

// suspend stops a client for a while. It does not wait until the client continues.
func (c *chaos) suspend(p *lockerProcess, long time.Duration) {
	p.cmd.Process.Signal(syscall.SIGSTOP) // an error means that it was killed
	c.stopped.Go(func() {
		time.Sleep(long)
		p.cmd.Process.Signal(syscall.SIGCONT)
	})
}

// count returns a number in Redis, or 0 if it does not exist.
func (c *chaos) count(key string) int {
	c.t.Helper()
	n, err := c.redis.Get(context.Background(), key).Int()
	if err != nil && err != redis.Nil {
		c.t.Fatal(err)
	}
	return n
}

// end waits until everything has settled, and checks the result.
func (c *chaos) end() {
	t := c.t
	t.Helper()
	// An election extends sessions, so a stopped holder may have kept its lock.
	for tries := 0; c.count(refusedKey) == 0 && tries < 10; tries++ {
		c.await()
		c.strike(holderStopped)
	}
	c.await()
	c.stopped.Wait()
	took := time.Since(c.began)
	for _, p := range c.lockers {
		p.stdin.Close()
	}
	late := time.After(programDeadline)
	for _, p := range c.lockers {
		select {
		case <-p.exited:
			if !p.cmd.ProcessState.Success() {
				t.Errorf("a client ends with %v:\n%s", p.cmd.ProcessState, p.stderr)
			}
		case <-late:
			p.cmd.Process.Signal(syscall.SIGQUIT) // it prints where it stands
			<-p.exited
			t.Fatalf("a client waits for ever:\n%s", p.stderr)
		}
	}
	turns, writes, refused := c.count(counterKey), c.count(writesKey), c.count(refusedKey)
	if refused == 0 {
		t.Error("no stale token was refused: this run shows less than it should")
	}
	if turns != writes || writes == 0 {
		t.Errorf("the counter is at %d after %d writes", turns, writes)
	}
	violations := must(c.redis.LRange(context.Background(), violationsKey, 0, -1).Result())(t)
	for _, v := range violations {
		t.Error(v)
	}
	conn := connect(t, c.listen[0], 10*time.Second)
	for deadline := time.Now().Add(startDeadline); ; time.Sleep(20 * time.Millisecond) {
		left, _, err := conn.Children(lockerDir)
		if err == nil && len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("still in line: %q, %v", left, err)
		}
	}
	conn.Close()
	sent, acked, segments := endStreams(t, c.listen[c.random.IntN(len(c.listen))], c.streams)
	c.finish()
	c.judge()
	t.Logf("%v: %v; %d lockers: %d turns, %d stale tokens refused; %d creates sent on %d connections, %d acknowledged",
		took.Round(time.Second), c.struck, c.started, writes, refused, sent, segments, acked)
}
