package locks

import (
	"cmp"
	"slices"
	"strings"
)

// Meter measures how long clients wait for locks and how long they hold them. Its input is
// all znodes that are created and deleted, in order, and the answers to its questions. An
// answer must show exactly what the events that the Meter was told of before it have done.
//
// A Meter measures mutexes, read/write locks and elections, with the queues that [Find] sees.
// It leaves semaphores out: only the clients know who waits for one.
//
// Times are in nanoseconds since any fixed moment. A Meter is not safe for concurrent use.
type Meter struct {
	// Waited is called when a client gets a lock, with the time since the creation of its
	// entry, and Held when the entry of a holder is gone, with the time since it got the
	// lock. They are not called if the Meter has not seen both moments.
	Waited, Held func(ns int64)

	// MaxDirs is how many directories the Meter remembers, and MaxEntries how many entries
	// there may be in all of them.
	MaxDirs, MaxEntries int

	dirs      map[string]*queue
	entries   int // in all queues and logs
	overrun   bool
	full      int // how many times open does not look for directories to forget, since there were none
	questions []Question
}

// Question is for the names of a znode's children, which a [Meter] needs.
type Question struct {
	Dir  string // the directory that it concerns
	Path string // of the znode: Dir, or that of the leases beside it
}

// Totals describe the present locks.
type Totals struct {
	Held       int   // locks with a holder
	Waiting    int   // entries that wait, in all queues
	Longest    int   // entries that wait in the longest queue
	Oldest     int64 // ns that the oldest holder has held its lock, at least; 0 without holders
	Unmeasured int   // directories that have locks and are not measured, at least
}

// queue is a directory with entries of locks.
type queue struct {
	state  queueState
	opened int64
	log    []change // while the names of the children are not known
	all    []*entry // in the order of the queue
	holds  int      // how many of them hold the lock
}

type queueState int

const (
	unread     queueState = iota // its children are not known yet
	measured                     // all holds
	unmeasured                   // it has too many entries
	foreign                      // it is a part of a semaphore
)

// change says that an entry was created or deleted.
type change struct {
	name    string
	use     use
	number  int64
	deleted bool
	at      int64
}

type entry struct {
	text    string
	use     use
	number  int64
	seen    bool  // its creation was seen
	created int64 // if seen
	held    bool  // it holds the lock, or has held it
	since   int64 // if held: since when, at the latest
	exact   bool  // since is the moment at which it got the lock
}

// lockEntry returns what a name asks for, and its number, if it can be that of an entry in the
// queue of a lock that a Meter measures.
func lockEntry(text string) (u use, number int64, ok bool) {
	if end := len(text) - 1; end < 0 || text[end] < '0' || text[end] > '9' {
		return unknown, 0, false
	}
	m, _, number := find(text)
	if m == nil || m.use == lease {
		return unknown, 0, false
	}
	return m.use, number, true
}

// split returns the directory and the name of a path. ok is false for children of the root,
// which is not a lock.
func split(at string) (dir, base string, ok bool) {
	i := strings.LastIndexByte(at, '/')
	if i <= 0 {
		return "", "", false
	}
	return at[:i], at[i+1:], true
}

// Questions returns what the Meter has to read next, in this order. The caller must give
// every answer to [Meter.Listed] or [Meter.TooMany].
func (m *Meter) Questions() []Question {
	q := m.questions
	m.questions = nil
	return q
}

func (m *Meter) ask(dir, at string) { m.questions = append(m.questions, Question{dir, at}) }

// Find tells the Meter about a znode that exists and may be an entry of a lock.
func (m *Meter) Find(at string, now int64) {
	if dir, base, ok := split(at); ok {
		if _, _, ok := lockEntry(base); ok {
			m.open(dir, now)
		}
	}
}

// open returns the queue of a directory, and begins to read it if it is not known. It returns
// nil if it is not to be measured.
func (m *Meter) open(dir string, now int64) *queue {
	if q := m.dirs[dir]; q != nil {
		return q
	}
	if strings.HasSuffix(dir, KazooQueue) {
		return nil
	}
	if len(m.dirs) >= m.MaxDirs {
		if m.full--; m.full < 0 {
			for at, q := range m.dirs {
				if q.state == foreign || q.state == measured && len(q.all) == 0 {
					delete(m.dirs, at)
				}
			}
		}
		if len(m.dirs) >= m.MaxDirs {
			if m.overrun = true; m.full < 0 {
				m.full = m.MaxDirs / 10
			}
			return nil
		}
	}
	m.full = 0
	if m.dirs == nil {
		m.dirs = map[string]*queue{}
	}
	q := &queue{}
	m.dirs[dir] = q
	m.read(dir, q, now)
	return q
}

func (m *Meter) read(dir string, q *queue, now int64) {
	q.state, q.opened = unread, now
	if up, ok := strings.CutSuffix(dir, "/locks"); ok {
		m.ask(dir, up+"/leases")
	}
	m.ask(dir, dir)
}

// Retry reads the directories again that could not be measured.
func (m *Meter) Retry(now int64) {
	for dir, q := range m.dirs {
		if q.state == unmeasured {
			m.read(dir, q, now)
		}
	}
}

// drop forgets the entries of a queue.
func (m *Meter) drop(q *queue, state queueState) {
	m.entries -= len(q.all) + len(q.log)
	*q = queue{state: state}
}

// room counts a new entry of q. If there are too many, q is not measured any more.
func (m *Meter) room(q *queue) bool {
	if m.entries >= m.MaxEntries {
		m.drop(q, unmeasured)
		return false
	}
	m.entries++
	return true
}

// Created tells the Meter that a znode was created.
func (m *Meter) Created(at string, now int64) {
	// The directory of leases shows that the queue beside it is that of a semaphore.
	if up, ok := strings.CutSuffix(at, "/leases"); ok && m.dirs[up+"/locks"] != nil {
		m.drop(m.dirs[up+"/locks"], foreign)
	}
	dir, base, ok := split(at)
	if !ok {
		return
	}
	use, number, ok := lockEntry(base)
	if !ok {
		// The first lease shows that the queue beside it is that of a semaphore.
		if up, ok := strings.CutSuffix(dir, "/leases"); ok && m.dirs[up+"/locks"] != nil {
			if n, _ := parse(base); n.use == lease {
				m.drop(m.dirs[up+"/locks"], foreign)
			}
		}
		return
	}
	m.changed(dir, change{base, use, number, false, now})
}

// changed carries out a change of a directory, or keeps it for when the names there are known.
func (m *Meter) changed(dir string, c change) {
	switch q := m.open(dir, c.at); {
	case q == nil:
	case q.state == measured:
		m.apply(q, c)
	case q.state == unread && m.room(q):
		q.log = append(q.log, c)
	}
}

// apply carries out a change of a queue that is measured. It returns false if there are too many entries.
func (m *Meter) apply(q *queue, c change) bool {
	switch {
	case c.deleted:
		m.remove(q, q.index(c.number, c.name), c.at)
	case !m.room(q):
		return false
	default:
		q.insert(&entry{text: c.name, use: c.use, number: c.number, seen: true, created: c.at})
	}
	m.settle(q, c.at, true)
	return true
}

// Deleted tells the Meter that a znode was deleted. An ephemeral one cannot have been a directory.
func (m *Meter) Deleted(at string, ephemeral bool, now int64) {
	if !ephemeral {
		m.deletedDir(at)
	}
	dir, base, ok := split(at)
	if !ok {
		return
	}
	if q := m.dirs[dir]; q != nil && q.state == measured && len(q.all) > 0 && q.all[0].text == base { // most often
		m.remove(q, 0, now)
		m.settle(q, now, true)
		return
	}
	if use, number, ok := lockEntry(base); ok {
		m.changed(dir, change{base, use, number, true, now})
	}
}

func (m *Meter) deletedDir(at string) {
	if q := m.dirs[at]; q != nil {
		if q.state == unread { // now it is certain that it has no children
			m.begin(q, nil)
		}
		m.drop(q, unread)
		delete(m.dirs, at)
	}
	if up, ok := strings.CutSuffix(at, "/leases"); ok {
		if q := m.dirs[up+"/locks"]; q != nil && q.state == foreign {
			delete(m.dirs, up+"/locks")
		}
	}
}

// Listed is the answer to a question: the names of the children, if the znode exists.
func (m *Meter) Listed(a Question, names []string, exists bool) {
	q := m.dirs[a.Dir]
	if q == nil || q.state != unread {
		return
	}
	switch {
	case a.Path != a.Dir: // the leases of a semaphore
		if exists && !slices.ContainsFunc(names, func(s string) bool { n, _ := parse(s); return n.use != lease }) {
			m.drop(q, foreign)
		}
	case !exists:
		m.drop(q, unread)
		delete(m.dirs, a.Dir)
	default:
		m.begin(q, names)
	}
}

// TooMany is the answer to a question if the znode has more children than MaxEntries.
func (m *Meter) TooMany(a Question) {
	if q := m.dirs[a.Dir]; q != nil && q.state == unread && a.Path == a.Dir {
		m.drop(q, unmeasured)
	}
}

// begin starts to measure a queue whose children are now known. It works out which children
// existed before the first event in the log, and then replays the events at their times.
func (m *Meter) begin(q *queue, names []string) {
	log := q.log
	changed := map[string]bool{}
	before := []string(nil)
	for _, c := range log {
		if c.deleted && !changed[c.name] {
			before = append(before, c.name)
		}
		changed[c.name] = true
	}
	for _, text := range names {
		if !changed[text] {
			before = append(before, text)
		}
	}
	opened := q.opened
	m.drop(q, measured)
	slices.Sort(before) // entries with the same number must have some order
	for _, text := range before {
		use, number, ok := lockEntry(text)
		if !ok {
			continue
		}
		if !m.room(q) {
			return
		}
		q.insert(&entry{text: text, use: use, number: number})
	}
	m.settle(q, opened, false)
	for _, c := range log {
		if !m.apply(q, c) {
			return
		}
	}
}

// insert puts an entry into its place, as in [Queue].
func (q *queue) insert(e *entry) {
	i := len(q.all)
	for i > 0 && q.all[i-1].compare(e.number, e.text) > 0 {
		i--
	}
	q.all = slices.Insert(q.all, i, e)
}

func (e *entry) compare(number int64, text string) int {
	return cmp.Or(cmp.Compare(e.number, number), cmp.Compare(e.text, text))
}

func (q *queue) index(number int64, text string) int {
	i, found := slices.BinarySearchFunc(q.all, number, func(e *entry, number int64) int { return e.compare(number, text) })
	if !found {
		return -1
	}
	return i
}

// remove takes out the i-th entry, which was deleted. If i is -1, there is none.
func (m *Meter) remove(q *queue, i int, now int64) {
	if i < 0 {
		return
	}
	if e := q.all[i]; e.held && e.exact {
		m.Held(now - e.since)
	}
	q.all = slices.Delete(q.all, i, i+1)
	m.entries--
}

// settle finds out who holds the lock after a change. exact says that those who have become
// holders did so at the time now.
func (m *Meter) settle(q *queue, now int64, exact bool) {
	q.holds = holders(len(q.all), func(i int) bool { return q.all[i].use == read })
	for _, e := range q.all[:q.holds] {
		if !e.held {
			e.held, e.since, e.exact = true, now, exact
			if exact && e.seen {
				m.Waited(now - e.created)
			}
		}
	}
}

// Totals returns the totals at a given time.
func (m *Meter) Totals(now int64) (t Totals) {
	if m.overrun {
		t.Unmeasured++
	}
	for _, q := range m.dirs {
		if q.state == unmeasured {
			t.Unmeasured++
		}
		if q.holds > 0 {
			t.Held++
		}
		waiting := len(q.all) - q.holds
		t.Waiting += waiting
		t.Longest = max(t.Longest, waiting)
		for _, e := range q.all[:q.holds] {
			t.Oldest = max(t.Oldest, now-e.since)
		}
	}
	return t
}
