package zkdata_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/snappy"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/testing/zklog"
	"github.com/lockkeeper/lockkeeper/internal/tools/zkdata"
	"github.com/lockkeeper/lockkeeper/proto"
)

// full returns a state with all that a snapshot can have.
func full(t testing.TB) *zkdata.State {
	t.Helper()
	s := zkdata.NewState()
	if _, _, err := replay(s, zklog.File(0, everything...)); err != nil {
		t.Fatal(err)
	}
	for _, x := range []zkdata.Txn{
		{Op: proto.OpCreate2, Zxid: 18, Path: "/empty", Data: []byte{}, ACL: []proto.ACL{}, ParentCversion: 6}, // an ACL without entries
		{Op: proto.OpCreate2, Zxid: 19, Path: "/ü", Data: bytes.Repeat([]byte("long "), 40), ACL: digestACL, ParentCversion: 7},
	} {
		testkit.Check(t, s.Apply(&x))
	}
	return s
}

func written(t testing.TB, s *zkdata.State) []byte {
	t.Helper()
	var b bytes.Buffer
	testkit.Check(t, s.Content().Write(&b))
	return b.Bytes()
}

func TestSnapshot(t *testing.T) {
	s := full(t)
	file := written(t, s)
	for name, b := range map[string][]byte{"snapshot.13": file, "snapshot.13.gz": zipped(file), "snapshot.13.snappy": snapped(file), "snapshot.13.SNAPPY": snapped(file)} {
		got, err := read(name, b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if show(got) != show(s) {
			t.Errorf("%s: read\n%s\nshould be\n%s", name, show(got), show(s))
		}
		if acl := got.Get("/empty").ACL; acl == nil || len(acl) != 0 {
			t.Errorf("%s: the empty ACL became %v", name, acl)
		}
	}
}

// TestSentSnapshot reads what the command snapshot sends: its digest is compared, and it says the zxid.
func TestSentSnapshot(t *testing.T) {
	s := full(t)
	var b bytes.Buffer
	testkit.Check(t, s.Content().WriteSent(&b))
	file := b.Bytes()
	got, err := zkdata.ReadSnapshot(bytes.NewReader(file), s.Zxid)
	if err != nil || show(got) != show(s) {
		t.Fatalf("%v, read\n%s\nshould be\n%s", err, show(got), show(s))
	}
	if n, wrong := got.Digests(); n != 1 || wrong != 0 {
		t.Errorf("%d digests compared, wrong at %#x", n, wrong)
	}
	const end = 8 + 8 + 4 + 1 // the zxid, the checksum and its "/"
	if zxid := int64(binary.BigEndian.Uint64(file[len(file)-end:])); zxid != s.Zxid {
		t.Errorf("it ends with zxid %#x, not %#x", zxid, s.Zxid)
	}
	for i := range file {
		broken := bytes.Clone(file)
		broken[i] ^= 1
		if _, err := zkdata.ReadSnapshot(bytes.NewReader(broken), s.Zxid); err == nil {
			t.Fatalf("byte %d of %d changed, and nobody noticed", i, len(file))
		}
	}
}

// read reads a snapshot of zxid 0x13.
func read(name string, b []byte) (*zkdata.State, error) {
	r, err := zkdata.Uncompressed(name, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return zkdata.ReadSnapshot(r, 0x13)
}

func zipped(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	w.Write(b)
	w.Close()
	return out.Bytes()
}

// snapped returns what Java's SnappyOutputStream makes of b, in blocks of 100 bytes.
func snapped(b []byte) []byte {
	out := append([]byte{0x82}, "SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"...)
	for len(b) > 0 {
		n := min(len(b), 100)
		block := snappy.Encode(nil, b[:n])
		out = binary.BigEndian.AppendUint32(out, uint32(len(block)))
		out, b = append(out, block...), b[n:]
	}
	return out
}

// TestOldSnapshots: without a digest, as before 3.6, and with what 3.9 adds at the end.
func TestOldSnapshots(t *testing.T) {
	s := full(t)
	w := zkdata.NewFuzzyWriter(s, nil)
	for _, path := range s.Paths() {
		n := *s.Get(path)
		n.ACL = proto.OpenACL
		w.Write(path, &n)
	}
	new := w.End(0x13, s) // with two parts, of 20+13 and 8+13 bytes
	for name, b := range map[string][]byte{"3.9": new, "3.6": new[:len(new)-21], "3.4": new[:len(new)-21-33]} {
		got, err := read("snapshot.13", b)
		if err != nil || got.Len() != s.Len() {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if n, _ := got.Digests(); (n > 0) != (name != "3.4") {
			t.Errorf("%s: %d digests compared", name, n)
		}
	}
}

// TestDamagedSnapshot changes each byte of a snapshot, and cuts it everywhere. There must be an error,
// or the same state: no part of a snapshot is without a checksum, but what the state does not depend on.
func TestDamagedSnapshot(t *testing.T) {
	s := full(t)
	want := show(s)
	plain := written(t, s)
	for name, file := range map[string][]byte{"snapshot.13": plain, "snapshot.13.gz": zipped(plain), "snapshot.13.snappy": snapped(plain)} {
		caught := 0
		check := func(b []byte, what string, at int) {
			got, err := read(name, b)
			switch {
			case err != nil && (!errors.Is(err, zkdata.ErrDamaged) || !strings.Contains(err.Error(), "offset ")):
				t.Errorf("%s, %s byte %d: %v", name, what, at, err)
			case err != nil:
				caught++
			case show(got) != want:
				t.Errorf("%s, %s byte %d: another state without an error", name, what, at)
			}
		}
		for i := range file {
			for _, mask := range []byte{1, 0x80, 0xff} {
				b := bytes.Clone(file)
				b[i] ^= mask
				check(b, "another", i)
			}
			check(file[:i], "cut at", i)
		}
		check(append(bytes.Clone(file), 0), "one more after", len(file))
		if caught < 3*len(file) { // a compressed file has bytes that say nothing
			t.Errorf("%s: only %d of %d changes were noticed", name, caught, 4*len(file))
		}
	}
}

// TestDamagedLog changes each byte of a log. There must be an error or the same state: a transaction
// is never lost or changed without one. Zeros after the last transaction are as in a log that
// ZooKeeper has allocated before it writes.
func TestDamagedLog(t *testing.T) {
	for _, zeros := range []int{0, 1, 200} {
		file := zklog.File(zeros, everything...)
		quiet := 0
		for i := range file {
			for _, mask := range []byte{1, 2, 4, 8, 16, 32, 64, 128, 0xff} {
				b := bytes.Clone(file)
				b[i] ^= mask
				s := zkdata.NewState()
				_, _, err := replay(s, b)
				switch {
				case err != nil && (!errors.Is(err, zkdata.ErrDamaged) || !strings.Contains(err.Error(), "offset ")):
					t.Fatalf("%d zeros, byte %d: %v", zeros, i, err)
				case err == nil && show(s) != afterEverything:
					t.Fatalf("%d zeros, byte %d xor %#x: another state without an error", zeros, i, mask)
				case err == nil && i >= 16 && i < len(file)-zeros:
					t.Fatalf("%d zeros, byte %d xor %#x: not noticed", zeros, i, mask)
				case err == nil:
					quiet++
				}
			}
		}
		if most := 9 * (8 + zeros); quiet > most { // the id of the database, and the zeros
			t.Errorf("%d zeros: %d changes made no difference, should be at most %d", zeros, quiet, most)
		}
	}
}

// TestDamagedStretch overwrites 20 bytes at a time, so that both the checksum and the length of a
// transaction can be wrong. The last transaction is left alone: a crash may leave it like that.
func TestDamagedStretch(t *testing.T) {
	file := zklog.File(100, everything...)
	end := len(zklog.File(0, everything[:len(everything)-1]...))
	r := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	for i := 16; i < end-20; i++ {
		for _, zero := range []bool{true, false} {
			b := bytes.Clone(file)
			for j := range 20 {
				if b[i+j] = 0; !zero {
					b[i+j] = byte(r.Uint32())
				}
			}
			if _, _, err := replay(zkdata.NewState(), b); !errors.Is(err, zkdata.ErrDamaged) {
				t.Fatalf("20 bytes from %d on, zeros %v: %v", i, zero, err)
			}
		}
	}
}

// cutIn returns Cut after all transactions of a log were read.
func cutIn(t *testing.T, b []byte) bool {
	t.Helper()
	l, err := zkdata.NewLog(bytes.NewReader(b))
	for err == nil {
		_, _, err = l.Next()
	}
	if err != io.EOF {
		t.Fatal(err)
	}
	return l.Cut
}

// TestLastZxid: the last zxid is found behind any number of zeros, also of a long transaction, unless that has several
// megabytes; a log that is not one has none.
func TestLastZxid(t *testing.T) {
	long := func(n int) []byte {
		return zklog.File(9<<20, everything[0], zkdata.Txn{Op: proto.OpSetData, Zxid: 2, Path: "/a", Data: bytes.Repeat([]byte("x"), n)})
	}
	for name, x := range map[string]struct {
		file []byte
		zxid int64 // 0 if it is not known
	}{
		"empty":           {nil, 0},
		"only a header":   {zklog.File(1000), 0},
		"only zeros":      {make([]byte, 10<<20), 0},
		"no log":          {[]byte("?"), 0},
		"a short one":     {zklog.File(10<<20, everything...), int64(len(everything))},
		"a long one":      {long(3 << 20), 2},
		"a very long one": {long(5 << 20), 0},
	} {
		zxid, known, err := zkdata.LastZxid(bytes.NewReader(x.file), int64(len(x.file)))
		if err != nil || zxid != x.zxid || known != (x.zxid != 0) {
			t.Errorf("%s: %d, %v, %v, should be %d", name, zxid, known, err, x.zxid)
		}
	}
}

// TestTornLog cuts a log everywhere, with and without zeros after the cut, as a crash leaves it. The
// result is what the whole transactions before lead to.
func TestTornLog(t *testing.T) {
	file := zklog.File(0, everything...)
	var ends []int // of the transactions
	for i := range everything {
		ends = append(ends, len(zklog.File(0, everything[:i+1]...)))
	}
	for _, zeros := range []int{0, 5, 200} {
		for cut := 16; cut < len(file); cut++ {
			whole, begin := 0, 16
			for _, end := range ends {
				if end <= cut {
					whole, begin = whole+1, end
				}
			}
			b := append(bytes.Clone(file[:cut]), make([]byte, zeros)...)
			s := zkdata.NewState()
			n, torn, err := replay(s, b)
			next := 12 // the least that the next transaction needs
			if begin+12 <= cut {
				next = ends[whole] - begin
			}
			if isCut := len(b) < begin+next; cutIn(t, b) != isCut {
				t.Fatalf("cut at %d, %d zeros: Cut should be %v", cut, zeros, isCut)
			}
			last, known, lastErr := zkdata.LastZxid(bytes.NewReader(b), int64(len(b)))
			if clean := whole > 0 && len(bytes.TrimRight(file[begin:cut], "\x00")) == 0; lastErr != nil || known != clean || known && last != everything[whole-1].Zxid {
				t.Fatalf("cut at %d, %d zeros: the last zxid is %d, %v, %v, should be %v", cut, zeros, last, known, lastErr, clean)
			}
			if err != nil || n != whole {
				t.Fatalf("cut at %d, %d zeros: %d transactions, should be %d: %v", cut, zeros, n, whole, err)
			}
			if written := len(bytes.TrimRight(file[begin:cut], "\x00")); torn != int64(written) {
				t.Fatalf("cut at %d, %d zeros: %d bytes at the end, should be %d", cut, zeros, torn, written)
			}
		}
	}
	for cut := range 16 { // within the header
		if _, _, err := replay(zkdata.NewState(), file[:cut]); cut == 0 && err != io.EOF || cut > 0 && !errors.Is(err, zkdata.ErrDamaged) {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
}

// TestLongTransaction: one that is longer than the reader's buffer.
func TestLongTransaction(t *testing.T) {
	log := []zkdata.Txn{
		{Op: proto.OpCreate, Zxid: 1, Path: "/long", Data: bytes.Repeat([]byte("0123456789"), 300_000), ACL: proto.OpenACL, ParentCversion: 1},
		{Op: proto.OpDelete, Zxid: 2, Path: "/zookeeper/config"},
	}
	file := zklog.File(10, log...)
	s := zkdata.NewState()
	if n, _, err := replay(s, file); n != 2 || err != nil || len(s.Get("/long").Data) != 3_000_000 {
		t.Errorf("%d transactions: %v", n, err)
	}
	if n, torn, err := replay(zkdata.NewState(), file[:2_000_000]); n != 0 || torn != 2_000_000-16 || err != nil {
		t.Errorf("%d transactions, %d bytes at the end: %v", n, torn, err)
	}
	for _, at := range []int{24, 25, 26, 27, 3_000_060} { // its length, and the data
		b := bytes.Clone(file)
		b[at] ^= 1
		if n, _, err := replay(zkdata.NewState(), b); n != 0 || !errors.Is(err, zkdata.ErrDamaged) {
			t.Errorf("byte %d: %d transactions, %v", at, n, err)
		}
	}
}

// TestFalseLengths: a length that is larger than the file does not cost memory.
func TestFalseLengths(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	file := written(t, full(t))
	runtime.GC()
	for range 200 {
		b := bytes.Clone(file)
		binary.BigEndian.PutUint32(b[16+r.IntN(len(b)-20):], 64<<20)
		if n := testkit.Allocated(func() { read("snapshot.13", b) }); n > 16<<20 {
			t.Fatalf("a snapshot of %d bytes took %d bytes of memory", len(b), n)
		}
	}
}

func FuzzSnapshot(f *testing.F) {
	file := written(f, full(f))
	f.Add("snapshot.13", file)
	f.Add("snapshot.13.gz", zipped(file))
	f.Add("snapshot.13.snappy", snapped(file))
	f.Fuzz(func(t *testing.T, name string, b []byte) {
		if !strings.HasPrefix(name, "snapshot.") {
			return
		}
		s, err := read(name, b)
		if err != nil {
			return
		}
		if _, err := s.Finish(); err != nil { // ACLs may be missing
			return
		}
		again, err := read("snapshot.13", written(t, s))
		if err != nil || show(again) != show(s) {
			t.Fatalf("%v: was\n%s\nand became\n%s", err, show(s), show(again))
		}
	})
}

// FuzzLog applies the transactions of a log, and those whose checksums are right.
func FuzzLog(f *testing.F) {
	f.Add(zklog.File(20, everything...), []byte{})
	for i := range everything {
		f.Add([]byte{}, zklog.Body(&everything[i]))
	}
	f.Fuzz(func(t *testing.T, log, body []byte) {
		s := zkdata.NewState()
		for _, b := range [][]byte{log, append(zklog.File(0), zklog.Entry(body)...)} {
			replay(s, b)
		}
		if _, err := s.Finish(); err == nil {
			written(t, s)
		}
	})
}
