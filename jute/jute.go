// Package jute is ZooKeeper's serialization: any bytes decode to a value or an
// error, never to a panic, and never to more memory than the input justifies.
//
// Encoding is a family of Append functions in the manner of encoding/binary;
// decoding is a [Decoder] with a sticky error, so that a record's decoder reads
// as the list of its fields. All integers are big-endian two's complement.
//
// This package promises no compatibility: any version of lockkeeper may change it.
package jute

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"
)

// Errors of a [Decoder]. A server answers them with MarshallingError (-5) in a
// request's body, and by closing the connection in its header.
var (
	ErrShort  = errors.New("jute: record cut short")
	ErrLength = errors.New("jute: impossible length")
	ErrNull   = errors.New("jute: null where a value is required")
)

// AppendBool appends a boolean as one byte, 0 or 1.
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

// Null stands for a ustring that is null where the difference from an empty one
// matters. It is no UTF-8, so that no string that came off the wire equals it.
const Null = "\xff"

// AppendString appends a ustring: its length in bytes and its UTF-8 bytes; for
// [Null], null.
func AppendString(b []byte, s string) []byte {
	if s == Null {
		return AppendInt(b, -1)
	}
	return append(AppendInt(b, int32(len(s))), s...)
}

// AppendBuffer appends a buffer; nil is null (length -1), which is not empty.
func AppendBuffer(b, v []byte) []byte {
	if v == nil {
		return AppendInt(b, -1)
	}
	return append(AppendInt(b, int32(len(v))), v...)
}

// AppendStrings appends a vector of ustrings; nil is an empty vector.
func AppendStrings(b []byte, v []string) []byte {
	b = AppendInt(b, int32(len(v)))
	for _, s := range v {
		b = AppendString(b, s)
	}
	return b
}

// Decoder reads fields off a byte slice. After its first error every method
// returns a zero value, so callers look at [Decoder.Err] once, at the end.
type Decoder struct {
	buf []byte
	err error
}

// NewDecoder returns a Decoder of b. Buffers that it returns alias b.
func NewDecoder(b []byte) Decoder { return Decoder{buf: b} }

// Err is the first error met, or nil.
func (d *Decoder) Err() error { return d.err }

// Rest is what has not been read yet. ZooKeeper ignores such bytes at the end of a request.
func (d *Decoder) Rest() []byte { return d.buf }

// Fail makes err the decoder's error, if it has none yet.
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

// Bool reads one byte; any value but 0 is true, as for ZooKeeper.
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

// Buffer reads a buffer; null is nil, an empty one is not. The result aliases the input.
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

// NullableString reads a ustring; ok is false if it was null. Bytes that are
// not UTF-8 become U+FFFD, as in Java.
func (d *Decoder) NullableString() (s string, ok bool) {
	v := d.Buffer()
	if d.err != nil || v == nil {
		return "", false
	}
	return Text(v), true
}

// Text is bytes as Java reads them as UTF-8: what is none becomes U+FFFD, once
// for each longest beginning of a character and for each surrogate.
func Text(v []byte) string {
	if utf8.Valid(v) {
		return string(v)
	}
	out := make([]rune, 0, len(v))
	for len(v) > 0 {
		r, n := utf8.DecodeRune(v)
		if r == utf8.RuneError && n == 1 {
			n = broken(v)
		}
		out = append(out, r)
		v = v[n:]
	}
	return string(out)
}

// StringOrNull reads a ustring; null is [Null].
func (d *Decoder) StringOrNull() string {
	s, ok := d.NullableString()
	if !ok && d.err == nil {
		return Null
	}
	return s
}

// broken is how many of the bytes one U+FFFD stands for.
func broken(v []byte) int {
	follows := func(i int) bool { return i < len(v) && v[i]&0xc0 == 0x80 }
	switch lead := v[0]; {
	case lead < 0xe0 || lead > 0xf4 || !follows(1),
		lead == 0xe0 && v[1] < 0xa0, lead == 0xf0 && v[1] < 0x90, lead == 0xf4 && v[1] >= 0x90:
		return 1
	case !follows(2):
		return 2
	}
	return 3
}

// String reads a ustring that must not be null.
func (d *Decoder) String() string {
	s, ok := d.NullableString()
	if !ok {
		d.Fail(ErrNull)
	}
	return s
}

// Count reads a vector's count. size is the least number of bytes that one
// element takes: a count that cannot fit in what remains is an error before
// anything is allocated. A negative count is an empty vector, as for ZooKeeper.
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

// Null reads the count of a vector if that is null, and reports whether it was.
func (d *Decoder) Null() bool {
	if len(d.buf) < 4 || int32(binary.BigEndian.Uint32(d.buf)) != -1 {
		return false
	}
	d.take(4)
	return true
}

// Strings reads a vector of ustrings. Neither it nor any of them may be null.
func (d *Decoder) Strings() []string {
	if d.Null() {
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
