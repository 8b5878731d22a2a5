package fsm

import (
	"strings"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/watch"
	"github.com/lockkeeper/lockkeeper/znode"
)

// Reader is who reads: the connection that gets the watches, its session, and
// its identities when the request came in.
type Reader struct {
	Watcher Watcher
	Session int64
	IDs     []proto.ID
	// MaxWatches is how many watches the connection may have; 0 is any number.
	// A request that would set one more is answered ThrottledOp.
	MaxWatches int
	// MaxReply is how many bytes a reply's body may have; 0 is any number.
	MaxReply int
}

// ReplyTooLong is the code of a read whose reply would be longer than
// [Reader.MaxReply]. It is not built to its end, and no client gets the code:
// the read may have set its watch, so its connection has to be closed.
const ReplyTooLong proto.Code = -1001

// full reports whether out is longer than the reply may be.
func (r *Reader) full(out []byte) bool { return r.MaxReply > 0 && len(out) > r.MaxReply }

// watch registers a watch, and reports false if that would be one too many.
func (r *Reader) watch(v *View, kind watch.Kind, path string) bool {
	v.r.watchMu.Lock()
	defer v.r.watchMu.Unlock()
	fits := r.fits(v, path, kind)
	if fits {
		v.r.watches.Add(r.Watcher, kind, path, watch.Standard)
	}
	return fits
}

// watchPersistent is watch for what addWatch asks for.
func (r *Reader) watchPersistent(v *View, path string, recursive bool) bool {
	v.r.watchMu.Lock()
	defer v.r.watchMu.Unlock()
	fits := r.fits(v, path, watch.Data) && (recursive || r.fits(v, path, watch.Data, watch.Child))
	if fits {
		v.r.watches.AddPersistent(r.Watcher, path, recursive)
	}
	return fits
}

// fits reports whether the connection may watch path in these tables too; watchMu is held.
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

// read carries an operation out on a view: it reads its request off d and
// appends its reply to out.
type read func(v *View, r *Reader, d *jute.Decoder, out []byte) ([]byte, proto.Code)

// reads is the code of every operation of class Read.
var reads = map[proto.OpCode]read{
	proto.OpExists:               exists,
	proto.OpGetData:              getData,
	proto.OpGetACL:               getACL,
	proto.OpGetChildren:          getChildren,
	proto.OpGetChildren2:         getChildren2,
	proto.OpMultiRead:            multiRead,
	proto.OpGetEphemerals:        getEphemerals,
	proto.OpGetAllChildrenNumber: getAllChildrenNumber,
	proto.OpSetWatches:           setWatches,
	proto.OpSetWatches2:          setWatches2,
	proto.OpAddWatch:             addWatch,
	proto.OpCheckWatches:         checkWatches,
	proto.OpRemoveWatches:        removeWatches,
	proto.OpWhoAmI:               whoAmI,
}

// Read answers a request of class Read: it registers its watch, appends its
// reply's body to out, whose whole length counts for [Reader.MaxReply], and
// returns it with the code.
func (v *View) Read(r *Reader, op proto.OpCode, body, out []byte) ([]byte, proto.Code) {
	do := reads[op]
	if do == nil {
		return out, proto.Unimplemented
	}
	d := jute.NewDecoder(body)
	out, code := do(v, r, &d, out)
	if r.full(out) {
		return out, ReplyTooLong
	}
	return out, code
}

// permitted looks a znode up for somebody who needs READ. Paths are looked up as they are.
func (v *View) permitted(path string, ids []proto.ID) (*znode.Node, proto.Code) {
	return v.permittedBy(new(znode.Checker), path, ids)
}

func (v *View) permittedBy(c *znode.Checker, path string, ids []proto.ID) (*znode.Node, proto.Code) {
	n := v.m.tree.Lookup(path)
	switch {
	case n == nil:
		return nil, proto.NoNode
	case !c.Permits(n.Access(), proto.PermRead, ids):
		return nil, proto.NoAuth
	}
	return n, proto.OK
}

func exists(v *View, r *Reader, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.PathWatch
	if q.Decode(d); d.Err() != nil {
		return out, proto.MarshallingError
	}
	if strings.IndexByte(q.Path, 0) >= 0 {
		return out, proto.BadArguments
	}
	n, code := v.permitted(q.Path, r.IDs)
	// A watch is also for a znode that is not there yet.
	if q.Watch && code != proto.NoAuth && !r.watch(v, watch.Data, q.Path) {
		return out, proto.ThrottledOp
	}
	if code == proto.OK {
		s := n.Stat()
		out = s.Append(out)
	}
	return out, code
}

func getData(v *View, r *Reader, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.PathWatch
	if q.Decode(d); d.Err() != nil {
		return out, proto.MarshallingError
	}
	n, code := v.permitted(q.Path, r.IDs)
	if code != proto.OK {
		return out, code
	}
	if q.Watch && !r.watch(v, watch.Data, q.Path) {
		return out, proto.ThrottledOp
	}
	return appendData(out, n), proto.OK
}

func appendData(out []byte, n *znode.Node) []byte {
	s := n.Stat()
	return s.Append(jute.AppendBuffer(out, n.Record().Data))
}

// appendChildren stops when the reply is full.
func (r *Reader) appendChildren(out []byte, n *znode.Node) []byte {
	out = jute.AppendInt(out, int32(n.NumChildren()))
	for name := range n.Children {
		if out = jute.AppendString(out, name); r.full(out) {
			break
		}
	}
	return out
}

func getChildren(v *View, r *Reader, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	_, out, code := children(v, r, d, out)
	return out, code
}

func getChildren2(v *View, r *Reader, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	n, out, code := children(v, r, d, out)
	if code == proto.OK {
		s := n.Stat()
		out = s.Append(out)
	}
	return out, code
}

func children(v *View, r *Reader, d *jute.Decoder, out []byte) (*znode.Node, []byte, proto.Code) {
	var q proto.PathWatch
	if q.Decode(d); d.Err() != nil {
		return nil, out, proto.MarshallingError
	}
	n, code := v.permitted(q.Path, r.IDs)
	if code != proto.OK {
		return nil, out, code
	}
	if q.Watch && !r.watch(v, watch.Child, q.Path) {
		return nil, out, proto.ThrottledOp
	}
	return n, r.appendChildren(out, n), proto.OK
}

func getACL(v *View, r *Reader, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.Path
	if q.Decode(d); d.Err() != nil || q.Null {
		return out, proto.MarshallingError
	}
	n := v.m.tree.Lookup(q.Path)
	switch {
	case n == nil:
		return out, proto.NoNode
	case !n.Access().Permits(proto.PermRead|proto.PermAdmin, r.IDs):
		return out, proto.NoAuth
	}
	s := n.Stat()
	return s.Append(proto.AppendACL(out, n.MaskedACL(r.IDs))), proto.OK
}

// multiRead answers each of its reads by itself. Watch flags inside mean
// nothing, as in ZooKeeper 3.8 and 3.9.
func multiRead(v *View, r *Reader, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.MultiReadRequest
	if q.Decode(d); d.Err() != nil {
		return out, proto.MarshallingError
	}
	var checker znode.Checker
	for _, op := range q.Ops {
		n, code := v.permittedBy(&checker, op.Request.(*proto.PathWatch).Path, r.IDs)
		if code != proto.OK {
			out = proto.AppendMultiError(out, code)
			continue // 17 bytes, for which the request had about as many
		}
		if out = proto.AppendMultiResult(out, op.Op); op.Op == proto.OpGetData {
			out = appendData(out, n)
		} else {
			out = r.appendChildren(out, n)
		}
		if r.full(out) {
			break
		}
	}
	return proto.AppendMultiEnd(out), proto.OK
}

func getEphemerals(v *View, r *Reader, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.Path
	if q.Decode(d); d.Err() != nil {
		return out, proto.MarshallingError
	}
	if q.Path == znode.Root || strings.TrimSpace(q.Path) == "" {
		q.Path = ""
	}
	paths := v.m.tree.EphemeralsOf(r.Session, q.Path) // of the text: /a is a prefix of /ab too
	out = jute.AppendInt(out, int32(len(paths)))
	for _, p := range paths {
		if out = jute.AppendString(out, p); r.full(out) {
			break
		}
	}
	return out, proto.OK
}

func getAllChildrenNumber(v *View, r *Reader, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.Path
	if q.Decode(d); d.Err() != nil || q.Null {
		return out, proto.MarshallingError
	}
	n, code := v.permitted(q.Path, r.IDs)
	if code != proto.OK {
		return out, code
	}
	return jute.AppendInt(out, int32(n.Descendants())), proto.OK
}

func setWatches(v *View, r *Reader, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.SetWatches2Request
	if q.SetWatchesRequest.Decode(d); d.Err() != nil {
		return out, proto.MarshallingError
	}
	return out, v.setWatches(r, &q)
}

func setWatches2(v *View, r *Reader, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.SetWatches2Request
	if q.Decode(d); d.Err() != nil {
		return out, proto.MarshallingError
	}
	return out, v.setWatches(r, &q)
}

// setWatches gives a client that reconnected its watches back (DataTree.setWatches).
// What has changed since it last heard is an event at once, in place of a watch.
// If they are too many, some of them are set: the connection is of no use then.
func (v *View) setWatches(r *Reader, q *proto.SetWatches2Request) proto.Code {
	tell := func(t proto.EventType, path string) { r.Watcher.Event(-1, t, path) }
	code := proto.OK
	set := func(ok bool) {
		if !ok {
			code = proto.ThrottledOp
		}
	}
	for _, path := range q.Data {
		switch n := v.m.tree.Lookup(path); {
		case n == nil:
			tell(proto.EventNodeDeleted, path)
		case n.Record().Mzxid > q.RelativeZxid:
			tell(proto.EventNodeDataChanged, path)
		default:
			set(r.watch(v, watch.Data, path))
		}
	}
	for _, path := range q.Exist {
		if v.m.tree.Lookup(path) != nil {
			tell(proto.EventNodeCreated, path)
		} else {
			set(r.watch(v, watch.Data, path))
		}
	}
	for _, path := range q.Child {
		switch n := v.m.tree.Lookup(path); {
		case n == nil:
			tell(proto.EventNodeDeleted, path)
		case n.Record().Pzxid > q.RelativeZxid:
			tell(proto.EventNodeChildrenChanged, path)
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
	return code
}

func addWatch(v *View, r *Reader, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	var q proto.PathType
	if q.Decode(d); d.Err() != nil || q.Type < 0 || q.Type > 1 {
		return out, proto.MarshallingError
	}
	if !r.watchPersistent(v, q.Path, q.Type == 1) {
		return out, proto.ThrottledOp
	}
	return jute.AppendInt(out, 0), proto.OK
}

func checkWatches(v *View, r *Reader, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	return out, v.findWatches(r.Watcher, d, false)
}

func removeWatches(v *View, r *Reader, d *jute.Decoder, out []byte) ([]byte, proto.Code) {
	return out, v.findWatches(r.Watcher, d, true)
}

// findWatches looks for the connection's watches of a type (WatcherType of
// ZooKeeper 3.9) on a path, and drops them if remove is set.
func (v *View) findWatches(w Watcher, d *jute.Decoder, remove bool) proto.Code {
	type place struct {
		kind  watch.Kind
		modes watch.Mode
	}
	var q proto.PathType
	if q.Decode(d); d.Err() != nil {
		return proto.MarshallingError
	}
	var places []place
	switch q.Type {
	case 1:
		places = []place{{watch.Child, watch.Standard}}
	case 2:
		places = []place{{watch.Data, watch.Standard}}
	case 3:
		places = []place{{watch.Child, anyMode}, {watch.Data, anyMode}}
	case 4:
		places = []place{{watch.Child, watch.Persistent}, {watch.Data, watch.Persistent}}
	case 5:
		places = []place{{watch.Data, watch.Recursive}}
	default:
		return proto.MarshallingError
	}
	v.r.watchMu.Lock()
	defer v.r.watchMu.Unlock()
	code := proto.NoWatcher
	for _, p := range places {
		if v.r.watches.Has(w, p.kind, q.Path, p.modes) {
			code = proto.OK
			if remove {
				v.r.watches.Remove(w, p.kind, q.Path, p.modes)
			}
		}
	}
	return code
}

func whoAmI(_ *View, r *Reader, _ *jute.Decoder, out []byte) ([]byte, proto.Code) {
	reply := proto.WhoAmIReply{}
	for _, id := range append(r.IDs[1:len(r.IDs):len(r.IDs)], r.IDs[0]) { // the address last, as in ZooKeeper
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
