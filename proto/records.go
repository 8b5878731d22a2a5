package proto

import "github.com/lockkeeper/lockkeeper/jute"

// ConnectRequest is the first message of a connection. It has no header.
type ConnectRequest struct {
	ProtocolVersion int32
	LastZxidSeen    int64
	Timeout         int32 // ms
	SessionID       int64 // 0 to open a new session
	Password        []byte
	ReadOnly        bool
	HasReadOnly     bool // ReadOnly, which is optional, was sent; the reply then has it too
}

func (r *ConnectRequest) Append(b []byte) []byte {
	b = jute.AppendInt(b, r.ProtocolVersion)
	b = jute.AppendLong(b, r.LastZxidSeen)
	b = jute.AppendInt(b, r.Timeout)
	b = jute.AppendLong(b, r.SessionID)
	b = jute.AppendBuffer(b, r.Password)
	if r.HasReadOnly {
		b = jute.AppendBool(b, r.ReadOnly)
	}
	return b
}

func (r *ConnectRequest) Decode(d *jute.Decoder) {
	r.ProtocolVersion, r.LastZxidSeen, r.Timeout, r.SessionID, r.Password = d.Int(), d.Long(), d.Int(), d.Long(), d.Buffer()
	if r.HasReadOnly = len(d.Rest()) > 0; r.HasReadOnly {
		r.ReadOnly = d.Bool()
	}
}

// ConnectReply is the reply to a ConnectRequest. Session 0 with timeout 0 means that
// the request was refused.
type ConnectReply struct {
	ProtocolVersion int32
	Timeout         int32 // ms
	SessionID       int64
	Password        []byte
	ReadOnly        bool
	HasReadOnly     bool
}

func (r *ConnectReply) Append(b []byte) []byte {
	b = jute.AppendInt(b, r.ProtocolVersion)
	b = jute.AppendInt(b, r.Timeout)
	b = jute.AppendLong(b, r.SessionID)
	b = jute.AppendBuffer(b, r.Password)
	if r.HasReadOnly {
		b = jute.AppendBool(b, r.ReadOnly)
	}
	return b
}

func (r *ConnectReply) Decode(d *jute.Decoder) {
	r.ProtocolVersion, r.Timeout, r.SessionID, r.Password = d.Int(), d.Int(), d.Long(), d.Buffer()
	if r.HasReadOnly = len(d.Rest()) > 0; r.HasReadOnly {
		r.ReadOnly = d.Bool()
	}
}

// RequestHeader is the start of every request except ConnectRequest.
type RequestHeader struct {
	Xid int32
	Op  OpCode
}

func (r *RequestHeader) Append(b []byte) []byte {
	return jute.AppendInt(jute.AppendInt(b, r.Xid), int32(r.Op))
}

func (r *RequestHeader) Decode(d *jute.Decoder) { r.Xid, r.Op = d.Int(), OpCode(d.Int()) }

// ReplyHeader is the start of every reply except ConnectReply, and of every event.
type ReplyHeader struct {
	Xid  int32
	Zxid int64
	Code Code
}

func (r *ReplyHeader) Append(b []byte) []byte {
	return jute.AppendInt(jute.AppendLong(jute.AppendInt(b, r.Xid), r.Zxid), int32(r.Code))
}

func (r *ReplyHeader) Decode(d *jute.Decoder) {
	r.Xid, r.Zxid, r.Code = d.Int(), d.Long(), Code(d.Int())
}

// WatcherEvent is the body of a watch event.
type WatcherEvent struct {
	Type  EventType
	State int32
	Path  string
}

func (r *WatcherEvent) Append(b []byte) []byte {
	return jute.AppendString(jute.AppendInt(jute.AppendInt(b, int32(r.Type)), r.State), r.Path)
}

func (r *WatcherEvent) Decode(d *jute.Decoder) {
	r.Type, r.State, r.Path = EventType(d.Int()), d.Int(), d.String()
}

// Empty is the body of a request that has none.
type Empty struct{}

func (*Empty) Append(b []byte) []byte { return b }
func (*Empty) Decode(*jute.Decoder)   {}

// CreateRequest is the body of create, create2 and createContainer.
type CreateRequest struct {
	Path  string
	Data  []byte
	ACL   []ACL // may be OpenACL itself, so it must not be changed
	Flags int32
}

func (r *CreateRequest) Append(b []byte) []byte {
	b = jute.AppendString(b, r.Path)
	b = jute.AppendBuffer(b, r.Data)
	return jute.AppendInt(AppendACL(b, r.ACL), r.Flags)
}

func (r *CreateRequest) Decode(d *jute.Decoder) {
	r.Path, r.Data = d.StringOrNull(), d.Buffer()
	if d.Skip(encodedOpenACL) { // as in nearly every request
		r.ACL = OpenACL
	} else {
		r.ACL = DecodeACL(d)
	}
	r.Flags = d.Int()
}

// CreateTTLRequest is the body of createTTL.
type CreateTTLRequest struct {
	CreateRequest
	TTL int64 // ms
}

func (r *CreateTTLRequest) Append(b []byte) []byte {
	return jute.AppendLong(r.CreateRequest.Append(b), r.TTL)
}

func (r *CreateTTLRequest) Decode(d *jute.Decoder) {
	r.CreateRequest.Decode(d)
	r.TTL = d.Long()
}

// PathVersion is the body of delete and check.
type PathVersion struct {
	Path    string
	Version int32
}

func (r *PathVersion) Append(b []byte) []byte {
	return jute.AppendInt(jute.AppendString(b, r.Path), r.Version)
}

func (r *PathVersion) Decode(d *jute.Decoder) { r.Path, r.Version = d.StringOrNull(), d.Int() }

// PathType is the body of checkWatches and removeWatches, where Type is a WatcherType,
// and of addWatch, where it is an AddWatchMode.
type PathType struct {
	Path string
	Type int32
}

func (r *PathType) Append(b []byte) []byte {
	return jute.AppendInt(jute.AppendString(b, r.Path), r.Type)
}

func (r *PathType) Decode(d *jute.Decoder) { r.Path, r.Type = d.StringOrNull(), d.Int() }

// PathWatch is the body of exists, getData, getChildren and getChildren2.
type PathWatch struct {
	Path  string
	Watch bool
}

func (r *PathWatch) Append(b []byte) []byte {
	return jute.AppendBool(jute.AppendString(b, r.Path), r.Watch)
}

func (r *PathWatch) Decode(d *jute.Decoder) { r.Path, r.Watch = d.String(), d.Bool() }

// Path is the body of getACL, sync, getEphemerals and getAllChildrenNumber, and a field
// of reconfig. A path that is null becomes [jute.Null].
type Path struct{ Path string }

// Text returns the path, and an empty one for null.
func (r Path) Text() string {
	if r.Path == jute.Null {
		return ""
	}
	return r.Path
}

func (r *Path) Append(b []byte) []byte { return jute.AppendString(b, r.Path) }
func (r *Path) Decode(d *jute.Decoder) { r.Path = d.StringOrNull() }

// SetDataRequest is the body of setData.
type SetDataRequest struct {
	Path    string
	Data    []byte
	Version int32
}

func (r *SetDataRequest) Append(b []byte) []byte {
	return jute.AppendInt(jute.AppendBuffer(jute.AppendString(b, r.Path), r.Data), r.Version)
}

func (r *SetDataRequest) Decode(d *jute.Decoder) {
	r.Path, r.Data, r.Version = d.StringOrNull(), d.Buffer(), d.Int()
}

// SetACLRequest is the body of setACL. Version is compared with the znode's Aversion.
type SetACLRequest struct {
	Path    string
	ACL     []ACL
	Version int32
}

func (r *SetACLRequest) Append(b []byte) []byte {
	return jute.AppendInt(AppendACL(jute.AppendString(b, r.Path), r.ACL), r.Version)
}

func (r *SetACLRequest) Decode(d *jute.Decoder) {
	r.Path, r.ACL, r.Version = d.StringOrNull(), DecodeACL(d), d.Int()
}

// ReconfigRequest is the body of reconfig. Each of the lists of servers may be null.
type ReconfigRequest struct {
	Joining, Leaving, NewMembers Path
	ConfigID                     int64 // expected version of the configuration; -1 for any
}

func (r *ReconfigRequest) Append(b []byte) []byte {
	b = r.NewMembers.Append(r.Leaving.Append(r.Joining.Append(b)))
	return jute.AppendLong(b, r.ConfigID)
}

func (r *ReconfigRequest) Decode(d *jute.Decoder) {
	r.Joining.Decode(d)
	r.Leaving.Decode(d)
	r.NewMembers.Decode(d)
	r.ConfigID = d.Long()
}

// AuthRequest is the body of auth (AuthPacket).
type AuthRequest struct {
	Type   int32
	Scheme string
	Auth   []byte
}

func (r *AuthRequest) Append(b []byte) []byte {
	return jute.AppendBuffer(jute.AppendString(jute.AppendInt(b, r.Type), r.Scheme), r.Auth)
}

// Decode reads the record. A null scheme becomes "", which is not a known scheme.
func (r *AuthRequest) Decode(d *jute.Decoder) {
	r.Type = d.Int()
	if r.Scheme = d.StringOrNull(); r.Scheme == jute.Null {
		r.Scheme = ""
	}
	r.Auth = d.Buffer()
}

// SASLRequest is the body of sasl (GetSASLRequest). The token may be empty, but not
// null.
type SASLRequest struct{ Token []byte }

func (r *SASLRequest) Append(b []byte) []byte {
	return append(jute.AppendInt(b, int32(len(r.Token))), r.Token...)
}

func (r *SASLRequest) Decode(d *jute.Decoder) {
	if r.Token = d.Buffer(); r.Token == nil {
		d.Fail(jute.ErrNull)
	}
}

// SASLReply is the reply to sasl (SetSASLResponse).
type SASLReply struct{ Token []byte }

func (r *SASLReply) Append(b []byte) []byte { return jute.AppendBuffer(b, r.Token) }
func (r *SASLReply) Decode(d *jute.Decoder) { r.Token = d.Buffer() }

// SetWatchesRequest is the body of setWatches.
type SetWatchesRequest struct {
	RelativeZxid       int64
	Data, Exist, Child []string
}

func (r *SetWatchesRequest) Append(b []byte) []byte {
	b = jute.AppendLong(b, r.RelativeZxid)
	for _, v := range [][]string{r.Data, r.Exist, r.Child} {
		b = jute.AppendStrings(b, v)
	}
	return b
}

func (r *SetWatchesRequest) Decode(d *jute.Decoder) {
	r.RelativeZxid, r.Data, r.Exist, r.Child = d.Long(), d.Strings(), d.Strings(), d.Strings()
}

// SetWatches2Request is the body of setWatches2.
type SetWatches2Request struct {
	SetWatchesRequest
	Persistent, Recursive []string
}

func (r *SetWatches2Request) Append(b []byte) []byte {
	b = r.SetWatchesRequest.Append(b)
	return jute.AppendStrings(jute.AppendStrings(b, r.Persistent), r.Recursive)
}

func (r *SetWatches2Request) Decode(d *jute.Decoder) {
	r.SetWatchesRequest.Decode(d)
	r.Persistent, r.Recursive = d.Strings(), d.Strings()
}

// PathReply is the reply to create.
type PathReply struct{ Path string }

func (r *PathReply) Append(b []byte) []byte { return jute.AppendString(b, r.Path) }
func (r *PathReply) Decode(d *jute.Decoder) { r.Path = d.String() }

// PathStatReply is the reply to create2, createContainer and createTTL.
type PathStatReply struct {
	Path string
	Stat Stat
}

func (r *PathStatReply) Append(b []byte) []byte { return r.Stat.Append(jute.AppendString(b, r.Path)) }

func (r *PathStatReply) Decode(d *jute.Decoder) {
	r.Path = d.String()
	r.Stat.Decode(d)
}

// DataReply is the reply to getData.
type DataReply struct {
	Data []byte
	Stat Stat
}

func (r *DataReply) Append(b []byte) []byte { return r.Stat.Append(jute.AppendBuffer(b, r.Data)) }

func (r *DataReply) Decode(d *jute.Decoder) {
	r.Data = d.Buffer()
	r.Stat.Decode(d)
}

// ACLReply is the reply to getACL.
type ACLReply struct {
	ACL  []ACL
	Stat Stat
}

func (r *ACLReply) Append(b []byte) []byte { return r.Stat.Append(AppendACL(b, r.ACL)) }

func (r *ACLReply) Decode(d *jute.Decoder) {
	r.ACL = DecodeACL(d)
	r.Stat.Decode(d)
}

// ChildrenReply is the reply to getChildren: the names of the children, in any order; and to
// getEphemerals: the full paths.
type ChildrenReply struct{ Names []string }

func (r *ChildrenReply) Append(b []byte) []byte { return jute.AppendStrings(b, r.Names) }
func (r *ChildrenReply) Decode(d *jute.Decoder) { r.Names = d.Strings() }

// Children2Reply is the reply to getChildren2.
type Children2Reply struct {
	Names []string
	Stat  Stat
}

func (r *Children2Reply) Append(b []byte) []byte {
	return r.Stat.Append(jute.AppendStrings(b, r.Names))
}

func (r *Children2Reply) Decode(d *jute.Decoder) {
	r.Names = d.Strings()
	r.Stat.Decode(d)
}

// IntReply is the reply to getAllChildrenNumber and addWatch (ErrorResponse).
type IntReply struct{ N int32 }

func (r *IntReply) Append(b []byte) []byte { return jute.AppendInt(b, r.N) }
func (r *IntReply) Decode(d *jute.Decoder) { r.N = d.Int() }

// WhoAmIReply is the reply to whoAmI: the identities of the connection.
type WhoAmIReply struct{ IDs []ID }

func (r *WhoAmIReply) Append(b []byte) []byte {
	b = jute.AppendInt(b, int32(len(r.IDs)))
	for _, id := range r.IDs {
		b = jute.AppendString(jute.AppendString(b, id.Scheme), id.ID)
	}
	return b
}

func (r *WhoAmIReply) Decode(d *jute.Decoder) {
	n := d.Count(8)
	r.IDs = nil
	for range n {
		r.IDs = append(r.IDs, ID{d.String(), d.String()})
	}
}
