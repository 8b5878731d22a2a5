package cluster

import (
	"context"
	"encoding/binary"
	"io"
	"math"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// A member without a majority closes its clients within the election timeout.
// One that has only lost its leader need not: an election may go well. So who has
// not heard of a leader with a majority for half of that time asks whether the
// others are there.

// inTouch is when this member was surely in touch with a majority last.
func (m *Member) inTouch() int64 {
	if led := m.led.Load(); m.since(led) < m.electionTimeout/2 {
		return led
	}
	return max(m.led.Load(), m.newestContact(), m.majority(m.watched.reached))
}

// majority is when most of those who vote, this member among them if it does,
// had been asked last who have answered.
func (m *Member) majority(answered map[raft.ServerID]int64) int64 {
	members, err := m.members()
	if err != nil {
		return never
	}
	w := &m.watched
	w.mu.Lock()
	defer w.mu.Unlock()
	most := voters(members)/2 + 1
	var asked []int64
	for _, x := range members {
		if !x.Voter {
			continue
		}
		if x.ID == m.cfg.ID {
			most--
		} else if at, ok := answered[serverID(x.ID)]; ok {
			asked = append(asked, at)
		}
	}
	switch {
	case most == 0:
		return m.nowMs()
	case len(asked) < most:
		return never
	}
	slices.Sort(asked)
	return asked[len(asked)-most]
}

// outOfTouch reports whether this member is without a majority, and else when to
// look again. Asked is when it asked the others last. They had time to answer,
// also if this process stood still.
func (m *Member) outOfTouch(asked *int64) (again time.Duration, yes bool) {
	touch, patience := m.inTouch(), m.electionTimeout/2
	switch {
	case m.since(touch) < patience:
		return patience - m.since(touch), false
	case *asked <= touch:
		*asked = m.nowMs()
		m.askOthers()
		return patience, false
	}
	again = max(m.electionTimeout-m.since(touch), patience-m.since(*asked))
	return again, again <= 0
}

// askOthers asks those who vote whether they are there, but who has yet to answer.
func (m *Member) askOthers() {
	members, _ := m.members() // none if this member is closed
	w := &m.watched
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range members {
		id := serverID(x.ID)
		if !x.Voter || x.ID == m.cfg.ID || w.asking[id] {
			continue
		}
		w.asking[id] = true
		asked := m.nowMs()
		m.wg.Go(func() {
			ok := m.reach(x.Addr)
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.asking, id)
			if ok {
				w.reached[id] = asked
			}
		})
	}
}

// reach reports whether another member answers within the election timeout.
func (m *Member) reach(addr string) bool {
	ctx, cancel := context.WithTimeout(m.peers.ctx, m.electionTimeout)
	defer cancel()
	c, err := m.peers.dial(ctx, addr, kindReach)
	if err != nil {
		return false
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	c.SetReadDeadline(deadline)
	_, err = io.ReadFull(c, make([]byte, 1))
	return err == nil
}

// A leader tells with its heartbeats how many ms ago it was surely one, since
// most followed it: a byte, and those as 32 bits.
const (
	leadsSince    = 0 // the byte; no address begins with it
	leadsSinceLen = 1 + 4
)

// leadsField is where. Raft has had the leader's address there before its version 3.
func leadsField(q *raft.AppendEntriesRequest) *[]byte {
	return &q.Leader //lint:ignore SA1019 a field that is sent and not read is what this needs
}

// claim returns a heartbeat that tells.
func (m *Member) claim(q *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	told := *q
	ago := m.since(m.newestContact()).Milliseconds()
	*leadsField(&told) = binary.BigEndian.AppendUint32([]byte{leadsSince}, uint32(min(ago, math.MaxUint32)))
	return &told
}

// hear notes what a heartbeat tells, if it is of this term or a later one.
func (m *Member) hear(q *raft.AppendEntriesRequest) {
	b := *leadsField(q)
	if len(b) != leadsSinceLen || b[0] != leadsSince || q.Term < m.terms.newest.Load() {
		return
	}
	at := m.nowMs() - int64(binary.BigEndian.Uint32(b[1:]))
	for led := m.led.Load(); at > led && !m.led.CompareAndSwap(led, at); led = m.led.Load() {
	}
}
