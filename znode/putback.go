package znode

import (
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/proto"
)

// AppendNodes appends the encodings of all znodes to b, in no particular order, for
// [Tree.PutBack]. [DecodeRecord] decodes them.
func (t *Tree) AppendNodes(b []byte) []byte {
	for i := range t.Len() {
		b = appendNode(b, t.nodes.at(uint32(i)))
	}
	return b
}

// AppendRecord appends the encoding of a znode to b, as [Tree.AppendNodes] does.
func AppendRecord(b []byte, r *Record) []byte {
	n := newNode(r, newChildList(parentPath(r.Path)), 0)
	return appendNode(b, &n)
}

// PutBack replaces the znodes of the tree with those in records, which it sorts by their paths. It leaves
// out ephemerals whose session is not alive, and what [Tree.Edit] does not add. It does not change
// [ConfigPath], which belongs to the list of members. The other znodes that every tree has
// may be missing from records.
//
// A znode that differs from its record gets back its data, its ACL, its versions, its times
// and the number of children that it ever had. Its zxids do not go back: they say that it
// was changed, or created, in this transaction. Znodes that do not differ stay as they are.
func (t *Tree) PutBack(x *Txn, records []Record, alive func(session int64) bool) {
	slices.SortFunc(records, func(a, b Record) int { return strings.Compare(a.Path, b.Path) })
	want := make(map[string]*Record, len(records))
	for i := range records {
		if r := &records[i]; r.Path != ConfigPath && (r.Kind != Ephemeral || special(r.Path) || alive(r.Owner)) {
			want[r.Path] = r
		}
	}
	t.removeOthers(x, want)
	for i := range records {
		if r := &records[i]; want[r.Path] == r && t.Lookup(r.Path) == nil && t.mayAdd(r.Path) {
			t.putNew(x, r)
		}
	}
	for i := range records {
		if r := &records[i]; want[r.Path] == r && t.Lookup(r.Path) != nil {
			t.putContent(x, r)
		}
	}
}

// mayAdd reports whether there can be a znode with this path, which not every tree has, and its parent exists.
func (t *Tree) mayAdd(path string) bool {
	if !ValidPath(path) || special(path) {
		return false
	}
	parent := t.Lookup(parentPath(path))
	return parent != nil && parent.kind() != Ephemeral
}

// removeOthers deletes the znodes that are not wanted, or are of another kind, and all
// below them.
func (t *Tree) removeOthers(x *Txn, want map[string]*Record) {
	paths := make([]string, t.Len())
	for i := range paths {
		paths[i] = t.nodes.at(uint32(i)).Path()
	}
	slices.Sort(paths) // parents come before their children
	var gone []string
	isGone := map[string]bool{}
	for _, path := range paths {
		if special(path) {
			continue
		}
		r, m := want[path], t.Lookup(path).rest()
		if r == nil || r.Kind != m.kind || r.Owner != m.owner || isGone[parentPath(path)] {
			isGone[path] = true
			gone = append(gone, path)
		}
	}
	for _, path := range slices.Backward(gone) {
		id, _ := t.find(path)
		t.remove(x, path, id)
	}
}

// putNew creates the znode of a record, without children.
func (t *Tree) putNew(x *Txn, r *Record) {
	made := *r
	made.Czxid, made.Mzxid, made.Pzxid, made.Creates = x.Zxid, x.Zxid, x.Zxid, 0
	at, _ := t.find(parentPath(r.Path))
	t.add(x, &made, at)
}

// putContent gives a znode the data, ACL, versions, times and count of its record.
func (t *Tree) putContent(x *Txn, r *Record) {
	id, n := t.find(r.Path)
	m, creates := n.rest(), r.Creates
	if !special(r.Path) {
		creates = max(creates, int64(n.NumChildren()))
	}
	otherData := n.data() != string(r.Data) || n.null() != (r.Data == nil)
	// The usage of a quota changes without a new version, and without an event.
	set := r.Version != n.version
	if _, name, ok := n.quotaPart(); !ok || name != statsName {
		set = set || otherData
	}
	setACL := r.Aversion != m.aversion || !slices.Equal(r.ACL, m.acl.list)
	if !set && !otherData && !setACL && creates == m.creates && r.Ctime == n.ctime && r.Mtime == n.mtime {
		return
	}
	n = t.edit(id, func(n *Node) {
		n.ctime, n.mtime, n.version = r.Ctime, r.Mtime, r.Version
		if otherData {
			n.setData(r.Data)
		}
		if set {
			n.mzxid = x.Zxid
		}
		if creates != m.creates {
			t.extra(n).creates = creates
		}
		if setACL {
			e := t.extra(n)
			e.acl, e.aversion = newAccess(r.ACL), r.Aversion
		}
	})
	if set {
		x.addChange(proto.NodeDataChanged, r.Path, n, nil)
	}
	if setACL {
		x.addChange(proto.NodeACLChanged, r.Path, n, nil)
	}
}
