//go:build interop

package interop

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// disk models a directory as its processes see it, and which part of it is durable. It
// assumes no more than POSIX promises: data written to a file is durable after an fsync
// of the file that starts later, and a name after an fsync of its directory. Before
// that, any part may be durable, in any order.
type disk struct {
	root    *node
	pending []*change         // changes that need not be durable, in order
	syncs   map[int][]*change // by call: the changes that a running sync makes durable
	touched map[*node]bool    // files that a process was writing when it ended
	halfway bool              // a process was changing names when it ended
	moving  []*event          // the renames among these changes
}

// node is a file or a directory.
type node struct {
	top       string           // the name directly below the root that contains it
	names     map[string]*node // nil for a file
	data      []byte
	at        int64 // offset of the next write without one
	keptNames map[string]*node
	keptData  []byte
}

// change is a change that need not be durable: of a directory's names, a file's data or a
// file's size.
type change struct {
	node     *node
	del, add string // names
	child    *node  // the file or directory of the name add
	off      int64
	data     []byte // nil for a change of the size
	size     int64
	grow     bool      // the size only increases to this one
	parts    []*change // of a torn write
	doomed   bool      // a sync failed, so no later sync makes it durable
	what     string
}

func (c *change) ofNames() bool { return c.del != "" || c.add != "" }

func newNode(top string, dir bool) *node {
	n := &node{top: top}
	if dir {
		n.names, n.keptNames = map[string]*node{}, map[string]*node{}
	}
	return n
}

// image is the contents of a directory: the data of files by path, and nil for directories.
type image map[string][]byte

// readImage reads a directory. Paths are relative to it.
func readImage(dir string) (image, error) {
	m := image{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name := strings.TrimPrefix(path, dir+"/")
		if d.IsDir() {
			m[name] = nil
			return nil
		}
		data, err := os.ReadFile(path)
		m[name] = append([]byte{}, data...)
		return err
	})
	return m, err
}

// write writes the image into dir, which must exist.
func (m image) write(dir string) error {
	for _, path := range slices.Sorted(maps.Keys(m)) { // a directory comes before its contents
		var err error
		if data := m[path]; data == nil {
			err = os.Mkdir(filepath.Join(dir, path), 0o700)
		} else {
			err = os.WriteFile(filepath.Join(dir, path), data, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// newDisk returns a disk on which the whole image is durable.
func newDisk(m image) *disk {
	d := &disk{root: newNode("", true), syncs: map[int][]*change{}, touched: map[*node]bool{}}
	for _, path := range slices.Sorted(maps.Keys(m)) {
		dir, name, _ := d.parent(path)
		n := newNode(top(path), m[path] == nil)
		n.data, n.keptData = slices.Clone(m[path]), slices.Clone(m[path])
		dir.names[name], dir.keptNames[name] = n, n
	}
	return d
}

func top(path string) string {
	name, _, _ := strings.Cut(path, "/")
	return name
}

// parent returns the directory of a path below the root, and the name in it.
func (d *disk) parent(path string) (*node, string, error) {
	n := d.root
	dir, name := filepath.Split(path)
	for part := range strings.SplitSeq(strings.Trim(dir, "/"), "/") {
		if part == "" {
			continue
		}
		if n = n.names[part]; n == nil || n.names == nil {
			return nil, "", fmt.Errorf("%s: no such directory", path)
		}
	}
	return n, name, nil
}

func (d *disk) find(path string) (*node, error) {
	if path == "" {
		return d.root, nil
	}
	dir, name, err := d.parent(path)
	if err == nil && dir.names[name] == nil {
		err = fmt.Errorf("%s: no such file", path)
	}
	if err != nil {
		return nil, err
	}
	return dir.names[name], nil
}

func (d *disk) change(c *change) { d.pending = append(d.pending, c) }

// setData applies a change of data or size to a file's data.
func (c *change) setData(data []byte) []byte {
	if c.parts != nil {
		for _, p := range c.parts {
			data = p.setData(data)
		}
		return data
	}
	end := c.off + int64(len(c.data))
	if c.data == nil {
		end = c.size
		if !c.grow && end < int64(len(data)) {
			return data[:end]
		}
	}
	if grow := end - int64(len(data)); grow > 0 {
		data = append(data, make([]byte, grow)...)
	}
	copy(data[c.off:], c.data)
	return data
}

// overwrite updates a change that no sync makes durable with the data that a later,
// durable change has written over it.
func (c *change) overwrite(later *change) {
	from, to := max(c.off, later.off), min(c.off+int64(len(c.data)), later.off+int64(len(later.data)))
	if c.doomed && c.node == later.node && from < to {
		c.data = slices.Clone(c.data)
		copy(c.data[from-c.off:to-c.off], later.data[from-later.off:])
	}
}

func (c *change) setNames(names map[string]*node) {
	delete(names, c.del)
	if c.add != "" {
		names[c.add] = c.child
	}
}

// do applies an event of a process. The paths in the event are below root.
func (d *disk) do(e *event, root string) error {
	below := func(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, root), "/") }
	path := below(e.path)
	switch e.kind {
	case evReply:
		return nil
	case evDied:
		clear(d.syncs) // the running ones
		return nil
	case evCreate, evMkdir:
		dir, name, err := d.parent(path)
		if err != nil {
			return err
		}
		if dir.names[name] == nil {
			n := newNode(top(path), e.kind == evMkdir)
			d.change(&change{node: dir, add: name, child: n, what: e.String()})
			dir.names[name] = n
			return nil
		}
	case evRename, evLink:
		from, old, err := d.parent(path)
		if err != nil {
			return err
		}
		to, name, err := d.parent(below(e.other))
		if err != nil {
			return err
		}
		n := from.names[old]
		c := &change{node: to, add: name, child: n, what: e.String()}
		if e.kind == evRename {
			if from != to {
				return errors.New("a rename into another directory is not known to this test")
			}
			c.del = old
			delete(from.names, old)
		}
		to.names[name] = n
		d.change(c)
		return nil
	case evRemove:
		dir, name, err := d.parent(path)
		if err != nil {
			return err
		}
		delete(dir.names, name)
		d.change(&change{node: dir, del: name, what: e.String()})
		return nil
	case evUnfinished:
		d.halfway = d.halfway || e.names
		if e.other != "" {
			d.moving = append(d.moving, e)
		}
		if n, err := d.find(path); err == nil { // an open may have truncated it
			d.touched[n] = true
		}
		return nil
	case evSynced:
		d.synced(e)
		return nil
	}
	n, err := d.find(path)
	if err != nil {
		return err
	}
	c := &change{node: n, what: e.String()}
	switch e.kind {
	case evCreate, evOpen:
		if n.at = 0; !e.truncate || len(n.data) == 0 {
			return nil
		}
	case evSeek:
		n.at = e.offset
		return nil
	case evSync:
		for _, c := range d.pending {
			if c.node == n && !c.doomed {
				d.syncs[e.call] = append(d.syncs[e.call], c)
			}
		}
		return nil
	case evWrite:
		if c.off, c.data = e.offset, e.data; c.off < 0 {
			c.off = n.at
			n.at += int64(len(e.data))
		}
		if len(c.data) == 0 {
			return nil
		}
	case evTruncate, evAllocate:
		c.size, c.grow = e.size, e.kind == evAllocate
	}
	n.data = c.setData(n.data)
	d.change(c)
	return nil
}

func (d *disk) synced(e *event) {
	covered := d.syncs[e.call]
	delete(d.syncs, e.call)
	done := map[*change]bool{}
	for _, c := range covered {
		if c.doomed = c.doomed || e.failed; c.doomed {
			c.grow = true
			continue
		}
		for _, old := range d.pending {
			if old == c {
				break
			}
			old.overwrite(c)
		}
		done[c] = true
		if c.ofNames() {
			c.setNames(c.node.keptNames)
		} else {
			c.node.keptData = c.setData(c.node.keptData)
		}
	}
	d.pending = slices.DeleteFunc(d.pending, func(c *change) bool { return done[c] })
}

// reconcile compares the disk with the real directory after the processes have ended. It
// applies the effects of calls that were running then, and returns them. It is an error if
// the events do not explain all other differences.
func (d *disk) reconcile(dir string) (late []event, err error) {
	there, err := readImage(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range d.moving {
		below := func(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, dir), "/") }
		_, left := there[below(e.path)]
		_, came := there[below(e.other)]
		if _, err := d.find(below(e.path)); err == nil && !left && came {
			late = append(late, event{kind: evRename, path: e.path, other: e.other})
			if err := d.do(&late[len(late)-1], dir); err != nil {
				return nil, err
			}
		}
	}
	done := len(late)
	var walk func(n *node, path string) error
	walk = func(n *node, path string) error {
		for _, name := range slices.Sorted(maps.Keys(n.names)) {
			child, p := n.names[name], filepath.Join(path, name)
			data, ok := there[p]
			switch {
			case !ok && !d.halfway, ok && child.names == nil && !bytes.Equal(data, child.data) && !d.touched[child]:
				return fmt.Errorf("the trace does not explain what happened to %s", p)
			case !ok:
				late = append(late, event{kind: evRemove, path: filepath.Join(dir, p)})
				continue
			case child.names != nil:
				if err := walk(child, p); err != nil {
					return err
				}
			case !bytes.Equal(data, child.data):
				first := 0
				for first < min(len(data), len(child.data)) && data[first] == child.data[first] {
					first++
				}
				late = append(late, event{kind: evTruncate, path: filepath.Join(dir, p), size: int64(len(data))},
					event{kind: evWrite, path: filepath.Join(dir, p), data: data[first:], offset: int64(first)})
			}
			delete(there, p)
		}
		return nil
	}
	if err := walk(d.root, ""); err != nil {
		return nil, err
	}
	for _, p := range slices.Sorted(maps.Keys(there)) {
		if !d.halfway {
			return nil, fmt.Errorf("the trace does not explain where %s comes from", p)
		}
		e := event{kind: evCreate, path: filepath.Join(dir, p)}
		if there[p] == nil {
			e.kind = evMkdir
		}
		late = append(late, e)
		if len(there[p]) > 0 {
			late = append(late, event{kind: evWrite, path: e.path, data: there[p]})
		}
	}
	for i := range late[done:] {
		if err := d.do(&late[done+i], dir); err != nil {
			return nil, err
		}
	}
	clear(d.touched)
	d.halfway, d.moving = false, nil
	return late, nil
}

// lost returns what the directory may contain if the power fails now. keep decides about
// each change that need not be durable: it returns the change, another one that replaces
// it, or nil if it is lost.
func (d *disk) lost(keep func(*change) *change) image {
	names, data := map[*node]map[string]*node{}, map[*node][]byte{}
	for _, c := range d.pending {
		if c = keep(c); c == nil {
			continue
		}
		if c.ofNames() {
			if names[c.node] == nil {
				names[c.node] = maps.Clone(c.node.keptNames)
			}
			c.setNames(names[c.node])
			continue
		}
		if _, ok := data[c.node]; !ok {
			data[c.node] = slices.Clone(c.node.keptData)
		}
		data[c.node] = c.setData(data[c.node])
	}
	m := image{}
	var walk func(n *node, path string)
	walk = func(n *node, path string) {
		list, ok := names[n]
		if !ok {
			list = n.keptNames
		}
		for name, child := range list {
			p := strings.TrimPrefix(path+"/"+name, "/")
			if child.names != nil {
				m[p] = nil
				walk(child, p)
				continue
			}
			content, ok := data[child]
			if !ok {
				content = child.keptData
			}
			m[p] = append([]byte{}, content...)
		}
	}
	walk(d.root, "")
	return m
}

const sector = 512

// torn returns a write of which only some sectors reach the disk: the first ones, or any.
func torn(c *change, r *rand.Rand) *change {
	if c.data == nil || c.ofNames() {
		return c
	}
	first, last := c.off/sector, (c.off+int64(len(c.data))-1)/sector
	stop := first + r.Int64N(last-first+2)
	any := r.IntN(2) == 0
	t := &change{node: c.node}
	for s := first; s <= last; s++ {
		if any && r.IntN(2) == 0 || !any && s >= stop {
			continue
		}
		from, to := max(s*sector, c.off), min((s+1)*sector, c.off+int64(len(c.data)))
		t.parts = append(t.parts, &change{node: c.node, off: from, data: c.data[from-c.off : to-c.off]})
	}
	if t.parts == nil {
		return nil
	}
	return t
}

// losses are the ways in which a power failure may treat pending changes.
var losses = []string{"nothing", "nothing", "nothing", "everything", "the first", "the first", "any", "any", "any", "names", "data"}

// loss picks one of the ways at random, and returns it with a function for lost.
func (d *disk) loss(r *rand.Rand, losses []string) (string, func(*change) *change) {
	name := losses[r.IntN(len(losses))]
	n := len(d.pending)
	switch name {
	case "everything":
		return name + " is kept", func(c *change) *change { return c }
	case "the first":
		first, i := r.IntN(n+1), -1
		return fmt.Sprintf("the first %d of %d changes are kept", first, n), func(c *change) *change {
			switch i++; {
			case i < first:
				return c
			case i == first:
				return torn(c, r)
			}
			return nil
		}
	case "any":
		p := []float64{0.1, 0.5, 0.9}[r.IntN(3)]
		return fmt.Sprintf("any of %d changes are kept", n), func(c *change) *change {
			switch x := r.Float64(); {
			case x < p*0.8:
				return c
			case x < p:
				return torn(c, r)
			case c.data != nil && r.IntN(4) == 0: // the file grows, but has zeros there
				return &change{node: c.node, size: c.off + int64(len(c.data)), grow: true}
			}
			return nil
		}
	case "names":
		return "names are kept", func(c *change) *change {
			if c.ofNames() {
				return c
			}
			return nil
		}
	case "data":
		return "data is kept, names are not", func(c *change) *change {
			if c.ofNames() {
				return nil
			}
			return c
		}
	}
	return "nothing is kept that was not synced", func(*change) *change { return nil }
}

// TestRenameThatWasRunning: a rename that was running when its process was killed moves
// a directory with what is durable in it.
func TestRenameThatWasRunning(t *testing.T) {
	dir := t.TempDir()
	d := newDisk(image{"new.tmp": nil, "new.tmp/file": []byte("synced")})
	check(t, image{"new": nil, "new/file": []byte("synced")}.write(dir))
	e := event{kind: evUnfinished, path: filepath.Join(dir, "new.tmp"), other: filepath.Join(dir, "new"), names: true}
	check(t, d.do(&e, dir))
	late, err := d.reconcile(dir)
	check(t, err)
	if len(late) != 1 || late[0].kind != evRename {
		t.Errorf("what was running has done %v", late)
	}
	for keeps, want := range map[bool]string{true: "new/file", false: "new.tmp/file"} {
		left := d.lost(func(c *change) *change {
			if keeps {
				return c
			}
			return nil
		})
		if len(left) != 2 || string(left[want]) != "synced" {
			t.Errorf("if the name survives is %v: %v", keeps, left)
		}
	}
}
