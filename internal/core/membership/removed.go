package membership

import (
	"fmt"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/proto"
)

// wrongCluster returns an error if most of the servers that should be this member's cluster belong to another one.
func (m *Membership) wrongCluster(members []proto.Peer) error {
	own := m.Gate.Cluster()
	if own == 0 {
		return nil
	}
	others := map[request.ClusterID][]uint64{}
	said, _ := m.joiner.survey(members)
	for id, s := range said {
		if s.Formed && s.Cluster != own && !election.Find(members, id).Observer {
			others[s.Cluster] = append(others[s.Cluster], id)
		}
	}
	for of, ids := range others {
		if len(ids) > election.CountVoters(members)/2 {
			slices.Sort(ids)
			return fmt.Errorf("%s belongs to cluster %v, but servers %v to cluster %v: this server has the data directory of another or an earlier cluster, or those addresses are another cluster's now; start it with its own directory, and keep this one until that is clear", m.Engine.Storage().Name, own, ids, of)
		}
	}
	return nil
}

// Watch finds out whether this member was removed from its cluster, and
// reports that as its fault. It asks the other members while no leader is known, and when it
// has disappeared from the list of members for so long that the leader sends it nothing. Its
// own log is no proof: it may end before the removal; a new member's log includes times
// before it was added; and a removed member still gets the log for a moment (see
// Engine.SendToRemoved).
func (m *Membership) Watch() {
	ctx := m.Port.Ctx
	every := 250 * time.Millisecond
	var was bool       // the list that is applied here has had this member
	var gone time.Time // since when it has not; zero while it has
	for {
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return
		}
		var err error // if the log that is applied here is not of this member's cluster, which only a restored snapshot may show
		m.Replica.View(func(v *fsm.View) { err = m.Engine.Storage().Identity().Check(request.ClusterID(v.Cluster())) })
		if err != nil {
			m.Fail(fmt.Errorf("%s: %w", m.Engine.Storage().Name, err))
			return
		}
		if _, is := m.AppliedMember(m.ID); is {
			was, gone = true, time.Time{}
		} else if was && gone.IsZero() {
			gone = time.Now()
		}
		left := !gone.IsZero() && time.Since(gone) >= engine.Farewell // the leader sends nothing any more
		if m.Leader.Get().ID != 0 && !left {
			every = 250 * time.Millisecond
			continue
		}
		members := m.Engine.Members()
		if len(members) == 0 && !m.Gate.IsOpen() { // not added yet
			continue
		}
		every = min(2*every, 5*time.Second)
		if err := m.wrongCluster(members); err != nil && !m.Engine.Abstains() { // otherwise that list is one of the past
			m.Fail(err)
			return
		}
		for _, addr := range m.joiner.addrsToAsk(members...) {
			// Only the leader knows for certain.
			knows := request.Request{Knows: m.ID, Cluster: m.Gate.Cluster()}
			r, err := request.Send(ctx, m.Port.Network, addr, knows)
			if err == nil && r.NotLeader && r.Leader != "" {
				r, err = request.Send(ctx, m.Port.Network, r.Leader, knows)
			}
			if err != nil || r.Error != "" {
				continue
			}
			if !r.Known {
				m.Log.Info("removed from the cluster", "id", m.ID, "by", addr)
				m.joiner.wasRemoved()
				return
			}
			break
		}
	}
}
