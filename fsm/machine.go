package fsm

import (
	"fmt"
	"hash/crc32"
	"maps"
	"slices"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// Machine is the replicated state. It is not safe for concurrent use.
type Machine struct {
	tree     *znode.Tree
	sessions *session.Table
	zxid     int64             // of the last transaction: epoch high, counter low
	term     uint64            // of the last entry
	index    uint64            // of the last entry
	cluster  uint64            // see Identify; 0 if no entry has said it
	batches  map[uint64]uint64 // number of the last entry applied, by origin

	// The members of the cluster, in order of their ids, and the zxid of their last
	// change. They are also written to /zookeeper/config, but a client with WRITE
	// permission may overwrite that.
	members     []proto.Peer
	membersZxid int64
	removed     []removal // in order of their indexes
	// expected are the servers that the last permitted reconfig names, until it is done, so
	// that those that join are described from the beginning.
	expected []proto.Peer

	settings Settings              // of the entry that is being applied
	txn      znode.Txn             // of the command that is being applied; Changes is reused
	in       jute.Decoder          // of that command's body, if it is a write
	out      []byte                // reply to that command; reused
	ids      map[string][]proto.ID // cache of decoded identities, by encoding
	idBytes  int                   // total length of the keys of ids

	digests []TreeDigest // see noteDigest; oldest first; not part of the replicated state
}

// TreeDigest is the tree's digest immediately after a transaction.
type TreeDigest struct {
	Zxid   int64
	Digest uint64
}

// Like ZooKeeper, a server keeps the digest after every 128th transaction, and the last
// 1024 digests, so that servers can be compared (DataTree.logZxidDigest).
const (
	digestInterval = 128
	maxDigests     = 1024
)

// noteDigest records the tree's digest if it is due. It is called after each transaction.
func (m *Machine) noteDigest() {
	if m.zxid%digestInterval != 0 {
		return
	}
	if len(m.digests) == maxDigests {
		m.digests = m.digests[:copy(m.digests, m.digests[1:])]
	}
	m.digests = append(m.digests, TreeDigest{m.zxid, m.tree.Digest()})
}

// NewMachine returns the state of a new cluster.
func NewMachine() *Machine {
	return &Machine{tree: znode.New(), sessions: session.NewTable(), batches: map[uint64]uint64{}, ids: map[string][]proto.ID{}}
}

// Result is the result of a command.
type Result struct {
	Zxid int64 // for the reply's header
	Code proto.Code
	Body []byte // of the reply, if Code is OK; valid until the next command
	// Drop means that the session has ended or moved to another connection: the
	// client gets no reply and its connection must be closed.
	Drop bool
	// Exceeded lists the quotas that the command exceeded. If a hard quota is among
	// them, the command failed.
	Exceeded []znode.QuotaExceeded
	// Session is the session that was opened or resumed; nil if that was refused.
	Session *session.Session
}

// Zxid returns the zxid of the last transaction.
func (m *Machine) Zxid() int64 { return m.zxid }

// Index returns the log index of the last entry that was applied.
func (m *Machine) Index() uint64 { return m.index }

// Term returns the term of the last entry that had commands; 0 if there was none.
func (m *Machine) Term() uint64 { return m.term }

// Cluster returns the id of the cluster that the state belongs to; 0 if no entry has said it
// (see [Identify]).
func (m *Machine) Cluster() uint64 { return m.cluster }

// Digest returns a hash of the whole replicated state.
func (m *Machine) Digest() uint64 { return m.summary().digest() }

// summary returns what the digest of the present state is made of. It is fast, and digest takes
// longer the more sessions there are, so that servers call only summary with the state locked.
func (m *Machine) summary() *summary {
	return &summary{m.sessions.List(), m.zxid, maps.Clone(m.batches), m.appendMembers(nil), m.tree.Digest()}
}

type summary struct {
	sessions session.List
	zxid     int64
	batches  map[uint64]uint64
	members  []byte
	znodes   uint64 // digest of the tree
}

// Quick returns a digest of the znodes, the sessions and the zxid that costs nothing, so that
// servers can compare their states while they run. Unlike Digest, it is not stored.
func (m *Machine) Quick() uint64 {
	const odd = 0x9e3779b97f4a7c15 // so that equal parts do not cancel each other
	return (m.tree.Digest()*odd+m.sessions.Digest())*odd + uint64(m.zxid)
}

// digest is part of every snapshot, and servers compare it, so it must not change.
func (s *summary) digest() uint64 {
	var sum uint32
	b := make([]byte, 0, 4<<10)
	for x := range s.sessions.All() {
		if b = session.Append(b, x); len(b) > cap(b)-64 {
			sum, b = crc32.Update(sum, castagnoli, b), b[:0]
		}
	}
	b = jute.AppendLong(jute.AppendLong(b, s.zxid), int64(s.znodes))
	b = append(appendBatches(b, s.batches), s.members...)
	return s.znodes ^ uint64(crc32.Update(sum, castagnoli, b))
}

// Check verifies the whole tree, and that the owners of ephemerals exist. It returns the
// first fault.
func (m *Machine) Check() error {
	return m.tree.Check(func(id int64) bool { return m.sessions.Get(id) != nil })
}

// Tree returns the tree of znodes. The caller must not change it.
func (m *Machine) Tree() *znode.Tree { return m.tree }

// Sessions returns the table of sessions. The caller must not change it.
func (m *Machine) Sessions() *session.Table { return m.sessions }

// Apply applies an entry. If each is not nil, Apply calls it after every command
// with the command's effects; the arguments are valid only during the call. An
// error means that the entry could not be decoded; the server must then stop.
//
// Each server (an entry's origin) numbers its entries in increasing order, and
// proposes an entry again if it does not know whether it was committed. Apply skips
// an entry whose number is not above the last one applied of its origin; it then
// calls each once, with i -1 and a nil result.
func (m *Machine) Apply(index, term uint64, entry []byte, each func(e *Envelope, i int, r *Result, changes []proto.Change)) error {
	e, rest, err := OpenEntry(entry)
	if err != nil {
		return err
	}
	m.index = index
	if term > m.term {
		// A new leader starts a new epoch, so it cannot reuse a zxid of an earlier
		// leader's transaction that was never committed.
		m.term = term
		m.zxid = max(m.zxid>>32+1, int64(term)) << 32
	}
	if e.Batch <= m.batches[e.Origin] {
		if each != nil {
			each(&e, -1, nil, nil)
		}
		return nil
	}
	m.batches[e.Origin], m.settings = e.Batch, e.Settings
	var r Result // declared here, it is allocated once for all commands
	for i := range e.Count {
		var c Command
		if c, rest, err = nextCommand(rest); err != nil {
			return err
		}
		m.txn = znode.Txn{
			Time: e.Time, Session: c.Session, Changes: m.txn.Changes[:0],
			NoTTL: e.Settings&NoTTL != 0, EnforceQuota: e.Settings&EnforceQuota != 0, X509: e.Settings&X509 != 0, NoDigest: e.Settings&NoDigest != 0,
			SASL: e.Settings&SASL != 0,
		}
		m.out = m.out[:0]
		before := m.zxid
		if r, err = m.do(&e, &c); err != nil {
			return err
		}
		if m.zxid != before {
			m.noteDigest()
		}
		r.Body, r.Exceeded = m.out, m.txn.Exceeded
		if each != nil {
			each(&e, i, &r, m.txn.Changes)
		}
		clear(m.txn.Changes)
		if cap(m.out) > maxRetained {
			m.out, m.txn.Changes = nil, nil
		}
	}
	m.in = jute.Decoder{}
	if len(rest) > 0 {
		return fmt.Errorf("%w: %d bytes after the last command", ErrEntry, len(rest))
	}
	return nil
}

// Answer carries out the commands of an entry that is not in the log. BeginEntry and
// AppendCommand have made it, and its commands change nothing (see [Command.ReadOnly]).
// Answer calls each after every command; r is valid only during the call.
func (m *Machine) Answer(entry []byte, each func(i int, r *Result)) error {
	rest := entry[headerLen:]
	for i := 0; len(rest) > 0; i++ {
		var c Command
		var err error
		if c, rest, err = nextCommand(rest); err != nil {
			return err
		}
		m.out = m.out[:0]
		r := m.answer(&c)
		r.Body = m.out
		each(i, &r)
		if cap(m.out) > maxRetained {
			m.out = nil
		}
	}
	return nil
}

// maxRetained is how many bytes a Machine keeps for reuse by later commands: of a reply,
// and of encoded identities in its cache.
const maxRetained = 1 << 20

// begin starts a transaction with the next zxid.
func (m *Machine) begin() int64 {
	m.zxid++
	m.txn.Zxid = m.zxid
	return m.zxid
}

// LastBatch returns the number of the last entry of an origin that was applied, or
// 0 if there was none.
func (m *Machine) LastBatch(origin uint64) uint64 { return m.batches[origin] }

// appendBatches appends the encoding of batches to b.
func appendBatches(b []byte, batches map[uint64]uint64) []byte {
	for _, origin := range slices.Sorted(maps.Keys(batches)) {
		b = jute.AppendLong(jute.AppendLong(b, int64(origin)), int64(batches[origin]))
	}
	return b
}

// identities decodes a connection's identities. Since most commands come from the same
// connections as earlier ones, it has a cache.
func (m *Machine) identities(b []byte) []proto.ID {
	if ids, ok := m.ids[string(b)]; ok {
		return ids
	}
	if m.idBytes += len(b); m.idBytes > maxRetained {
		clear(m.ids)
		m.idBytes = len(b)
	}
	ids := decodeIDs(b)
	m.ids[string(b)] = ids
	return ids
}

// closeSession ends a session: it deletes the session and its ephemerals in one
// transaction.
func (m *Machine) closeSession(id int64) Result {
	r := Result{Zxid: m.begin()}
	m.tree.CloseSession(&m.txn, id)
	m.sessions.Close(id)
	m.txn.Changes = append(m.txn.Changes, proto.Change{Kind: proto.SessionClosed, Session: id})
	return r
}
