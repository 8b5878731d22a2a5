package storage

import (
	"bytes"
	"errors"
	"testing"

	"github.com/hashicorp/raft"
)

// TestChecksums flips every bit of a value that was stored with a checksum, and
// changes each field of such an entry.
func TestChecksums(t *testing.T) {
	mem := raft.NewInmemStore()
	stable := checksumStable{mem}
	if v, err := stable.GetUint64([]byte("n")); v != 0 || err != nil && err.Error() != "not found" {
		t.Errorf("a number that is not there: %d, %v", v, err)
	}
	check(t, errors.Join(stable.SetUint64([]byte("n"), 7), stable.Set([]byte("v"), []byte("value"))))
	if v, err := stable.GetUint64([]byte("n")); v != 7 || err != nil {
		t.Errorf("%d, %v", v, err)
	}
	if v, err := stable.Get([]byte("v")); string(v) != "value" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	raw, _ := mem.Get([]byte("n"))
	for i := range len(raw) * 8 {
		flipped := bytes.Clone(raw)
		flipped[i/8] ^= 1 << (i % 8)
		mem.Set([]byte("n"), flipped)
		if v, err := stable.GetUint64([]byte("n")); err == nil {
			t.Errorf("bit %d: %d", i, v)
		}
	}
	mem.Set([]byte("n"), raw)
	mem.Set([]byte("v"), raw)
	if v, err := stable.Get([]byte("v")); err == nil {
		t.Errorf("the value of another key: %x", v)
	}

	log := checksumLog{mem}
	mine := &raft.Log{Index: 5, Term: 3, Type: raft.LogCommand, Data: []byte("data"), Extensions: []byte("ext")}
	check(t, log.StoreLogs([]*raft.Log{mine, {Index: 6, Term: 3, Type: raft.LogNoop}}))
	if string(mine.Extensions) != "ext" {
		t.Errorf("the caller's entry was changed: %q", mine.Extensions)
	}
	var got raft.Log
	if err := log.GetLog(5, &got); err != nil || string(got.Data) != "data" || string(got.Extensions) != "ext" {
		t.Errorf("%+v, %v", got, err)
	}
	if err := log.GetLog(6, &got); err != nil || got.Extensions != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if err := log.GetLog(7, &got); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("an entry that is not there: %v", err)
	}
	for name, change := range map[string]func(l *raft.Log){
		"index":       func(l *raft.Log) { l.Index++ },
		"term":        func(l *raft.Log) { l.Term++ },
		"type":        func(l *raft.Log) { l.Type = raft.LogNoop },
		"data":        func(l *raft.Log) { l.Data = []byte("date") },
		"no data":     func(l *raft.Log) { l.Data = nil },
		"extensions":  func(l *raft.Log) { l.Extensions = append([]byte("x"), l.Extensions...) },
		"no checksum": func(l *raft.Log) { l.Extensions = nil },
	} {
		var l raft.Log
		check(t, mem.GetLog(5, &l))
		keep := l
		change(&l)
		tampered := checksumLog{oneLog{mem, l}}
		if err := tampered.GetLog(5, &got); !errors.Is(err, errChecksum) {
			t.Errorf("%s: %v", name, err)
		}
		check(t, mem.StoreLog(&keep))
	}
}

type oneLog struct {
	raft.LogStore
	l raft.Log
}

func (o oneLog) GetLog(_ uint64, l *raft.Log) error { *l = o.l; return nil }
