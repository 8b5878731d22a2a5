package fsm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// A snapshot consists of snapshotMagic, a version byte and sections. A section consists of
// a byte with its kind, the length of its payload, the payload, and a CRC-32C of these. The
// sections are in order of their kinds, and there may be several of sessions and of znodes.
const (
	snapshotMagic   = "LKSNAP"
	snapshotVersion = 2
	sectionSize     = 64 << 10 // the writer ends a section that has reached this many bytes

	// maxSection is the maximum length of a section that a reader accepts. A writer
	// never exceeds it: a section has less than sectionSize bytes and one more record,
	// and that record's path, data and ACL each came from one request. In an ACL, a
	// byte that is not UTF-8 becomes three; and a list of up to maxACL bytes (see
	// package znode) may be longer than the one that was sent.
	maxSection = 128 << 20
)

// MaxRequest is the maximum length of a request that is made a command, in bytes.
const MaxRequest = 16 << 20

// This does not compile if maxSection is too small, since the constant is then negative.
const _ = uint(maxSection - (sectionSize + 5*MaxRequest + 2<<20))

const (
	sectionState    = 1 + iota // zxid, term, index, id of the cluster, and each origin's last batch
	sectionMembers             // members of the cluster, and servers that are expected
	sectionSessions            // session records
	sectionNodes               // znode records
	sectionEnd                 // number of sessions, number of znodes, digest
)

// ErrSnapshot means that a snapshot is damaged.
var ErrSnapshot = errors.New("fsm: damaged snapshot")

// Snapshot is the replicated state at one point in the log. It never changes.
type Snapshot struct {
	*summary
	term, index uint64
	cluster     uint64
	tree        *znode.Snapshot
}

// Snapshot takes a snapshot of the state. It is fast, since nothing can be applied meanwhile:
// encoding is left to [Snapshot.Write].
func (m *Machine) Snapshot() *Snapshot {
	return &Snapshot{m.summary(), m.term, m.index, m.cluster, m.tree.Snapshot()}
}

// Zxid returns the zxid of the last transaction before that moment.
func (s *Snapshot) Zxid() int64 { return s.zxid }

// Term returns the term of the last entry that had commands; 0 if there was none.
func (s *Snapshot) Term() uint64 { return s.term }

// Sessions returns the sessions of that moment.
func (s *Snapshot) Sessions() session.List { return s.sessions }

// Clustered reports whether there were members.
func (s *Snapshot) Clustered() bool { return len(s.members) > 0 }

// Len returns the number of znodes.
func (s *Snapshot) Len() int { return s.tree.Len() }

// Append appends the i-th znode to b (see [znode.Snapshot.Append]).
func (s *Snapshot) Append(b []byte, i int) []byte { return s.tree.Append(b, i) }

// ErrMemory means that znodes or sessions in memory are not what the log has made of them.
var ErrMemory = errors.New("the state in memory is damaged, and was not written: start the server again, which makes it anew from its files, and test the machine's memory")

// Intact returns ErrMemory if Write would.
func (s *Snapshot) Intact() error { return s.Write(io.Discard) }

// Write writes the snapshot. It adds up the digests of the znodes and of the sessions, and fails with ErrMemory if the results are not the
// digests that were kept up to date with each change. [ReadSnapshot] would refuse a snapshot with such znodes, at the next start or
// on another member.
func (s *Snapshot) Write(out io.Writer) error {
	w := &sectionWriter{w: bufio.NewWriterSize(out, 64<<10)}
	w.w.WriteString(snapshotMagic)
	w.w.WriteByte(snapshotVersion)

	b := binary.BigEndian.AppendUint64(nil, uint64(s.zxid))
	b = binary.BigEndian.AppendUint64(b, s.term)
	b = binary.BigEndian.AppendUint64(b, s.index)
	b = binary.BigEndian.AppendUint64(b, s.cluster)
	w.section(sectionState, appendBatches(b, s.batches))
	if len(s.members) > 0 {
		w.section(sectionMembers, s.members)
	}

	b = b[:0]
	for x := range s.sessions.All() {
		if b = session.Append(b, x); len(b) >= sectionSize {
			w.section(sectionSessions, b)
			b = b[:0]
		}
	}
	w.section(sectionSessions, b)

	b = b[:0]
	part, sum := s.tree.Parts(), uint64(0)
	for i := range s.tree.Len() {
		sum += part(i)
		if b = s.tree.Append(b, i); len(b) >= sectionSize {
			w.section(sectionNodes, b)
			b = b[:0]
		}
	}
	if sum != s.tree.Digest() || !s.sessions.Intact() {
		return ErrMemory
	}
	w.section(sectionNodes, b)

	b = binary.BigEndian.AppendUint64(b[:0], uint64(s.sessions.Len()))
	b = binary.BigEndian.AppendUint64(b, uint64(s.tree.Len()))
	w.section(sectionEnd, binary.BigEndian.AppendUint64(b, s.digest()))
	return w.w.Flush() // bufio keeps the first error
}

type sectionWriter struct{ w *bufio.Writer }

func (w *sectionWriter) section(kind byte, payload []byte) {
	head := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(payload)))
	sum := crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, payload)
	w.w.Write(head)
	w.w.Write(payload)
	w.w.Write(binary.BigEndian.AppendUint32(nil, sum))
}

// ReadSnapshot reads a snapshot, with nothing after it, and verifies it: checksums, totals
// and digest.
func ReadSnapshot(in io.Reader) (*Machine, error) {
	r := &sectionReader{r: bufio.NewReaderSize(in, 64<<10)}
	if err := r.magic(); err != nil {
		return nil, err
	}
	m := NewMachine()
	nodes := znode.NewRestorer()
	for last := byte(0); ; {
		kind, b, err := r.section()
		if err != nil {
			return nil, err
		}
		if kind < last || (kind == sectionState) != (last == 0) {
			return nil, r.damaged("section %d after %d", kind, last)
		}
		last = kind
		switch kind {
		case sectionState:
			if len(b) < 32 || len(b)%16 != 0 {
				return nil, r.damaged("state of %d bytes", len(b))
			}
			m.zxid = int64(binary.BigEndian.Uint64(b))
			m.term, m.index, m.cluster = binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint64(b[24:])
			for b = b[32:]; len(b) > 0; b = b[16:] {
				m.batches[binary.BigEndian.Uint64(b)] = binary.BigEndian.Uint64(b[8:])
			}
		case sectionMembers:
			if err = m.decodeMembers(b); err != nil {
				return nil, r.damaged("members: %v", err)
			}
		case sectionSessions:
			for len(b) > 0 {
				var s session.Session
				if s, b, err = session.Decode(b); err != nil {
					return nil, r.damaged("%v", err)
				}
				if m.sessions.Get(s.ID) != nil {
					return nil, r.damaged("session %#x occurs twice", s.ID)
				}
				m.sessions.Open(s)
			}
		case sectionNodes:
			for len(b) > 0 {
				var n znode.Record
				if n, b, err = znode.DecodeRecord(b); err != nil {
					return nil, r.damaged("%v", err)
				}
				if err = nodes.Add(&n); err != nil {
					return nil, r.damaged("%v", err)
				}
			}
		case sectionEnd:
			if len(b) != 24 {
				return nil, r.damaged("totals of %d bytes", len(b))
			}
			sessions, znodes, sum := binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])
			if uint64(m.sessions.Len()) != sessions || uint64(nodes.Len()) != znodes {
				return nil, r.damaged("%d sessions and %d znodes, should be %d and %d", m.sessions.Len(), nodes.Len(), sessions, znodes)
			}
			if m.tree, err = nodes.Tree(); err != nil {
				return nil, r.damaged("%v", err)
			}
			if m.Digest() != sum {
				return nil, r.damaged("digest %016x, should be %016x", m.Digest(), sum)
			}
			r.offset = r.next
			if _, err := r.r.ReadByte(); err == nil {
				return nil, r.damaged("something after the end")
			} else if err != io.EOF {
				return nil, err
			}
			return m, nil
		default:
			return nil, r.damaged("section of unknown kind %d", kind)
		}
	}
}

type sectionReader struct {
	r      *bufio.Reader
	offset int64 // where the section being read begins
	next   int64 // offset of the next byte
}

func (r *sectionReader) damaged(format string, args ...any) error {
	return fmt.Errorf("%w at offset %d: %s", ErrSnapshot, r.offset, fmt.Sprintf(format, args...))
}

// read reads n bytes. It allocates memory as it reads, so a wrong n does not cost memory.
func (r *sectionReader) read(n uint32) ([]byte, error) {
	b, err := jute.ReadPayload(r.r, n, maxSection, nil)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, r.damaged("cut short")
	} else if err != nil {
		return nil, err
	}
	r.next += int64(n)
	return b, nil
}

func (r *sectionReader) magic() error {
	b, err := r.read(uint32(len(snapshotMagic)) + 1)
	if err != nil {
		return err
	}
	switch version := b[len(snapshotMagic)]; {
	case string(b[:len(snapshotMagic)]) != snapshotMagic:
		return r.damaged("not a snapshot")
	case version > snapshotVersion:
		return fmt.Errorf("%w: snapshot of version %d, this program knows %d", ErrVersion, version, snapshotVersion)
	case version < snapshotVersion:
		return r.damaged("it has version %d, this program knows %d", version, snapshotVersion)
	}
	return nil
}

func (r *sectionReader) section() (kind byte, payload []byte, err error) {
	r.offset = r.next
	head, err := r.read(5)
	if err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxSection {
		return 0, nil, r.damaged("section of %d bytes", n)
	}
	if payload, err = r.read(n); err != nil {
		return 0, nil, err
	}
	sum, err := r.read(4)
	if err != nil {
		return 0, nil, err
	}
	if crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, payload) != binary.BigEndian.Uint32(sum) {
		return 0, nil, r.damaged("checksum")
	}
	return head[0], payload, nil
}
