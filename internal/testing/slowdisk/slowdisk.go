// Package slowdisk has stores of snapshots whose disk is slow, or stuck, at chosen moments.
package slowdisk

import (
	"time"

	"github.com/hashicorp/raft"
)

// Snapshots calls At before each step of a snapshot: "create", "write" of so many bytes, "close", and "list"; index is that of
// the last entry which the snapshot covers. If At returns an error, the step fails.
type Snapshots struct {
	raft.SnapshotStore
	At func(step string, index uint64, bytes int) error
}

// SlowAt is a store on a slow disk: writes of a snapshot that ends with the entry at take that long.
func SlowAt(s raft.SnapshotStore, at *uint64, takes time.Duration) Snapshots {
	return Snapshots{s, func(step string, index uint64, _ int) error {
		if step == "write" && index == *at {
			time.Sleep(takes)
		}
		return nil
	}}
}

// Create implements [raft.SnapshotStore].
func (s Snapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, at uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	if err := s.At("create", index, 0); err != nil {
		return nil, err
	}
	out, err := s.SnapshotStore.Create(version, index, term, c, at, trans)
	return sink{out, index, s.At}, err
}

// List implements [raft.SnapshotStore].
func (s Snapshots) List() ([]*raft.SnapshotMeta, error) {
	if err := s.At("list", 0, 0); err != nil {
		return nil, err
	}
	return s.SnapshotStore.List()
}

type sink struct {
	raft.SnapshotSink
	index uint64
	at    func(step string, index uint64, bytes int) error
}

func (s sink) Write(p []byte) (int, error) {
	if err := s.at("write", s.index, len(p)); err != nil {
		return 0, err
	}
	return s.SnapshotSink.Write(p)
}

func (s sink) Close() error {
	if err := s.at("close", s.index, 0); err != nil {
		s.Cancel()
		return err
	}
	return s.SnapshotSink.Close()
}
