package storage

import (
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// Memory holds a member's state without a disk, for as long as it is
// referenced: a member that is opened on the Memory of one that was closed
// finds everything that one had. Only one member at a time may use it.
type Memory struct {
	log   *memoryLog
	snaps *memorySnapshots
	of    atomic.Pointer[Identity]
}

// NewMemory returns the state of a member that never ran.
func NewMemory() *Memory {
	m := &Memory{log: &memoryLog{InmemStore: raft.NewInmemStore()}, snaps: &memorySnapshots{}}
	m.of.Store(new(Identity))
	return m
}

// SetFault has f called before each write of the log, the term or the vote, and before
// entries are deleted. f may block, as a slow disk does, or return an error, as a full
// one does; then nothing is written. Nil removes it.
func (m *Memory) SetFault(f func() error) { m.log.fault.set(f) }

// SetSnapshotFault is SetFault for snapshots: f is called before one is begun, before each write of a part of
// it, and before it is complete.
func (m *Memory) SetSnapshotFault(f func() error) { m.snaps.fault.set(f) }

// Open returns a Storage that reads and writes m.
func (m *Memory) Open() *Storage {
	s := &Storage{Log: m.log, Stable: m.log, Snapshots: m.snaps, Spool: spoolInMemory, Name: "memory", close: func() error { return nil }}
	s.keepVotes()
	s.identity.Store(m.of.Load())
	s.StoreIdentity = func(x Identity) error {
		return m.log.write(func() error { m.of.Store(&x); return nil })
	}
	newest, _ := s.NewestSnapshot()
	s.Members = Peers(newest.Configuration)
	if newest.Index > 0 {
		mending := orderedLog{m.log.InmemStore} // without the fault
		first, last, _ := supersededLog(s.Name, mending, &newest)
		mending.DeleteRange(first, last)
		s.state = m.state(newest.ID)
	}
	first, _ := m.log.FirstIndex()
	last, _ := m.log.LastIndex()
	for i := max(first, 1); i <= last; i++ {
		var l raft.Log
		if m.log.GetLog(i, &l) == nil {
			s.note(&l)
		}
	}
	return s
}

// state returns the state of a snapshot, as a directory is opened with it; nil if it cannot be read.
func (m *Memory) state(id string) *fsm.Machine {
	_, r, err := m.snaps.Open(id)
	if err != nil {
		return nil
	}
	defer r.Close()
	machine, err := fsm.ReadSnapshot(r)
	if err != nil {
		return nil
	}
	return machine
}
