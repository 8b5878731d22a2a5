package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft"
)

// What Raft keeps has no checksums. These stores put one on everything, so that
// a damaged term or a log entry of another type is an error and not another state.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errSeal = errors.New("checksum")

// sealedLog keeps an entry's checksum behind its extensions.
type sealedLog struct{ raft.LogStore }

func entrySum(l *raft.Log, extensions []byte) uint32 {
	b := binary.BigEndian.AppendUint64(nil, l.Index)
	b = binary.BigEndian.AppendUint64(b, l.Term)
	b = append(b, byte(l.Type))
	b = binary.BigEndian.AppendUint64(b, uint64(len(l.Data)))
	sum := crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, l.Data)
	return crc32.Update(sum, castagnoli, extensions)
}

func (s sealedLog) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s sealedLog) StoreLogs(logs []*raft.Log) error {
	sealed := make([]raft.Log, len(logs))
	list := make([]*raft.Log, len(logs))
	for i, l := range logs {
		sealed[i] = *l // the caller's is in use elsewhere
		n := len(l.Extensions)
		sealed[i].Extensions = binary.BigEndian.AppendUint32(l.Extensions[:n:n], entrySum(l, l.Extensions))
		list[i] = &sealed[i]
	}
	return s.LogStore.StoreLogs(list)
}

func (s sealedLog) GetLog(index uint64, l *raft.Log) error {
	if err := s.LogStore.GetLog(index, l); err != nil {
		return err
	}
	n := len(l.Extensions) - 4
	if n < 0 || l.Index != index || entrySum(l, l.Extensions[:n]) != binary.BigEndian.Uint32(l.Extensions[n:]) {
		return fmt.Errorf("log entry %d: %w", index, errSeal)
	}
	if l.Extensions = l.Extensions[:n]; n == 0 {
		l.Extensions = nil
	}
	return nil
}

// sealedStable keeps a value's checksum behind it.
type sealedStable struct{ raft.StableStore }

func (s sealedStable) Set(key, v []byte) error {
	n := len(v)
	return s.StableStore.Set(key, binary.BigEndian.AppendUint32(v[:n:n], valueSum(key, v)))
}

func (s sealedStable) Get(key []byte) ([]byte, error) {
	v, err := s.StableStore.Get(key)
	if err != nil || len(v) == 0 { // in memory, what is not there is empty
		return nil, err
	}
	n := len(v) - 4
	if n < 0 || valueSum(key, v[:n]) != binary.BigEndian.Uint32(v[n:]) {
		return nil, fmt.Errorf("%s: %w", key, errSeal)
	}
	return v[:n], nil
}

func (s sealedStable) SetUint64(key []byte, v uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, v))
}

func (s sealedStable) GetUint64(key []byte) (uint64, error) {
	v, err := s.Get(key)
	switch {
	case err != nil:
		return 0, err
	case len(v) == 0:
		return 0, nil
	case len(v) != 8:
		return 0, fmt.Errorf("%s: %w", key, errSeal)
	}
	return binary.BigEndian.Uint64(v), nil
}

func valueSum(key, v []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, v)
}
