package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/spec"
)

// Op is one request of a client, and what it knows of its outcome.
type Op struct {
	Origin
	Code      proto.OpCode
	Path      string
	Tag       string // the data that it writes; no other op writes the same
	Pad       int    // how many bytes it writes after Tag
	TTL       time.Duration
	More      []Part // of a multi
	Flags     int32
	Version   int32  // the version that the znode must have
	Version64 int64  // the version that the members must have, in a reconfig; its Path is the member to change
	User      string // the user that the connection has authenticated as, or does by this op; "" for none
	Owner     string // the only user with access to what it creates; "" for everybody
	ReadOnly  bool   // sent on a read-only connection
	Watch     bool
	Recursive bool                      // of a persistent watch
	Set       *proto.SetWatches2Request `json:",omitempty"` // of setWatches
	Unsynced  bool                      // a read that may be old

	Outcome

	done chan struct{}
}

// Origin says which request an Op is: its number, and the connection on which it was sent.
type Origin struct {
	ID, Client, Conn, Server int
	Session                  int64
}

// Outcome is when a request was sent and answered, and what the reply says.
type Outcome struct {
	// These numbers order everything that clients do and see in the run; 0 means never.
	Call, Ret     int
	CallAt, RetAt time.Duration
	Zxid          int64
	Err           proto.Code

	GotPath, GotData string
	GotVersion       int32
	GotCzxid         int64
	GotChildren      []string
}

// Known reports whether a reply came.
func (o *Op) Known() bool { return o.Ret > 0 }

// OK reports whether the reply came and reports success.
func (o *Op) OK() bool { return o.Ret > 0 && o.Err == proto.OK }

// Part is one operation of a multi.
type Part struct {
	Code    proto.OpCode
	Path    string
	Tag     string
	Version int32
}

// Frame is a reply or an event.
type Frame struct {
	Seq   int
	At    time.Duration
	Zxid  int64
	Op    *Op `json:"-"`
	OpID  int
	Event proto.EventType // 0 for a reply
	Path  string
}

// ConnLog records one connection.
type ConnLog struct {
	ID, Client, Server int
	Session            int64
	Timeout            time.Duration
	CallAt             time.Duration // when its handshake was sent
	Seq                int           // when its reply came, as a number
	At                 time.Duration // when its reply came
	Left               int           // when the client left the session's previous connection
	Ended              time.Duration // when the connection ended
	ByServer           bool          // the server or its host ended it, not the client
	ReadOnly           bool          // its server had no majority, so it does not keep the session alive
	Frames             []Frame
}

// Change is one change of a commit.
type Change struct {
	Kind    proto.ChangeKind
	Path    string
	Session int64
	Data    string
	Version int32
	Mtime   int64
}

// Commit is a transaction as the members applied it.
type Commit struct {
	Zxid    int64
	Index   uint64
	Digest  uint64
	At      time.Duration // when the first member applied it
	Seq     int           // the same moment as a number; see Op
	By      uint64        // that member
	Changes []Change
}

// Span is the time for which a client knows that it holds a lock.
type Span struct {
	Client  int
	Session int64
	Timeout time.Duration
	Lock    string
	Path    string
	Czxid   int64
	Zxid    int64         // of the reply from which the client knows
	At      time.Duration // when that reply came
	CallAt  time.Duration // when its request was sent
	Until   time.Duration // when the client released the lock; 0 if it never did
}

// Moment is when something happened at a member.
type Moment struct {
	At     time.Duration
	Member uint64
}

// Expiry is a leader's decision to end a session because its client was silent.
type Expiry struct {
	At      time.Duration
	By      uint64
	Session int64
	Timeout time.Duration
}

// Clock says by how much a member's time of day is ahead of the run's time from At on.
type Clock struct {
	Member    uint64
	At, Ahead time.Duration
}

// Violation is a promise that was broken.
type Violation struct{ Check, Text string }

func (v Violation) String() string { return v.Check + ": " + v.Text }

// History is everything that happened in a run.
type History struct {
	mu            sync.Mutex
	start         time.Time
	seq           int
	Ops           []*Op
	Conns         []*ConnLog
	Commits       []Commit
	Spans         []*Span
	Expiries      []Expiry
	Clocks        []Clock
	FailedResumes map[int64]time.Duration // when a client last tried to resume a session and failed
	WorkEnded     time.Duration           // when the clients stopped
	Faults        []string
	Forced        map[int64]bool          // sessions that a fault has ended
	KnownEnded    map[int64]time.Duration // when a client learned that its session has ended
	Violations    []Violation
	Counts        Counts       // what is only counted during a run
	Steps         []spec.Event // the last ones; guarded by steps.mu
	Troubles
	Ending
}

// Troubles are the times when clients could not count on being served.
type Troubles struct {
	Failed        []Moment        // when clients learned that they could not connect to a member
	Unheard       []Moment        // when a member disconnected its clients because the leader did not receive their touches
	Began         []Moment        // when a member applied its first transaction of a leader's term
	LeaderChanges []time.Duration // when a member learned of a new leader, or that there is none
}

// Ending is what is left when all members have recovered from the last fault.
type Ending struct {
	Sessions  []int64           // the sessions that exist
	Stats     map[string]string // the stats of quotas, as a member has them
	StatsZxid int64             // that member's zxid
	End       time.Duration     // when Sessions and Stats were read
}

func newHistory() *History {
	return &History{start: time.Now(), Counts: Counts{}, Forced: map[int64]bool{}, KnownEnded: map[int64]time.Duration{}, FailedResumes: map[int64]time.Duration{}}
}

// changes yields each change with its commit, in order.
func (h *History) changes() iter.Seq2[*Commit, Change] {
	return func(yield func(*Commit, Change) bool) {
		for i := range h.Commits {
			for _, g := range h.Commits[i].Changes {
				if !yield(&h.Commits[i], g) {
					return
				}
			}
		}
	}
}

func (h *History) now() time.Duration { return time.Since(h.start) }

func (h *History) next() int {
	h.seq++
	return h.seq
}

// maxViolations limits what a run reports; the first violations say most.
const maxViolations = 20

func (h *History) violate(check, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.violateLocked(check, format, args...)
}

func (h *History) violateLocked(check, format string, args ...any) {
	if len(h.Violations) < maxViolations {
		h.Violations = append(h.Violations, Violation{check, fmt.Sprintf("at %v: ", h.now()) + fmt.Sprintf(format, args...)})
	}
}

func (h *History) fault(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Faults = append(h.Faults, fmt.Sprintf("%v ", h.now())+fmt.Sprintf(format, args...))
}

// save writes the history to a file, with a line of JSON for each item.
func (h *History) save(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	e := json.NewEncoder(f)
	return errors.Join(
		save(e, "violation", h.Violations), save(e, "fault", h.Faults), save(e, "expiry", h.Expiries), save(e, "clock", h.Clocks),
		save(e, "lock", h.Spans), save(e, "commit", h.Commits), save(e, "op", h.Ops), save(e, "conn", h.Conns), save(e, "step", h.Steps))
}

func save[T any](e *json.Encoder, kind string, all []T) error {
	for _, v := range all {
		if err := e.Encode(map[string]any{kind: v}); err != nil {
			return err
		}
	}
	return nil
}

// recorder is the fsm.Observer of a member from one start to the next stop. It records
// the transactions, and checks that all members apply the same ones in the same order,
// with the same changes and digests.
type recorder struct {
	s      *sim
	h      *History
	member uint64
	pos    int   // of the next commit in h.Commits
	lost   bool  // pos is not known: a snapshot was restored, or nothing was applied yet
	term   int64 // of the newest transaction
	served bool  // the member served clients with watches when Restoring was called
}

func (t *recorder) Changed(v *fsm.View, changes []proto.Change) {
	h := t.h
	c := Commit{Zxid: v.Zxid(), Index: v.Index(), Digest: v.Digest(), By: t.member, At: h.now()}
	for i := range changes {
		x := &changes[i]
		g := Change{Kind: x.Kind, Path: x.Path, Session: x.Session}
		switch x.Kind {
		case proto.SessionResumed:
			continue // takes no zxid
		case proto.NodeCreated, proto.NodeDataChanged:
			// A multi may have deleted the znode again.
			if n := v.Tree().Lookup(x.Path); n != nil {
				g.Data, g.Version, g.Mtime = unpadded(n.Record().Data), n.Record().Version, n.Record().Mtime
			}
		}
		c.Changes = append(c.Changes, g)
	}
	if len(c.Changes) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if term := c.Zxid >> 32; term > t.term {
		t.term = term
		h.Began = append(h.Began, Moment{c.At, t.member})
	}
	if t.lost {
		t.pos = sort.Search(len(h.Commits), func(i int) bool { return h.Commits[i].Zxid >= c.Zxid })
		t.lost = false
	}
	if t.pos == len(h.Commits) {
		if t.pos > 0 && h.Commits[t.pos-1].Zxid >= c.Zxid {
			h.violateLocked("order", "member %d applies zxid %x after %x", t.member, c.Zxid, h.Commits[t.pos-1].Zxid)
		}
		c.Seq = h.next()
		h.Commits = append(h.Commits, c)
		t.pos++
		return
	}
	o := &h.Commits[t.pos]
	t.pos++
	if o.Zxid != c.Zxid || o.Index != c.Index || o.Digest != c.Digest || !slices.Equal(o.Changes, c.Changes) {
		h.violateLocked("agreement", "member %d applies %+v where member %d applied %+v", t.member, c, o.By, *o)
		t.lost = true
	}
}

func (t *recorder) Applied(uint64, uint64, int) {}

func (t *recorder) Answered() {}

func (t *recorder) Restoring() {
	t.h.mu.Lock()
	t.served = t.s.watchersAt(t.member) > 0
	t.h.mu.Unlock()
}

// Restored sometimes takes long, as an observer may. Meanwhile the tree is not locked,
// and some of the other observers do not know the new state yet.
func (t *recorder) Restored() {
	t.lost = true
	t.h.mu.Lock()
	if t.served {
		t.h.Counts["snapshots restored while serving"]++
	} else {
		t.h.Counts["snapshots restored at a start"]++
	}
	t.h.mu.Unlock()
	if t.served {
		time.Sleep(time.Duration(t.s.shared.IntN(300)) * time.Millisecond)
	}
}

func (t *recorder) Failed(err error) { t.h.violate("apply", "member %d: %v", t.member, err) }
