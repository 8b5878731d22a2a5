package cluster

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
	"github.com/lockkeeper/lockkeeper/proto"
)

// membership changes the list of members while this member leads, brings this server
// into its cluster, and notices when it was removed. The list itself is in Raft's
// configuration.
//
// Its goroutines are watch, and those of its former; they end with the member. sendToRemoved
// ends within seconds, and so do those that canFollow starts, unless the disk of the member that they ask is stuck. Its methods are safe for
// concurrent use.
type membership struct {
	*pulse
	cfg        *Config
	configured []proto.Peer // the members of a new cluster, from cfg
	former     *former
	replica    *fsm.Replica
	leader     *knownLeader
	handover   *handover

	changing wake.Turn   // held by change while it changes the members
	brief    atomic.Bool // the change under way was asked for by a member that has lost its disk
	asked    uint64      // the term in which the change under way was asked for; guarded by changing
}

func newMembership(cfg *Config, replica *fsm.Replica, leader *knownLeader, p *pulse) *membership {
	return &membership{
		pulse: p, cfg: cfg, configured: cfg.first(), former: newFormer(cfg, replica, p), replica: replica, leader: leader,
		handover: &handover{p, leader}, changing: wake.NewTurn(),
	}
}

// status returns what this member says of itself.
func (m *membership) status() (Status, error) {
	s, err := m.standing()
	if err != nil {
		return s, err
	}
	var digest func() uint64
	m.replica.View(func(v *fsm.View) { s.Index, s.Zxid, digest = v.Index(), v.Zxid(), v.DigestLater() })
	s.Digest = fmt.Sprintf("%016x", digest())
	return s, nil
}

// standing is status without what is applied.
func (m *membership) standing() (Status, error) {
	members, err := m.engine.Members()
	if err != nil {
		return Status{}, err
	}
	s := Status{ID: m.cfg.ID, Leader: m.leader.get().id, Term: m.engine.Term(), Role: m.role(), Members: members,
		Cluster: m.gate.Cluster(), Formed: m.gate.IsOpen(), Data: m.engine.LastIndex() > 0, Run: m.former.number}
	if !s.Formed {
		s.Configured, s.Waiting = m.former.list, m.former.waiting()
	}
	if s.Role == "observer" && m.cfg.votes() {
		s.NoVote = "has no vote, but was not started as an observer"
		if m.former.awaits.Load() {
			s.NoVote = "waits for its vote"
		}
	}
	if s.Role == "leader" { // what an earlier leader knows may be over
		s.Differs = m.digests.Differences()
	}
	if m.cfg.About != nil {
		s.About = m.cfg.About()
	}
	return s, nil
}

func (m *membership) role() string {
	if m.peers == nil {
		return "standalone"
	}
	switch lead := m.leader.get().id; {
	case lead == 0:
		return "looking"
	case lead == m.cfg.ID:
		return "leader"
	}
	if members, err := m.engine.Members(); err == nil {
		if self := election.Find(members, m.cfg.ID); self != nil && self.Observer {
			return "observer"
		}
	}
	return "follower"
}

// stillLeads returns ErrNotLeader if the term is over in which the change under way was
// asked for. Another leader may have been asked for it since, and for its opposite after
// that: a member may have been removed, and added again with an empty disk. A change that
// waited in the old leader must not undo that when the old leader leads again.
func (m *membership) stillLeads() error {
	if term, leads := m.engine.Leads(); !leads || term != m.asked {
		return ErrNotLeader
	}
	return nil
}

func leaderError(err error) error {
	if engine.NotLeading(err) {
		return ErrNotLeader
	}
	return err
}

// known reports whether there is a member with this id, and whether it votes, in the last
// applied configuration.
func (m *membership) known(id uint64) (is, votes bool) {
	m.replica.View(func(v *fsm.View) {
		var s proto.Peer
		s, is = v.Member(id)
		votes = is && !s.Observer
	})
	return is, votes
}

func (m *membership) configVersion() (zxid int64) {
	m.replica.View(func(v *fsm.View) { zxid = v.MembersZxid() })
	return zxid
}

// statusOf returns the status of a member, which may be this one, or of a server that
// is to become a member.
func (m *membership) statusOf(ctx context.Context, x proto.Peer) (*Status, error) {
	if x.ID == m.cfg.ID {
		s, err := m.status()
		return &s, err
	}
	return askStatus(ctx, m.peers.Network, x)
}
