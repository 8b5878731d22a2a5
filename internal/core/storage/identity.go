package storage

import (
	"fmt"
	"strconv"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
)

// ClusterID identifies a cluster, or a standalone server's data. It is random, made once
// when the cluster is formed, and never changes. 0 stands for none.
type ClusterID uint64

// String returns the id as 16 hexadecimal digits, or "" for none.
func (id ClusterID) String() string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", uint64(id))
}

func (id ClusterID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

func (id *ClusterID) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 16, 64)
	if len(text) > 0 && (err != nil || n == 0 || len(text) != 16) {
		return fmt.Errorf("%q is not the id of a cluster", text)
	}
	*id = ClusterID(n)
	return nil
}

// Identity says which cluster a storage belongs to. A storage without a Cluster is new, or
// restored from a snapshot. It is stored in meta.json.
type Identity struct {
	Cluster ClusterID `json:"cluster,omitempty"`
	// Agreed is false while Cluster is only proposed, and may still be replaced by
	// another proposal. Once it is true, the storage belongs to this cluster for good.
	Agreed bool `json:"agreed,omitempty"`
	// First are the members of a cluster that is formed with this proposal, sorted by id; there
	// are none if the storage has entries already.
	First []proto.Peer `json:"first,omitempty"`
	// Since is the index up to which the cluster had acknowledged entries when this member
	// joined it without data. Before its log has reached that, its list of members is one of
	// the past, in which it may have had a vote.
	Since uint64 `json:"since,omitempty"`
}

// Check fails if the log and the snapshots beside the identity are of another cluster, of; 0
// stands for an unknown one.
func (x Identity) Check(of ClusterID) error {
	if !x.Agreed || of == 0 || of == x.Cluster {
		return nil
	}
	return fmt.Errorf("it belongs to cluster %v, but its log to cluster %v: files of two data directories were mixed", x.Cluster, of)
}

// LogOf returns the cluster that the log and the snapshots were of when the storage was opened;
// 0 if they do not say it.
func (s *Storage) LogOf() ClusterID { return s.logOf }

// note takes from an entry of the log what a Storage says about it when it is opened.
func (s *Storage) note(l *raft.Log) error {
	switch {
	case l.Type == raft.LogConfiguration:
		s.Members = Peers(raft.DecodeConfiguration(l.Data))
	case l.Type == raft.LogCommand && s.logOf == 0:
		s.logOf = ClusterID(fsm.Identified(l.Data))
	}
	return nil
}

// Identity returns what was stored last. It may be called at any time, and does not wait for
// the disk.
func (s *Storage) Identity() Identity { return *s.identity.Load() }

// SetIdentity stores x durably. It must not be called twice at a time. After an error it is
// unknown whether x was stored.
func (s *Storage) SetIdentity(x Identity) error {
	err := s.StoreIdentity(x)
	if err == nil {
		s.identity.Store(&x)
	}
	return err
}
