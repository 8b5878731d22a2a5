package proto

// ChangeKind is what happened, in a [Change].
type ChangeKind uint8

// The kinds of change that a command can make.
const (
	NodeCreated ChangeKind = iota + 1
	NodeDeleted
	NodeDataChanged
	NodeACLChanged
	SessionOpened
	SessionResumed
	SessionClosed
)

// Access is what a znode's ACL says.
type Access interface {
	// Permits reports whether one of the identities may do one of the things in perms.
	Permits(perms int32, ids []ID) bool
}

// Change is one thing that a command did to the replicated state. Watch
// events, session tracking, metrics and tests follow from the ordered list of
// a command's changes and from nothing else.
type Change struct {
	Kind         ChangeKind
	Path         string // the znode's
	Access       Access // to the znode, the last one if it was deleted
	ParentAccess Access // to its parent, for the children event
	Session      int64  // the session, or the owner of an ephemeral znode
}
