package wiretap

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Recorder writes the events of a [Proxy] as a recording that can be replayed, in the
// format of package golden. It writes each step when it happens, with one Write, so a
// recording that ends early is still valid. Its method Handle can serve as Proxy.Handle.
// The proxy should set InTurn, because requests on several connections can be replayed
// only in the order in which the server handled them.
//
// The recorder writes pauses only while a session has no connection, or has been silent
// for half its timeout, so that it expires in the replay at the same point as in the
// recording. Elsewhere a replay needs no pauses, because it waits for what is expected.
// There are no steps "silence", because the recorder cannot know that the server would
// have sent nothing.
type Recorder struct {
	w        io.Writer
	err      error
	lost     int
	conns    map[int]*taped
	sessions map[int64]*session
	nonces   map[string]int    // numbers of the nonces that servers have sent
	live     map[*session]bool // sessions that may expire
	made     int64             // number of sessions opened so far
	base     int64             // the last zxid before the recording
	based    bool              // base is known
	waited   time.Duration
}

// taped is a connection in the recording.
type taped struct {
	name     string
	open     bool // its step "open" is written
	gone     bool // its last step is written
	finished bool // the client sends no more
	word     string
	asked    int64 // the session id in its handshake request
	session  *session
}

// session is a session that was opened during the recording.
type session struct {
	n        int // its symbols are Sn and Pn
	passwd   []byte
	timeout  time.Duration
	heard    time.Time     // when its client last sent something
	waited   time.Duration // Recorder.waited at that time
	detached bool          // its connection has ended
}

// NewRecorder starts a recording of the server with that name.
func NewRecorder(w io.Writer, name string) *Recorder {
	r := &Recorder{w: w, conns: map[int]*taped{}, sessions: map[int64]*session{}, nonces: map[string]int{}, live: map[*session]bool{}}
	s := golden.Scenario{Title: "Recorded by lockkeeper wire", Server: name + ", config recorded"}
	r.write(s.AppendHeader(nil))
	return r
}

// Err returns the first error of the writer.
func (r *Recorder) Err() error { return r.err }

// Lost returns how many connections could not be recorded to their end, because a frame
// was too long or the server sent bytes that are not a frame.
func (r *Recorder) Lost() int { return r.lost }

func (r *Recorder) write(b []byte) {
	if r.err == nil {
		_, r.err = r.w.Write(b)
	}
}

// Handle records an event.
func (r *Recorder) Handle(e Event) {
	c := r.conns[e.Conn]
	if c == nil {
		if e.Kind != Opened {
			return
		}
		c = &taped{name: fmt.Sprintf("C%d", e.Conn)}
		r.conns[e.Conn] = c
	}
	if c.gone {
		return
	}
	if s := c.session; s != nil && e.FromClient {
		r.pause(e.Time) // based on when the client was heard before this event
		s.heard, s.waited = e.Time, r.waited
	}
	switch e.Kind {
	case Framed:
		if len(e.Bytes) < e.Size {
			r.lose(c, e.Time)
			break
		}
		st := golden.Step{Kind: golden.Receive, Bytes: e.Bytes, Comment: e.Frame.String()}
		if e.FromClient {
			st.Kind = golden.Send
		}
		st.Fields = r.learn(c, &e)
		r.step(c, e.Time, st)
	case Raw:
		if !e.FromClient {
			r.lose(c, e.Time)
			break
		}
		r.step(c, e.Time, golden.Step{Kind: golden.Send, Bytes: e.Bytes})
	case Text:
		if e.FromClient {
			c.word = string(e.Bytes)
			return
		}
		if c.word == "" { // the server sent something before the word
			if e.Size > 0 {
				r.lose(c, e.Time)
			}
			break
		}
		c.gone = true
		if len(e.Bytes) < e.Size {
			r.lost++
			break
		}
		r.pause(e.Time)
		st := golden.Step{Kind: golden.Word, Request: c.word, Text: string(e.Bytes)}
		r.write(st.Append(nil))
	case Finished, Failed:
		switch {
		case c.word != "":
			c.gone = !e.FromClient || e.Err != nil
		case !e.FromClient && !c.finished:
			r.end(c, e.Time, golden.Closed)
		case !e.FromClient || e.Err != nil:
			r.end(c, e.Time, golden.Close)
		default: // the server may still answer
			c.finished = true
		}
	}
	if c.gone {
		delete(r.conns, e.Conn)
	}
}

// step writes a step of a connection. Before the first one it writes the step "open":
// only now is it clear that the connection is not that of a four-letter word.
func (r *Recorder) step(c *taped, now time.Time, st golden.Step) {
	r.pause(now)
	var b []byte
	st.Conn = c.name
	if !c.open {
		c.open = true
		b = (&golden.Step{Kind: golden.Open, Conn: c.name}).Append(b)
	}
	r.write(st.Append(b))
}

// end writes the last step of a connection.
func (r *Recorder) end(c *taped, now time.Time, kind golden.Kind) {
	r.step(c, now, golden.Step{Kind: kind})
	c.gone = true
	if c.session != nil {
		c.session.detached = true
	}
}

// lose ends the recording of a connection that cannot be recorded any further.
func (r *Recorder) lose(c *taped, now time.Time) {
	r.lost++
	r.end(c, now, golden.Close)
}

// pause writes a step "wait" if a session may expire, as the comment of [Recorder] explains.
func (r *Recorder) pause(now time.Time) {
	var owed time.Duration
	for s := range r.live {
		silent := now.Sub(s.heard)
		if s.detached || silent > s.timeout/2 {
			// After twice its timeout the session has expired, whatever the server's tick time.
			owed = max(owed, min(silent, 2*s.timeout)-(r.waited-s.waited))
		}
		if s.detached && silent > 2*s.timeout {
			delete(r.live, s)
		}
	}
	const least = 100 * time.Millisecond
	if owed < least {
		return
	}
	st := golden.Step{Kind: golden.Wait, Pause: owed.Round(time.Millisecond)}
	r.waited += st.Pause
	r.write(st.Append(nil))
}

// learn remembers the sessions and zxids in a frame. It returns the fields that will
// have other values in a replay.
func (r *Recorder) learn(c *taped, e *Event) (fields []golden.Field) {
	f := e.Frame
	switch q := f.Body.(type) {
	case *proto.ConnectRequest:
		c.asked = q.SessionID
	case *proto.ConnectReply:
		s := r.sessions[q.SessionID]
		if s == nil && c.asked == 0 && q.SessionID != 0 && len(q.Password) == proto.PasswordLen {
			r.made++
			s = &session{n: int(r.made), passwd: bytes.Clone(q.Password)}
			r.sessions[q.SessionID] = s
		}
		if s != nil {
			s.timeout = time.Duration(q.Timeout) * time.Millisecond
			s.heard, s.waited, s.detached = e.Time, r.waited, false
			r.live[s] = true
			c.session = s
		}
	}
	if f.Kind == wire.Reply && f.Known && f.Zxid > 0 && !r.based {
		// The first zxid in a reply. So far the recording has only opened sessions and, if
		// this is a write, made this one.
		r.based, r.base = true, f.Zxid-r.made
		if row := proto.OpByCode(f.Op); row != nil && row.Class == proto.Write && f.Op != proto.OpSync {
			r.base--
		}
	}
	if f.Kind == wire.Reply && f.Op == proto.OpCloseSession && c.session != nil {
		delete(r.live, c.session)
		c.session = nil
	}
	return r.volatile(f)
}

// volatile returns the fields of a frame that vary from run to run.
func (r *Recorder) volatile(f *wire.Frame) (fields []golden.Field) {
	var czxid, mzxid int64
	var owner *session
	for _, x := range f.Fields() {
		m := golden.Field{Offset: 4 + x.Offset, Length: 8, Name: x.Name}
		n, _ := x.Value.(int64)
		switch x.Base() {
		case "czxid":
			czxid = n
		case "mzxid":
			mzxid = n
		}
		switch x.Base() {
		case "zxid", "lastZxidSeen", "relativeZxid", "czxid", "mzxid", "pzxid":
			m.Kind, m.Symbol = golden.Zxid, r.since("base+", n)
			if m.Symbol == "old" && f.FromClient() && (!r.based || n > r.base) {
				m.Symbol = "" // the client may have made it up
			}
		case "ctime":
			m.Kind, m.Symbol = golden.Time, r.since("T+", czxid)
		case "mtime":
			m.Kind, m.Symbol = golden.Time, r.since("T+", mzxid)
		case "sessionID", "ephemeralOwner":
			m.Kind = golden.Sid
			if owner = r.sessions[n]; owner != nil {
				m.Symbol = fmt.Sprintf("S%d", owner.n)
			} else if x.Base() == "ephemeralOwner" && ofSession(n) {
				m.Symbol = "old"
			}
		case "password":
			m.Kind, m.Offset, m.Length = golden.Passwd, m.Offset+4, proto.PasswordLen
			if v, _ := x.Value.([]byte); owner != nil && bytes.Equal(v, owner.passwd) {
				m.Symbol = fmt.Sprintf("P%d", owner.n)
			}
		case "token":
			const before = `nonce="`
			v, _ := x.Value.([]byte)
			if at := bytes.Index(v, []byte(before)) + len(before); at >= len(before) && len(v)-at >= nonceLen {
				m.Kind, m.Offset, m.Length, m.Name = golden.Nonce, m.Offset+4+at, nonceLen, "nonce"
				m.Symbol = r.nonce(string(v[at:][:nonceLen]), f.FromClient())
			}
		}
		if m.Symbol != "" && (n != 0 || m.Kind == golden.Passwd || m.Kind == golden.Nonce) {
			fields = append(fields, m)
		}
	}
	return fields
}

// nonceLen is the length of a nonce in a server's challenge of SASL.
const nonceLen = 40

// nonce returns the symbol of a nonce in a token of SASL, or "" if the client has made it up.
func (r *Recorder) nonce(nonce string, fromClient bool) string {
	if r.nonces[nonce] == 0 && !fromClient {
		r.nonces[nonce] = len(r.nonces) + 1
	}
	if r.nonces[nonce] == 0 {
		return ""
	}
	return fmt.Sprintf("N%d", r.nonces[nonce])
}

// since returns the symbol of a zxid, or "" if it is not the zxid of a transaction.
func (r *Recorder) since(prefix string, zxid int64) string {
	switch {
	case zxid < 0: // events of ZooKeeper 3.8, and errors without a transaction
		return ""
	case !r.based || zxid <= r.base || zxid-r.base > math.MaxInt32: // or of another epoch
		return "old"
	}
	return fmt.Sprintf("%s%d", prefix, zxid-r.base)
}

// ofSession reports whether the field ephemeralOwner holds a session id. In containers
// and TTL znodes it has a special value (EphemeralType).
func ofSession(owner int64) bool {
	return owner != 0 && owner != -1<<63 && uint64(owner)>>56 != 0xff
}
