package znode

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Txn is a transaction on the tree: the input of its operations, and their changes.
type Txn struct {
	Zxid    int64
	Time    int64 // ms since the epoch
	Session int64
	IDs     []proto.ID // the identities of the connection
	Changes []proto.Change

	// What is allowed; see Settings of package fsm.
	NoTTL, X509, SASL, NoDigest, EnforceQuota bool

	Exceeded []QuotaExceeded // the soft limits exceeded, and the hard limit that failed an operation

	checker            Checker
	aclSent, aclStored int // total length of the ACLs as they were sent and as they are stored
}

func (x *Txn) permitted(n *Node, perms int32) bool {
	return x.checker.Permits(n.acl(), perms, x.IDs)
}

// addChange adds a change of n, which has that path, to the transaction. parent is nil if the
// change does not concern the parent.
func (x *Txn) addChange(kind proto.ChangeKind, path string, n, parent *Node) {
	c := proto.Change{Kind: kind, Path: path, Access: n.acl(), Session: n.owner()}
	if parent != nil {
		c.ParentAccess = parent.acl()
	}
	x.Changes = append(x.Changes, c)
}

// Create creates a znode. op is create, create2, createContainer or createTTL; op and the
// flags together decide the kind of the znode. ttl is in ms, or -1 unless op is createTTL.
// Create appends to the path of a sequential znode the number of children that its parent
// has ever had, with at least ten digits. It returns the path that the znode got.
func (t *Tree) Create(x *Txn, op proto.OpCode, r *proto.CreateRequest, ttl int64) (path string, n *Node, code proto.Code) {
	ttlMode := r.Flags == proto.FlagTTL || r.Flags == proto.FlagTTLSequential
	switch {
	case r.Flags < proto.FlagPersistent || r.Flags > proto.FlagTTLSequential:
		return "", nil, proto.BadArguments
	case ttlMode && x.NoTTL:
		return "", nil, proto.Unimplemented
	case ttlMode && (ttl < 1 || ttl > proto.MaxTTL), !ttlMode && ttl >= 0,
		op == proto.OpCreateTTL && !ttlMode: // this last one would crash ZooKeeper, at every start again
		return "", nil, proto.BadArguments
	case r.Path == jute.Null:
		return "", nil, proto.MarshallingError
	case !usablePath(r.Path):
		return "", nil, proto.BadArguments
	}
	acl, code := x.fixACL(r.ACL)
	if code != proto.OK {
		return "", nil, code
	}
	at, parent := t.find(parentPath(r.Path))
	switch {
	case parent == nil:
		return "", nil, proto.NoNode
	case !x.permitted(parent, proto.PermCreate):
		return "", nil, proto.NoAuth
	}
	path = r.Path
	if r.Flags == proto.FlagSequential || r.Flags == proto.FlagEphemeralSeq || r.Flags == proto.FlagTTLSequential {
		path = fmt.Sprintf("%s%010d", path, parent.creates())
	}
	switch {
	case !ValidPath(path):
		return "", nil, proto.BadArguments
	case t.Lookup(path) != nil:
		return "", nil, proto.NodeExists
	case parent.kind() == Ephemeral, t.seeming[parentPath(path)]:
		return "", nil, proto.NoChildrenForEphemerals
	}
	if code := t.checkQuota(x, path, 1, len(r.Data)); code != proto.OK {
		return "", nil, code
	}
	rec := Record{
		Path: path, Data: r.Data, ACL: acl,
		Czxid: x.Zxid, Mzxid: x.Zxid, Pzxid: x.Zxid, Ctime: x.Time, Mtime: x.Time,
	}
	switch {
	case op == proto.OpCreateContainer:
		rec.Kind = Container
	case op == proto.OpCreateTTL:
		rec.Kind, rec.Owner = TTL, ttl
	case r.Flags == proto.FlagEphemeral || r.Flags == proto.FlagEphemeralSeq:
		rec.Kind, rec.Owner = Ephemeral, x.Session
	}
	n = t.add(x, &rec, at)
	if t.inMulti {
		delete(t.seeming, path)
		if rec.Kind == Container && (r.Flags == proto.FlagEphemeral || r.Flags == proto.FlagEphemeralSeq) {
			// Until the multi is done, ZooKeeper goes by the flags here (PrepRequestProcessor).
			if t.seeming == nil {
				t.seeming = map[string]bool{}
			}
			t.seeming[path] = true
		}
	}
	n = n.replyCopy()
	if of, name, ok := splitQuotaPath(path); ok && name == statsName {
		t.recount(of)
	}
	t.count(path, 1, len(r.Data))
	return path, n, proto.OK
}

// add creates the znode of a record. Its parent is in the slot at.
func (t *Tree) add(x *Txn, r *Record, at uint32) *Node {
	parent := t.edit(at, func(n *Node) {
		p := t.extra(n)
		p.creates++
		p.pzxid = x.Zxid
	})
	n := t.nodes.at(t.link(r.Path, newNode(r, t.childrenOf(at), t.gen)))
	if t.inMulti {
		t.undo = append(t.undo, undo{linked, *n, n.rest()})
	}
	x.addChange(proto.NodeCreated, r.Path, n, parent)
	return n
}

// Delete deletes a znode. It requires DELETE permission on the parent.
func (t *Tree) Delete(x *Txn, path string, version int32) proto.Code {
	switch {
	case path == jute.Null:
		return proto.MarshallingError
	case !usablePath(path) || special(path):
		return proto.BadArguments
	}
	parent := t.Lookup(parentPath(path))
	switch {
	case parent == nil:
		return proto.NoNode
	case !x.permitted(parent, proto.PermDelete):
		return proto.NoAuth
	}
	id, n := t.find(path)
	switch {
	case n == nil:
		return proto.NoNode
	case !versionMatches(version, n.version):
		return proto.BadVersion
	case n.NumChildren() > 0:
		return proto.NotEmpty
	}
	t.remove(x, path, id)
	return proto.OK
}

// Reap deletes a container or TTL znode if [Tree.Reapable] would still return it at the
// transaction's time (deleteContainer).
func (t *Tree) Reap(x *Txn, path string) proto.Code {
	id, n := t.find(path)
	switch {
	case n == nil:
		return proto.NoNode
	case n.kind() != Container && n.kind() != TTL:
		return proto.BadVersion
	case n.NumChildren() > 0 || !n.overdue(x.Time):
		return proto.NotEmpty
	}
	t.remove(x, path, id)
	return proto.OK
}

// remove deletes the node at path, which has no children.
func (t *Tree) remove(x *Txn, path string, id uint32) {
	n := *t.nodes.at(id)
	if t.inMulti {
		t.undo = append(t.undo, undo{unlinked, n, n.rest()})
	}
	t.unlink(id)
	parent := t.edit(n.siblings.parent, func(n *Node) {
		p := t.extra(n)
		p.pzxid = max(p.pzxid, x.Zxid)
	})
	x.addChange(proto.NodeDeleted, path, &n, parent)
	t.count(path, -1, -len(n.data()))
}

// SetData replaces a znode's data.
func (t *Tree) SetData(x *Txn, r *proto.SetDataRequest) (*Node, proto.Code) {
	if !ValidPath(r.Path) {
		return nil, proto.BadArguments
	}
	id, n, code := t.lookup(x, r.Path, proto.PermWrite)
	if code != proto.OK {
		return nil, code
	}
	more := len(r.Data) - len(n.data())
	if code := t.checkQuota(x, r.Path, 0, more); code != proto.OK {
		return nil, code
	}
	if !versionMatches(r.Version, n.version) {
		return nil, proto.BadVersion
	}
	n = t.edit(id, func(n *Node) {
		n.setData(r.Data)
		n.version = nextVersion(n.version)
		n.mzxid, n.mtime = x.Zxid, x.Time
	})
	x.addChange(proto.NodeDataChanged, r.Path, n, nil)
	n = n.replyCopy()
	t.count(r.Path, 0, more)
	return n, proto.OK
}

// SetConfig replaces the data of /zookeeper/config. As in ZooKeeper, the znode's version
// becomes -1; the configuration's version is in the data.
func (t *Tree) SetConfig(x *Txn, data []byte) {
	id, _ := t.find(ConfigPath)
	n := t.edit(id, func(n *Node) {
		n.setData(data)
		n.version = -1
		n.mzxid = x.Zxid
	})
	x.addChange(proto.NodeDataChanged, ConfigPath, n, nil)
}

// MayConfigure reports whether the transaction's client may change the members, which requires
// WRITE permission on /zookeeper/config.
func (t *Tree) MayConfigure(x *Txn) bool {
	return x.permitted(t.Lookup(ConfigPath), proto.PermWrite)
}

// SetACL replaces a znode's access control list.
func (t *Tree) SetACL(x *Txn, r *proto.SetACLRequest) (*Node, proto.Code) {
	if !ValidPath(r.Path) {
		return nil, proto.BadArguments
	}
	acl, code := x.fixACL(r.ACL)
	if code != proto.OK {
		return nil, code
	}
	id, n, code := t.lookup(x, r.Path, proto.PermAdmin)
	switch {
	case code != proto.OK:
		return nil, code
	case !versionMatches(r.Version, n.aversion()):
		return nil, proto.BadVersion
	}
	n = t.edit(id, func(n *Node) {
		m := t.extra(n)
		m.acl = newAccess(acl)
		m.aversion = nextVersion(m.aversion)
	})
	x.addChange(proto.NodeACLChanged, r.Path, n, nil)
	return n, proto.OK
}

// CheckVersion carries out the operation check of a multi.
func (t *Tree) CheckVersion(x *Txn, path string, version int32) proto.Code {
	if !ValidPath(path) {
		return proto.BadArguments
	}
	_, n, code := t.lookup(x, path, proto.PermRead)
	if code == proto.OK && !versionMatches(version, n.version) {
		return proto.BadVersion
	}
	return code
}

// lookup finds the znode at path and checks that the client has the permission perm.
func (t *Tree) lookup(x *Txn, path string, perm int32) (id uint32, n *Node, code proto.Code) {
	id, n = t.find(path)
	switch {
	case n == nil:
		return 0, nil, proto.NoNode
	case !x.permitted(n, perm):
		return 0, nil, proto.NoAuth
	}
	return id, n, proto.OK
}

// versionMatches reports whether a znode with version have is at the version want that a request
// expects, which may be AnyVersion.
func versionMatches(want, have int32) bool { return want == proto.AnyVersion || want == have }

// nextVersion returns the version after v. It skips -1: no request could expect that version,
// since -1 stands for any.
func nextVersion(v int32) int32 {
	if v++; v == proto.AnyVersion {
		v++
	}
	return v
}

// Multi calls do, which applies the operations of a multi. If do returns false, Multi undoes
// them all. It returns what do returned.
func (t *Tree) Multi(x *Txn, do func() bool) bool {
	before := len(x.Changes)
	t.inMulti = true
	ok := do()
	if !ok {
		t.rollback()
		x.Changes = x.Changes[:before]
	}
	clear(t.undo)
	t.undo, t.inMulti, t.seeming = t.undo[:0], false, nil
	t.discardSaved()
	return ok
}

// CloseSession deletes all ephemerals of a session, in the order of [Tree.EphemeralsOf].
func (t *Tree) CloseSession(x *Txn, session int64) {
	for _, path := range t.EphemeralsOf(session, "") {
		id, _ := t.find(path)
		t.remove(x, path, id)
	}
}
