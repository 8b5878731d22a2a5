package jute

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestEncodings compares the encoding of each type with the expected bytes.
func TestEncodings(t *testing.T) {
	tests := []struct{ name, want, got string }{
		{"true", "01", hex.EncodeToString(AppendBool(nil, true))},
		{"false", "00", hex.EncodeToString(AppendBool(nil, false))},
		{"int", "00000102", hex.EncodeToString(AppendInt(nil, 258))},
		{"negative int", "fffffffe", hex.EncodeToString(AppendInt(nil, -2))},
		{"long", "0000000000000102", hex.EncodeToString(AppendLong(nil, 258))},
		{"smallest long", "8000000000000000", hex.EncodeToString(AppendLong(nil, -1<<63))},
		{"string", "000000022f61", hex.EncodeToString(AppendString(nil, "/a"))},
		{"string of two bytes a character", "00000002c3bc", hex.EncodeToString(AppendString(nil, "ü"))},
		{"empty string", "00000000", hex.EncodeToString(AppendString(nil, ""))},
		{"buffer", "00000001ff", hex.EncodeToString(AppendBuffer(nil, []byte{255}))},
		{"empty buffer", "00000000", hex.EncodeToString(AppendBuffer(nil, []byte{}))},
		{"null buffer", "ffffffff", hex.EncodeToString(AppendBuffer(nil, nil))},
		{"strings", "00000002000000016100000000", hex.EncodeToString(AppendStrings(nil, []string{"a", ""}))},
		{"no strings", "00000000", hex.EncodeToString(AppendStrings(nil, nil))},
	}
	for _, test := range tests {
		if test.got != test.want {
			t.Errorf("%s: %s, want %s", test.name, test.got, test.want)
		}
	}
}

// TestDecoder decodes one value from given bytes.
func TestDecoder(t *testing.T) {
	str := func(d *Decoder) any { return d.String() }
	buf := func(d *Decoder) any { return d.Buffer() }
	vec := func(d *Decoder) any { return strings.Join(d.Strings(), "|") }
	num := func(d *Decoder) any { return d.Int() }
	tests := []struct {
		name, bytes string
		read        func(*Decoder) any
		want        any
		err         error
		rest        int
	}{
		{"any byte except 0 is true", "80", func(d *Decoder) any { return d.Bool() }, true, nil, 0},
		{"no byte", "", func(d *Decoder) any { return d.Bool() }, false, ErrShort, 0},
		{"int", "fffffffe", num, int32(-2), nil, 0},
		{"int followed by another byte", "0000000100", num, int32(1), nil, 1},
		{"short int", "000000", num, int32(0), ErrShort, 0},
		{"short long", "00000000000000", func(d *Decoder) any { return d.Long() }, int64(0), ErrShort, 0},
		{"string", "000000022f61", str, "/a", nil, 0},
		{"empty string", "00000000", str, "", nil, 0},
		{"null string", "ffffffff", str, "", ErrNull, 0},
		{"string of length -2", "fffffffe", str, "", ErrLength, 0},
		{"string longer than the rest", "0000000361", str, "", ErrShort, 0},
		{"longest string", "7fffffff61", str, "", ErrShort, 0},
		{"string that is not UTF-8", "0000000361ff62", str, "a\ufffdb", nil, 0},
		{"a character encoded as two surrogates", "00000006eda0bdedb880", str, "\ufffd\ufffd", nil, 0},
		{"bytes that begin no character", "00000002fffe", str, "\ufffd\ufffd", nil, 0},
		{"truncated character of three bytes", "00000004e282412f", str, "\ufffdA/", nil, 0},
		{"overlong encoding", "00000003e08080", str, "\ufffd\ufffd\ufffd", nil, 0},
		{"truncated character of four bytes", "00000004f09f9841", str, "\ufffdA", nil, 0},
		{"buffer", "0000000261ff", buf, []byte{0x61, 0xff}, nil, 0},
		{"empty buffer", "00000000", buf, []byte{}, nil, 0},
		{"null buffer", "ffffffff", buf, []byte(nil), nil, 0},
		{"buffer of length -2", "fffffffe", buf, []byte(nil), ErrLength, 0},
		{"buffer with the smallest length", "80000000", buf, []byte(nil), ErrLength, 0},
		{"vector", "00000002000000016100000000", vec, "a|", nil, 0},
		{"null vector", "ffffffff", vec, "", ErrNull, 0},
		{"vector of length -5", "fffffffb", vec, "", nil, 0},
		{"vector with a null element", "00000001ffffffff", vec, "", ErrNull, 0},
		{"vector that ends early", "000000020000000161", vec, "", ErrLength, 0},
		{"vector with a short element", "00000002000000050000000061", vec, "", ErrShort, 0},
		{"vector longer than the rest", "7fffffff00000000", vec, "", ErrLength, 0},
	}
	for _, test := range tests {
		b, err := hex.DecodeString(test.bytes)
		if err != nil {
			t.Fatal(err)
		}
		d := NewDecoder(b)
		got := test.read(&d)
		if gotBytes, ok := got.([]byte); ok {
			want := test.want.([]byte)
			if !bytes.Equal(gotBytes, want) || (gotBytes == nil) != (want == nil) {
				t.Errorf("%s: %#v, want %#v", test.name, got, test.want)
			}
		} else if got != test.want {
			t.Errorf("%s: %#v, want %#v", test.name, got, test.want)
		}
		if !errors.Is(d.Err(), test.err) || len(d.Rest()) != test.rest {
			t.Errorf("%s: error %v and %d unread bytes, want %v and %d", test.name, d.Err(), len(d.Rest()), test.err, test.rest)
		}
	}
}

// TestSkip: Skip skips exactly the bytes that it is given, and nothing after an error.
func TestSkip(t *testing.T) {
	d := NewDecoder([]byte("abcd"))
	if d.Skip([]byte("b")) || d.Skip([]byte("abcde")) || !d.Skip([]byte("abc")) || string(d.Rest()) != "d" || d.Err() != nil {
		t.Errorf("%q is left, %v", d.Rest(), d.Err())
	}
	d.Int()
	if d.Skip(nil) || d.Err() != ErrShort {
		t.Errorf("after an error: %v", d.Err())
	}
}

// TestFirstError checks that after an error every method returns a zero value, and
// that Err keeps returning that error.
func TestFirstError(t *testing.T) {
	d := NewDecoder(AppendString(AppendInt(nil, -2), "more"))
	if d.Buffer() != nil || !errors.Is(d.Err(), ErrLength) {
		t.Fatal(d.Err())
	}
	if d.Int() != 0 || d.Long() != 0 || d.Byte() != 0 || d.Bool() || d.Buffer() != nil || d.String() != "" || d.StringOrNull() != "" || d.Strings() != nil || d.Count(1) != 0 || len(d.Rest()) != 0 {
		t.Error("a method returned a value after an error")
	}
	if d.Fail(io.EOF); !errors.Is(d.Err(), ErrLength) {
		t.Errorf("Fail replaced the first error by %v", d.Err())
	}
}

func TestFrames(t *testing.T) {
	b, start := BeginFrame([]byte("before"))
	b = append(b, "payload"...)
	EndFrame(b, start)
	if want := "before\x00\x00\x00\x07payload"; string(b) != want {
		t.Fatalf("%q, want %q", b, want)
	}
	big := bytes.Repeat([]byte("0123456789"), 5000)
	wire := append(binary.BigEndian.AppendUint32(bytes.Clone(b[6:]), uint32(len(big))), big...)
	wire = append(wire, 0, 0, 0, 0)
	for name, r := range map[string]io.Reader{
		"at once": bytes.NewReader(wire), "byte by byte": iotest.OneByteReader(bytes.NewReader(wire)),
		"last bytes together with io.EOF": iotest.DataErrReader(bytes.NewReader(wire)),
	} {
		var buf []byte
		for _, want := range []string{"payload", string(big), ""} {
			var err error
			if buf, err = ReadFrame(r, DefaultMaxFrame, buf); err != nil || string(buf) != want {
				t.Errorf("%s: want a frame of %d bytes, got one of %d, %v", name, len(want), len(buf), err)
			}
		}
		if _, err := ReadFrame(r, DefaultMaxFrame, buf); err != io.EOF {
			t.Errorf("%s: at the end: %v", name, err)
		}
	}
}

func TestBadFrames(t *testing.T) {
	tests := []struct {
		name  string
		wire  []byte
		limit int
		want  error
	}{
		{"at the limit", []byte{0, 0, 0, 2, 1, 2}, 2, nil},
		{"above the limit", []byte{0, 0, 0, 3, 1, 2, 3}, 2, ErrFrame},
		{"negative", []byte{255, 255, 255, 255}, 1 << 30, ErrFrame},
		{"smallest", []byte{128, 0, 0, 0}, 1<<31 - 1, ErrFrame},
		{"no length", []byte{0, 0, 0}, 2, io.ErrUnexpectedEOF},
		{"nothing", nil, 2, io.EOF},
		{"cut short", []byte{0, 0, 0, 2, 1}, 2, io.ErrUnexpectedEOF},
		{"without payload", []byte{0, 0, 0, 2}, 2, io.ErrUnexpectedEOF},
	}
	for _, test := range tests {
		if _, err := ReadFrame(bytes.NewReader(test.wire), test.limit, nil); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
}

// TestFalseLengths checks that a length or count that is larger than the input does
// not cost memory.
func TestFalseLengths(t *testing.T) {
	if n := testkit.Allocated(func() {
		if _, err := ReadFrame(strings.NewReader("\x40\x00\x00\x00and no more"), 1<<31-1, nil); err == nil {
			t.Error("no error")
		}
	}); n > 64<<10 {
		t.Errorf("allocated %d bytes for a frame that claims to have 1 GiB", n)
	}
	if n := testkit.Allocated(func() {
		d := NewDecoder([]byte{0x10, 0, 0, 0, 0, 0, 0, 0})
		if d.Strings(); d.Err() == nil {
			t.Error("no error")
		}
	}); n > 64<<10 {
		t.Errorf("allocated %d bytes for a vector that claims to have 2^28 strings", n)
	}
}

// TestReadReusesBuffer checks that ReadPayload does not allocate if the buffer is
// large enough.
func TestReadReusesBuffer(t *testing.T) {
	wire := append([]byte{0, 0, 3, 0xe8}, make([]byte, 1000)...)
	buf := make([]byte, 0, 4096)
	r := bytes.NewReader(wire)
	if n := testing.AllocsPerRun(100, func() {
		r.Reset(wire)
		buf, _ = ReadPayload(r, 1000, DefaultMaxFrame, buf)
	}); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
	if got := slices.Clip(buf); len(got) != 1000 {
		t.Errorf("read %d bytes, want 1000", len(got))
	}
}
