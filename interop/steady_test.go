//go:build interop

package interop

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/tools/stock"
)

// envSteady sets how often TestClusterSteady and TestClusterCutOff repeat each scenario.
// If it is set, scenarios are also longer, and run with three ZooKeeper servers, too.
const envSteady = "LOCKKEEPER_INTEROP_STEADY"

const (
	defaultSteady = 2
	steadyShort   = 5 * time.Second // length of the scenarios that last for a certain time
	steadyLong    = time.Minute
	steadyClients = 16
	// A client closes its connection after two thirds of its session timeout without a
	// reply. That must be much longer than servers are stopped.
	steadySession = 10 * time.Second
	steadyPause   = 20 * time.Millisecond // between two requests of a client
	// How long the clients continue after a stop, because a server may close a connection
	// only some time after it continues.
	steadyRest = time.Second
)

// steadyTimes returns how often to repeat each scenario, and whether to test ZooKeeper, too.
func steadyTimes(t *testing.T) (times int, beside bool) {
	t.Helper()
	s := os.Getenv(envSteady)
	if s == "" {
		return defaultSteady, false
	}
	times, err := strconv.Atoi(s)
	if err != nil || times < 1 {
		t.Fatalf("%s=%s is not a number above 0", envSteady, s)
	}
	return times, true
}

// TestClusterSteady stops servers of a cluster for up to 1.5 s, keeps their machine busy,
// and puts load on them, with default settings. No client may lose its connection. With
// LOCKKEEPER_INTEROP_STEADY it does the same with three ZooKeeper servers and prints a
// table of both. It does not check times.
func TestClusterSteady(t *testing.T) {
	times, beside := steadyTimes(t)
	length := steadyShort
	if beside {
		length = steadyLong
	}
	stops := func(servers func(lead, round int) []int, long time.Duration) func(*steadyRun) {
		return func(r *steadyRun) {
			r.startClients()
			for round := range times {
				r.stop(servers(r.c.leader(), round), long)
			}
		}
	}
	all := func(int, int) []int { return []int{0, 1, 2} }
	followers := func(lead, _ int) []int { return []int{(lead + 1) % 3, (lead + 2) % 3} }
	next := func(lead, round int) []int { return []int{(lead + round) % 3} }

	subjects := []struct {
		name  string
		start func(t *testing.T) trio
	}{
		{"lockkeeper", func(t *testing.T) trio { return startEnsemble(t, 3) }},
		{"ZooKeeper", func(t *testing.T) trio { return startZooEnsemble(t, zk39, 3) }},
	}
	if !beside {
		subjects = subjects[:1]
	}
	rows := []string{"| | lockkeeper | ZooKeeper |", "|---|---|---|"}
	for _, scenario := range []struct {
		name string
		do   func(*steadyRun)
	}{
		{fmt.Sprintf("all three servers stopped for 700 ms, %d times", times), stops(all, 700*time.Millisecond)},
		{fmt.Sprintf("all three servers stopped for 1.5 s, %d times", times), stops(all, 1500*time.Millisecond)},
		{fmt.Sprintf("both followers stopped for 700 ms, %d times", times), stops(followers, 700*time.Millisecond)},
		{fmt.Sprintf("one server after the other stopped for 700 ms, %d times", times), stops(next, 700*time.Millisecond)},
		{fmt.Sprintf("%v beside eight busy loops and three writers that sync the disk", length), func(r *steadyRun) {
			r.startClients()
			r.besideWork(length)
		}},
		{fmt.Sprintf("%v of creates, 64 connections with 16 under way each", length), func(r *steadyRun) { r.creates(length) }},
	} {
		t.Run(scenario.name, func(t *testing.T) {
			row := "| " + scenario.name
			for _, s := range subjects {
				t.Run(s.name, func(t *testing.T) {
					r := &steadyRun{t: t, c: s.start(t)}
					if beside { // let the JVM warm up before the measurement
						if _, err := loadCreates(strings.Join(r.c.addresses(), ","), 16, 16, 50_000); err != nil {
							t.Fatal(err)
						}
					}
					scenario.do(r)
					r.end()
					t.Log(r)
					row += " | " + r.String()
					e, ours := r.c.(*ensemble)
					if !ours {
						return
					}
					if r.lost > 0 || r.expired > 0 {
						t.Fatalf("%d connections were lost and %d sessions ended, want none", r.lost, r.expired)
					}
					e.finish()
				})
			}
			rows = append(rows, row+" |")
		})
	}
	if beside {
		t.Logf("\n%s", strings.Join(rows, "\n"))
	}
}

// steadyRun is one scenario with one cluster, and its measurements.
type steadyRun struct {
	t       *testing.T
	c       trio
	clients []*steadyClient
	epoch   int64         // at the start of the measurement
	late    time.Duration // the most by which a stop was longer than intended

	mu      sync.Mutex
	began   time.Time
	ended   time.Time
	acked   time.Time     // when the last write was acknowledged
	gap     time.Duration // the longest time without an acknowledged write of any client
	writes  int           // number of acknowledged writes
	lost    int           // number of connections with a session that ended
	failed  int           // number of requests without a reply
	expired int           // number of expired sessions
	terms   int64         // number of new terms: elections, including those without a winner
}

func (r *steadyRun) String() string {
	text := fmt.Sprintf("connections lost: %d, longest without a write: %v, new terms: %d, writes/s: %.0f",
		r.lost, r.gap.Round(time.Millisecond), r.terms, float64(r.writes)/r.ended.Sub(r.began).Seconds())
	if len(r.clients) > 0 { // the load does not count these
		text += fmt.Sprintf(", requests failed: %d, sessions ended: %d", r.failed, r.expired)
	}
	return text
}

// begin starts the measurement.
func (r *steadyRun) begin() {
	r.t.Helper()
	r.epoch = r.currentEpoch()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began = time.Now()
	r.acked = r.began
	r.gap, r.writes, r.lost, r.failed, r.expired = 0, 0, 0, 0, 0
}

// end ends the measurement and the clients.
func (r *steadyRun) end() {
	r.t.Helper()
	r.mu.Lock()
	r.ended = time.Now()
	r.gap = max(r.gap, r.ended.Sub(r.acked))
	r.mu.Unlock()
	r.terms = r.currentEpoch() - r.epoch
	var ends sync.WaitGroup
	for _, c := range r.clients {
		ends.Go(c.end)
	}
	ends.Wait()
	if r.late > 0 {
		r.t.Logf("the servers were stopped for up to %v longer than intended", r.late)
	}
}

// currentEpoch returns the epoch of the leader's zxids, which is the term in lockkeeper.
func (r *steadyRun) currentEpoch() int64 {
	r.t.Helper()
	return serverZxid(r.t, r.c.addresses()[r.c.leader()]) >> 32
}

// acknowledged counts a write.
func (r *steadyRun) acknowledged() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.gap = max(r.gap, now.Sub(r.acked))
	r.acked = now
	r.writes++
}

// count adds 1 to one of the run's counters.
func (r *steadyRun) count(counter *int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*counter++
}

// startClients starts the clients, the same number at each server, and starts the
// measurement when all of them write.
func (r *steadyRun) startClients() {
	r.t.Helper()
	addrs := r.c.addresses()
	for i := range steadyClients {
		r.clients = append(r.clients, startSteadyClient(r, addrs[i%len(addrs)], fmt.Sprintf("/steady-%d", i)))
	}
	r.settle()
	r.begin()
}

// settle waits until every client has an acknowledged write that it started after this
// call, and then a moment longer.
func (r *steadyRun) settle() {
	r.t.Helper()
	deadline := time.Now().Add(startDeadline)
	want := make([]int64, len(r.clients))
	for i, c := range r.clients {
		want[i] = c.writes.Load() + 2 // the first one may have started before
	}
	for i, c := range r.clients {
		for c.writes.Load() < want[i] {
			if time.Now().After(deadline) {
				r.t.Fatalf("no write of client %d, at %s, is acknowledged within %v", i, c.addr, startDeadline)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	time.Sleep(steadyRest)
}

// stop stops servers at the same time, lets them continue at the same time, and waits
// until all clients write again.
func (r *steadyRun) stop(servers []int, long time.Duration) {
	r.t.Helper()
	r.mu.Lock()
	lost := r.lost
	r.mu.Unlock()
	began := time.Now()
	for _, i := range servers {
		r.c.signal(i, syscall.SIGSTOP)
	}
	time.Sleep(long)
	for _, i := range servers {
		r.c.signal(i, syscall.SIGCONT)
	}
	took := time.Since(began)
	r.late = max(r.late, took-long)
	r.settle()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost > lost {
		r.t.Logf("stopped for %v: %d connections lost", took.Round(time.Millisecond), r.lost-lost)
	}
}

// besideWork keeps the processors and the disk of the cluster busy.
func (r *steadyRun) besideWork(length time.Duration) {
	r.t.Helper()
	const loops, syncers = 8, 3
	var stops []func()
	stop := sync.OnceFunc(func() {
		for _, s := range stops {
			s()
		}
	})
	r.t.Cleanup(stop)
	for range loops {
		loop := exec.Command("sh", "-c", "while :; do :; done")
		loop.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := loop.Start(); err != nil {
			r.t.Fatal(err)
		}
		stops = append(stops, func() {
			loop.Process.Kill()
			loop.Wait()
		})
	}
	done := make(chan struct{})
	var writers sync.WaitGroup
	stops = append(stops, func() {
		close(done)
		writers.Wait()
	})
	dir := r.t.TempDir() // on the disk of the servers' directories
	var synced atomic.Int64
	for i := range syncers {
		f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			r.t.Fatal(err)
		}
		writers.Go(func() {
			defer f.Close()
			block := make([]byte, 256<<10)
			for n := 1; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				// A file that grows and shrinks keeps the file system's journal busy, too.
				_, err := f.Write(block)
				if n%256 == 0 {
					_, seek := f.Seek(0, io.SeekStart)
					err = errors.Join(err, seek, f.Truncate(0))
				}
				if err = errors.Join(err, f.Sync()); err != nil {
					r.t.Error(err)
					return
				}
				synced.Add(1)
			}
		})
	}
	time.Sleep(length)
	stop()
	r.t.Logf("beside %.0f syncs of 256 KiB a second", float64(synced.Load())/length.Seconds())
	r.settle()
}

// creates creates znodes on 64 connections with 16 outstanding requests each. A
// connection that ends is replaced by a new one.
func (r *steadyRun) creates(length time.Duration) {
	r.t.Helper()
	const batch = 1000 // requests after which a connection checks the time
	addrs := r.c.addresses()
	root, err := loadRoot(addrs[0])
	if err != nil {
		r.t.Fatal(err)
	}
	// worker opens one connection and reports whether it was lost.
	worker := func(addr string, number int) (bool, error) {
		c, err := dialLoad(addr)
		for late := r.began.Add(length + startDeadline); err != nil && time.Now().Before(late); time.Sleep(5 * time.Millisecond) {
			c, err = dialLoad(addr)
		}
		if err != nil {
			return false, err
		}
		defer c.nc.Close()
		for from := 0; time.Since(r.began) < length; from += batch {
			err := c.run(besideWindow, batch, func(i int) loadOp {
				if i >= besideWindow { // wait for a reply before the next request
					r.acknowledged()
				}
				return loadOp{path: loadPath(root, number, from+i)}
			})
			if cut := new(net.OpError); errors.As(err, &cut) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return true, nil
			}
			if err != nil {
				return false, err
			}
		}
		c.endSession()
		return false, nil
	}
	r.begin()
	var workers sync.WaitGroup
	for i := range besideConns {
		workers.Go(func() {
			for number := i; ; number += besideConns {
				lost, err := worker(addrs[i%len(addrs)], number)
				if err != nil {
					r.t.Errorf("connection %d: %v", i, err)
				}
				if !lost {
					return
				}
				r.count(&r.lost)
			}
		})
	}
	workers.Wait()
}

// steadyClient is a go-zookeeper client of one server that sends various requests.
type steadyClient struct {
	run    *steadyRun
	addr   string
	dir    string // the client's own znode
	conn   *zk.Conn
	writes atomic.Int64 // acknowledged

	serving atomic.Bool // the connection has a session
	ending  atomic.Bool // the client itself closes the connection
	stop    chan struct{}
	done    sync.WaitGroup
	end     func()
}

func startSteadyClient(r *steadyRun, addr, dir string) *steadyClient {
	r.t.Helper()
	c := &steadyClient{run: r, addr: addr, dir: dir, stop: make(chan struct{})}
	conn, _, err := zk.Connect([]string{addr}, steadySession, zk.WithLogger(stock.Quiet{}), zk.WithEventCallback(c.event))
	if err != nil {
		r.t.Fatal(err)
	}
	c.conn = conn
	c.end = sync.OnceFunc(func() {
		close(c.stop)
		if !r.t.Failed() {
			c.done.Wait() // wait for the reply to an outstanding request
		}
		c.ending.Store(true)
		conn.Close()
		c.done.Wait()
	})
	r.t.Cleanup(c.end)
	c.done.Go(c.work)
	return c
}

// event counts events of the connection.
func (c *steadyClient) event(ev zk.Event) {
	switch {
	case ev.Type != zk.EventSession || c.ending.Load():
	case ev.State == zk.StateHasSession:
		c.serving.Store(true)
	case ev.State == zk.StateDisconnected:
		if c.serving.Swap(false) {
			c.run.count(&c.run.lost)
		}
	case ev.State == zk.StateExpired:
		c.run.count(&c.run.expired)
	}
}

// work writes and reads until the client ends.
func (c *steadyClient) work() {
	data := make([]byte, 32)
	for { // before the measurement
		_, err := c.conn.Create(c.dir, data, 0, openACL)
		if err == nil || errors.Is(err, zk.ErrNodeExists) {
			break
		}
		select {
		case <-c.stop:
			return
		case <-time.After(steadyPause):
		}
	}
	for i := 0; ; i++ {
		path := fmt.Sprintf("%s/%d", c.dir, i)
		unsure := false // whether path exists is unknown
		for _, request := range []struct {
			write bool
			do    func() error
		}{
			{true, func() error {
				_, err := c.conn.Set(c.dir, data, -1)
				return err
			}},
			{true, func() error {
				_, err := c.conn.Create(path, data, zk.FlagEphemeral, openACL)
				unsure = err != nil
				return err
			}},
			{false, func() error {
				_, _, err := c.conn.Get(c.dir)
				return err
			}},
			{true, func() error {
				err := c.conn.Delete(path, -1)
				if unsure && errors.Is(err, zk.ErrNoNode) {
					return nil
				}
				return err
			}},
		} {
			select {
			case <-c.stop:
				return
			case <-time.After(steadyPause):
			}
			err := request.do()
			switch {
			case err == nil:
				if request.write {
					c.run.acknowledged()
					c.writes.Add(1)
				}
			case slices.Contains([]error{zk.ErrConnectionClosed, zk.ErrNoServer, zk.ErrSessionExpired, io.EOF}, err):
				if !c.ending.Load() {
					c.run.count(&c.run.failed)
				}
				unsure = true
			default:
				c.run.t.Errorf("client of %s: %v", c.addr, err)
				return
			}
		}
	}
}

// TestClusterCutOff isolates the leader from the other members in a network of
// namespaces. It prints how long the next write through another member takes, and how
// long the leader keeps a client. It is skipped if network namespaces cannot be created.
func TestClusterCutOff(t *testing.T) {
	times, beside := steadyTimes(t)
	rows := []string{
		fmt.Sprintf("| the leader cut off, until the next write through another member, %d times", times),
		fmt.Sprintf("| the leader cut off, until it closes a client, %d times", times),
	}
	note := func(figures ...string) {
		for i, f := range figures {
			rows[i] += " | " + f
		}
	}
	t.Run("lockkeeper", func(t *testing.T) {
		n := newNetwork(t, 3)
		e := startEnsembleOn(t, n)
		note(cutOff(t, n, e, times))
		e.finish()
	})
	if !beside {
		return
	}
	t.Run("ZooKeeper", func(t *testing.T) {
		n := newNetwork(t, 3)
		hosts := make([]zooHost, len(n.hosts))
		for i := range hosts {
			hosts[i] = zooHost{n.ip(i), n.by(i)}
		}
		note(cutOff(t, n, startZooEnsembleOn(t, zk39, hosts), times))
	})
	t.Logf("\n%s |", strings.Join(rows, " |\n"))
}

// cutOff isolates the leader that many times. It returns the median and the maximum of
// how long a write waited, and of how long the leader kept its client.
func cutOff(t *testing.T, n *network, c trio, times int) (write, client string) {
	t.Helper()
	addrs := c.addresses()
	var waits, kept []time.Duration
	for range times {
		lead := c.leader()
		w := reconnecting{t: t, addr: addrs[(lead+1)%3]}
		w.write()
		idle := dialRawSoon(t, addrs[lead], 40*time.Second, 0)
		idle.SetReadDeadline(time.Now().Add(startDeadline))
		began := time.Now()
		for i := range n.hosts {
			if i != lead {
				n.cut(i, lead, true)
				n.cut(lead, i, true)
			}
		}
		type end struct {
			err   error
			after time.Duration
		}
		ended := make(chan end, 1)
		go func() {
			_, err := idle.frame()
			ended <- end{err, time.Since(began)}
		}()
		w.write()
		waits = append(waits, time.Since(began))
		w.conn.Close()
		of := <-ended
		if of.err == nil || errors.Is(of.err, os.ErrDeadlineExceeded) {
			t.Fatalf("the isolated leader keeps its client: %v", of.err)
		}
		kept = append(kept, of.after)
		idle.Close()
		for i := range n.hosts {
			if i != lead {
				n.cut(i, lead, false)
				n.cut(lead, i, false)
			}
		}
		for _, addr := range addrs { // wait until all members serve again
			w := reconnecting{t: t, addr: addr}
			w.write()
			w.conn.Close()
		}
	}
	figure := func(what string, took []time.Duration) string {
		slices.Sort(took)
		text := fmt.Sprintf("median %v, worst %v", took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
		t.Logf("%s: %s of %v", what, text, took)
		return text
	}
	return figure("the next write", waits), figure("the leader closes a client", kept)
}
