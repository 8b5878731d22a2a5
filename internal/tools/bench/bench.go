// Package bench measures how fast a server that speaks ZooKeeper's protocol is: it drives
// load against it and reports rates, latencies, and what the server uses for them.
//
// It does not depend on lockkeeper's server: everything goes through the client port, apart from the
// processor time and memory of processes that the caller names. The client must not be
// what is measured, so most workloads use the raw client with frames that are encoded
// once; those named lock use a stock client.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Target is a server or a cluster to measure.
type Target struct {
	Name  string   // in the report
	Addrs []string // client ports; sessions are spread over them
	// Chroot is "" or the path of the znode below which the workloads create theirs. It must exist.
	Chroot string
	PIDs   []int // its processes, if they run on this machine and are to be measured

	// Dial opens a connection to one of Addrs. By default it is TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Restart kills the server and starts it again with its data. It returns the new
	// process ids, or nil if they have not changed. It need not wait until the server
	// serves. Without it, no workload restarts the server.
	Restart func(ctx context.Context) ([]int, error)
	// Kill kills the server with this one of Addrs at once, as kill -9 does. It returns new
	// process ids as Restart does, if it starts the server again. Without it, no workload kills a server.
	Kill func(ctx context.Context, addr string) ([]int, error)
	// Workloads replaces workloads of the same names; the target has no others. If it is
	// nil, the target has all workloads, and speaks ZooKeeper's protocol.
	Workloads []Workload
}

// Options say what to measure.
type Options struct {
	Targets   []*Target
	Workloads []Workload // by default All
	Turns     int        // of each workload on each target, in turn; by default 1

	Time   time.Duration // of one measurement at most; by default 5 s
	Ops    int           // operations in one measurement at most; by default a million
	Budget time.Duration // shortens measurements so that all together take about this long

	IdleSessions int // of the workload idle; by default 10,000
	Znodes       int // of the workloads znodes and snapshots; by default a million
	Sessions     int // of the workloads of Crowds; by default 100,000
	Vanishing    int // of these, those whose clients vanish in sessions-vanish; by default 10,000
	Watches      int // of the workload sessions-watch; by default 100,000

	// Progress is called before each measurement, and with matters after each workload.
	Progress func(done, of int, text string, matters bool)

	phase  func(r *Run, begins bool) // for tests: at the beginning and the end of what is measured
	grace  time.Duration             // after an interrupt, until the connections to a server that does not answer are closed
	settle time.Duration             // before memory is read
	vanish time.Duration             // the timeout of sessions whose clients vanish
}

// DataBytes is the length of the data of the znodes that are written and read.
const DataBytes = 128

const (
	sessionTimeout = 40 * time.Second // the longest that servers grant by default
	frameTimeout   = 30 * time.Second // after which a reply is given up
	defaultGrace   = 10 * time.Second // for replies after an interrupt
	defaultSettle  = time.Second      // for the memory of a process
	defaultVanish  = 10 * time.Second // short, so that the measurement is
	sweepTimeout   = time.Minute      // to delete what a run has created
)

// Run is one measurement of a workload on a target: a setup, the measured part, and the
// cleanup.
type Run struct {
	Target *Target
	Root   string // the znode below which the workload works

	ctx     context.Context
	o       *Options
	name    string
	limit   time.Duration
	ops     int
	stopped atomic.Bool
	ended   atomic.Int64 // sessions that have been closed
	result  Result
	times   []time.Duration // of all operations, in ascending order

	mu    sync.Mutex
	conns map[net.Conn]bool // to be closed if an interrupted run does not end
	fails map[string]int64  // by what went wrong
}

// Worker counts the operations of one goroutine of the measured part.
type Worker struct {
	run   *Run
	left  int
	times []time.Duration
	errs  map[string]int64
}

// More reports whether the worker shall do another operation, and counts it.
func (w *Worker) More() bool {
	if w.left == 0 || w.run.stopped.Load() {
		return false
	}
	w.left--
	return true
}

// Done counts an operation that has succeeded.
func (w *Worker) Done(took time.Duration) { w.times = append(w.times, took) }

// Fail counts an operation that has failed.
func (w *Worker) Fail(err error) { w.fail(err, 1) }

func (w *Worker) fail(err error, n int64) {
	if w.errs == nil {
		w.errs = map[string]int64{}
	}
	w.errs[short(err)] += n
}

// short shortens an error to what is the same for all connections.
func short(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

// Stop ends the measured part.
func (r *Run) Stop() { r.stopped.Store(true) }

// Stopped reports whether the measured part is to end.
func (r *Run) Stopped() bool { return r.stopped.Load() }

// Context is done when the run is interrupted.
func (r *Run) Context() context.Context { return r.ctx }

// Measured runs the measured part: n goroutines that work until More returns false.
func (r *Run) Measured(n int, work func(i int, w *Worker)) error {
	if r.o.phase != nil {
		r.o.phase(r, true)
		defer r.o.phase(r, false)
	}
	workers := make([]*Worker, n)
	for i := range workers {
		workers[i] = &Worker{run: r, left: r.share(i, n)}
	}
	before, err := r.Target.usage()
	if err != nil {
		return err
	}
	timer := time.AfterFunc(r.limit, r.Stop)
	defer timer.Stop()
	began := time.Now()
	var all sync.WaitGroup
	for i, w := range workers {
		all.Go(func() { work(i, w) })
	}
	all.Wait()
	took := time.Since(began)
	after, err := r.Target.usage()
	if err != nil {
		return err
	}
	for _, w := range workers {
		r.times = append(r.times, w.times...)
		for what, n := range w.errs {
			r.fails[what] += n
		}
	}
	slices.Sort(r.times)
	r.result.measured(took, r.times, before, after)
	return nil
}

// share returns how many of the run's operations are those of worker i of n.
func (r *Run) share(i, n int) int {
	share := r.ops / n
	if i < r.ops%n {
		share++
	}
	return share
}

func (r *Run) dial(i int) (net.Conn, error) {
	nc, err := r.Target.dial(r.ctx, i)
	if err == nil {
		r.mu.Lock()
		r.conns[nc] = true
		r.mu.Unlock()
	}
	return nc, err
}

func (r *Run) forget(nc net.Conn) {
	r.mu.Lock()
	delete(r.conns, nc)
	r.mu.Unlock()
}

func (r *Run) open(i int) (*rawclient.Client, error) { return r.openWithin(i, frameTimeout) }

func (r *Run) openWithin(i int, patience time.Duration) (*rawclient.Client, error) {
	nc, err := r.dial(i)
	if err != nil {
		return nil, err
	}
	c, err := rawclient.OpenWithin(nc, sessionTimeout, patience)
	if err != nil {
		r.forget(nc)
		return nil, fmt.Errorf("no session: %w", err)
	}
	return c, nil
}

func (r *Run) end(c *rawclient.Client) {
	if c.CloseSession() == nil { // otherwise the session expires
		r.ended.Add(1)
	}
	r.forget(c.Conn)
	c.Close()
}

// replace ends the session of a client that has lost its connection, so that its ephemeral
// znodes are deleted at once. It returns a client with a new session, or nil.
func (r *Run) replace(c *rawclient.Client, i int) *rawclient.Client {
	session := c.Session
	r.forget(c.Conn)
	c.Close()
	ended := false
	for range 20 {
		if !ended {
			ended = r.endBy(session, i)
		} else if r.Stopped() {
			return nil
		} else if fresh, err := r.open(i); err == nil {
			return fresh
		}
		if !ended {
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// endBy ends a session through a new connection.
func (r *Run) endBy(session proto.ConnectReply, i int) bool {
	nc, err := r.dial(i)
	if err != nil {
		return false
	}
	defer r.forget(nc)
	c, err := rawclient.Resume(nc, session)
	if err != nil {
		return err == rawclient.ErrRefused // it has already ended
	}
	defer c.Close()
	return c.CloseSession() == nil
}

func (r *Run) openAll(n int) ([]*rawclient.Client, error) {
	clients := make([]*rawclient.Client, n)
	err := atOnce(setupParallel, n, func(i int) (err error) {
		if r.ctx.Err() != nil {
			return r.ctx.Err()
		}
		clients[i], err = r.open(i)
		return err
	})
	if err != nil {
		r.endAll(clients)
		return nil, err
	}
	return clients, nil
}

// endAll ends the sessions of clients, where nil is none.
func (r *Run) endAll(clients []*rawclient.Client) {
	atOnce(setupParallel, len(clients), func(i int) error {
		if clients[i] != nil {
			r.end(clients[i])
		}
		return nil
	})
}

// syncAll waits until every session sees what the others have written.
func (r *Run) syncAll(clients []*rawclient.Client) error {
	return atOnce(setupParallel, len(clients), func(i int) error {
		_, err := clients[i].Call(proto.OpSync, &proto.Path{Path: r.Root}, nil)
		return err
	})
}

// setupParallel is how many connections most setups and cleanups use at the same time.
const setupParallel = 32

// atOnce calls f for 0 to n-1 in several goroutines, and returns the first error. After an
// error it makes no more calls.
func atOnce(parallel, n int, f func(i int) error) error {
	var next atomic.Int64
	var first atomic.Pointer[error]
	var all sync.WaitGroup
	for range min(n, parallel) {
		all.Go(func() {
			for first.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(i); err != nil {
					first.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	all.Wait()
	if err := first.Load(); err != nil {
		return *err
	}
	return nil
}

func (t *Target) dial(ctx context.Context, i int) (net.Conn, error) {
	addr := t.Addrs[i%len(t.Addrs)]
	ctx, cancel := context.WithTimeout(ctx, frameTimeout)
	defer cancel()
	if t.Dial != nil {
		return t.Dial(ctx, addr)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

func (t *Target) workload(w Workload) (Workload, bool) {
	if t.Workloads == nil {
		return w, true
	}
	for _, own := range t.Workloads {
		if own.Name == w.Name {
			return own, true
		}
	}
	return w, false
}

// Measure runs the workloads on the targets, and returns what it has measured so far also
// when ctx is done. An error means that nothing could be measured.
func Measure(ctx context.Context, o Options) (*Report, error) {
	o.Turns = cmp.Or(o.Turns, 1)
	o.Time = cmp.Or(o.Time, 5*time.Second)
	o.grace = cmp.Or(o.grace, defaultGrace)
	o.settle = cmp.Or(o.settle, defaultSettle)
	o.vanish = cmp.Or(o.vanish, defaultVanish)
	o.Ops = min(cmp.Or(o.Ops, 1_000_000), most)
	o.IdleSessions = cmp.Or(o.IdleSessions, 10_000)
	o.Znodes = min(cmp.Or(o.Znodes, 1_000_000), most)
	o.Sessions = min(cmp.Or(o.Sessions, 100_000), most)
	o.Vanishing = cmp.Or(o.Vanishing, 10_000)
	o.Watches = cmp.Or(o.Watches, 100_000)
	if o.Workloads == nil {
		o.Workloads = All()
	}
	if o.Progress == nil {
		o.Progress = func(int, int, string, bool) {}
	}
	m := &measuring{o: &o, began: time.Now(), report: &Report{Turns: o.Turns, Cores: runtime.NumCPU(), Rows: []*Row{}}}
	for _, t := range o.Targets {
		m.report.Targets = append(m.report.Targets, t.Name)
		if _, err := t.usage(); err != nil {
			return nil, err
		}
		root := ""
		if t.Workloads == nil {
			root = fmt.Sprintf("%s/bench-%08x", t.Chroot, rand.Uint32())
			if err := m.admin(ctx, t, func(c *rawclient.Client) error { _, err := c.Create(root, nil, 0); return err }); err != nil {
				m.cleanUp()
				return nil, fmt.Errorf("%s: %w", t.Name, err)
			}
		}
		m.roots = append(m.roots, root)
	}
	for _, w := range o.Workloads {
		m.left += (o.Turns + 1) * len(o.Targets)
		if w.Once {
			m.left -= o.Turns * len(o.Targets)
		}
	}
	for i, w := range o.Workloads {
		if ctx.Err() != nil {
			break
		}
		row := m.row(ctx, w, func(text string) { o.Progress(i, len(o.Workloads), text, false) })
		m.report.Rows = append(m.report.Rows, row)
		o.Progress(i+1, len(o.Workloads), row.line(), true)
	}
	m.cleanUp()
	m.report.finish(time.Since(m.began))
	return m.report, nil
}

type measuring struct {
	o      *Options
	began  time.Time
	roots  []string // by target
	left   int      // measurements to do
	report *Report
}

// row measures one workload on all targets, in turns. A first turn, which is not counted,
// warms the servers up.
func (m *measuring) row(ctx context.Context, w Workload, progress func(string)) *Row {
	row := &Row{Workload: w.Name, Says: w.Says, Runs: make([][]Result, len(m.o.Targets))}
	turns, first := m.o.Turns, 0
	if w.Once {
		turns, first = 1, 1
	}
	for turn := first; turn <= turns; turn++ {
		for i, t := range m.o.Targets {
			if ctx.Err() != nil {
				return row
			}
			text := w.Name
			if len(m.o.Targets) > 1 {
				text += fmt.Sprintf(", turn %d of %d, %s", turn, turns, t.Name)
			}
			if turn == 0 {
				text += ", warming up"
			}
			progress(text)
			result := m.one(ctx, w, i, turn == 0)
			switch {
			case turn == 0 && result.Errors == 0 && result.TwoHolders == "":
			case ctx.Err() != nil && result.Ops == 0:
			default:
				result.Turn = turn
				row.Runs[i] = append(row.Runs[i], result)
			}
		}
	}
	return row
}

// limit returns how long the measured part of the next measurement may take.
func (m *measuring) limit() time.Duration {
	if m.o.Budget == 0 {
		return m.o.Time
	}
	left := m.o.Budget - time.Since(m.began)
	return min(max(left/time.Duration(max(m.left, 1))/3, 10*time.Millisecond), m.o.Time) // setup and cleanup take the rest
}

func (m *measuring) one(ctx context.Context, w Workload, i int, warming bool) Result {
	t := m.o.Targets[i]
	r := &Run{Target: t, ctx: ctx, o: m.o, name: w.Name, limit: m.limit(), ops: m.o.Ops, conns: map[net.Conn]bool{}, fails: map[string]int64{}}
	m.left--
	if warming && m.o.Budget > 0 {
		r.limit /= 4
	}
	own, ok := t.workload(w)
	if !ok {
		return Result{Skipped: "not available"}
	}
	if own.Needs != nil {
		if missing := own.Needs(t); missing != "" {
			return Result{Skipped: "needs " + missing}
		}
	}
	if m.roots[i] != "" {
		r.Root = m.roots[i] + "/" + w.Name
		if err := m.admin(ctx, t, func(c *rawclient.Client) error { _, err := c.Create(r.Root, nil, 0); return err }); err != nil {
			return Result{Errors: 1, Error: short(err)}
		}
	}
	// When ctx is done, the workers finish their operations. If a server does not answer,
	// the connections are closed.
	finished := make(chan struct{})
	interrupted := context.AfterFunc(ctx, func() {
		r.Stop()
		for ended := int64(-1); ended != r.ended.Load(); { // while the server closes sessions, it does answer
			ended = r.ended.Load()
			select {
			case <-finished:
				return
			case <-time.After(m.o.grace):
			}
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for nc := range r.conns {
			nc.Close()
		}
	})
	err := own.Run(r)
	close(finished)
	interrupted()
	result := r.finish(err)
	if r.Root != "" && ctx.Err() == nil {
		if err := m.sweep(ctx, t, r.Root); err != nil && result.Error == "" {
			result.Errors, result.Error = 1, "cleanup: "+short(err)
		}
	}
	return result
}

func (r *Run) finish(err error) Result {
	if err != nil {
		r.fails[short(err)]++
	}
	largest := int64(0)
	for what, n := range r.fails {
		r.result.Errors += n
		if n > largest || n == largest && what < r.result.Error {
			r.result.Error, largest = what, n
		}
	}
	return r.result
}

// admin calls f with a session of its own, on a server that runs.
func (m *measuring) admin(ctx context.Context, t *Target, f func(c *rawclient.Client) error) error {
	nc, err := t.dial(ctx, 0)
	for i := 1; err != nil && i < len(t.Addrs); i++ {
		nc, err = t.dial(ctx, i)
	}
	if err != nil {
		return err
	}
	c := rawclient.New(nc)
	c.Timeout = frameTimeout
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	if err := c.Handshake(rawclient.NewSession(sessionTimeout)); err != nil {
		return err
	}
	err = f(c)
	c.CloseSession()
	return err
}

// sweep deletes a znode and all below it, also what belongs to sessions that have not
// ended yet.
func (m *measuring) sweep(ctx context.Context, t *Target, path string) error {
	return m.admin(ctx, t, func(c *rawclient.Client) error { return sweep(ctx, c, path) })
}

func sweep(ctx context.Context, c *rawclient.Client, path string) error {
	for {
		var r proto.ChildrenReply
		if _, err := c.Call(proto.OpGetChildren, &proto.PathWatch{Path: path}, &r); err == proto.NoNode {
			return nil
		} else if err != nil {
			return err
		}
		// Delete all children, and then go into those that have children themselves.
		var full []string
		next, done := 0, 0
		err := c.Pipeline(256, func(b []byte, xid int32) []byte {
			if next == len(r.Names) || ctx.Err() != nil {
				return b
			}
			next++
			return rawclient.Request(b, xid, proto.OpDelete, &proto.PathVersion{Path: path + "/" + r.Names[next-1], Version: proto.AnyVersion})
		}, func(f *rawclient.Frame, _ time.Time) error {
			done++
			switch f.Code {
			case proto.OK, proto.NoNode:
				return nil
			case proto.NotEmpty:
				full = append(full, r.Names[done-1])
				return nil
			}
			return f.Code
		})
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		for _, name := range full {
			if err := sweep(ctx, c, path+"/"+name); err != nil {
				return err
			}
		}
		if err := c.Delete(path); err != proto.NotEmpty {
			if err == proto.NoNode {
				err = nil
			}
			return err
		}
	}
}

// cleanUp deletes what is left of the run, and notes in the report what it could not
// delete.
func (m *measuring) cleanUp() {
	ctx, cancel := context.WithTimeout(context.Background(), sweepTimeout)
	defer cancel()
	var left []string
	for i, root := range m.roots {
		if root == "" {
			continue
		}
		t := m.o.Targets[i]
		if err := m.sweep(ctx, t, root); err != nil {
			left = append(left, fmt.Sprintf("%s on %s (%s)", root, strings.Join(t.Addrs, ","), short(err)))
		}
	}
	m.report.Left = strings.Join(left, "; ")
}

// usage is what processes have used so far.
type usage struct {
	measured      bool // whether the target's processes are known
	server        time.Duration
	client, total time.Duration // of this process, and of the whole machine
	memory        int64
	known         bool // whether client and total are known
}

// usage adds up the target's processes.
func (t *Target) usage() (u usage, err error) {
	u.measured = len(t.PIDs) > 0
	for _, pid := range t.PIDs {
		cpu, err := processorTime(pid)
		if err != nil {
			return u, err
		}
		memory, err := residentMemory(pid)
		if err != nil {
			return u, err
		}
		u.server += cpu
		u.memory += memory
	}
	var errs [2]error
	u.client, errs[0] = processorTime(os.Getpid())
	u.total, errs[1] = machineTime()
	u.known = errs == [2]error{}
	return u, nil
}

func names(all []Workload) (list []string) {
	for _, w := range all {
		list = append(list, w.Name)
	}
	return list
}

// Choose returns the workloads with the given names, in the usual order. The part of a
// name before the dash stands for all that begin with it. Without names, it returns All.
func Choose(wanted []string) ([]Workload, error) {
	if len(wanted) == 0 {
		return All(), nil
	}
	all := append(All(), Crowds()...)
	is := func(w Workload, name string) bool {
		group, _, _ := strings.Cut(w.Name, "-")
		return name == w.Name || name == group
	}
	for _, name := range wanted {
		if !slices.ContainsFunc(all, func(w Workload) bool { return is(w, name) }) {
			return nil, fmt.Errorf("%q is not one of %s", name, strings.Join(names(all), ", "))
		}
	}
	return slices.DeleteFunc(all, func(w Workload) bool {
		return !slices.ContainsFunc(wanted, func(name string) bool { return is(w, name) })
	}), nil
}
