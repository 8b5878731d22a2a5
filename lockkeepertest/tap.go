package lockkeepertest

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/internal/tools/wiretap"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// tap is the server's end of a client's connection. It makes the faults. The server's
// reader calls Read, and its writer Write.
//
// A goroutine that waits for another one does so at a channel and not at a mutex, since
// a synctest bubble takes only the former for idle.
type tap struct {
	net.Conn
	s      *Server
	number int // of the connection, in reports
	limit  int // of a frame that the server reads

	done  chan struct{} // closed by Close
	close sync.Once

	// Used only by Read.
	in    []byte // received and not looked at
	ready []byte // to be returned next
	bytes bool   // what the client sends are not frames, or no longer
	err   error  // to be returned once ready is empty

	writing chan struct{} // holds an element while a goroutine sends

	mu       sync.Mutex
	talk     wire.Conversation
	asked    []asked // requests that the client has no reply to, in order
	welcomed bool    // the handshake was answered
	session  int64   // 0 before that
	zxid     int64   // of the last reply
	held     []sent  // an event that is held back, and what follows it

	client client // for guards
}

// asked is a request whose reply is to be sent.
type asked struct {
	fault *Injection // for the reply; may be nil
	reply []byte     // if not nil, the server does not know of the request, and this is the reply
}

// sent is a frame for the client.
type sent struct {
	frame []byte
	fault *Injection // may be nil
	event bool
	since time.Time // of an event that is held back
}

func (s *Server) tap(nc net.Conn) net.Conn {
	t := &tap{Conn: nc, s: s, number: s.report.messages.opened(), limit: max(s.cfg.Limits.MaxFrameBytes, jute.DefaultMaxFrame),
		done: make(chan struct{}), writing: make(chan struct{}, 1)}
	if _, tcp := nc.RemoteAddr().(*net.TCPAddr); tcp && s.faults.refuses() { // Dial refuses the others
		t.Close()
	}
	return t
}

// Close closes the connection. It does not block.
func (t *tap) Close() error {
	t.close.Do(func() {
		close(t.done)
		t.s.report.guards.closed(&t.client, false)
		t.say(said{Event: wiretap.Event{Kind: wiretap.Finished}})
	})
	return t.s.condition.closeLater(t.Conn)
}

// Read returns what the server is to see of what the client sends.
func (t *tap) Read(p []byte) (int, error) {
	for len(t.ready) == 0 && !t.look() {
		if t.err != nil && len(t.in) > 0 { // the rest is not a whole frame
			t.ready, t.in = t.in, nil
			break
		}
		if t.err != nil {
			return 0, t.err
		}
		buf := p
		if len(t.in) > 0 && len(buf) < 4<<10 {
			buf = make([]byte, 4<<10) // the rest of a frame of which the server asked for the first bytes
		}
		n, err := t.Conn.Read(buf)
		t.in = append(t.in, buf[:n]...)
		if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
			if n == 0 {
				return 0, err
			}
		} else if t.err = err; err != nil {
			t.s.report.guards.closed(&t.client, true)
		}
		if err == io.EOF {
			t.say(said{Event: wiretap.Event{Kind: wiretap.Finished, FromClient: true}})
		}
	}
	if !t.s.condition.awaitResumed(t.done) {
		return 0, net.ErrClosed
	}
	n := copy(p, t.ready)
	if t.ready = t.ready[n:]; len(t.ready) == 0 {
		t.ready = nil
	}
	return n, nil
}

// look makes the next bytes ready that the server is to see. It returns false if more has
// to be received first.
func (t *tap) look() bool {
	for !t.bytes && len(t.in) >= 4 {
		length := binary.BigEndian.Uint32(t.in)
		if length < 8 || uint64(length) > uint64(t.limit) { // for instance a four-letter word
			t.bytes = true
			break
		}
		end := 4 + int(length)
		if len(t.in) < end {
			return false
		}
		frame := slices.Clone(t.in[:end])
		if t.in = t.in[end:]; len(t.in) == 0 {
			t.in = nil
		}
		if t.request(frame) {
			t.ready = frame
			return true
		}
	}
	if !t.bytes || len(t.in) == 0 {
		return false
	}
	t.ready, t.in = t.in, nil
	return true
}

// closed makes Read return an error, since the connection was closed, and false.
func (t *tap) closed() bool {
	t.in, t.err = nil, net.ErrClosed
	return false
}

// request handles a frame from the client. It reports whether the server is to see it.
func (t *tap) request(frame []byte) bool {
	t.mu.Lock()
	f := t.talk.FromClient(frame[4:])
	t.mu.Unlock()
	m := t.message(&f)
	hit := t.s.faults.hit(m, false)
	t.note(&f, m, hit)
	q := asked{}
	if hit != nil {
		switch hit.fault.Do.kind {
		case delay, hold:
			hit.fire()
			if !hit.wait(time.Now(), t.done) {
				return t.closed()
			}
		case drop:
			hit.fire()
			return false
		case closeBefore:
			hit.begin()
			t.Close()
			hit.fire()
			return t.closed()
		case answer:
			if !t.answer(&f, hit) {
				t.Close()
				return t.closed()
			}
			return false
		default:
			q.fault = hit
		}
	}
	t.s.report.guards.asked(&t.client, &f)
	t.mu.Lock()
	t.asked = append(t.asked, q)
	t.mu.Unlock()
	return true
}

// note keeps a frame from the client for the test and for reports.
func (t *tap) note(f *wire.Frame, m *message, hit *Injection) {
	e := said{wiretap.Event{FromClient: true, Kind: wiretap.Framed, Frame: f, Size: 4 + len(f.Payload)}, hit}
	t.say(e)
	if m.op == "ping" {
		return
	}
	r := Request{Time: time.Now(), Session: m.session, Op: m.op, server: t.s, frame: f}
	if len(m.paths) > 0 {
		r.Path = m.paths[0]
	}
	t.s.report.messages.ask(r)
}

// say keeps an event of this connection for reports.
func (t *tap) say(e said) {
	e.Time, e.Conn = time.Now(), t.number
	t.s.report.messages.say(e)
}

// sayReply keeps a frame that is about to be sent to the client, or was to be sent.
func (t *tap) sayReply(frame []byte, by *Injection) {
	payload := slices.Clone(frame[min(4, len(frame)):])
	t.mu.Lock()
	if !t.welcomed { // an answer to a four-letter word
		t.mu.Unlock()
		return
	}
	f := t.talk.FromServer(payload)
	t.mu.Unlock()
	t.say(said{wiretap.Event{Kind: wiretap.Framed, Frame: &f, Size: len(frame)}, by})
	lost := by != nil && (by.fault.Do.kind == dropReply || by.fault.Do.kind == closeAfter)
	t.s.report.guards.told(&t.client, &f, !lost)
}

// message returns what faults match of a frame from the client.
func (t *tap) message(f *wire.Frame) *message {
	t.mu.Lock()
	m := message{op: wire.OpName(f.Op), paths: paths(f), session: t.session}
	t.mu.Unlock()
	if f.Kind == wire.ConnectRequest {
		m.op = opConnect
		if q, ok := f.Body.(*proto.ConnectRequest); ok {
			m.session = q.SessionID
		}
	}
	return &m
}

// paths returns the paths in a frame.
func paths(f *wire.Frame) (all []string) {
	for _, field := range f.Fields() {
		var s string
		switch v := field.Value.(type) {
		case string:
			s = v
		case proto.Path:
			s = v.Path
		}
		if base := field.Base(); strings.HasPrefix(s, "/") && base != "id" && base != "scheme" {
			all = append(all, s)
		}
	}
	return all
}

// answer answers a request in place of the server. It returns false if the connection is
// to end.
func (t *tap) answer(f *wire.Frame, by *Injection) bool {
	frame, start := jute.BeginFrame(nil)
	if f.Kind == wire.ConnectRequest {
		refusal := proto.ConnectReply{Password: make([]byte, proto.PasswordLen)}
		if q, ok := f.Body.(*proto.ConnectRequest); ok {
			t.s.report.guards.expired(q.SessionID)
			refusal.HasReadOnly = q.HasReadOnly
		}
		frame = refusal.Append(frame)
	} else {
		xid := f.Xid
		if f.Op == proto.OpPing {
			xid = proto.XidPing
		}
		h := proto.ReplyHeader{Xid: xid, Code: by.fault.Do.code} // own sets the zxid
		frame = h.Append(frame)
	}
	jute.EndFrame(frame, start)
	if !t.takeWriting() {
		return false
	}
	defer t.giveWriting()
	t.mu.Lock()
	t.asked = append(t.asked, asked{reply: frame, fault: by})
	out := t.release(t.own(nil))
	t.mu.Unlock()
	return t.send(out) == nil && f.Kind != wire.ConnectRequest
}

// own appends the replies at the head of asked that do not come from the server. The
// caller holds mu.
func (t *tap) own(out []sent) []sent {
	for len(t.asked) > 0 && t.asked[0].reply != nil {
		frame := t.asked[0].reply
		if t.welcomed {
			binary.BigEndian.PutUint64(frame[8:], uint64(t.zxid)) // behind the length and the xid
		}
		out = append(out, sent{frame: frame, fault: t.asked[0].fault})
		t.asked = t.asked[1:]
	}
	return out
}

// takeWriting makes this goroutine the one that sends. It returns false if the
// connection was closed.
func (t *tap) takeWriting() bool {
	select {
	case <-t.done:
		return false
	case t.writing <- struct{}{}:
		return true
	}
}

func (t *tap) giveWriting() { <-t.writing }

// Write sends whole frames from the server.
func (t *tap) Write(p []byte) (int, error) {
	if !t.s.condition.awaitResumed(t.done) || !t.takeWriting() {
		return 0, net.ErrClosed
	}
	defer t.giveWriting()
	t.mu.Lock()
	out, plain := t.replies(p)
	if plain && len(t.held) == 0 {
		t.mu.Unlock()
		for _, s := range out {
			t.sayReply(s.frame, nil)
		}
		return t.Conn.Write(p) // in one piece
	}
	out = t.release(out)
	t.mu.Unlock()
	if err := t.send(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// replies takes frames apart and finds the faults that hit them. It returns plain true
// if there are none. The caller holds mu.
func (t *tap) replies(p []byte) (out []sent, plain bool) {
	plain = true
	for rest := p; len(rest) > 0; {
		end := len(rest)
		if len(rest) >= 4 {
			if n := binary.BigEndian.Uint32(rest); uint64(n) <= uint64(len(rest)-4) {
				end = 4 + int(n)
			}
		}
		s := t.reply(rest[:end])
		rest = rest[end:]
		plain = plain && s.fault == nil
		before := len(out) + 1
		out = t.own(append(out, s))
		plain = plain && len(out) == before
	}
	return out, plain
}

// reply finds the fault that hits one frame. The caller holds mu.
func (t *tap) reply(frame []byte) sent {
	s := sent{frame: frame}
	d := jute.NewDecoder(frame[min(4, len(frame)):])
	switch {
	case len(t.asked) == 0 && !t.welcomed: // the answer to a four-letter word
		return s
	case !t.welcomed:
		var r proto.ConnectReply
		r.Decode(&d)
		t.session, t.welcomed = r.SessionID, true
	default:
		var h proto.ReplyHeader
		if h.Decode(&d); d.Err() != nil {
			return s
		}
		if s.event = h.Xid == proto.XidEvent; s.event {
			var e proto.WatcherEvent
			e.Decode(&d)
			s.fault = t.s.faults.hit(&message{opEvent, []string{e.Path}, t.session}, false)
			return s
		}
		t.zxid = max(t.zxid, h.Zxid)
	}
	if len(t.asked) > 0 {
		s.fault = t.asked[0].fault
		t.asked = t.asked[1:]
	}
	return s
}

// waits reports whether the frame has to wait before it is sent.
func (s *sent) waits() bool {
	return s.event && s.fault != nil && (s.fault.fault.Do.kind == delay || s.fault.fault.Do.kind == hold)
}

func (s *sent) isPing() bool {
	return !s.event && len(s.frame) >= 8 && int32(binary.BigEndian.Uint32(s.frame[4:])) == proto.XidPing
}

// release returns the frames that can be sent now, and keeps the others in held. The
// caller holds mu and writing.
func (t *tap) release(out []sent) (now []sent) {
	for _, s := range out {
		if len(t.held) == 0 && !s.waits() || s.isPing() {
			now = append(now, s)
			continue
		}
		s.frame = slices.Clone(s.frame)
		if s.waits() {
			s.since = time.Now()
			s.fault.fire()
		}
		if t.held = append(t.held, s); len(t.held) == 1 {
			go t.sendHeld()
		}
	}
	return now
}

// sendHeld sends what is held back, each frame when its time has come.
func (t *tap) sendHeld() {
	for {
		t.mu.Lock()
		first := t.held[0]
		t.mu.Unlock()
		if !first.fault.wait(first.since, t.done) || !t.takeWriting() {
			return
		}
		t.mu.Lock()
		n := 1
		for n < len(t.held) && !t.held[n].waits() {
			n++
		}
		now := t.held[:n]
		t.held = slices.Clone(t.held[n:])
		more := len(t.held) > 0
		t.mu.Unlock()
		err := t.send(now)
		t.giveWriting()
		if err != nil {
			t.Close()
			return
		}
		if !more {
			return
		}
	}
}

// send sends frames to the client, and does to them what their faults say. The caller
// holds writing.
func (t *tap) send(out []sent) error {
	for _, s := range out {
		do := Action{}
		if s.fault != nil {
			do = s.fault.fault.Do
			s.fault.begin()
		}
		t.sayReply(s.frame, s.fault)
		var err error
		switch do.kind {
		case drop, dropReply:
		case closeBefore:
			t.Close()
			err = net.ErrClosed
		case closeAfter:
			if s.event {
				t.Conn.Write(s.frame)
			}
			t.Close()
			err = net.ErrClosed
		case trickle:
			s.fault.fire()
			err = t.trickle(s.frame, do.d)
		default:
			_, err = t.Conn.Write(s.frame)
		}
		if s.fault != nil {
			s.fault.fire()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *tap) trickle(frame []byte, pause time.Duration) error {
	for i := range frame {
		if _, err := t.Conn.Write(frame[i : i+1]); err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-t.done:
			return net.ErrClosed
		}
	}
	return nil
}
