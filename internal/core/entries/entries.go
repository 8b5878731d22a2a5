// Package entries has the form in which a leader sends log entries, and how far they are committed, over a stream. It is pure.
package entries

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/peer"
)

// The messages of a stream, after the leader's address with its length in two bytes. All
// numbers are unsigned and big-endian.
//
//	streamEntries, term, index and term of the entry before, commit index, number of entries (4 bytes),
//	  and of each entry: term, type (1 byte), when it was appended (Unix time in ns, 0 is unknown),
//	  length of the data and of the extensions (4 bytes each), data, extensions
//	streamCommit, term, index and term of the entry that is committed
//
// The answer to streamEntries is a term, the last index of the log, and flags (1 byte).
const (
	streamEntries = 'E'
	streamCommit  = 'C'

	flagSuccess        = 1
	flagNoRetryBackoff = 2

	maxStreamEntries = 1 << 20 // in one message
)

func appendUint64s(b []byte, numbers ...uint64) []byte {
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return b
}

// AppendCommit appends to b that the log is committed up to the entry that q names as the one before.
func AppendCommit(b []byte, q *raft.AppendEntriesRequest) []byte {
	return appendUint64s(append(b, streamCommit), q.Term, q.PrevLogEntry, q.PrevLogTerm)
}

// Append appends to b a message with entries.
func Append(b []byte, q *raft.AppendEntriesRequest) []byte {
	b = appendUint64s(append(b, streamEntries), q.Term, q.PrevLogEntry, q.PrevLogTerm, q.LeaderCommitIndex)
	b = binary.BigEndian.AppendUint32(b, uint32(len(q.Entries)))
	for _, l := range q.Entries {
		at := uint64(0)
		if !l.AppendedAt.IsZero() {
			at = uint64(l.AppendedAt.UnixNano())
		}
		b = binary.BigEndian.AppendUint64(b, l.Term)
		b = binary.BigEndian.AppendUint64(append(b, byte(l.Type)), at)
		b = binary.BigEndian.AppendUint32(b, uint32(len(l.Data)))
		b = binary.BigEndian.AppendUint32(b, uint32(len(l.Extensions)))
		b = append(append(b, l.Data...), l.Extensions...)
	}
	return b
}

// Read reads a message, and reports whether it asks for an answer. The data of each entry
// has memory of its own, allocated as it arrives.
func Read(r *bufio.Reader) (q *raft.AppendEntriesRequest, asks bool, err error) {
	kind, err := r.ReadByte()
	if err != nil {
		return nil, false, err
	}
	n := 3 * 8
	switch kind {
	case streamEntries:
		n += 8 + 4
	case streamCommit:
	default:
		return nil, false, fmt.Errorf("cluster: message of kind %q among entries", kind)
	}
	b, err := Peek(r, n)
	if err != nil {
		return nil, false, err
	}
	q = &raft.AppendEntriesRequest{Term: binary.BigEndian.Uint64(b), PrevLogEntry: binary.BigEndian.Uint64(b[8:]), PrevLogTerm: binary.BigEndian.Uint64(b[16:])}
	if kind == streamCommit {
		q.LeaderCommitIndex = q.PrevLogEntry
		return q, false, nil
	}
	q.LeaderCommitIndex = binary.BigEndian.Uint64(b[24:])
	count := binary.BigEndian.Uint32(b[32:])
	if count > maxStreamEntries {
		return nil, false, fmt.Errorf("cluster: message with %d entries", count)
	}
	for i := range uint64(count) {
		b, err := Peek(r, 8+1+8+4+4)
		if err != nil {
			return nil, false, err
		}
		if raft.LogType(b[8]) > raft.LogConfiguration {
			return nil, false, fmt.Errorf("cluster: entry of type %d", b[8])
		}
		l := &raft.Log{Index: q.PrevLogEntry + i + 1, Term: binary.BigEndian.Uint64(b), Type: raft.LogType(b[8])}
		if at := binary.BigEndian.Uint64(b[9:]); at != 0 {
			l.AppendedAt = time.Unix(0, int64(at))
		}
		data, extensions := binary.BigEndian.Uint32(b[17:]), binary.BigEndian.Uint32(b[21:])
		if max(data, extensions) > peer.MaxMessage {
			return nil, false, fmt.Errorf("cluster: entry of %d and %d bytes", data, extensions)
		}
		if l.Data, err = peer.ReadBytes(r, int(data)); err == nil && extensions > 0 {
			l.Extensions, err = peer.ReadBytes(r, int(extensions))
		}
		if err != nil {
			return nil, false, err
		}
		q.Entries = append(q.Entries, l)
	}
	return q, true, nil
}

// Peek reads n bytes, and returns them without a copy. They are valid until the next read.
func Peek(r *bufio.Reader, n int) ([]byte, error) {
	b, err := r.Peek(n)
	if err == nil {
		r.Discard(n)
	} else if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// AppendAnswer appends to b the answer to a message with entries.
func AppendAnswer(b []byte, r *raft.AppendEntriesResponse) []byte {
	flags := byte(0)
	if r.Success {
		flags |= flagSuccess
	}
	if r.NoRetryBackoff {
		flags |= flagNoRetryBackoff
	}
	return append(appendUint64s(b, r.Term, r.LastLog), flags)
}

// ReadAnswer reads such an answer.
func ReadAnswer(in io.Reader, r *raft.AppendEntriesResponse) error {
	var b [2*8 + 1]byte
	if _, err := io.ReadFull(in, b[:]); err != nil {
		return err
	}
	r.Term, r.LastLog = binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])
	r.Success, r.NoRetryBackoff = b[16]&flagSuccess != 0, b[16]&flagNoRetryBackoff != 0
	return nil
}
