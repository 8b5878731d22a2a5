package cluster

import (
	"encoding/binary"
	"maps"
	"math"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/alive"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/propose"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/session"
)

// Touch notes that a session's client has sent something, which restarts the
// session's timeout. It returns false if the session has ended or is about to
// expire, or if over is closed; the caller must then close the connection.
//
// After an answer, a client trusts its session until two thirds of its timeout have
// passed since it sent the request. If the touches that the leader has confirmed do not
// guarantee that, Touch blocks until the leader confirms this one.
//
// The client of a lock trusts an answered write or sync for the whole timeout. The leader
// hears of the sessions of those by itself, before they are answered: from an entry that is
// forwarded to it, and from the question that a sync sends it. Whatever happens to this
// member then, that leader counts the timeout from there, and a later one from when it began.
//
// Touch also waits for a moment for what this member has been told is committed, so that what the
// client reads next shows it.
func (m *Member) Touch(id int64, over <-chan struct{}) bool {
	if !m.liveness.Touch(id, m.pulse.holdsLease, over, m.Stop) {
		return false
	}
	m.engine.AwaitCommitted(over)
	return true
}

// Deadlines returns when the sessions expire unless they are touched, in ms since
// the epoch, the earliest first.
func (m *Member) Deadlines() []session.Bucket {
	buckets := m.liveness.Deadlines()
	ahead := m.timeOfDay() - m.nowMs()
	for i := range buckets {
		buckets[i].Deadline += ahead
	}
	return buckets
}

// Advance lets ms count as passed for the sessions, on this member, which should be the leader; a
// later leader gives all sessions their full timeouts anyway. If touched is true, sessions that are
// connected to a member count as touched now. It returns the sessions that are late, in no
// particular order. Only tests call it, through lockkeepertest.
func (m *Member) Advance(ms int64, connected func(id int64) bool, touched bool) (late []int64) {
	return m.liveness.Advance(ms, connected, touched)
}

// sendTouches reports to the leader which sessions were touched here, and how long
// ago: collected for a short time in one message, or at once if a client is waiting.
// Nothing is sent while no client sends anything.
//
// By the time a report arrives, another leader may already have restarted all timeouts,
// and it does not know these touches. So recent touches are reported again to the next
// leader.
func (m *Member) sendTouches() {
	var (
		pause = timing.Report(m.cfg.Tick, m.contacts.Lease)
		keep  = timing.UnheardLimit * m.contacts.ElectionTimeout // a leader that was replaced knows it by then
		heard recent                                             // touches that lead has received
		lead  = m.leader.Get()                                   // the leader of the last report
		last  = m.nowMs()                                        // when that was
	)
	for {
		select {
		case <-m.liveness.News:
			select {
			case <-time.After(pause):
			case <-m.liveness.Hurry:
				time.Sleep(timing.HurryGap - m.since(last))
			case <-m.Stop:
				return
			}
		case <-lead.Changed:
			if now := m.leader.Get(); now.ID == 0 || heard.empty() {
				lead = now
				continue
			}
		case <-m.Stop:
			return
		}
		news, since := m.liveness.Take()
		m.service.setUnheard(since)
		var unsure []int64
		if lead, unsure = m.tell(lead, &heard, news); lead.ID == 0 {
			return
		}
		m.service.setUnheard(allHeard)
		last = m.nowMs()
		m.liveness.Confirm(news, unsure)
		heard.add(news, last, keep)
	}
}

// recent holds the touches of some time, and of at most twice that time. It forgets all of the
// older half at once: looking for those that are old, at each report, would cost more than all else
// when very many sessions are touched.
type recent struct {
	young, old map[int64]int64 // session to time
	since      int64           // when the first of young was added
}

func (r *recent) empty() bool { return len(r.young)+len(r.old) == 0 }

// add adds touches at the time now, and forgets those that are older than keep, sooner or later.
func (r *recent) add(touches map[int64]int64, now int64, keep time.Duration) {
	if r.young == nil || now-r.since > keep.Milliseconds() {
		r.young, r.old, r.since = make(map[int64]int64, len(touches)), r.young, now
	}
	maps.Copy(r.young, touches)
}

// with returns the touches together with newer ones.
func (r *recent) with(newer map[int64]int64) map[int64]int64 {
	all := make(map[int64]int64, len(r.old)+len(r.young)+len(newer))
	for _, touches := range []map[int64]int64{r.old, r.young, newer} {
		maps.Copy(all, touches)
	}
	return all
}

// tell reports news to the leader, and heard too if the leader has changed since
// last. It retries until a leader has received the report, and returns that leader,
// which may be this member, and the sessions that it cannot vouch for. The leader's
// id is 0 if the member stops first.
func (m *Member) tell(last election.Leader, heard *recent, news map[int64]int64) (election.Leader, []int64) {
	for {
		lead, touches := m.leader.Get(), news
		if lead.Changed != last.Changed {
			touches = heard.with(news)
		}
		switch lead.ID {
		case 0:
		case m.cfg.ID:
			if m.pulse.holdsLease() {
				return lead, nil
			}
		default:
			if unsure, ok := m.tellLeader(lead, touches); ok {
				return lead, unsure
			}
		}
		select {
		case <-lead.Changed:
		case <-time.After(timing.RetryAfter):
		case <-m.Stop:
			return election.Leader{}, nil
		}
	}
}

// tellLeader sends touches to another member that leads. It returns the sessions
// that the leader cannot vouch for, and whether the leader has received the touches.
func (m *Member) tellLeader(lead election.Leader, touches map[int64]int64) (unsure []int64, ok bool) {
	l, err := m.proposer.LinkTo(lead)
	if err != nil {
		return nil, false
	}
	defer l.NoteWaiting()()
	now := m.nowMs()
	b := make([]byte, 0, alive.TouchLen*len(touches))
	for id, at := range touches {
		ago := now - at - 1 // both are rounded down
		b = binary.BigEndian.AppendUint64(b, uint64(id))
		b = binary.BigEndian.AppendUint32(b, uint32(min(max(ago, 0), math.MaxUint32)))
	}
	if l.Send(propose.MsgTouched, b) != nil {
		return nil, false
	}
	select {
	case b := <-l.Heard:
		for t := b[1:]; len(t) >= 8; t = t[8:] {
			unsure = append(unsure, int64(binary.BigEndian.Uint64(t)))
		}
		return unsure, b[0] == 1
	case <-l.Gone:
		return nil, false
	}
}

// takeTouches notes the touches in a message of another member and returns the
// answer: 1 and the sessions that this member cannot vouch for (see alive.Liveness.Hear), or
// 0 if it does not surely lead. The touches are noted even then, which is harmless: when it
// begins to lead, every session gets its full timeout.
func (m *Member) takeTouches(b []byte) []byte {
	heard := m.liveness.Hear(b, []byte{1})
	if !m.pulse.holdsLease() {
		return []byte{0}
	}
	return heard
}
