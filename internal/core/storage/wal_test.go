package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// testWAL is a walStore with segments of that many bytes.
func testWAL(segmentSize int) testedDisk {
	return testedDisk{diskStore: walStore{segmentSize: segmentSize, log: hclog.NewNullLogger()}}
}

// crashed is a data directory as a server leaves it that is killed after it stored
// entries, the last of which has size bytes of data, and where that one begins in
// the last segment.
func crashed(t *testing.T, disk testedDisk, size int) (dir string, before, after *Report, tail foundSegment, begins int) {
	t.Helper()
	live := filepath.Join(testkit.MemoryDir(t), "data")
	m := start(t, disk.mustOpen(t, live))
	m.openSession(1)
	m.create(1, "/before", 10)
	before = disk.mustCheck(t, copyDir(t, live))
	begins = walTail(t, copyDir(t, live)).end
	m.create(1, "/last", size)
	dir = copyDir(t, live)
	m.stop()
	return dir, before, disk.mustCheck(t, dir), walTail(t, dir), begins
}

// reopened opens a copy of dir in which the content of the segment at path is
// another, and returns its state after a further write.
func reopened(t *testing.T, disk testedDisk, dir, path string, content []byte) (state *Report, err error) {
	t.Helper()
	work := copyDir(t, dir)
	defer os.RemoveAll(filepath.Dir(work))
	check(t, os.WriteFile(filepath.Join(work, walDir, filepath.Base(path)), content, fileMode))
	state, err = checkDirectory(disk, work)
	s, openErr := disk.tryOpen(work)
	if (err == nil) != (openErr == nil) {
		t.Fatalf("Check says %v, Open says %v", err, openErr)
	}
	if err != nil {
		return nil, err
	}
	start(t, s).stop()
	if now := disk.mustCheck(t, work); !sameState(now, state) {
		t.Errorf("after a write the state is %+v, was %+v", now, state)
	}
	return state, nil
}

// TestWALTornAtEveryByte ends the last write after each of its bytes, or every seventh
// of them: the log has all of that write or nothing, and goes on.
func TestWALTornAtEveryByte(t *testing.T) {
	disk := testWAL(32 << 10)
	for _, size := range []int{0, 700} {
		dir, before, after, tail, begins := crashed(t, disk, size)
		for cut := begins; cut <= tail.end; cut++ {
			if (size > 0 || !testkit.Thorough) && cut < tail.end-16 && cut%7 > 0 {
				continue
			}
			content := append([]byte(nil), tail.content...)
			clear(content[cut:])
			state, err := reopened(t, disk, dir, tail.path, content)
			if err != nil {
				t.Fatalf("cut at %d of %d to %d: %v", cut, begins, tail.end, err)
			}
			if !sameState(state, before) && !sameState(state, after) {
				t.Fatalf("cut at %d of %d to %d: the state is %+v", cut, begins, tail.end, state)
			}
			if whole := sameState(state, after); whole != (cut == tail.end) && len(strings.TrimRight(string(tail.content[cut:tail.end]), "\x00")) > 0 {
				t.Fatalf("cut at %d of %d to %d: the entry is there: %v", cut, begins, tail.end, whole)
			}
		}
	}
}

// TestWALTornSectors leaves out sectors of the last write, in any order, as a disk
// without power does.
func TestWALTornSectors(t *testing.T) {
	disk := testWAL(32 << 10)
	dir, before, after, tail, begins := crashed(t, disk, 5000)
	r := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	for range 60 {
		content, missing := append([]byte(nil), tail.content...), 0
		for at := begins / sector * sector; at < tail.end; at += sector {
			if r.IntN(3) == 0 {
				clear(content[max(at, begins):min(at+sector, tail.end)])
				missing++
			}
		}
		state, err := reopened(t, disk, dir, tail.path, content)
		if err != nil {
			t.Fatalf("%d sectors are missing: %v", missing, err)
		}
		if want := before; missing == 0 && !sameState(state, after) || missing > 0 && !sameState(state, want) {
			t.Fatalf("%d sectors are missing: the state is %+v", missing, state)
		}
	}
}

// TestWALTornInData tears a write whose data a client has chosen so that a part of it looks like
// the end of a batch, a batch, or many frames: sectors of it are missing, or its end is. It is
// taken for torn, and soon.
func TestWALTornInData(t *testing.T) {
	disk := testWAL(512 << 10)
	batch := walBatch(t, 7)
	for name, what := range map[string][]byte{
		"commits":          {frameCommit, 0, 0, 0, 1, 2, 3, 4},
		"numbers":          {4, 0, 0, 0, 3, 0, 0, 0},
		"batches":          batch,
		"entries":          batch[:len(batch)-frameHeader],
		"empty entries":    {frameEntry, 0, 0, 0, 0, 0, 0, 0},
		"entries, commits": {frameEntry, 0, 0, 0, 8, 0, 0, 0, frameCommit, 0, 0, 0, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := start(t, disk.mustOpen(t, filepath.Join(testkit.MemoryDir(t), "data")))
			m.openSession(1)
			var took time.Duration // of a processor
			for try := range 2 * frameHeader {
				shift, size := try%frameHeader, 4000 // shift is that of the data from where frames begin
				if try >= frameHeader {
					size = 50_000
				}
				begins := walTail(t, copyDir(t, m.s.Name)).end
				data := append(make([]byte, shift), bytes.Repeat(what, size/len(what))...)
				body := (&proto.CreateRequest{Path: fmt.Sprint("/", 10+try), Data: data, ACL: proto.OpenACL}).Append(nil)
				m.do(&fsm.Command{Op: proto.OpCreate, Session: 1, Conn: 1, Body: body})
				tail := walTail(t, copyDir(t, m.s.Name))
				torn := bytes.Clone(tail.content)
				took += testkit.CPU(t, func() {
					for at := begins; at < tail.end; at = (at/sector + 1) * sector {
						next := min((at/sector+1)*sector, tail.end)
						for _, end := range []int{next, tail.end} { // that sector is missing; the rest is, too
							clear(torn[at:end])
							s := must(parseSegment(torn, tail.SegmentInfo))(t)
							rest, err := tornTail(torn, s, tail.SegmentInfo)
							if err != nil || s.end != begins || s.end+rest > tail.end {
								t.Fatalf("shift %d, write at %d to %d without %d to %d: the log ends at %d, then %d torn bytes, %v", shift, begins, tail.end, at, end, s.end, rest, err)
							}
							copy(torn[at:end], tail.content[at:])
						}
						if size > 4000 && at > begins+4*sector && at < tail.end-4*sector {
							at += 7 * sector
						}
					}
				})
			}
			m.stop()
			if took > 10*time.Second {
				t.Errorf("judging torn writes took %v", took)
			}
		})
	}
}

// TestWALTornBetweenEntries tears a write of two entries where the header of the second one is
// missing, and its data looks like batches with an index that cannot follow.
func TestWALTornBetweenEntries(t *testing.T) {
	disk := testWAL(32 << 10)
	dir := filepath.Join(testkit.MemoryDir(t), "data")
	m := start(t, disk.mustOpen(t, dir))
	m.openSession(1)
	begins := walTail(t, copyDir(t, dir)).end
	second := bytes.Repeat(walBatch(t, 1_000_000), 40)
	check(t, m.s.Log.StoreLogs([]*raft.Log{
		{Index: m.index + 1, Term: m.term, Type: raft.LogNoop, Data: make([]byte, 900)},
		{Index: m.index + 2, Term: m.term, Type: raft.LogNoop, Data: second},
	}))
	tail := walTail(t, copyDir(t, dir))
	m.stop()
	at := tail.entries[len(tail.entries)-1].at
	for shift := range frameHeader { // of the second entry's data
		torn := bytes.Clone(tail.content)
		copy(torn[at+20:tail.end-100], second[shift:])
		clear(torn[max(begins, at/sector*sector) : (at/sector+1)*sector])
		s := must(parseSegment(torn, tail.SegmentInfo))(t)
		if _, err := tornTail(torn, s, tail.SegmentInfo); err != nil || s.end != begins {
			t.Errorf("shift %d: the log ends at %d instead of %d, %v", shift, s.end, begins, err)
		}
	}
}

// walBatch is a batch with one entry, of which anybody can compute the checksums.
func walBatch(t *testing.T, index uint64) []byte {
	t.Helper()
	entry := raft.Log{Index: index, Term: 1, Type: raft.LogNoop}
	entry.Extensions = binary.BigEndian.AppendUint32(nil, entrySum(&entry, nil))
	var content bytes.Buffer
	check(t, (&wal.BinaryCodec{}).Encode(&entry, &content))
	b := append([]byte{frameEntry, 0, 0, 0, byte(content.Len()), 0, 0, 0}, content.Bytes()...)
	b = append(b, make([]byte, -len(b)&(frameHeader-1))...)
	return binary.LittleEndian.AppendUint32(append(b, frameCommit, 0, 0, 0), crc32.Checksum(b, castagnoli))
}

// TestWALDamagedHeaders flips each bit in the header of each frame of a server that was killed.
// That is damage, also where the data is zeros, among which a wrong length leads to something
// like a missing sector.
func TestWALDamagedHeaders(t *testing.T) {
	disk := testWAL(64 << 10)
	m := start(t, disk.mustOpen(t, filepath.Join(testkit.MemoryDir(t), "data")))
	defer m.stop()
	for i := range 12 {
		logs := []*raft.Log{{Index: m.index + 1, Term: m.term, Data: make([]byte, 90*i)}, {Index: m.index + 2, Term: m.term, Data: make([]byte, 130*i)}}
		check(t, m.s.Log.StoreLogs(logs[:1+i%2]))
		m.index += uint64(1 + i%2)
	}
	tail := walTail(t, copyDir(t, m.s.Name))
	entries := map[int]bool{}
	for _, f := range tail.entries {
		entries[f.at-frameHeader] = true
	}
	for at := segmentHeader; at < tail.end-frameHeader; { // the last commit may be that of a torn write
		n := frameHeader
		if entries[at] {
			n += (int(binary.LittleEndian.Uint32(tail.content[at+4:])) + frameHeader - 1) / frameHeader * frameHeader
		}
		for bit := range 8 * frameHeader {
			tail.content[at+bit/8] ^= 1 << (bit % 8)
			s := must(parseSegment(tail.content, tail.SegmentInfo))(t)
			if _, err := tornTail(tail.content, s, tail.SegmentInfo); err == nil && len(s.entries) < len(tail.entries) {
				t.Errorf("bit %d of the header at %d of %d, of an entry %v: the log ends at %d", bit, at, tail.end, entries[at], s.end)
			}
			tail.content[at+bit/8] ^= 1 << (bit % 8)
		}
		at += n
	}
}

// TestWALMissingBefore clears a sector of writes that others follow, of a server that was
// killed. That is damage: all of them were synced before the last one began.
func TestWALMissingBefore(t *testing.T) {
	disk := testWAL(64 << 10)
	dir, _, _, _, begins := crashed(t, disk, 5000)
	m := start(t, disk.mustOpen(t, dir))
	m.openSession(2)
	for i := range 5 {
		m.create(2, fmt.Sprint("/", i), 700*i)
	}
	live := copyDir(t, dir)
	m.stop()
	tail := walTail(t, live)
	last := tail.entries[len(tail.entries)-1].at - frameHeader
	if last < begins+15*sector {
		t.Fatalf("the writes are at %d to %d", begins, last)
	}
	for at := begins / sector * sector; at+sector <= last; at += sector {
		content := bytes.Clone(tail.content)
		clear(content[at : at+sector])
		if _, err := reopened(t, disk, live, tail.path, content); err == nil || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("without the sector at %d of %d, the last write at %d: %v", at, tail.end, last, err)
		}
	}
}

// TestWALTornTwice: what the first crash leaves behind the end of the log is not
// there when the next one comes, and cannot be mistaken for damage.
func TestWALTornTwice(t *testing.T) {
	disk := testWAL(32 << 10)
	dir, _, _, tail, begins := crashed(t, disk, 5000)
	content := append([]byte(nil), tail.content...)
	clear(content[begins : begins+sector]) // the rest of it stays
	check(t, os.WriteFile(tail.path, content, fileMode))
	m := start(t, disk.mustOpen(t, dir))
	left := walTail(t, copyDir(t, dir))
	if rest := strings.TrimRight(string(left.content[left.end:]), "\x00"); rest != "" {
		t.Errorf("%d bytes are left behind the end of the log", len(rest))
	}
	m.stop()
}

// TestWALDamagedLast flips a bit of the write that was stored last before the
// server was killed, or of one before it. That is damage: no crash does it.
func TestWALDamagedLast(t *testing.T) {
	disk := testWAL(32 << 10)
	for _, size := range []int{0, 5000} {
		dir, _, after, tail, _ := crashed(t, disk, size)
		step := 1
		if size > 0 {
			step = 61
		} else if !testkit.Thorough {
			step = 5 // so that each of the eight bits has its turn
		}
		for at := 0; at < tail.end; at += step {
			content := append([]byte(nil), tail.content...)
			content[at] ^= 1 << (at % 8)
			state, err := reopened(t, disk, dir, tail.path, content)
			switch {
			case err == nil && !sameState(state, after):
				t.Errorf("byte %d of %d: opened with another state", at, tail.end)
			case err != nil && (!strings.Contains(err.Error(), walDir) || !strings.Contains(err.Error(), "damaged")):
				t.Errorf("byte %d: %v", at, err)
			}
		}
	}
}

// TestWALClosedEnd: when a server was closed, nothing of its last write can be
// missing, also where a crash could have left it out.
func TestWALClosedEnd(t *testing.T) {
	disk := testWAL(32 << 10)
	dir := filepath.Join(testkit.MemoryDir(t), "data")
	m := start(t, disk.mustOpen(t, dir))
	m.openSession(1)
	m.create(1, "/last", 5000)
	m.stop()
	tail := walTail(t, dir)
	last := tail.entries[len(tail.entries)-1]
	clear(tail.content[last.at-frameHeader:])
	check(t, os.WriteFile(tail.path, tail.content, fileMode))
	for range 2 {
		if _, err := disk.tryOpen(dir); err == nil || !strings.Contains(err.Error(), tail.path+" is damaged") {
			t.Fatalf("the last write is gone: %v", err)
		}
	}
}

// TestWALMissingSegment removes each segment: the log is not opened without it, and
// the error names it. A new log has its first segment from the beginning.
func TestWALMissingSegment(t *testing.T) {
	disk := testWAL(8 << 10)
	dir, _ := sample(t, disk)
	fresh := filepath.Join(testkit.MemoryDir(t), "data")
	check(t, disk.mustOpen(t, fresh).Close())
	for _, dir := range []string{dir, fresh} {
		segments := disk.files(dir)[1:]
		if len(segments) == 0 {
			t.Fatal("no segments")
		}
		for _, name := range segments {
			work := copyDir(t, dir)
			check(t, os.Remove(filepath.Join(work, name)))
			for range 2 {
				if s, err := disk.tryOpen(work); err == nil {
					s.Close()
					t.Fatalf("opened without %s", name)
				} else if !strings.Contains(err.Error(), filepath.Join(work, name)+" is missing") {
					t.Errorf("without %s: %v", name, err)
				}
			}
		}
	}
}

// TestWALCutRotation crashes a server at each step between the write that fills a
// segment and the first one to the next.
func TestWALCutRotation(t *testing.T) {
	disk := testWAL(4 << 10)
	live := filepath.Join(testkit.MemoryDir(t), "data")
	m := start(t, disk.mustOpen(t, live))
	m.openSession(1)
	for i := range 20 {
		old := copyDir(t, live)
		m.create(1, fmt.Sprintf("/n%d", i), 900)
		must(m.s.Log.LastIndex())(t)
		m.store(raft.LogNoop, nil) // waits for the rotation
		now := copyDir(t, live)
		want := disk.mustCheck(t, now)
		if len(disk.files(now)) == len(disk.files(old)) {
			continue
		}
		// The list of segments is the old one; the segments are as they are now, with
		// and without the new one.
		for _, remove := range []bool{false, true} {
			work := copyDir(t, now)
			for _, name := range disk.files(now) {
				_, err := os.Stat(filepath.Join(old, name))
				switch isNew := errors.Is(err, fs.ErrNotExist); {
				case name == walStable:
					check(t, os.WriteFile(filepath.Join(work, name), must(os.ReadFile(filepath.Join(old, name)))(t), fileMode))
				case isNew && remove:
					check(t, os.Remove(filepath.Join(work, name)))
				case isNew:
					check(t, os.Truncate(filepath.Join(work, name), 0))
					check(t, os.Truncate(filepath.Join(work, name), 4<<10))
				}
			}
			if got := disk.mustCheck(t, work); !sameState(got, want) {
				t.Fatalf("the state is %+v, should be %+v", got, want)
			}
			again := start(t, disk.mustOpen(t, work))
			again.create(1, "/again", 900)
			again.stop()
			if got := disk.mustCheck(t, work); got.Znodes != want.Znodes+1 {
				t.Errorf("%d znodes, should be %d", got.Znodes, want.Znodes+1)
			}
		}
		m.stop()
		return
	}
	t.Fatal("no segment was filled")
}

// TestWALFirstSegmentCut crashes a new server between making the file of its first
// segment and storing the list with that segment. The next server keeps what it stores.
func TestWALFirstSegmentCut(t *testing.T) {
	disk := testWAL(32 << 10)
	dir := filepath.Join(testkit.MemoryDir(t), "data")
	check(t, disk.mustOpen(t, dir).Close())
	first := disk.files(dir)[1]
	check(t, os.RemoveAll(dir))
	check(t, os.MkdirAll(filepath.Join(dir, walDir), dirMode))
	maker := must(newSegmentMaker(filepath.Join(dir, walDir), 32<<10, hclog.NewNullLogger()))(t)
	check(t, maker.make(filepath.Base(first), 32<<10))
	maker.end()
	check(t, maker.close())
	m := start(t, disk.mustOpen(t, dir))
	m.openSession(1)
	m.stop()
	if r := disk.mustCheck(t, dir); r.Sessions != 1 {
		t.Errorf("%+v", r)
	}
}

// TestWALListLost puts a new database in the place of the one with the list of
// segments. That is damage, and the segments stay.
func TestWALListLost(t *testing.T) {
	disk := testWAL(32 << 10)
	dir, _ := sample(t, disk)
	files := disk.files(dir)
	check(t, os.Remove(filepath.Join(dir, walStable)))
	check(t, createDatabase(filepath.Join(dir, walStable)))
	for range 2 {
		if s, err := disk.tryOpen(dir); err == nil {
			s.Close()
			t.Fatal("opened without the list of segments")
		} else if !strings.Contains(err.Error(), walStable+" is damaged") {
			t.Error(err)
		}
		if left := disk.files(dir); !slices.Equal(left, files) {
			t.Fatalf("%v are left of %v", left, files)
		}
	}
}

// TestConvert converts a directory to each store and back: it has the same state, the same cluster or
// proposal, and nothing of the store that it had.
func TestConvert(t *testing.T) {
	first := []proto.Peer{{ID: 1, Addr: "a:1"}, {ID: 2, Addr: "b:1", Observer: true}}
	of := []Identity{{Cluster: 7, Agreed: true}, {Cluster: 8, Agreed: true, First: first}, {Cluster: 9, First: first}, {}}
	for i, from := range LogStores {
		for j, to := range LogStores {
			identity := of[2*i+j]
			t.Run(fmt.Sprintf("%s to %s", from, to), func(t *testing.T) {
				kind := func(s LogStore) testedDisk { return testedDisk{diskStore: must(s.disk(hclog.NewNullLogger()))(t)} }
				dir, want := sample(t, kind(from))
				s := must(openAs(dir, ""))(t)
				check(t, errors.Join(s.SetIdentity(identity), s.Close()))
				if from != to {
					check(t, os.MkdirAll(kind(to).logPath(dir), dirMode)) // of a conversion that a crash ended
				}
				got := must(Convert(dir, to))(t)
				if !sameState(got, want) || got.LogStore != to || got.FirstIndex != want.FirstIndex || got.LastIndex != want.LastIndex {
					t.Errorf("%+v, was %+v", got, want)
				}
				for _, name := range kind(from).files(dir) {
					if _, err := os.Stat(filepath.Join(dir, name)); from != to && !errors.Is(err, fs.ErrNotExist) {
						t.Errorf("%s is still there: %v", name, err)
					}
				}
				if _, err := openAs(dir, other(to)); err == nil || !strings.Contains(err.Error(), "--convert "+string(other(to))) || strings.Contains(err.Error(), "\n") {
					t.Errorf("opened with the other store: %v", err)
				}
				s = must(openAs(dir, ""))(t)
				if is := s.Identity(); !reflect.DeepEqual(is, identity) {
					t.Errorf("it has %+v, not %+v", is, identity)
				}
				m := start(t, s)
				m.openSession(99)
				m.stop()
				if got := must(Check(dir))(t); got.Sessions != want.Sessions+1 {
					t.Errorf("%+v", got)
				}
			})
		}
	}
}

// TestConvertBesideAnother: while a directory is being converted or checked, another conversion
// is refused. It would delete the log that the first one makes.
func TestConvertBesideAnother(t *testing.T) {
	for _, kind := range LogStores {
		disk := testedDisk{diskStore: must(kind.disk(hclog.NewNullLogger()))(t)}
		dir, want := sample(t, disk)
		held := must(disk.open(dir, true))(t)
		if _, err := Convert(dir, other(kind)); !errors.Is(err, ErrInUse) {
			t.Errorf("from %s: %v", kind, err)
		}
		check(t, held.Close())
		if r := must(Check(dir))(t); r.LogStore != kind || !sameState(r, want) {
			t.Errorf("from %s: %+v, was %+v", kind, r, want)
		}
	}
}

func openAs(dir string, kind LogStore) (*Storage, error) {
	return Open(dir, kind, 1, testkit.Quiet, hclog.NewNullLogger())
}

func other(s LogStore) LogStore {
	if s == WAL {
		return BoltDB
	}
	return WAL
}

// TestLostMeta: without its meta.json, a directory is not taken for a new one of
// another kind.
func TestLostMeta(t *testing.T) {
	for _, kind := range LogStores {
		dir := filepath.Join(testkit.MemoryDir(t), "data")
		m := start(t, must(openAs(dir, kind))(t))
		m.openSession(1)
		m.stop()
		check(t, os.Remove(filepath.Join(dir, metaFile)))
		if s, err := openAs(dir, other(kind)); err == nil {
			s.Close()
			t.Errorf("a directory with a log in %s was opened as %s", kind, other(kind))
		}
		check(t, must(openAs(dir, ""))(t).Close())
		if r := must(Check(dir))(t); r.Sessions != 1 || r.LogStore != kind {
			t.Errorf("%+v", r)
		}
	}
}

// TestWALUndeleted: after an old segment could not be deleted, which raft-wal only logs,
// nothing more is stored.
func TestWALUndeleted(t *testing.T) {
	disk, dir := testWAL(32<<10), filepath.Join(testkit.MemoryDir(t), "data")
	s := disk.mustOpen(t, dir)
	defer s.Close()
	next := uint64(1)
	store := func() error {
		l := &raft.Log{Index: next, Term: 1, Data: make([]byte, 10<<10)}
		next++
		return s.Log.StoreLog(l)
	}
	for range 12 {
		check(t, store())
	}
	old := disk.files(dir)[1]
	check(t, os.Remove(filepath.Join(dir, old)))
	check(t, os.MkdirAll(filepath.Join(dir, old, "full"), 0o700)) // so that it cannot be removed
	check(t, s.Log.DeleteRange(1, 8))
	var err error
	testkit.Eventually(t, "a later entry fails", func() bool {
		err = store()
		return err != nil
	})
	if !strings.Contains(err.Error(), "deleting an old segment") {
		t.Errorf("a later entry: %v", err)
	}
}

// TestWALDeletesLater: entries are stored while the segments before them are still being deleted,
// and Close waits for that.
func TestWALDeletesLater(t *testing.T) {
	disk, dir := testWAL(32<<10), filepath.Join(testkit.MemoryDir(t), "data")
	check(t, disk.mustOpen(t, dir).Close())
	store := must(disk.open(dir, false))(t)
	maker := store.(*walLog).files
	slow := make(chan bool)
	maker.unlink = func(path string) error {
		<-slow
		return os.Remove(path)
	}
	next := uint64(1)
	more := func(n int) {
		for range n {
			check(t, store.StoreLogs([]*raft.Log{{Index: next, Term: 1, Data: make([]byte, 10<<10)}}))
			next++
		}
	}
	more(24)
	before := len(disk.files(dir))
	check(t, store.DeleteRange(1, 16))
	more(12)
	check(t, store.DeleteRange(17, 28))
	more(1)
	if n := len(disk.files(dir)); n < before {
		t.Fatalf("%d files, there were %d: nothing was deleted slowly", n, before)
	}
	close(slow)
	check(t, store.Close())
	if n := len(disk.files(dir)); n >= before {
		t.Errorf("%d files are left, there were %d", n, before)
	}
}

// TestWALReadWhileDeleted: entries are read, as a leader does for a member that lags, while they are deleted behind a snapshot.
// They are found, or are not there any more. Another error would be taken for damage, for which the leader ends.
func TestWALReadWhileDeleted(t *testing.T) {
	s := testWAL(4<<10).mustOpen(t, filepath.Join(testkit.MemoryDir(t), "data"))
	defer s.Close()
	var over atomic.Bool
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for !over.Load() {
				first, err := s.Log.FirstIndex()
				if err == nil && first > 0 {
					err = s.Log.GetLog(first, new(raft.Log))
				}
				if err != nil && !errors.Is(err, raft.ErrLogNotFound) {
					t.Errorf("entry %d: %v", first, err)
					over.Store(true)
				}
			}
		})
	}
	for i := uint64(1); i <= 500 && !over.Load(); i++ {
		check(t, s.Log.StoreLogs([]*raft.Log{{Index: i, Term: 1, Data: make([]byte, 1500)}}))
		check(t, s.Log.DeleteRange(0, max(i, 6)-6))
	}
	over.Store(true)
	readers.Wait()
}
