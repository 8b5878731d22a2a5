// Package perturb changes the order in which the goroutines of simulated servers run,
// and pauses all goroutines of a server.
//
// The servers' source does not use it. For a perturbed run, the tests of internal/testing/sim
// build the servers with a call of [Point] wherever another goroutine could run first
// on several processors, and with the mutexes of this package in place of those of
// package sync. In other builds nothing calls Point, and this package has no effect.
// With points and no simulation, as in TestShake, goroutines only yield.
package perturb

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Woven reports whether this build calls [Point].
func Woven() bool { return len(sites) > 0 }

// Run perturbs the servers of one simulation. Its methods are safe for concurrent use.
type Run struct {
	calm                   atomic.Bool
	longest                time.Duration // the longest sleep at a hot site
	hot                    map[int]bool  // sites where goroutines often sleep
	yields, sleeps, pauses atomic.Int64

	mu      sync.Mutex
	random  *rand.Rand
	members map[string]*member
	marks   sync.Map // *member by the mark of its goroutines
}

// member is one server.
type member struct {
	paused atomic.Pointer[chan struct{}] // nil unless paused; closed by Resume
}

// current is the run that [Point] belongs to.
var current atomic.Pointer[Run]

// Begin returns a run that perturbs the goroutines started by [Run.As], from
// [Run.Stir] to [Run.Calm]. There must be only one run at a time; it lasts until
// [Run.End]. The seed chooses a few sites at which goroutines often sleep, and for how
// long at most. At all other sites they sometimes yield and rarely sleep.
func Begin(seed uint64) *Run {
	r := &Run{random: rand.New(rand.NewPCG(seed, 77)), members: map[string]*member{}, hot: map[int]bool{}}
	r.longest = []time.Duration{time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond, 255 * time.Millisecond}[r.random.IntN(5)]
	if Woven() {
		for range r.random.IntN(12) {
			r.hot[r.random.IntN(len(sites))] = true
		}
	}
	r.Calm()
	current.Store(r)
	return r
}

// End ends the run.
func (r *Run) End() { current.CompareAndSwap(r, nil) }

// Stir starts the sleeps and yields. Pauses do not depend on it.
func (r *Run) Stir() { r.calm.Store(false) }

// Calm stops the sleeps and yields.
func (r *Run) Calm() { r.calm.Store(true) }

// Hot returns the sites at which goroutines often sleep, and for how long at most.
func (r *Run) Hot() (where []string, longest time.Duration) {
	for i := range r.hot {
		where = append(where, sites[i])
	}
	slices.Sort(where)
	return where, r.longest
}

// Slack is how much longer than usual something that has a few steps may take.
func (r *Run) Slack() time.Duration {
	switch {
	case !Woven():
		return 0
	case len(r.hot) == 0:
		return 4 * shortest
	}
	return 4 * r.longest
}

// Counts says how often the run has perturbed its servers.
func (r *Run) Counts() map[string]int {
	return map[string]int{"yields": int(r.yields.Load()), "sleeps": int(r.sleeps.Load()), "paused processes": int(r.pauses.Load())}
}

func (r *Run) member(name string) *member {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[name]
	if m == nil {
		m = new(member)
		r.members[name] = m
	}
	return m
}

// As calls f as part of the named server: the goroutines that f starts, and those that
// these start, belong to that server.
func (r *Run) As(name string, f func()) {
	m := r.member(name)
	pprof.Do(context.Background(), pprof.Labels("server", name), func(context.Context) {
		r.marks.Store(mark(), m)
		f()
	})
}

// Pause stops all goroutines of a server at their next point until Resume, as SIGSTOP
// stops a process. Time and the network go on.
func (r *Run) Pause(name string) {
	r.pauses.Add(1)
	c := make(chan struct{})
	r.member(name).paused.Store(&c)
}

// Resume resumes a paused server.
func (r *Run) Resume(name string) {
	if c := r.member(name).paused.Swap(nil); c != nil {
		close(*c)
	}
}

// shortest is the longest sleep at a site that is not hot.
const shortest = 2 * time.Millisecond

// Point may make the calling goroutine sleep, yield or wait for Resume. site is the
// number of the place that calls it.
func Point(site int) {
	r := current.Load()
	if r == nil {
		shake(site)
		return
	}
	p := mark()
	if p == nil {
		return
	}
	x, ok := r.marks.Load(p)
	if !ok {
		return
	}
	for m := x.(*member); ; {
		c := m.paused.Load()
		if c == nil {
			break
		}
		<-*c
	}
	if r.calm.Load() {
		return
	}
	r.mu.Lock()
	n := r.random.IntN(4096)
	d := time.Duration(r.random.Int64N(int64(r.longest)))
	r.mu.Unlock()
	switch {
	case r.hot[site] && n%2 == 0:
	case n < 2:
		d = d % shortest
	case n < 40:
		r.yields.Add(1)
		runtime.Gosched()
		return
	default:
		return
	}
	r.sleeps.Add(1)
	time.Sleep(d)
}

// mark returns a pointer to the goroutine's profiler labels, which it has from the
// goroutine that started it. It identifies the server.
//
//go:linkname mark runtime/pprof.runtime_getProfLabel
func mark() unsafe.Pointer

// EnvShake is the environment variable that makes goroutines yield at points outside of a
// simulation. Its value is the seed that selects the points where they yield often.
const EnvShake = "LOCKKEEPER_SHAKE"

// often says of each site whether goroutines yield often there; nil without EnvShake.
var often = func() []bool {
	seed, err := strconv.ParseUint(os.Getenv(EnvShake), 10, 64)
	if err != nil {
		return nil
	}
	random, often := rand.New(rand.NewPCG(seed, 78)), make([]bool, len(sites))
	for i := range often {
		often[i] = random.IntN(20) == 0
	}
	return often
}()

// shake may make the calling goroutine yield, which takes no virtual time.
func shake(site int) {
	if often == nil {
		return
	}
	n := 0
	if often[site] {
		n = rand.IntN(200)
	} else if rand.IntN(32) == 0 {
		n = 1
	}
	for range n {
		runtime.Gosched()
	}
}

// Mutex is a [sync.Mutex] that a goroutine may hold while it sleeps: virtual time goes
// on although others wait for the lock.
type Mutex struct{ mu sync.Mutex }

// Lock locks m.
func (m *Mutex) Lock() { wait(m.mu.TryLock) }

// TryLock tries to lock m, and reports whether it did.
func (m *Mutex) TryLock() bool { return m.mu.TryLock() }

// Unlock unlocks m.
func (m *Mutex) Unlock() { m.mu.Unlock() }

// RWMutex is to [sync.RWMutex] what [Mutex] is to [sync.Mutex].
type RWMutex struct{ mu sync.RWMutex }

// Lock locks m for writing.
func (m *RWMutex) Lock() { wait(m.mu.TryLock) }

// Unlock unlocks m for writing.
func (m *RWMutex) Unlock() { m.mu.Unlock() }

// RLock locks m for reading.
func (m *RWMutex) RLock() { wait(m.mu.TryRLock) }

// RUnlock unlocks m for reading.
func (m *RWMutex) RUnlock() { m.mu.RUnlock() }

// Once is to [sync.Once] what [Mutex] is to [sync.Mutex]: others wait while the function sleeps or waits
// for a lock.
type Once struct {
	mu   Mutex
	done bool
}

// Do calls f if no call of Do has done so.
func (o *Once) Do(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.done {
		defer func() { o.done = true }()
		f()
	}
}

// wait sleeps, longer and longer, until try succeeds.
func wait(try func() bool) {
	for d := 10 * time.Microsecond; !try(); d = min(2*d, time.Millisecond) {
		time.Sleep(d)
	}
}
