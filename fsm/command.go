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

// The opcodes of commands that only servers propose. ZooKeeper does not use these
// numbers.
const (
	OpResumeSession proto.OpCode = -1001 // see ResumeSession
	OpExpireSession proto.OpCode = -1002 // see ExpireSession
	OpNothing       proto.OpCode = -1003 // see Nothing
	OpDescribe      proto.OpCode = -1004 // see Describe
	OpPutBack       proto.OpCode = -1005 // see PutBack
	OpIdentify      proto.OpCode = -1006 // see Identify
	OpRestored      proto.OpCode = -1007 // see Restored
)

// Command is one operation in an entry of the log.
type Command struct {
	Op      proto.OpCode
	Session int64
	Conn    uint64 // number of the connection on the server that proposed the command
	Cxid    int32  // the request's xid
	IDs     []byte // the connection's identities, encoded by AppendIDs
	Body    []byte // the request's body, unchanged
}

// ReadOnly reports whether a command changes nothing. Such a command need not be in the
// log; see [Replica.Answer].
func (c *Command) ReadOnly() bool { return c.Op == proto.OpSync || c.Op == OpNothing }

// AppendIDs appends the encoding of a connection's identities to b.
func AppendIDs(b []byte, ids []proto.ID) []byte { return (&proto.WhoAmIReply{IDs: ids}).Append(b) }

func decodeIDs(b []byte) []proto.ID {
	var r proto.WhoAmIReply
	d := jute.NewDecoder(b)
	r.Decode(&d)
	return r.IDs
}

// sessionBody is the body of createSession and of OpResumeSession. The server that
// proposes a session generates its id and password, because applying a command must be
// deterministic.
func sessionBody(id int64, timeout int32, password []byte) []byte {
	return jute.AppendBuffer(jute.AppendInt(jute.AppendLong(nil, id), timeout), password)
}

// OpenSession returns the command that opens a session for the connection conn. timeout
// is in ms.
func OpenSession(conn uint64, id int64, timeout int32, password session.Password) *Command {
	return &Command{Op: proto.OpCreateSession, Conn: conn, Body: sessionBody(id, timeout, password[:])}
}

// ResumeSession returns the command that makes conn the connection that owns a session.
// It is refused if the session does not exist or the password is wrong.
func ResumeSession(conn uint64, id int64, timeout int32, password []byte) *Command {
	return &Command{Op: OpResumeSession, Session: id, Conn: conn, Body: sessionBody(id, timeout, password)}
}

// ExpireSession returns the command that closes s, a session that the leader of the given
// term has found to be late. The command is refused if another connection has resumed the
// session, or if there is a new leader, which restarts the timeouts of all sessions. Term 0
// stands for any term.
func ExpireSession(s *session.Session, term uint64) *Command {
	b := jute.AppendLong(nil, int64(s.Owner.Server))
	b = jute.AppendLong(b, int64(s.Owner.Number))
	return &Command{Op: OpExpireSession, Session: s.ID, Body: jute.AppendLong(b, int64(term))}
}

// Nothing returns a command without effect. Once this server has applied it, this server
// has also applied everything that was committed before the command was proposed. A sync
// is the same command with a reply.
func Nothing() *Command { return &Command{Op: OpNothing} }

// Describe returns the command that adds to the members in /zookeeper/config what a reconfig
// or a configuration said about them: their election ports and client addresses. It ignores servers
// that are not members when it is applied. If the list of members then still has the version
// was, it gets a new one, as after each reconfig of ZooKeeper; 0 is no version.
func Describe(servers []proto.Peer, was int64) *Command {
	b := fmt.Appendf(nil, "version=%x\n", was)
	for _, s := range servers {
		b = fmt.Appendf(b, "%v\n", s)
	}
	return &Command{Op: OpDescribe, Body: b}
}

// Identify returns the command that says which cluster the log belongs to. The first one in
// a log counts; it is no transaction, so it has no zxid. No client is served before.
func Identify(cluster uint64) *Command {
	return &Command{Op: OpIdentify, Body: jute.AppendLong(nil, int64(cluster))}
}

// Restored returns the command that raises the zxid of servers that were restored from a snapshot
// by the time of day at which they begin, so that those that are restored from the same snapshot
// later begin with a higher one. It has an effect only before the first Identify, and not on new
// servers.
func Restored() *Command { return &Command{Op: OpRestored} }

// Identified returns the cluster that an entry says the log belongs to (see [Identify]); 0 if
// it does not say it.
func Identified(entry []byte) uint64 {
	e, rest, err := OpenEntry(entry)
	if err != nil {
		return 0
	}
	for range e.Count {
		var c Command
		if c, rest, err = nextCommand(rest); err != nil {
			return 0
		}
		if c.Op == OpIdentify && len(c.Body) == 8 {
			return binary.BigEndian.Uint64(c.Body)
		}
	}
	return 0
}

// Reap returns the command that deletes a container or TTL znode if it still may be
// deleted.
func Reap(path string) *Command {
	return &Command{Op: proto.OpDeleteContainer, Body: jute.AppendString(nil, path)}
}

// PutBack returns the command that restores the znodes that [znode.Tree.AppendNodes] has
// encoded (see [znode.Tree.PutBack]) and closes all sessions except the given ones, in one
// transaction. Only tests propose it, through lockkeepertest.
func PutBack(sessions []int64, znodes []byte) *Command {
	b := jute.AppendInt(nil, int32(len(sessions)))
	for _, id := range sessions {
		b = jute.AppendLong(b, id)
	}
	return &Command{Op: OpPutBack, Body: append(b, znodes...)}
}

// Edit returns the command that deletes znodes, and adds those in records that
// [znode.AppendRecord] has encoded, in one transaction; see [znode.Tree.Edit]. Only tests propose
// it, through lockkeepertest.
func Edit(remove []string, below bool, records []byte) *Command {
	b := jute.AppendBool(jute.AppendInt(nil, editsOnly), below)
	b = jute.AppendInt(b, int32(len(remove)))
	for _, path := range remove {
		b = jute.AppendString(b, path)
	}
	return &Command{Op: OpPutBack, Body: append(b, records...)}
}

// editsOnly, in place of the number of sessions, makes a PutBack an Edit.
const editsOnly = -1

// Settings are those settings of a server that affect what the commands that it proposes do.
// They are part of each entry, so that it has the same effect on every server.
type Settings uint32

const (
	// NoTTL refuses TTL znodes, as ZooKeeper does without extendedTypesEnabled.
	NoTTL Settings = 1 << iota
	// EnforceQuota refuses a create or setData that exceeds a hard quota, as ZooKeeper does with enforceQuota.
	// Without it, usage is counted but not checked.
	EnforceQuota
	// X509 allows scheme x509 in ACLs, as ZooKeeper does if it serves TLS.
	X509
	// Reconfig lets clients change the members, as ZooKeeper does with reconfigEnabled.
	Reconfig
	// NoDigest refuses scheme digest in ACLs, as ZooKeeper does without DigestAuthenticationProvider.enabled.
	NoDigest
	// SASL allows scheme sasl in ACLs, as ZooKeeper does with its SASLAuthenticationProvider.
	SASL

	knownSettings = SASL<<1 - 1
)

// Envelope is the head of an entry of the log. An entry has a batch of commands from one
// server.
type Envelope struct {
	Origin   uint64 // the server that proposed the entry
	Batch    uint64 // that server's number of the entry; see [Machine.Apply]
	Time     int64  // ms since the epoch, by the leader's clock
	Settings Settings
	Count    int // number of commands
}

const (
	entryVersion = 1
	headerLen    = 1 + 4 + 8 + 8 + 8 + 4
	trailerLen   = 4
)

// Errors of an entry that cannot be decoded, after which the server stops. ErrVersion is
// also returned for a snapshot that a newer version has written.
var (
	ErrVersion = errors.New("written by a newer lockkeeper: upgrade this one")
	ErrEntry   = errors.New("fsm: damaged entry")
)

// BeginEntry appends space for an envelope to b, which must be empty. To make an entry,
// call BeginEntry, AppendCommand for each command, and EndEntry.
func BeginEntry(b []byte) []byte { return append(b, make([]byte, headerLen)...) }

// AppendCommand appends the encoding of a command to an entry.
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

// EndEntry completes the entry b with its envelope and checksum.
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

// Stamp sets the time of a complete entry, in ms since the epoch. The leader does that
// with entries that other servers forward to it.
func Stamp(b []byte, timeMs int64) {
	end := len(b) - trailerLen
	binary.BigEndian.PutUint64(b[21:], uint64(timeMs))
	binary.BigEndian.PutUint32(b[end:], crc32.Checksum(b[:end], castagnoli))
}

// OpenEntry verifies an entry's checksum, and returns its envelope and its encoded
// commands.
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

// CheckEntry verifies an entry that another server has proposed, before it is put into the
// log, where an entry that this program does not know stops every server that reads it. It
// returns the envelope, and the sessions whose clients have sent the commands.
func CheckEntry(b []byte) (e Envelope, sessions []int64, err error) {
	e, rest, err := OpenEntry(b)
	if err != nil {
		return e, nil, err
	}
	sessions, err = clients(rest)
	return e, sessions, err
}

// Sessions returns the sessions whose clients have sent the commands of an entry for
// [Replica.Answer].
func Sessions(entry []byte) []int64 {
	sessions, _ := clients(entry[headerLen:]) // Answer reports an error
	return sessions
}

// clients returns the sessions whose clients have sent the given commands.
func clients(commands []byte) (sessions []int64, err error) {
	for len(commands) > 0 {
		var c Command
		if c, commands, err = nextCommand(commands); err != nil {
			return nil, err
		}
		if !known(c.Op) {
			return nil, unknownOperation(c.Op)
		}
		if c.Session != 0 && c.Op > 0 { // the others are not of clients, or begin or end a session
			sessions = append(sessions, c.Session)
		}
	}
	return sessions, nil
}

// nextCommand decodes the first of an entry's commands and returns the rest. The
// command's buffers alias b.
func nextCommand(b []byte) (c Command, rest []byte, err error) {
	d := jute.NewDecoder(b)
	c = Command{Op: proto.OpCode(d.Int()), Session: d.Long(), Conn: uint64(d.Long()), Cxid: d.Int(), IDs: d.Buffer(), Body: d.Buffer()}
	if d.Err() != nil {
		return c, nil, fmt.Errorf("%w: %v", ErrEntry, d.Err())
	}
	return c, d.Rest(), nil
}
