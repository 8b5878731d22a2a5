package admin

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Limits of a lockMeter.
const (
	meterEphemerals = 10_000           // among which the locks that are there are looked for
	meterIdle       = 10 * time.Minute // it ends when nobody has scraped for that long
	meterRetry      = 10 * time.Minute // until it reads again what it could not read
	meterTick       = 10 * time.Second // how often it looks at the time
	meterDirs       = 10_000
	meterEntries    = 100_000
	meterBatch      = 512              // events that are measured at once
	meterEvents     = 128 * meterBatch // events that may wait to be measured
)

// lockMeter measures locks for /metrics: it follows the changes that the server applies, so
// that none is missed between two scrapes.
//
// A scrape starts the goroutine run if it does not run. It ends when the server does not serve
// clients any more, when it is closed, and when nobody has scraped for a while. The next scrape
// starts it anew.
type lockMeter struct {
	server report.Server
	began  time.Time // the Meters' times count from here

	waited, held prometheus.Histogram

	open context.Context // ends with close
	shut context.CancelFunc

	mu      sync.Mutex
	scraped time.Time // the last time
	run     *meterRun // nil if there is none
	runs    sync.WaitGroup
}

func newLockMeter(s report.Server) *lockMeter {
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lockkeeper_lock_" + name, Help: help,
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600}})
	}
	l := &lockMeter{server: s, began: time.Now(),
		waited: seconds("wait_seconds", "Time from the creation of a client's entry in the queue of a lock until it holds the lock."),
		held:   seconds("hold_seconds", "Time from when a client holds a lock until its entry is gone."),
	}
	l.open, l.shut = context.WithCancel(context.Background())
	return l
}

// Metrics of locks that are known only while a lockMeter has read all locks.
var (
	locksHeld     = desc("locks_held", "Locks that have a holder.")
	lockWaiters   = desc("lock_waiters", "Entries that wait, in the queues of all locks.")
	longestQueue  = desc("lock_queue_length_max", "Entries that wait in the longest queue.")
	oldestHold    = desc("lock_oldest_hold_seconds", "The longest time that a present holder has held its lock, at least; 0 without holders.")
	locksUnknown  = desc("lock_directories_unmeasured", "Directories with locks that are too large to measure, at least.")
	locksMeasured = desc("lock_metrics_complete", "Whether all locks are known. Otherwise the gauges of locks are missing.")
)

// now returns the time for a Meter. It does not jump when somebody sets the clock.
func (l *lockMeter) now() int64 { return int64(time.Since(l.began)) }

// collect is a scrape. It starts the goroutine if necessary.
func (l *lockMeter) collect(to chan<- prometheus.Metric) {
	gauges := func(d *prometheus.Desc, value float64) { to <- prometheus.MustNewConstMetric(d, gauge, value) }
	l.mu.Lock()
	defer l.mu.Unlock()
	l.scraped = time.Now()
	l.start()
	r := l.run
	if r != nil && !r.measure() {
		r = nil
	}
	l.waited.Collect(to)
	l.held.Collect(to)
	found := r != nil && r.found
	gauges(locksMeasured, one(found))
	if !found {
		return
	}
	t := r.meter.Totals(l.now())
	gauges(locksHeld, float64(t.Held))
	gauges(lockWaiters, float64(t.Waiting))
	gauges(longestQueue, float64(t.Longest))
	gauges(oldestHold, time.Duration(t.Oldest).Seconds())
	gauges(locksUnknown, float64(t.Unmeasured))
}

// start starts the goroutine if it does not run and the server serves clients. l.mu must be
// locked.
func (l *lockMeter) start() {
	if l.open.Err() != nil || l.run != nil && l.run.whole.Err() == nil {
		return
	}
	r := &meterRun{l: l, batch: wake.NewSignal(), tried: time.Now(), meter: &locks.Meter{
		Waited:  func(ns int64) { l.waited.Observe(time.Duration(ns).Seconds()) },
		Held:    func(ns int64) { l.held.Observe(time.Duration(ns).Seconds()) },
		MaxDirs: meterDirs, MaxEntries: meterEntries,
	}}
	r.whole, r.cut = context.WithCancel(l.open)
	l.run = nil
	stop, ok := l.server.Follow(r)
	if !ok {
		r.cut()
		return
	}
	l.run = r
	r.find()
	l.runs.Go(func() {
		defer stop()
		defer r.cut()
		r.serve()
		l.mu.Lock()
		if l.run == r {
			l.run = nil
		}
		l.mu.Unlock()
	})
}

func (l *lockMeter) close() {
	l.mu.Lock()
	l.shut()
	l.mu.Unlock()
	l.runs.Wait()
}

// meterRun follows the changes of a server: it notes them while the state is locked, which
// takes well under a microsecond, and measures them later, many at a time.
type meterRun struct {
	l     *lockMeter
	batch wake.Signal     // there are many events to measure
	whole context.Context // ends when changes may be missing, or the lockMeter is closed
	cut   context.CancelFunc

	mu     sync.Mutex // held only for a moment
	events []event
	spare  []event // a list to reuse, swapped with events

	// Guarded by l.mu.
	meter *locks.Meter
	found bool      // meter knows of all locks that were there when it started
	tried time.Time // when it read anew what it could not read
}

type event struct {
	path      string
	deleted   bool
	ephemeral bool
	at        int64
}

// Changed implements report.Follower.
func (r *meterRun) Changed(changes []proto.Change) {
	now := int64(-1)
	for i := range changes {
		c := &changes[i]
		if c.Kind != proto.NodeCreated && c.Kind != proto.NodeDeleted {
			continue
		}
		if now < 0 {
			now = r.l.now()
			r.mu.Lock()
		}
		r.events = append(r.events, event{c.Path, c.Kind == proto.NodeDeleted, c.Session != 0, now})
	}
	if now < 0 {
		return
	}
	if len(r.events) > meterEvents || r.whole.Err() != nil {
		r.lose()
	}
	if len(r.events) >= meterBatch {
		r.batch.Raise()
	}
	r.mu.Unlock()
}

// Lost implements report.Follower.
func (r *meterRun) Lost() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lose()
}

// lose ends the run: changes are missing, or those that wait to be measured are too many. r.mu
// must be locked.
func (r *meterRun) lose() {
	r.events = nil
	r.cut()
}

// serve measures until changes are missing, nobody scrapes, or the lockMeter is closed.
func (r *meterRun) serve() {
	tick := time.NewTicker(meterTick)
	defer tick.Stop()
	for {
		select {
		case <-r.batch:
			r.l.mu.Lock()
			r.measure()
			r.l.mu.Unlock()
		case <-r.whole.Done():
			return
		case <-tick.C:
			r.l.mu.Lock()
			idle := time.Since(r.l.scraped) >= meterIdle
			switch {
			case idle && r.l.run == r:
				r.l.run = nil
			case !idle && time.Since(r.tried) >= meterRetry:
				r.retry()
			}
			r.l.mu.Unlock()
			if idle {
				return
			}
		}
	}
}

// The following methods are called while l.mu is locked.

// drain tells the Meter of the events.
func (r *meterRun) drain() {
	r.mu.Lock()
	events := r.events
	r.events, r.spare = r.spare, nil
	r.mu.Unlock()
	for i := range events {
		if e := &events[i]; e.deleted {
			r.meter.Deleted(e.path, e.ephemeral, e.at)
		} else {
			r.meter.Created(e.path, e.at)
		}
	}
	clear(events)
	r.mu.Lock()
	r.spare = events[:0]
	r.mu.Unlock()
}

// measure tells the Meter of the events and answers its questions. It returns false if changes
// are missing.
func (r *meterRun) measure() bool {
	r.drain()
	r.answer()
	return r.whole.Err() == nil
}

// meterNames is how many names are read at once, or a few more; but all names of one znode are.
const meterNames = 1000

// answer answers the questions of the Meter, with the state locked only for some of them at once.
func (r *meterRun) answer() {
	type answer struct {
		q     locks.Question
		names []string
		n     int
		ok    bool
	}
	for todo := r.meter.Questions(); len(todo) > 0; todo = append(todo, r.meter.Questions()...) {
		var answers []answer
		r.drain() // so that there is little left to do with the state locked
		r.l.server.View(func(children report.Children) {
			r.drain() // so that the state is what these events have made
			for room := meterNames; len(todo) > 0 && room > 0; todo = todo[1:] {
				a := answer{q: todo[0]}
				a.names, a.n, a.ok = children(a.q.Path, meterEntries)
				answers = append(answers, a)
				room -= 1 + len(a.names)
			}
		})
		for _, a := range answers {
			if a.n > meterEntries {
				r.meter.TooMany(a.q)
				continue
			}
			for i, name := range a.names {
				a.names[i] = strings.Clone(name)
			}
			r.meter.Listed(a.q, a.names, a.ok)
		}
	}
}

// find looks for the locks that are there already, by the ephemeral znodes, as the console
// does, unless there are too many. What changes meanwhile, the events tell.
func (r *meterRun) find() {
	r.drain()
	now := r.l.now()
	paths, ok := r.l.server.Ephemerals(meterEphemerals)
	if !ok {
		return
	}
	for _, path := range paths {
		r.meter.Find(path, now)
	}
	r.answer()
	r.found = true
}

func (r *meterRun) retry() {
	r.tried = time.Now()
	if !r.found {
		r.find()
	}
	r.meter.Retry(r.l.now())
	r.measure()
}
