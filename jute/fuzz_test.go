package jute

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
)

// captured calls f with every captured frame.
func captured(f *testing.F, add func(frame []byte)) {
	scenarios, err := golden.LoadAll(os.DirFS("../testdata/golden"))
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range scenarios {
		for _, frame := range s.Frames() {
			add(frame.Bytes)
		}
	}
}

// FuzzDecoder reads random bytes as fields whose types script determines, and encodes
// the values again. That must give the bytes that were read, unless the same value can
// be encoded in several ways.
func FuzzDecoder(f *testing.F) {
	captured(f, func(frame []byte) {
		f.Add([]byte{2, 2, 4, 5, 1}, frame[4:])
		f.Add([]byte{2, 3, 2, 3, 5, 1}, frame[4:])
		f.Add([]byte{2, 2, 3, 6, 6, 6}, frame[4:])
	})
	f.Fuzz(func(t *testing.T, script, b []byte) {
		input := bytes.Clone(b)
		d := NewDecoder(b)
		var out []byte
		same := true // no value so far has another encoding
		n := testkit.Allocated(func() {
			for _, field := range script[:min(len(script), 64)] {
				switch field % 7 {
				case 0:
					out = append(out, d.Byte())
				case 1:
					v := d.Bool()
					same = same && d.Err() == nil && (!v || b[len(b)-len(d.Rest())-1] == 1)
					out = AppendBool(out, v)
				case 2:
					out = AppendInt(out, d.Int())
				case 3:
					out = AppendLong(out, d.Long())
				case 4:
					s := d.String()
					same = same && !bytes.ContainsRune([]byte(s), utf8.RuneError)
					out = AppendString(out, s)
				case 5:
					out = AppendBuffer(out, d.Buffer())
				case 6:
					before := len(d.Rest())
					v := d.Strings()
					same = same && (v != nil || before-len(d.Rest()) != 4 || before >= 4 && bytes.Equal(b[len(b)-before:][:4], make([]byte, 4)))
					for _, s := range v {
						same = same && !bytes.ContainsRune([]byte(s), utf8.RuneError)
					}
					out = AppendStrings(out, v)
				}
				if d.Err() != nil {
					break
				}
			}
		})
		if limit := uint64(64<<10 + 32*len(b)); n > limit {
			t.Errorf("allocated %d bytes to decode %d", n, len(b))
		}
		if !bytes.Equal(b, input) {
			t.Error("the decoder changed its input")
		}
		if err := d.Err(); err != nil {
			if !errors.Is(err, ErrShort) && !errors.Is(err, ErrLength) && !errors.Is(err, ErrNull) {
				t.Errorf("%v is not one of the package's errors", err)
			}
			if len(d.Rest()) != 0 {
				t.Error("Rest is not empty after an error")
			}
			return
		}
		if consumed := b[:len(b)-len(d.Rest())]; same && !bytes.Equal(out, consumed) {
			t.Errorf("decoded %x, encoded %x", consumed, out)
		}
	})
}

// FuzzFrame reads random bytes as frames. The result must not depend on how many bytes
// each Read returns, and written again, the frames must give the same bytes.
func FuzzFrame(f *testing.F) {
	captured(f, func(frame []byte) { f.Add(frame, 1000) })
	f.Add([]byte("ruok"), 1<<20)
	f.Add([]byte{0, 0, 0, 0, 255, 255, 255, 255}, 1<<31-1)
	f.Fuzz(func(t *testing.T, wire []byte, limit int) {
		limit = min(max(limit, 0), 1<<31-1)
		readAll := func(r io.Reader) (frames [][]byte, err error) {
			var buf []byte
			for {
				if buf, err = ReadFrame(r, limit, buf); err != nil {
					return frames, err
				}
				frames = append(frames, bytes.Clone(buf))
			}
		}
		var frames [][]byte
		var err error
		if n := testkit.Allocated(func() { frames, err = readAll(bytes.NewReader(wire)) }); n > uint64(64<<10+64*len(wire)) {
			t.Errorf("allocated %d bytes to read %d", n, len(wire))
		}
		inParts, err2 := readAll(iotest.HalfReader(bytes.NewReader(wire)))
		if !slices.EqualFunc(frames, inParts, bytes.Equal) || err.Error() != err2.Error() {
			t.Errorf("got %d frames and %v at once, but %d and %v in parts", len(frames), err, len(inParts), err2)
		}
		var again []byte
		for _, p := range frames {
			if len(p) > limit {
				t.Errorf("read a frame of %d bytes, above the limit of %d", len(p), limit)
			}
			var start int
			again, start = BeginFrame(again)
			again = append(again, p...)
			EndFrame(again, start)
		}
		if !bytes.HasPrefix(wire, again) {
			t.Errorf("read %x, wrote %x", wire, again)
		}
		if err == io.EOF && len(again) != len(wire) {
			t.Errorf("got io.EOF, but read only %d of %d bytes", len(again), len(wire))
		}
	})
}
