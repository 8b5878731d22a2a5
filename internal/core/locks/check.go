package locks

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Fault is a kind of problem.
type Fault string

// The kinds of problems.
const (
	// Orphan: a lock's znode that is not ephemeral. It stays until somebody deletes it.
	Orphan Fault = "orphan"
	// Duplicate: two znodes with the UUID of one attempt to lock. The client knows one.
	Duplicate Fault = "duplicate"
	// Unwatched: a client that waits does not watch any znode before its own, so it does not
	// learn when the lock is free.
	Unwatched Fault = "watches-nobody"
	// Cycle: sessions that wait for each other.
	Cycle Fault = "cycle"
	// Itself: a session that waits for a lock that it holds itself. That is no problem if
	// several threads share the session.
	Itself Fault = "waits-for-itself"
)

// Problem is something that is wrong with locks.
type Problem struct {
	Fault  Fault
	Path   string      // of the lock; of a cycle, that of its first lock
	Znodes []Contender // the entries that the problem is about
	Text   string      // what is wrong, without the path
	Harm   bool        // false if it can be intended
}

// Same reports whether two problems are about the same znodes.
func (p *Problem) Same(q *Problem) bool {
	return p.Fault == q.Fault && slices.EqualFunc(p.Znodes, q.Znodes, func(a, b Contender) bool { return a.Path == b.Path && a.Token == b.Token })
}

// Check returns what is wrong with locks. watched returns the paths that a session watches,
// and false if that is not known; it may be nil.
//
// Unless all locks were read at the same moment, Check may report a cycle, or a client
// without a watch, that never existed. Such a problem is real if Check reports the
// [Problem.Same] after the locks were read a second time, late enough for clients to have
// set their watches.
func Check(all []Lock, watched func(session int64) (paths []string, known bool)) (problems []Problem) {
	for i := range all {
		l := &all[i]
		problems = append(problems, l.orphans()...)
		problems = append(problems, l.duplicates()...)
		if watched != nil {
			problems = append(problems, l.unwatched(watched)...)
		}
	}
	return append(problems, cycles(all)...)
}

func (l *Lock) problem(fault Fault, text string, znodes ...Contender) Problem {
	return Problem{fault, l.Path, znodes, text, fault != Itself}
}

func (l *Lock) orphans() (problems []Problem) {
	for _, c := range l.All() {
		if c.Session == 0 {
			problems = append(problems, l.problem(Orphan, fmt.Sprintf("%s is not ephemeral: it stays in the queue until somebody deletes it", path.Base(c.Path)), c))
		}
	}
	return problems
}

func (l *Lock) duplicates() (problems []Problem) {
	all := l.All()
	for i, c := range all {
		for _, d := range all[i+1:] {
			if c.name.id != "" && c.name.id == d.name.id && c.name.use == d.name.use && c.Session == d.Session && path.Dir(c.Path) == path.Dir(d.Path) {
				problems = append(problems, l.problem(Duplicate, fmt.Sprintf("%s and %s are of one attempt of session %s, which knows only one of them", path.Base(c.Path), path.Base(d.Path), ID(c.Session)), c, d))
			}
		}
	}
	return problems
}

// watching reports whether everyone who waits for the lock watches a znode of its queue.
func (l *Lock) watching() bool { return l.Kind != Semaphore && l.Kind != Unknown }

// Watchers returns how many watches there must be at least for all who wait.
func Watchers(all []Lock) (n int) {
	for i := range all {
		if l := &all[i]; l.watching() {
			sessions := map[int64]bool{} // a session's watches on one znode count as one
			for _, c := range l.Queue {
				if c.Session != 0 {
					sessions[c.Session] = true
				}
			}
			n += len(sessions)
		}
	}
	return n
}

// Unseen returns how many sessions wait in a way that takes a watch, and may have none, since
// it is not known what they watch.
func Unseen(all []Lock, watched func(session int64) (paths []string, known bool)) int {
	sessions := map[int64]bool{}
	for i := range all {
		if l := &all[i]; l.watching() {
			for _, c := range l.Queue {
				if _, known := watched(c.Session); c.Session != 0 && !known {
					sessions[c.Session] = true
				}
			}
		}
	}
	return len(sessions)
}

func (l *Lock) unwatched(watched func(session int64) ([]string, bool)) (problems []Problem) {
	if !l.watching() {
		return nil
	}
	all := l.All()
	for i, c := range l.Queue {
		paths, known := watched(c.Session)
		before := all[:len(l.Holders)+i]
		if c.Session == 0 || !known || slices.Contains(paths, l.Path) || slices.ContainsFunc(before, func(b Contender) bool { return slices.Contains(paths, b.Path) }) {
			continue
		}
		problems = append(problems, l.problem(Unwatched, fmt.Sprintf("session %s waits as %s, but watches no znode before it", ID(c.Session), path.Base(c.Path)), c))
	}
	return problems
}

// wait is an entry of a session that waits for a lock.
type wait struct {
	lock *Lock
	c    Contender
}

// served reports whether the wait can end although the sessions in stuck never release what
// they hold.
func (w *wait) served(stuck map[int64]bool) bool {
	can := func(h Contender) bool { return !stuck[h.Session] && h.Session != 0 }
	if w.lock.Kind == Semaphore { // one of the holders is enough
		return slices.ContainsFunc(w.lock.Holders, can) || len(w.lock.Holders) == 0
	}
	return !slices.ContainsFunc(w.lock.Holders, func(h Contender) bool { return !can(h) })
}

func cycles(all []Lock) (problems []Problem) {
	waits := map[int64][]wait{}
	var sessions []int64 // with waits, in the order of the locks
	for i := range all {
		l := &all[i]
		for _, c := range l.Queue {
			if c.Session == 0 {
				continue
			}
			if j := slices.IndexFunc(l.Holders, func(h Contender) bool { return h.Session == c.Session }); j >= 0 {
				problems = append(problems, l.problem(Itself, fmt.Sprintf("session %s waits as %s for a lock that it holds itself: it waits forever, unless several threads share the session", ID(c.Session), path.Base(c.Path)), l.Holders[j], c))
				continue
			}
			if waits[c.Session] == nil {
				sessions = append(sessions, c.Session)
			}
			waits[c.Session] = append(waits[c.Session], wait{l, c})
		}
	}
	// Whoever can be served in the end is not stuck.
	stuck := map[int64]bool{}
	for _, s := range sessions {
		stuck[s] = true
	}
	for changed := true; changed; {
		changed = false
		for s := range stuck {
			if !slices.ContainsFunc(waits[s], func(w wait) bool { return !w.served(stuck) }) {
				delete(stuck, s)
				changed = true
			}
		}
	}
	for _, s := range sessions {
		if stuck[s] {
			if way := shortest(s, waits, stuck); way != nil {
				problems = append(problems, cycle(way))
				for _, h := range way { // each session belongs to one report
					delete(stuck, h.w.c.Session)
				}
			}
		}
	}
	return problems
}

// step is a part of a cycle: w waits for holder.
type step struct {
	w      wait
	holder Contender
}

// shortest returns a shortest cycle that contains a session, or nil.
func shortest(from int64, waits map[int64][]wait, stuck map[int64]bool) []step {
	type place struct {
		session int64
		way     []step
	}
	seen := map[int64]bool{}
	for queue := []place{{session: from}}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, w := range waits[at.session] {
			for _, h := range w.lock.Holders {
				way := append(slices.Clone(at.way), step{w, h})
				switch {
				case h.Session == from:
					return way
				case stuck[h.Session] && !seen[h.Session]:
					seen[h.Session] = true
					queue = append(queue, place{h.Session, way})
				}
			}
		}
	}
	return nil
}

func cycle(way []step) Problem {
	first := slices.IndexFunc(way, func(s step) bool {
		return s.w.lock.Path == slices.MinFunc(way, func(a, b step) int { return cmp.Compare(a.w.lock.Path, b.w.lock.Path) }).w.lock.Path
	})
	way = slices.Concat(way[first:], way[:first]) // the same however it was found
	var parts []string
	var znodes []Contender
	for _, s := range way {
		parts = append(parts, fmt.Sprintf("session %s waits for %s, which %s holds", ID(s.w.c.Session), s.w.lock.Path, ID(s.holder.Session)))
		znodes = append(znodes, s.w.c, s.holder)
	}
	return Problem{Cycle, way[0].w.lock.Path, znodes, strings.Join(parts, "; "), true}
}

// ID formats the id of a session as ZooKeeper does.
func ID(session int64) string { return fmt.Sprintf("0x%x", uint64(session)) }
