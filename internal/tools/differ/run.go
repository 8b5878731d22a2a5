package differ

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

// run plays one sequence of steps below a root znode of its own.
type run struct {
	opts   *Options
	masks  map[string]bool // masks in use
	report *Report
	ends   [2]*endpoint
	root   string
	newest []string    // paths of sequential znodes, as server A created them
	holder map[int]int // of each session, the connection that it was last opened on
	zxids  [2]int64    // of the frames being compared, as received
	steps  int         // number of steps started
	frames int         // number of frames sent in steps

	// closely makes the run wait for everything in transit after every step, so that an
	// event is reported at the step that caused it.
	closely bool
	// telling makes the run store its exchanges in story.
	telling bool
	story   []Exchange
}

type mismatch struct {
	what string
	Exchange
}

func (m *mismatch) Error() string { return m.what }

// The control connection and its session create and delete the root. Every znode of the
// run gives its user all permissions.
const (
	control     = 0
	controlUser = "differ:differ"
)

const settleEvery = 64 // steps

func newRun(opts *Options, masks map[string]bool, report *Report, root string) *run {
	r := &run{opts: opts, masks: masks, report: report, root: root, holder: map[int]int{}}
	for i, dial := range []Dial{opts.A, opts.B} {
		r.ends[i] = &endpoint{dial: dial, patience: opts.Patience, conns: map[int]*conn{}, sessions: map[int]proto.ConnectReply{},
			numbers: map[int64]int{}, times: map[int64]int64{}}
	}
	return r
}

// begin creates the root. Zxids are counted from that transaction on.
func (r *run) begin(ctx context.Context) error {
	first := []step{
		{Kind: open, Conn: control, Session: control, Frames: []frame{*connect(0, 30000, nil)}},
		{Kind: send, Conn: control, Frames: []frame{*auth(-4, "digest", []byte(controlUser))}},
		{Kind: send, Conn: control, Frames: []frame{*create(proto.OpCreate, 1, part{Kind: path, Path: "~"}, nil, openACL(), 0, nil)}},
	}
	if r.opts.Super != "" {
		first = slices.Insert(first, 2, step{Kind: send, Conn: control, Frames: []frame{*auth(-4, "digest", []byte(r.opts.Super))}})
	}
	for i := range first {
		_, got, err := r.talk(ctx, &first[i])
		if err != nil {
			return err
		}
		for side, fs := range got {
			if len(fs) == 0 || fs[len(fs)-1].Code != proto.OK || r.ends[side].sessions[control].SessionID == 0 {
				return fmt.Errorf("endpoint %s cannot open a session or create %s", sideName[side], r.root)
			}
			r.ends[side].base = fs[len(fs)-1].Zxid
		}
	}
	return nil
}

var sideName = [2]string{"A", "B"}

// talk plays a step on both servers and returns the frames sent and received on its connection.
func (r *run) talk(ctx context.Context, s *step) (sent, got [2][]wire.Frame, err error) {
	want := 0
	for i := range s.Frames {
		if !s.Frames[i].Raw {
			want++
		}
	}
	if s.Ends {
		want = -1
	}
	if s.Kind == open {
		for i, e := range r.ends {
			nc, err := e.dial(ctx)
			if err != nil {
				return sent, got, fmt.Errorf("endpoint %s: %w", sideName[i], err)
			}
			e.conns[s.Conn] = &conn{nc: nc, r: bufio.NewReader(nc)}
		}
	}
	for i, e := range r.ends {
		sent[i] = e.send(e.conns[s.Conn], s.Frames, e.blanks(r))
	}
	for i, e := range r.ends {
		got[i] = e.receive(e.conns[s.Conn], want)
		e.note(s.Session, got[i])
	}
	return sent, got, nil
}

// alive reports whether a connection is open to both servers.
func (r *run) alive(n int) bool {
	a, b := r.ends[0].conns[n], r.ends[1].conns[n]
	return a != nil && b != nil && a.end == "" && b.end == ""
}

// play plays the steps one after the other. The error is a *mismatch if the two servers
// differ.
func (r *run) play(ctx context.Context, steps []step) error {
	for i := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		r.steps = i + 1
		if err := r.step(ctx, &steps[i]); err != nil {
			return err
		}
		if r.closely || i%settleEvery == settleEvery-1 {
			if err := r.settle(nil); err != nil {
				return err
			}
		}
	}
	return r.settle(nil)
}

func (r *run) step(ctx context.Context, s *step) error {
	old, resumes := r.holder[s.Session]
	resumes = resumes && s.Kind == open && r.alive(old)
	var before error
	switch {
	case s.Kind == open && r.ends[0].conns[s.Conn] != nil, s.Kind != open && !r.alive(s.Conn):
		return nil
	case resumes: // first receive everything in transit on the old connection
		before = r.settle(nil, old)
	case s.Closes:
		before = r.settle(nil)
	case s.Kind == cut, s.Ends && s.Kind != open:
		before = r.settle(nil, s.Conn)
	}
	switch {
	case before != nil:
		return before
	case s.Kind == cut:
		r.cut(s.Conn)
		return nil
	case resumes && s.Alone:
		r.cut(old)
		resumes = false
	}
	sent, got, err := r.talk(ctx, s)
	if err != nil {
		return err
	}
	for i := range s.Frames {
		r.report.sent(s, i)
	}
	r.frames += len(s.Frames)
	if len(s.Frames) > 0 && s.Frames[0].Raw {
		r.tell(Exchange{Conn: s.Conn, Sent: []string{fmt.Sprintf("bytes %x", s.Frames[0].append(nil, nil))}})
	}
	if err := r.compare(s, s.Conn, sent, got); err != nil {
		return err
	}
	if s.Kind == open && r.alive(s.Conn) {
		r.holder[s.Session] = s.Conn
		if resumes {
			var got [2][]wire.Frame
			for i, e := range r.ends {
				got[i] = e.receive(e.conns[old], -1)
			}
			return r.compare(s, old, [2][]wire.Frame{}, got)
		}
	}
	if s.Closes {
		return r.settle(s)
	}
	return nil
}

func (r *run) cut(n int) {
	for _, e := range r.ends {
		e.conns[n].end = "the client has closed the connection"
		e.conns[n].nc.Close()
	}
	r.tell(Exchange{Conn: n, Sent: []string{"(closes the connection)"}})
}

// settle receives everything in transit on the given connections, or on all of them if
// none are given. It sends a ping on each and waits for the reply.
func (r *run) settle(s *step, conns ...int) error {
	if len(conns) == 0 {
		conns = slices.Sorted(maps.Keys(r.ends[0].conns))
	}
	conns = slices.DeleteFunc(conns, func(n int) bool { return !r.alive(n) })
	ping := []frame{*request(proto.XidPing, proto.OpPing)}
	for _, n := range conns {
		for _, e := range r.ends {
			e.send(e.conns[n], ping, nil)
		}
	}
	for _, n := range conns {
		var got [2][]wire.Frame
		for i, e := range r.ends {
			got[i] = e.receive(e.conns[n], 1)
			e.note(0, got[i])
		}
		if err := r.compare(s, n, [2][]wire.Frame{}, got); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) tell(x Exchange) {
	if r.telling && (len(x.Sent) > 0 || len(x.A) > 0 || len(x.B) > 0) {
		r.story = append(r.story, x)
	}
}

// compare compares the frames that both servers sent on a connection. s is the step to
// which they belong, or nil if they were received between steps.
func (r *run) compare(s *step, n int, sent, got [2][]wire.Frame) error {
	var what string
	if s != nil && s.Closes {
		r.closeOrder(got)
	}
	replies, seen := 0, 0
	for i := range min(len(got[0]), len(got[1])) {
		a, b := got[0][i], got[1][i]
		var q *wire.Frame
		if a.Kind != wire.Event {
			if replies < len(sent[0]) {
				q = &sent[0][replies]
			}
			replies++
		}
		r.zxids = [2]int64{a.Zxid, b.Zxid}
		r.remember(&a)
		a, b = r.ends[0].comparable(a), r.ends[1].comparable(b)
		got[0][i], got[1][i], seen = a, b, i+1
		if !same(&a, &b) && !r.hide(q, &a, &b) {
			what = fmt.Sprintf("A and B differ in %s", name(&a))
			break
		}
		r.report.got(&a)
	}
	ends := [2]string{r.ends[0].conns[n].end, r.ends[1].conns[n].end}
	if what == "" && ends[0] != ends[1] {
		what = "only one server closes the connection"
	}
	if what == "" && len(got[0]) != len(got[1]) {
		for i := range got {
			if len(got[i]) > len(got[1-i]) {
				what = fmt.Sprintf("%s sends %s, and %s does not", sideName[i], name(&got[i][len(got[1-i])]), sideName[1-i])
			}
		}
	}
	if what == "" && ends[0] == silent {
		what = "neither server answers"
	}
	if what == "" && !r.telling {
		return nil
	}
	x := Exchange{Conn: n}
	for i := range sent[0] {
		x.Sent = append(x.Sent, sent[0][i].String())
	}
	for i, lines := range []*[]string{&x.A, &x.B} {
		for j := range got[i] {
			if j >= seen {
				got[i][j] = r.ends[i].comparable(got[i][j])
			}
			if len(sent[0]) > 0 || got[i][j].Kind == wire.Event || what != "" { // without replies to the pings of settle
				*lines = append(*lines, got[i][j].String())
			}
		}
		if ends[i] != "" {
			*lines = append(*lines, "("+ends[i]+")")
		}
	}
	r.tell(x)
	if what != "" {
		return &mismatch{what, x}
	}
	return nil
}

func name(f *wire.Frame) string {
	switch f.Kind {
	case wire.ConnectReply:
		return "the answer to a handshake"
	case wire.Event:
		return "an event"
	}
	return "the reply to " + wire.OpName(f.Op)
}

func same(a, b *wire.Frame) bool {
	return a.Kind == b.Kind && a.Xid == b.Xid && a.Op == b.Op && a.Known == b.Known && a.Zxid == b.Zxid && a.Code == b.Code &&
		(a.Err == nil) == (b.Err == nil) && (a.Body == nil) == (b.Body == nil) && bytes.Equal(a.Rest, b.Rest) &&
		(a.Body == nil || bytes.Equal(a.Body.Append(nil), b.Body.Append(nil)))
}

// hide applies the masks in use, one after the other, until the frames are equal. If they
// become equal, it counts the masks that changed a frame.
func (r *run) hide(q, a, b *wire.Frame) bool {
	var used []string
	for i := range Masks {
		m := &Masks[i]
		if m.hide == nil || !r.masks[m.Name] {
			continue
		}
		was := [2]string{a.String(), b.String()}
		m.hide(r, q, a, b)
		if was != [2]string{a.String(), b.String()} {
			used = append(used, m.Name)
		}
		if same(a, b) {
			for _, name := range used {
				r.report.Masks[name]++
			}
			return true
		}
	}
	return false
}

// closeOrder sorts the events of a step that closes a session.
func (r *run) closeOrder(got [2][]wire.Frame) {
	if !r.masks["close-order"] {
		return
	}
	event := func(f *wire.Frame) proto.WatcherEvent {
		if e, ok := f.Body.(*proto.WatcherEvent); ok && f.Kind == wire.Event {
			return *e
		}
		return proto.WatcherEvent{}
	}
	if slices.EqualFunc(got[0], got[1], func(a, b wire.Frame) bool { return event(&a) == event(&b) }) {
		return
	}
	r.report.Masks["close-order"]++
	for _, fs := range got {
		for i := 0; i < len(fs); i++ {
			j := i
			for j < len(fs) && fs[j].Kind == wire.Event {
				j++
			}
			slices.SortStableFunc(fs[i:j], func(a, b wire.Frame) int {
				x, y := event(&a), event(&b)
				return cmp.Or(cmp.Compare(x.Path, y.Path), cmp.Compare(x.Type, y.Type))
			})
			i = j
		}
	}
}

// remember keeps the paths of sequential znodes for later requests.
func (r *run) remember(f *wire.Frame) {
	keep := func(path string) {
		if n := len(path); n > 10 && strings.Trim(path[n-10:], "0123456789") == "" {
			r.newest = append(r.newest, path)
		}
	}
	switch reply := f.Body.(type) {
	case *proto.PathReply:
		keep(reply.Path)
	case *proto.PathStatReply:
		keep(reply.Path)
	case *proto.MultiReply:
		for _, res := range reply.Results {
			r.remember(&wire.Frame{Body: res.Reply})
		}
	}
}

// owns reports whether a request is about a znode below the run's root. A request without
// a path counts as such.
func (r *run) owns(q proto.Record) bool {
	path := ""
	switch b := q.(type) {
	case *proto.PathWatch:
		path = b.Path
	case *proto.Path:
		path = b.Path
	default:
		return true
	}
	return strings.HasPrefix(path, r.root) || strings.HasPrefix(path, quotaRoot(r.root))
}

// survey reads all znodes of the run on the control connection and compares them.
func (r *run) survey(ctx context.Context) error {
	told := len(r.story)
	for paths := []string{r.root, quotaRoot(r.root)}; len(paths) > 0; {
		s := step{Kind: send, Conn: control}
		now := paths[:surveyed(paths)]
		if r.telling {
			now = paths[:1] // so that a difference shows only one znode
		}
		for _, p := range now {
			for _, op := range []proto.OpCode{proto.OpGetChildren2, proto.OpGetData, proto.OpGetACL} {
				f := request(1, op).str(p)
				if op != proto.OpGetACL {
					f.bool(false)
				}
				s.Frames = append(s.Frames, *f)
			}
		}
		sent, got, err := r.talk(ctx, &s)
		if err != nil {
			return err
		}
		if err := r.compare(&s, control, sent, got); err != nil {
			return err
		}
		r.story = r.story[:told]
		paths = paths[len(now):]
		for i, f := range got[0] {
			if c, ok := f.Body.(*proto.Children2Reply); ok {
				for _, name := range c.Names {
					paths = append(paths, now[i/3]+"/"+name)
				}
			}
		}
	}
	return nil
}

// surveyed returns how many of the paths survey asks for at once. While it sends the
// requests it reads no replies, and a server stops reading when it cannot send: over a
// connection without a buffer, such as net.Pipe, all requests must fit in what a server reads at
// a time, 4,096 bytes.
func surveyed(paths []string) (n int) {
	const most, others = 3000, 20 // bytes in all; bytes of a request besides its path
	for size := 0; n < len(paths); n++ {
		if size += 3 * (others + len(paths[n])); n > 0 && size > most {
			break
		}
	}
	return n
}

// clear closes all sessions of the run and deletes its znodes. It handles each server on
// its own, because their states may differ.
func (r *run) clear(ctx context.Context) error {
	for _, e := range r.ends {
		for _, c := range e.conns {
			c.nc.Close()
		}
	}
	for i, e := range r.ends {
		if err := e.clear(ctx, r); err != nil {
			return fmt.Errorf("endpoint %s: cannot delete %s: %w", sideName[i], r.root, err)
		}
	}
	return nil
}

func (e *endpoint) clear(ctx context.Context, r *run) error {
	for _, n := range slices.Sorted(maps.Keys(e.sessions)) {
		if n == control {
			continue
		}
		nc, err := e.dial(ctx)
		if err != nil {
			return err
		}
		if c, err := rawclient.Resume(nc, e.sessions[n]); err == nil {
			c.Call(proto.OpCloseSession, nil, nil)
			c.Close()
		}
	}
	s, ok := e.sessions[control]
	if !ok {
		return nil
	}
	nc, err := e.dial(ctx)
	if err != nil {
		return err
	}
	c, err := rawclient.Resume(nc, s)
	if err != nil {
		return err
	}
	defer c.Close()
	users := []string{controlUser}
	if r.opts.Super != "" {
		users = append(users, r.opts.Super)
	}
	for _, user := range users {
		if _, err := c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: proto.SchemeDigest, Auth: []byte(user)}, nil); err != nil {
			return err
		}
	}
	for _, p := range []string{quotaRoot(r.root), r.root} {
		if err := deleteAll(c, p); err != nil {
			return err
		}
	}
	_, err = c.Call(proto.OpCloseSession, nil, nil)
	return err
}

func deleteAll(c *rawclient.Client, path string) error {
	var below proto.ChildrenReply
	_, err := c.Call(proto.OpGetChildren, &proto.PathWatch{Path: path}, &below)
	if errors.Is(err, proto.NoNode) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range below.Names {
		if err := deleteAll(c, path+"/"+name); err != nil {
			return err
		}
	}
	return c.Delete(path)
}
