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

// Change is one thing that a command did to the replicated state. Watch
// events, session tracking, metrics and tests follow from the ordered list of
// a command's changes and from nothing else.
type Change struct {
	Kind      ChangeKind
	Path      string // the znode's
	ACL       []ACL  // the znode's, the last one if it was deleted
	ParentACL []ACL  // of its parent, for the children event
	Session   int64  // the session, or the owner of an ephemeral znode
}
