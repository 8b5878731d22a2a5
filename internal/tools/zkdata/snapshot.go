package zkdata

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/adler32"
	"io"
	"maps"
	"slices"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// ErrDamaged means that a file is not what ZooKeeper has written, or not all of it.
var ErrDamaged = errors.New("damaged")

func damaged(offset int64, format string, args ...any) error {
	return fmt.Errorf("%w at offset %d: %s", ErrDamaged, offset, fmt.Sprintf(format, args...))
}

const (
	snapshotMagic = 0x5a4b534e // "ZKSN"
	logMagic      = 0x5a4b4c47 // "ZKLG"
	fileVersion   = 2
	headerLen     = 4 + 4 + 8

	openACL = -1 // the number of the ACL that is open to all

	// maxBuffer is the length of the longest data, path or id, in bytes. ZooKeeper's own limit, which
	// can be configured, is 1 MB for a whole request.
	maxBuffer = 64 << 20
)

// source reads fields, and sums up what it reads. After the first error every method returns a zero
// value.
type source struct {
	r      *bufio.Reader
	sum    hash.Hash32 // Adler-32
	offset int64
	buf    []byte
	err    error
}

func newSource(r io.Reader) *source {
	return &source{r: bufio.NewReaderSize(r, 64<<10), sum: adler32.New(), buf: make([]byte, 0, 4<<10)}
}

func (s *source) fail(format string, args ...any) {
	if s.err == nil {
		s.err = damaged(s.offset, format, args...)
	}
}

// read reads n bytes into buf, which it returns.
func (s *source) read(n uint32, buf []byte) []byte {
	if s.err != nil {
		return nil
	}
	b, err := jute.ReadPayload(s.r, n, maxBuffer, buf)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		s.fail("cut short")
	case errors.Is(err, jute.ErrFrame):
		s.fail("a length of %d bytes", int32(n))
	case err != nil: // also of a compression
		s.fail("%v", err)
	}
	if s.err != nil {
		return nil
	}
	s.sum.Write(b)
	s.offset += int64(n)
	return b
}

func (s *source) int() int32 {
	if b := s.read(4, s.buf); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (s *source) long() int64 {
	if b := s.read(8, s.buf); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// buffer returns nil only for null.
func (s *source) buffer() []byte {
	n := s.int()
	if n == -1 || s.err != nil {
		return nil
	}
	return s.read(uint32(n), []byte{})
}

func (s *source) text() string {
	n := s.int()
	if n == -1 {
		s.fail("null in place of a text")
	}
	return jute.Text(s.read(uint32(n), s.buf))
}

// seal reads a checksum of all that was read, and what ends it.
func (s *source) seal() {
	at, sum := s.offset, s.sum.Sum32()
	if got := s.long(); s.err == nil && got != int64(sum) {
		s.offset = at
		s.fail("the checksum is %#x, should be %#x", got, sum)
	}
	at = s.offset
	if end := s.text(); s.err == nil && end != "/" {
		s.offset = at
		s.fail("%q in place of the end", end)
	}
}

// ReadSnapshot reads a snapshot of the transaction with this zxid, which is part of the file's name, and
// verifies its checksums. The reader must give it uncompressed (see [Uncompressed]), and nothing after
// it.
//
// The result is complete only when the transactions after zxid have been applied: it may have a part
// of what they do, and may lack ACLs.
func ReadSnapshot(r io.Reader, zxid int64) (*State, error) {
	in := newSource(r)
	if magic := in.int(); in.err == nil && magic != snapshotMagic {
		in.offset = 0
		in.fail("not a snapshot of ZooKeeper")
	}
	if version := in.int(); in.err == nil && version != fileVersion {
		in.fail("a snapshot of version %d, not %d", version, fileVersion)
	}
	in.long() // the id of the database, which is -1
	s := emptyState()
	s.Zxid = zxid
	for n := in.int(); n > 0 && in.err == nil; n-- {
		id, timeout := in.long(), in.int()
		if _, twice := s.Sessions[id]; twice {
			in.fail("session %#x occurs twice", uint64(id))
		}
		s.Sessions[id] = timeout
	}
	acls := in.acls()
	for in.err == nil {
		at := in.offset
		path := in.text()
		if path == "/" {
			break
		}
		in.node(s, acls, path, at)
	}
	in.seal()
	in.trailer(s)
	return s, in.err
}

// acls reads the table of ACLs (ReferenceCountedACLCache).
func (s *source) acls() map[int64][]proto.ACL {
	acls := map[int64][]proto.ACL{openACL: proto.OpenACL}
	for n := s.int(); n > 0 && s.err == nil; n-- {
		number := s.long()
		acl := []proto.ACL{}
		for entries := s.int(); entries > 0 && s.err == nil; entries-- {
			acl = append(acl, proto.ACL{Perms: s.int(), ID: proto.ID{Scheme: s.text(), ID: s.text()}})
		}
		if slices.Equal(acl, proto.OpenACL) {
			acl = proto.OpenACL // which nearly all znodes share
		}
		acls[number] = acl
	}
	return acls
}

func (s *source) node(state *State, acls map[int64][]proto.ACL, path string, at int64) {
	if path == "" {
		path = "/"
	}
	n := &Node{Data: s.buffer()}
	acl := s.long()
	n.Czxid, n.Mzxid, n.Ctime, n.Mtime = s.long(), s.long(), s.long(), s.long()
	n.Version, n.Cversion, n.Aversion = s.int(), s.int(), s.int()
	n.Owner, n.Pzxid = s.long(), s.long()
	if n.ACL = acls[acl]; n.ACL == nil {
		n.noACL = acl
	}
	if s.err != nil {
		return
	}
	bad := ""
	switch {
	case path[0] != '/':
		bad = "is not the path of a znode"
	case state.nodes[path] != nil:
		bad = "occurs twice"
	case path != "/" && state.nodes[parent(path)] == nil:
		bad = "comes before its parent"
	}
	if bad != "" {
		s.offset = at
		s.fail("%q %s", path, bad)
		return
	}
	state.put(path, n)
}

// trailer reads what comes after the first checksum: a digest since 3.6, and the zxid of the last
// transaction since 3.9, each with a checksum, and each only if the server was told so.
func (s *source) trailer(state *State) {
	const maxTrailer, zxidLen = 1 << 10, 8 + 8 + 4 + 1
	state.noDigest = true
	rest, err := s.r.Peek(maxTrailer)
	if s.err != nil {
		return
	}
	if err == nil {
		s.fail("something after the end")
		return
	} else if err != io.EOF {
		s.fail("%v", err)
		return
	}
	if len(rest) > zxidLen {
		zxid, version := s.long(), s.int()
		var digest int64
		if version < digestVersion { // the first builds of 3.6
			s.text()
		} else {
			digest = s.long()
		}
		if version == digestVersion {
			state.noDigest = false
			if zxid >= state.Zxid { // otherwise a new leader has written it before its first transaction
				state.exactAt, state.exactDigest = zxid, uint64(digest)
			}
		}
		s.seal()
		rest, _ = s.r.Peek(maxTrailer)
	}
	if len(rest) > 0 {
		s.long()
		s.seal()
	}
	if _, err := s.r.Peek(1); err == nil {
		s.fail("something after the end")
	}
	if s.err == nil && state.exactAt == state.Zxid && state.exactAt != 0 {
		state.compareExact()
	}
}

// Content returns what the state is written from.
func (s *State) Content() *Content {
	c := &Content{Zxid: s.Zxid, Sessions: s.Sessions}
	paths := s.Paths()
	for _, path := range paths {
		c.ACLs.Add(s.nodes[path].ACL)
	}
	c.Nodes = func(write func(path string, n *Node) error) error {
		for _, path := range paths {
			if err := write(path, s.nodes[path]); err != nil {
				return err
			}
		}
		return nil
	}
	return c
}

// Content is what a snapshot is written from.
type Content struct {
	Zxid     int64
	Sessions map[int64]int32 // timeouts in ms
	ACLs     ACLs            // of all znodes
	// Nodes gives all znodes to write, parents before their children, until that returns an error, which Nodes returns. write
	// keeps nothing of a znode.
	Nodes func(write func(path string, n *Node) error) error
}

// ACLs numbers the ACLs of a snapshot, each of which it has once.
type ACLs struct {
	numbers map[string]int64
	lists   [][]proto.ACL
	buf     []byte
}

// Add returns the number of an ACL, which it keeps.
func (a *ACLs) Add(acl []proto.ACL) int64 {
	if slices.Equal(acl, proto.OpenACL) {
		return openACL
	}
	a.buf = proto.AppendACL(a.buf[:0], acl)
	n := a.numbers[string(a.buf)]
	if n == 0 {
		if a.numbers == nil {
			a.numbers = map[string]int64{}
		}
		a.lists = append(a.lists, acl)
		n = int64(len(a.lists))
		a.numbers[string(a.buf)] = n
	}
	return n
}

// Write writes a snapshot. It has no digest, which is optional: 3.9 takes it for another
// field, and refuses the snapshot, if it was told not to use digests.
func (c *Content) Write(w io.Writer) error { return c.write(w, false) }

// WriteSent writes a snapshot as the command snapshot of 3.9's AdminServer sends it: with a
// digest, and with the zxid that the name of a file would say. The command restore needs the zxid.
func (c *Content) WriteSent(w io.Writer) error { return c.write(w, true) }

func (c *Content) write(w io.Writer, sent bool) error {
	out := bufio.NewWriterSize(w, 1<<20)
	sum := adler32.New()
	var b []byte
	flush := func() error {
		sum.Write(b)
		_, err := out.Write(b) // bufio keeps the first error
		b = b[:0]
		return err
	}
	b = jute.AppendLong(jute.AppendInt(jute.AppendInt(b, snapshotMagic), fileVersion), -1)
	b = jute.AppendInt(b, int32(len(c.Sessions)))
	for _, id := range slices.Sorted(maps.Keys(c.Sessions)) {
		b = jute.AppendInt(jute.AppendLong(b, id), c.Sessions[id])
	}
	flush()
	b = jute.AppendInt(b, int32(len(c.ACLs.lists)))
	for i, acl := range c.ACLs.lists {
		b = proto.AppendACL(jute.AppendLong(b, int64(i+1)), acl)
		flush()
	}
	digest, digests := uint64(0), digester{}
	err := c.Nodes(func(path string, n *Node) error {
		if sent {
			digest += digests.of(path, n)
		}
		if path == "/" {
			path = ""
		}
		b = jute.AppendBuffer(jute.AppendString(b, path), n.Data)
		for _, v := range [...]int64{c.ACLs.Add(n.ACL), n.Czxid, n.Mzxid, n.Ctime, n.Mtime} {
			b = jute.AppendLong(b, v)
		}
		for _, v := range [...]int32{n.Version, n.Cversion, n.Aversion} {
			b = jute.AppendInt(b, v)
		}
		b = jute.AppendLong(jute.AppendLong(b, n.Owner), n.Pzxid)
		if len(b) > 64<<10 {
			return flush()
		}
		return nil
	})
	if err != nil {
		return err
	}
	b = jute.AppendString(b, "/")
	flush()
	seal := func() {
		b = jute.AppendString(jute.AppendLong(b, int64(sum.Sum32())), "/")
		flush()
	}
	seal()
	if sent {
		b = jute.AppendLong(jute.AppendInt(jute.AppendLong(b, c.Zxid), digestVersion), int64(digest))
		flush()
		seal()
		b = jute.AppendLong(b, c.Zxid)
		flush()
		seal()
	}
	return out.Flush()
}
