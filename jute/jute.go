// Package jute encodes and decodes ZooKeeper's serialization format. Decoding is
// safe for untrusted input: it returns a value or an error, never panics, and
// allocates memory only in proportion to the length of the input.
//
// To encode, use the Append functions, which work like those of encoding/binary. To
// decode, use a [Decoder]: it remembers its first error, so that a record's fields
// can be read one after the other and the error checked once. All integers are
// big-endian two's complement.
//
// This package promises no compatibility: any version of lockkeeper may change it.
package jute

import (
	"bytes"
	"encoding/binary"
	"errors"
	"unicode/utf8"
)

// Errors of a [Decoder]. If one occurs in the body of a request, the server answers
// MarshallingError (-5); if in the header, it closes the connection.
var (
	ErrShort  = errors.New("jute: record cut short")
	ErrLength = errors.New("jute: impossible length")
	ErrNull   = errors.New("jute: null where a value is required")
)

// AppendBool appends a bool as one byte, 0 or 1.
func AppendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// AppendInt appends a 4-byte int.
func AppendInt(b []byte, v int32) []byte { return binary.BigEndian.AppendUint32(b, uint32(v)) }

// AppendLong appends an 8-byte long.
func AppendLong(b []byte, v int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(v)) }

// Null represents a null ustring where null and the empty string must be told apart.
// It is not valid UTF-8, so no decoded string is equal to it.
const Null = "\xff"

// AppendString appends a ustring: its length in bytes and its UTF-8 bytes. [Null] is
// encoded as null.
func AppendString(b []byte, s string) []byte {
	if s == Null {
		return AppendInt(b, -1)
	}
	return append(AppendInt(b, int32(len(s))), s...)
}

// AppendBuffer appends a buffer. A nil slice is encoded as null (length -1), which
// is different from an empty buffer.
func AppendBuffer(b, v []byte) []byte {
	if v == nil {
		return AppendInt(b, -1)
	}
	return append(AppendInt(b, int32(len(v))), v...)
}

// AppendStrings appends a vector of ustrings. A nil slice is encoded as an empty
// vector.
func AppendStrings(b []byte, v []string) []byte {
	b = AppendInt(b, int32(len(v)))
	for _, s := range v {
		b = AppendString(b, s)
	}
	return b
}

// Decoder reads fields from a byte slice. After the first error every method returns
// a zero value, so callers may check [Decoder.Err] once, at the end.
type Decoder struct {
	buf []byte
	err error
}

// NewDecoder returns a Decoder that reads from b. The buffers that it returns alias b.
func NewDecoder(b []byte) Decoder { return Decoder{buf: b} }

// Err returns the first error, or nil.
func (d *Decoder) Err() error { return d.err }

// Rest returns the bytes that have not been read yet, none after an error. ZooKeeper
// ignores extra bytes at the end of a request.
func (d *Decoder) Rest() []byte { return d.buf }

// Fail sets the decoder's error to err if it has none yet.
func (d *Decoder) Fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.buf = nil
}

func (d *Decoder) take(n int) []byte {
	if d.err != nil {
		return nil
	}
	if n > len(d.buf) {
		d.Fail(ErrShort)
		return nil
	}
	v := d.buf[:n:n]
	d.buf = d.buf[n:]
	return v
}

// Byte reads one byte.
func (d *Decoder) Byte() byte {
	if v := d.take(1); v != nil {
		return v[0]
	}
	return 0
}

// Bool reads one byte. As in ZooKeeper, any value except 0 is true.
func (d *Decoder) Bool() bool { return d.Byte() != 0 }

// Int reads a 4-byte int.
func (d *Decoder) Int() int32 {
	if v := d.take(4); v != nil {
		return int32(binary.BigEndian.Uint32(v))
	}
	return 0
}

// Long reads an 8-byte long.
func (d *Decoder) Long() int64 {
	if v := d.take(8); v != nil {
		return int64(binary.BigEndian.Uint64(v))
	}
	return 0
}

// Buffer reads a buffer. It returns nil only for a null buffer or on error, not for
// an empty one. The result aliases the input.
func (d *Decoder) Buffer() []byte {
	n := d.Int()
	switch {
	case d.err != nil || n == -1:
		return nil
	case n < 0:
		d.Fail(ErrLength)
		return nil
	case n == 0:
		return []byte{}
	}
	return d.take(int(n))
}

// Text converts UTF-8 to a string as Java does: each invalid sequence becomes one
// U+FFFD. An invalid sequence is the longest prefix of a valid character, an encoded
// surrogate, or else a single byte.
func Text(v []byte) string {
	if utf8.Valid(v) {
		return string(v)
	}
	out := make([]rune, 0, len(v))
	for len(v) > 0 {
		r, n := utf8.DecodeRune(v)
		if r == utf8.RuneError && n == 1 {
			n = invalidLen(v)
		}
		out = append(out, r)
		v = v[n:]
	}
	return string(out)
}

// StringOrNull reads a ustring, converted by [Text]. It returns [Null] for null.
func (d *Decoder) StringOrNull() string {
	v := d.Buffer()
	if v == nil && d.err == nil {
		return Null
	}
	return Text(v)
}

// invalidLen returns how many bytes at the start of v, which are not valid UTF-8,
// Java replaces by one U+FFFD.
func invalidLen(v []byte) int {
	continues := func(i int) bool { return i < len(v) && v[i]&0xc0 == 0x80 }
	switch lead := v[0]; {
	case lead < 0xe0 || lead > 0xf4 || !continues(1),
		lead == 0xe0 && v[1] < 0xa0, lead == 0xf0 && v[1] < 0x90, lead == 0xf4 && v[1] >= 0x90:
		return 1
	case !continues(2):
		return 2
	}
	return 3
}

// String is StringOrNull for which null is an error.
func (d *Decoder) String() string {
	s := d.StringOrNull()
	if s == Null {
		d.Fail(ErrNull)
		return ""
	}
	return s
}

// Count reads the number of elements of a vector. size is the minimum length of an
// encoded element, in bytes: a count that the remaining input cannot hold is an error,
// so callers may allocate that many elements. As in ZooKeeper, a negative count means an
// empty vector.
func (d *Decoder) Count(size int) int {
	n := int(d.Int())
	if n <= 0 || d.err != nil {
		return 0
	}
	if n > len(d.buf)/size {
		d.Fail(ErrLength)
		return 0
	}
	return n
}

// NullVector reports whether the next field is a null vector, and skips it if so.
func (d *Decoder) NullVector() bool {
	if len(d.buf) < 4 || int32(binary.BigEndian.Uint32(d.buf)) != -1 {
		return false
	}
	d.take(4)
	return true
}

// Skip skips the bytes b if they come next, and reports whether they do.
func (d *Decoder) Skip(b []byte) bool {
	if d.err != nil || !bytes.HasPrefix(d.buf, b) {
		return false
	}
	d.buf = d.buf[len(b):]
	return true
}

// Strings reads a vector of ustrings. It is an error if the vector or one of its
// elements is null.
func (d *Decoder) Strings() []string {
	if d.NullVector() {
		d.Fail(ErrNull)
	}
	n := d.Count(4)
	if n == 0 {
		return nil
	}
	v := make([]string, 0, n)
	for range n {
		v = append(v, d.String())
	}
	if d.err != nil {
		return nil
	}
	return v
}
