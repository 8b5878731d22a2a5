package jute

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// DefaultMaxFrame is ZooKeeper's default jute.maxbuffer: the longest payload of
// a frame, in bytes.
const DefaultMaxFrame = 0xfffff

// ErrFrame marks a frame whose length is negative or above the limit.
var ErrFrame = errors.New("jute: bad frame length")

// FrameLength reads the length that starts every frame.
func FrameLength(r io.Reader) (uint32, error) {
	var b [4]byte
	_, err := io.ReadFull(r, b[:])
	return binary.BigEndian.Uint32(b[:]), err
}

// ReadPayload reads a frame's payload of n bytes into buf, which it grows if
// necessary, and returns it. It allocates memory only as bytes arrive, so a frame that
// merely claims to be long costs nothing. If n is above limit, the error is [ErrFrame].
func ReadPayload(r io.Reader, n uint32, limit int, buf []byte) ([]byte, error) {
	if int64(n) > int64(limit) { // as unsigned, a negative length is above every limit
		return nil, fmt.Errorf("%w %d (limit %d)", ErrFrame, int32(n), limit)
	}
	const step = 4 << 10
	buf = buf[:0]
	for len(buf) < int(n) {
		want := min(int(n)-len(buf), max(step, len(buf)))
		buf = slices.Grow(buf, want)
		got, err := io.ReadFull(r, buf[len(buf):len(buf)+want])
		buf = buf[:len(buf)+got]
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return buf, nil
}

// ReadFrame reads one whole frame into buf and returns its payload.
func ReadFrame(r io.Reader, limit int, buf []byte) ([]byte, error) {
	n, err := FrameLength(r)
	if err != nil {
		return nil, err
	}
	return ReadPayload(r, n, limit, buf)
}

// BeginFrame appends space for a frame's length to b, and returns its offset for [EndFrame].
func BeginFrame(b []byte) ([]byte, int) { return append(b, 0, 0, 0, 0), len(b) }

// EndFrame fills in the length of the frame that begins at offset start and ends
// with b.
func EndFrame(b []byte, start int) {
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4))
}
