package membership

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Membership does what the package comment says. Its methods are safe for concurrent use.
type Membership struct {
	*Parts
	joiner *joiner

	changing   wake.Turn   // held by changeIn while it changes the members
	rejoining  atomic.Bool // the change under way was asked for by a member that asks for its own place
	changeTerm uint64      // the term in which the change under way was asked for; guarded by changing
}

// Parts are what a [Membership] works with, and how.
type Parts struct {
	*Server
	AllowSingleVoter bool // a client's reconfig may leave a single voter
	Answers
	Log *slog.Logger

	*lifecycle.Lifecycle
	Engine   *engine.Engine
	Contacts *election.Contacts
	Digests  *election.Digests
	Leader   *election.KnownLeader
	Replica  *fsm.Replica
	Gate     *peer.Gate           // is opened when this server is in its cluster
	Port     *peer.Port           // nil on a standalone server
	Look     wake.Signal          // is raised when an election may be due
	Now      func() timing.Moment // by the clocks of Contacts
}

// New returns the Membership of a server that is about to start.
func New(parts *Parts) *Membership {
	return &Membership{Parts: parts, joiner: newJoiner(parts), changing: wake.NewTurn()}
}

// Status returns what this member says of itself.
func (m *Membership) Status() request.Status {
	s := m.Standing()
	var digest func() uint64
	m.Replica.View(func(v *fsm.View) { s.Index, s.Zxid, digest = v.Index(), v.Zxid(), v.DigestLater() })
	s.Digest = fmt.Sprintf("%016x", digest())
	return s
}

// Standing is Status without Index, Zxid and Digest, for callers that read the state themselves.
func (m *Membership) Standing() request.Status {
	s := request.Status{ID: m.ID, Leader: m.Leader.Get().ID, Term: m.Engine.Term(), Role: m.Role(), Members: m.Engine.Members(),
		Cluster: m.Gate.Cluster(), Formed: m.Gate.IsOpen(), Data: m.Engine.LastIndex() > 0, Run: m.joiner.runID}
	if !s.Formed {
		s.Configured, s.Waiting = m.joiner.list, m.Waiting()
	}
	if s.Role == "observer" && m.Votes() {
		s.NoVote = "has no vote, but was not started as an observer"
		if m.joiner.awaits.Load() {
			s.NoVote = "waits for its vote"
		}
	}
	if s.Role == "leader" { // what an earlier leader knows may be over
		s.Differs = m.Digests.Differences()
	}
	if m.About != nil {
		s.About = m.About()
	}
	return s
}

// Role returns this member's role: leader, follower, observer, looking (it knows no leader) or standalone.
func (m *Membership) Role() string {
	if m.Port == nil {
		return "standalone"
	}
	switch lead := m.Leader.Get().ID; {
	case lead == 0:
		return "looking"
	case lead == m.ID:
		return "leader"
	}
	if self := election.Find(m.Engine.Members(), m.ID); self != nil && self.Observer {
		return "observer"
	}
	return "follower"
}

// stillLeads returns ErrNotLeader if the term is over in which the change under way was
// asked for. Another leader may have been asked for it since, and for its opposite after
// that: a member may have been removed, and added again with an empty disk. A change that
// waited in the old leader must not undo that when the old leader leads again.
func (m *Membership) stillLeads() error {
	if term, leads := m.Engine.LeaderTerm(); !leads || term != m.changeTerm {
		return request.ErrNotLeader
	}
	return nil
}

func leaderError(err error) error {
	if engine.NotLeading(err) {
		return request.ErrNotLeader
	}
	return err
}

// AppliedMember returns the member with this id in the last applied configuration, and whether there is one.
func (m *Membership) AppliedMember(id uint64) (x proto.Peer, is bool) {
	m.Replica.View(func(v *fsm.View) { x, is = v.Member(id) })
	return x, is
}

// ConfigVersion returns the zxid of the last change of the members that is applied here.
func (m *Membership) ConfigVersion() (zxid int64) {
	m.Replica.View(func(v *fsm.View) { zxid = v.MembersZxid() })
	return zxid
}

// statusOf returns the status of a member, which may be this one, or of a server that
// is to become a member.
func (m *Membership) statusOf(ctx context.Context, x proto.Peer) (*request.Status, error) {
	if x.ID == m.ID {
		s := m.Status()
		return &s, nil
	}
	return request.StatusOf(ctx, m.Port.Network, x)
}

// Waiting returns why this server is in no cluster yet, as far as it knows.
func (m *Membership) Waiting() string {
	why, _ := m.joiner.why.Load().(string)
	return why
}

// Called notes that a member of a cluster has called this server, which is not in one yet.
func (m *Membership) Called(h *peer.Hello) {
	if own := m.joiner.own(); h.Cluster != 0 && h.Addr != "" && (own == 0 || own == h.Cluster) {
		if last := m.joiner.caller.Swap(&call{*h, m.Now().Running}); last == nil {
			m.joiner.again.Raise() // a leader calls ten times a second, and two may take turns; run looks every second anyway
		}
	}
}
