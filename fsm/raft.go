package fsm

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strconv"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/proto"
)

// The methods that make a Replica a raft.FSM. This file is the only one of the
// package to know Raft.

var (
	_ raft.FSM                = (*Replica)(nil)
	_ raft.ConfigurationStore = (*Replica)(nil)
)

// Apply applies a log entry. Its result is nil, or the error after which this
// replica takes no more entries.
func (r *Replica) Apply(l *raft.Log) any {
	if r.failed != nil {
		return r.failed
	}
	if err := r.apply(l.Index, l.Term, l.Data); err != nil {
		r.failed = fmt.Errorf("log entry %d: %w", l.Index, err)
		for _, o := range r.observers {
			o.Failed(r.failed)
		}
		return r.failed
	}
	return nil
}

// StoreConfiguration makes a change of the members visible in
// /zookeeper/config, on every replica at the same place of the log.
func (r *Replica) StoreConfiguration(index uint64, c raft.Configuration) {
	if members := Members(c); members != nil && r.failed == nil {
		r.setMembers(index, members)
	}
}

// Members are the servers of a configuration, by id; nil for a server that is
// alone and has no peer port.
func Members(c raft.Configuration) (members []proto.QuorumServer) {
	for _, s := range c.Servers {
		id, _ := strconv.ParseUint(string(s.ID), 10, 64)
		_, port, err := net.SplitHostPort(string(s.Address))
		if err != nil {
			return nil
		}
		n, _ := strconv.Atoi(port)
		members = append(members, proto.QuorumServer{
			ID: id, Addr: string(s.Address), ElectionPort: ElectionPort(n), Observer: s.Suffrage == raft.Nonvoter,
		})
	}
	slices.SortFunc(members, func(a, b proto.QuorumServer) int { return cmp.Compare(a.ID, b.ID) })
	return members
}

// ElectionPort is what is told of a member of which no reconfig said more than
// its peer port. Nobody listens there: one port does for all. But ZooKeeper's classes, by which
// clients read the members, refuse a server with one port.
func ElectionPort(peer int) int {
	if peer > math.MaxUint16-1000 {
		return peer - 1000
	}
	return peer + 1000 // as people number them: 2888 and 3888
}

// Snapshot takes a snapshot, which is written beside the entries that follow.
func (r *Replica) Snapshot() (raft.FSMSnapshot, error) {
	if r.failed != nil {
		return nil, r.failed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return persister{r.m.Snapshot()}, nil
}

// Restore replaces the state by that of a snapshot. It refuses one that is older
// than the state: a leader that lost its place, or its patience, may have sent
// it long ago.
func (r *Replica) Restore(rc io.ReadCloser) error {
	m, err := ReadSnapshot(rc)
	if err == nil && m.index < r.m.index {
		err = fmt.Errorf("snapshot: it has entry %d, and the state entry %d", m.index, r.m.index)
	}
	if err == nil {
		r.mu.Lock()
		for _, o := range r.observers {
			o.Restoring()
		}
		r.m = m
		r.mu.Unlock()
		for _, o := range r.observers {
			o.Restored()
		}
	}
	rc.Close()
	if errors.Is(err, ErrVersion) { // it would come again and again
		r.failed = fmt.Errorf("snapshot: %w", err)
		for _, o := range r.observers {
			o.Failed(r.failed)
		}
	}
	return err
}

type persister struct{ s *Snapshot }

func (p persister) Persist(sink raft.SnapshotSink) error {
	if err := p.s.Write(sink); err != nil {
		sink.Cancel()
		return err
	}
	return sink.Close()
}

func (persister) Release() {}
