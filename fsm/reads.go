package fsm

import (
	"strings"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/watch"
	"github.com/lockkeeper/lockkeeper/znode"
)

// Reader is the client connection for which a read is carried out.
type Reader struct {
	Watcher Watcher // gets the watches
	Session int64
	IDs     []proto.ID // the connection's identities when the request arrived
	// MaxWatches is the maximum number of the connection's watches; 0 means no limit.
	// A request that would exceed it fails with ThrottledOp.
	MaxWatches int
	// MaxReply is the maximum length of a reply's body in bytes; 0 means no limit.
	MaxReply int
	// Older says in what the answer is that of an older release of ZooKeeper.
	Older Older
}

// Older says in what reads, and the watches that they set, are those of older releases of
// ZooKeeper. What each field means for the releases is in package persona.
type Older struct {
	FreeExists     bool // exists needs no permission
	OneMode        bool // a watch replaces the connection's watches of other modes in the same set
	ForeignWatches bool // checkWatches finds the watches of all connections
	StandardTypes  bool // checkWatches and removeWatches do not know the types of persistent watches
	NoConfig       bool // there is no znode with the members
}

// system is the znode whose children are ZooKeeper's own, and nowhere a path at which there
// never is one.
const (
	system  = "/zookeeper"
	nowhere = znode.ConfigPath + "//"
)

// path returns where to look for what a request calls path.
func (r *Reader) path(path string) string {
	if r.Older.NoConfig && path == znode.ConfigPath {
		return nowhere
	}
	return path
}

// stat returns the Stat of a znode.
func (r *Reader) stat(path string, n *znode.Node) proto.Stat {
	s := n.Stat()
	if r.Older.NoConfig && path == system {
		s.NumChildren--
		s.Cversion++
	}
	return s
}

// ReplyTooLong is the code of a read whose reply is longer than [Reader.MaxReply]. It must
// not be sent to the client. Instead the connection must be closed, since the read may have
// set a watch.
const ReplyTooLong proto.Code = -1001

// full reports whether out is longer than the reply may be.
func (r *Reader) full(out []byte) bool { return r.MaxReply > 0 && len(out) > r.MaxReply }

// watch adds a watch. It returns false, without effect, if that would exceed MaxWatches.
func (r *Reader) watch(v *View, kind watch.Kind, path string) bool {
	v.r.watchMu.Lock()
	defer v.r.watchMu.Unlock()
	fits := r.fits(v, path, kind)
	if fits {
		if r.Older.OneMode {
			v.r.watches.Remove(r.Watcher, kind, path, anyMode)
		}
		v.r.watches.Add(r.Watcher, kind, path, watch.Standard)
	}
	return fits
}

// watchPersistent is like watch, for the persistent and recursive watches of addWatch.
func (r *Reader) watchPersistent(v *View, path string, recursive bool) bool {
	v.r.watchMu.Lock()
	defer v.r.watchMu.Unlock()
	mode := watch.Persistent
	kinds := []watch.Kind{watch.Data, watch.Child}
	if recursive {
		mode = watch.Recursive
		if !r.Older.OneMode {
			kinds = kinds[:1]
		}
	}
	fits := r.fits(v, path, kinds...)
	for _, kind := range kinds {
		if fits && r.Older.OneMode {
			v.r.watches.Remove(r.Watcher, kind, path, anyMode)
		}
		if fits {
			v.r.watches.Add(r.Watcher, kind, path, mode)
		}
	}
	return fits
}

// fits reports whether the connection may have watches of the given kinds on path too. The
// caller must hold watchMu.
func (r *Reader) fits(v *View, path string, kinds ...watch.Kind) bool {
	if r.MaxWatches == 0 {
		return true
	}
	n := v.r.watches.LenOf(r.Watcher)
	for _, kind := range kinds {
		if !v.r.watches.Has(r.Watcher, kind, path, anyMode) {
			n++
		}
	}
	return n <= r.MaxWatches
}

const anyMode = watch.Standard | watch.Persistent | watch.Recursive

// read carries out an operation on a view: it decodes the request from d and appends the
// reply to out.
type read func(v *View, r *Reader, op proto.OpCode, d *jute.Decoder, out []byte) ([]byte, proto.Code)

// reads has the function for each operation of class Read.
var reads = map[proto.OpCode]read{
	proto.OpExists:               exists,
	proto.OpGetData:              get,
	proto.OpGetACL:               getACL,
	proto.OpGetChildren:          get,
	proto.OpGetChildren2:         get,
	proto.OpMultiRead:            multiRead,
	proto.OpGetEphemerals:        getEphemerals,
	proto.OpGetAllChildrenNumber: getAllChildrenNumber,
	proto.OpSetWatches:           setWatches,
	proto.OpSetWatches2:          setWatches,
	proto.OpAddWatch:             addWatch,
	proto.OpCheckWatches:         findWatches,
	proto.OpRemoveWatches:        findWatches,
	proto.OpWhoAmI:               whoAmI,
}

// Read carries out a request of class Read. It sets the request's watch, appends the body of
// the reply to out, and returns that with the code. [Reader.MaxReply] limits the length of
// out including what it contained before.
func (v *View) Read(r *Reader, op proto.OpCode, body, out []byte) ([]byte, proto.Code) {
	do := reads[op]
	if do == nil {
		return out, proto.Unimplemented
	}
	d := jute.NewDecoder(body)
	out, code := do(v, r, op, &d, out)
	if r.full(out) {
		return out, ReplyTooLong
	}
	return out, code
}

// lookup finds the znode at path and has c check that ids have READ permission. It does not
// validate the path.
func (v *View) lookup(c *znode.Checker, path string, ids []proto.ID) (*znode.Node, proto.Code) {
	n := v.m.tree.Lookup(path)
	switch {
	case n == nil:
		return nil, proto.NoNode
	case !c.Permits(n.Access(), proto.PermRead, ids):
		return nil, proto.NoAuth
	}
	return n, proto.OK
}

func exists(v *View, r *Reader, _ proto.OpCode, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.PathWatch
	if q.Decode(d); d.Err() != nil {
		return out, proto.MarshallingError
	}
	if strings.IndexByte(q.Path, 0) >= 0 {
		return out, proto.BadArguments
	}
	q.Path = r.path(q.Path)
	n, code := v.lookup(new(znode.Checker), q.Path, r.IDs)
	if code == proto.NoAuth && r.Older.FreeExists {
		n, code = v.m.tree.Lookup(q.Path), proto.OK
	}
	// A watch may also be set on a znode that does not exist yet.
	if q.Watch && code != proto.NoAuth && !r.watch(v, watch.Data, q.Path) {
		return out, proto.ThrottledOp
	}
	if code == proto.OK {
		s := r.stat(q.Path, n)
		out = s.Append(out)
	}
	return out, code
}

// get carries out getData, getChildren and getChildren2.
func get(v *View, r *Reader, op proto.OpCode, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.PathWatch
	if q.Decode(d); d.Err() != nil {
		return out, proto.MarshallingError
	}
	path, kind := r.path(q.Path), watch.Child
	if op == proto.OpGetData {
		kind = watch.Data
	}
	n, code := v.lookup(new(znode.Checker), path, r.IDs)
	if code != proto.OK {
		return out, code
	}
	if q.Watch && !r.watch(v, kind, path) {
		return out, proto.ThrottledOp
	}
	return v.appendGot(r, op, out, path, n), proto.OK
}

// appendGot appends the reply to getData, getChildren or getChildren2.
func (v *View) appendGot(r *Reader, op proto.OpCode, out []byte, path string, n *znode.Node) []byte {
	if op == proto.OpGetData {
		out = n.AppendData(out)
	} else {
		out = v.appendChildren(r, out, path, n)
	}
	if op == proto.OpGetChildren {
		return out
	}
	s := r.stat(path, n)
	return s.Append(out)
}

// appendChildren appends the names of n's children, and stops when the reply is full.
func (v *View) appendChildren(r *Reader, out []byte, path string, n *znode.Node) []byte {
	count, hides := n.NumChildren(), r.Older.NoConfig && path == system
	if hides {
		count--
	}
	out = jute.AppendInt(out, int32(count))
	for name := range v.m.tree.Children(n) {
		if hides && name == znode.ConfigPath[len(system)+1:] {
			continue
		}
		if out = jute.AppendString(out, name); r.full(out) {
			break
		}
	}
	return out
}

func getACL(v *View, r *Reader, _ proto.OpCode, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.Path
	if q.Decode(d); d.Err() != nil || q.Path == jute.Null {
		return out, proto.MarshallingError
	}
	q.Path = r.path(q.Path)
	n := v.m.tree.Lookup(q.Path)
	switch {
	case n == nil:
		return out, proto.NoNode
	case !n.Access().Permits(proto.PermRead|proto.PermAdmin, r.IDs):
		return out, proto.NoAuth
	}
	s := r.stat(q.Path, n)
	return s.Append(proto.AppendACL(out, n.MaskedACL(r.IDs))), proto.OK
}

// multiRead answers each read on its own. It ignores their watch flags, as ZooKeeper 3.8 and
// 3.9 do.
func multiRead(v *View, r *Reader, _ proto.OpCode, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.MultiReadRequest
	if q.Decode(d); d.Err() != nil {
		return out, proto.MarshallingError
	}
	var checker znode.Checker
	for _, op := range q.Ops {
		path := op.Request.(*proto.PathWatch).Path
		n, code := v.lookup(&checker, path, r.IDs)
		if code != proto.OK {
			out = proto.AppendMultiError(out, code)
			continue // without a check for a full reply: the read in the request is about as long
		}
		if out = v.appendGot(r, op.Op, proto.AppendMultiResult(out, op.Op), path, n); r.full(out) {
			break
		}
	}
	return proto.AppendMultiEnd(out), proto.OK
}

func getEphemerals(v *View, r *Reader, _ proto.OpCode, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.Path
	if q.Decode(d); d.Err() != nil {
		return out, proto.MarshallingError
	}
	if q.Path == znode.Root || q.Path == jute.Null || strings.TrimSpace(q.Path) == "" {
		q.Path = ""
	}
	paths := v.m.tree.EphemeralsOf(r.Session, q.Path) // as in ZooKeeper, /a is a prefix of /ab too
	out = jute.AppendInt(out, int32(len(paths)))
	for _, p := range paths {
		if out = jute.AppendString(out, p); r.full(out) {
			break
		}
	}
	return out, proto.OK
}

func getAllChildrenNumber(v *View, r *Reader, _ proto.OpCode, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.Path
	if q.Decode(d); d.Err() != nil || q.Path == jute.Null {
		return out, proto.MarshallingError
	}
	n, code := v.lookup(new(znode.Checker), q.Path, r.IDs)
	if code != proto.OK {
		return out, code
	}
	return jute.AppendInt(out, int32(n.Descendants())), proto.OK
}

// setWatches sets the watches of a client that has reconnected (DataTree.setWatches). If a
// znode has changed since the last zxid that the client has seen, the client gets an event
// at once instead. If there are too many watches, setWatches sets only some of them and
// returns ThrottledOp.
func setWatches(v *View, r *Reader, op proto.OpCode, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.SetWatches2Request
	if op == proto.OpSetWatches2 {
		q.Decode(d)
	} else {
		q.SetWatchesRequest.Decode(d)
	}
	if d.Err() != nil {
		return out, proto.MarshallingError
	}
	notify := func(t proto.EventType, path string) { r.Watcher.Event(-1, t, path) }
	code := proto.OK
	set := func(ok bool) {
		if !ok {
			code = proto.ThrottledOp
		}
	}
	for _, path := range q.Data {
		switch n := v.m.tree.Lookup(r.path(path)); {
		case n == nil:
			notify(proto.EventNodeDeleted, path)
		case n.Stat().Mzxid > q.RelativeZxid:
			notify(proto.EventNodeDataChanged, path)
		default:
			set(r.watch(v, watch.Data, path))
		}
	}
	for _, path := range q.Exist {
		if v.m.tree.Lookup(r.path(path)) != nil {
			notify(proto.EventNodeCreated, path)
		} else {
			set(r.watch(v, watch.Data, r.path(path)))
		}
	}
	for _, path := range q.Child {
		switch n := v.m.tree.Lookup(r.path(path)); {
		case n == nil:
			notify(proto.EventNodeDeleted, path)
		case n.Stat().Pzxid > q.RelativeZxid:
			notify(proto.EventNodeChildrenChanged, path)
		default:
			set(r.watch(v, watch.Child, path))
		}
	}
	for _, path := range q.Persistent {
		set(r.watchPersistent(v, path, false))
	}
	for _, path := range q.Recursive {
		set(r.watchPersistent(v, path, true))
	}
	return out, code
}

func addWatch(v *View, r *Reader, _ proto.OpCode, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.PathType
	if q.Decode(d); d.Err() != nil || q.Type < 0 || q.Type > 1 {
		return out, proto.MarshallingError
	}
	if !r.watchPersistent(v, q.Path, q.Type == 1) {
		return out, proto.ThrottledOp
	}
	return jute.AppendInt(out, 0), proto.OK
}

// findWatches looks for the connection's watches of a type (WatcherType in ZooKeeper 3.9) on
// a path, and removes them if the operation is removeWatches.
func findWatches(v *View, r *Reader, op proto.OpCode, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	type place struct {
		kind  watch.Kind
		modes watch.Mode
	}
	var q proto.PathType
	if q.Decode(d); d.Err() != nil {
		return out, proto.MarshallingError
	}
	remove := op == proto.OpRemoveWatches
	if q.Type > 3 && r.Older.StandardTypes {
		return out, proto.MarshallingError
	}
	single := watch.Standard
	if r.Older.OneMode {
		single = anyMode
	}
	var places []place
	switch q.Type {
	case 1:
		places = []place{{watch.Child, single}}
	case 2:
		places = []place{{watch.Data, single}}
	case 3:
		places = []place{{watch.Child, anyMode}, {watch.Data, anyMode}}
	case 4:
		places = []place{{watch.Child, watch.Persistent}, {watch.Data, watch.Persistent}}
	case 5:
		places = []place{{watch.Data, watch.Recursive}}
	default:
		return out, proto.MarshallingError
	}
	v.r.watchMu.Lock()
	defer v.r.watchMu.Unlock()
	code := proto.NoWatcher
	for _, p := range places {
		switch {
		case v.r.watches.Has(r.Watcher, p.kind, q.Path, p.modes):
			code = proto.OK
			if remove {
				v.r.watches.Remove(r.Watcher, p.kind, q.Path, p.modes)
			}
		case r.Older.ForeignWatches && !remove && v.r.watches.Watched(p.kind, q.Path):
			code = proto.OK
		}
	}
	return out, code
}

func whoAmI(_ *View, r *Reader, _ proto.OpCode, _ *jute.Decoder, out []byte) ([]byte, proto.Code) {
	reply := proto.WhoAmIReply{}
	for _, id := range append(r.IDs[1:len(r.IDs):len(r.IDs)], r.IDs[0]) { // as in ZooKeeper, the address comes last
		switch id.Scheme {
		case proto.SchemeDigest:
			id.ID, _, _ = strings.Cut(id.ID, ":")
		case proto.SchemeSuper:
			id.ID = ""
		}
		reply.IDs = append(reply.IDs, id)
	}
	return reply.Append(out), proto.OK
}
