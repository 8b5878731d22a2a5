package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/proto"
)

// A member whose storage is empty is either new or has lost its disk. In the second
// case it has forgotten its votes and what it acknowledged, so taking part as before
// could lead to two leaders in one term, or to a majority without a committed entry.
// So a member whose storage is empty exchanges no Raft messages until it knows which
// it is. If most of the configured members are new too, they form the cluster. If one
// of them already belongs to a running cluster, the leader adds this member like any
// other: the others first take its vote away, without its taking part, and it gets its
// vote back when it has caught up.

// gate rejects Raft's messages and heartbeats until it is lifted.
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

// guard returns a handler that closes connections until the gate is lifted, and then
// passes them to serve.
func (g *gate) guard(serve func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		if !g.lifted() {
			c.Close()
			return
		}
		serve(c)
	}
}

// self describes this member, for a request to add it.
func (m *membership) self(voter bool) *MemberInfo {
	return &MemberInfo{ID: m.cfg.ID, Addr: m.cfg.addr(), Voter: voter}
}

// form brings a member whose storage is empty into its cluster: it forms a new one
// with the members in first, or joins the running one. first is empty if Config.Join
// is set. form retries until it succeeds or the member stops.
func (m *membership) form(first raft.Configuration) {
	members, said, complained := infos(first), time.Now(), false
	for wait := askSoon; ; wait = min(2*wait, time.Second) { // short at first: the others may be starting too
		fresh, running, err := 1, m.cfg.Join, error(nil)
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
				m.pulse.look()
			}
		default:
			err = fmt.Errorf("%d of %d members have been reached", fresh, len(members))
		}
		if err == nil || m.peers.ctx.Err() != nil {
			return
		}
		level := slog.LevelInfo
		var refused *refusal
		hopeless := errors.As(err, &refused) && refused.code == proto.BadArguments && !complained
		complained = complained || hopeless
		if hopeless || time.Since(said) > 10*time.Second { // before that, the others may just be starting
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

// survey asks the members whether they are new. It returns the number of voters that
// are, and the address of a member that is not, if there is one. It fails if a member
// was started with a different list of members, since their logs would begin with
// different configurations.
func (m *membership) survey(members []MemberInfo) (fresh int, running string, err error) {
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

// joinThrough has the leader of a running cluster add this member; addr is the
// address of any member of that cluster.
func (m *membership) joinThrough(addr string) error {
	ctx, network := m.peers.ctx, m.peers.network
	if m.cfg.Join == "" { // the cluster must already have this member
		r, err := askLeader(ctx, network, addr, Request{Knows: m.cfg.ID})
		if err != nil {
			return err
		}
		if !r.Known {
			m.fail(fmt.Errorf("server %d is not a member of the cluster that %s belongs to: add it, or start it with a server to join", m.cfg.ID, addr))
			return nil
		}
		m.cfg.Log.Warn("the cluster is already running, but this member's data is empty: it does not vote until it has caught up", "known", addr)
	}
	if err := m.raft.storage.SetRejoining(true); err != nil {
		return err
	}
	if _, err := Ask(ctx, network, addr, Request{Add: m.self(false)}); err != nil {
		return err
	}
	m.gate.lift()
	m.awaitVote(addr)
	return nil
}

// awaitVote requests a vote for this member until it has one, unless it is
// configured as an observer.
func (m *membership) awaitVote(addr string) {
	ctx := m.peers.ctx
	for wait := askSoon; m.cfg.votes(); wait = min(2*wait, time.Second) {
		_, err := Ask(ctx, m.peers.network, addr, Request{Add: m.self(true)})
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			break
		}
		m.cfg.Log.Info("this member does not vote yet", "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
	m.raft.storage.SetRejoining(false) // if this fails, the next start requests the vote again
}

// resumeRejoin continues joinThrough after a restart.
func (m *membership) resumeRejoin() {
	for {
		if members, err := m.raft.members(); err == nil {
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
