package zkdata

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"io"
	"strings"

	"github.com/klauspost/compress/snappy/xerial"
)

// Uncompressed returns a reader of what is in the snapshot with this file name, whose extension says
// how it is compressed (SnapStream): .gz, .snappy, which is the format of Java's SnappyOutputStream, or not at all.
func Uncompressed(name string, r io.Reader) (io.Reader, error) {
	switch strings.ToLower(name[strings.LastIndexByte(name, '.')+1:]) {
	case "gz":
		z, err := gzip.NewReader(bufio.NewReader(r))
		if err != nil {
			return nil, damaged(0, "%v", err)
		}
		return z, nil
	case "snappy":
		b, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		if b, err = xerial.Decode(b); err != nil {
			return nil, damaged(0, "%v", err)
		}
		return bytes.NewReader(b), nil
	}
	return r, nil
}
