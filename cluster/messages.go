package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"
)

// A message on a connection of kindForward is a kind, a length in four bytes, and a
// payload of that length.
const (
	msgBatch   = 'B' // to the leader: an entry for the log, or the last part of one
	msgPart    = 'b' // to the leader: a part of an entry, which the next message of these two continues
	msgTouched = 'T' // to the leader: a number, or unanswered, and sessions that were touched
	msgHeard   = 'H' // from the leader: the answer to msgTouched; see takeTouches
	msgAsk     = 'Q' // to the leader: what is committed? A number, the sender's id, and the newest term that it knows
	msgIndex   = 'I' // from the leader: the answer to msgAsk: its number, and an index (see readIndex.get) or 0
	msgAlive   = 'L' // to the leader, without content: is the connection alive? And from the leader: yes
	msgRefused = 'N' // from the leader: the entry with this number is not, or may not be, in the log

	maxMessage = 1 << 30
	maxPart    = 64 << 10 // bytes of a longer entry in one message, so that other messages go between
)

const (
	// unheardTouches is the answer to a message of touches from a member that does not
	// surely lead.
	unheardTouches = 0
	// unanswered is the number of a message of touches that is not answered: see proposer.ask.
	unanswered = math.MaxUint64
)

// askLen is the length of a msgAsk.
const askLen = 3 * 8

func writeMessage(c net.Conn, kind byte, payload []byte) error {
	head := []byte{kind, byte(len(payload) >> 24), byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload))}
	buffers := net.Buffers{head, payload}
	_, err := buffers.WriteTo(c)
	return err
}

// readMessage reads a message, without a deadline of its own. It allocates memory only as bytes
// arrive, not by the length that the message claims.
func readMessage(r *bufio.Reader) (kind byte, payload []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := uint32(head[1])<<24 | uint32(head[2])<<16 | uint32(head[3])<<8 | uint32(head[4])
	if n > maxMessage {
		return 0, nil, fmt.Errorf("cluster: message of %d bytes", n)
	}
	payload, err = readBytes(r, int(n))
	return head[0], payload, err
}

func readBytes(r io.Reader, n int) ([]byte, error) {
	b := make([]byte, 0, min(n, 64<<10))
	for len(b) < n {
		if len(b) == cap(b) {
			b = append(b, make([]byte, min(n-len(b), len(b)))...)[:len(b)]
		}
		m, err := r.Read(b[len(b):min(cap(b), n)])
		b = b[:len(b)+m]
		if err != nil && len(b) < n {
			return nil, errors.Join(io.ErrUnexpectedEOF, err)
		}
	}
	return b, nil
}

// patient is a connection that sets deadlines for itself: the most time for a read, 0 for
// none, and for a write of up to oneWrite bytes. A longer write is divided.
type patient struct {
	net.Conn
	read, write time.Duration
}

func (c patient) Read(p []byte) (int, error) {
	if c.read > 0 {
		c.SetReadDeadline(time.Now().Add(c.read))
	}
	return c.Conn.Read(p)
}

func (c patient) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		c.SetWriteDeadline(time.Now().Add(c.write))
		var m int
		m, err = c.Conn.Write(p[n:min(len(p), n+oneWrite)])
		n += m
	}
	return n, err
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

type writeFunc func([]byte) (int, error)

func (f writeFunc) Write(p []byte) (int, error) { return f(p) }
