package zkdata

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/adler32"
	"io"
)

// Log reads the transactions of a log.
type Log struct {
	in *source

	// Torn is how many bytes of a transaction that is not complete are at the end. A server that crashes
	// while it writes one leaves that, and has answered no client about it. An incomplete copy may end so, too.
	Torn int64

	// Cut is set at the end if there is no place for the next transaction, or the rest of this one. Before ZooKeeper
	// writes a transaction, it allocates zeros for more than 4 KB (FilePadding). So this is likely to be an incomplete copy.
	// But so end the logs of a server that does not allocate (preAllocSize=0), has written a batch or a
	// transaction that is longer than what was allocated, or has truncated its log for a new leader (FileTxnLog.truncate).
	Cut bool
}

// NewLog begins to read a log. An empty one is [io.EOF]: a server that crashed has not even
// written its header.
func NewLog(r io.Reader) (*Log, error) {
	l := &Log{in: newSource(r)}
	if _, err := l.in.r.Peek(1); err == io.EOF {
		return nil, io.EOF
	}
	if magic := l.in.int(); l.in.err == nil && magic != logMagic {
		l.in.offset = 0
		l.in.fail("not a transaction log of ZooKeeper")
	}
	if version := l.in.int(); l.in.err == nil && version != fileVersion {
		l.in.fail("a log of version %d, not %d", version, fileVersion)
	}
	l.in.long() // the id of the database
	return l, l.in.err
}

const (
	entryHead   = 8 + 4             // checksum and length of a transaction
	endOfEntry  = 'B'               // after it
	shortestTxn = 8 + 4 + 8 + 8 + 4 // its header
)

// Next returns the next transaction and the offset where it begins. The error is [io.EOF] after the last one, and
// then Torn and Cut are set. After a transaction that cannot be read there is no other one.
func (l *Log) Next() (t *Txn, offset int64, err error) {
	in := l.in
	at := in.offset
	head, err := in.r.Peek(entryHead)
	if err != nil && err != io.EOF {
		return nil, at, damaged(at, "%v", err)
	}
	if len(head) < entryHead {
		return nil, at, l.end(at, nil)
	}
	sum, n := binary.BigEndian.Uint64(head), binary.BigEndian.Uint32(head[8:])
	if n > maxBuffer || n < shortestTxn {
		return nil, at, l.end(at, nil)
	}
	whole := make([]byte, entryHead+int(n)+1)
	got, err := io.ReadFull(in.r, whole)
	if err != nil && err != io.ErrUnexpectedEOF {
		return nil, at, damaged(at, "%v", err)
	}
	if whole = whole[:got]; err != nil || whole[got-1] != endOfEntry {
		return nil, at, l.end(at, whole)
	}
	in.offset += int64(got)
	t, err = l.decode(at, sum, whole[entryHead:got-1])
	return t, at, err
}

func (l *Log) decode(at int64, sum uint64, body []byte) (*Txn, error) {
	if want := uint64(adler32.Checksum(body)); sum != want {
		return nil, damaged(at, "the checksum of a transaction is %#x, should be %#x", sum, want)
	}
	t, err := decodeTxn(body)
	if err != nil {
		return nil, damaged(at, "%v", err)
	}
	return &t, nil
}

// end decides what it means that no complete transaction begins at an offset. It is the end of the log
// if there is nothing, zeros, or the beginning of a transaction that was not written
// completely. It is damage if a complete transaction is there after all: one with another length, or
// a later one. b is what was read since that offset.
func (l *Log) end(at int64, b []byte) error {
	head, _ := l.in.r.Peek(entryHead)
	if len(b) == 0 && isZero(head) { // often 64 MB of zeros follow
		if n, err := io.Copy(zeros{}, l.in.r); err == errNotZero {
			return damaged(at, "zeros in place of a transaction, and something after them, within the %d bytes from offset %d on", l.in.r.Size(), at+n)
		} else if err != nil {
			return damaged(at, "%v", err)
		}
		l.Cut = len(head) < entryHead
		return io.EOF
	}
	rest, err := io.ReadAll(l.in.r)
	if err != nil {
		return damaged(at, "%v", err)
	}
	b = append(b, rest...)
	written := bytes.TrimRight(b, "\x00")
	if len(written) > entryHead && binary.BigEndian.Uint32(b[8:]) == 0 {
		return damaged(at, "a transaction of length 0, and something after it")
	}
	if n := trueLength(b); n >= 0 {
		return damaged(at, "a transaction of %d bytes has another length, or a wrong end", n)
	}
	for i := 1; i < len(written); i++ {
		if complete(b[i:]) {
			return damaged(at, "no complete transaction, but one follows at offset %d", at+int64(i))
		}
	}
	l.Torn = int64(len(written))
	place := entryHead
	if len(b) >= entryHead {
		if n := binary.BigEndian.Uint32(b[8:]); n >= shortestTxn && n <= maxBuffer {
			place += int(n) + 1
		}
	}
	l.Cut = len(b) < place
	return io.EOF
}

// LastZxid returns the zxid of the last transaction of a log with that size, without reading what is before it. It reports false if
// the log does not end with a complete transaction and zeros, or with one of several megabytes.
func LastZxid(r io.ReaderAt, size int64) (zxid int64, known bool, err error) {
	const most = 4 << 20
	b := make([]byte, min(size, most))
	end := size // of what is not zero
	for written := 0; end > 0 && written == 0; {
		n := min(end, int64(len(b)))
		if _, err := r.ReadAt(b[:n], end-n); err != nil {
			return 0, false, err
		}
		written = len(bytes.TrimRight(b[:n], "\x00"))
		end -= n - int64(written)
	}
	if end == 0 {
		return 0, false, nil
	}
	b = b[:min(end, most)]
	if _, err := r.ReadAt(b, end-int64(len(b))); err != nil {
		return 0, false, err
	}
	for i := len(b) - entryHead - shortestTxn - 1; i >= 0; i-- {
		if int64(binary.BigEndian.Uint32(b[i+8:])) == int64(len(b)-i-entryHead-1) && complete(b[i:]) {
			t, err := decodeTxn(b[i+entryHead : len(b)-1])
			return t.Zxid, err == nil, nil
		}
	}
	return 0, false, nil
}

// zeros is a Writer of zeros only.
type zeros struct{}

var errNotZero = errors.New("not zero")

func (zeros) Write(b []byte) (int, error) {
	if !isZero(b) {
		return 0, errNotZero
	}
	return len(b), nil
}

func isZero(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }

// complete reports whether b begins with a transaction.
func complete(b []byte) bool {
	if len(b) < entryHead || binary.BigEndian.Uint32(b) != 0 { // the checksum has 32 bits
		return false
	}
	n := binary.BigEndian.Uint32(b[8:])
	return n >= shortestTxn && int64(n) < int64(len(b)-entryHead) && b[entryHead+n] == endOfEntry &&
		uint64(adler32.Checksum(b[entryHead:entryHead+n])) == binary.BigEndian.Uint64(b)
}

// trueLength returns how long the transaction is with which b begins, whatever its length says, if its
// checksum is found to be right for one. It returns -1 if it is right for none.
func trueLength(b []byte) int {
	if len(b) < entryHead {
		return -1
	}
	want := binary.BigEndian.Uint64(b)
	const mod = 65521
	lo, hi := uint64(1), uint64(0) // of Adler-32
	for i, c := range b[entryHead:] {
		lo = (lo + uint64(c)) % mod
		hi = (hi + lo) % mod
		if i+1 >= shortestTxn && hi<<16|lo == want {
			// The end of the file is no proof, since a transaction may have been written up to there.
			if at := entryHead + i + 1; at < len(b) && b[at] != 0 {
				return i + 1
			}
		}
	}
	return -1
}
