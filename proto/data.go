package proto

import "github.com/lockkeeper/lockkeeper/jute"

// Permission bits of an ACL entry (ZooDefs.Perms).
const (
	PermRead   int32 = 1
	PermWrite  int32 = 2
	PermCreate int32 = 4
	PermDelete int32 = 8
	PermAdmin  int32 = 16
	PermAll    int32 = 31
)

// PermLetters returns the letters of permissions, in the order in which ZooKeeper prints them.
func PermLetters(perms int32) string {
	var b []byte
	for i, perm := range []int32{PermCreate, PermDelete, PermRead, PermWrite, PermAdmin} {
		if perms&perm != 0 {
			b = append(b, "cdrwa"[i])
		}
	}
	return string(b)
}

// Create flags (CreateMode). The opcode decides a znode's kind; flags 1 and 3
// make it ephemeral and 2, 3 and 6 sequential.
const (
	FlagPersistent      int32 = 0
	FlagEphemeral       int32 = 1
	FlagSequential      int32 = 2
	FlagEphemeralSeq    int32 = 3
	FlagContainer       int32 = 4
	FlagTTL             int32 = 5
	FlagTTLSequential   int32 = 6
	MaxTTL              int64 = 1<<40 - 1 // maximum of a TTL, in ms (EphemeralType.TTL)
	AnyVersion          int32 = -1        // matches every version
	SchemeWorld               = "world"
	SchemeAuth                = "auth"
	SchemeDigest              = "digest"
	SchemeIP                  = "ip"
	SchemeX509                = "x509"
	SchemeSASL                = "sasl"
	SchemeSuper               = "super"
	Anyone                    = "anyone"
	PasswordLen               = 16 // length of a session's password, in bytes
	XidEvent            int32 = -1 // xid of an event
	XidPing             int32 = -2 // xid of all replies to pings
	XidAuth             int32 = -4
	XidSetWatches       int32 = -8
	EventStateConnected int32 = 3 // the only state that a server sends in an event
)

// ID is an identity, which a connection has or an ACL entry refers to.
type ID struct{ Scheme, ID string }

// ACL is one entry of a znode's access control list.
type ACL struct {
	Perms int32
	ID
}

// OpenACL is world:anyone with all permissions. It must not be changed.
var OpenACL = []ACL{{PermAll, ID{SchemeWorld, Anyone}}}

var encodedOpenACL = AppendACL(nil, OpenACL)

// Append appends the encoding of the entry to b.
func (a *ACL) Append(b []byte) []byte {
	b = jute.AppendInt(b, a.Perms)
	b = jute.AppendString(b, a.Scheme)
	return jute.AppendString(b, a.ID.ID)
}

// Decode reads the entry. A null scheme or id becomes [jute.Null]; kazoo, for example,
// sends a null id with scheme auth.
func (a *ACL) Decode(d *jute.Decoder) {
	a.Perms, a.Scheme, a.ID.ID = d.Int(), d.StringOrNull(), d.StringOrNull()
}

// AppendACL appends the encoding of a list of entries to b. A nil slice is encoded as
// null.
func AppendACL(b []byte, acl []ACL) []byte {
	if acl == nil {
		return jute.AppendInt(b, -1)
	}
	b = jute.AppendInt(b, int32(len(acl)))
	for i := range acl {
		b = acl[i].Append(b)
	}
	return b
}

// DecodeACL reads a list of entries. It returns nil only for a null list or on error,
// not for an empty list.
func DecodeACL(d *jute.Decoder) []ACL {
	if d.NullVector() {
		return nil
	}
	acl := make([]ACL, d.Count(12))
	for i := range acl {
		if acl[i].Decode(d); d.Err() != nil {
			return nil
		}
	}
	return acl
}

// Stat is the metadata of a znode that clients see. Times are in milliseconds since the
// epoch, by the leader's clock.
type Stat struct {
	Czxid, Mzxid                int64
	Ctime, Mtime                int64
	Version, Cversion, Aversion int32
	EphemeralOwner              int64
	DataLength, NumChildren     int32
	Pzxid                       int64
}

func (s *Stat) Append(b []byte) []byte {
	b = jute.AppendLong(b, s.Czxid)
	b = jute.AppendLong(b, s.Mzxid)
	b = jute.AppendLong(b, s.Ctime)
	b = jute.AppendLong(b, s.Mtime)
	b = jute.AppendInt(b, s.Version)
	b = jute.AppendInt(b, s.Cversion)
	b = jute.AppendInt(b, s.Aversion)
	b = jute.AppendLong(b, s.EphemeralOwner)
	b = jute.AppendInt(b, s.DataLength)
	b = jute.AppendInt(b, s.NumChildren)
	return jute.AppendLong(b, s.Pzxid)
}

func (s *Stat) Decode(d *jute.Decoder) {
	*s = Stat{d.Long(), d.Long(), d.Long(), d.Long(), d.Int(), d.Int(), d.Int(), d.Long(), d.Int(), d.Int(), d.Long()}
}

// EventType is the type of a watch event (Watcher.Event.EventType).
type EventType int32

// The events that a server sends.
const (
	EventNodeCreated         EventType = 1
	EventNodeDeleted         EventType = 2
	EventNodeDataChanged     EventType = 3
	EventNodeChildrenChanged EventType = 4
)

// String returns ZooKeeper's name of the event.
func (t EventType) String() string {
	return [...]string{"None", "NodeCreated", "NodeDeleted", "NodeDataChanged", "NodeChildrenChanged"}[max(0, min(t, 4))]
}
