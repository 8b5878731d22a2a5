package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft-wal/types"
)

// raft-wal trusts its segments: it never compares the checksum of a sealed one,
// and it takes the first damage in the last one for the end of the log, so that
// acknowledged entries behind it would be lost without a word. Therefore every
// segment is verified before raft-wal opens it. What follows is raft-wal's
// format, in which all numbers are little-endian.
//
// A segment is a header and then batches, each of which was one write and one
// sync. A batch is frames that fill multiples of eight bytes, the last of which,
// the commit, has the CRC-32C of the batch; that of the first batch includes the
// header. The last batch of a sealed segment holds an index of all its entries.
// What is not written yet is zero.

const (
	segmentHeader = 32
	segmentMagic  = 0x58eb6b0d
	frameHeader   = 8 // kind and length, or checksum

	frameEntry  = 1
	frameIndex  = 2
	frameCommit = 3

	sector = 512 // of a disk: a write that a loss of power tears has whole ones
)

// walFrame is where the content of an entry is in its segment.
type walFrame struct{ at, size int }

// walSegment is what [parseSegment] finds in a segment.
type walSegment struct {
	entries []walFrame // of BaseIndex and so on
	index   int        // where the index begins; 0 if there is none
	end     int        // of the last whole batch
}

// parseSegment reads the batches of a segment up to the first that is not whole.
// What follows is for the caller to judge.
func parseSegment(b []byte, info types.SegmentInfo) (s walSegment, err error) {
	if !bytes.Equal(b[:min(segmentHeader, len(b))], appendHeader(nil, info)) {
		return s, nil // there is no whole batch, since the first includes the header
	}
	for at := segmentHeader; s.index == 0; at = s.end {
		batch, ok := parseBatch(b, s.end, at)
		if !ok {
			return s, nil
		}
		s.entries = append(s.entries, batch.entries...)
		s.index, s.end = batch.index, batch.end
	}
	for i, f := range s.entries {
		if s.index+4*(i+1) > s.end || binary.LittleEndian.Uint32(b[s.index+4*i:]) != uint32(f.at-frameHeader) {
			return s, fmt.Errorf("the index has another offset for entry %d", info.BaseIndex+uint64(i))
		}
	}
	return s, nil
}

func appendHeader(b []byte, info types.SegmentInfo) []byte {
	b = binary.LittleEndian.AppendUint64(b, segmentMagic) // the version follows it, and is 0
	b = binary.LittleEndian.AppendUint64(b, info.BaseIndex)
	b = binary.LittleEndian.AppendUint64(b, info.ID)
	return binary.LittleEndian.AppendUint64(b, info.Codec)
}

// parseBatch reads the frames from at to a commit, and compares the checksum of
// what is between start and the commit. ok is whether the batch is whole.
func parseBatch(b []byte, start, at int) (batch walSegment, ok bool) {
	for at+frameHeader <= len(b) {
		kind, n := binary.LittleEndian.Uint32(b[at:]), binary.LittleEndian.Uint32(b[at+4:])
		content := at + frameHeader
		switch kind {
		case frameCommit:
			batch.end = content
			return batch, crc32.Checksum(b[start:at], castagnoli) == n
		case frameEntry:
			batch.entries = append(batch.entries, walFrame{content, int(n)})
		case frameIndex:
			batch.index = content
		default:
			return batch, false
		}
		if uint64(n) > uint64(len(b)-content) {
			return batch, false
		}
		at = content + (int(n)+frameHeader-1)/frameHeader*frameHeader
	}
	return batch, false
}

// tornTail judges what follows the last whole batch s of the segment that is being
// written, b[s.end:]. Nothing but zeros does after most crashes. Else it is the one batch
// whose write the crash interrupted, and which was never acknowledged: rest is how many
// bytes are to be cleared. Or it is damage.
//
// A crash leaves sectors of its write out, or ends it anywhere. So tornTail goes from frame
// to frame, by the lengths in their headers, until a header is missing. What entries hold,
// which clients choose, is never taken for a frame. These are the signs of damage:
//
//   - Where a header must be is something else, or the length in it is not that of the entry.
//   - The commit is there, and something follows it, or no sector before it is missing.
//   - After the missing sector of a header comes a whole batch: batches are synced one after
//     another.
//   - The segment begins with something else than its header.
//
// Damage to the last batch that looks like a missing sector cannot be told from a
// torn write. Here the caller's knowledge of the index that the log must reach helps.
func tornTail(b []byte, s walSegment, info types.SegmentInfo) (rest int, err error) {
	t := tornWrite{b: b, begin: s.end, end: s.end + len(bytes.TrimRight(b[s.end:], "\x00"))}
	rest = t.end - t.begin
	if s.end == 0 {
		header := b[:min(segmentHeader, len(b))]
		want := appendHeader(nil, info)
		if n := len(bytes.TrimRight(header, "\x00")); !bytes.Equal(header[:n], want[:n]) {
			return 0, errors.New("its header")
		}
	}
	entries, summed, sum := len(s.entries), s.end, uint32(0)
	for at := max(s.end, segmentHeader); at+frameHeader <= len(b) && at < t.end; {
		sum, summed = crc32.Update(sum, castagnoli, b[summed:at]), at
		if t.missing(at) {
			if t.batchAfter(at, info.BaseIndex+uint64(entries)) {
				return 0, fmt.Errorf("the batch at offset %d, which others follow", s.end)
			}
			return rest, nil
		}
		kind, n := binary.LittleEndian.Uint32(b[at:]), binary.LittleEndian.Uint32(b[at+4:])
		content := at + frameHeader
		switch {
		case kind == frameCommit:
			return t.committed(at, sum)
		case kind != frameEntry && kind != frameIndex, at > s.end && n == sum: // it was the commit
			return 0, fmt.Errorf("the batch at offset %d has no frame at %d", s.end, at)
		case t.end <= content: // the header itself may be cut off
			return rest, nil
		case n > 1<<30, kind == frameIndex && int(n) != 4*entries, kind == frameEntry && !t.fits(content, int(n)):
			return 0, fmt.Errorf("the batch at offset %d has another length at %d", s.end, at)
		case kind == frameEntry:
			entries++
		}
		at = content + (int(n)+frameHeader-1)/frameHeader*frameHeader
	}
	return rest, nil
}

// tornWrite is what follows the last whole batch of a segment, for tornTail.
type tornWrite struct {
	b          []byte // the segment
	begin, end int    // from the end of that batch to the last byte that is not zero
}

// missing reports whether nothing is in the sector that at is in.
func (t *tornWrite) missing(at int) bool {
	sectorAt := at / sector * sector
	return len(bytes.Trim(t.b[max(sectorAt, t.begin):min(sectorAt+sector, len(t.b))], "\x00")) == 0
}

// written reports whether the byte at offset at is what was written there.
func (t *tornWrite) written(at int) bool { return at < t.end && !t.missing(at) }

// committed judges a batch whose commit is at offset at. What is before that has the checksum
// sum.
func (t *tornWrite) committed(at int, sum uint32) (rest int, err error) {
	if t.end > at+frameHeader {
		return 0, fmt.Errorf("the batch at offset %d, which others follow", t.begin)
	}
	for i := t.begin; i < at; i = (i/sector + 1) * sector {
		if t.missing(i) {
			return t.end - t.begin, nil
		}
	}
	// The checksum itself may be cut off.
	want := binary.LittleEndian.AppendUint32(nil, sum)
	if part := bytes.TrimRight(t.b[at+4:at+frameHeader], "\x00"); len(part) < len(want) && bytes.HasPrefix(want, part) {
		return t.end - t.begin, nil
	}
	return 0, fmt.Errorf("the batch at offset %d", t.begin)
}

// fits reports whether n may be the length of the entry that begins at offset at. As
// [wal.BinaryCodec] writes it, an entry is its index, term, type, the length of its data,
// the data, the length of the extensions, these, and a time, of which the first byte says how
// long it is. What is not written is taken to fit.
func (t *tornWrite) fits(at, n int) bool {
	end := at
	number := func() (v uint64, ok bool) {
		v, size := binary.Uvarint(t.b[min(end, len(t.b)):])
		last := end + max(size, 1) - 1
		ok = t.written(end) && t.written(last)
		end = last + 1
		return v, ok
	}
	for range 3 {
		if _, ok := number(); !ok {
			return true
		}
	}
	for range 2 { // data and extensions
		size, ok := number()
		if !ok {
			return true
		}
		if size > uint64(n) {
			return false
		}
		end += int(size)
	}
	if !t.written(end) {
		return true
	}
	return n == end-at+14+int(t.b[end]) // version 1 of time.Time's encoding has 15 bytes, version 2 has 16
}

// batchAfter reports whether a whole batch follows the missing sector of a frame's header at
// offset at. Its entries must be ones, and follow those before the missing sector, the last
// of which is before entry next, with as many in between as there is room for. A client
// can store bytes that look like such a batch only if it knows the index, and they count
// only if another entry comes before its own in one torn write.
func (t *tornWrite) batchAfter(at int, next uint64) bool {
	const smallest = 32 // bytes that the frame of an entry takes
	from := (at/sector + 1) * sector
	for i := from; i+frameHeader < t.end; i += frameHeader {
		if binary.LittleEndian.Uint32(t.b[i:]) != frameEntry {
			continue
		}
		if binary.LittleEndian.Uint32(t.b[i-frameHeader:]) != frameCommit && !t.missing(i-frameHeader) {
			continue // no batch ends there
		}
		batch, ok := parseBatch(t.b, i, i)
		for j := 0; ok && j < len(batch.entries); j++ {
			f := batch.entries[j]
			index, is := entryIndex(t.b[f.at : f.at+f.size])
			ok = is && index >= next+uint64(j) && index-next-uint64(j) <= uint64((i-at)/smallest)
		}
		if ok {
			return true
		}
	}
	return false
}
