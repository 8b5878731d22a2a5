package storage

import (
	"fmt"
	"strconv"
	"sync"

	"github.com/hashicorp/raft"
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

// MarshalText implements [encoding.TextMarshaler].
func (id ClusterID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (id *ClusterID) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 16, 64)
	if len(text) > 0 && (err != nil || n == 0 || len(text) != 16) {
		return fmt.Errorf("%q is not the id of a cluster", text)
	}
	*id = ClusterID(n)
	return nil
}

// Identity says which cluster a storage belongs to. A storage without a Cluster is new,
// restored from a snapshot, or made by a build from before clusters had ids.
type Identity struct {
	Cluster ClusterID
	// Agreed is false while Cluster is only proposed, and may still be replaced by
	// another proposal. Once it is true, the storage belongs to this cluster for good.
	Agreed bool
	// First is the first configuration of a cluster that is formed with this proposal; it
	// has no servers if the storage has entries already.
	First raft.Configuration
}

// identity is the Identity of a Storage, and how to store another one.
type identity struct {
	mu    sync.Mutex
	now   Identity
	store func(Identity) error
}

// Identity returns what was stored last.
func (s *Storage) Identity() Identity {
	s.identity.mu.Lock()
	defer s.identity.mu.Unlock()
	return s.identity.now
}

// SetIdentity stores x durably. After an error it is unknown whether it was stored.
func (s *Storage) SetIdentity(x Identity) error {
	s.identity.mu.Lock()
	defer s.identity.mu.Unlock()
	err := s.identity.store(x)
	if err == nil {
		s.identity.now = x
	}
	return err
}

// metaIdentity is an Identity in meta.json.
type metaIdentity struct {
	Cluster  ClusterID `json:"cluster,omitempty"`  // if agreed
	Proposed ClusterID `json:"proposed,omitempty"` // if not
	First    []byte    `json:"first,omitempty"`    // in Raft's encoding
}

func encodeIdentity(x Identity) (m metaIdentity) {
	if x.Agreed {
		m.Cluster = x.Cluster
	} else {
		m.Proposed = x.Cluster
	}
	if len(x.First.Servers) > 0 {
		m.First = raft.EncodeConfiguration(x.First)
	}
	return m
}

// decode returns the Identity. Raft's decoder panics on a damaged configuration.
func (m *metaIdentity) decode() (x Identity, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	x = Identity{Cluster: m.Proposed}
	if m.Cluster != 0 {
		x = Identity{Cluster: m.Cluster, Agreed: true}
	}
	if len(m.First) > 0 {
		x.First = raft.DecodeConfiguration(m.First)
	}
	return x, nil
}
