package admin

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/proto"
)

// This file reads the queues of locks.

func (v *survey) locks(c *scene, ephemerals []string, watched map[int64][]string, of func(int64) *sessionInfo) {
	s := &c.state
	if s.Notes.Locks != "" {
		return
	}
	dirs, note := v.directories(ephemerals)
	s.Notes.Locks, s.Totals.AtLeast, v.reading = note, note != "", !v.complete
	all := locks.Find(dirs, false)
	problems := v.problems(all, func(session int64) ([]string, bool) {
		return watched[session], watched != nil && of(session).here
	})
	c.locks, c.inCycle = all, map[string]bool{}
	for i := range problems {
		if p := &problems[i]; p.Fault == locks.Cycle {
			s.Totals.Cycles++
			for _, x := range p.Znodes {
				c.inCycle[x.Path] = true
			}
		}
	}
	lockOf := map[string]string{} // of the znodes in cycles
	s.Totals.Locks = len(all)
	for i := range all {
		l := &all[i]
		s.Totals.Holders += len(l.Holders)
		s.Totals.Waiting += len(l.Queue)
		for _, x := range l.Holders {
			if x.Session != 0 {
				of(x.Session).Holds++
			}
		}
		for _, x := range l.Queue {
			if x.Session != 0 {
				of(x.Session).Waits++
			}
		}
		if len(c.inCycle) > 0 {
			for _, x := range l.All() {
				if c.inCycle[x.Path] {
					lockOf[x.Path] = l.Path
				}
			}
		}
	}
	for i := range problems {
		p := &problems[i]
		q := problem{string(p.Fault), p.Text, p.Harm, []string{}, p.Path}
		if p.Fault == locks.Cycle {
			for _, x := range p.Znodes {
				if at := lockOf[x.Path]; at != "" && at != p.Path && !slices.Contains(q.Others, at) {
					q.Others = append(q.Others, at)
				}
			}
		}
		c.problems = append(c.problems, q)
	}
	s.ReadingData = v.describe(all)
	if c.data = v.data; v.complete {
		first := v.history == nil
		if first {
			v.history, v.historySince = map[string]*lockHistory{}, s.Now
		}
		v.remember(all, s.Now, first)
	}
	s.HistorySince = v.historySince
	c.history = v.history
}

// entry is a znode in the queue of a lock.
type entry struct {
	path  string
	token int64
}

// describe reads the data of the holders. It returns true if it has not read all of it yet.
func (v *survey) describe(all []locks.Lock) (more bool) {
	budget := maxData
	known := map[entry]string{}
	for i := range all {
		for _, h := range all[i].Holders {
			key := entry{h.Path, h.Token}
			text, ok := v.data[key]
			if !ok && h.Length > 0 {
				if budget == 0 {
					more = true
					continue
				}
				var data []byte
				var err error
				if h.Length <= locks.MaxData {
					budget--
					data, err = v.reader.data(h.Path)
				}
				if err == nil {
					text = locks.DataText(data, max(h.Length, int32(len(data))))
				}
				ok = err == nil || errors.As(err, new(proto.Code)) // otherwise it is asked for again
			}
			if ok {
				known[key] = text
			}
		}
	}
	v.data = known
	return more
}

// setsWatches is how long a client may take to set its watches.
const setsWatches = 2 * time.Second

// problems returns what is wrong with the locks and was so before: the locks are not read at
// one moment, and a client needs some time to set a watch.
func (v *survey) problems(all []locks.Lock, watched func(int64) ([]string, bool)) (sure []locks.Problem) {
	now := time.Now()
	before := v.seen
	v.seen = map[string]time.Time{}
	for _, p := range locks.Check(all, watched) {
		key := string(p.Fault)
		for _, c := range p.Znodes {
			key += fmt.Sprintf(" %d %s", c.Token, c.Path)
		}
		since, again := before[key]
		if !again {
			since = now
		} else if p.Fault != locks.Unwatched || now.Sub(since) >= setsWatches {
			sure = append(sure, p)
		}
		v.seen[key] = since
	}
	return sure
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
	v.complete = true
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
			v.complete = false
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
		if d.complete { // otherwise the first entry, which holds the lock, may be among those that have not been read
			dirs[at] = &d.Directory
		}
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
