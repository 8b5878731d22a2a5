package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/proto"
)

// A member whose storage is empty is new, or it is one that lost its disk. The
// second kind has forgotten what it voted and what it acknowledged, and would
// break promises that others count on: two leaders in a term, or a majority
// that does not have what was committed. So a member whose storage is empty hears
// and says nothing of Raft until one of two things is known. If most members of
// the list are new too, they form the cluster. If one of them runs already, the
// leader takes this member in as any that is added: its vote is taken away
// first, by the others alone, and given back when it has caught up.

// gate keeps Raft's messages out until it is lifted.
type gate struct {
	open chan struct{}
	once sync.Once
}

func newGate() *gate { return &gate{open: make(chan struct{})} }

func (g *gate) lift() { g.once.Do(func() { close(g.open) }) }

func (g *gate) lifted() bool {
	select {
	case <-g.open:
		return true
	default:
		return false
	}
}

// self is this member as it is to be.
func (m *Member) self(voter bool) *MemberInfo {
	return &MemberInfo{ID: m.cfg.ID, Addr: m.cfg.addr(), Voter: voter}
}

// form finds out which kind of new member this is. first are the members of a
// new cluster; there are none if this one is to join.
func (m *Member) form(first raft.Configuration) {
	members, said, complained := infos(first), time.Now(), false
	for wait := askAgain; ; wait = min(2*wait, time.Second) {
		fresh, running, err := 1, m.cfg.Join, error(nil) // this one is fresh
		if len(members) > 0 {
			fresh, running, err = m.survey(members)
		}
		switch {
		case running != "":
			err = m.joinThrough(running)
		case err != nil:
		case fresh > voters(members)/2:
			if err = m.raft.BootstrapCluster(first).Error(); err == nil {
				m.gate.lift()
				m.look()
			}
		default:
			err = fmt.Errorf("%d of %d members are there", fresh, len(members))
		}
		if err == nil || m.peers.ctx.Err() != nil {
			return
		}
		level := slog.LevelInfo
		var refused *refusal
		hopeless := errors.As(err, &refused) && refused.code == proto.BadArguments && !complained
		complained = complained || hopeless
		if hopeless || time.Since(said) > 10*time.Second { // else it may be as it should
			level, said = slog.LevelWarn, time.Now()
		}
		m.cfg.Log.Log(context.Background(), level, "not in the cluster yet", "error", err)
		select {
		case <-time.After(wait):
		case <-m.peers.ctx.Done():
			return
		}
	}
}

// survey asks the members whether they are new: it counts those that are, this
// one among them, and names one that is not. An error says that one was started
// with another list: two of them would begin with different logs.
func (m *Member) survey(members []MemberInfo) (fresh int, running string, err error) {
	ctx, cancel := context.WithTimeout(m.peers.ctx, time.Second)
	defer cancel()
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, x := range members {
		asked.Go(func() {
			s, e := m.statusOf(ctx, x)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case e != nil:
			case s.Formed:
				running = x.Addr
			case !slices.Equal(s.Configured, members):
				err = refuse(proto.BadArguments, "server %d was started with other members than server %d: %v, not %v", x.ID, m.cfg.ID, s.Configured, members)
			case x.Voter:
				fresh++
			}
		})
	}
	asked.Wait()
	return fresh, running, err
}

// joinThrough has the leader of a running cluster, of which the one at addr is a
// member, take this member in.
func (m *Member) joinThrough(addr string) error {
	ctx, network := m.peers.ctx, m.peers.network
	if m.cfg.Join == "" { // it is to be a member already
		r, err := askLeader(ctx, network, addr, Request{Knows: m.cfg.ID})
		if err != nil {
			return err
		}
		if !r.Known {
			m.fail(fmt.Errorf("server %d is no member of the cluster of %s: add it, or have it join", m.cfg.ID, addr))
			return nil
		}
		m.cfg.Log.Warn("the cluster has been there, and this member has nothing of it: it gives up its vote until it has caught up", "known", addr)
	}
	if err := m.storage.SetRejoining(true); err != nil {
		return err
	}
	if _, err := Ask(ctx, network, addr, Request{Add: m.self(false)}); err != nil {
		return err
	}
	m.gate.lift()
	m.awaitVote(addr)
	return nil
}

// awaitVote asks for this member's vote until it has it, if it is to vote.
func (m *Member) awaitVote(addr string) {
	ctx := m.peers.ctx
	for wait := askAgain; m.cfg.votes(); wait = min(2*wait, time.Second) {
		_, err := Ask(ctx, m.peers.network, addr, Request{Add: m.self(true)})
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			break
		}
		m.cfg.Log.Info("no vote yet", "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
	m.storage.SetRejoining(false) // a failure lets it ask once more
}

// resumeRejoin goes on with what a crash interrupted in joinThrough.
func (m *Member) resumeRejoin() {
	for {
		if members, err := m.members(); err == nil {
			for _, x := range members {
				if x.ID != m.cfg.ID {
					m.awaitVote(x.Addr)
					return
				}
			}
		}
		select {
		case <-time.After(askAgain):
		case <-m.peers.ctx.Done():
			return
		}
	}
}
