package lockkeepertest_test

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// cluster runs a test in virtual time with a cluster of three.
func cluster(t *testing.T, f func(t *testing.T, c *lockkeepertest.Cluster)) {
	synctest.Test(t, func(t *testing.T) { f(t, lockkeepertest.StartCluster(t, 3)) })
}

// TestOneWayLinks: a leader that the others do not hear is replaced, though it hears them.
func TestOneWayLinks(t *testing.T) {
	cluster(t, func(t *testing.T, c *lockkeepertest.Cluster) {
		lead := c.Leader()
		for i := 1; i <= 3; i++ {
			if i != lead {
				c.SetLink(lead, i, lockkeepertest.Link{Cut: true})
			}
		}
		time.Sleep(10 * time.Second)
		other := c.Server(lead%3+1).Connect(t, 20*time.Second)
		check(t, create(other, "/a"))
		if now := c.Leader(); now == lead {
			t.Error("the old leader still leads")
		}
		c.Heal()
		old := c.Server(lead).Connect(t, 20*time.Second)
		must(old.Sync("/"))(t)
		if !exists(t, old, "/a") {
			t.Error("the old leader does not know of the write")
		}
	})
}

// duration returns how long a write takes.
func duration(t *testing.T, conn *zk.Conn) time.Duration {
	t.Helper()
	began := time.Now()
	must(conn.Set("/", nil, -1))(t)
	return time.Since(began)
}

func TestLossyLinks(t *testing.T) {
	cluster(t, func(t *testing.T, c *lockkeepertest.Cluster) {
		lead := c.Leader()
		conn := c.Server(lead).Connect(t, time.Minute)
		if d := duration(t, conn); d > 10*time.Millisecond {
			t.Errorf("without a fault: %v", d)
		}
		for i := 1; i <= 3; i++ {
			if i != lead {
				c.SetLink(lead, i, lockkeepertest.Link{Loss: 0.3}) // a write is late if it waits on the way to both followers
			}
		}
		longest := time.Duration(0)
		for range 200 {
			longest = max(longest, duration(t, conn))
			time.Sleep(time.Second)
		}
		if longest < 20*time.Millisecond {
			t.Errorf("with losses, the longest of 200 writes: %v", longest)
		}
		c.Heal()
		time.Sleep(time.Minute) // what was sent before arrives
		if d := duration(t, conn); d > 10*time.Millisecond {
			t.Errorf("after the faults: %v", d)
		}
	})
}

// TestFullDisk: the member fails, the others continue, and it can be restarted.
func TestFullDisk(t *testing.T) {
	cluster(t, func(t *testing.T, c *lockkeepertest.Cluster) {
		full := c.Leader()
		c.Server(full).SetDisk(lockkeepertest.Disk{Full: true})
		conn := c.Server(full%3+1).Connect(t, time.Minute)
		if err := create(conn, "/a"); err != nil {
			exists(t, conn, "/") // the write broke the leader
			check(t, create(conn, "/b"))
		}
		// The others may have acknowledged the write before the leader's own disk refused it.
		for began := time.Now(); c.Leader() == full; time.Sleep(10 * time.Millisecond) {
			if time.Since(began) > 10*time.Second {
				t.Fatal("a leader with a full disk still leads")
			}
		}
		c.Server(full).Kill()
		c.Server(full).SetDisk(lockkeepertest.Disk{})
		c.Server(full).Restart()
		again := c.Server(full).Connect(t, time.Minute)
		must(again.Sync("/"))(t)
		if got, want := c.Server(full).Tree(), c.Server(c.Leader()).Tree(); got != want || want == "" {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestFullDiskOfIdleLeader: a leader that has failed is replaced although nothing is written any more.
func TestFullDiskOfIdleLeader(t *testing.T) {
	cluster(t, func(t *testing.T, c *lockkeepertest.Cluster) {
		full := c.Leader()
		conn := c.Server(full%3+1).Connect(t, time.Minute)
		c.Server(full).SetDisk(lockkeepertest.Disk{Delay: 100 * time.Millisecond})
		if err := create(conn, "/a"); err != nil { // the others have it before the leader's disk does
			t.Fatal(err)
		}
		c.Server(full).SetDisk(lockkeepertest.Disk{Full: true})
		for began := time.Now(); c.Leader() == full; time.Sleep(10 * time.Millisecond) {
			if time.Since(began) > 10*time.Second {
				t.Fatalf("a leader that has failed still leads: %v", c.Server(full).Err())
			}
		}
		if err := create(conn, "/b"); err != nil {
			t.Error(err)
		}
	})
}

// TestFailed: a server whose disk was full says so at once, instead of for a minute that it does not
// answer, and a cluster restores a state without such a member.
func TestFailed(t *testing.T) {
	cluster(t, func(t *testing.T, c *lockkeepertest.Cluster) {
		fake := &failures{TB: t}
		fake.run(func() {
			s := lockkeepertest.Start(fake)
			s.SetDisk(lockkeepertest.Disk{Full: true})
			began := time.Now()
			for range 2 {
				failed := make(chan struct{})
				go func() { // Fatalf ends the goroutine
					defer close(failed)
					s.AddTree("/a")
				}()
				<-failed
			}
			if d := time.Since(began); d > time.Second || !errors.Is(s.Err(), syscall.ENOSPC) {
				t.Errorf("after %v: %v", d, s.Err())
			}
			s.Kill()
			s.SetDisk(lockkeepertest.Disk{})
			s.Restart()
			if err := s.Err(); err != nil {
				t.Errorf("after it has started again: %v", err)
			}
		})
		if len(fake.errors) < 2 || !strings.Contains(fake.errors[1], "the server has failed: ") || !strings.Contains(fake.errors[1], syscall.ENOSPC.Error()) {
			t.Errorf("%q", fake.errors)
		}
		begin := c.Snapshot()
		full := c.Leader()%3 + 1
		c.Server(full).SetDisk(lockkeepertest.Disk{Full: true})
		check(t, create(c.Server(c.Leader()).Connect(t, time.Minute), "/a"))
		for end := time.Now().Add(time.Minute); c.Server(full).Err() == nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("a member with a full disk goes on")
			}
		}
		c.Restore(begin)
		if tree := c.Server(c.Leader()).Tree(); tree != "" {
			t.Errorf("not restored: %q", tree)
		}
	})
}

// TestPause pauses the leader, to which the holder of a lock is connected. The connection
// stays, another member leads, and the holder loses its lock when its session expires,
// which it learns when the member is resumed.
func TestPause(t *testing.T) {
	cluster(t, func(t *testing.T, c *lockkeepertest.Cluster) {
		lead := c.Leader()
		nc := must(c.Server(lead).Dial("", "", time.Minute))(t)
		dialed := false
		holder, _, err := zk.Connect([]string{"127.0.0.1:1"}, 20*time.Second, zk.WithLogger(logger{t}), zk.WithDialer(zk.Dialer(func(network, address string, timeout time.Duration) (conn net.Conn, err error) {
			if dialed {
				return c.Dial(network, address, timeout)
			}
			dialed = true
			return nc, nil
		})))
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Close()
		held := zk.NewLock(holder, "/lock", zk.WorldACL(zk.PermAll))
		check(t, held.Lock())
		other := c.Server(lead%3+1).Connect(t, time.Minute)
		next := lock(other, "/lock")
		witness := c.Server(lead%3 + 1)
		witness.WaitWaiters("/lock", 1)

		began := time.Now()
		c.Server(lead).Pause()
		witness.WaitHeld("/lock", other.SessionID())
		if d := time.Since(began); d < 20*time.Second/3 || d > 25*time.Second {
			t.Errorf("the session expired after %v", d)
		}
		if now := c.Leader(); now == lead {
			t.Error("no other member leads")
		}
		if l := c.Server(lead).Locks(); len(l) != 1 || l[0].Holder == other.SessionID() {
			t.Errorf("the paused member sees %v", l)
		}
		c.Server(lead).Resume()
		c.Server(lead).WaitHeld("/lock", other.SessionID())
		<-next
		settle(holder)
	})
}

// TestPausedConnections: they stay as they are, also when the member closes them, until it
// is resumed or stopped.
func TestPausedConnections(t *testing.T) {
	for _, end := range []string{"resume", "kill"} {
		t.Run(end, func(t *testing.T) {
			cluster(t, func(t *testing.T, c *lockkeepertest.Cluster) {
				lead := c.Leader()
				nc := must(c.Server(lead).Dial("", "", time.Minute))(t)
				defer nc.Close()
				read := make(chan error, 1)
				go func() {
					_, err := nc.Read(make([]byte, 1))
					read <- err
				}()
				c.Server(lead).Pause()
				time.Sleep(2 * time.Minute) // longer than the time for the handshake
				select {
				case err := <-read:
					t.Fatalf("the connection ended: %v", err)
				default:
				}
				switch end {
				case "resume":
					c.Server(lead).Resume()
				case "kill":
					c.Server(lead).Kill()
				}
				if err := <-read; err == nil {
					t.Error("the connection did not end")
				}
				if end != "resume" {
					c.Server(lead).Restart()
				}
				c.Server(lead).Connect(t, time.Minute)
			})
		})
	}
}

// TestExpirePaused: a server that can write nothing cannot end a session, and says so in time.
func TestExpirePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.Start(t)
		conn := s.Connect(t, 10*time.Minute)
		id := conn.SessionID()
		s.Pause()
		began := time.Now()
		err := s.ExpireSession(id)
		if d := time.Since(began); !errors.Is(err, lockkeeper.ErrUnknownOutcome) || d != time.Minute {
			t.Errorf("after %v: %v", d, err)
		}
		s.Resume()
		if err := s.ExpireSession(id); err != nil && !errors.Is(err, lockkeeper.ErrNoSession) {
			t.Errorf("when it is resumed: %v", err)
		}
	})
}

func TestSetClock(t *testing.T) {
	cluster(t, func(t *testing.T, c *lockkeepertest.Cluster) {
		lead := c.Leader()
		conn := c.Connect(t, time.Minute)
		for _, skew := range []time.Duration{time.Hour, -time.Minute, 0} {
			c.Server(lead).SetClock(skew)
			c.Server(lead%3 + 1).SetClock(5 * time.Hour) // a follower's clock does not matter
			stat := must(conn.Set("/", nil, -1))(t)
			if off := time.UnixMilli(stat.Mtime).Sub(time.Now().Add(skew)); off.Abs() > 20*time.Millisecond {
				t.Errorf("with a skew of %v: %v too late", skew, off)
			}
		}
	})
}

func TestStepDown(t *testing.T) {
	cluster(t, func(t *testing.T, c *lockkeepertest.Cluster) {
		for range 3 {
			old := c.Leader()
			if now := c.StepDown(); now == old || now != c.Leader() {
				t.Errorf("member %d led, then %d", old, now)
			}
		}
	})
}

// TestStopWhileOthersAsk: a server that takes long to stop does not block those that ask
// for it.
func TestStopWhileOthersAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &sleepsOnce{Handler: slog.DiscardHandler}
		slow.slept.Store(true)
		s := lockkeepertest.Start(t, lockkeepertest.WithConfig(func(cfg *lockkeeper.Config) { cfg.Logger = slog.New(slow) }))
		s.Connect(t, time.Minute)
		go func() {
			for range 100 {
				s.Dial("", "", time.Millisecond)
				time.Sleep(time.Millisecond)
			}
		}()
		slow.slept.Store(false)
		began := time.Now()
		s.Kill() // logs that the connection ends
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("it took %v", took)
		}
		s.Restart()
	})
}

func TestImpossibleConditions(t *testing.T) {
	for want, f := range map[string]func(c *lockkeepertest.Cluster){
		"impossible link": func(c *lockkeepertest.Cluster) { c.SetLink(1, 1, lockkeepertest.Link{Loss: 1}) },
		"impossible disk": func(c *lockkeepertest.Cluster) { c.Server(1).SetDisk(lockkeepertest.Disk{Delay: -1}) },
	} {
		fake := &failures{TB: t}
		fake.run(func() {
			f(lockkeepertest.StartCluster(fake, 1))
			t.Errorf("%s was possible", want)
		})
		if len(fake.errors) != 1 || !strings.Contains(fake.errors[0], want) {
			t.Errorf("got %q, want %q", fake.errors, want)
		}
	}
}
