package admin

import (
	"cmp"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/core/locks"
)

// This file chooses what of the state a browser gets.

// view is what a browser wants to see.
type view struct {
	filter  string // in lower case; "" for everything
	longest bool   // the longest queues first, instead of the order of the paths
	page    int    // from 0
	lock    string // path of the lock that is shown with its history; "" if none is
	folded  bool   // whether groups are folded, except those in except
	except  string // paths of groups, each with a NUL before and after

	client        string // the filter of clients, like filter
	clientPage    int    // from 0
	foldedServers string // ids of servers whose clients are folded, each with a NUL before and after
}

// Limits of a view.
const (
	maxFilter = 400  // bytes
	maxPath   = 4096 // bytes, of the lock, and of all groups in except
	manyLocks = 20   // more are grouped by their parents
	wholeList = 10   // up to so many locks are shown with shownContenders entries, more with fewEntries
)

// viewOf reads the parameters of a request for the stream, which the page sends. The error is of those that are too long.
func viewOf(q url.Values) (view, error) {
	page := func(name string) int {
		n, _ := strconv.Atoi(q.Get(name))
		return max(0, n-1)
	}
	filter := func(name string) string { return strings.ToLower(strings.TrimSpace(q.Get(name))) }
	set := func(name string) string {
		all := slices.Sorted(slices.Values(q[name]))
		if len(all) == 0 {
			return ""
		}
		return "\x00" + strings.Join(all, "\x00") + "\x00"
	}
	v := view{
		filter: filter("q"), longest: q.Get("sort") == "waiting", page: page("page"), lock: q.Get("lock"), folded: q.Get("groups") == "folded", except: set("except"),
		client: filter("client"), clientPage: page("clientPage"), foldedServers: set("foldServer"),
	}
	if len(v.filter) > maxFilter || len(v.client) > maxFilter || len(v.lock) > maxPath || len(v.except) > maxPath || len(v.foldedServers) > maxPath {
		return v, fmt.Errorf("a filter may have %d bytes, the path of a lock %d, and those of groups %d", maxFilter, maxPath, maxPath)
	}
	return v, nil
}

func (v *view) folds(group string) bool {
	return v.folded != strings.Contains(v.except, "\x00"+group+"\x00")
}

// scene is the state with everything that views are made of.
type scene struct {
	state    state // without what show adds
	members  []member
	locks    []locks.Lock
	problems []problem
	inCycle  map[string]bool // znodes
	sessions map[int64]*sessionInfo
	total    int                     // sessions that exist
	data     map[entry]string        // of holders
	history  map[string]*lockHistory // by lock
}

func (c *scene) show(w view) *state {
	s := c.state
	s.Locks, s.Groups, s.Sessions = []lockState{}, []group{}, []sessionInfo{}
	var matching []*locks.Lock
	seen := map[int64]bool{} // sessions of those locks
	for i := range c.locks {
		l := &c.locks[i]
		if !c.matches(l, w.filter) {
			continue
		}
		matching = append(matching, l)
		if w.filter != "" {
			for _, x := range l.All() {
				seen[x.Session] = true
			}
		}
	}
	s.Matching = len(matching)
	c.listProblems(&s, matching)
	c.list(&s, matching, &w)
	s.LocksMore = len(c.locks) - len(s.Locks)
	if w.lock != "" {
		s.Lock = c.single(w.lock)
	}
	c.listClients(&s, &w)
	c.listSessions(&s, func(id int64, x *sessionInfo) bool {
		return w.filter == "" || seen[id] || strings.Contains(x.ID, w.filter) || strings.Contains(strings.ToLower(x.Addr), w.filter)
	})
	return &s
}

// matches reports whether the path of a lock, its kind of client, or the session, address or
// data of somebody in its queue contains the filter.
func (c *scene) matches(l *locks.Lock, filter string) bool {
	has := func(text string) bool { return strings.Contains(strings.ToLower(text), filter) }
	if filter == "" || has(l.Path) || has(string(l.Client)) {
		return true
	}
	return slices.ContainsFunc(l.All(), func(x locks.Contender) bool {
		if x.Session != 0 && has(locks.ID(x.Session)) {
			return true
		}
		s := c.sessions[x.Session]
		return s != nil && has(s.Addr) || has(c.data[entry{x.Path, x.Token}])
	})
}

// list adds one page of locks, in groups by their parents if there are many. The group of a lock
// that is the only one of its parent is not shown; these locks come first.
func (c *scene) list(s *state, matching []*locks.Lock, w *view) {
	groups := map[string]*group{}
	parent := func(l *locks.Lock) string { return path.Dir(l.Path) }
	if w.longest {
		slices.SortStableFunc(matching, func(a, b *locks.Lock) int { return cmp.Compare(len(b.Queue), len(a.Queue)) })
	} else if len(matching) > manyLocks {
		for _, l := range matching {
			g := groups[parent(l)]
			if g == nil {
				g = &group{Path: parent(l), Folded: w.folds(parent(l))}
				groups[parent(l)] = g
			}
			g.Locks++
			g.Waiting += len(l.Queue)
			g.Cycle = g.Cycle || slices.ContainsFunc(l.All(), func(x locks.Contender) bool { return c.inCycle[x.Path] })
		}
		for path, g := range groups {
			if g.Locks == 1 {
				delete(groups, path)
			}
		}
		of := func(l *locks.Lock) string {
			if groups[parent(l)] == nil {
				return ""
			}
			return parent(l)
		}
		slices.SortStableFunc(matching, func(a, b *locks.Lock) int { return cmp.Compare(of(a), of(b)) })
	}
	// A row is the head of a group or a lock. A folded group has only its head.
	type row struct {
		group *group
		lock  *locks.Lock
	}
	var rows []row
	var last *group
	for _, l := range matching {
		g := groups[parent(l)]
		if g != nil && g != last {
			rows = append(rows, row{group: g})
		}
		if last = g; g == nil || !g.Folded {
			rows = append(rows, row{g, l})
		}
	}
	s.Pages = max(1, (len(rows)+shownLocks-1)/shownLocks)
	s.Page = min(w.page, s.Pages-1) + 1
	rows = rows[min((s.Page-1)*shownLocks, len(rows)):]
	rows = rows[:min(shownLocks, len(rows))]
	n := shownContenders
	if len(rows) > wholeList {
		n = fewEntries
	}
	last = nil
	for _, r := range rows {
		if r.group != nil && r.group != last {
			s.Groups = append(s.Groups, *r.group)
		}
		if last = r.group; r.lock != nil {
			l := c.lockOf(r.lock, n)
			if r.group != nil {
				l.Group = r.group.Path
			}
			s.Locks = append(s.Locks, l)
		}
	}
}

// listProblems adds the problems of these locks, by lock, those with cycles first.
func (c *scene) listProblems(s *state, matching []*locks.Lock) {
	wanted, at := map[string]bool{}, map[string]int{}
	for _, l := range matching {
		wanted[l.Path] = true
	}
	var all []lockProblems
	for _, cycle := range []bool{true, false} {
		for _, p := range c.problems {
			is := func(path string) bool { return wanted[path] }
			if (p.Fault == string(locks.Cycle)) != cycle || !is(p.path) && !slices.ContainsFunc(p.Others, is) {
				continue
			}
			i, known := at[p.path]
			if !known {
				i = len(all)
				at[p.path] = i
				all = append(all, lockProblems{Path: p.path})
			}
			if g := &all[i]; len(g.Problems) < fewEntries {
				g.Problems = append(g.Problems, p)
			} else {
				g.More++
			}
		}
	}
	n := min(len(all), shownProblems)
	s.Problems, s.ProblemsMore = append([]lockProblems{}, all[:n]...), len(all)-n
}

// single returns a lock with its history. One that nobody holds or waits for has only that.
func (c *scene) single(at string) *lockDetail {
	d := &lockDetail{lockState: lockState{Path: at, Holders: []contender{}, Queue: []contender{}}, CycleWith: []string{}, History: []tenure{}}
	for _, p := range c.problems {
		if about := append([]string{p.path}, p.Others...); p.Fault == string(locks.Cycle) && slices.Contains(about, at) {
			for _, other := range about {
				if other != at && !slices.Contains(d.CycleWith, other) {
					d.CycleWith = append(d.CycleWith, other)
				}
			}
		}
	}
	for i := range c.locks {
		if c.locks[i].Path == at {
			d.lockState = c.lockOf(&c.locks[i], shownContenders)
			break
		}
	}
	if h := c.history[at]; h != nil {
		d.History = h.tenures
	}
	return d
}

func (c *scene) lockOf(l *locks.Lock, n int) lockState {
	x := lockState{Path: l.Path, Kind: string(l.Kind), Client: string(l.Client), Slots: l.Slots, Holding: len(l.Holders), Waiting: len(l.Queue)}
	add := func(from []locks.Contender) []contender {
		to := []contender{}
		for _, y := range from {
			cycle := c.inCycle[y.Path]
			x.Cycle = x.Cycle || cycle
			if len(to) == n {
				x.More++
				continue
			}
			z := contender{Path: y.Path, Token: strconv.FormatInt(y.Token, 10), Since: y.Since, Shared: y.Shared, Cycle: cycle, Data: c.data[entry{y.Path, y.Token}]}
			if y.Session != 0 {
				z.Session = locks.ID(y.Session)
			}
			if s := c.sessions[y.Session]; s != nil {
				z.place, z.Timeout, z.Expires = s.place, s.Timeout, s.Expires
			}
			to = append(to, z)
		}
		return to
	}
	x.Holders, x.Queue = add(l.Holders), add(l.Queue)
	return x
}

// listSessions adds the sessions that are wanted, those with locks first, if there are too many.
func (c *scene) listSessions(s *state, wanted func(int64, *sessionInfo) bool) {
	var ids []int64
	for id, x := range c.sessions {
		if wanted(id, x) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int64) int {
		x, y := c.sessions[a], c.sessions[b]
		return cmp.Or(cmp.Compare(y.Holds, x.Holds), cmp.Compare(y.Waits, x.Waits), cmp.Compare(uint64(a), uint64(b)))
	})
	ids = ids[:min(len(ids), shownSessions)]
	slices.SortFunc(ids, func(a, b int64) int { return cmp.Compare(uint64(a), uint64(b)) })
	for _, id := range ids {
		s.Sessions = append(s.Sessions, *c.sessions[id])
	}
	s.SessionsMore = max(0, c.total-len(ids))
}

// maxTenures is how many holders the history of a lock has.
const maxTenures = 20

// lockHistory has those who held a lock while a browser had the console open.
type lockHistory struct {
	token    int64 // of the newest
	sequence int   // of its znode
	tenures  []tenure
}

// tenure is the time for which somebody held a lock, as states showed it.
type tenure struct {
	Session string `json:"session"` // "" if the znode is not ephemeral
	Token   string `json:"token"`
	Data    string `json:"data"`
	Since   int64  `json:"since"` // its znode was created then
	// From is when the console saw that it held the lock; 0 if it did already when the console
	// saw the lock's directory for the first time.
	From  int64  `json:"from"`
	Until int64  `json:"until"` // when the console saw that it no longer did; 0 if it does
	After string `json:"after"` // the session that it passed from; "" if nobody held it in the state before

	path  string // of its znode
	token int64
}

// remember adds what has changed to the histories. first is true for the first state. It also counts how often a lock
// got a new holder. Between two states that can happen several times; the sequence numbers of the znodes tell how
// often, unless somebody has given up waiting.
func (v *survey) remember(all []locks.Lock, now int64, first bool) {
	held := map[string]bool{}
	for i := range all {
		l := &all[i]
		held[l.Path] = true
		h, known := v.history[l.Path]
		if !known {
			h = &lockHistory{}
			v.history[l.Path] = h
		}
		fresh := slices.Clone(h.tenures) // a state that is being shown has the old ones
		after := ""
		for j := range fresh {
			t := &fresh[j]
			if holds := slices.ContainsFunc(l.Holders, func(c locks.Contender) bool { return c.Path == t.path && c.Token == t.token }); !holds && t.Until == 0 {
				t.Until, after = now, t.Session
			}
			if t.Until == 0 {
				t.Data = cmp.Or(v.data[entry{t.path, t.token}], t.Data)
			}
		}
		before, granted := *h, 0
		for _, c := range l.Holders {
			if c.Token <= before.token {
				continue
			}
			granted++
			if c.Token > h.token {
				h.token = c.Token
				h.sequence, _ = locks.Sequence(path.Base(c.Path))
			}
			t := tenure{Token: strconv.FormatInt(c.Token, 10), Data: v.data[entry{c.Path, c.Token}], Since: c.Since, From: now, After: after, path: c.Path, token: c.Token}
			if c.Session != 0 {
				t.Session = locks.ID(c.Session)
			}
			if first {
				t.From = 0
			}
			fresh = append(fresh, t)
		}
		h.tenures = fresh[max(0, len(fresh)-maxTenures):]
		if granted > 0 && known && l.Kind != locks.Semaphore {
			granted = max(granted, h.sequence-before.sequence)
		}
		if !first {
			v.grants += float64(granted)
		}
	}
	for at, h := range v.history {
		if held[at] {
			continue
		}
		if len(v.history) > 2*maxLockDirs {
			delete(v.history, at)
			continue
		}
		h.tenures = slices.Clone(h.tenures)
		for j := range h.tenures {
			if h.tenures[j].Until == 0 {
				h.tenures[j].Until = now
			}
		}
	}
}
