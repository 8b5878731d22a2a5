package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
)

// Limits of a state. A server with more is not asked for the list at all, since making it costs the
// server processor time; rows that are not shown are counted.
const (
	maxEphemerals  = 20_000
	maxWatches     = 20_000
	maxConnections = 20_000
	maxLockDirs    = 4_000 // directories that may be locks
	maxEntries     = 5_000 // of one directory
	maxStats       = 2_000 // Stats read for one state
	maxData        = 200   // data of holders read for one state

	shownLocks      = 50 // and heads of groups, on one page
	shownContenders = 50 // of one lock that hold it, and as many that wait
	fewEntries      = 5  // the same, if many locks are shown
	shownSessions   = 100
	shownClients    = 50 // and heads of groups, on one page
	shownWatches    = 100
	shownProblems   = 20 // locks with problems, each with fewEntries of them
)

// state is what the page shows. Numbers that may exceed the precision of JavaScript are
// text; times are in milliseconds since the epoch.
type state struct {
	Now int64 `json:"now"`
	powers
	Server  serverState   `json:"server"`
	Members []memberState `json:"members"`
	// Unknown says why this server does not know what the cluster has now; "" if it does. Then
	// there are no locks, sessions and so on below, which does not mean that none exist.
	Unknown string `json:"unknown"`

	Locks     []lockState `json:"locks"` // of the page, in the order of their groups
	LocksMore int         `json:"locksMore"`
	listing
	Lock     *lockDetail    `json:"lock,omitempty"`
	Totals   lockTotals     `json:"totals"`
	Problems []lockProblems `json:"problems"` // of locks that the filter finds
	// ProblemsMore counts the locks beyond those.
	ProblemsMore int           `json:"problemsMore"`
	Sessions     []sessionInfo `json:"sessions"`
	// HistorySince is since when the server keeps the history of locks; 0 if it does not yet.
	HistorySince int64 `json:"historySince"`
	// SessionsMore counts the sessions that exist beyond those.
	SessionsMore int          `json:"sessionsMore"`
	Watches      []watchState `json:"watches"`
	WatchesMore  int          `json:"watchesMore"` // paths
	Clients      clientsState `json:"clients"`
	Samples      []sample     `json:"samples"`
	Notes        notes        `json:"notes"`
}

type powers struct {
	EndSessions bool `json:"endSessions"`
	BreakLocks  bool `json:"breakLocks"`
	EditZnodes  bool `json:"editZnodes"`
}

type listing struct {
	Groups   []group `json:"groups"`
	Matching int     `json:"matching"` // locks that the filter finds
	Page     int     `json:"page"`     // from 1
	Pages    int     `json:"pages"`
	// ReadingData is true while the data of some holders has not been read, so that the filter
	// does not find it.
	ReadingData bool `json:"readingData"`
}

type notes struct {
	Locks    string `json:"locks,omitempty"`
	Sessions string `json:"sessions,omitempty"`
	Watches  string `json:"watches,omitempty"`
}

type serverState struct {
	ID          uint64 `json:"id"`
	Cluster     string `json:"cluster"` // "" if it is in none yet
	Role        string `json:"role"`
	Serving     bool   `json:"serving"`
	ReadOnly    bool   `json:"readOnly"`
	Version     string `json:"version"`
	Since       int64  `json:"since"`
	Leader      uint64 `json:"leader"`
	Term        uint64 `json:"term"`
	Index       uint64 `json:"index"`
	Zxid        string `json:"zxid"`
	Znodes      int    `json:"znodes"`
	Ephemerals  int    `json:"ephemerals"`
	DataBytes   int64  `json:"dataBytes"`
	Sessions    int    `json:"sessions"`
	Connections int    `json:"connections"`
	Watches     int    `json:"watches"`
	Outstanding int64  `json:"outstanding"`
}

type lockState struct {
	Path    string      `json:"path"`
	Kind    string      `json:"kind"`
	Client  string      `json:"client"`
	Slots   int         `json:"slots"`
	Group   string      `json:"group"`   // path of its group; "" if it is in none
	Holding int         `json:"holding"` // also those that are not shown
	Waiting int         `json:"waiting"` // likewise
	Holders []contender `json:"holders"`
	Queue   []contender `json:"queue"`
	More    int         `json:"more"` // contenders that are not shown
	Cycle   bool        `json:"cycle"`
}

type contender struct {
	Path    string `json:"path"`    // of its znode
	Session string `json:"session"` // "" if the znode is not ephemeral
	Token   string `json:"token"`
	Since   int64  `json:"since"`
	Shared  bool   `json:"shared"`
	Cycle   bool   `json:"cycle"` // it is part of a cycle
	Data    string `json:"data"`  // text for the data of its znode; "" for those that wait
	// Of its session, as in sessionInfo.
	place
	Timeout int64 `json:"timeout"`
	Expires int64 `json:"expires"`
}

type group struct {
	Path    string `json:"path"`
	Locks   int    `json:"locks"`
	Waiting int    `json:"waiting"`
	Cycle   bool   `json:"cycle"`
	Folded  bool   `json:"folded"`
}

// lockDetail is a lock with its history, the oldest holder first.
type lockDetail struct {
	lockState
	CycleWith []string `json:"cycleWith"` // the other locks of its cycles
	History   []tenure `json:"history"`
}

type lockTotals struct {
	// AtLeast is true if only some of the locks have been read, so there may be more of everything.
	AtLeast bool `json:"atLeast"`

	Locks   int `json:"locks"`
	Holders int `json:"holders"`
	Waiting int `json:"waiting"`
	Cycles  int `json:"cycles"`
}

type lockProblems struct {
	Path     string    `json:"path"`
	Problems []problem `json:"problems"`
	More     int       `json:"more"` // problems that are not shown
}

type problem struct {
	Fault string `json:"fault"`
	Text  string `json:"text"`
	Harm  bool   `json:"harm"`
	// Others are the other locks that it is about.
	Others []string `json:"others"`

	path string // of its lock
}

type sessionInfo struct {
	ID string `json:"id"`
	place
	Timeout    int64 `json:"timeout"` // in ms; 0 if unknown
	Expires    int64 `json:"expires"` // if it stays silent; 0 if unknown
	Ephemerals int   `json:"ephemerals"`
	Holds      int   `json:"holds"`
	Waits      int   `json:"waits"`
	Watches    int   `json:"watches"`
}

type watchState struct {
	Path     string   `json:"path"`
	Sessions []string `json:"sessions"`
	More     int      `json:"more"`
}

// sample is a point of the charts. A value that is not known is nil.
type sample struct {
	At     int64    `json:"at"`
	Writes *float64 `json:"writes"` // per second, in the whole cluster
	Sync   *float64 `json:"sync"`   // ms that a sync took
	Grants *float64 `json:"grants"` // locks that got a new holder, per second
}

const (
	maxSamples  = 120
	syncTimeout = time.Second
)

// survey gathers states. Only one goroutine may use it at a time, except for changed.
type survey struct {
	server *lockkeeper.Server
	report report.Server
	reader reader
	may    Options
	others

	owners       map[int64]uint64 // the servers of the sessions in the last state
	made         mark             // what the last state was made of
	lockDirs     map[string]*lockDir
	complete     bool                    // whether all lockDirs were read
	reading      bool                    // the next state will have more locks
	data         map[entry]string        // of holders
	seen         map[string]time.Time    // problems that were there when the locks were read before, since when
	history      map[string]*lockHistory // by lock; nil before the first complete state
	historySince int64
	grants       float64 // how often locks got a new holder since the last sample
	last         point
	samples      []sample
	waited       time.Duration // for the majority, when the last state was gathered
}

type others struct {
	peers     poll[peerStatus]
	clients   poll[told]
	askMember report.AskClients
}

// mark changes when the server's state does.
type mark struct {
	zxid    int64
	role    lockkeeper.Role
	leader  uint64
	serving bool
}

func markOf(st *lockkeeper.Status) mark {
	return mark{st.State.Zxid, st.Role, st.Cluster.Leader, st.Serving}
}

// point is when the last sample was taken, and the zxid then.
type point struct {
	at   time.Time
	zxid int64
}

// begin prepares for states, and end stops what begin and gather have started.
func (v *survey) begin() {
	v.peers.begin()
	v.clients.begin()
	v.data, v.history, v.historySince, v.owners = nil, nil, 0, nil
	v.lockDirs, v.seen, v.grants, v.last = map[string]*lockDir{}, nil, 0, point{}
	if n := len(v.samples); n > 0 && time.Since(time.UnixMilli(v.samples[n-1].At)) > maxSamples*time.Second {
		v.samples = nil
	}
}

func (v *survey) end() {
	v.peers.end()
	v.clients.end()
}

func (v *survey) changed() bool {
	st := v.server.Status()
	return v.made != markOf(&st)
}

// gather reads the state of the server. find are the texts by which browsers look for clients.
func (v *survey) gather(ctx context.Context, find []string) *scene {
	st := v.server.Status()
	v.made = markOf(&st)
	v.reading = false
	now := time.Now()
	c := &scene{state: state{
		Now: now.UnixMilli(), powers: powers{v.may.EndSessions, v.may.BreakLocks, v.may.EditZnodes},
		Server: serverState{
			st.ID, st.Cluster.ID, st.Role.String(), st.Serving, st.ReadOnly, lockkeeper.Version, now.Add(-st.Uptime).UnixMilli(), st.Cluster.Leader, st.State.Term, st.State.Index, zxid(st.State.Zxid),
			st.State.Znodes, st.State.Ephemerals, st.State.DataBytes, st.State.Sessions, st.Clients.Connections, st.Clients.Watches, st.Clients.Outstanding,
		},
		Members: v.askPeers(ctx, &st), Watches: []watchState{},
	}}
	s := &c.state
	c.members = v.askClients(ctx, &st, find)
	if !st.Serving && !st.ReadOnly {
		s.Unknown = "This server serves no clients at the moment, so it does not know what the cluster has now."
		if st.Cluster.Leader == 0 {
			s.Unknown = "This server knows no leader, so it serves no clients, and does not know what the cluster has now."
		}
		s.Notes = notes{s.Unknown, s.Unknown, s.Unknown}
		v.sample(&st, false)
		s.Samples = v.samples
		return c
	}
	c.sessions = map[int64]*sessionInfo{}
	of := func(id int64) *sessionInfo {
		if c.sessions[id] == nil {
			c.sessions[id] = &sessionInfo{ID: locks.ID(id)}
		}
		return c.sessions[id]
	}
	v.connections(&st, s, of)
	ephemerals, all := v.sessions(&st, s, of)
	c.locate(st.Clients.Connections <= maxConnections, v.owners)
	watched := v.watches(&st, s, of)
	v.locks(c, ephemerals, watched, of)
	c.total = st.State.Sessions
	if all {
		c.total = len(c.sessions)
	}
	v.sample(&st, true)
	s.Samples = v.samples
	return c
}

// connections adds what this server knows of its clients.
func (v *survey) connections(st *lockkeeper.Status, s *state, of func(int64) *sessionInfo) {
	if st.Clients.Connections > maxConnections {
		s.Notes.Sessions = fmt.Sprintf("The addresses of %d connections are too many to show.", st.Clients.Connections)
		return
	}
	for _, c := range v.report.Connections() {
		if c.Session != 0 {
			x := of(c.Session)
			x.Addr, x.Timeout, x.here = c.Addr, c.Timeout.Milliseconds(), true
		}
	}
}

// sessions adds all sessions with the times when they expire, which only the leader knows, and
// returns the paths of all ephemeral znodes. It returns false if there are too many.
func (v *survey) sessions(st *lockkeeper.Status, s *state, of func(int64) *sessionInfo) (ephemerals []string, ok bool) {
	v.owners = nil
	if st.State.Ephemerals > maxEphemerals {
		s.Notes.Locks = fmt.Sprintf("%d ephemeral znodes are too many to look for locks here; lockkeeper lock ls finds them.", st.State.Ephemerals)
		s.Notes.Sessions = cmp.Or(s.Notes.Sessions, "There are too many ephemeral znodes to show when sessions expire.")
		return nil, false
	}
	all, err := v.report.Sessions()
	if err != nil {
		s.Notes.Locks = sentence(err)
		s.Notes.Sessions = cmp.Or(s.Notes.Sessions, s.Notes.Locks)
		return nil, false
	}
	v.owners = make(map[int64]uint64, len(all.All))
	for _, a := range all.All {
		x := of(a.ID)
		v.owners[a.ID] = a.Owner
		x.Timeout, x.Ephemerals = a.Timeout.Milliseconds(), len(a.Ephemerals)
		ephemerals = append(ephemerals, a.Ephemerals...)
	}
	if all.Tracked {
		for _, bucket := range all.Expiring {
			for _, id := range bucket.Sessions {
				of(id).Expires = bucket.Deadline
			}
		}
	}
	return ephemerals, true
}

// watches adds the watches of this server's clients, and returns their paths by session; nil
// if they are not known.
func (v *survey) watches(st *lockkeeper.Status, s *state, of func(int64) *sessionInfo) map[int64][]string {
	if st.Clients.Watches > maxWatches {
		s.Notes.Watches = fmt.Sprintf("%d watches are too many to show.", st.Clients.Watches)
		return nil
	}
	all, err := v.report.Watches()
	if err != nil {
		s.Notes.Watches = sentence(err)
		return nil
	}
	bySession := map[int64][]string{}
	for _, w := range all {
		bySession[w.Session] = append(bySession[w.Session], w.Path)
	}
	for id, paths := range bySession {
		slices.Sort(paths)
		bySession[id] = slices.Compact(paths)
		of(id).Watches = len(bySession[id])
	}
	for _, g := range all.ByPath() {
		if len(s.Watches) == shownWatches {
			s.WatchesMore++
			continue
		}
		more := max(0, len(g.Items)-shownContenders)
		s.Watches = append(s.Watches, watchState{g.Head, g.Items[:len(g.Items)-more], more})
	}
	return bySession
}

// sample adds a point to the charts every second.
func (v *survey) sample(st *lockkeeper.Status, serving bool) {
	now := time.Now()
	v.waited = 0
	passed := now.Sub(v.last.at)
	if passed < idleInterval-interval/2 {
		return
	}
	x := sample{At: now.UnixMilli()}
	if !v.last.at.IsZero() && serving {
		if n := st.State.Zxid - v.last.zxid; n >= 0 && st.State.Zxid>>32 == v.last.zxid>>32 {
			x.Writes = rate(float64(n), passed)
		}
		x.Grants = rate(v.grants, passed)
	}
	if serving && !st.ReadOnly {
		err := v.report.Sync(syncTimeout)
		v.waited = time.Since(now)
		if err == nil {
			x.Sync = new(v.waited.Seconds() * 1000)
		}
	}
	v.grants, v.last = 0, point{now, st.State.Zxid}
	v.samples = append(v.samples, x)
	v.samples = slices.Clone(v.samples[max(0, len(v.samples)-maxSamples):])
}

func rate(n float64, passed time.Duration) *float64 { return new(n / passed.Seconds()) }

func sentence(err error) string {
	text := err.Error()
	return strings.ToUpper(text[:1]) + strings.TrimSuffix(text[1:], ".") + "."
}
