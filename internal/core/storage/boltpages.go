package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// bbolt trusts its pages: a flipped bit in one causes a panic somewhere, an older
// state, or missing entries. So the whole file is verified before bbolt opens it,
// by reading it. The constants and offsets below are bbolt's page format, whose
// byte order is the machine's.
//
// Each page must be exactly one of these: reached once from the newest root, the
// list of free pages, or in that list. The elements of a page must fill it without
// a gap. So a wrong count, offset or page number cannot go unnoticed. What keys
// and values say is verified elsewhere (raftKeys, checksums.go).

const (
	pageHeader  = 16
	elementSize = 16

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreelist = 0x10

	boltMagic   = 0xED0CDAED
	boltVersion = 2
)

var native = binary.NativeEndian

// checkPages verifies a bbolt file and calls each, in order, with the keys and
// values of its buckets.
func checkPages(path string, each func(bucket, key, value []byte) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	c := pageChecker{f: f, each: each}
	if err := c.check(); err != nil {
		return damaged(path, "%w", err)
	}
	return nil
}

type pageChecker struct {
	f    io.ReaderAt
	size uint64 // of a page
	end  uint64 // pages from here on are not in use yet
	used []bool // pages that were reached
	each func(bucket, key, value []byte) error
}

type boltMeta struct{ root, freelist, end, txid uint64 }

func (c *pageChecker) check() error {
	m, err := c.metas()
	if err != nil {
		return err
	}
	free, err := c.freelist(m.freelist)
	if err != nil {
		return err
	}
	if err := c.tree(m.root, nil, true); err != nil {
		return err
	}
	for _, id := range free {
		if id < 2 || id >= c.end || c.used[id] {
			return fmt.Errorf("page %d is in use and in the list of free pages", id)
		}
		c.used[id] = true
	}
	for id, used := range c.used {
		if !used {
			return fmt.Errorf("page %d is neither in use nor free", id)
		}
	}
	return nil
}

// metas reads the two pages that say where everything is. bbolt writes them in
// turns, and each fits into a sector, so both are intact after any crash. bbolt
// itself would ignore a damaged one, and go back to the state of the older one.
func (c *pageChecker) metas() (newest boltMeta, err error) {
	b := make([]byte, pageHeader+64)
	var pages [2]boltMeta
	for i := range pages {
		if _, err := c.f.ReadAt(b, int64(c.size)*int64(i)); err != nil {
			return newest, fmt.Errorf("meta page %d: %w", i, cutShort(err))
		}
		m := b[pageHeader:]
		sum := fnv.New64a()
		sum.Write(m[:56])
		size := uint64(native.Uint32(m[8:]))
		if native.Uint32(m) != boltMagic || native.Uint32(m[4:]) != boltVersion || sum.Sum64() != native.Uint64(m[56:]) ||
			size < 512 || size&(size-1) != 0 || i > 0 && size != c.size {
			return newest, fmt.Errorf("meta page %d, at offset %d", i, c.size*uint64(i))
		}
		c.size = size
		pages[i] = boltMeta{root: native.Uint64(m[16:]), freelist: native.Uint64(m[32:]), end: native.Uint64(m[40:]), txid: native.Uint64(m[48:])}
	}
	older := pages[0]
	if newest = pages[1]; older.txid > newest.txid {
		older, newest = newest, older
	}
	if newest.txid != older.txid+1 {
		return newest, fmt.Errorf("its meta pages are of transactions %d and %d", older.txid, newest.txid)
	}
	if newest.end > 1<<40 || newest.end < 4 {
		return newest, fmt.Errorf("%d pages", newest.end)
	}
	c.end = newest.end
	// Read the last byte first, to refuse a file cut short before allocating for it.
	if _, err := c.f.ReadAt(b[:1], int64(c.end*c.size)-1); err != nil {
		return newest, fmt.Errorf("%d pages of %d bytes: %w", c.end, c.size, cutShort(err))
	}
	c.used = make([]bool, c.end)
	c.used[0], c.used[1] = true, true
	return newest, nil
}

func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the file is cut short")
	}
	return err
}

// page reads a page with the pages that it overflows into, and marks them as used.
func (c *pageChecker) page(id uint64) (page []byte, flags uint16, count int, err error) {
	if id < 2 || id >= c.end {
		return nil, 0, 0, fmt.Errorf("there is no page %d", id)
	}
	var head [pageHeader]byte
	if _, err := c.f.ReadAt(head[:], int64(id*c.size)); err != nil {
		return nil, 0, 0, fmt.Errorf("page %d: %w", id, cutShort(err))
	}
	pages := 1 + uint64(native.Uint32(head[12:]))
	if native.Uint64(head[:]) != id || pages > c.end-id {
		return nil, 0, 0, fmt.Errorf("page %d, at offset %d", id, id*c.size)
	}
	for i := id; i < id+pages; i++ {
		if c.used[i] {
			return nil, 0, 0, fmt.Errorf("page %d is used twice", i)
		}
		c.used[i] = true
	}
	page = make([]byte, pages*c.size)
	if _, err := c.f.ReadAt(page, int64(id*c.size)); err != nil {
		return nil, 0, 0, fmt.Errorf("page %d: %w", id, cutShort(err))
	}
	return page, native.Uint16(head[8:]), int(native.Uint16(head[10:])), nil
}

func (c *pageChecker) freelist(id uint64) ([]uint64, error) {
	page, flags, count, err := c.page(id)
	if err != nil {
		return nil, err
	}
	b := page[pageHeader:]
	if count == 0xffff { // there are more than this field can count, so the number follows
		count, b = int(native.Uint64(b)), b[8:]
	}
	if flags != flagFreelist || count < 0 || count > len(b)/8 {
		return nil, fmt.Errorf("list of free pages, at offset %d", id*c.size)
	}
	free := make([]uint64, count)
	for i := range free {
		free[i] = native.Uint64(b[8*i:])
	}
	return free, nil
}

// element is an entry of a leaf or branch page.
type element struct {
	flags uint32 // of a leaf's: 1 is a bucket
	child uint64 // of a branch's
	key   []byte
	value []byte
}

// elements reads a page's elements, whose keys and values must follow each other
// without a gap, and returns what comes after them.
func elements(page []byte, leaf bool, count int) (list []element, rest []byte, err error) {
	if count > (len(page)-pageHeader)/elementSize {
		return nil, nil, fmt.Errorf("%d elements", count)
	}
	list = make([]element, count)
	at := uint64(pageHeader + count*elementSize) // where the next key must be
	for i := range list {
		start := pageHeader + i*elementSize
		h := page[start:]
		var pos, ksize, vsize uint64
		e := &list[i]
		if leaf {
			e.flags = native.Uint32(h)
			pos, ksize, vsize = uint64(native.Uint32(h[4:])), uint64(native.Uint32(h[8:])), uint64(native.Uint32(h[12:]))
		} else {
			pos, ksize, e.child = uint64(native.Uint32(h)), uint64(native.Uint32(h[4:])), native.Uint64(h[8:])
		}
		if uint64(start)+pos != at || at+ksize+vsize > uint64(len(page)) {
			return nil, nil, fmt.Errorf("element %d", i)
		}
		e.key, e.value = page[at:at+ksize], page[at+ksize:at+ksize+vsize]
		at += ksize + vsize
		if i > 0 && bytes.Compare(list[i-1].key, e.key) >= 0 {
			return nil, nil, fmt.Errorf("element %d is out of order", i)
		}
	}
	return list, page[at:], nil
}

// tree walks the pages below id, which belong to bucket. The bucket without a name
// holds the others.
func (c *pageChecker) tree(id uint64, bucket []byte, top bool) error {
	page, flags, count, err := c.page(id)
	if err != nil {
		return err
	}
	if flags != flagLeaf && flags != flagBranch || count == 0 && (!top || flags == flagBranch) {
		return fmt.Errorf("page %d, at offset %d", id, id*c.size)
	}
	list, rest, err := elements(page, flags == flagLeaf, count)
	if err == nil && count == 0 && len(bytes.Trim(rest, "\x00")) > 0 { // bbolt writes zeros after the elements
		err = errors.New("no elements, but their keys")
	}
	if err != nil {
		return fmt.Errorf("page %d, at offset %d: %w", id, id*c.size, err)
	}
	if flags == flagLeaf {
		return c.leaf(bucket, list)
	}
	for _, e := range list {
		if err := c.tree(e.child, bucket, false); err != nil {
			return err
		}
	}
	return nil
}

func (c *pageChecker) leaf(bucket []byte, list []element) error {
	for _, e := range list {
		var err error
		switch {
		case bucket != nil && e.flags == 0:
			err = c.each(bucket, e.key, e.value)
		case bucket != nil || e.flags != 1 || len(e.value) < 16:
			err = fmt.Errorf("key %x in bucket %q", e.key, bucket)
		case native.Uint64(e.value) != 0:
			err = c.tree(native.Uint64(e.value), e.key, true)
		default: // a small bucket is a page inside the value
			err = c.inline(e.key, e.value[16:])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *pageChecker) inline(bucket, page []byte) error {
	if len(page) < pageHeader || native.Uint16(page[8:]) != flagLeaf {
		return fmt.Errorf("bucket %q", bucket)
	}
	list, rest, err := elements(page, true, int(native.Uint16(page[10:])))
	if err == nil && len(rest) > 0 {
		err = errors.New("too long for its elements")
	}
	if err != nil {
		return fmt.Errorf("bucket %q: %w", bucket, err)
	}
	return c.leaf(bucket, list)
}
