package golden

import (
	"encoding/binary"

	"github.com/lockkeeper/lockkeeper/internal/tools/xid"
)

// Frame is one frame of a scenario as it was recorded, for tests of decoders.
type Frame struct {
	Conn       string
	FromClient bool
	Handshake  bool  // a ConnectRequest or its response, which have no header
	Op         int32 // the type of the request, or of the request that is answered; 0 for a notification and a handshake
	Line       int
	Bytes      []byte // length prefix included
	Comment    string // decoded form
}

// Frames returns the frames of the scenario in the order of the file. It omits bytes
// that are not a frame because their length prefix is wrong.
func (s *Scenario) Frames() []Frame {
	var frames []Frame
	type state struct {
		asked, answered bool // the handshake's request and answer
		waiting         xid.Waiting
	}
	conns := map[string]*state{}
	for i := range s.Steps {
		st := &s.Steps[i]
		if st.Kind == Open {
			conns[st.Conn] = &state{}
		}
		if st.Kind != Send && st.Kind != Receive {
			continue
		}
		c := conns[st.Conn]
		n := len(st.Bytes) - 4
		if n < 0 || binary.BigEndian.Uint32(st.Bytes) != uint32(n) {
			continue
		}
		f := Frame{Conn: st.Conn, FromClient: st.Kind == Send, Line: st.Line, Bytes: st.Bytes, Comment: st.Comment}
		switch {
		case f.FromClient && !c.asked:
			f.Handshake, c.asked = true, true
		case f.FromClient:
			f.Op = opcode(st.Bytes)
			if n >= 8 {
				c.waiting.Asked(int32(binary.BigEndian.Uint32(st.Bytes[xidAt:])), f.Op)
			}
		case !c.answered:
			f.Handshake, c.answered = true, true
		case !event(st.Bytes) && n >= 4:
			f.Op, _ = c.waiting.Answered(int32(binary.BigEndian.Uint32(st.Bytes[xidAt:])))
		}
		frames = append(frames, f)
	}
	return frames
}
