package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// hello is how a connection to a peer port begins: the kind of the connection, the version
// of the peer protocol, the cluster of the member that calls, its id, the id of the member
// that it means to call, its term, and the address of its own peer port. All but the kind and
// the version are empty in a connection of kindAdmin.
//
// The member that is called answers with an [answer] before anything else. The caller need
// not wait for it with what it sends, but reads nothing else before it.
type hello struct {
	kind, version byte
	cluster       ClusterID
	from, to      uint64 // 0 is unknown
	term          uint64
	addr          string
}

// errPeerVersion means that a hello is of another version of the peer protocol.
var errPeerVersion = errors.New("cluster: another version of the peer protocol")

// tlsHandshake is the first byte of a connection with TLS, where a hello has its kind.
const tlsHandshake = 0x16

const helloLen = 2 + 4*8 + 1 // without the address

func (h *hello) append(b []byte) []byte {
	b = append(b, h.kind, peerVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(h.cluster))
	b = binary.BigEndian.AppendUint64(b, h.from)
	b = binary.BigEndian.AppendUint64(b, h.to)
	b = binary.BigEndian.AppendUint64(b, h.term)
	addr := h.addr[:min(len(h.addr), 255)]
	return append(append(b, byte(len(addr))), addr...)
}

// readHello reads a hello. It returns errPeerVersion without reading on if that of the
// sender is another one.
func readHello(r io.Reader) (*hello, error) {
	var b [helloLen + 255]byte
	h := new(hello)
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return h, err
	}
	if h.kind, h.version = b[0], b[1]; h.version != peerVersion {
		return h, errPeerVersion
	}
	if _, err := io.ReadFull(r, b[2:helloLen]); err != nil {
		return h, err
	}
	h.cluster = ClusterID(binary.BigEndian.Uint64(b[2:]))
	h.from, h.to = binary.BigEndian.Uint64(b[10:]), binary.BigEndian.Uint64(b[18:])
	h.term = binary.BigEndian.Uint64(b[26:])
	addr := b[helloLen:][:b[helloLen-1]]
	_, err := io.ReadFull(r, addr)
	h.addr = string(addr)
	return h, err
}

// answer is the answer to a hello.
type answer struct {
	verdict byte
	cluster ClusterID // of the member that answers; 0 if it is in none yet
	id      uint64    // its id
}

// The verdicts.
const (
	welcome      = iota
	otherCluster // it belongs to another cluster
	notYet       // it is in no cluster yet
	otherMember  // it has another id than the caller thinks
)

const helloAnswerLen = 2 + 2*8

func (a *answer) append(b []byte) []byte {
	b = append(b, peerVersion, a.verdict)
	b = binary.BigEndian.AppendUint64(b, uint64(a.cluster))
	return binary.BigEndian.AppendUint64(b, a.id)
}

// notWelcome is the error of a connection that the other server has refused.
type notWelcome struct {
	addr string
	hello
	answer
}

func (e *notWelcome) Error() string {
	switch e.verdict {
	case otherCluster:
		return fmt.Sprintf("%s belongs to cluster %v, this server to cluster %v: one of the two has the wrong data directory, %v", e.addr, e.answer.cluster, e.hello.cluster, errAddress)
	case otherMember:
		return fmt.Sprintf("server %d answers at %s instead of server %d, %v", e.id, e.addr, e.to, errAddress)
	}
	return fmt.Sprintf("the server at %s %v", e.addr, errNoCluster)
}

// errNotInCluster is returned for a connection that only a member of a cluster may make.
var errNotInCluster = fmt.Errorf("cluster: this server %w", errNoCluster)

// greeted is a connection on which hello was sent, and whose answer is read before anything
// else. Only one goroutine may read from it.
type greeted struct {
	net.Conn
	addr   string
	hello  *hello
	warn   func(about, message string, args ...any) // peerPort.warnOf; nil to report a refusal only as an error
	answer [helloAnswerLen]byte
	came   int   // bytes of the answer
	err    error // of the answer, when all of it has come
}

// greetPeer sends h over a new connection to addr. After an error c is closed.
func greetPeer(c net.Conn, addr string, h *hello, warn func(string, string, ...any)) (*greeted, error) {
	c.SetWriteDeadline(time.Now().Add(helloTimeout))
	if _, err := c.Write(h.append(nil)); err != nil {
		c.Close()
		return nil, err
	}
	c.SetWriteDeadline(time.Time{})
	return &greeted{Conn: c, addr: addr, hello: h, warn: warn}, nil
}

// hear waits for the answer to the hello.
func (g *greeted) hear() error {
	if g.came == helloAnswerLen {
		return g.err
	}
	n, err := io.ReadFull(g.Conn, g.answer[g.came:])
	if g.came += n; err != nil { // perhaps only the deadline of this read
		if err = explainTLS(err); g.warn != nil && errors.As(err, new(*TLSError)) {
			g.warn(g.addr, "TLS with another member fails", "server", g.hello.to, "address", g.addr, "error", err)
		}
		return err
	}
	b := &g.answer
	a := answer{b[1], ClusterID(binary.BigEndian.Uint64(b[2:])), binary.BigEndian.Uint64(b[10:])}
	switch {
	case b[0] != peerVersion:
		g.err = errPeerVersion
	case a.verdict != welcome:
		e := &notWelcome{g.addr, *g.hello, a}
		g.err = e
		if g.warn != nil && a.verdict != notYet {
			g.warn(g.addr, "another server refuses this one", "address", g.addr, "error", e)
		}
	}
	return g.err
}

// hearWithin is hear with a limit of time. After an error the connection is closed.
func (g *greeted) hearWithin(patience time.Duration) error {
	g.SetReadDeadline(time.Now().Add(patience))
	defer g.SetReadDeadline(time.Time{})
	err := g.hear()
	if err != nil {
		g.Close()
	}
	return err
}

func (g *greeted) Read(b []byte) (int, error) {
	if err := g.hear(); err != nil {
		return 0, err
	}
	return g.Conn.Read(b)
}

// The kinds of connections to a peer port; see hello.
const (
	kindRaft    = 'R' // Raft's own messages
	kindStream  = 'E' // a leader's entries, and how far they are committed; see stream
	kindForward = 'F' // entries, touches and questions sent to the leader
	kindAdmin   = 'A' // one Request about the members, in JSON
	kindReach   = 'P' // a question, without content; the answer is a state
	kindBeat    = 'H' // the leader's heartbeats
	kindRebeat  = 'h' // the same, over a new connection to a member that has answered the greeting; see pulse.await

	peerVersion = 2 // of the peer protocol
)
