// Package perturb changes the order in which the goroutines of simulated servers
// run, and stops all of one server's for a while.
//
// The code of the servers knows nothing of it. The tests of internal/sim build
// it with calls of [Point] at every place where another goroutine could come
// first on several processors, and with this package's mutexes in the place of those of
// package sync. In any other build nothing calls Point, and the rest does
// nothing.
package perturb

import (
	"context"
	"math/rand/v2"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Woven reports whether this build calls [Point].
func Woven() bool { return len(sites) > 0 }

// Counts says what was done in a run.
type Counts struct{ Yields, Sleeps, Pauses int64 }

// Add adds what was done in another run.
func (c *Counts) Add(o Counts) {
	c.Yields += o.Yields
	c.Sleeps += o.Sleeps
	c.Pauses += o.Pauses
}

// Run perturbs the servers of one simulation. Its methods are safe for concurrent use.
type Run struct {
	calm                   atomic.Bool
	longest                time.Duration // of a sleep at a hot site
	hot                    map[int]bool  // where sleeps are frequent
	yields, sleeps, pauses atomic.Int64

	mu      sync.Mutex
	random  *rand.Rand
	members map[string]*member
	marks   sync.Map // of the goroutines of each *member
}

// member is one server.
type member struct {
	paused atomic.Pointer[chan struct{}] // closed when it may go on
}

// current is the run that [Point] belongs to.
var current atomic.Pointer[Run]

// Begin prepares to perturb the goroutines that [Run.As] starts, until End. One
// run at a time has this. A few places are drawn from the seed at which
// goroutines often sleep, up to a time that is drawn too; everywhere else they
// seldom do, and yield now and then.
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

// End ends the run's perturbation.
func (r *Run) End() { current.CompareAndSwap(r, nil) }

// Stir begins with sleeps and yields, and Calm ends them. Pauses are apart from that.
func (r *Run) Stir() { r.calm.Store(false) }

// Calm ends what Stir began.
func (r *Run) Calm() { r.calm.Store(true) }

// Hot names the places at which goroutines often sleep, and says how long at most.
func (r *Run) Hot() (where []string, longest time.Duration) {
	for i := range r.hot {
		where = append(where, sites[i])
	}
	slices.Sort(where)
	return where, r.longest
}

// Slack is how much later than usual something may come that takes a few steps.
func (r *Run) Slack() time.Duration {
	switch {
	case !Woven():
		return 0
	case len(r.hot) == 0:
		return 4 * shortest
	}
	return 4 * r.longest
}

// Counts says what was done so far.
func (r *Run) Counts() Counts {
	return Counts{r.yields.Load(), r.sleeps.Load(), r.pauses.Load()}
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

// As calls f as a part of the named server: all goroutines that it starts, and
// those that these start, are that server's.
func (r *Run) As(name string, f func()) {
	m := r.member(name)
	pprof.Do(context.Background(), pprof.Labels("server", name), func(context.Context) {
		r.marks.Store(mark(), m)
		f()
	})
}

// Pause stops all goroutines of a server at their next point, as a process is
// stopped by a signal, until Resume. Time goes on, and what others send is there
// when it is resumed.
func (r *Run) Pause(name string) {
	r.pauses.Add(1)
	c := make(chan struct{})
	r.member(name).paused.Store(&c)
}

// Resume lets a paused server go on.
func (r *Run) Resume(name string) {
	if c := r.member(name).paused.Swap(nil); c != nil {
		close(*c)
	}
}

// shortest is how long goroutines sleep at most at most places.
const shortest = 2 * time.Millisecond

// Point is a place at which the goroutine may be held up. site is its number.
func Point(site int) {
	r := current.Load()
	if r == nil {
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

// mark is what this goroutine has of its labels: goroutines inherit it.
//
//go:linkname mark runtime/pprof.runtime_getProfLabel
func mark() unsafe.Pointer

// Mutex is a [sync.Mutex] for which virtual time does not wait: a goroutine may
// sleep while it holds one.
type Mutex struct{ mu sync.Mutex }

// Lock locks m.
func (m *Mutex) Lock() { wait(m.mu.TryLock) }

// TryLock tries to lock m, and reports whether it did.
func (m *Mutex) TryLock() bool { return m.mu.TryLock() }

// Unlock unlocks m.
func (m *Mutex) Unlock() { m.mu.Unlock() }

// RWMutex is a [sync.RWMutex] for which virtual time does not wait.
type RWMutex struct{ mu sync.RWMutex }

// Lock locks m for writing.
func (m *RWMutex) Lock() { wait(m.mu.TryLock) }

// Unlock unlocks m for writing.
func (m *RWMutex) Unlock() { m.mu.Unlock() }

// RLock locks m for reading.
func (m *RWMutex) RLock() { wait(m.mu.TryRLock) }

// RUnlock unlocks m for reading.
func (m *RWMutex) RUnlock() { m.mu.RUnlock() }

// wait sleeps, longer and longer, until try succeeds.
func wait(try func() bool) {
	for d := 10 * time.Microsecond; !try(); d = min(2*d, time.Millisecond) {
		time.Sleep(d)
	}
}
