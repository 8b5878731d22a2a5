package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// Operations that are in the log but that no client can ask for. They share
// the opcodes' numbers, beyond those of ZooKeeper.
const (
	OpResumeSession proto.OpCode = -1001 // give a session to another connection
	OpExpireSession proto.OpCode = -1002 // end a session if its owner is still the one that was late
	OpNothing       proto.OpCode = -1003 // only to see that all before it is applied
	OpDescribe      proto.OpCode = -1004 // tell more of members in /zookeeper/config
)

// Command is one thing to do, as it stands in the log.
type Command struct {
	Op      proto.OpCode
	Session int64
	Conn    uint64 // the origin's number of the connection
	Cxid    int32  // the client's xid
	IDs     []byte // the connection's identities, by AppendIDs
	Body    []byte // the client's request body, untouched
}

// AppendIDs appends the encoding of a connection's identities to b.
func AppendIDs(b []byte, ids []proto.ID) []byte { return (&proto.WhoAmIReply{IDs: ids}).Append(b) }

func decodeIDs(b []byte) []proto.ID {
	var r proto.WhoAmIReply
	d := jute.NewDecoder(b)
	r.Decode(&d)
	return r.IDs
}

// openSession is the body of createSession: all that is random about a session
// is drawn by the server that proposes it.
type openSession struct {
	id       int64
	timeout  int32
	password []byte
}

// OpenSession is the command that opens a session with a timeout in ms.
func OpenSession(conn uint64, id int64, timeout int32, password session.Password) *Command {
	b := jute.AppendLong(nil, id)
	b = jute.AppendInt(b, timeout)
	return &Command{Op: proto.OpCreateSession, Conn: conn, Body: jute.AppendBuffer(b, password[:])}
}

// ResumeSession is the command that gives a session to the connection conn.
func ResumeSession(conn uint64, id int64, timeout int32, password []byte) *Command {
	b := jute.AppendLong(nil, id)
	b = jute.AppendInt(b, timeout)
	return &Command{Op: OpResumeSession, Session: id, Conn: conn, Body: jute.AppendBuffer(b, password)}
}

// ExpireSession is the command that ends s, found late by the leader of a term,
// unless another connection has it by then, or there is another leader, which
// gives it its whole time again. In term 0 any leader is as good.
func ExpireSession(s *session.Session, term uint64) *Command {
	b := jute.AppendLong(nil, int64(s.Owner.Server))
	b = jute.AppendLong(b, int64(s.Owner.Number))
	return &Command{Op: OpExpireSession, Session: s.ID, Body: jute.AppendLong(b, int64(term))}
}

// Nothing is a command without effect. When it is done, all that was committed
// before it was proposed is applied here.
func Nothing() *Command { return &Command{Op: OpNothing} }

// Describe is the command that tells of members in /zookeeper/config what a
// reconfig said of them, as far as they are members by then.
func Describe(servers []proto.QuorumServer) *Command {
	var b []byte
	for _, s := range servers {
		b = fmt.Appendf(b, "%v\n", s)
	}
	return &Command{Op: OpDescribe, Body: b}
}

// Reap is the command that deletes a container or TTL znode.
func Reap(path string) *Command {
	return &Command{Op: proto.OpDeleteContainer, Body: jute.AppendString(nil, path)}
}

func (o *openSession) decode(d *jute.Decoder) {
	o.id, o.timeout, o.password = d.Long(), d.Int(), d.Buffer()
}

// Settings are those of the server that an entry comes from, as far as they
// change what its commands do.
type Settings uint32

const (
	// NoTTL refuses TTL znodes, as ZooKeeper does without extendedTypesEnabled.
	NoTTL Settings = 1 << iota
	// EnforceQuota keeps creates and setData within the quotas, as ZooKeeper does with enforceQuota.
	EnforceQuota
	// X509 makes x509 a scheme of ACLs, as in ZooKeeper where it serves TLS.
	X509
	// Reconfig lets clients change the members, as ZooKeeper does with reconfigEnabled.
	Reconfig
	// NoDigest refuses ACLs of scheme digest, as ZooKeeper does without DigestAuthenticationProvider.enabled.
	NoDigest

	knownSettings = NoDigest<<1 - 1
)

// Envelope starts an entry of the log. All commands that waited on one server
// share one.
type Envelope struct {
	Origin   uint64 // the server whose clients sent the commands
	Batch    uint64 // that server's number of the entry, above those before
	Time     int64  // ms since the epoch, by the leader's clock
	Settings Settings
	Count    int // commands
}

const (
	entryVersion = 1
	headerLen    = 1 + 4 + 8 + 8 + 8 + 4
	trailerLen   = 4
)

// Errors that an entry can cause. They stop the server. A snapshot of a newer
// version is an ErrVersion too.
var (
	ErrVersion = errors.New("written by a newer lockkeeper: upgrade this one")
	ErrEntry   = errors.New("fsm: damaged entry")
)

// BeginEntry appends room for an envelope to b, which commands may follow.
func BeginEntry(b []byte) []byte { return append(b, make([]byte, headerLen)...) }

// AppendCommand appends a command to an entry.
func AppendCommand(b []byte, c *Command) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(c.Op))
	b = binary.BigEndian.AppendUint64(b, uint64(c.Session))
	b = binary.BigEndian.AppendUint64(b, c.Conn)
	b = binary.BigEndian.AppendUint32(b, uint32(c.Cxid))
	b = binary.BigEndian.AppendUint32(b, uint32(len(c.IDs)))
	b = append(b, c.IDs...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(c.Body)))
	return append(b, c.Body...)
}

// EndEntry completes the entry that is all of b, begun by BeginEntry.
func EndEntry(b []byte, e *Envelope) []byte {
	b[0] = entryVersion
	binary.BigEndian.PutUint32(b[1:], uint32(e.Settings))
	binary.BigEndian.PutUint64(b[5:], e.Origin)
	binary.BigEndian.PutUint64(b[13:], e.Batch)
	binary.BigEndian.PutUint64(b[21:], uint64(e.Time))
	binary.BigEndian.PutUint32(b[29:], uint32(e.Count))
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Stamp sets the time of a complete entry, in ms since the epoch. The leader
// does so to those that come from other servers.
func Stamp(b []byte, timeMs int64) {
	end := len(b) - trailerLen
	binary.BigEndian.PutUint64(b[21:], uint64(timeMs))
	binary.BigEndian.PutUint32(b[end:], crc32.Checksum(b[:end], castagnoli))
}

// OpenEntry reads an entry's envelope, verifies its checksum, and returns its commands.
func OpenEntry(b []byte) (e Envelope, commands []byte, err error) {
	switch {
	case len(b) < headerLen+trailerLen:
		return e, nil, ErrEntry
	case b[0] != entryVersion:
		return e, nil, fmt.Errorf("%w: entry of version %d, this program knows %d", ErrVersion, b[0], entryVersion)
	}
	end := len(b) - trailerLen
	if crc32.Checksum(b[:end], castagnoli) != binary.BigEndian.Uint32(b[end:]) {
		return e, nil, fmt.Errorf("%w: checksum", ErrEntry)
	}
	e = Envelope{
		Settings: Settings(binary.BigEndian.Uint32(b[1:])),
		Origin:   binary.BigEndian.Uint64(b[5:]),
		Batch:    binary.BigEndian.Uint64(b[13:]),
		Time:     int64(binary.BigEndian.Uint64(b[21:])),
		Count:    int(binary.BigEndian.Uint32(b[29:])),
	}
	if unknown := e.Settings &^ knownSettings; unknown != 0 {
		return e, nil, fmt.Errorf("%w: entry with settings %#x", ErrVersion, unknown)
	}
	return e, b[headerLen:end], nil
}

// nextCommand reads a command off an entry's commands. What it holds aliases b.
func nextCommand(b []byte) (c Command, rest []byte, err error) {
	d := jute.NewDecoder(b)
	c = Command{Op: proto.OpCode(d.Int()), Session: d.Long(), Conn: uint64(d.Long()), Cxid: d.Int(), IDs: d.Buffer(), Body: d.Buffer()}
	if d.Err() != nil {
		return c, nil, fmt.Errorf("%w: %v", ErrEntry, d.Err())
	}
	return c, d.Rest(), nil
}
