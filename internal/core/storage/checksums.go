package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft"
)

// Raft stores entries and values without checksums. The stores in this file add
// one to each, so that damage to a term, or to the type of an entry, is an error
// and does not lead to another state.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errChecksum = errors.New("checksum")

// checksumLog appends to each entry's extensions a checksum of the whole entry.
type checksumLog struct{ raft.LogStore }

func entrySum(l *raft.Log, extensions []byte) uint32 {
	b := binary.BigEndian.AppendUint64(nil, l.Index)
	b = binary.BigEndian.AppendUint64(b, l.Term)
	b = append(b, byte(l.Type))
	b = binary.BigEndian.AppendUint64(b, uint64(len(l.Data)))
	sum := crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, l.Data)
	return crc32.Update(sum, castagnoli, extensions)
}

func (s checksumLog) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s checksumLog) StoreLogs(logs []*raft.Log) error {
	summed := make([]raft.Log, len(logs))
	list := make([]*raft.Log, len(logs))
	for i, l := range logs {
		summed[i] = *l // the caller goes on using its own
		n := len(l.Extensions)
		summed[i].Extensions = binary.BigEndian.AppendUint32(l.Extensions[:n:n], entrySum(l, l.Extensions))
		list[i] = &summed[i]
	}
	return s.LogStore.StoreLogs(list)
}

func (s checksumLog) GetLog(index uint64, l *raft.Log) error {
	if err := s.LogStore.GetLog(index, l); err != nil {
		return err
	}
	n := len(l.Extensions) - 4
	if n < 0 || l.Index != index || entrySum(l, l.Extensions[:n]) != binary.BigEndian.Uint32(l.Extensions[n:]) {
		return fmt.Errorf("log entry %d: %w", index, errChecksum)
	}
	if l.Extensions = l.Extensions[:n]; n == 0 {
		l.Extensions = nil
	}
	return nil
}

// checksumStable appends to each value a checksum of it and its key.
type checksumStable struct{ raft.StableStore }

func (s checksumStable) Set(key, v []byte) error {
	n := len(v)
	return s.StableStore.Set(key, binary.BigEndian.AppendUint32(v[:n:n], valueSum(key, v)))
}

func (s checksumStable) Get(key []byte) ([]byte, error) {
	v, err := s.StableStore.Get(key)
	if err != nil || len(v) == 0 { // a store in memory returns nothing for a missing key
		return nil, err
	}
	n := len(v) - 4
	if n < 0 || valueSum(key, v[:n]) != binary.BigEndian.Uint32(v[n:]) {
		return nil, fmt.Errorf("%s: %w", key, errChecksum)
	}
	return v[:n], nil
}

func (s checksumStable) SetUint64(key []byte, v uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, v))
}

func (s checksumStable) GetUint64(key []byte) (uint64, error) {
	v, err := s.Get(key)
	switch {
	case err != nil:
		return 0, err
	case len(v) == 0:
		return 0, nil
	case len(v) != 8:
		return 0, fmt.Errorf("%s: %w", key, errChecksum)
	}
	return binary.BigEndian.Uint64(v), nil
}

func valueSum(key, v []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, v)
}
