package sim

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Op is one request of a client, and what it knows of its outcome.
type Op struct {
	ID, Client, Conn, Server int
	Session                  int64
	Code                     proto.OpCode
	Path                     string
	Tag                      string // the data that it writes, unlike that of any other
	TTL                      time.Duration
	More                     []Part // of a multi
	Flags                    int32
	Version                  int32  // that is expected
	Version64                int64  // likewise, of the members, by a reconfig, whose Path is the member that it changes
	User                     string // whose identity the connection has, or gets by this; "" if nobody's
	Owner                    string // of what it creates: nobody else may do anything with it; "" is everybody
	ReadOnly                 bool   // sent on a read-only connection
	Watch                    bool
	Recursive                bool                      // of a persistent watch
	Set                      *proto.SetWatches2Request `json:",omitempty"` // of setWatches
	Unsynced                 bool                      // a read that may be old

	// Numbers order what clients do and see, in the whole run; 0 is never.
	Call, Ret     int
	CallAt, RetAt time.Duration
	Zxid          int64
	Err           proto.Code

	GotPath, GotData string
	GotVersion       int32
	GotCzxid         int64
	GotMzxid         int64
	GotChildren      []string

	done chan struct{}
}

// Known says that a reply came.
func (o *Op) Known() bool { return o.Ret > 0 }

// OK says that a reply came and that it was a good one.
func (o *Op) OK() bool { return o.Ret > 0 && o.Err == proto.OK }

// Part is one operation of a multi.
type Part struct {
	Code    proto.OpCode
	Path    string
	Tag     string
	Version int32
}

// Frame is a reply or an event, as it came.
type Frame struct {
	Seq   int
	At    time.Duration
	Zxid  int64
	Op    *Op `json:"-"`
	OpID  int
	Event proto.EventType // 0 for a reply
	Path  string
}

// ConnLog is what came on one connection.
type ConnLog struct {
	ID, Client, Server int
	Session            int64
	Timeout            time.Duration
	CallAt             time.Duration // when its handshake was sent
	Seq                int           // of the handshake's reply
	At                 time.Duration // likewise
	Left               int           // when the client left the session's connection before
	Ended              time.Duration // when the connection did
	ByServer           bool          // the server ended it, or its host
	ReadOnly           bool          // its server had no majority: the session, if it is one, is not kept alive by it
	Frames             []Frame
}

// Chg is one change of a commit.
type Chg struct {
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
	At      time.Duration // when the first of them did
	Seq     int           // likewise
	By      uint64
	Changes []Chg
}

// Span is the time for which a client holds a lock, as it knows.
type Span struct {
	Client  int
	Session int64
	Timeout time.Duration
	Lock    string
	Path    string
	Czxid   int64
	Zxid    int64         // of the reply that told it
	At      time.Duration // when that came
	CallAt  time.Duration // when it was asked for
	Until   time.Duration // when it let go; 0 if it never did
	Stock   bool          // a stock client's, which knows no zxid
}

// Expiry is a leader's decision that a session is late.
type Expiry struct {
	At      time.Duration
	By      uint64
	Session int64
	Timeout time.Duration
}

// Clock is a member's time of day from At on: it is Ahead of the others' time,
// which is that of the run.
type Clock struct {
	Member    uint64
	At, Ahead time.Duration
}

// Violation is a promise that was broken.
type Violation struct{ Check, Text string }

func (v Violation) String() string { return v.Check + ": " + v.Text }

// History is all that happened in a run.
type History struct {
	mu         sync.Mutex
	start      time.Time
	seq        int
	Ops        []*Op
	Conns      []*ConnLog
	Commits    []Commit
	Spans      []*Span
	Expiries   []Expiry
	Clocks     []Clock
	Leads      []time.Duration         // when a member saw another leader, or none
	Tries      map[int64]time.Duration // when a client tried last, and failed, to resume a session
	Left       []int64                 // sessions at the end
	Stats      map[string]string       // likewise, of quotas
	StatsZxid  int64                   // of the member that says so
	End        time.Duration           // when that was
	Over       time.Duration           // when the work was over
	Faults     []string
	Forced     map[int64]bool          // sessions that were ended on command
	Known      map[int64]time.Duration // when a client knew that its session is at its end
	Restores   int                     // of snapshots, by members that had no client with watches, mostly at a start
	Overtaken  int                     // of snapshots from the leader, by members that served clients with watches
	Violations []Violation
}

func newHistory() *History {
	return &History{start: time.Now(), Forced: map[int64]bool{}, Known: map[int64]time.Duration{}, Tries: map[int64]time.Duration{}}
}

func (h *History) now() time.Duration { return time.Since(h.start) }

func (h *History) next() int {
	h.seq++
	return h.seq
}

// maxViolations bounds what a run tells: one is enough, and the first tells most.
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

// save writes the history to a file, a line for each thing.
func (h *History) save(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	e := json.NewEncoder(f)
	line := func(kind string, v any) {
		if err == nil {
			err = e.Encode(map[string]any{kind: v})
		}
	}
	for _, v := range h.Violations {
		line("violation", v)
	}
	for _, v := range h.Faults {
		line("fault", v)
	}
	for _, v := range h.Expiries {
		line("expiry", v)
	}
	for _, v := range h.Clocks {
		line("clock", v)
	}
	for _, v := range h.Spans {
		line("lock", v)
	}
	for _, v := range h.Commits {
		line("commit", v)
	}
	for _, v := range h.Ops {
		line("op", v)
	}
	for _, v := range h.Conns {
		line("conn", v)
	}
	return err
}

// tap is what one run of a member tells of what it applies (fsm.Observer). It
// holds the members to each other: the same transactions, in the same order,
// with the same changes and digests.
type tap struct {
	s      *sim
	h      *History
	member uint64
	pos    int  // of the next commit in h.Commits
	lost   bool // pos is to be found: a snapshot was restored, or this run is new
	served bool // clients with watches, when Restoring was called
}

func (t *tap) Changed(v *fsm.View, changes []proto.Change) {
	h := t.h
	c := Commit{Zxid: v.Zxid(), Index: v.Index(), Digest: v.Digest(), By: t.member, At: h.now()}
	for i := range changes {
		x := &changes[i]
		g := Chg{Kind: x.Kind, Path: x.Path, Session: x.Session}
		switch x.Kind {
		case proto.SessionResumed:
			continue // takes no zxid
		case proto.NodeCreated, proto.NodeDataChanged:
			// Without data if a multi has deleted it again.
			if n := v.Tree().Lookup(x.Path); n != nil {
				g.Data, g.Version, g.Mtime = string(n.Record().Data), n.Record().Version, n.Record().Mtime
			}
		}
		c.Changes = append(c.Changes, g)
	}
	if len(c.Changes) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
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
	same := o.Zxid == c.Zxid && o.Index == c.Index && o.Digest == c.Digest && len(o.Changes) == len(c.Changes)
	for i := 0; same && i < len(c.Changes); i++ {
		same = o.Changes[i] == c.Changes[i]
	}
	if !same {
		h.violateLocked("agreement", "member %d applies %+v, where member %d applied %+v", t.member, c, o.By, *o)
		t.lost = true
	}
}

func (t *tap) Applied(uint64, uint64, int) {}

func (t *tap) Restoring() {
	t.h.mu.Lock()
	t.served = t.s.watchersAt(t.member) > 0
	t.h.mu.Unlock()
}

// Restored takes its time, as any observer may: the tree is unlocked, and some of
// the other observers do not know of the new state yet.
func (t *tap) Restored() {
	t.lost = true
	t.h.mu.Lock()
	if t.served {
		t.h.Overtaken++
	} else {
		t.h.Restores++
	}
	t.h.mu.Unlock()
	if t.served {
		time.Sleep(time.Duration(t.s.shared.IntN(300)) * time.Millisecond)
	}
}

func (t *tap) Failed(err error) { t.h.violate("apply", "member %d: %v", t.member, err) }
