package session

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// transcript is the state of a transcript that is being run.
type transcript struct {
	table   *Table
	tracker *Tracker
	late    map[int64]*Session // sessions as last reported late
	held    *Session           // by the command hold, as a snapshot might hold it
}

// TestTranscripts runs the transcripts in testdata. Times are in ms:
//
//	tick 1000                                      a new tracker with this tick
//	open 7 timeout=4000 password=x owner=1.5 at=100
//	resume 7 timeout=4000 password=x owner=2.1 at=200
//	touch 7 at=300
//	late at=4000                                   prints the sessions that are late
//
// A session that is opened or resumed in the table is also added to the tracker.
func TestTranscripts(t *testing.T) {
	testkit.Transcripts(t, func(*testing.T) func([]string) string {
		s := &transcript{NewTable(), NewTracker(1000), map[int64]*Session{}, nil}
		return s.run
	})
}

func (s *transcript) run(command []string) string {
	words := strings.Fields(command[0])
	kv := map[string]string{}
	var ids []int64
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			kv[k] = v
		} else {
			n, err := strconv.ParseInt(w, 0, 64)
			if err != nil {
				panic(err)
			}
			ids = append(ids, n)
		}
	}
	num := func(key string) int64 {
		n, err := strconv.ParseInt(kv[key], 0, 64)
		if err != nil {
			panic(err)
		}
		return n
	}
	owner := func() (c Conn) {
		fmt.Sscanf(kv["owner"], "%d.%d", &c.Server, &c.Number)
		return c
	}
	var password Password
	copy(password[:], kv["password"])

	switch words[0] {
	case "tick":
		s.tracker = NewTracker(ids[0])
	case "open":
		n := s.table.Open(Session{ID: ids[0], Timeout: int32(num("timeout")), Password: password, Owner: owner()})
		s.tracker.Add(n, num("at"))
		return fmt.Sprintf("session %d\n", n.ID)
	case "resume":
		n := s.table.Resume(ids[0], password[:len(password)-len(kv["cut"])], int32(num("timeout")), owner())
		if n == nil {
			return "refused\n"
		}
		s.tracker.Add(n, num("at"))
		return "resumed\n"
	case "hold":
		s.held = s.table.Get(ids[0])
	case "held":
		return show(s.held)
	case "close":
		s.tracker.Remove(ids[0])
		return fmt.Sprintln(s.table.Close(ids[0]))
	case "touch":
		return fmt.Sprintln(s.tracker.Touch(ids[0], num("at")))
	case "confirm":
		s.tracker.Confirm(ids[0], num("at"))
	case "safe":
		return fmt.Sprintln(s.tracker.Safe(ids[0], num("at"), num("slack")))
	case "late":
		ids := []int64{}
		for _, x := range s.tracker.Late(num("at")) {
			s.late[x.ID] = x
			ids = append(ids, x.ID)
		}
		return fmt.Sprintln(ids)
	case "next":
		if at, ok := s.tracker.Next(); ok {
			return fmt.Sprintln(at)
		}
		return "no deadline\n"
	case "awake":
		return fmt.Sprintln(s.tracker.Awake(num("at"), num("looked"), num("watch")))
	case "retry", "spare":
		for _, id := range ids {
			x := s.late[id]
			if x == nil {
				x = &Session{ID: id}
			}
			if words[0] == "retry" {
				s.tracker.Retry(x, num("at"))
			} else {
				s.tracker.Spare(x, num("at"))
			}
		}
	case "table":
		var out strings.Builder
		for x := range s.table.All() {
			out.WriteString(show(x))
		}
		fmt.Fprintf(&out, "%d sessions, %d tracked\n", s.table.Len(), s.tracker.Len())
		return out.String()
	default:
		panic("unknown command " + words[0])
	}
	return ""
}

func show(s *Session) string {
	return fmt.Sprintf("%d timeout=%d password=%q owner=%d.%d\n", s.ID, s.Timeout, bytes.TrimRight(s.Password[:], "\x00"), s.Owner.Server, s.Owner.Number)
}

// TestRecord checks that an encoded session decodes to the same session, and that every
// proper prefix of the encoding is an error.
func TestRecord(t *testing.T) {
	for _, s := range []Session{
		{ID: 1, Timeout: 4000, Password: Password{1, 2, 3}, Owner: Conn{2, 3}},
		{ID: -1, Timeout: -1, Password: Password{15: 255}, Owner: Conn{1<<64 - 1, 1<<64 - 1}},
	} {
		b := Append([]byte("before"), &s)
		got, rest, err := Decode(append(b[6:], "after"...))
		if err != nil || got != s || string(rest) != "after" {
			t.Errorf("%+v was decoded as %+v with the rest %q, %v", s, got, rest, err)
		}
		for n := range len(b) - 6 {
			if _, _, err := Decode(b[6 : 6+n]); err == nil {
				t.Errorf("no error for the first %d bytes", n)
			}
		}
	}
	if _, _, err := Decode(make([]byte, 100)); err == nil {
		t.Error("no error for a session with id 0")
	}
}

// TestTrackerModel compares a tracker with a model that looks at all sessions for each
// question. It also checks that no session is late before its timeout.
func TestTrackerModel(t *testing.T) {
	type tracked struct {
		session          *Session
		touched, timeout int64
		deadline         int64
		late             bool
		reported         bool // late, and Retry was not called since
	}
	r := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	for range 20 {
		tick := []int64{1, 10, 1000}[r.IntN(3)]
		tracker, model := NewTracker(tick), map[int64]*tracked{}
		stood := int64(0)
		deadline := func(from int64) int64 { // the next multiple of the tick, of the time that counts
			d := from - stood
			for d++; d%tick != 0; d++ {
			}
			return d + stood
		}
		now, reported := int64(1e6+r.IntN(1e6)), 0
		for range 3000 {
			now += r.Int64N(2*tick + 1)
			id := int64(r.IntN(20))
			x := model[id]
			switch r.IntN(20) {
			case 0, 1, 2:
				timeout := 1 + r.Int32N(int32(10*tick))
				s := &Session{ID: id, Timeout: timeout}
				tracker.Add(s, now)
				model[id] = &tracked{s, now, int64(timeout), deadline(now + int64(timeout)), false, false}
			case 3:
				tracker.Remove(id)
				delete(model, id)
			case 4:
				ms := r.Int64N(3 * tick)
				tracker.Awake(now, now-ms-tick/2, 0)
				stood += ms
				for _, x := range model {
					x.deadline += ms
				}
			case 5:
				undo, spare := tracker.Retry, r.IntN(2) == 0
				if spare {
					undo = tracker.Spare
				}
				for id, x := range model {
					undo(&Session{ID: id}, now) // has no effect: an older Session with this id
					undo(x.session, now)        // has no effect if x is not late
					if x.late {
						x.late, x.reported, x.deadline = !spare, false, deadline(now)
						x.touched = now - x.timeout - tick // so that it may be late again
					}
				}
			case 6, 7, 8, 9:
				var want []*Session
				for id, x := range model {
					if !x.reported && x.deadline <= now {
						want = append(want, x.session)
						x.late, x.reported = true, true
						if now-x.touched < x.timeout {
							t.Errorf("session %d is late %d ms after its last touch, with a timeout of %d", id, now-x.touched, x.timeout)
						}
					}
				}
				slices.SortFunc(want, func(a, b *Session) int { return cmp.Compare(a.ID, b.ID) })
				reported += len(want)
				if got := tracker.Late(now); !slices.Equal(got, want) {
					t.Fatalf("late at %d: %v, want %v", now, got, want)
				}
			default:
				want := x != nil && !x.late
				if got := tracker.Touch(id, now); got != want {
					t.Fatalf("Touch(%d) = %v, want %v", id, got, want)
				}
				if want {
					x.touched = now
					x.deadline = max(x.deadline, deadline(now+x.timeout))
				}
			}
			var next int64
			for _, x := range model {
				if !x.reported && (next == 0 || x.deadline < next) {
					next = x.deadline
				}
			}
			if got, ok := tracker.Next(); got != next || ok != (next != 0) {
				t.Fatalf("next deadline %d, %v, want %d", got, ok, next)
			}
			byDeadline := map[int64][]int64{}
			for id, x := range model {
				if !x.reported {
					byDeadline[x.deadline] = append(byDeadline[x.deadline], id)
				}
			}
			buckets := bucketsOf(tracker)
			for i, b := range buckets {
				slices.Sort(byDeadline[b.Deadline])
				if i > 0 && buckets[i-1].Deadline >= b.Deadline || len(b.Sessions) == 0 || !slices.Equal(b.Sessions, byDeadline[b.Deadline]) {
					t.Fatalf("buckets %v, want %v", buckets, byDeadline)
				}
			}
			if len(buckets) != len(byDeadline) {
				t.Fatalf("buckets %v, want %v", buckets, byDeadline)
			}
			if tracker.Len() != len(model) {
				t.Fatalf("%d sessions tracked, want %d", tracker.Len(), len(model))
			}
		}
		if reported < 20 {
			t.Errorf("only %d sessions were late: the test does not show much", reported)
		}
	}
}

// TestTableModel opens, resumes and closes many sessions, and compares the table with a map. Lists
// that were made before must not change.
func TestTableModel(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 2))
	show := func(l List) string { return fmt.Sprint(slices.Collect(l.All())) } // the addresses: sessions do not change
	for _, most := range []int64{10, 300, 5000} {
		table, model := NewTable(), map[int64]*Session{}
		lists := map[string]List{}
		for i := range 4000 {
			id, rising := 1+r.Int64N(most), 1<<40+int64(i)
			switch n := r.IntN(6); {
			case n == 0:
				id = rising
				fallthrough
			case n <= 2:
				s := table.Open(Session{ID: id})
				model[s.ID] = s
			case n <= 3:
				if s := table.Resume(id, make([]byte, 16), int32(i), Conn{}); s != nil {
					model[id] = s
				}
			case i < 3000 || n == 5:
				if _, is := model[id]; table.Close(id) != is {
					t.Fatalf("closing session %d: %v", id, !is)
				}
				delete(model, id)
			default: // in the end there are few
				for id := range model {
					table.Close(id)
					delete(model, id)
					break
				}
			}
			if i%200 != 0 && i < 3990 {
				continue
			}
			var want []*Session
			for _, id := range slices.Sorted(maps.Keys(model)) {
				want = append(want, model[id])
			}
			l := table.List()
			if !slices.Equal(slices.Collect(l.All()), want) || l.Len() != len(want) || table.Len() != len(want) {
				t.Fatalf("%d sessions in the list, %d in the table, want %d", l.Len(), table.Len(), len(want))
			}
			for _, part := range l.parts {
				if len(part) == 0 || len(part) > partLen {
					t.Fatalf("a part has %d sessions", len(part))
				}
			}
			lists[show(l)] = l
		}
		for was, l := range lists {
			if show(l) != was {
				t.Errorf("a list has changed:\n%s\n%s", was, show(l))
			}
		}
	}
}

func bucketsOf(t *Tracker) []Bucket {
	sessions := map[int64][]int64{}
	t.Each(func(id, deadline int64) { sessions[deadline] = append(sessions[deadline], id) })
	return Buckets(sessions)
}
