package cluster

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Reconfigure carries out a client's reconfig; body is the encoded request, which has
// passed the checks against the state. A new voter has the time wait to catch up.
// When Reconfigure returns OK, the change is applied here. The second result is false
// if the outcome is unknown.
func (m *Member) Reconfigure(body []byte, wait time.Duration) (proto.Code, bool) {
	var q proto.ReconfigRequest
	d := jute.NewDecoder(body)
	q.Decode(&d)
	c, err := fsm.ParseReconfig(&q)
	if err != nil || d.Err() != nil || m.peers == nil {
		return proto.BadArguments, true
	}
	r := &request.Reconfig{Joining: c.Joining, Leaving: c.Leaving, Whole: c.Whole, Version: q.ConfigID, WaitMs: wait.Milliseconds()}
	ctx, cancel := context.WithTimeout(m.peers.Ctx, request.AskTimeout)
	defer cancel()
	was := m.membership.ConfigVersion()
	_, err = m.Ask(ctx, request.Request{Reconfig: r})
	code := request.CodeOf(err)
	switch {
	case code != proto.OK:
		m.Propose(fsm.Describe(nil, 0), make(propose.Result, 1), nil) // nobody is expected any more
		m.cfg.Log.Warn("reconfig refused", "code", code, "error", err)
		return code, true
	case err != nil:
		m.cfg.Log.Warn("reconfig failed", "error", err)
		return 0, false
	}
	return proto.OK, m.proposer.Await(fsm.Describe(c.Joining, was), nil) == nil
}

// DescribeMember has /zookeeper/config show the address for clients and the election port of the
// member x, if x has them. It returns when that is applied here, and waits no longer than [request.Ask]
// does for a leader. After an error it may still be applied.
func (m *Member) DescribeMember(ctx context.Context, x proto.Peer) error {
	if x.ClientAddr == "" && x.ElectionPort == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, request.AskTimeout)
	defer cancel()
	if err := m.proposer.Await(fsm.Nothing(), ctx.Done()); err != nil { // then the newest list of members is applied here
		return err
	}
	return m.describe([]proto.Peer{x}, x.ID, ctx.Done())
}

// Describe adds to /zookeeper/config what the configuration knows about members and is missing
// there. It returns when that is applied, or this member stops. If sure is true, the
// configuration is right about this server, whatever the list says.
func (m *Member) Describe(sure bool) {
	var self uint64
	if sure {
		self = m.cfg.ID
	}
	m.describe(m.cfg.Described(), self, nil)
}

// describe adds to /zookeeper/config what is missing there of what is known about members. About the server sure, that is right
// whatever the list says.
func (m *Member) describe(known []proto.Peer, sure uint64, over <-chan struct{}) error {
	var missing []proto.Peer
	m.replica.View(func(v *fsm.View) { missing = v.Undescribed(known, sure) })
	if len(missing) == 0 {
		return nil
	}
	return m.proposer.Await(fsm.Describe(missing, 0), over)
}
