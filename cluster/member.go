package cluster

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/alive"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/engine"
	"github.com/lockkeeper/lockkeeper/internal/core/membership"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Member is this server's part in the cluster. Its methods are safe for concurrent use.
type Member struct {
	*pulse     // it has the parts that others share
	cfg        Config
	membership *membership.Membership
	proposer   *propose.Proposer // what this member proposes
	liveness   *alive.Liveness   // of sessions
	service    *service          // whether this member serves

	closing wake.Turn // held by Close
	result  error     // of the first Close
}

// Ready is closed when this member can serve for the first time: it knows a leader
// and has applied everything committed until then.
func (m *Member) Ready() <-chan struct{} { return m.service.ready }

// Err receives the first fatal fault, such as a disk that cannot be written. The
// caller must then close the member.
func (m *Member) Err() <-chan error { return m.Errs }

// Propose is [propose.Proposer.Propose].
func (m *Member) Propose(c *fsm.Command, w fsm.Waiter, over <-chan struct{}) {
	if _, off := m.cfg.Trace.(untraced); !off && c.Session != 0 && c.Op != fsm.OpExpireSession {
		w = &tracedWaiter{w, m, c.Session, m.nowMs()}
	}
	m.proposer.Propose(c, w, over)
}

// tracedWaiter tells the trace that a write or sync is about to be answered.
type tracedWaiter struct {
	fsm.Waiter
	m       *Member
	session int64
	since   int64
}

func (w *tracedWaiter) Done(v *fsm.View, r *fsm.Result) {
	if !r.Drop {
		w.m.cfg.Trace.Session(alive.Answered, w.session, 0, w.m.since(w.since))
	}
	w.Waiter.Done(v, r)
}

// Serving receives true when clients can be served: a leader is known, and
// everything committed until then is applied here. It receives false when clients
// have to be disconnected, so that they try another server, because
//   - no majority could be reached for an election timeout, or so many refuse connections
//     that the others are no majority,
//   - no leader was known for an election timeout,
//   - the leader did not receive this member's touches for two election timeouts,
//   - the state here is older than two election timeouts,
//   - for an election timeout, members have had different states and no majority the same one, or
//   - this member's disk has been stuck for an election timeout while the others
//     have a working leader.
//
// A member that has failed does not begin to serve. If it fails while it serves, Err says so; Serving need not.
//
// The channel holds only the newest value.
func (m *Member) Serving() <-chan bool { return m.service.changes }

// Waiting returns why this member cannot serve clients: what it waits for before it is in a cluster, or which
// members it would need for a majority. It is empty if there is no such reason.
func (m *Member) Waiting() string {
	switch {
	case m.peers == nil:
		return ""
	case !m.pulse.gate.IsOpen():
		return m.membership.Waiting()
	case m.pulse.verdict.Load().NoMajority:
		if missing := m.contacts.Missing(); missing != "" {
			return "no majority can be reached without " + missing
		}
	case m.pulse.verdict.Load().Disputed:
		return fmt.Sprintf("the states of members differ at entry %d, and no majority has the same one; see \"Two members differ\" in docs/operations.md", m.pulse.digests.Dispute())
	}
	return ""
}

// Role is [membership.Membership.Role].
func (m *Member) Role() string { return m.membership.Role() }

// Standing returns what this member knows about its cluster, without Index, Zxid and Digest: who wants those reads the state.
func (m *Member) Standing() request.Status { return m.membership.Standing() }

// Members returns the members in the newest list that this member has, committed or not, sorted by id.
// It does not lock the state.
func (m *Member) Members() []proto.Peer {
	return m.engine.Members()
}

// Ask is [membership.Membership.Ask].
func (m *Member) Ask(ctx context.Context, q request.Request) (*request.Status, error) {
	return m.membership.Ask(ctx, q)
}

// HandOver makes another member the leader if this one leads. If that fails or ctx ends first, the
// others elect a leader when this member is closed.
func (m *Member) HandOver(ctx context.Context) error {
	// Without its disk, this member cannot store the next leader's term, and so does not see it.
	if m.peers == nil || m.engine.Role() != engine.Leader || m.Broken.Load() {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.peers.Ctx, cancel)()
	return m.engine.HandOver(ctx)
}

// Work may be called at any time after Start, also after Close.
func (m *Member) Work() report.Work {
	p := &m.proposer.Sizes
	return report.Work{LogWrites: m.engine.LogWriteTimes(), Snapshots: m.engine.SnapshotTimes(), Elections: m.service.elections.Durations(),
		Commit: m.engine.Committed(), Entries: p.Entries.Load(), Commands: p.Commands.Load()}
}

// Expired returns the number of sessions that this member has expired.
func (m *Member) Expired() int64 { return m.liveness.Expired.Load() }

// Quorum returns figures about the cluster, and false if this server is standalone.
func (m *Member) Quorum() (report.Quorum, bool) {
	if m.peers == nil {
		return report.Quorum{}, false
	}
	var q report.Quorum
	if _, port, err := net.SplitHostPort(m.cfg.Address()); err == nil {
		q.PeerPort, _ = strconv.Atoi(port)
	}
	members := m.engine.Members()
	if self := election.Find(members, m.cfg.ID); self != nil {
		q.Observer = self.Observer
	}
	q.Voters = election.CountVoters(members)
	var since time.Time
	if q.Last, q.Min, q.Max, since = m.proposer.Sizes.Get(); !since.IsZero() {
		q.Leads = time.Since(since)
		for _, x := range members {
			switch {
			case !m.contacts.Follows(x.ID, m.nowMs()):
			case x.Observer:
				q.Observers++
			default:
				q.Followers++
			}
		}
	}
	return q, true
}

// ResetProposals resets the sizes of proposals in [report.Quorum].
func (m *Member) ResetProposals() { m.proposer.Sizes.Reset() }

// trackAll restarts the timeout of every session. It holds the replica's lock so
// that no session is opened or closed meanwhile.
func (m *Member) trackAll() {
	m.replica.View(func(v *fsm.View) { m.liveness.Restart(v.Index(), v.Sessions().All()) })
}
