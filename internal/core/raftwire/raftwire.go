// Package raftwire has the form in which Raft's messages, and the answers to them, go from member to member. It is pure.
package raftwire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/peer"
)

// The messages of a connection of peer.KindRaft. All numbers are unsigned and big-endian, and have 8 bytes unless another
// length is given.
//
//	appendEntries, term, index and term of the entry before, commit index, index of the first entry (which follows the
//	  one before, or is that with which a snapshot ends), number of entries (4 bytes), and of each entry: term, type (1 byte),
//	  length of the data and of the extensions (4 bytes each), data, extensions
//	commit, term, index and term of the entry that is committed
//	requestVote, term, index and term of the candidate's last entry, 1 if others may know a leader (1 byte)
//	requestPreVote, term, index and term of the candidate's last entry
//	timeoutNow
//	installSnapshot, term, index and term of the last entry that the snapshot covers, index of the list of members,
//	  length of the snapshot, length of the list (4 bytes), list; the snapshot follows
//
// All but commit are answered by a term, the last index of the log, and flags (1 byte).
const (
	appendEntries   = 'E'
	commit          = 'C'
	requestVote     = 'V'
	requestPreVote  = 'P'
	timeoutNow      = 'T'
	installSnapshot = 'S'

	flagSuccess        = 1 // or a vote is given
	flagNoRetryBackoff = 2
	flagFailed         = 4 // the message could not be handled

	maxEntries = 1 << 20 // in one message
)

// ErrFailed is the error of a message that the other member could not handle.
var ErrFailed = errors.New("cluster: the other member could not handle the message")

// AppendCommit appends to b that the log is committed up to the entry that q names as the one before.
func AppendCommit(b []byte, q *raft.AppendEntriesRequest) []byte {
	return appendUint64s(append(b, commit), q.Term, q.PrevLogEntry, q.PrevLogTerm)
}

func appendUint64s(b []byte, numbers ...uint64) []byte {
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return b
}

// Append appends to b a message of Raft's, without its header, and without the snapshot. It leaves out when an entry was
// appended, which Raft only measures.
func Append(b []byte, message any) []byte {
	switch q := message.(type) {
	case *raft.AppendEntriesRequest:
		first := q.PrevLogEntry + 1
		if len(q.Entries) > 0 {
			first = q.Entries[0].Index
		}
		b = appendUint64s(append(b, appendEntries), q.Term, q.PrevLogEntry, q.PrevLogTerm, q.LeaderCommitIndex, first)
		b = binary.BigEndian.AppendUint32(b, uint32(len(q.Entries)))
		for _, l := range q.Entries {
			b = appendEntry(b, l)
		}
	case *raft.RequestVoteRequest:
		b = appendUint64s(append(b, requestVote), q.Term, q.LastLogIndex, q.LastLogTerm)
		b, _ = binary.Append(b, binary.BigEndian, q.LeadershipTransfer)
	case *raft.RequestPreVoteRequest:
		b = appendUint64s(append(b, requestPreVote), q.Term, q.LastLogIndex, q.LastLogTerm)
	case *raft.TimeoutNowRequest:
		b = append(b, timeoutNow)
	case *raft.InstallSnapshotRequest:
		b = appendUint64s(append(b, installSnapshot), q.Term, q.LastLogIndex, q.LastLogTerm, q.ConfigurationIndex, uint64(q.Size))
		b = binary.BigEndian.AppendUint32(b, uint32(len(q.Configuration)))
		b = append(b, q.Configuration...)
	}
	return b
}

func appendEntry(b []byte, l *raft.Log) []byte {
	b = append(binary.BigEndian.AppendUint64(b, l.Term), byte(l.Type))
	b = binary.BigEndian.AppendUint32(b, uint32(len(l.Data)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(l.Extensions)))
	return append(append(b, l.Data...), l.Extensions...)
}

// lengths are those of the messages behind their kind, up to what has no fixed length.
var lengths = map[byte]int{
	appendEntries: 5*8 + 4, commit: 3 * 8, requestVote: 3*8 + 1, requestPreVote: 3 * 8, timeoutNow: 0, installSnapshot: 5*8 + 4,
}

// Read reads a message, to which it gives the header h, and reports whether it asks for an answer. It does not read the
// snapshot behind a message. The data of each entry has memory of its own, allocated as it arrives.
func Read(r *bufio.Reader, h raft.RPCHeader) (message any, asks bool, err error) {
	kind, err := r.ReadByte()
	if err != nil {
		return nil, false, err
	}
	n, ok := lengths[kind]
	if !ok {
		return nil, false, fmt.Errorf("cluster: message of the unknown kind %q", kind)
	}
	b, err := peek(r, n)
	if err != nil {
		return nil, false, err
	}
	number := func(i int) uint64 { return binary.BigEndian.Uint64(b[8*i:]) }
	switch kind {
	case commit:
		return &raft.AppendEntriesRequest{RPCHeader: h, Term: number(0), PrevLogEntry: number(1), PrevLogTerm: number(2), LeaderCommitIndex: number(1)}, false, nil
	case requestVote:
		return &raft.RequestVoteRequest{RPCHeader: h, Term: number(0), LastLogIndex: number(1), LastLogTerm: number(2), LeadershipTransfer: b[24] != 0}, true, nil
	case requestPreVote:
		return &raft.RequestPreVoteRequest{RPCHeader: h, Term: number(0), LastLogIndex: number(1), LastLogTerm: number(2)}, true, nil
	case timeoutNow:
		return &raft.TimeoutNowRequest{RPCHeader: h}, true, nil
	case installSnapshot:
		q := &raft.InstallSnapshotRequest{
			RPCHeader: h, Term: number(0), LastLogIndex: number(1), LastLogTerm: number(2), ConfigurationIndex: number(3), Size: int64(number(4)),
			SnapshotVersion: raft.SnapshotVersionMax,
		}
		n := binary.BigEndian.Uint32(b[40:])
		if n > peer.MaxMessage || q.Size < 0 {
			return nil, false, fmt.Errorf("cluster: snapshot of %d bytes, with a list of %d bytes", q.Size, n)
		}
		q.Configuration, err = peer.ReadBytes(r, int(n))
		return q, true, err
	}
	q := &raft.AppendEntriesRequest{RPCHeader: h, Term: number(0), PrevLogEntry: number(1), PrevLogTerm: number(2), LeaderCommitIndex: number(3)}
	q.Entries, err = readEntries(r, number(4), binary.BigEndian.Uint32(b[40:]))
	return q, true, err
}

func readEntries(r *bufio.Reader, first uint64, count uint32) (list []*raft.Log, err error) {
	if count > maxEntries {
		return nil, fmt.Errorf("cluster: message with %d entries", count)
	}
	for i := range uint64(count) {
		b, err := peek(r, 8+1+4+4)
		if err != nil {
			return nil, err
		}
		if raft.LogType(b[8]) > raft.LogConfiguration {
			return nil, fmt.Errorf("cluster: entry of type %d", b[8])
		}
		l := &raft.Log{Index: first + i, Term: binary.BigEndian.Uint64(b), Type: raft.LogType(b[8])}
		data, extensions := binary.BigEndian.Uint32(b[9:]), binary.BigEndian.Uint32(b[13:])
		if max(data, extensions) > peer.MaxMessage {
			return nil, fmt.Errorf("cluster: entry of %d and %d bytes", data, extensions)
		}
		if l.Data, err = peer.ReadBytes(r, int(data)); err == nil && extensions > 0 {
			l.Extensions, err = peer.ReadBytes(r, int(extensions))
		}
		if err != nil {
			return nil, err
		}
		list = append(list, l)
	}
	return list, nil
}

// peek reads n bytes, and returns them without a copy. They are valid until the next read.
func peek(r *bufio.Reader, n int) ([]byte, error) {
	b, err := r.Peek(n)
	if err == nil {
		r.Discard(n)
	} else if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// AppendAnswer appends to b Raft's answer to a message.
func AppendAnswer(b []byte, answer raft.RPCResponse) []byte {
	var term, last uint64
	var success, noBackoff bool
	flags := byte(0)
	switch r := answer.Response.(type) {
	case *raft.AppendEntriesResponse:
		term, last, success, noBackoff = r.Term, r.LastLog, r.Success, r.NoRetryBackoff
	case *raft.RequestVoteResponse:
		term, success = r.Term, r.Granted
	case *raft.RequestPreVoteResponse:
		term, success = r.Term, r.Granted
	case *raft.InstallSnapshotResponse:
		term, success = r.Term, r.Success
	}
	if success {
		flags |= flagSuccess
	}
	if noBackoff {
		flags |= flagNoRetryBackoff
	}
	if answer.Error != nil {
		flags |= flagFailed
	}
	return append(appendUint64s(b, term, last), flags)
}

// ReadAnswer reads the answer to a message into what Raft expects of it. It returns [ErrFailed] if the message could not be handled.
func ReadAnswer(in io.Reader, answer any) error {
	var b [2*8 + 1]byte
	if _, err := io.ReadFull(in, b[:]); err != nil {
		return err
	}
	term, success := binary.BigEndian.Uint64(b[:]), b[16]&flagSuccess != 0
	if b[16]&flagFailed != 0 {
		return ErrFailed
	}
	switch r := answer.(type) {
	case *raft.AppendEntriesResponse:
		r.Term, r.LastLog, r.Success, r.NoRetryBackoff = term, binary.BigEndian.Uint64(b[8:]), success, b[16]&flagNoRetryBackoff != 0
	case *raft.RequestVoteResponse:
		r.Term, r.Granted = term, success
	case *raft.RequestPreVoteResponse:
		r.Term, r.Granted = term, success
	case *raft.InstallSnapshotResponse:
		r.Term, r.Success = term, success
	}
	return nil
}
