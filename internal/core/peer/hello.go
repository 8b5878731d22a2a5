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

// Hello is how a connection to a peer port begins: the kind of the connection, the version
// of the peer protocol, the cluster of the member that calls, its id, the id of the member
// that it means to call, its term, and the address of its own peer port. All but the kind and
// the version are empty in a connection of kindAdmin.
//
// The member that is called answers with an answer before anything else. The caller need
// not wait for it with what it sends, but reads nothing else before it.
type Hello struct {
	Kind, version byte
	Cluster       storage.ClusterID
	From, to      uint64 // 0 is unknown
	term          uint64
	Addr          string
}

// The ends of errors by which Raft's are known (see ofConnection): what is to be said of them to an
// operator is said elsewhere.
var (
	ErrAddress   = errors.New("or the address is wrong")
	ErrNoCluster = errors.New("is in no cluster yet")
)

// errPeerVersion means that a hello is of another version of the peer protocol.
var errPeerVersion = errors.New("cluster: another version of the peer protocol")

// tlsHandshake is the first byte of a connection with TLS, where a hello has its kind.
const tlsHandshake = 0x16

const helloLen = 2 + 4*8 + 1 // without the address

// Append appends the encoded hello, of this version.
func (h *Hello) Append(b []byte) []byte {
	b = append(b, h.Kind, PeerVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(h.Cluster))
	b = binary.BigEndian.AppendUint64(b, h.From)
	b = binary.BigEndian.AppendUint64(b, h.to)
	b = binary.BigEndian.AppendUint64(b, h.term)
	addr := h.Addr[:min(len(h.Addr), 255)]
	return append(append(b, byte(len(addr))), addr...)
}

// readHello reads a hello. It returns errPeerVersion without reading on if that of the
// sender is another one.
func readHello(r io.Reader) (*Hello, error) {
	var b [helloLen + 255]byte
	h := new(Hello)
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return h, err
	}
	if h.Kind, h.version = b[0], b[1]; h.version != PeerVersion {
		return h, errPeerVersion
	}
	if _, err := io.ReadFull(r, b[2:helloLen]); err != nil {
		return h, err
	}
	h.Cluster = storage.ClusterID(binary.BigEndian.Uint64(b[2:]))
	h.From, h.to = binary.BigEndian.Uint64(b[10:]), binary.BigEndian.Uint64(b[18:])
	h.term = binary.BigEndian.Uint64(b[26:])
	addr := b[helloLen:][:b[helloLen-1]]
	_, err := io.ReadFull(r, addr)
	h.Addr = string(addr)
	return h, err
}

// answer is the answer to a hello.
type answer struct {
	verdict byte
	cluster storage.ClusterID // of the member that answers; 0 if it is in none yet
	id      uint64            // its id
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
	b = append(b, PeerVersion, a.verdict)
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

// Greeted is a connection on which hello was sent, and whose answer is read before anything
// else. Only one goroutine may read from it.
type Greeted struct {
	net.Conn
	addr   string
	hello  *Hello
	warn   func(about, message string, args ...any) // Port.WarnOf; nil to report a refusal only as an error
	answer [helloAnswerLen]byte
	came   int   // bytes of the answer
	err    error // of the answer, when all of it has come
}

// Greet sends h over a new connection to addr. After an error c is closed.
func Greet(c net.Conn, addr string, h *Hello, warn func(string, string, ...any)) (*Greeted, error) {
	c.SetWriteDeadline(time.Now().Add(timing.HelloTimeout))
	if _, err := c.Write(h.Append(nil)); err != nil {
		c.Close()
		return nil, err
	}
	c.SetWriteDeadline(time.Time{})
	return &Greeted{Conn: c, addr: addr, hello: h, warn: warn}, nil
}

// hear waits for the answer to the hello.
func (g *Greeted) hear() error {
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
	case b[0] != PeerVersion:
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

// HearWithin is hear with a limit of time. After an error the connection is closed.
func (g *Greeted) HearWithin(patience time.Duration) error {
	g.SetReadDeadline(time.Now().Add(patience))
	defer g.SetReadDeadline(time.Time{})
	err := g.hear()
	if err != nil {
		g.Close()
	}
	return err
}

// Read waits for the answer to the hello first. It fails with a notWelcome if the other server refuses the connection.
func (g *Greeted) Read(b []byte) (int, error) {
	if err := g.hear(); err != nil {
		return 0, err
	}
	return g.Conn.Read(b)
}

// The kinds of connections to a peer port; see Hello.
const (
	KindRaft    = 'R' // Raft's own messages
	KindStream  = 'E' // a leader's entries, and how far they are committed; see stream in package cluster
	KindForward = 'F' // entries, touches and questions sent to the leader
	KindAdmin   = 'A' // one Request about the members, in JSON
	KindReach   = 'P' // a question, without content; the answer is a state
	KindBeat    = 'H' // the leader's heartbeats
	KindRebeat  = 'h' // the same, over a new connection to a member that has answered the greeting; see pulse.await in package cluster

	PeerVersion = 2 // of the peer protocol
)
