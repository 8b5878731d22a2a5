package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// MemberInfo is one member of the cluster.
type MemberInfo struct {
	ID    uint64 `json:"id"`
	Addr  string `json:"address"` // of its peer port
	Voter bool   `json:"voter"`   // false for an observer
}

// Status is what a member knows of its cluster.
type Status struct {
	ID      uint64       `json:"id"`     // of the member that says so
	Leader  uint64       `json:"leader"` // 0 if none is known to
	Role    string       `json:"role"`   // leader, follower, observer, looking, standalone
	Term    uint64       `json:"term"`
	Index   uint64       `json:"index"` // of the last entry applied
	Zxid    int64        `json:"zxid"`
	Digest  string       `json:"digest"` // of the state at Index
	Members []MemberInfo `json:"members"`
}

// Status tells what this member knows of its cluster.
func (m *Member) Status() (Status, error) {
	f := m.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return Status{}, err
	}
	s := Status{ID: m.cfg.ID, Leader: m.Leader(), Term: m.raft.CurrentTerm(), Role: m.Role()}
	m.replica.View(func(v *fsm.View) {
		s.Index, s.Zxid, s.Digest = v.Index(), v.Zxid(), fmt.Sprintf("%016x", v.Digest())
	})
	for _, x := range f.Configuration().Servers {
		id, _ := strconv.ParseUint(string(x.ID), 10, 64)
		s.Members = append(s.Members, MemberInfo{id, string(x.Address), x.Suffrage == raft.Voter})
	}
	return s, nil
}

// Role is this member's part: leader, follower, observer, looking (for a
// leader), or standalone.
func (m *Member) Role() string {
	if m.peers == nil {
		return "standalone"
	}
	switch lead := m.Leader(); {
	case lead == 0:
		return "looking"
	case lead == m.cfg.ID:
		return "leader"
	}
	if f := m.raft.GetConfiguration(); f.Error() == nil {
		for _, s := range f.Configuration().Servers {
			if s.ID == serverID(m.cfg.ID) && s.Suffrage != raft.Voter {
				return "observer"
			}
		}
	}
	return "follower"
}

// Request asks for a change of the members, or for their status. One of its
// fields is set.
type Request struct {
	Status   bool        `json:"status,omitempty"`
	Add      *MemberInfo `json:"add,omitempty"`      // or change
	Remove   uint64      `json:"remove,omitempty"`   // the member's id
	Transfer *uint64     `json:"transfer,omitempty"` // leadership to this member; 0 is any
}

// Reply answers a Request.
type Reply struct {
	Status *Status `json:"status,omitempty"`
	Error  string  `json:"error,omitempty"`
	Leader string  `json:"leader,omitempty"` // whom to ask instead: its peer port
}

// ErrNotLeader says that this member cannot change the members, since it does not lead.
var ErrNotLeader = errors.New("cluster: not the leader")

// adminTimeout bounds a change of the members.
const adminTimeout = 10 * time.Second

// Change carries out a request. All but Status must go to the leader.
func (m *Member) Change(q Request) (*Status, error) {
	var f raft.Future
	switch {
	case q.Status:
		s, err := m.Status()
		return &s, err
	case m.Leader() != m.cfg.ID:
		return nil, ErrNotLeader
	case q.Add != nil:
		if q.Add.ID == 0 || q.Add.ID > 254 {
			return nil, fmt.Errorf("server id %d is not in 1 to 254", q.Add.ID)
		}
		if _, _, err := net.SplitHostPort(q.Add.Addr); err != nil {
			return nil, err
		}
		if q.Add.Voter {
			f = m.raft.AddVoter(serverID(q.Add.ID), raft.ServerAddress(q.Add.Addr), 0, adminTimeout)
		} else {
			f = m.raft.AddNonvoter(serverID(q.Add.ID), raft.ServerAddress(q.Add.Addr), 0, adminTimeout)
		}
	case q.Remove != 0:
		f = m.raft.RemoveServer(serverID(q.Remove), 0, adminTimeout)
	case q.Transfer != nil:
		if *q.Transfer == 0 {
			f = m.raft.LeadershipTransfer()
			break
		}
		s, err := m.Status()
		if err != nil {
			return nil, err
		}
		addr := ""
		for _, x := range s.Members {
			if x.ID == *q.Transfer && x.Voter {
				addr = x.Addr
			}
		}
		if addr == "" {
			return nil, fmt.Errorf("server %d is no voting member", *q.Transfer)
		}
		f = m.raft.LeadershipTransferToServer(serverID(*q.Transfer), raft.ServerAddress(addr))
	default:
		return nil, errors.New("nothing was asked for")
	}
	switch err := f.Error(); {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipLost):
		return nil, ErrNotLeader
	case err != nil:
		return nil, err
	}
	s, err := m.Status()
	return &s, err
}

// serveAdmin answers one request.
func (m *Member) serveAdmin(c net.Conn) {
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * adminTimeout))
	line, err := bufio.NewReaderSize(c, 4096).ReadSlice('\n')
	if err != nil {
		return
	}
	var q Request
	var r Reply
	if err := json.Unmarshal(line, &q); err != nil {
		r.Error = err.Error()
	} else if r.Status, err = m.Change(q); err != nil {
		r.Error = err.Error()
		if errors.Is(err, ErrNotLeader) {
			r.Leader = m.leader().addr
		}
	}
	json.NewEncoder(c).Encode(r) // an error means that nobody waits for it
}

// Ask sends a request to the member whose peer port is at addr, and to the
// leader if that one does not lead. A nil network is TCP.
func Ask(ctx context.Context, network Network, addr string, q Request) (*Status, error) {
	if network == nil {
		network = TCP{}
	}
	for range 3 {
		r, err := ask(ctx, network, addr, q)
		switch {
		case err != nil:
			return nil, err
		case r.Leader != "" && r.Leader != addr:
			addr = r.Leader
			continue
		case r.Error != "":
			return nil, fmt.Errorf("%s: %s", addr, r.Error)
		}
		return r.Status, nil
	}
	return nil, fmt.Errorf("%s: no leader", addr)
}

func ask(ctx context.Context, network Network, addr string, q Request) (r Reply, err error) {
	c, err := hello(ctx, network, addr, kindAdmin)
	if err != nil {
		return r, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	c.SetDeadline(time.Now().Add(2 * adminTimeout))
	if err := json.NewEncoder(c).Encode(q); err != nil {
		return r, err
	}
	if err := json.NewDecoder(bufio.NewReader(c)).Decode(&r); err != nil {
		return r, fmt.Errorf("%s: %w", addr, err)
	}
	return r, nil
}

// join asks a running cluster to take this member in, until it does.
func (m *Member) join() {
	self := &MemberInfo{ID: m.cfg.ID, Addr: m.cfg.Addr, Voter: true}
	ctx := m.peers.ctx
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		_, err := Ask(ctx, m.peers.network, m.cfg.Join, Request{Add: self})
		if err == nil || ctx.Err() != nil {
			return
		}
		m.cfg.Log.Warn("not taken in yet", "by", m.cfg.Join, "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}
