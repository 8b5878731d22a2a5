//go:build unix

package admin_test

import (
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// BenchmarkLockMeter lets clients lock and unlock without end, as in the workloads lock-1 and
// lock-32 of lockkeeper bench, half of the time while a Collector measures the locks, and half of
// the time while one does not. The turns take 250 ms, end with a scrape, and alternate, so that what
// else the machine does counts for both. It reports what measuring adds to the time of a lock and to the CPU time of the
// process, clients included, in percent and with the standard error of that, and the rate without
// it. An iteration has 40 turns and takes 10 s.
func BenchmarkLockMeter(b *testing.B) {
	for _, clients := range []int{1, 32} {
		for _, over := range []string{"memory", "tcp"} {
			b.Run(fmt.Sprintf("lock-%d/%s", clients, over), func(b *testing.B) { benchmarkLockMeter(b, clients, over == "tcp") })
		}
	}
}

const turn = 250 * time.Millisecond

// cost is what some locks have cost.
type cost struct {
	locks     int64
	wall, cpu time.Duration
}

func (c *cost) add(x cost) { c.locks, c.wall, c.cpu = c.locks+x.locks, c.wall+x.wall, c.cpu+x.cpu }

// than returns how much more a lock costs than in x, in percent.
func (c *cost) than(x *cost) (wall, cpu float64) {
	of := float64(x.locks) / float64(c.locks)
	return 100 * (float64(c.wall)/float64(x.wall)*of - 1), 100 * (float64(c.cpu)/float64(x.cpu)*of - 1)
}

func benchmarkLockMeter(b *testing.B, clients int, tcp bool) {
	s := open(b, lockkeeper.Config{ClientAddr: "127.0.0.1:0"})
	dial := inMemory(s)
	if tcp {
		dial = func() (net.Conn, error) { return net.Dial("tcp", s.Addr().String()) }
	}
	var locks atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	first := rawtest.Connect(b, dial)
	must(first.Create("/locks", nil, 0))(b)
	for i := range clients {
		c := first
		if i > 0 {
			c = rawtest.Connect(b, dial)
		}
		dir := fmt.Sprintf("/locks/%d", i)
		must(c.Create(dir, nil, 0))(b)
		wg.Go(func() {
			for !stop.Load() {
				if err := lockOnce(c, dir); err != nil {
					b.Error(err)
					return
				}
				locks.Add(1)
			}
		})
	}
	measure := func(on bool) (x cost) {
		c := admin.NewCollector(s)
		r := prometheus.NewRegistry()
		r.MustRegister(c)
		if !on {
			c.Close()
		}
		must(r.Gather())(b)
		n, cpu, began := locks.Load(), processTime(), time.Now()
		time.Sleep(turn)
		must(r.Gather())(b) // and what is not measured yet
		x = cost{locks.Load() - n, time.Since(began), processTime() - cpu}
		c.Close()
		return x
	}
	var off, on cost
	var wall, cpu []float64 // of the iterations
	b.ResetTimer()
	for range b.N {
		var with, without cost
		for i := range 40 {
			if i%4 == 1 || i%4 == 2 {
				with.add(measure(true))
			} else {
				without.add(measure(false))
			}
		}
		w, c := with.than(&without)
		wall, cpu = append(wall, w), append(cpu, c)
		off.add(without)
		on.add(with)
	}
	b.StopTimer()
	stop.Store(true)
	wg.Wait()
	moreWall, moreCPU := on.than(&off)
	b.ReportMetric(moreWall, "%time")
	b.ReportMetric(standardError(wall), "±%time")
	b.ReportMetric(moreCPU, "%CPU")
	b.ReportMetric(standardError(cpu), "±%CPU")
	b.ReportMetric(float64(off.locks)/off.wall.Seconds(), "locks/s")
	b.ReportMetric(float64(off.cpu.Microseconds())/float64(off.locks), "µs-CPU/lock")
}

// standardError returns that of the mean.
func standardError(all []float64) float64 {
	sum, squares, n := 0.0, 0.0, float64(len(all))
	for _, x := range all {
		sum += x
		squares += x * x
	}
	return math.Sqrt(max(0, squares-sum*sum/n) / n / max(1, n-1))
}

// lockOnce takes a lock that is free and gives it back.
func lockOnce(c *rawclient.Client, dir string) error {
	at, err := c.Create(dir+"/_c_0123456789abcdef0123456789abcdef-lock-", nil, proto.FlagEphemeral|proto.FlagSequential)
	if err != nil {
		return err
	}
	if _, err := c.Call(proto.OpGetChildren, &proto.PathWatch{Path: dir}, nil); err != nil {
		return err
	}
	return c.Delete(at)
}

func processTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
