package golden

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// Options change what a replay accepts. With the zero value, the endpoint must behave
// exactly like the recorded server.
type Options struct {
	// Timeout limits each wait for the endpoint; 0 means five seconds.
	Timeout time.Duration

	// EventZxid accepts both -1 and the zxid of the change in the header of an event.
	// ZooKeeper sends the zxid since 3.9.
	EventZxid bool

	// Mask, if set, selects steps at which the endpoint may differ. A masked Receive
	// still reads one frame, with any content. A masked Silence waits without checking.
	// A masked Closed, Word or HTTP is skipped.
	Mask func(s *Scenario, st *Step) bool

	// Equal, if set, decides whether frames with different bytes count as equal. want is
	// the recorded frame with the values of this replay.
	Equal func(st *Step, want, got []byte) bool

	// Text, if set, checks the answer to a four-letter word. Otherwise the answer must
	// be equal to st.Text.
	Text func(st *Step, got string) error
}

const defaultTimeout = 5 * time.Second

// Replay plays the client's half of the scenario against the endpoint that dial
// connects to, and compares what the endpoint sends. It returns the first difference as
// a *Diff. In any case it tries to close the sessions that it opened, so that they do
// not consume a zxid during the next scenario when they expire.
//
// Replay cannot play HTTP steps: if a scenario has one that is not masked, Replay
// returns errors.ErrUnsupported before it sends anything.
func (s *Scenario) Replay(ctx context.Context, dial func() (net.Conn, error), opts Options) error {
	if opts.Timeout == 0 {
		opts.Timeout = defaultTimeout
	}
	p := &player{
		s: s, ctx: ctx, dial: dial, opts: opts,
		conns: map[string]*conn{}, bound: newBindings(), sessions: map[string]*session{},
	}
	for i := range s.Steps {
		if st := &s.Steps[i]; st.Kind == HTTP && !p.masked(st) {
			return fmt.Errorf("%s: line %d: HTTP requests: %w", s.Name, st.Line, errors.ErrUnsupported)
		}
	}
	err := p.play()
	p.endSessions()
	for _, c := range p.conns {
		c.close()
	}
	var d *Diff
	if errors.As(err, &d) {
		d.Scenario = s.Name
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err) // the endpoint did not cause the error
	}
	return err
}

// player is one replay. Only the goroutine that called Replay uses it.
type player struct {
	s        *Scenario
	ctx      context.Context
	dial     func() (net.Conn, error)
	opts     Options
	conns    map[string]*conn    // the open connections
	bound    *bindings           // the values of the symbols
	sessions map[string]*session // by the symbol of their id
}

// session is a session that the replay has opened and must close.
type session struct {
	id, passwd []byte
	ended      bool // closeSession was sent
}

func (p *player) masked(st *Step) bool {
	return p.opts.Mask != nil && p.opts.Mask(p.s, st)
}

func (p *player) play() error {
	steps := p.s.Steps
	for len(steps) > 0 {
		n := 1
		if steps[0].Kind == Send {
			for n < len(steps) && steps[n].Kind == Send && steps[n].Conn == steps[0].Conn {
				n++
			}
		}
		if err := p.step(steps[:n]); err != nil {
			return err
		}
		steps = steps[n:]
	}
	return p.leftover()
}

// step plays one step, or several consecutive requests on one connection, which it
// sends in one write, as a pipelining client does.
func (p *player) step(steps []Step) error {
	st := &steps[0]
	c := p.conns[st.Conn]
	if (st.Kind == Closed || st.Kind == Word) && p.masked(st) {
		return nil
	}
	switch st.Kind {
	case Open:
		nc, err := p.dial()
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			// A server at its limit of connections accepts and resets the connection, and
			// connect may already see that. The following steps decide whether it is correct.
			var far net.Conn
			nc, far = net.Pipe()
			far.Close()
		} else if err != nil {
			return fmt.Errorf("%s: line %d: %s open: %w", p.s.Name, st.Line, st.Conn, err)
		}
		if c != nil { // still open, because its Closed step was masked
			c.close()
		}
		p.conns[st.Conn] = newConn(nc)
	case Send:
		return p.send(c, steps)
	case Receive:
		return p.receive(c, st)
	case Close:
		c.close()
		delete(p.conns, st.Conn)
	case Closed:
		return p.closed(c, st)
	case Silence:
		return p.silence(c, st)
	case Wait:
		return p.sleep(st.Pause)
	case Word:
		return p.word(st)
	}
	return nil
}

// send writes requests. It does not return write errors, because a server may close the
// connection at a bad frame before it has read all of it; the following steps check
// what the server did.
func (p *player) send(c *conn, steps []Step) error {
	var out []byte
	for i := range steps {
		frame, err := p.bound.request(&steps[i])
		if err != nil {
			return fmt.Errorf("%s: line %d: %s >: %w", p.s.Name, steps[i].Line, steps[i].Conn, err)
		}
		if opcode(frame) == opCloseSession && c.session != nil {
			c.session.ended = true
		}
		out = append(out, frame...)
	}
	c.write(out, p.opts.Timeout)
	return nil
}

func (p *player) receive(c *conn, st *Step) error {
	got, err := c.frame(p.ctx, p.opts.Timeout)
	if err != nil {
		if p.masked(st) {
			return nil
		}
		return &Diff{Step: st, Why: err.Error(), Want: st.Bytes, Got: got, Offset: -1}
	}
	d := p.bound.reply(st, got, p.opts.EventZxid)
	if d != nil && p.opts.Equal != nil && !bytes.Equal(d.Want, got) && p.opts.Equal(st, d.Want, got) {
		d = nil
	}
	if d != nil && !p.masked(st) {
		return d
	}
	if !c.shaken {
		c.shaken = true
		p.noteSession(c, st)
	}
	return nil
}

// noteSession remembers the session that a handshake has opened or resumed.
func (p *player) noteSession(c *conn, st *Step) {
	var id, passwd, symbol = []byte(nil), []byte(nil), ""
	for i := range st.Fields {
		switch f := &st.Fields[i]; f.Kind {
		case Sid:
			id, _ = p.bound.value(f)
			symbol = f.Symbol
		case Passwd:
			passwd, _ = p.bound.value(f)
		}
	}
	if id == nil || passwd == nil {
		return
	}
	if p.sessions[symbol] == nil {
		p.sessions[symbol] = &session{id: id, passwd: passwd}
	}
	c.session = p.sessions[symbol]
}

func (p *player) closed(c *conn, st *Step) error {
	got, err := c.frame(p.ctx, p.opts.Timeout)
	switch {
	case len(got) > 0:
		return &Diff{Step: st, Why: "something came where the server closed the connection", Got: got, Offset: -1}
	case !errors.Is(err, errPeerClosed):
		return &Diff{Step: st, Why: fmt.Sprintf("the connection is not closed: %v", err), Offset: -1}
	}
	c.close()
	delete(p.conns, st.Conn)
	return nil
}

func (p *player) silence(c *conn, st *Step) error {
	if p.masked(st) {
		return p.sleep(st.Pause)
	}
	got, err := c.frame(p.ctx, st.Pause)
	switch {
	case errors.Is(err, errTimeout):
		return nil
	case len(got) > 0:
		return &Diff{Step: st, Why: "something came where the server was silent", Got: got, Offset: -1}
	}
	return &Diff{Step: st, Why: err.Error(), Offset: -1}
}

// word sends a four-letter word on a connection of its own.
func (p *player) word(st *Step) error {
	nc, err := p.dial()
	if err != nil {
		return fmt.Errorf("%s: line %d: %s: %w", p.s.Name, st.Line, st.Request, err)
	}
	defer nc.Close()
	defer context.AfterFunc(p.ctx, func() { nc.Close() })()
	nc.SetDeadline(time.Now().Add(p.opts.Timeout))
	io.WriteString(nc, st.Request) // the answer shows an error
	got, err := io.ReadAll(nc)
	d := &Diff{Step: st, Want: []byte(st.Text), Got: got, Offset: firstDiff([]byte(st.Text), got)}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		d.Why = st.Request + ": the answer does not end"
		return d
	case p.opts.Text != nil:
		if err := p.opts.Text(st, string(got)); err != nil {
			d.Why = fmt.Sprintf("%s: %v", st.Request, err)
			return d
		}
	case d.Offset >= 0:
		d.Why = fmt.Sprintf("%s: the answer differs from byte %d on", st.Request, d.Offset)
		return d
	}
	return nil
}

// leftover reports frames that the server sent and that the scenario does not have.
func (p *player) leftover() error {
	for i := len(p.s.Steps) - 1; i >= 0; i-- {
		st := &p.s.Steps[i]
		c := p.conns[st.Conn]
		if c == nil || c.judged {
			continue
		}
		c.judged = true
		const patience = time.Millisecond // for the reader, to which it came with the last frame
		if got, _ := c.frame(p.ctx, patience); len(got) > 0 && !p.masked(st) {
			return &Diff{Step: st, Why: "more came after the last recorded frame of this connection", Got: got, Offset: -1}
		} else if c.werr != nil && st.Kind == Send {
			return &Diff{Step: st, Why: c.werr.Error(), Want: st.Bytes, Offset: -1}
		}
	}
	return nil
}

func (p *player) sleep(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

// endSessions closes the sessions that the scenario left open: on their own connection
// if that still works, and otherwise on a new one. All of this must happen within one
// timeout. It ignores errors, because the endpoint may be faulty.
func (p *player) endSessions() {
	ctx, cancel := context.WithTimeout(p.ctx, p.opts.Timeout)
	defer cancel()
	for _, c := range p.conns {
		if s := c.session; s != nil && !s.ended {
			s.ended = c.endSession(ctx, p.opts.Timeout)
		}
	}
	for _, s := range p.sessions {
		if s.ended || ctx.Err() != nil {
			continue
		}
		nc, err := p.dial()
		if err != nil {
			return
		}
		c := newConn(nc)
		c.write(resumeRequest(s), p.opts.Timeout)
		if answer, err := c.frame(ctx, p.opts.Timeout); err == nil && len(answer) >= 12 &&
			binary.BigEndian.Uint32(answer[8:]) != 0 { // timeout 0 means that the session has expired
			c.endSession(ctx, p.opts.Timeout)
		}
		c.close()
	}
}

// opCloseSession is the request type that ends a session.
const opCloseSession = -11

// opcode returns the request type of a frame from the client, or 0 if the frame is too
// short to have a request header.
func opcode(frame []byte) int32 {
	if len(frame) < opAt+4 {
		return 0
	}
	return int32(binary.BigEndian.Uint32(frame[opAt:]))
}

// lastXid is the xid of the closeSession requests that are not part of a scenario.
const lastXid = 0x7ffffffe

// endSession closes the connection's session and reports whether the server answered.
// It then waits until the server has closed the connection, so that it no longer counts
// towards the limit of connections from this address.
func (c *conn) endSession(ctx context.Context, timeout time.Duration) (ended bool) {
	op := int32(opCloseSession)
	frame := binary.BigEndian.AppendUint32(nil, 8)
	frame = binary.BigEndian.AppendUint32(frame, lastXid)
	frame = binary.BigEndian.AppendUint32(frame, uint32(op))
	c.write(frame, timeout)
	for {
		got, err := c.frame(ctx, timeout)
		if err != nil {
			return ended
		}
		if len(got) >= opAt && binary.BigEndian.Uint32(got[xidAt:]) == lastXid {
			ended = true
		}
	}
}

// resumeRequest returns the handshake that resumes a session.
func resumeRequest(s *session) []byte {
	b := binary.BigEndian.AppendUint32(nil, 44)
	b = append(b, make([]byte, 12)...)           // protocol version, last zxid seen
	b = binary.BigEndian.AppendUint32(b, 10_000) // timeout
	b = append(b, s.id...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(s.passwd)))
	return append(b, s.passwd...)
}
