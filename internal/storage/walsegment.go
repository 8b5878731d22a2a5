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

// tornTail judges what follows the last whole batch of the segment that is being
// written, b[end:]. Nothing but zeros does after most crashes. Else it is the one
// batch whose write the crash interrupted, and which was never acknowledged: rest
// is how many bytes are to be cleared. Or it is damage, for which these are the signs:
//
//   - A whole batch comes later. Batches are synced one after another.
//   - The bytes end with a commit, and no sector of them is missing, but the
//     checksum is wrong. (If only the checksum itself is cut off, it was the crash.)
//   - The segment begins with something else than its header.
//
// Damage to the last batch that looks like a missing sector cannot be told from a
// torn write. Here the caller's knowledge of the index that the log must reach helps.
func tornTail(b []byte, end int, info types.SegmentInfo, entry func(content []byte) bool) (rest int, err error) {
	written := len(bytes.TrimRight(b[end:], "\x00"))
	if written == 0 {
		return 0, nil
	}
	// The last frame begins at a multiple of its header's size.
	stop := min(end+(written+frameHeader-1)/frameHeader*frameHeader, len(b))
	if end == 0 {
		header := b[:min(segmentHeader, len(b))]
		want := appendHeader(nil, info)
		if n := len(bytes.TrimRight(header, "\x00")); !bytes.Equal(header[:n], want[:n]) {
			return 0, errors.New("its header")
		}
	}
	for at := max(end, segmentHeader); at+frameHeader <= stop; at += frameHeader {
		if binary.LittleEndian.Uint32(b[at:]) != frameEntry {
			continue
		}
		if batch, ok := parseBatch(b[:stop], at, at); ok && at > end && whole(b, batch, entry) {
			return 0, fmt.Errorf("the batch at offset %d, which others follow", end)
		}
	}
	last := stop - frameHeader
	if last <= end || last+frameHeader > len(b) {
		return written, nil
	}
	for at := end; at < last; {
		next := min((at/sector+1)*sector, last)
		if len(bytes.TrimRight(b[at:next], "\x00")) == 0 {
			return written, nil
		}
		at = next
	}
	kind, stored := binary.LittleEndian.Uint32(b[last:]), b[last+4:last+frameHeader]
	sum := binary.LittleEndian.AppendUint32(nil, crc32.Checksum(b[end:last], castagnoli))
	part := bytes.TrimRight(stored, "\x00") // of the checksum, if it is cut off
	if !bytes.Equal(stored, sum) && (kind != frameCommit || len(part) < len(sum) && bytes.HasPrefix(sum, part)) {
		return written, nil
	}
	return 0, fmt.Errorf("the batch at offset %d", end)
}

// whole reports whether batch has entries, and each is one: a client can store
// bytes that look like a batch, but not easily ones that are also entries of Raft.
func whole(b []byte, batch walSegment, entry func(content []byte) bool) bool {
	for _, f := range batch.entries {
		if !entry(b[f.at : f.at+f.size]) {
			return false
		}
	}
	return len(batch.entries) > 0
}
