package locks

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// measuredServer is a server with a Meter as its client. Its frames wait in order, so that
// the Meter learns of changes later than they happen.
type measuredServer struct {
	nodes  map[string]map[string]int64 // owners, by directory and name
	next   map[string]int              // sequence numbers
	frames []func(now int64)
	meter  Meter
	asked  []Question // not yet answered
	times  map[string][]int64
}

func newMeasuredServer() *measuredServer {
	s := &measuredServer{nodes: map[string]map[string]int64{}, next: map[string]int{}, times: map[string][]int64{}}
	s.meter = Meter{MaxDirs: 1000, MaxEntries: 1000,
		Waited: func(ns int64) { s.times["waited"] = append(s.times["waited"], ns) },
		Held:   func(ns int64) { s.times["held"] = append(s.times["held"], ns) },
	}
	return s
}

func (s *measuredServer) mkdir(dir string) {
	s.nodes[dir] = map[string]int64{}
	s.frames = append(s.frames, func(now int64) { s.meter.Created(dir, now) })
}

func (s *measuredServer) create(dir, format string, owner int64) (name string) {
	name = fmt.Sprintf(format, s.next[dir])
	s.next[dir]++
	s.nodes[dir][name] = owner
	s.frames = append(s.frames, func(now int64) { s.meter.Created(dir+"/"+name, now) })
	return name
}

func (s *measuredServer) delete(at string) {
	owner := s.nodes[path.Dir(at)][path.Base(at)]
	if s.nodes[at] != nil {
		delete(s.nodes, at)
	} else {
		delete(s.nodes[path.Dir(at)], path.Base(at))
	}
	s.frames = append(s.frames, func(now int64) { s.meter.Deleted(at, owner != 0, now) })
}

// answer lets the server answer the oldest question.
func (s *measuredServer) answer() {
	if len(s.asked) == 0 {
		return
	}
	q := s.asked[0]
	s.asked = s.asked[1:]
	children, isDir := s.nodes[q.Path]
	names := slices.Collect(maps.Keys(children))
	s.frames = append(s.frames, func(now int64) {
		if len(names) > s.meter.MaxEntries {
			s.meter.TooMany(q)
		} else {
			s.meter.Listed(q, names, isDir)
		}
	})
}

// receive gives the Meter the oldest frame.
func (s *measuredServer) receive(now int64) {
	if len(s.frames) > 0 {
		frame := s.frames[0]
		s.frames = s.frames[1:]
		frame(now)
		s.asked = append(s.asked, s.meter.Questions()...)
	}
}

// settle answers everything and lets the Meter receive it.
func (s *measuredServer) settle(now int64) {
	s.asked = append(s.asked, s.meter.Questions()...)
	for len(s.frames)+len(s.asked) > 0 {
		s.receive(now)
		s.answer()
	}
}

// find returns what Find sees.
func (s *measuredServer) find() []Lock {
	dirs := map[string]*Directory{}
	for at, nodes := range s.nodes {
		dirs[at] = &Directory{}
		for name, owner := range nodes {
			dirs[at].Nodes = append(dirs[at].Nodes, Node{Name: name, Owner: owner, Czxid: int64(len(name))})
		}
	}
	return slices.DeleteFunc(Find(dirs, false), func(l Lock) bool { return l.Kind == Semaphore })
}

// compare compares the totals with what Find sees. The oldest holder is not compared.
func (s *measuredServer) compare(t *testing.T) {
	t.Helper()
	var want Totals
	for _, l := range s.find() {
		want.Held++
		want.Waiting += len(l.Queue)
		want.Longest = max(want.Longest, len(l.Queue))
	}
	got := s.meter.Totals(0)
	if got.Oldest = 0; got != want {
		t.Fatalf("got %+v, want %+v: %q", got, want, text(s.find()))
	}
}

func (s *measuredServer) wantTimes(t *testing.T, what string, want ...int64) {
	t.Helper()
	if !slices.Equal(s.times[what], want) {
		t.Errorf("%s: %v, want %v", what, s.times[what], want)
	}
}

// TestMeterModel lets clients lock and unlock at random, and compares the Meter with a model
// that computes the holders anew with Find after every change. Every moment that is after
// the Meter's start must be exact.
func TestMeterModel(t *testing.T) {
	seed := testkit.Seed(t)
	for run := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, run))
		s := newMeasuredServer()
		dirs := []string{"/a", "/a/b", "/c", "/s/locks"}
		formats := []string{"_c_" + guid + "-lock-%010d", guid + "__lock__%010d", guid2 + "__rlock__%010d", "_c_" + dash + "-__READ__%010d", "_c_" + dash + "-__WRIT__%010d", "_c_" + dash + "-latch-%010d", "other-%010d", "lock-%010d"}
		change := func() {
			dir := dirs[r.IntN(len(dirs))]
			nodes := slices.Sorted(maps.Keys(s.nodes[dir]))
			switch {
			case s.nodes[dir] == nil:
				s.mkdir(dir)
			case len(nodes) == 0 && r.IntN(4) == 0:
				s.next[dir] = 0
				s.delete(dir)
			case len(nodes) > 0 && r.IntN(9) < 4:
				s.delete(dir + "/" + nodes[r.IntN(len(nodes))])
			default:
				format := formats[r.IntN(len(formats))]
				s.create(dir, format, 1+r.Int64N(5))
			}
		}
		for range r.IntN(30) {
			change()
		}
		// The watch is set now.
		s.frames = nil
		type known struct{ created, since int64 } // -1 if before that
		model := map[string]known{}
		want := map[string][]int64{}
		observe := func(now int64, first bool) {
			present := map[string]bool{}
			for _, l := range s.find() {
				for _, c := range l.All() {
					k, ok := model[c.Path]
					if !ok {
						k = known{now, 0}
						if first {
							k.created = -1
						}
					}
					if l.Holds(&c) && k.since == 0 {
						if k.since = now; first {
							k.since = -1
						} else if k.created >= 0 {
							want["waited"] = append(want["waited"], now-k.created)
						}
					}
					model[c.Path] = k
					present[c.Path] = true
				}
			}
			for at, k := range model {
				if !present[at] {
					if k.since > 0 {
						want["held"] = append(want["held"], now-k.since)
					}
					delete(model, at)
				}
			}
		}
		observe(0, true)
		// The model looks when a change happens, and the Meter when it receives the event:
		// both get the number of the event as the time.
		var found []string
		for dir, nodes := range s.nodes {
			for name := range nodes {
				found = append(found, dir+"/"+name)
			}
		}
		events, received := int64(0), int64(0)
		receive := func() {
			if len(s.frames) > 0 {
				s.receive(received)
			}
		}
		for events < 200 || len(found) > 0 {
			switch r.IntN(4) {
			case 0:
				if events < 200 {
					change()
					events++
					observe(events, false)
					event, at := s.frames[len(s.frames)-1], events
					s.frames[len(s.frames)-1] = func(int64) { received = at; event(at) }
				}
			case 1:
				s.answer()
			case 2:
				receive()
			case 3:
				if len(found) > 0 {
					s.meter.Find(found[0], received)
					found = found[1:]
					s.asked = append(s.asked, s.meter.Questions()...)
				}
			}
		}
		for len(s.frames)+len(s.asked) > 0 {
			receive()
			s.answer()
		}
		s.compare(t)
		for _, what := range []string{"waited", "held"} {
			slices.Sort(s.times[what])
			slices.Sort(want[what])
			if !slices.Equal(s.times[what], want[what]) {
				t.Fatalf("run %d: %s: got %v, want %v", run, what, s.times[what], want[what])
			}
		}
		oldest := int64(0)
		for _, l := range s.find() {
			for _, h := range l.Holders {
				if k := model[h.Path]; k.since > 0 {
					oldest = max(oldest, 1000-k.since)
				} else {
					oldest = max(oldest, -1) // at least known to hold
				}
			}
		}
		if got := s.meter.Totals(1000).Oldest; got < oldest {
			t.Fatalf("run %d: the oldest has held for %d, want at least %d", run, got, oldest)
		}
	}
}

const (
	mutexName = "_c_" + guid + "-lock-%010d"
	readName  = "_c_" + guid + "-__READ__%010d"
	writeName = "_c_" + guid + "-__WRIT__%010d"
	leaseName = "_c_" + guid + "-lease-%010d"
	plainName = "lock-%010d"
)

func TestMeterTimes(t *testing.T) {
	t.Run("what was there before has no times", func(t *testing.T) {
		s := newMeasuredServer()
		s.mkdir("/l")
		holder, waiter := s.create("/l", mutexName, 1), s.create("/l", mutexName, 2)
		s.frames = nil
		s.meter.Find("/l/"+holder, 1000)
		s.settle(1000)
		if got := s.meter.Totals(5000); got != (Totals{1, 1, 1, 4000, 0}) {
			t.Errorf("%+v", got)
		}
		s.delete("/l/" + holder)
		s.settle(7000)
		s.wantTimes(t, "held")
		s.wantTimes(t, "waited")
		s.delete("/l/" + waiter)
		s.settle(7500)
		s.wantTimes(t, "held", 500)
		s.wantTimes(t, "waited")
	})
	t.Run("readers share", func(t *testing.T) {
		s := newMeasuredServer()
		s.mkdir("/l")
		w := s.create("/l", writeName, 1)
		s.settle(10)
		r1, r2 := s.create("/l", readName, 2), s.create("/l", readName, 3)
		s.settle(20)
		s.create("/l", writeName, 4)
		late := s.create("/l", readName, 5)
		s.settle(30)
		s.delete("/l/" + w)
		s.settle(100)
		s.wantTimes(t, "held", 90)
		s.wantTimes(t, "waited", 0, 80, 80)
		s.delete("/l/" + late) // gives up
		s.delete("/l/" + r1)
		s.settle(110)
		s.delete("/l/" + r2)
		s.settle(120)
		s.wantTimes(t, "held", 90, 10, 20)
		s.wantTimes(t, "waited", 0, 80, 80, 90)
		s.compare(t)
	})
	t.Run("shorter than an answer", func(t *testing.T) {
		s := newMeasuredServer()
		s.mkdir("/l")
		first := s.create("/l", mutexName, 1)
		second := s.create("/l", mutexName, 1)
		s.delete("/l/" + first)
		s.delete("/l/" + second)
		for now := int64(1); len(s.frames) > 0; now++ {
			s.receive(now)
		}
		s.settle(99)
		s.wantTimes(t, "held", 2, 1)
		s.wantTimes(t, "waited", 0, 1)
	})
	t.Run("an orphan before it", func(t *testing.T) {
		s := newMeasuredServer()
		s.mkdir("/l")
		orphan := s.create("/l", mutexName, 0)
		s.frames = nil
		s.create("/l", mutexName, 1)
		s.settle(10)
		s.compare(t)
		s.wantTimes(t, "waited")
		s.delete("/l/" + orphan)
		s.settle(15)
		s.wantTimes(t, "waited", 5)
		s.wantTimes(t, "held")
	})
	t.Run("not an entry", func(t *testing.T) { // a name without an id counts only if it is ephemeral
		s := newMeasuredServer()
		s.mkdir("/l")
		s.create("/l", plainName, math.MinInt64)
		s.frames = nil
		s.create("/l", plainName, 0)
		entry := s.create("/l", plainName, 1)
		s.settle(10)
		s.compare(t)
		s.delete("/l/" + entry)
		s.settle(15)
		s.compare(t)
		s.wantTimes(t, "held")
		s.wantTimes(t, "waited")
	})
	t.Run("numbers that have wrapped", func(t *testing.T) {
		s := newMeasuredServer()
		s.mkdir("/l")
		s.next["/l"] = math.MaxInt32
		before := s.create("/l", mutexName, 1)
		s.next["/l"] = math.MinInt32
		s.settle(10)
		s.create("/l", mutexName, 2)
		s.settle(20)
		s.compare(t)
		s.delete("/l/" + before)
		s.settle(30)
		s.compare(t)
		s.wantTimes(t, "held", 20)
		s.wantTimes(t, "waited", 0, 10)
	})
}

func TestMeterSemaphores(t *testing.T) {
	for _, when := range []string{"before", "after"} {
		s := newMeasuredServer()
		s.mkdir("/s")
		s.mkdir("/s/locks")
		s.mkdir("/s/leases")
		turn := s.create("/s/locks", mutexName, 1)
		if when == "after" {
			s.nodes["/s/leases"] = nil
			delete(s.nodes, "/s/leases")
			s.settle(1)
			s.mkdir("/s/leases")
		} else {
			s.frames = nil
			s.meter.Find("/s/locks/"+turn, 1)
		}
		s.create("/s/leases", leaseName, 1)
		s.settle(2)
		s.delete("/s/locks/" + turn)
		s.settle(3)
		s.create("/s/locks", mutexName, 2)
		s.settle(4)
		s.compare(t)
		s.wantTimes(t, "held")
		// As a mutex, it is measured again.
		s.delete("/s/leases")
		s.settle(5)
		s.create("/s/locks", mutexName, 3)
		s.settle(6)
		s.compare(t)
	}
	s := newMeasuredServer()
	s.mkdir("/s")
	s.mkdir("/s" + KazooQueue)
	s.create("/s"+KazooQueue, guid+"__lock__%010d", 1)
	s.settle(1)
	if got := s.meter.Totals(1); got != (Totals{}) {
		t.Errorf("kazoo's: %+v", got)
	}
}

func TestMeterLimits(t *testing.T) {
	s := newMeasuredServer()
	s.meter.MaxEntries, s.meter.MaxDirs = 10, 3
	for _, dir := range []string{"/a", "/b", "/c", "/d"} {
		s.mkdir(dir)
	}
	in := func(dir string, n int) (names []string) {
		for range n {
			names = append(names, s.create(dir, mutexName, 1))
		}
		s.settle(1)
		return names
	}
	in("/a", 4)
	many := in("/b", 7)
	if got := s.meter.Totals(1); got.Held != 1 || got.Waiting != 3 || got.Unmeasured != 1 || s.meter.entries != 4 {
		t.Errorf("%+v with %d entries", got, s.meter.entries)
	}
	for _, name := range many[2:] {
		s.delete("/b/" + name)
	}
	s.settle(2)
	s.meter.Retry(3)
	s.settle(3)
	s.compare(t)
	held := in("/c", 1)
	in("/d", 1)
	if got := s.meter.Totals(3); got.Held != 3 || got.Unmeasured != 1 {
		t.Errorf("%+v", got)
	}
	s.delete("/c/" + held[0])
	in("/d", 1)
	if got := s.meter.Totals(3); got.Held != 3 || got.Waiting != 5 || got.Unmeasured != 1 {
		t.Errorf("%+v", got)
	}
	// A directory with more children than there may be entries is not listed.
	s = newMeasuredServer()
	s.meter.MaxEntries = 10
	s.mkdir("/h")
	for i := range 11 {
		s.create("/h", fmt.Sprintf("other-%d-%%d", i), 1)
	}
	s.frames = nil
	in("/h", 1)
	if got := s.meter.Totals(3); got != (Totals{Unmeasured: 1}) || s.meter.entries != 0 {
		t.Errorf("%+v with %d entries", got, s.meter.entries)
	}
	// A change of something else is not remembered.
	for i := range 100 {
		s.mkdir(fmt.Sprintf("/x/%s%d", strings.Repeat("n", i), i))
	}
	s.settle(4)
	if len(s.meter.dirs) != 1 || len(s.asked) != 0 {
		t.Errorf("%d directories", len(s.meter.dirs))
	}
}

// TestMeterFull checks that a Meter which knows as many directories as it may, all of which have a
// holder, looks only now and then for one to forget: it is told of events while the state of the
// server is locked.
func TestMeterFull(t *testing.T) {
	m := &Meter{MaxDirs: 1000, MaxEntries: 10_000, Waited: func(int64) {}, Held: func(int64) {}}
	fill := func(from, to int) {
		for i := from; i < to; i++ {
			m.Created(fmt.Sprintf("/locks/%d/_c_x-lock-0000000000", i), 1)
		}
		for _, q := range m.Questions() {
			m.Listed(q, []string{"_c_x-lock-0000000000"}, true)
		}
	}
	fill(0, 1001)
	if m.full != 100 || len(m.dirs) != 1000 {
		t.Fatalf("it looks again after %d events, and knows %d directories", m.full, len(m.dirs))
	}
	for i := range 500 { // none of them is held any more
		m.Deleted(fmt.Sprintf("/locks/%d/_c_x-lock-0000000000", i), true, 2)
	}
	fill(2000, 2100)
	if len(m.dirs) != 1000 {
		t.Errorf("it has looked before its time")
	}
	fill(2100, 2101)
	if len(m.dirs) != 501 {
		t.Errorf("it knows %d directories", len(m.dirs))
	}
}
