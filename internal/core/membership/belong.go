package membership

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// Belong finds out which cluster the storage belongs to, if it can be told without the other
// members. It returns what has to run once the engine is started: nil if this member is in its
// cluster, and has its vote if it is to have one.
func (m *Membership) Belong() (begin func(), err error) {
	s, joiner, named := m.Engine.Storage(), m.joiner, m.First()
	empty, err := s.Empty()
	if err != nil {
		return nil, err
	}
	list, first := named, named
	var restored request.FirstState
	if !empty {
		list, first = s.Members, nil
		if restored, err = restoredState(s); err != nil {
			return nil, err
		}
	}
	of := s.Identity()
	if err := of.Check(s.LogOf()); err != nil {
		return nil, err
	}
	rejoining, err := s.Rejoining()
	if err != nil {
		return nil, err
	}
	// Nobody else can be asked which cluster this is, if there is only this server. But a list in which it
	// is alone may be one of the past.
	alone := len(list) == 1 && list[0].ID == m.ID
	whole := alone && len(named) == 1 && named[0].ID == m.ID && !named[0].Observer && !rejoining
	switch log := s.LogOf(); {
	case of.Agreed:
	case empty:
		if alone {
			of = storage.Identity{Cluster: request.ClusterID(randomID()), Agreed: true, First: first}
			err = errors.Join(s.SetRejoining(false), s.SetIdentity(of))
		}
	case whole && (log != 0 || restored.Data()):
		if of = (storage.Identity{Cluster: log, Agreed: true}); log == 0 {
			of.Cluster = request.ClusterID(randomID())
		}
		err = s.SetIdentity(of)
	case alone && !rejoining:
		err = errors.New("in its list of members this server is alone, and that list may be outdated; start it with --peers and only itself if it is the whole cluster; otherwise empty the directory, so that it gets its data from the others")
	case !restored.Data():
		err = fmt.Errorf("its log is of cluster %q, but its meta.json, which says so too, was lost; restore that, or empty the directory and start the server again, so that it gets its data from the others", log)
	}
	if err != nil {
		return nil, err
	}
	if empty && of.Agreed && len(of.First) > 0 { // also after a crash in the middle
		if err := s.Bootstrap(of.First); err != nil {
			return nil, err
		}
		empty = false
	}
	if empty || !of.Agreed { // if it has agreed, it was about to join
		joiner.list, joiner.first, joiner.restored = list, first, restored
		if of.Cluster != 0 { // perhaps accepted just before this start
			joiner.acceptedAt = time.Now()
		}
		return joiner.run, nil
	}
	m.Gate.Open(of.Cluster)
	if owed, err := joiner.owed(); err != nil || !owed {
		return nil, err
	}
	return joiner.awaitPromotion, nil
}

// restoredState describes the snapshot from which the storage was restored, without the digest of its state. It returns the
// zero value if there is a log too, or if the snapshot is of a cluster.
func restoredState(s *storage.Storage) (request.FirstState, error) {
	if last, err := s.Log.LastIndex(); err != nil || last > 0 || s.LogOf() != 0 {
		return request.FirstState{}, err
	}
	newest, err := s.NewestSnapshot()
	return request.FirstState{Index: newest.Index, Term: newest.Term}, err
}

// CheckStored compares the members in the storage with the configured ones. It
// fails if a standalone server's storage is opened as a cluster member's or the
// reverse. Any other difference is only logged: the stored members are in force.
func (m *Membership) CheckStored() error {
	stored, where := m.Engine.Storage().Members, m.Engine.Storage().Name
	if len(stored) == 0 {
		return nil
	}
	_, _, err := net.SplitHostPort(stored[0].Addr)
	switch standalone := err != nil; {
	case standalone && m.Clustered():
		return fmt.Errorf("%s belongs to a standalone server, which cannot become a cluster member; start with an empty one", where)
	case !standalone && !m.Clustered():
		return fmt.Errorf("%s belongs to a member of a cluster of %d; start it with its peers, or with the address of its peer port", where, len(stored))
	case standalone:
		return nil
	}
	if configured := m.First(); len(m.Peers) > 0 && !slices.Equal(stored, configured) {
		m.Log.Warn("ignoring the configured peers: the stored list of members differs and is used", "data", where, "members", stored, "configured", configured)
	} else if self := election.Find(stored, m.ID); self != nil && self.Addr != m.Address() {
		m.Log.Warn("the other members know this server by another address", "known", self.Addr, "configured", m.Address())
	}
	return nil
}
