package cluster

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"time"
)

// hurryGap is how long after one message of touches the next is sent if somebody
// waits for it: one message does for many who wait.
const hurryGap = 5 * time.Millisecond

// sendTouches tells the leader which sessions were heard of here and how long
// ago, soon after they were and all at once, or at once if somebody waits.
// Nothing is sent when nobody speaks.
//
// Who heard it may have been replaced already by a leader that counts since
// before. So what was told last is told again to the next one.
func (m *Member) sendTouches() {
	defer m.wg.Done()
	var (
		pause = max(min(m.cfg.Tick/4, m.contacts.sure/2), time.Millisecond)
		keep  = unheardLimit * m.contacts.silence // who was replaced knows it by then
		told  = map[int64]int64{}
		lead  = m.leader.get() // who was told
		last  = m.nowMs()      // when it was
	)
	for {
		select {
		case <-m.liveness.news:
			select {
			case <-time.After(pause - m.since(m.liveness.collecting())):
			case <-m.liveness.hurry:
				select {
				case <-time.After(hurryGap - m.since(last)):
				case <-m.stop:
					return
				}
			case <-m.stop:
				return
			}
		case <-lead.changed:
			if now := m.leader.get(); now.id == 0 || len(told) == 0 {
				lead = now
				continue
			}
		case <-m.stop:
			return
		}
		news, since := m.liveness.take()
		if !m.sayUnheard(since) {
			return
		}
		var unsure []int64
		if lead, unsure = m.tell(lead, told, news); lead.id == 0 || !m.sayUnheard(allHeard) {
			return
		}
		last = m.nowMs()
		m.liveness.confirm(news, unsure)
		maps.Copy(told, news)
		maps.DeleteFunc(told, func(_, at int64) bool { return m.since(at) > keep })
	}
}

// allHeard is what sayUnheard says when the leader has heard all.
const allHeard = -1

// sayUnheard tells watchLeader since when the leader has not heard what this
// member did; false when the member stops.
func (m *Member) sayUnheard(since int64) bool {
	select {
	case m.service.unheard <- since:
		return true
	case <-m.stop:
		return false
	}
}

// tell has the leader hear news, and what was told before if that was to another
// one than leads now. It returns who has heard it, which may be this member, or
// nobody if the member stops, and the sessions that the leader does not answer for.
func (m *Member) tell(last leaderInfo, told, news map[int64]int64) (leaderInfo, []int64) {
	for {
		lead, touches := m.leader.get(), news
		if lead.changed != last.changed {
			touches = maps.Clone(told)
			maps.Copy(touches, news)
		}
		var again <-chan time.Time
		switch lead.id {
		case 0:
		case m.cfg.ID:
			if m.surelyLeads() {
				return lead, nil
			}
			again = time.After(retryAfter)
		default:
			if unsure, ok := m.tellLeader(lead, touches); ok {
				return lead, unsure
			}
			again = time.After(retryAfter)
		}
		select {
		case <-lead.changed:
		case <-again:
		case <-m.stop:
			return leaderInfo{}, nil
		}
	}
}

// tellLeader sends touches to the leader. It returns true when the leader has
// heard them, and the sessions that it does not answer for.
func (m *Member) tellLeader(lead leaderInfo, touches map[int64]int64) (unsure []int64, ok bool) {
	l, err := m.linkTo(lead)
	if err != nil {
		return nil, false
	}
	l.told++
	now := m.nowMs()
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 8+touchLen*len(touches)), l.told)
	for id, at := range touches {
		ago := now - at - 1 // both are rounded
		b = binary.BigEndian.AppendUint64(b, uint64(id))
		b = binary.BigEndian.AppendUint32(b, uint32(min(max(ago, 0), math.MaxUint32)))
	}
	if l.send(msgTouched, b) != nil {
		return nil, false
	}
	again := time.After(m.contacts.silence / 2)
	for {
		select {
		case b := <-l.heard:
			switch binary.BigEndian.Uint64(b) {
			case l.told:
			case unheardTouches:
				return nil, false
			default:
				continue
			}
			for b = b[8:]; len(b) >= 8; b = b[8:] {
				unsure = append(unsure, int64(binary.BigEndian.Uint64(b)))
			}
			return unsure, true
		case <-again:
			return nil, false
		case <-l.gone:
			return nil, false
		case <-lead.changed:
			return nil, false
		case <-m.stop:
			return nil, false
		}
	}
}

// unheardTouches answers a message of touches that came to a member that may not lead.
const unheardTouches = 0

// takeTouches notes what another member tells, and returns the answer. If this
// member is about to do its duties as the leader, every session gets its whole
// time then. The answer is the number of the message, and the sessions that this
// member does not answer for: those that it has found late, whose end is on its
// way, and those that it does not know, any more or yet.
func (m *Member) takeTouches(b []byte) []byte {
	heard := m.liveness.hear(b[8:], bytes.Clone(b[:8]))
	if !m.surelyLeads() {
		return binary.BigEndian.AppendUint64(nil, unheardTouches)
	}
	return heard
}
