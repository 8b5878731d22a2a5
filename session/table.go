// Package session keeps the sessions that exist and finds those that have expired.
//
// A [Table] is part of the replicated state: the sessions with their passwords, timeouts
// and owners. A [Tracker] is not replicated: it records when each session was last
// touched, that is, when a request of its client last arrived. A leader that starts with
// a new Tracker expires sessions later, never earlier. Neither reads a clock.
//
// This package promises no compatibility: any version of lockkeeper may change it.
package session

import (
	"cmp"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Password is the secret with which a client proves to any server that a session is its
// own.
type Password [proto.PasswordLen]byte

// ZooKeeperPassword returns the password that ZooKeeper gives the session with this id
// (ZooKeeperServer.generatePasswd). It is no secret: whoever knows the id can compute it.
func ZooKeeperPassword(id int64) (p Password) {
	const multiplier, mask = 0x5deece66d, 1<<48 - 1 // of java.util.Random
	state := (uint64(id) ^ 0xb3415c00 ^ multiplier) & mask
	for i := 0; i < len(p); i += 4 {
		state = (state*multiplier + 0xb) & mask
		binary.LittleEndian.PutUint32(p[i:], uint32(state>>16))
	}
	return p
}

// Conn identifies a client's connection. A session is owned by the connection on which
// it was last opened or resumed.
type Conn struct {
	Server uint64 // that accepted the connection
	Number uint64 // which that server has given to it
}

// Session is a client's session. It is never changed: resuming a session replaces it.
type Session struct {
	ID       int64
	Timeout  int32 // ms, as last negotiated
	Password Password
	Owner    Conn
}

// FormatID returns a session id in the form in which ZooKeeper shows it.
func FormatID(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) }

// ParseID reads a session id, which must not be 0: in hexadecimal after 0x, as [FormatID] writes
// it, also with leading zeros; as 16 hexadecimal digits, the form of clients that keep it as
// eight bytes; or in decimal, where it may be negative.
func ParseID(text string) (id int64, err error) {
	base := 10
	digits, hex := strings.CutPrefix(strings.ToLower(text), "0x")
	if hex || len(text) == 16 && text[0] != '-' { // in decimal, the ids that servers give out are longer
		base = 16
	}
	n, err := strconv.ParseUint(digits, base, 64)
	if id = int64(n); err != nil && base == 10 {
		id, err = strconv.ParseInt(digits, base, 64)
	}
	if err != nil || id == 0 {
		return 0, fmt.Errorf("%q is not the id of a session, such as 0x1000a01c3e20000", text)
	}
	return id, nil
}

// Table holds the sessions that exist. It is not safe for concurrent use.
type Table struct {
	byID   map[int64]*Session
	parts  [][]*Session // all of them in order of their ids; a part is replaced, never changed, since a List may have it
	digest uint64
}

// partLen is how many sessions a part has at most. It is small, since each change copies a part: at
// most 1 KB.
const partLen = 127

// List is the sessions that existed at one moment, in order of their ids. It never changes.
type List struct {
	parts  [][]*Session
	len    int
	digest uint64 // of the Table
}

// Intact reports whether the sessions are those of which the digest was made, one after the other.
func (l List) Intact() bool {
	var digest uint64
	for s := range l.All() {
		digest += hash(s)
	}
	return digest == l.digest
}

// Len returns the number of sessions.
func (l List) Len() int { return l.len }

// All returns the sessions.
func (l List) All() iter.Seq[*Session] {
	return func(yield func(*Session) bool) {
		for _, part := range l.parts {
			for _, s := range part {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// NewTable returns an empty table.
func NewTable() *Table { return &Table{byID: map[int64]*Session{}} }

// Digest returns a hash of all sessions. It is kept up to date, so it costs nothing.
func (t *Table) Digest() uint64 { return t.digest }

// put adds a session, or replaces the one with its id.
func (t *Table) put(s *Session) {
	if old := t.byID[s.ID]; old != nil {
		t.digest -= hash(old)
	}
	t.byID[s.ID] = s
	t.digest += hash(s)
	t.list(s.ID, s)
}

// Close removes a session and reports whether it existed.
func (t *Table) Close(id int64) bool {
	s := t.byID[id]
	if s != nil {
		t.digest -= hash(s)
		delete(t.byID, id)
		t.list(id, nil)
	}
	return s != nil
}

// list inserts s into the list, in place of the session with its id if there is one. If s is nil, it
// removes the session with this id.
func (t *Table) list(id int64, s *Session) {
	byID := func(s *Session, id int64) int { return cmp.Compare(s.ID, id) }
	i, _ := slices.BinarySearchFunc(t.parts, id, func(part []*Session, id int64) int { return byID(part[len(part)-1], id) })
	if i > 0 && i == len(t.parts) { // it is the last one
		i--
	}
	var before []*Session
	if i < len(t.parts) {
		before = t.parts[i]
	}
	from, found := slices.BinarySearchFunc(before, id, byID)
	to := from
	if found {
		to++
	}
	after := append(make([]*Session, 0, len(before)+1), before[:from]...)
	if s != nil {
		after = append(after, s)
	}
	after = append(after, before[to:]...)
	parts := [][]*Session{after}
	switch half := len(after) / 2; {
	case len(after) == 0:
		parts = nil
	case len(after) <= partLen:
	case from == partLen: // most ids are higher than those before
		parts = [][]*Session{before, {s}}
	default:
		parts = [][]*Session{after[:half:half], after[half:]}
	}
	t.parts = slices.Replace(t.parts, i, min(i+1, len(t.parts)), parts...)
}

// hash returns the FNV-1a hash of a session's encoding.
func hash(s *Session) uint64 {
	h := fnv.New64a()
	h.Write(Append(make([]byte, 0, recordLen), s))
	return h.Sum64()
}

// Len returns the number of sessions.
func (t *Table) Len() int { return len(t.byID) }

// Get returns a session, or nil if there is none with this id. The caller must not
// change it.
func (t *Table) Get(id int64) *Session { return t.byID[id] }

// List returns the sessions that exist now. It is fast: it copies a slice header for each part, and a
// part has up to partLen sessions.
func (t *Table) List() List { return List{slices.Clone(t.parts), len(t.byID), t.digest} }

// All returns the sessions that exist now, in order of their ids.
func (t *Table) All() iter.Seq[*Session] { return t.List().All() }

// Open adds a session and returns it. If its id is 0 or in use, it gets the next free
// one.
func (t *Table) Open(s Session) *Session {
	for s.ID == 0 || t.byID[s.ID] != nil {
		s.ID++
	}
	t.put(&s)
	return &s
}

// Resume makes owner the session's connection, changes its timeout, and returns the new
// Session. If there is no such session or the password is wrong, Resume changes nothing
// and returns nil.
func (t *Table) Resume(id int64, password []byte, timeout int32, owner Conn) *Session {
	s := t.byID[id]
	if s == nil || subtle.ConstantTimeCompare(s.Password[:], password) != 1 {
		return nil
	}
	resumed := *s // a snapshot may contain s
	resumed.Timeout, resumed.Owner = timeout, owner
	t.put(&resumed)
	return &resumed
}

const recordLen = 8 + 4 + proto.PasswordLen + 8 + 8

// Append appends the encoding of s to b. It has a fixed length.
func Append(b []byte, s *Session) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(s.ID))
	b = binary.BigEndian.AppendUint32(b, uint32(s.Timeout))
	b = append(b, s.Password[:]...)
	b = binary.BigEndian.AppendUint64(b, s.Owner.Server)
	return binary.BigEndian.AppendUint64(b, s.Owner.Number)
}

// ErrRecord means that an encoded session cannot be decoded.
var ErrRecord = errors.New("session: bad record")

// Decode decodes a session that [Append] has encoded, and returns the rest of b.
func Decode(b []byte) (s Session, rest []byte, err error) {
	if len(b) < recordLen {
		return s, nil, ErrRecord
	}
	s.ID = int64(binary.BigEndian.Uint64(b))
	s.Timeout = int32(binary.BigEndian.Uint32(b[8:]))
	copy(s.Password[:], b[12:])
	s.Owner.Server = binary.BigEndian.Uint64(b[12+proto.PasswordLen:])
	s.Owner.Number = binary.BigEndian.Uint64(b[20+proto.PasswordLen:])
	if s.ID == 0 {
		return s, nil, ErrRecord
	}
	return s, b[recordLen:], nil
}
