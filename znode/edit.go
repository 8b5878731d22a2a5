package znode

import "slices"

// Edit deletes znodes and then adds those in records, where each comes after its parent. It asks
// for no permissions.
//
// What cannot be done is left out: to delete a znode that every tree has or that does not exist,
// or, unless below is true, one that has children; and to add a znode without a parent that can
// have children. A record whose znode exists changes its data only, and nothing at all if the
// record's data is nil.
func (t *Tree) Edit(x *Txn, remove []string, below bool, records []Record) {
	for _, path := range remove {
		t.prune(x, path, below)
	}
	var added []*Record
	for i := range records {
		r := &records[i]
		if !t.mayAdd(r.Path) {
			continue
		}
		if n := t.Lookup(r.Path); n == nil {
			made := *r
			if made.Data == nil {
				made.Data = []byte{}
			}
			t.putNew(x, &made)
			t.count(r.Path, 1, len(made.Data))
			added = append(added, &made)
		} else if r.Data != nil {
			changed := n.Record()
			t.count(r.Path, 0, len(r.Data)-len(changed.Data))
			changed.Data, changed.Mtime = r.Data, r.Mtime
			changed.Version++
			added = append(added, &changed)
		}
	}
	for _, r := range added {
		t.putContent(x, r)
	}
}

// prune deletes a znode and, if below is true, those below it.
func (t *Tree) prune(x *Txn, path string, below bool) {
	n := t.Lookup(path)
	if n == nil || special(path) || n.NumChildren() > 0 && !below {
		return
	}
	for _, name := range slices.Sorted(t.Children(n)) {
		t.prune(x, path+"/"+name, below)
	}
	id, _ := t.find(path)
	t.remove(x, path, id)
}
