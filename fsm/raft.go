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
	"strings"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/znode"
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
	if text := Members(c); text != nil && r.failed == nil {
		r.setMembers(index, text)
	}
}

// Members is what /zookeeper/config says of a configuration, in the form of
// QuorumVerifier; nil for a server that is alone and has no peer port.
func Members(c raft.Configuration) func(zxid int64) string {
	var b strings.Builder
	servers := slices.Clone(c.Servers)
	slices.SortFunc(servers, func(a, b raft.Server) int { // ids are numbers
		return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
	})
	for _, s := range servers {
		_, port, err := net.SplitHostPort(string(s.Address))
		if err != nil {
			return nil
		}
		role := "participant"
		if s.Suffrage == raft.Nonvoter {
			role = "observer"
		}
		n, _ := strconv.Atoi(port)
		fmt.Fprintf(&b, "server.%s=%s:%d:%s\n", s.ID, s.Address, ElectionPort(n), role)
	}
	return func(zxid int64) string { return fmt.Sprintf("%sversion=%x", b.String(), zxid) }
}

// ElectionPort is what is told of a member whose peer port is given. Nobody
// listens there: one port does for all. But ZooKeeper's classes, by which
// clients read the members, refuse a server with one port.
func ElectionPort(peer int) int {
	if peer > math.MaxUint16-1000 {
		return peer - 1000
	}
	return peer + 1000 // as people number them: 2888 and 3888
}

// HasMember reports whether /zookeeper/config lists a server of that id.
func (v *View) HasMember(id uint64) bool {
	text := "\n" + string(v.m.tree.Lookup(znode.ConfigPath).Record().Data)
	return strings.Contains(text, fmt.Sprintf("\nserver.%d=", id))
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
