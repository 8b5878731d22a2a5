package storage

import (
	"errors"
	"io"
	"io/fs"
	"math"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// TestMemorySnapshots: a snapshot counts when it is whole, and not before.
func TestMemorySnapshots(t *testing.T) {
	s := &memorySnapshots{}
	write := func(index uint64, text string) raft.SnapshotSink {
		sink := must(s.Create(1, index, 1, raft.Configuration{}, 1, nil))(t)
		io.WriteString(sink, text)
		return sink
	}
	newest := func() string {
		list, err := s.List()
		if err != nil || len(list) == 0 {
			return ""
		}
		meta, r, err := s.Open(list[0].ID)
		check(t, err)
		b, _ := io.ReadAll(r)
		if meta.Size != int64(len(b)) {
			t.Errorf("%d bytes, said to be %d", len(b), meta.Size)
		}
		return string(b)
	}
	first := write(1, "first")
	if got := newest(); got != "" {
		t.Errorf("%q is there before its end", got)
	}
	first.Close()
	write(2, "a pa") // and a crash
	write(3, "worse").Cancel()
	if got := newest(); got != "first" {
		t.Errorf("the newest is %q, want the one that is whole", got)
	}
	write(4, "second").Close()
	if got := newest(); got != "second" {
		t.Errorf("the newest is %q", got)
	}
}

// TestNoSnapshot: a snapshot that was replaced is not taken for one that cannot be read.
func TestNoSnapshot(t *testing.T) {
	files := must(openSnapshots(t.TempDir(), hclog.NewNullLogger()))(t)
	for _, s := range []raft.SnapshotStore{files, &memorySnapshots{}} {
		if _, _, err := s.Open("1-1-1"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%T: %v", s, err)
		}
	}
}

// TestMemoryLog: a range that is not there is not deleted, and harms nothing.
func TestMemoryLog(t *testing.T) {
	log := NewMemory().Open().Log
	store := func(from, to uint64) {
		for i := from; i <= to; i++ {
			check(t, log.StoreLog(&raft.Log{Index: i}))
		}
	}
	is := func(wantFirst, wantLast uint64) {
		t.Helper()
		first, _ := log.FirstIndex()
		last, _ := log.LastIndex()
		if first != wantFirst || last != wantLast {
			t.Errorf("the log is %d to %d, want %d to %d", first, last, wantFirst, wantLast)
		}
	}
	store(1, 20)
	log.DeleteRange(1, 20)
	log.DeleteRange(0, 15) // begun before the other ended
	log.DeleteRange(7, 15)
	is(0, 0)
	store(31, 40)
	log.DeleteRange(1, 30)
	is(31, 40)
	log.DeleteRange(20, 32)
	is(33, 40)
	log.DeleteRange(39, 50)
	is(33, 38)
	log.DeleteRange(0, math.MaxUint64)
	is(0, 0)
}

// TestMemorySuperseded: what a crash leaves of a log that the leader's snapshot
// supersedes is deleted at the next start.
func TestMemorySuperseded(t *testing.T) {
	for _, end := range []uint64{3, 9, 12} { // before the snapshot's end, and with another entry there
		memory := NewMemory()
		s := memory.Open()
		check(t, s.Log.StoreLogs(noops(1, end, 1)))
		sink := must(s.Snapshots.Create(1, 9, 2, Configuration(alone), 1, nil))(t)
		check(t, sink.Close())
		if last := must(memory.Open().Log.LastIndex())(t); last != 0 {
			t.Errorf("the log ends at %d", last)
		}
	}
}
