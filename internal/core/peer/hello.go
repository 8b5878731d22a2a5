package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
)

// Hello is how the caller begins a connection to a peer port. All but the kind and the version
// are empty for a connection of KindAdmin.
//
// The member that is called first sends an answer to it. The caller may send more before that comes,
// but reads it before anything else.
type Hello struct {
	Kind, version byte              // of the connection, and of the peer protocol
	Cluster       storage.ClusterID // of the caller
	From, to      uint64            // the ids of the caller and of the member that it means to call; 0 is unknown
	Addr          string            // of the caller's own peer port
}

// Errors with which those of a refused connection end. By them raftlog.OfConnection recognizes what
// Raft logs of such a connection, which an operator need not see: what matters of it is logged elsewhere.
var (
	ErrAddress   = errors.New("or the address is wrong")
	ErrNoCluster = errors.New("is in no cluster yet")
)

// errPeerVersion means that a hello is of another version of the peer protocol.
var errPeerVersion = errors.New("cluster: another version of the peer protocol")

// tlsHandshake is the first byte of a connection with TLS, where a hello has its kind.
const tlsHandshake = 0x16

const helloLen = 2 + 3*8 + 2 // without the address

// Encode returns the hello as it is sent, of this version.
func (h *Hello) Encode() []byte {
	b := []byte{h.Kind, Version}
	b = binary.BigEndian.AppendUint64(b, uint64(h.Cluster))
	b = binary.BigEndian.AppendUint64(b, h.From)
	b = binary.BigEndian.AppendUint64(b, h.to)
	return append(binary.BigEndian.AppendUint16(b, uint16(len(h.Addr))), h.Addr...)
}

// readHello reads a hello. If the sender has another version of the protocol, it reads no further and
// returns errPeerVersion.
func readHello(r io.Reader) (*Hello, error) {
	var b [helloLen]byte
	h := new(Hello)
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return h, err
	}
	if h.Kind, h.version = b[0], b[1]; h.version != Version {
		return h, errPeerVersion
	}
	if _, err := io.ReadFull(r, b[2:helloLen]); err != nil {
		return h, err
	}
	h.Cluster = storage.ClusterID(binary.BigEndian.Uint64(b[2:]))
	h.From, h.to = binary.BigEndian.Uint64(b[10:]), binary.BigEndian.Uint64(b[18:])
	addr, err := ReadBytes(r, int(binary.BigEndian.Uint16(b[26:])))
	h.Addr = string(addr)
	return h, err
}

// answer is the answer to a hello.
type answer struct {
	verdict byte
	cluster storage.ClusterID // of the member that answers; 0 if it is in none yet
	id      uint64            // its id
}

// The verdicts on a hello.
const (
	welcome      = iota
	otherCluster // the member that answers belongs to another cluster
	notYet       // it is in no cluster yet
	otherMember  // it is not the member that the caller means
)

const helloAnswerLen = 2 + 2*8

func (a *answer) encode() []byte {
	b := []byte{Version, a.verdict}
	b = binary.BigEndian.AppendUint64(b, uint64(a.cluster))
	return binary.BigEndian.AppendUint64(b, a.id)
}

// notWelcome is the error of a connection that the other server has refused.
type notWelcome struct {
	addr string
	Hello
	answer
}

func (e *notWelcome) Error() string {
	switch e.verdict {
	case otherCluster:
		return fmt.Sprintf("%s belongs to cluster %v, this server to cluster %v: one of the two has the wrong data directory, %v", e.addr, e.answer.cluster, e.Hello.Cluster, ErrAddress)
	case otherMember:
		return fmt.Sprintf("server %d answers at %s instead of server %d, %v", e.id, e.addr, e.to, ErrAddress)
	}
	return fmt.Sprintf("the server at %s %v", e.addr, ErrNoCluster)
}

// errNotInCluster is returned for a connection that only a member of a cluster may make.
var errNotInCluster = fmt.Errorf("cluster: this server %w", ErrNoCluster)

// Outgoing is a connection to another member, over which a hello was sent. Only one goroutine
// may read from it.
type Outgoing struct {
	net.Conn
	addr   string
	hello  *Hello
	warn   func(about, message string, args ...any) // Port.warnOf; nil to report a refusal only as an error
	answer [helloAnswerLen]byte
	came   int   // how many bytes of the answer have come
	err    error // the refusal, if all of it has come
}

// Greet sends h over a new connection to addr. After an error c is closed.
func Greet(c net.Conn, addr string, h *Hello, warn func(string, string, ...any)) (*Outgoing, error) {
	c.SetWriteDeadline(time.Now().Add(timing.HelloTimeout))
	if _, err := c.Write(h.Encode()); err != nil {
		c.Close()
		return nil, err
	}
	c.SetWriteDeadline(time.Time{})
	return &Outgoing{Conn: c, addr: addr, hello: h, warn: warn}, nil
}

// readAnswer waits for the answer to the hello, and returns an error if the other server refuses the connection.
func (g *Outgoing) readAnswer() error {
	if g.came == helloAnswerLen {
		return g.err
	}
	n, err := io.ReadFull(g.Conn, g.answer[g.came:])
	if g.came += n; err != nil { // perhaps only the deadline of this read
		if err = ExplainTLS(err); g.warn != nil && errors.As(err, new(*TLSError)) {
			g.warn(g.addr, "TLS with another member fails", "server", g.hello.to, "address", g.addr, "error", err)
		}
		return err
	}
	b := &g.answer
	a := answer{b[1], storage.ClusterID(binary.BigEndian.Uint64(b[2:])), binary.BigEndian.Uint64(b[10:])}
	switch {
	case b[0] != Version:
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

// AwaitWelcome waits at most so long until the other server accepts the connection. After an error it is closed.
func (g *Outgoing) AwaitWelcome(patience time.Duration) error {
	g.SetReadDeadline(time.Now().Add(patience))
	defer g.SetReadDeadline(time.Time{})
	err := g.readAnswer()
	if err != nil {
		g.Close()
	}
	return err
}

// Read first waits for the answer to the hello. It fails if the other server refuses the connection.
func (g *Outgoing) Read(b []byte) (int, error) {
	if err := g.readAnswer(); err != nil {
		return 0, err
	}
	return g.Conn.Read(b)
}

// The kinds of connections to a peer port; see Hello.
const (
	KindRaft    = 'R' // Raft's messages; see package raftwire
	KindForward = 'F' // entries, touches and questions for the leader
	KindAdmin   = 'A' // one Request about the members, in JSON
	KindState   = 'P' // asks for a member's election.State; nothing is sent
	KindBeat    = 'H' // the leader's heartbeats
	KindRebeat  = 'h' // the same, and the leader has sent none before it was welcomed; see sender.await in package cluster

	Version = 5 // of the peer protocol; never 3, which is the second byte of a connection with TLS
)
