package golden

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// fake plays the server's half of a scenario, with values of its own for the fields that
// vary. It plays the steps in the order of the file, as the client does.
type fake struct {
	s         *Scenario
	frame     func(st *Step, frame []byte) []byte // what to send for a Receive; nil for nothing
	skipClose func(st *Step) bool                 // Closed steps to skip
	split     bool                                // write byte by byte
	accept    chan net.Conn
	quit      chan struct{}
	running   sync.WaitGroup

	conns map[string]net.Conn // used only by the script until it ends
	err   error               // why the script stopped early; read after stop

	mu    sync.Mutex
	ended int // sessions
}

const fakeBase = 1<<32 + 7 // an epoch above zero, as a replicated server has

var errFakeGone = errors.New("the fake server is gone")

func newFake(s *Scenario) *fake {
	return &fake{
		s: s, accept: make(chan net.Conn), quit: make(chan struct{}),
		conns: map[string]net.Conn{},
	}
}

func (f *fake) start() {
	f.running.Go(func() {
		if f.err = f.script(); f.err != nil {
			for _, c := range f.conns {
				c.Close()
			}
			return
		}
		for _, c := range f.conns {
			f.running.Go(func() { f.serve(c) })
		}
		for {
			c, err := f.next()
			if err != nil {
				return
			}
			f.running.Go(func() { f.serve(c) })
		}
	})
}

// stop ends the fake. The client must be done.
func (f *fake) stop() {
	close(f.quit)
	f.running.Wait()
}

func (f *fake) dial() (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case f.accept <- server:
		return client, nil
	case <-f.quit:
	case <-time.After(time.Second): // the script has stopped
	}
	return nil, errFakeGone
}

func (f *fake) next() (net.Conn, error) {
	select {
	case c := <-f.accept:
		return c, nil
	case <-f.quit:
		return nil, errFakeGone
	}
}

func (f *fake) script() (err error) {
	for i := range f.s.Steps {
		st := &f.s.Steps[i]
		c := f.conns[st.Conn]
		switch st.Kind {
		case Open:
			if c, err = f.next(); err == nil {
				f.conns[st.Conn] = c
			}
		case Send:
			want := render(st)
			got := make([]byte, len(want))
			if _, err = io.ReadFull(c, got); err == nil && !bytes.Equal(want, got) {
				err = fmt.Errorf("line %d: the client sent %x, not %x", st.Line, got, want)
			}
			if opcode(got) == opCloseSession {
				f.mu.Lock()
				f.ended++
				f.mu.Unlock()
			}
		case Receive:
			frame := render(st)
			if f.frame != nil {
				frame = f.frame(st, frame)
			}
			err = f.write(c, frame)
		case Close:
			if n, rerr := c.Read(make([]byte, 1)); n > 0 || rerr == nil {
				err = fmt.Errorf("line %d: the client sent more", st.Line)
			}
			delete(f.conns, st.Conn)
		case Closed:
			if f.skipClose == nil || !f.skipClose(st) {
				c.Close()
				delete(f.conns, st.Conn)
			}
		case Silence, Wait:
			time.Sleep(st.Pause + time.Millisecond)
		case Word:
			if c, err = f.next(); err != nil {
				return err
			}
			word := make([]byte, 4)
			if _, err = io.ReadFull(c, word); err == nil && string(word) != st.Request {
				err = fmt.Errorf("line %d: the client sent %q", st.Line, word)
			}
			f.write(c, []byte(st.Text))
			c.Close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) write(c net.Conn, b []byte) (err error) {
	step := len(b)
	if f.split {
		step = 1
	}
	for len(b) > 0 && err == nil {
		_, err = c.Write(b[:step])
		b = b[step:]
	}
	return err
}

// serve answers the requests that come after the script: those that resume and close
// sessions.
func (f *fake) serve(c net.Conn) {
	defer c.Close()
	for {
		head := make([]byte, 4)
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(c, body); err != nil {
			return
		}
		if len(body) == 44 { // a handshake that resumes
			answer := append([]byte{0, 0, 0, 36, 0, 0, 0, 0, 0, 0, 0x27, 0x10}, body[16:24]...)
			c.Write(append(append(answer, 0, 0, 0, 16), body[28:]...))
			continue
		}
		f.mu.Lock()
		f.ended++
		f.mu.Unlock()
		c.Write(append([]byte{0, 0, 0, 16}, append(body[:4:4], make([]byte, 12)...)...))
		return
	}
}

// render returns a recorded frame with the fake's values.
func render(st *Step) []byte {
	b := bytes.Clone(st.Bytes)
	for _, f := range st.Fields {
		v := b[f.Offset : f.Offset+f.Length]
		switch f.Kind {
		case Zxid:
			binary.BigEndian.PutUint64(v, fakeBase+uint64(f.n))
		case Time:
			binary.BigEndian.PutUint64(v, 946684800000+5*uint64(f.n))
		case Sid:
			binary.BigEndian.PutUint64(v, 0x2a<<56+uint64(f.n))
		case Passwd:
			for i := range v {
				v[i] = byte(0x40 + f.n + int64(i))
			}
		}
	}
	return b
}
