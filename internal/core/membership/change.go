package membership

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Change carries out a request. All requests except Status, and those about a cluster that is
// being formed, must go to the leader; another member returns ErrNotLeader.
func (m *Membership) Change(q request.Request) (request.Reply, error) {
	switch {
	case q.Status:
		r, err := m.reply(nil)
		if q.Clients != nil && m.Clients != nil {
			all := m.Clients(q.Clients.Find)
			r.Clients = request.Bounded(&all)
		}
		return r, err
	case q.Propose != nil:
		return request.Reply{}, m.joiner.accept(q.Propose)
	case q.Form:
		return m.reply(m.joiner.form())
	case q.Cluster != 0 && q.Cluster != m.Gate.Cluster():
		return request.Reply{}, request.Refuse(proto.BadArguments, "server %d belongs to cluster %v, not to cluster %v", m.ID, m.Gate.Cluster(), q.Cluster)
	}
	term, leads := m.Engine.LeaderTerm()
	if !leads || m.Leader.Get().ID != m.ID { // Raft may not have noticed that another one leads
		return request.Reply{}, request.ErrNotLeader
	}
	// After this, all changes of earlier leaders are applied here, and it is certain
	// that this member still led.
	if err := m.Engine.Barrier(request.AdminTimeout); err != nil {
		return request.Reply{}, leaderError(err)
	}
	if q.Knows != 0 {
		return m.knows(q.Knows, q.At, q.Run), nil
	}
	m.useListedAddr(&q)
	if q.Rejoin {
		if done, err := m.checkRejoin(q.Add, q.Run); done || err != nil {
			r, _ := m.reply(nil)
			r.Same = true
			return r, err
		}
	}
	return m.reply(m.changeIn(term, q))
}

// reply returns this member's status, unless err is an error already.
func (m *Membership) reply(err error) (request.Reply, error) {
	if err != nil {
		return request.Reply{}, err
	}
	s := m.Status()
	return request.Reply{Status: &s}, nil
}

// changeIn makes a change for which this member was asked as the leader in term.
func (m *Membership) changeIn(term uint64, q request.Request) error {
	patience := request.AdminTimeout // an operator's changes wait for each other
	if q.Reconfig != nil && !m.rejoining.Load() {
		patience = 0
	}
	if !m.changing.TryTake() && !m.changing.TakeWithin(patience) {
		return request.ErrOtherChange
	}
	defer m.changing.Give()
	m.rejoining.Store(q.Rejoin)
	m.changeTerm = term
	if err := m.stillLeads(); err != nil {
		return err
	}
	var err error
	members := m.Engine.Members()
	switch {
	case q.Transfer != nil:
		return m.transfer(members, *q.Transfer)
	case q.Add != nil:
		err = m.addOne(members, q)
	case q.Reconfig != nil:
		err = m.changeSeveral(members, q.Reconfig)
	case q.Remove == 0:
		return errors.New("the request is empty")
	case election.Find(members, q.Remove) == nil:
		return request.NotMember(q.Remove)
	default:
		err = m.reconfigure(members, nil, []uint64{q.Remove}, byOperator)
	}
	if err != nil && err != request.ErrHandedOver && !errors.As(err, new(*request.Refusal)) {
		err = request.Unsure{Err: err}
	}
	return err
}

// addOne carries out Request.Add.
func (m *Membership) addOne(members []proto.Peer, q request.Request) error {
	need := byOperator
	if need.run = q.Run; q.Run != 0 {
		if election.Find(members, q.Add.ID) == nil {
			if q.Rejoin { // it was removed while this request waited
				return request.NotMember(q.Add.ID)
			}
			if _, is := m.AppliedMember(q.Add.ID); is {
				return request.ErrOtherChange
			}
			var removed uint64
			m.Replica.View(func(v *fsm.View) { removed = v.Removed(q.Add.ID, q.Add.Addr) })
			if removed > q.AskedAt {
				return request.Refuse(proto.NoNode, "server %d was removed since it first asked for its place", q.Add.ID)
			}
		}
		if err := m.mayAsk(election.Find(members, q.Add.ID), *q.Add, q.Run); err != nil {
			return err
		}
	}
	if q.Rejoin && !q.Add.Observer { // it asks again, so nothing else has to wait for it for longer than for an answer
		need.patience = timing.PeerTimeout
	}
	return m.reconfigure(members, []proto.Peer{*q.Add}, nil, need)
}

// changeSeveral carries out Request.Reconfig.
func (m *Membership) changeSeveral(members []proto.Peer, r *request.Reconfig) error {
	if version := m.ConfigVersion(); r.Version != -1 && r.Version != version {
		return request.Refuse(proto.BadVersion, "the list of members has version %x, not %x", version, r.Version)
	}
	leaving := r.Leaving
	if r.Whole {
		for _, x := range members {
			if election.Find(r.Joining, x.ID) == nil {
				leaving = append(leaving, x.ID)
			}
		}
	}
	need := requirements{patience: min(time.Duration(r.WaitMs)*time.Millisecond, request.AdminTimeout), voters: 2, allowsAbsent: true} // as in ZooKeeper
	if m.AllowSingleVoter {
		need.voters = 1
	}
	return m.reconfigure(members, r.Joining, leaving, need)
}

// Serve reads one Request from a connection and answers it.
func (m *Membership) Serve(c net.Conn) {
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * request.AdminTimeout))
	line, err := bufio.NewReaderSize(c, 64<<10).ReadSlice('\n')
	if err != nil {
		return
	}
	var q request.Request
	var r request.Reply
	if err = json.Unmarshal(line, &q); err != nil {
		r.Error = err.Error()
	} else {
		r = m.answer(q)
		m.trace(c, q, &r)
	}
	json.NewEncoder(c).Encode(r) // an error means that the client has gone
}

// trace passes on to the server that a change was asked for over a connection. Requests that another member is to carry out
// are not its concern. A server that asks for its own place does so again and again until it has it.
func (m *Membership) trace(c net.Conn, q request.Request, r *request.Reply) {
	if m.Changed == nil || !q.Changes() || r.NotLeader || r.Same || r.Error != "" && q.Run != 0 && !m.Port.MayLog("", "a server asks for its place") {
		return
	}
	asked := request.Asked{Request: q, From: c.RemoteAddr(), Subject: peer.SubjectOf(c)}
	if r.Error != "" {
		asked.Err = errors.New(r.Error)
	}
	if r.Unsure {
		asked.Err = fmt.Errorf("%w: %w", request.ErrUnknownOutcome, asked.Err)
	}
	m.Changed(asked)
}

// answer carries out a request, and returns what to say of that.
func (m *Membership) answer(q request.Request) request.Reply {
	r, err := m.Change(q)
	if err == nil {
		return r
	}
	r = request.Reply{Error: err.Error(), Code: request.CodeOf(err), Unsure: errors.As(err, new(request.Unsure))}
	if errors.Is(err, request.ErrNotLeader) {
		r.NotLeader, r.Leader = true, m.Leader.Get().Addr
	}
	return r
}

// ask is an [request.Asker] for which this member needs no connection to itself: it may not reach itself at
// the address at which the others do. ask returns when ctx is done or the member is
// closed. Member.Close still waits until the request has ended, since that may be writing to the storage.
func (m *Membership) ask(ctx context.Context, addr string, q request.Request) (request.Reply, error) {
	switch {
	case addr != m.Address():
		return request.Send(ctx, m.Port.Network, addr, q)
	case ctx.Err() != nil:
		return request.Reply{}, ctx.Err()
	}
	answered := make(chan request.Reply, 1)
	if !m.Port.Run(func() { answered <- m.answer(q) }) {
		return request.Reply{}, lifecycle.ErrClosed
	}
	select {
	case r := <-answered:
		return r, nil
	case <-ctx.Done():
		return request.Reply{}, request.Unsure{Err: ctx.Err()}
	case <-m.Port.Ctx.Done():
		return request.Reply{}, request.Unsure{Err: lifecycle.ErrClosed}
	}
}

// Ask has the leader carry out a request, as [request.Ask] does if it is given this member's
// address. It must not be called on a standalone server.
func (m *Membership) Ask(ctx context.Context, q request.Request) (*request.Status, error) {
	r, err := request.ToLeader(ctx, m.ask, m.Address(), q)
	return r.Status, err
}
