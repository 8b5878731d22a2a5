package spec

import (
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

const sessionID, sessionTimeout = 7, 6 * time.Second

func after(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// on returns a step of a member with the session.
func on(at float64, member uint64, step Step, asked ...float64) Event {
	e := Event{At: after(at), Member: member, Step: step, Session: sessionID}
	switch step {
	case Restarts, Late:
		e.Timeout = sessionTimeout
	case Touched, Heard, Answered:
		e.Asked = after(asked[0])
	}
	return e
}

// by returns a step with an entry or a term.
func by(at float64, member uint64, step Step, last, term uint64, commands ...Command) Event {
	return Event{At: after(at), Member: member, Step: step, Last: last, Term: term, Commands: commands}
}

func command(op proto.OpCode, server, number, term uint64) Command {
	return Command{op, sessionID, session.Conn{Server: server, Number: number}, term}
}

// TestSessions shows the automaton short lists of steps, whose last one it must refuse, or allow.
func TestSessions(t *testing.T) {
	open, resume := command(proto.OpCreateSession, 2, 1, 0), command(fsm.OpResumeSession, 1, 9, 0)
	expire, closes := command(fsm.OpExpireSession, 2, 1, 1), command(proto.OpCloseSession, 2, 1, 0)
	expireResumed := command(fsm.OpExpireSession, 1, 9, 1)
	// Member 1 leads, and entry 5 opens the session.
	opened := []Event{
		by(0, 1, Opened, 0, 0), by(0, 2, Opened, 0, 0), by(0, 1, Leads, 0, 1), by(0, 1, Anew, 0, 0),
		by(1, 1, Visible, 5, 1, open), on(1, 1, Restarts), by(1, 2, Visible, 5, 1, open), on(1, 2, Restarts),
	}
	slow := append(opened[:6:6], by(5, 2, Visible, 5, 1, open), on(5, 2, Restarts))
	resumed := append(opened, by(2, 1, Visible, 6, 1, resume), on(2, 1, Restarts), by(2, 2, Visible, 6, 1, resume), on(2, 2, Restarts))
	late := append(opened, on(7.1, 1, Late))
	slow, resumed, late = slices.Clip(slow), slices.Clip(resumed), slices.Clip(late) // so that each append copies
	nextTerm := []Event{by(3, 2, Leads, 0, 2), by(3, 2, Anew, 5, 0), on(3, 2, Restarts)}
	third := []Event{by(4, 3, Opened, 0, 0), by(4, 3, Anew, 5, 0), on(4, 3, Restarts)}
	another, second := command(proto.OpCreateSession, 2, 2, 0), on(2, 2, Restarts)
	another.Session, second.Session = 8, 8
	for _, c := range []struct {
		name  string
		steps []Event
		last  Event
		why   string // empty if the last step is allowed
	}{
		{"late at its timeout", opened, on(7.1, 1, Late), ""},
		{"late before its timeout", opened, on(6.9, 1, Late), "timeout has not passed"},
		{"late after a report", append(opened, on(3.1, 1, Heard, 3)), on(9.1, 1, Late), ""},
		{"late too soon after a report", append(opened, on(3.1, 1, Heard, 3)), on(8.9, 1, Late), "timeout has not passed"},
		{"a follower finds it late", opened, on(7.1, 2, Late), "does not lead"},
		{"a new leader finds it late", slices.Concat(opened, nextTerm), on(9.1, 2, Late), ""},
		{"a new leader does not begin anew", append(opened, nextTerm[0]), on(9.1, 2, Late), "full timeout"},
		{"late while its client relies on it", append(slow, on(6.9, 2, Touched, 6.9)), on(7.1, 1, Late), "may rely on it"},
		{"late when its client does not any more", append(slow, on(6.9, 2, Touched, 6.9)), on(11, 1, Late), ""},
		{"answered although it is late", append(slow, on(7.1, 1, Late)), on(7.1, 2, Touched, 6.9), "found the session late"},
		{"answered soon after it was opened", opened, on(2.9, 2, Touched, 2.9), ""},
		{"answered before the leader has heard", opened, on(3.5, 2, Touched, 3.5), "has heard of"},
		{"answered when the leader has heard", append(opened, on(3.5, 1, Heard, 3.4)), on(3.6, 2, Touched, 3.5), ""},
		{"answered by the leader", opened, on(3.5, 1, Touched, 3.5), ""},
		{"answered by a leader that was just replaced", slices.Concat(opened, nextTerm), on(3.3, 1, Touched, 3.2), ""},
		{"answered by a leader that was replaced", slices.Concat(opened, nextTerm), on(5.5, 1, Touched, 5.5), "has heard of"},
		{"a write is answered when the leader has heard", append(opened, on(3.5, 1, Heard, 3.4)), on(3.6, 2, Answered, 3.4), ""},
		{"a write is answered before the leader has heard", append(opened, on(3.4, 1, Heard, 2.4), on(3.4, 2, Touched, 3.4)), on(3.6, 2, Answered, 3.4), "with it"},
		{"a write is answered that has waited here", append(opened, on(3.4, 1, Heard, 3.3), on(3.4, 2, Touched, 3.3)), on(3.6, 2, Answered, 3.5), ""},
		{"answered when only a replaced leader has heard", slices.Concat(opened, nextTerm, third, []Event{on(5, 1, Heard, 4.9)}), on(6.5, 3, Touched, 6.5), "has heard of"},
		{"answered when a leader has begun that gives it its timeout next", slices.Concat(opened, nextTerm[:1], third), on(4.9, 3, Touched, 4.9), ""},
		{"answered too long after that", slices.Concat(opened, nextTerm[:1], third), on(5.1, 3, Touched, 5.1), "has heard of"},
		{"expires", append(late, by(7.2, 2, Visible, 6, 1, expire)), on(7.2, 2, Ended), ""},
		{"expires and was not late", append(opened, by(7.2, 2, Visible, 6, 1, expire)), on(7.2, 2, Ended), "no leader of that term"},
		{"expires by a replaced leader", append(late, by(7.2, 2, Visible, 6, 2, expire)), on(7.2, 2, Ended), "was replaced"},
		{"a replaced leader's finding", slices.Concat(opened, nextTerm, []Event{on(7.1, 1, Late), by(7.2, 1, Visible, 6, 1, expire)}), on(7.2, 1, Ended), "no leader of that term"},
		{"expires after it was resumed", append(resumed, on(8.1, 1, Late), by(8.2, 1, Visible, 7, 1, expireResumed)), on(8.2, 1, Ended), ""},
		{"expires although it was resumed", append(resumed, on(8.1, 1, Late), by(8.2, 1, Visible, 7, 1, expire)), on(8.2, 1, Ended), "although it was resumed"},
		{"is closed", append(opened, by(2, 2, Visible, 6, 1, closes)), on(2, 2, Ended), ""},
		{"ends for no reason", append(opened, by(2, 2, Visible, 6, 1)), on(2, 2, Ended), "no command"},
		{"ends everywhere", append(opened, by(2, 1, Visible, 6, 1, closes), on(2, 1, Ended), by(2, 2, Visible, 6, 1, closes), on(2, 2, Ended)), by(3, 2, Visible, 7, 1), ""},
		{"ends on one member only", append(opened, by(2, 1, Visible, 6, 1, closes), on(2, 1, Ended), by(2, 2, Visible, 6, 1, closes)), by(3, 2, Visible, 7, 1), "not here"},
		{"ends later than on another member", append(opened, by(2, 1, Visible, 6, 1), by(2, 1, Visible, 7, 1), by(2, 2, Visible, 6, 1, closes)), on(3, 2, Ended), "does not change"},
		{"answered after it has ended", append(opened, by(2, 2, Visible, 6, 1, closes), on(2, 2, Ended)), on(2.1, 2, Touched, 1.9), "has ended"},
		{"answered where it has not ended yet", append(opened, by(2, 1, Visible, 6, 1, closes), on(2, 1, Ended)), on(2.1, 2, Touched, 1.9), ""},
		{"resumed after it has ended", append(opened, by(2, 2, Visible, 6, 1, closes), on(2, 2, Ended), by(3, 2, Visible, 7, 1, resume)), on(3, 2, Restarts), "does not exist"},
		{"known after a snapshot", append(opened, by(2, 2, Opened, 0, 0), by(2, 2, Anew, 5, 0)), on(2, 2, Restarts), ""},
		{"known before it was opened", append(opened, by(2, 2, Opened, 0, 0), by(2, 2, Anew, 4, 0)), on(2, 2, Restarts), "does not open"},
		{"forgotten after a snapshot", append(opened, by(2, 2, Opened, 0, 0), by(2, 2, Anew, 5, 0), by(2, 2, Visible, 6, 1, another)), second, "know 1 after"},
		{"another after that", append(opened, by(2, 2, Visible, 6, 1, another)), second, ""},
		{"of another cluster", append(opened, by(2, 2, Swapped, 0, 0), by(2, 2, Opened, 0, 0)), on(9, 2, Late), ""},
	} {
		tell(t, newSessions(), c.name, append(slices.Clip(c.steps), c.last), c.why)
	}
}
