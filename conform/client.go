package conform

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// maxReply limits the frames that are read. It is generous: servers do not limit replies.
const maxReply = 64 << 20

// maxFrame is the longest frame that a server accepts by default (jute.maxbuffer).
const maxFrame = 1<<20 - 1

// trial is the state of one running check. Only the check's goroutine may use it. Its
// methods end the check if something is not as expected.
type trial struct {
	ctx   context.Context
	s     *state
	name  string
	conns []*conn
	log   []entry
}

// entry is a line of the log in a failure report: a frame, or a note on another event.
type entry struct {
	conn  string
	frame *wire.Frame // or nil
	note  string
}

// failure is the panic value that ends a check.
type failure struct{ why string }

// protect runs f and returns why it failed, or "" if it did not.
func (t *trial) protect(f func()) (why string) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			why = r.why
		default:
			why = fmt.Sprintf("the check panicked: %v\n%s", r, debug.Stack())
		}
	}()
	f()
	return ""
}

func (t *trial) failf(format string, args ...any) { panic(failure{fmt.Sprintf(format, args...)}) }

func (t *trial) equal(what string, got, want any) {
	if !reflect.DeepEqual(got, want) {
		t.failf("%s is %s, expected %s", what, show(got), show(want))
	}
}

func (t *trial) ensure(ok bool, format string, args ...any) {
	if !ok {
		t.failf(format, args...)
	}
}

func show(v any) string {
	if v == nil {
		return "nil"
	}
	return wire.Text(v)
}

// path returns a path below the check's own znode; path("") is that znode.
func (t *trial) path(rel string) string {
	p := t.s.root + "/" + strings.ReplaceAll(t.name, "/", ":")
	if rel != "" {
		p += "/" + rel
	}
	return p
}

func (t *trial) makeRoot() {
	k := t.connect()
	k.create(t.path(""), nil, 0)
	k.closeSession()
	t.conns, t.log = nil, nil
}

// end closes the sessions and connections that the check left open.
func (t *trial) end() {
	for _, k := range t.conns {
		k.uninterrupted()
		k.uninterrupted = nil
		if k.nc != nil && k.Session.SessionID != 0 {
			t.protect(func() {
				k.timeout = min(k.timeout, 2*time.Second)
				k.send(request{Op: proto.OpCloseSession})
				for { // until the server closes it, so that the next check finds no ephemerals
					k.next()
				}
			})
		}
		k.hangUp()
	}
}

func (t *trial) exchange() (lines []string) {
	const most = 200
	log := t.log
	if len(log) > most {
		lines = append(lines, fmt.Sprintf("… %d earlier lines", len(log)-most))
		log = log[len(log)-most:]
	}
	for _, e := range log {
		switch {
		case e.frame == nil:
			lines = append(lines, fmt.Sprintf("%s   %s", e.conn, e.note))
		case e.frame.FromClient():
			lines = append(lines, fmt.Sprintf("%s > %s", e.conn, e.frame))
		default:
			lines = append(lines, fmt.Sprintf("%s < %s", e.conn, e.frame))
		}
	}
	return lines
}

// ops returns the operations that were requested, including those in a multi.
func (t *trial) ops() (names []string) {
	for _, e := range t.log {
		if e.frame == nil || e.frame.Kind != wire.Request {
			continue
		}
		names = append(names, wire.OpName(e.frame.Op))
		if m, ok := e.frame.Body.(*proto.MultiRequest); ok {
			for _, part := range m.Ops {
				names = append(names, wire.OpName(part.Op))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// wait sleeps for d, or ends the check when the context ends.
func (t *trial) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.ctx.Done():
		t.failf("%v", t.ctx.Err())
	}
}

// eventually calls f until it returns true, for at most d plus the timeout of a frame.
func (t *trial) eventually(d time.Duration, what string, f func() bool) {
	for end := time.Now().Add(d + t.s.o.Timeout); !f(); t.wait(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.failf("%s: not true within %v", what, d+t.s.o.Timeout)
		}
	}
}

// undisturbed runs f up to four times until it passes, each time with another path to
// work below. It is for checks that may fail by chance, because an old session ends or
// a container is reaped at the same time.
func (t *trial) undisturbed(f func(root string)) {
	const tries = 4
	for try := range tries {
		why := t.protect(func() { f(t.path(fmt.Sprintf("try%d", try))) })
		if why == "" {
			return
		}
		t.log = append(t.log, entry{conn: "-", note: why})
		if try == tries-1 {
			t.failf("%s", why)
		}
		t.wait(100 * time.Millisecond)
	}
}

func (t *trial) word(w string) string {
	k := t.dial()
	k.write([]byte(w), "word "+w)
	k.await()
	b, err := io.ReadAll(k.r)
	if err != nil && len(b) == 0 {
		t.failf("%s is not answered: %v", w, err)
	}
	t.log = append(t.log, entry{conn: k.name, note: fmt.Sprintf("answered %q", b)})
	k.hangUp()
	return string(b)
}

// conn is one connection. It is not a rawclient.Client, because its methods end the
// check if a reply is not as expected, and log every frame for the report.
type conn struct {
	t       *trial
	name    string
	nc      net.Conn // nil when closed
	r       *bufio.Reader
	talk    wire.Conversation
	xid     int32
	out     []byte
	outLog  []entry
	events  []*wire.Frame // received while waiting for a reply
	asked   []int32       // xids of the requests whose replies have not been read
	timeout time.Duration
	Session proto.ConnectReply

	// uninterrupted undoes that the end of the context ends reads; nil if that is done.
	uninterrupted func()
}

func (t *trial) dial() *conn {
	ctx, cancel := context.WithTimeout(t.ctx, t.s.o.Timeout)
	defer cancel()
	nc, err := t.s.o.Dial(ctx)
	if err != nil {
		t.failf("connect: %v", err)
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(t.ctx, func() {
		nc.SetReadDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	k := &conn{t: t, name: string(rune('A' + len(t.conns)%26)), nc: nc, r: bufio.NewReader(nc), timeout: t.s.o.Timeout, uninterrupted: func() {
		if !stop() {
			<-interrupted
		}
	}}
	t.conns = append(t.conns, k)
	return k
}

// connect opens a session with a timeout of 30 s, or the nearest that the server allows.
func (t *trial) connect() *conn { return t.connectFor(30 * time.Second) }

func (t *trial) connectFor(timeout time.Duration) *conn {
	k := t.dial()
	if r := k.handshake(rawclient.NewSession(timeout)); r.SessionID == 0 {
		t.failf("no session was opened")
	}
	return k
}

func (t *trial) resume(s proto.ConnectReply) *conn {
	k := t.dial()
	r := k.handshake(rawclient.Resumption(s))
	t.equal("the session that was resumed", r.SessionID, s.SessionID)
	return k
}

func (k *conn) handshake(q *proto.ConnectRequest) proto.ConnectReply {
	k.sendFrame(q.Append(nil))
	return k.readHandshake()
}

func (k *conn) readHandshake() proto.ConnectReply {
	r, ok := k.next().Body.(*proto.ConnectReply)
	if !ok {
		k.t.failf("%s: the answer to the handshake is unreadable", k.name)
	}
	k.Session = *r
	return *r
}

func (k *conn) deadline() time.Time { return time.Now().Add(k.timeout) }

// await prepares for a read, which the end of the context ends.
func (k *conn) await() {
	k.nc.SetReadDeadline(k.deadline())
	if k.uninterrupted == nil { // end is closing the session
		return
	}
	if err := k.t.ctx.Err(); err != nil {
		k.t.failf("%v", err)
	}
}

// write sends bytes that are not a well-formed frame. The note describes them in the log.
func (k *conn) write(b []byte, note string) {
	k.t.log = append(k.t.log, entry{conn: k.name, note: "sent " + note})
	k.push(b)
}

func (k *conn) push(b []byte) {
	if k.nc == nil {
		k.t.failf("%s is closed", k.name)
	}
	k.nc.SetWriteDeadline(k.deadline())
	// Ignore errors: a server may close the connection at a bad frame before it has read
	// all of it. The next read shows what happened.
	k.nc.Write(b)
}

func (k *conn) queuePayload(payload []byte) {
	f := k.talk.FromClient(payload)
	k.outLog = append(k.outLog, entry{conn: k.name, frame: &f})
	k.out = append(jute.AppendInt(k.out, int32(len(payload))), payload...)
}

func (k *conn) sendFrame(payload []byte) {
	k.queuePayload(payload)
	k.flush()
}

func (k *conn) queue(requests ...request) int32 {
	for _, q := range requests {
		k.xid++
		k.queueXid(k.xid, q)
	}
	return k.xid
}

func (k *conn) queueXid(xid int32, q request) {
	h := proto.RequestHeader{Xid: xid, Op: q.Op}
	b := h.Append(nil)
	if q.Request != nil {
		b = q.Request.Append(b)
	}
	k.queuePayload(b)
	if q.Op == proto.OpPing {
		xid = proto.XidPing
	}
	k.asked = append(k.asked, xid)
}

func (k *conn) flush() {
	k.t.log = append(k.t.log, k.outLog...)
	k.push(k.out)
	k.out, k.outLog = nil, nil
}

// sendXid sends a request with that xid without waiting for its reply.
func (k *conn) sendXid(xid int32, q request) {
	k.queueXid(xid, q)
	k.flush()
}

// send sends requests in one write, without waiting for the replies, and returns the last one's xid.
func (k *conn) send(requests ...request) int32 {
	xid := k.queue(requests...)
	k.flush()
	return xid
}

func (k *conn) next() *wire.Frame {
	if k.nc == nil {
		k.t.failf("%s is closed", k.name)
	}
	k.await()
	payload, err := jute.ReadFrame(k.r, maxReply, nil)
	switch {
	case ended(err):
		k.note("closed by the server")
		k.t.failf("%s was closed by the server, expected a frame", k.name)
	case err != nil:
		k.t.failf("%s: expected a frame: %v", k.name, err)
	}
	f := k.talk.FromServer(payload)
	k.t.log = append(k.t.log, entry{conn: k.name, frame: &f})
	if f.Err != nil {
		k.t.failf("%s: a frame cannot be decoded: %v", k.name, f.Err)
	}
	return &f
}

func ended(err error) bool {
	if err == nil {
		return false
	}
	var timeout net.Error
	return !(errors.As(err, &timeout) && timeout.Timeout())
}

func (k *conn) bytes(n int) string {
	b := make([]byte, n)
	k.await()
	if _, err := io.ReadFull(k.r, b); err != nil {
		k.t.failf("%s: expected %d bytes: %v", k.name, n, err)
	}
	k.note("answered %q", b)
	return string(b)
}

func (k *conn) note(format string, args ...any) {
	k.t.log = append(k.t.log, entry{conn: k.name, note: fmt.Sprintf(format, args...)})
}

// reply reads frames up to the next reply. It keeps the events before it for event.
func (k *conn) reply() *wire.Frame {
	for {
		f := k.next()
		if f.Kind != wire.Event {
			k.asked = k.asked[min(1, len(k.asked)):]
			return f
		}
		k.events = append(k.events, f)
	}
}

func (k *conn) call(q request) *wire.Frame {
	k.send(q)
	return k.answer()
}

// answer reads the next reply, which must have the xid of the first request that has none yet.
func (k *conn) answer() *wire.Frame {
	xid := k.asked[0]
	f := k.reply()
	if f.Xid != xid {
		k.t.failf("%s: the reply has xid %d, expected %d", k.name, f.Xid, xid)
	}
	if f.Code == proto.OK && f.Known && len(f.Rest) > 0 {
		k.t.failf("%s: %d bytes after the reply's record", k.name, len(f.Rest))
	}
	return f
}

// answers reads a reply for each code, as answer does. It must have that code. answers returns the last one.
func (k *conn) answers(codes ...proto.Code) (last *wire.Frame) {
	for _, code := range codes {
		last = k.answer()
		k.judge(last, code)
	}
	return last
}

// want sends each request when the one before it is answered. Every reply must have that code,
// and no body if it is an error. It returns the last one.
func (k *conn) want(code proto.Code, requests ...request) (last *wire.Frame) {
	for _, q := range requests {
		last = k.call(q)
		k.judge(last, code)
	}
	return last
}

func (k *conn) judge(f *wire.Frame, code proto.Code) {
	if f.Code != code {
		k.t.failf("%s: %s is answered %s, expected %s", k.name, wire.OpName(f.Op), f.Code, code)
	}
	if code != proto.OK && len(f.Rest) > 0 && f.Op != proto.OpMultiRead {
		k.t.failf("%s: an error with a body of %d bytes, expected none", k.name, len(f.Rest))
	}
}

// do is want with code OK.
func (k *conn) do(requests ...request) *wire.Frame { return k.want(proto.OK, requests...) }

// closed waits until the server closes the connection. No frame may come before that.
func (k *conn) closed() {
	if f := k.nextOrEnd(); f != nil {
		k.t.failf("%s: received a frame, expected the end of the connection", k.name)
	}
}

// nextOrEnd reads the next frame. It returns nil if the server closes the connection.
func (k *conn) nextOrEnd() *wire.Frame {
	k.await()
	payload, err := jute.ReadFrame(k.r, maxReply, nil)
	switch {
	case err == nil:
		f := k.talk.FromServer(payload)
		k.t.log = append(k.t.log, entry{conn: k.name, frame: &f})
		return &f
	case !ended(err):
		k.t.failf("%s is still open, expected the server to close it: %v", k.name, err)
	}
	k.note("closed by the server")
	k.hangUp()
	return nil
}

// hangUp closes the connection without closing its session.
func (k *conn) hangUp() {
	if k.nc != nil {
		k.nc.Close()
		k.nc = nil
		k.note("closed by the client")
	}
}

func (k *conn) closeSession() *wire.Frame {
	f := k.do(request{Op: proto.OpCloseSession})
	k.closed()
	return f
}

func (k *conn) ping() *wire.Frame { return k.do(request{Op: proto.OpPing}) }

// event is a change of a znode that a watch reports.
type event struct {
	kind proto.EventType
	path string
}

func created(path string) event         { return event{proto.EventNodeCreated, path} }
func deleted(path string) event         { return event{proto.EventNodeDeleted, path} }
func dataChanged(path string) event     { return event{proto.EventNodeDataChanged, path} }
func childrenChanged(path string) event { return event{proto.EventNodeChildrenChanged, path} }

// event checks that the next events are the given ones, and returns the last. Events that came
// before the last reply come first.
func (k *conn) event(events ...event) (f *wire.Frame) {
	for _, e := range events {
		if len(k.events) > 0 {
			f, k.events = k.events[0], k.events[1:]
		} else if f = k.next(); f.Kind != wire.Event {
			k.t.failf("%s: received a reply, expected the event %s of %s", k.name, e.kind, e.path)
		}
		want := &proto.WatcherEvent{Type: e.kind, State: proto.EventStateConnected, Path: e.path}
		k.t.equal(k.name+": the event", f.Body, proto.Record(want))
	}
	return f
}

func (k *conn) onlyEvents(events ...event) {
	k.event(events...)
	k.noEvent()
}

// noEvent checks that no event is pending. It sends a ping, because events of earlier
// changes come before its reply.
func (k *conn) noEvent() {
	k.ping()
	if len(k.events) > 0 {
		k.t.failf("%s: received an event, expected none: %s", k.name, k.events[0])
	}
}

// create creates a znode with an open ACL and returns its path.
func (k *conn) create(path string, data []byte, flags int32) string {
	return k.createACL(path, data, proto.OpenACL, flags)
}

func (k *conn) make(paths ...string) {
	for _, p := range paths {
		k.create(p, nil, 0)
	}
}

func (k *conn) createACL(path string, data []byte, acl []proto.ACL, flags int32) string {
	f := k.do(opCreateACL(path, data, acl, flags))
	return f.Body.(*proto.PathReply).Path
}

func (k *conn) create2(path string, data []byte, flags int32) (string, proto.Stat) {
	f := k.do(opMake(proto.OpCreate2, path, data, flags))
	r := f.Body.(*proto.PathStatReply)
	return r.Path, r.Stat
}

// stat returns the Stat of a znode, which must exist.
func (k *conn) stat(path string) proto.Stat {
	return *k.do(opExists(path)).Body.(*proto.Stat)
}

// missing checks that znodes do not exist.
func (k *conn) missing(paths ...string) {
	for _, p := range paths {
		k.want(proto.NoNode, opExists(p))
	}
}

// watch sets a watch with each of the reads, which must succeed, except that exists may find no
// znode.
func (k *conn) watch(requests ...request) {
	for _, q := range requests {
		if f := k.call(watching(q)); q.Op != proto.OpExists || f.Code != proto.NoNode {
			k.judge(f, proto.OK)
		}
	}
}

func (k *conn) addWatch(path string, mode int32) *wire.Frame {
	return k.do(opAddWatch(path, mode))
}

func (k *conn) get(path string) ([]byte, proto.Stat) {
	r := k.do(opGet(path)).Body.(*proto.DataReply)
	return r.Data, r.Stat
}

func (k *conn) hasData(path, want string) {
	data, _ := k.get(path)
	k.t.equal("the data", string(data), want)
}

func (k *conn) set(path string, data []byte, version int32) proto.Stat {
	f := k.do(opSet(path, data, version))
	return *f.Body.(*proto.Stat)
}

func (k *conn) delete(path string, version int32) *wire.Frame {
	return k.do(opDelete(path, version))
}

// children returns the names of a znode's children, sorted.
func (k *conn) children(path string) []string {
	names := k.do(opChildren(path)).Body.(*proto.ChildrenReply).Names
	slices.Sort(names)
	return names
}

func (k *conn) getACL(path string) ([]proto.ACL, proto.Stat) {
	r := k.do(opGetACL(path)).Body.(*proto.ACLReply)
	return r.ACL, r.Stat
}

func (k *conn) hasACL(path string, want []proto.ACL) {
	acl, _ := k.getACL(path)
	k.t.equal("the ACL", acl, want)
}

func (k *conn) setACL(path string, acl []proto.ACL, version int32) proto.Stat {
	f := k.do(opSetACL(path, acl, version))
	return *f.Body.(*proto.Stat)
}

// multi sends a multi. The reply's header must have no error; the results may.
func (k *conn) multi(ops ...request) []proto.MultiResult {
	return k.do(opMulti(ops...)).Body.(*proto.MultiReply).Results
}

// auth authenticates the connection, which must be accepted.
func (k *conn) auth(scheme, auth string) *wire.Frame {
	f := k.tryAuth(scheme, []byte(auth))
	k.judge(f, proto.OK)
	return f
}

// The users of the suite. The password of each is its name. Checks must protect znodes
// for no other users, so that the suite can delete them at the end.
const (
	alice = "alice"
	bob   = "bob"
)

var users = []string{alice, bob}

func digestID(user, password string) string {
	sum := sha1.Sum([]byte(user + ":" + password))
	return user + ":" + base64.StdEncoding.EncodeToString(sum[:])
}

func allow(user string, perms int32) proto.ACL {
	return proto.ACL{Perms: perms, ID: proto.ID{Scheme: proto.SchemeDigest, ID: digestID(user, user)}}
}

func allowAll(perms int32) proto.ACL {
	return proto.ACL{Perms: perms, ID: proto.ID{Scheme: proto.SchemeWorld, ID: proto.Anyone}}
}

// quota sets a quota on the tree at path, as zkCli does.
func (k *conn) quota(path, limits string) {
	p := "/zookeeper/quota"
	for name := range strings.SplitSeq(path[1:], "/") {
		p += "/" + name
		k.call(opCreate(p, nil, 0))
	}
	k.create(p+"/zookeeper_limits", []byte(limits), 0)
	k.create(p+"/zookeeper_stats", []byte("count=0,bytes=0"), 0)
}

// deleteAll deletes as much of these trees as it can, and returns why it could not delete the rest. It sends up to 100
// requests before it awaits their replies, because a server may write each change to its disk before it answers.
func (k *conn) deleteAll(paths ...string) (why string) {
	for paths := range slices.Chunk(paths, 50) {
		for _, path := range paths {
			k.queue(opSetACL(path, proto.OpenACL, proto.AnyVersion), opChildren(path))
		}
		k.flush()
		var below []string
		for _, path := range paths {
			k.answer()
			f := k.answer()
			if r, ok := f.Body.(*proto.ChildrenReply); ok {
				for _, name := range r.Names {
					below = append(below, path+"/"+name)
				}
			} else if f.Code != proto.NoNode {
				why = cmp.Or(why, fmt.Sprintf("the children of %s cannot be listed: %s", path, f.Code))
			}
		}
		why = cmp.Or(k.deleteAll(below...), why)
		for _, path := range paths {
			k.queue(opDelete(path, proto.AnyVersion))
		}
		k.flush()
		for _, path := range paths {
			if f := k.answer(); f.Code != proto.OK && f.Code != proto.NoNode {
				why = cmp.Or(why, fmt.Sprintf("%s cannot be deleted: %s", path, f.Code))
			}
		}
	}
	return why
}

// body encodes the parts of a request's body one after the other. It can make bodies
// that are invalid.
func body(parts ...any) raw {
	var b raw
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			b = jute.AppendInt(b, int32(p))
		case int64:
			b = jute.AppendLong(b, p)
		case bool:
			b = jute.AppendBool(b, p)
		case string:
			b = jute.AppendString(b, p)
		case []byte:
			b = append(b, p...)
		case proto.Record:
			b = p.Append(b)
		default:
			panic(fmt.Sprintf("body: %T", p))
		}
	}
	return b
}

func repeat(n int) []byte { return bytes.Repeat([]byte("x"), n) }
