package admin

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/proto"
)

// This file reads the queues of locks.

// locks adds the locks.
func (v *survey) locks(s *state, ephemerals []string, watched map[int64][]string, of func(int64) *sessionInfo) {
	if s.Notes.Locks != "" {
		return
	}
	dirs, note := v.directories(ephemerals)
	s.Notes.Locks = note
	all := locks.Find(dirs, false)
	v.count(all)
	problems := v.problems(all, func(session int64) ([]string, bool) {
		return watched[session], watched != nil && of(session).Addr != ""
	})
	inCycle := map[string]bool{}
	for _, p := range problems {
		if p.Fault == locks.Cycle {
			s.Totals.Cycles++
			for _, c := range p.Znodes {
				inCycle[c.Path] = true
			}
		}
		if len(s.Problems) < shownProblems {
			s.Problems = append(s.Problems, problem{string(p.Fault), p.Path, p.Text, p.Harm})
		}
	}
	s.Totals.Locks = len(all)
	for i := range all {
		l := &all[i]
		s.Totals.Holders += len(l.Holders)
		s.Totals.Waiting += len(l.Queue)
		for _, c := range l.Holders {
			if c.Session != 0 {
				of(c.Session).Holds++
			}
		}
		for _, c := range l.Queue {
			if c.Session != 0 {
				of(c.Session).Waits++
			}
		}
		s.Locks = append(s.Locks, lockOf(l, inCycle))
	}
	// If there are too many, those with cycles and long queues are shown, in the order of
	// their paths.
	if s.LocksMore = max(0, len(s.Locks)-shownLocks); s.LocksMore > 0 {
		weight := func(l *lockState) int {
			if l.Cycle {
				return -1 << 31
			}
			return -len(l.Queue) - l.More
		}
		slices.SortStableFunc(s.Locks, func(a, b lockState) int { return cmp.Compare(weight(&a), weight(&b)) })
		s.Locks = s.Locks[:shownLocks]
		slices.SortFunc(s.Locks, func(a, b lockState) int { return cmp.Compare(a.Path, b.Path) })
	}
	v.describe(s.Locks)
}

// describe adds the data of the holders that are shown.
func (v *survey) describe(all []lockState) {
	budget := maxData
	known := map[contender]string{}
	for i := range all {
		for j := range all[i].Holders {
			h := &all[i].Holders[j]
			key := contender{Path: h.Path, Token: h.Token}
			text, ok := v.data[key]
			if !ok && h.length > 0 && budget > 0 {
				var data []byte
				var err error
				if h.length <= locks.MaxData {
					budget--
					data, err = v.reader.data(h.Path)
				}
				if err == nil {
					text = locks.DataText(data, max(h.length, int32(len(data))))
				}
				ok = err == nil || errors.As(err, new(proto.Code)) // otherwise it is asked for again
			}
			if ok {
				h.Data, known[key] = text, text
			}
		}
	}
	v.data = known
}

func lockOf(l *locks.Lock, inCycle map[string]bool) lockState {
	x := lockState{Path: l.Path, Kind: string(l.Kind), Client: string(l.Client), Slots: l.Slots, Holders: []contender{}, Queue: []contender{}}
	add := func(to *[]contender, from []locks.Contender) {
		for _, c := range from {
			cycle := inCycle[c.Path]
			x.Cycle = x.Cycle || cycle
			if len(*to) == shownContenders {
				x.More++
				continue
			}
			id := ""
			if c.Session != 0 {
				id = locks.ID(c.Session)
			}
			*to = append(*to, contender{Path: c.Path, Session: id, Token: strconv.FormatInt(c.Token, 10), Since: c.Since, Shared: c.Shared, Cycle: cycle, length: c.Length})
		}
	}
	add(&x.Holders, l.Holders)
	add(&x.Queue, l.Queue)
	return x
}

// setsWatches is how long a client may take to set its watches.
const setsWatches = 2 * time.Second

// problems returns what is wrong with the locks and was so before: the locks are not read at
// one moment, and a client needs some time to set a watch.
func (v *survey) problems(all []locks.Lock, watched func(int64) ([]string, bool)) (sure []locks.Problem) {
	now := time.Now()
	before := v.seen
	v.seen = nil
	for _, p := range locks.Check(all, watched) {
		x := suspicion{p, now}
		if i := slices.IndexFunc(before, func(b suspicion) bool { return b.Same(&p) }); i >= 0 {
			x.since = before[i].since
			if p.Fault != locks.Unwatched || now.Sub(x.since) >= setsWatches {
				sure = append(sure, p)
			}
		}
		v.seen = append(v.seen, x)
	}
	return sure
}

// count counts how often a lock got a new holder. Between two states that can happen
// several times; the sequence numbers of the znodes tell how often, unless somebody has
// given up waiting.
func (v *survey) count(all []locks.Lock) {
	first := v.newest == nil
	if len(v.newest) > 4*maxLockDirs {
		clear(v.newest)
		first = true
	}
	if first {
		v.newest = map[string]holder{}
	}
	for i := range all {
		l := &all[i]
		before, known := v.newest[l.Path]
		fresh, newest := 0, before
		for _, h := range l.Holders {
			if h.Token > before.token {
				fresh++
			}
			if h.Token > newest.token {
				n, _ := locks.Sequence(path.Base(h.Path))
				newest = holder{h.Token, int64(n)}
			}
		}
		if fresh > 0 && known && l.Kind != locks.Semaphore {
			fresh = max(fresh, int(newest.sequence-before.sequence))
		}
		if !first {
			v.grants += float64(fresh)
		}
		v.newest[l.Path] = newest
	}
}

// lockDir is a znode that was read because it may be a lock.
type lockDir struct {
	locks.Directory
	czxid, pzxid int64
	complete     bool
	hidden       bool // the ACLs of some entries do not let the console read them
}

// directories reads the znodes that may be locks: those with ephemeral children whose names
// are those of lock recipes, and the parts of semaphores. A lock without an ephemeral
// child is not found; nobody waits for it. What has not changed is not read again.
func (v *survey) directories(ephemerals []string) (dirs map[string]*locks.Directory, note string) {
	wanted := map[string]bool{}
	for _, at := range ephemerals {
		dir, name := path.Split(at)
		if dir = strings.TrimSuffix(dir, "/"); dir == "" || !locks.Interesting(name) {
			continue
		}
		wanted[dir] = true
		if part(path.Base(dir)) && path.Dir(dir) != "/" {
			wanted[path.Dir(dir)] = true
		}
	}
	todo := slices.Sorted(maps.Keys(wanted))
	if len(todo) > maxLockDirs {
		note = fmt.Sprintf("Only the first %d of %d directories of locks are shown.", maxLockDirs, len(todo))
		todo = todo[:maxLockDirs]
	}
	budget := maxStats
	read := map[string]*lockDir{}
	for len(todo) > 0 {
		at := todo[0]
		todo = todo[1:]
		if read[at] != nil {
			continue
		}
		d, parts, err := v.directory(at, &budget)
		switch {
		case err != nil:
			note = cmp.Or(note, fmt.Sprintf("%s is not shown: %s.", at, reason(err)))
			continue
		case d == nil:
			continue
		case !d.complete:
			note = cmp.Or(note, "The console is still reading.")
		case d.hidden:
			note = cmp.Or(note, fmt.Sprintf("%s has entries whose ACL does not let the console read them.", at))
		}
		read[at] = d
		todo = append(todo, parts...)
	}
	v.lockDirs = read
	dirs = map[string]*locks.Directory{}
	for at, d := range read {
		dirs[at] = &d.Directory
	}
	return dirs, note
}

// part reports whether this is the name of a part of a semaphore.
func part(name string) bool { return name == "leases" || name == "locks" }

// directory reads a znode and the Stats of its children that may be entries of a queue.
// parts are the directories that may belong to the same semaphore. It returns nil if the znode does not
// exist.
func (v *survey) directory(at string, budget *int) (d *lockDir, parts []string, err error) {
	stat, err := v.reader.exists(at)
	if err == proto.NoNode {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if stat.NumChildren > maxEntries {
		return nil, nil, fmt.Errorf("%d children are too many", stat.NumChildren)
	}
	before := v.lockDirs[at]
	known := map[string]locks.Node{}
	if before != nil && before.czxid == stat.Czxid {
		for _, n := range before.Nodes {
			known[n.Name] = n
		}
	}
	if before != nil && before.complete && before.czxid == stat.Czxid && before.pzxid == stat.Pzxid {
		for _, other := range []string{join(at, "leases"), join(at, "locks"), at + locks.KazooQueue} {
			if v.lockDirs[other] != nil {
				parts = append(parts, other)
			}
		}
		return before, parts, nil
	}
	names, err := v.reader.children(at)
	if err != nil {
		return nil, nil, err
	}
	d = &lockDir{czxid: stat.Czxid, pzxid: stat.Pzxid, complete: true}
	for _, name := range names {
		if part(name) {
			parts = append(parts, join(at, name))
		}
		if !locks.Interesting(name) {
			continue
		}
		n, ok := known[name]
		if !ok {
			if *budget--; *budget < 0 {
				d.complete = false
				continue
			}
			s, err := v.reader.exists(join(at, name))
			switch {
			case err == proto.NoNode:
				continue
			case err == proto.NoAuth:
				d.hidden = true
				continue
			case err != nil:
				return nil, nil, err
			}
			n = locks.Node{Name: name, Owner: s.EphemeralOwner, Czxid: s.Czxid, Ctime: s.Ctime, Version: s.Version, Length: s.DataLength}
		}
		d.Nodes = append(d.Nodes, n)
	}
	if slices.ContainsFunc(names, locks.Lease) {
		parts = append(parts, at+locks.KazooQueue)
		if stat.DataLength > 0 && stat.DataLength < shownData {
			d.Data, _ = v.reader.data(at) // without it the number of slots is unknown
		}
	}
	return d, parts, nil
}
