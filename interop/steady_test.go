//go:build interop

package interop

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/stock"
	"github.com/lockkeeper/lockkeeper/proto"
)

// envSteady sets how often TestClusterSteady and TestClusterCutOff repeat each scenario.
// If it is set, scenarios are also longer.
const envSteady = "LOCKKEEPER_INTEROP_STEADY"

const (
	steadyClients = 16
	// A client closes its connection after two thirds of its session timeout without a
	// reply. That must be much longer than servers are stopped.
	steadySession = 10 * time.Second
	steadyPause   = 20 * time.Millisecond // between two requests of a client
	// How long the clients continue after a stop, because a server may close a connection
	// only some time after it continues.
	steadyRest = time.Second
)

// steadyTimes returns how often to repeat each scenario, and how long those last that only take time.
func steadyTimes(t *testing.T) (times int, length time.Duration) {
	t.Helper()
	s := os.Getenv(envSteady)
	if s == "" {
		return 1, 3 * time.Second
	}
	times, err := strconv.Atoi(s)
	if err != nil || times < 1 {
		t.Fatalf("%s=%s is not a number above 0", envSteady, s)
	}
	return times, time.Minute
}

// TestClusterSteady stops servers of a cluster for up to 1.5 s, keeps their machine busy,
// and puts load on them, with default settings. No client may lose its connection.
func TestClusterSteady(t *testing.T) {
	times, length := steadyTimes(t)
	s := &steady{t: t, ensemble: startEnsemble(t, 3), stopped: make(chan struct{})}
	for i := range steadyClients {
		s.client(s.listen[i%3])
	}
	s.settle()
	all := func(int, int) []int { return []int{0, 1, 2} }
	followers := func(lead, _ int) []int { return []int{(lead + 1) % 3, (lead + 2) % 3} }
	next := func(lead, round int) []int { return []int{(lead + round) % 3} }
	for _, x := range []struct {
		name    string
		servers func(lead, round int) []int
		long    time.Duration
		rounds  int
	}{
		{"all three servers stopped for 700 ms", all, 700 * time.Millisecond, times},
		{"all three servers stopped for 1.5 s", all, 1500 * time.Millisecond, times},
		{"both followers stopped for 700 ms", followers, 700 * time.Millisecond, times},
		{"one server after the other stopped for 700 ms", next, 700 * time.Millisecond, 3 * times},
	} {
		for round := range x.rounds {
			servers := x.servers(s.leader(), round)
			began := time.Now()
			for _, i := range servers {
				s.signal(i, syscall.SIGSTOP)
			}
			time.Sleep(x.long)
			for _, i := range servers {
				s.signal(i, syscall.SIGCONT)
			}
			took := time.Since(began)
			s.settle()
			s.none(fmt.Sprintf("%s, in fact for %v", x.name, took))
		}
	}
	s.besideWork(length)
	s.none("beside eight busy loops and three writers that sync the disk")
	close(s.stopped)
	s.clients.Wait()
	s.creates(length)
	s.ending.Store(true)
	s.finish()
}

// steady is a cluster whose clients may not lose their connections.
type steady struct {
	t *testing.T
	*ensemble
	clients  sync.WaitGroup
	answered []*atomic.Int64 // by client
	lost     atomic.Int64    // connections and sessions
	stopped  chan struct{}
	ending   atomic.Bool
}

// client starts a go-zookeeper client of one server that writes and reads until the clients are stopped.
func (s *steady) client(addr string) {
	s.t.Helper()
	var serving atomic.Bool
	conn, _, err := zk.Connect([]string{addr}, steadySession, zk.WithLogger(stock.Quiet{}), zk.WithEventCallback(func(ev zk.Event) {
		switch {
		case ev.Type != zk.EventSession || s.ending.Load():
		case ev.State == zk.StateHasSession:
			serving.Store(true)
		case ev.State == zk.StateExpired, ev.State == zk.StateDisconnected && serving.Swap(false):
			s.lost.Add(1)
		}
	}))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		s.ending.Store(true)
		conn.Close()
	})
	answered := new(atomic.Int64)
	s.answered = append(s.answered, answered)
	s.clients.Go(func() {
		for {
			select {
			case <-s.stopped:
				return
			case <-time.After(steadyPause):
			}
			path, err := conn.Create("/steady-", make([]byte, 32), zk.FlagEphemeral|zk.FlagSequence, openACL)
			if err == nil {
				_, _, err = conn.Get(path)
			}
			if err == nil {
				err = conn.Delete(path, -1)
			}
			if err != nil {
				if !s.ending.Load() {
					s.t.Errorf("client of %s: %v", addr, err)
				}
				return
			}
			answered.Add(1)
		}
	})
}

// settle waits until every client has an acknowledged write that it started after this
// call, and then a moment longer.
func (s *steady) settle() {
	s.t.Helper()
	deadline := time.Now().Add(startDeadline)
	for i, answered := range s.answered {
		for want := answered.Load() + 2; answered.Load() < want; time.Sleep(5 * time.Millisecond) { // the first one may have started before
			if time.Now().After(deadline) {
				s.t.Fatalf("no write of client %d is acknowledged within %v", i, startDeadline)
			}
		}
	}
	time.Sleep(steadyRest)
}

// none checks that no connection was lost.
func (s *steady) none(when string) {
	s.t.Helper()
	if n := s.lost.Load(); n > 0 || s.t.Failed() {
		s.t.Fatalf("%s: %d connections or sessions were lost, want none", when, n)
	}
}

// besideWork keeps the processors and the disk of the cluster busy.
func (s *steady) besideWork(length time.Duration) {
	s.t.Helper()
	const loops, syncers = 8, 3
	for range loops {
		loop := exec.CommandContext(s.t.Context(), "timeout", fmt.Sprint(length.Seconds()), "sh", "-c", "while :; do :; done")
		loop.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
		if err := loop.Start(); err != nil {
			s.t.Fatal(err)
		}
		defer loop.Wait()
	}
	dir := s.t.TempDir() // on the disk of the servers' directories
	var writers sync.WaitGroup
	for i := range syncers {
		writers.Go(func() {
			f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
			if err != nil {
				s.t.Error(err)
				return
			}
			defer f.Close()
			block := make([]byte, 256<<10)
			began := time.Now()
			for n := 1; err == nil && time.Since(began) < length; n++ {
				// A file that grows and shrinks keeps the file system's journal busy, too.
				_, err = f.WriteAt(block, int64(n%256*len(block)))
				if n%256 == 0 {
					err = errors.Join(err, f.Truncate(0))
				}
				err = errors.Join(err, f.Sync())
			}
			if err != nil {
				s.t.Error(err)
			}
		})
	}
	writers.Wait()
	s.settle()
}

// creates creates znodes on 64 connections with 16 outstanding requests each.
func (s *steady) creates(length time.Duration) {
	s.t.Helper()
	const conns, window = 64, 16
	var workers sync.WaitGroup
	began := time.Now()
	for i := range conns {
		conn := dialRawSoon(s.t, s.listen[i%3], steadySession, 0)
		workers.Go(func() {
			defer conn.Close()
			n := 0
			err := conn.Pipeline(window, func(b []byte, xid int32) []byte {
				if time.Since(began) > length {
					return b
				}
				n++
				return rawclient.Request(b, xid, proto.OpCreate, &proto.CreateRequest{Path: fmt.Sprintf("/%d-%d", i, n), ACL: proto.OpenACL})
			}, func(f *rawclient.Frame, _ time.Time) error {
				if f.Code != proto.OK {
					return f.Code
				}
				return nil
			})
			if err != nil {
				s.t.Errorf("connection %d, after %d creates: %v", i, n, err)
			}
		})
	}
	workers.Wait()
}

// TestClusterCutOff isolates the leader from the other members in a network of
// namespaces. It prints how long the next write through another member takes, and how
// long the leader keeps a client. It is skipped if network namespaces cannot be created.
func TestClusterCutOff(t *testing.T) {
	times, _ := steadyTimes(t)
	n := newNetwork(t, 3)
	e := newEnsembleOn(t, n).start()
	var waits, kept []time.Duration
	for range times {
		lead := e.leader()
		w := reconnecting{t: t, addr: e.listen[(lead+1)%3]}
		w.write()
		idle := dialRawSoon(t, e.listen[lead], 40*time.Second, 0)
		idle.Timeout = startDeadline
		began := time.Now()
		n.isolate(lead, true)
		type end struct {
			err   error
			after time.Duration
		}
		ended := make(chan end, 1)
		go func() {
			_, err := idle.Read()
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
		n.isolate(lead, false)
		for _, addr := range e.listen { // wait until all members serve again
			w := reconnecting{t: t, addr: addr}
			w.write()
			w.conn.Close()
		}
	}
	slices.Sort(waits)
	slices.Sort(kept)
	t.Logf("until the next write: %v; until the leader closes a client: %v", waits, kept)
	e.finish()
}

// reconnecting is a client that reconnects at once, with a new session.
type reconnecting struct {
	t    *testing.T
	addr string
	conn *rawclient.Client
}

// write writes until a write is acknowledged.
func (w *reconnecting) write() {
	w.t.Helper()
	for late := time.Now().Add(time.Minute); time.Now().Before(late); time.Sleep(5 * time.Millisecond) {
		if w.conn == nil {
			conn, err := dialRaw(w.addr, 10*time.Second, 0, proto.ConnectReply{})
			if err != nil {
				continue
			}
			w.conn = conn
		}
		if _, err := w.conn.Create("/again-", nil, proto.FlagSequential); err == nil {
			return
		}
		w.conn.Close()
		w.conn = nil
	}
	w.t.Fatal("no write is acknowledged")
}
