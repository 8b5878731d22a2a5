package zkdata

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/snappy"

	"github.com/lockkeeper/lockkeeper/jute"
)

// Uncompressed returns a reader of what is in the snapshot with this file name, whose extension says
// how it is compressed (SnapStream): .gz, .snappy, or not at all.
func Uncompressed(name string, r io.Reader) (io.Reader, error) {
	switch strings.ToLower(name[strings.LastIndexByte(name, '.')+1:]) {
	case "gz":
		z, err := gzip.NewReader(bufio.NewReader(r))
		if err != nil {
			return nil, damaged(0, "%v", err)
		}
		return z, nil
	case "snappy":
		return newXerial(r)
	}
	return r, nil
}

// xerial reads the format of Java's SnappyOutputStream: a header, and blocks that each have their
// length before them.
type xerial struct {
	r       *bufio.Reader
	block   []byte // not read yet
	encoded []byte
	decoded []byte
}

var xerialMagic = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

// maxBlock is the length of the longest block, in bytes. Java's default is 32 KB.
const maxBlock = 64 << 20

func newXerial(r io.Reader) (*xerial, error) {
	x := &xerial{r: bufio.NewReader(r)}
	head := make([]byte, len(xerialMagic)+4+4) // a version, and the oldest that can read it
	if _, err := io.ReadFull(x.r, head); err != nil || !bytes.HasPrefix(head, xerialMagic) {
		return nil, damaged(0, "not in Java's format of Snappy")
	}
	return x, nil
}

func (x *xerial) Read(b []byte) (int, error) {
	for len(x.block) == 0 {
		if err := x.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, x.block)
	x.block = x.block[n:]
	return n, nil
}

func (x *xerial) next() error {
	var head [4]byte
	if _, err := io.ReadFull(x.r, head[:]); err != nil {
		return err // io.EOF at the end
	}
	var err error
	if x.encoded, err = jute.ReadPayload(x.r, binary.BigEndian.Uint32(head[:]), maxBlock, x.encoded); err != nil {
		return err
	}
	if n, err := snappy.DecodedLen(x.encoded); err != nil || n > maxBlock {
		return errors.Join(err, fmt.Errorf("a block of %d bytes", n))
	}
	x.decoded, err = snappy.Decode(x.decoded[:cap(x.decoded)], x.encoded)
	x.block = x.decoded
	return err
}
