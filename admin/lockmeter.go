package admin

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Limits of a lockMeter.
const (
	meterSession = 30 * time.Second
	meterIdle    = 10 * time.Minute // it ends when nobody has scraped for that long
	meterRetry   = 10 * time.Minute // until it reads again what it could not read
	meterStarts  = 2 * time.Second  // how long a scrape waits until it has read the locks
	meterDirs    = 10_000
	meterEntries = 100_000
	// meterQuestions is how many reads may wait for their answer.
	meterQuestions = 4 * maxEphemerals
)

// lockMeter measures locks for /metrics as any client could: with a session that has a
// persistent recursive watch on the root, so that no change is missed between two scrapes.
//
// A scrape starts the goroutine run if it does not run. It ends with its connection (when
// the server loses its majority, or is closed) and when nobody has scraped for a while. The
// next scrape starts it anew.
type lockMeter struct {
	server *lockkeeper.Server
	words  *words
	began  time.Time // the Meters' times count from here

	waited, held prometheus.Histogram

	own atomic.Int64 // the id of its newest session

	mu      sync.Mutex
	scraped time.Time     // the last time
	ready   chan struct{} // closed when run has read the locks or has ended; nil if it does not run
	meter   *locks.Meter  // of the present connection; nil if there is none
	found   bool          // meter knows of all locks that were there when it started
}

func newLockMeter(s *lockkeeper.Server, w *words) *lockMeter {
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lockkeeper_lock_" + name, Help: help,
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600}})
	}
	return &lockMeter{server: s, words: w, began: time.Now(),
		waited: seconds("wait_seconds", "Time from the creation of a client's entry in the queue of a lock until it holds the lock."),
		held:   seconds("hold_seconds", "Time from when a client holds a lock until its entry is gone."),
	}
}

// Metrics of locks that are known only while a lockMeter has read all locks.
var (
	locksHeld     = desc("locks_held", "Locks that have a holder.")
	lockWaiters   = desc("lock_waiters", "Entries that wait, in the queues of all locks.")
	longestQueue  = desc("lock_queue_length_max", "Entries that wait in the longest queue.")
	oldestHold    = desc("lock_oldest_hold_seconds", "The longest time that a present holder has held its lock, at least; 0 without holders.")
	locksUnknown  = desc("lock_directories_unmeasured", "Directories with locks that are too large to measure, or hidden by ACLs in part, at least.")
	locksMeasured = desc("lock_metrics_complete", "Whether all locks that ACLs do not hide are known. Otherwise the gauges of locks are missing.")
)

// now returns the time for a Meter. It does not jump when somebody sets the clock.
func (l *lockMeter) now() int64 { return int64(time.Since(l.began)) }

// collect is a scrape.
func (l *lockMeter) collect(to chan<- prometheus.Metric) {
	gauges := func(d *prometheus.Desc, value float64) { to <- prometheus.MustNewConstMetric(d, gauge, value) }
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waited.Collect(to)
	l.held.Collect(to)
	gauges(locksMeasured, one(l.found))
	if !l.found {
		return
	}
	t := l.meter.Totals(l.now())
	gauges(locksHeld, float64(t.Held))
	gauges(lockWaiters, float64(t.Waiting))
	gauges(longestQueue, float64(t.Longest))
	gauges(oldestHold, time.Duration(t.Oldest).Seconds())
	gauges(locksUnknown, float64(t.Unmeasured))
}

// session returns the id of its newest session, which may have ended; 0 if it has had none.
func (l *lockMeter) session() int64 { return l.own.Load() }

// start announces a scrape. It starts the goroutine if necessary, and waits a limited time
// until it knows the locks.
func (l *lockMeter) start() {
	serving := l.server.Status().Serving
	l.mu.Lock()
	l.scraped = time.Now()
	if l.ready == nil && serving {
		l.ready = make(chan struct{})
		go l.run(l.ready)
	}
	ready := l.ready
	l.mu.Unlock()
	if ready != nil {
		limit := time.NewTimer(meterStarts)
		defer limit.Stop()
		select {
		case <-ready:
		case <-limit.C:
		}
	}
}

// run measures until its connection ends.
func (l *lockMeter) run(ready chan struct{}) {
	r := &meterRun{lockMeter: l, ready: sync.OnceFunc(func() { close(ready) }), wake: make(chan struct{}, 1)}
	r.connect() // whatever the error is, the next scrape tries again
	l.mu.Lock()
	l.ready, l.meter, l.found = nil, nil, false
	l.mu.Unlock()
	r.ready()
}

// meterRun is a connection of a lockMeter. One goroutine reads from it. Another one writes,
// since the server may want to send events before it reads the next request.
type meterRun struct {
	*lockMeter
	client *rawclient.Client
	ready  func()
	wake   chan struct{} // holds an element if the writer has something to do

	// With mu:
	asks []request // to be sent
	sent []request // without an answer yet
}

// request is a question of the Meter or, if its kind is not 0, another request.
type request struct {
	locks.Question
	kind requestKind
}

type requestKind int

const (
	question requestKind = iota
	foundAll             // the answer comes after those about what the children of all directories are
	knowsAll             // and this one after those about the Stats of these children
	goodbye
)

func (r *meterRun) connect() error {
	nc, err := r.server.Dial("", "", meterStarts)
	if err != nil {
		return err
	}
	defer nc.Close()
	c := rawclient.New(nc)
	c.Timeout = meterStarts
	if err := c.Handshake(&proto.ConnectRequest{Timeout: int32(meterSession.Milliseconds()), Password: make([]byte, proto.PasswordLen), HasReadOnly: true}); err != nil {
		return err
	}
	r.own.Store(c.Session.SessionID)
	timeout := time.Duration(c.Session.Timeout) * time.Millisecond
	c.Timeout = timeout
	r.client = c
	r.mu.Lock()
	r.meter = &locks.Meter{
		Waited:  func(ns int64) { r.waited.Observe(time.Duration(ns).Seconds()) },
		Held:    func(ns int64) { r.held.Observe(time.Duration(ns).Seconds()) },
		MaxDirs: meterDirs, MaxEntries: meterEntries,
	}
	r.mu.Unlock()
	if _, err := c.Call(proto.OpAddWatch, &proto.PathType{Path: "/", Type: recursive}, nil); err != nil {
		return err
	}
	for i := range c.Events {
		r.event(&c.Events[i])
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer nc.Close() // ends the reading, too
		r.write(ctx, timeout/3)
	}()
	err = r.read()
	cancel()
	nc.Close()
	<-ended
	return err
}

// recursive is ZooKeeper's AddWatchMode PERSISTENT_RECURSIVE.
const recursive = 1

var errTooSlow = errors.New("too many reads without an answer")

// read reads events and answers until the connection ends.
func (r *meterRun) read() error {
	for {
		f, err := r.client.Read()
		if err != nil {
			return err
		}
		if e, ok := f.Event(); ok {
			r.event(&e)
		} else if f.Xid != proto.XidPing {
			if err := r.answer(&f); err != nil {
				return err
			}
		}
		r.mu.Lock()
		for _, q := range r.meter.Questions() {
			r.asks = append(r.asks, request{Question: q})
		}
		todo, waiting := len(r.asks) > 0, len(r.asks)+len(r.sent)
		r.mu.Unlock()
		if waiting > meterQuestions {
			return errTooSlow
		}
		if todo {
			select {
			case r.wake <- struct{}{}:
			default:
			}
		}
	}
}

func (r *meterRun) event(e *rawclient.Event) {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e.Type {
	case proto.EventNodeCreated:
		r.meter.Created(e.Path, now)
	case proto.EventNodeDeleted:
		r.meter.Deleted(e.Path, now)
	}
}

// answer handles a reply. An error ends the connection.
func (r *meterRun) answer(f *rawclient.Frame) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sent) == 0 {
		return errors.New("a reply without a request")
	}
	q := r.sent[0]
	r.sent = r.sent[1:]
	switch q.kind {
	case foundAll:
		r.asks = append(r.asks, request{kind: knowsAll})
	case knowsAll:
		r.found = true
		r.ready()
	case goodbye:
		return errors.New("closed")
	default:
		if q.Children {
			var list proto.ChildrenReply
			if f.Code == proto.OK {
				if err := f.Decode(&list); err != nil {
					return err
				}
			}
			r.meter.Listed(q.Question, list.Names, f.Code)
			return nil
		}
		var stat proto.Stat
		if f.Code == proto.OK {
			if err := f.Decode(&stat); err != nil {
				return err
			}
		}
		r.meter.Stat(q.Question, f.Code)
	}
	return nil
}

// write sends requests and pings until ctx or the connection ends, or nobody scrapes.
func (r *meterRun) write(ctx context.Context, ping time.Duration) {
	tick := time.NewTicker(ping)
	defer tick.Stop()
	if !r.find(ctx) {
		r.ready() // without the gauges
	}
	tried := time.Now()
	for {
		c := r.client
		r.mu.Lock()
		for _, q := range r.asks {
			switch {
			case q.kind == goodbye:
				c.Queue(proto.OpCloseSession, nil)
			case q.Children:
				c.Queue(proto.OpGetChildren, &proto.PathWatch{Path: q.Path})
			case q.kind == question:
				c.Queue(proto.OpExists, &proto.PathWatch{Path: q.Path})
			default:
				c.Queue(proto.OpExists, &proto.PathWatch{Path: "/"})
			}
		}
		r.sent = append(r.sent, r.asks...)
		r.asks = nil
		r.mu.Unlock()
		if c.Flush() != nil {
			return
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			return
		case <-tick.C:
			if _, err := c.Send(proto.OpPing, nil); err != nil {
				return
			}
			r.mu.Lock()
			idle, found := time.Since(r.scraped) >= meterIdle, r.found
			if idle {
				r.asks = append(r.asks, request{kind: goodbye})
			}
			r.mu.Unlock()
			if time.Since(tried) >= meterRetry {
				tried = time.Now()
				if !found {
					r.find(ctx)
				}
				r.mu.Lock()
				r.meter.Retry(r.now())
				r.mu.Unlock()
			}
		}
	}
}

// find looks for the locks that are there already, by the ephemeral znodes, as the console
// does. It returns false if that is not possible.
func (r *meterRun) find(ctx context.Context) bool {
	if r.server.Status().State.Ephemerals > maxEphemerals {
		return false
	}
	text, err := r.words.ask(ctx, "dump")
	if err != nil {
		return false
	}
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, paths := range ephemeralsOf(text) {
		for _, at := range paths {
			r.meter.Find(at, now)
		}
	}
	for _, q := range r.meter.Questions() {
		r.asks = append(r.asks, request{Question: q})
	}
	r.asks = append(r.asks, request{kind: foundAll})
	return true
}
