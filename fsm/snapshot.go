package fsm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// A snapshot is the magic, its version, and sections. A section is a kind byte,
// the length of its payload, the payload, and a CRC-32C of all that. Sections
// come in the order of their kinds; sessions and znodes fill as many as they
// need. The last one holds the totals.
const (
	snapshotMagic   = "LKSNAP"
	snapshotVersion = 1
	sectionSize     = 256 << 10 // bytes after which a section is closed

	// maxSection is how many bytes a reader takes for a section. The writer stays
	// below it: a section has sectionSize bytes and one more record, whose
	// path, data and ACL each fitted into a request. In an ACL, bytes that are not
	// UTF-8 take three times as much as they did there; below maxACL of package
	// znode a list may be longer than what was sent.
	maxSection = 128 << 20
)

// MaxRequest is the longest request that may become a command, in bytes.
const MaxRequest = 16 << 20

// A constant that is negative does not compile.
const _ = uint(maxSection - (sectionSize + 5*MaxRequest + 2<<20))

const (
	sectionState    = 1 + iota // zxid, term, index, and of each origin the last entry's number
	sectionMembers             // of the cluster
	sectionSessions            // session records
	sectionNodes               // znode records
	sectionEnd                 // numbers of sessions and znodes, digest
)

// ErrSnapshot marks a snapshot that is damaged.
var ErrSnapshot = errors.New("fsm: damaged snapshot")

// Snapshot is the state at one moment. It never changes.
type Snapshot struct {
	zxid        int64
	term, index uint64
	batches     map[uint64]uint64
	members     []byte
	sessions    []*session.Session // in no order
	tree        *znode.Snapshot
}

// Snapshot takes a snapshot of the state. It is quick, since nothing is
// applied meanwhile: what takes longer is left to Write.
func (m *Machine) Snapshot() *Snapshot {
	return &Snapshot{m.zxid, m.term, m.index, maps.Clone(m.batches), appendMembers(nil, m.members, m.membersZxid), m.sessions.Snapshot(), m.tree.Snapshot()}
}

// Write writes the snapshot.
func (s *Snapshot) Write(out io.Writer) error {
	w := &sectionWriter{w: bufio.NewWriterSize(out, 64<<10)}
	w.w.WriteString(snapshotMagic)
	w.w.WriteByte(snapshotVersion)

	b := binary.BigEndian.AppendUint64(nil, uint64(s.zxid))
	b = binary.BigEndian.AppendUint64(b, s.term)
	b = binary.BigEndian.AppendUint64(b, s.index)
	w.section(sectionState, appendBatches(b, s.batches))
	if len(s.members) > 0 {
		w.section(sectionMembers, s.members)
	}

	b = b[:0]
	sessions := session.Sorted(s.sessions)
	for _, x := range sessions {
		if b = session.Append(b, x); len(b) >= sectionSize {
			w.section(sectionSessions, b)
			b = b[:0]
		}
	}
	w.section(sectionSessions, b)

	b = b[:0]
	for i := range s.tree.Len() {
		if b = s.tree.Append(b, i); len(b) >= sectionSize {
			w.section(sectionNodes, b)
			b = b[:0]
		}
	}
	w.section(sectionNodes, b)

	b = binary.BigEndian.AppendUint64(b[:0], uint64(len(sessions)))
	b = binary.BigEndian.AppendUint64(b, uint64(s.tree.Len()))
	w.section(sectionEnd, binary.BigEndian.AppendUint64(b, digest(sessions, s.zxid, s.batches, s.members, s.tree.Digest())))
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

// ReadSnapshot reads a snapshot and verifies it: checksums, totals and digest.
func ReadSnapshot(in io.Reader) (*Machine, error) {
	r := &sectionReader{r: bufio.NewReaderSize(in, 64<<10)}
	if err := r.magic(); err != nil {
		return nil, err
	}
	m := NewMachine()
	var nodes []znode.Record
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
			if len(b) < 24 || len(b)%16 != 8 {
				return nil, r.damaged("state of %d bytes", len(b))
			}
			m.zxid = int64(binary.BigEndian.Uint64(b))
			m.term, m.index = binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])
			for b = b[24:]; len(b) > 0; b = b[16:] {
				m.batches[binary.BigEndian.Uint64(b)] = binary.BigEndian.Uint64(b[8:])
			}
		case sectionMembers:
			if m.members, m.membersZxid, err = decodeMembers(b); err != nil {
				return nil, r.damaged("members: %v", err)
			}
		case sectionSessions:
			for len(b) > 0 {
				var s session.Session
				if s, b, err = session.Decode(b); err != nil {
					return nil, r.damaged("%v", err)
				}
				if m.sessions.Get(s.ID) != nil {
					return nil, r.damaged("session %#x is there twice", s.ID)
				}
				m.sessions.Open(s)
			}
		case sectionNodes:
			for len(b) > 0 {
				var n znode.Record
				if n, b, err = znode.DecodeRecord(b); err != nil {
					return nil, r.damaged("%v", err)
				}
				nodes = append(nodes, n)
			}
		case sectionEnd:
			if len(b) != 24 {
				return nil, r.damaged("totals of %d bytes", len(b))
			}
			sessions, znodes, sum := binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])
			if uint64(m.sessions.Len()) != sessions || uint64(len(nodes)) != znodes {
				return nil, r.damaged("%d sessions and %d znodes, should be %d and %d", m.sessions.Len(), len(nodes), sessions, znodes)
			}
			if m.tree, err = znode.Restore(nodes); err != nil {
				return nil, r.damaged("%v", err)
			}
			if m.Digest() != sum {
				return nil, r.damaged("digest %016x, should be %016x", m.Digest(), sum)
			}
			return m, nil
		default:
			return nil, r.damaged("section of unknown kind %d", kind)
		}
	}
}

type sectionReader struct {
	r      *bufio.Reader
	offset int64 // of the section at hand
	next   int64
}

func (r *sectionReader) damaged(format string, args ...any) error {
	return fmt.Errorf("%w at offset %d: %s", ErrSnapshot, r.offset, fmt.Sprintf(format, args...))
}

// read reads n bytes. Memory grows with the bytes that are there, not with n.
func (r *sectionReader) read(n uint32) ([]byte, error) {
	b, err := jute.ReadPayload(r.r, n, maxSection, nil)
	if err != nil {
		return nil, r.damaged("cut short")
	}
	r.next += int64(n)
	return b, nil
}

func (r *sectionReader) magic() error {
	b, err := r.read(uint32(len(snapshotMagic)) + 1)
	if err != nil {
		return err
	}
	if string(b[:len(snapshotMagic)]) != snapshotMagic {
		return r.damaged("not a snapshot")
	}
	if v := b[len(snapshotMagic)]; v != snapshotVersion {
		return fmt.Errorf("%w: snapshot of version %d, this program knows %d", ErrVersion, v, snapshotVersion)
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
