// Package session knows which sessions exist and which are late.
//
// The [Table] is replicated: who exists, with which password, timeout and
// owner. The [Tracker] is the leader's own memory of who was heard when; losing
// it can only lengthen a session. Neither looks at a clock.
//
// This package promises no compatibility: any version of lockkeeper may change it.
package session

import (
	"cmp"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Password proves to any server that a client owns a session.
type Password [proto.PasswordLen]byte

// Conn names a connection: the server that accepted it and that server's own
// number for it. It owns the session that was last opened or resumed on it.
type Conn struct {
	Server uint64
	Number uint64
}

// Session is a client's session.
type Session struct {
	ID       int64
	Timeout  int32 // ms, as negotiated last
	Password Password
	Owner    Conn
}

// FormatID shows a session's id as ZooKeeper does.
func FormatID(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) }

// Table holds the sessions that exist. It needs a lock around it.
type Table struct{ byID map[int64]*Session }

// NewTable returns an empty table.
func NewTable() *Table { return &Table{map[int64]*Session{}} }

// Len is the number of sessions.
func (t *Table) Len() int { return len(t.byID) }

// Get returns a session, or nil. It must not be changed.
func (t *Table) Get(id int64) *Session { return t.byID[id] }

// All returns the sessions in order of their ids.
func (t *Table) All() []*Session { return Sorted(t.Snapshot()) }

// Snapshot returns the sessions as they are now, in no order: it is to be
// quick. They never change.
func (t *Table) Snapshot() []*Session {
	return slices.AppendSeq(make([]*Session, 0, len(t.byID)), maps.Values(t.byID))
}

// Sorted returns the sessions in order of their ids, in a slice of its own.
func Sorted(sessions []*Session) []*Session {
	sorted := slices.Clone(sessions)
	slices.SortFunc(sorted, func(a, b *Session) int { return cmp.Compare(a.ID, b.ID) })
	return sorted
}

// Open adds a session. If its id is 0 or taken, the next free one is used.
func (t *Table) Open(s Session) *Session {
	for s.ID == 0 || t.byID[s.ID] != nil {
		s.ID++
	}
	t.byID[s.ID] = &s
	return &s
}

// Resume gives the session to another connection, with a timeout of its own.
// It returns nil, and changes nothing, if there is no such session or the
// password is wrong.
func (t *Table) Resume(id int64, password []byte, timeout int32, owner Conn) *Session {
	s := t.byID[id]
	if s == nil || subtle.ConstantTimeCompare(s.Password[:], password) != 1 {
		return nil
	}
	resumed := *s // whoever holds the old value, a snapshot say, keeps it
	resumed.Timeout, resumed.Owner = timeout, owner
	t.byID[id] = &resumed
	return &resumed
}

// Close removes a session and reports whether it was there.
func (t *Table) Close(id int64) bool {
	_, ok := t.byID[id]
	delete(t.byID, id)
	return ok
}

const recordLen = 8 + 4 + proto.PasswordLen + 8 + 8

// Append appends the encoding of s to b.
func Append(b []byte, s *Session) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(s.ID))
	b = binary.BigEndian.AppendUint32(b, uint32(s.Timeout))
	b = append(b, s.Password[:]...)
	b = binary.BigEndian.AppendUint64(b, s.Owner.Server)
	return binary.BigEndian.AppendUint64(b, s.Owner.Number)
}

// ErrRecord marks an encoded session that cannot be read.
var ErrRecord = errors.New("session: bad record")

// Decode reads what [Append] wrote and returns what follows it.
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
