package fsm

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"runtime"
	"slices"
	"strconv"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Replica implements raft.FSM. Only this file of the package uses Raft.

var (
	_ raft.FSM                = (*Replica)(nil)
	_ raft.ConfigurationStore = (*Replica)(nil)
)

// Apply applies a log entry. It returns nil, or an error if the entry or an earlier one
// could not be decoded.
func (r *Replica) Apply(l *raft.Log) any {
	if r.failed != nil {
		return r.failed
	}
	if err := r.apply(l.Index, l.Term, l.Data); err != nil {
		for _, o := range r.observers {
			o.Failed(r.failed)
		}
		return r.failed
	}
	return nil
}

// StoreConfiguration writes a change of the members to /zookeeper/config. Raft calls it
// on every replica at the same place in the log.
func (r *Replica) StoreConfiguration(index uint64, c raft.Configuration) {
	if members := Members(c); members != nil && r.failed == nil {
		r.setMembers(index, members)
	}
}

// Members returns the servers of a configuration in order of their ids. It returns nil for
// a standalone server, which has no peer port.
func Members(c raft.Configuration) (members []proto.Peer) {
	for _, s := range c.Servers {
		id, _ := strconv.ParseUint(string(s.ID), 10, 64)
		addr := string(s.Address)
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return nil
		}
		members = append(members, proto.Peer{ID: id, Addr: addr, ElectionPort: ElectionPort(addr), Observer: s.Suffrage == raft.Nonvoter})
	}
	slices.SortFunc(members, func(a, b proto.Peer) int { return cmp.Compare(a.ID, b.ID) })
	return members
}

// ElectionPort returns an election port for /zookeeper/config, given the address of a member's
// peer port, until something names another one (see [Describe]). No server listens on it, but
// ZooKeeper's Java classes, with which clients parse the members, require one.
func ElectionPort(addr string) int {
	_, port, _ := net.SplitHostPort(addr)
	peer, _ := strconv.Atoi(port)
	if peer > math.MaxUint16-1000 {
		return peer - 1000
	}
	return peer + 1000 // like 2888 and 3888, the usual ports
}

// Snapshot takes a snapshot. Raft writes it while further entries are applied.
func (r *Replica) Snapshot() (raft.FSMSnapshot, error) {
	s, err := r.State()
	return persister{s, r}, err
}

// Load replaces the state with m, which the caller must not use any more.
func (r *Replica) Load(m *Machine) {
	r.mu.Lock()
	for _, o := range r.observers {
		o.Restoring()
	}
	r.m, r.view = m, View{r, m}
	r.note()
	r.noteVoters()
	r.mu.Unlock()
	for _, o := range r.observers {
		o.Restored()
	}
}

// Restore replaces the state with that of a snapshot. It refuses a snapshot that is older
// than the state. An old snapshot can arrive late: its sender may have been replaced, or
// may have given up waiting.
func (r *Replica) Restore(rc io.ReadCloser) error {
	m, err := ReadSnapshot(rc)
	if err == nil && m.index < r.m.index {
		err = fmt.Errorf("snapshot at entry %d is older than the state at entry %d", m.index, r.m.index)
	}
	if err == nil {
		r.Load(m)
	}
	rc.Close()
	if errors.Is(err, ErrVersion) { // otherwise the leader would send it again and again
		r.mu.Lock()
		r.failed = fmt.Errorf("snapshot: %w", err)
		r.mu.Unlock()
		for _, o := range r.observers {
			o.Failed(r.failed)
		}
	}
	return err
}

type persister struct {
	s *Snapshot
	r *Replica
}

func (p persister) Persist(sink raft.SnapshotSink) error {
	if err := p.s.Write(yielding{sink}); err != nil {
		sink.Cancel()
		if errors.Is(err, ErrMemory) {
			for _, o := range p.r.observers {
				o.Failed(err)
			}
		}
		return err
	}
	return sink.Close()
}

func (persister) Release() {}

// yielding lets other goroutines run after each write, thus after each section of a snapshot.
// Otherwise one that applies or answers a write may have to wait 10 ms for a processor, again and
// again while a large snapshot is encoded.
type yielding struct{ io.Writer }

func (y yielding) Write(b []byte) (int, error) {
	n, err := y.Writer.Write(b)
	runtime.Gosched()
	return n, err
}
