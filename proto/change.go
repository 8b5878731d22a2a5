package proto

// ChangeKind is the kind of a [Change].
type ChangeKind uint8

// The kinds of change.
const (
	NodeCreated ChangeKind = iota + 1
	NodeDeleted
	NodeDataChanged
	NodeACLChanged
	SessionOpened
	SessionResumed
	SessionClosed
)

// Access decides who may access a znode, by its ACL.
type Access interface {
	// Permits reports whether one of the identities has one of the permissions in perms.
	Permits(perms int32, ids []ID) bool
}

// Change is one change that a command made to the replicated state. Watch events, session
// tracking, metrics and tests are derived only from the ordered list of a command's
// changes.
type Change struct {
	Kind         ChangeKind
	Path         string // of the znode
	Access       Access // to the znode; if it was deleted, as it was before
	ParentAccess Access // to the znode's parent, whose watchers get NodeChildrenChanged
	Session      int64  // the session, or the owner of an ephemeral znode
}
