package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/sim/perturb"
	"github.com/lockkeeper/lockkeeper/spec"
)

// Options say what to run.
type Options struct {
	Choices
	Members int
	Files   bool // members store their data in files, in Dir
	Dir     string
	For     time.Duration // how long faults and clients are active
	Quiet   bool          // no faults
	Without []string      // names of faults that are not made; the others happen as if they were
	Pace    float64       // how long clients pause between requests; 1 is busy
	Real    bool          // in real time, on all processors, not in a synctest bubble

	// The members' configuration.
	ElectionTimeout time.Duration
	MaxOutstanding  int  // requests of one connection in progress
	Observers       int  // how many members, the last ones, have no vote
	EnforceQuota    bool // writes that exceed hard limits are refused
	ReadOnly        bool // members without a majority serve clients that accept read-only service
	LongLog         bool // snapshots are rare, so a member that lags gets all entries
	Rate            int  // bytes per second between two members; 0 is unlimited
	Large           bool // clients write entries of up to 900 KB
	Late            int  // how many members with a vote, the last ones, start for the first time late
	DiskFirst       bool // testhooks.Hooks.DiskFirst

	Disk time.Duration // how long each write of a member takes, if its storage is in memory
}

// Choices are all that is random in a run.
type Choices struct {
	Seed  uint64
	Forks []Fork // the moments from which on another seed determines them
}

// Fork says from when on choices follow from Seed.
type Fork struct {
	At   time.Duration
	Seed uint64
}

// longLog reports whether snapshots are rare. They are not where each entry takes long to
// apply, since a member that starts with an empty disk would need most of the run for the log.
func (s *sim) longLog() bool { return s.opts.LongLog && s.slack() <= 50*time.Millisecond }

func (s *sim) snapshotBytes() int64 {
	if s.longLog() && s.opts.Large {
		return 64 << 20
	}
	if s.longLog() {
		return 4 << 20
	}
	return 16 << 10
}

// slack is how much longer than usual something that has a few steps may take.
func (s *sim) slack() time.Duration {
	if s.opts.Real { // on a busy machine
		return 5 * time.Second
	}
	return s.perturbed.Slack()
}

// usualElection is the default election timeout.
const usualElection = 2 * time.Second

// OptionsFor returns the options that a seed determines: most runs are short and busy,
// some are longer and slower, and a few store files.
func OptionsFor(seed uint64) Options {
	r := rand.New(rand.NewPCG(seed, 6))
	o := Options{Choices: Choices{Seed: seed}, Members: 3 + 2*r.IntN(2), For: time.Minute, Pace: 1, ElectionTimeout: usualElection, MaxOutstanding: []int{3, 20, 1000}[seed%3]}
	switch r.IntN(12) {
	case 0:
		o.Files, o.For = true, 20*time.Second
	case 1, 2, 3, 4:
		o.For, o.Pace = 10*time.Minute, 10
	case 5, 6, 7:
		o.For, o.Pace = time.Hour, 60
	}
	if r.IntN(3) == 0 {
		o.ElectionTimeout = time.Duration(1+r.IntN(6)) * 300 * time.Millisecond
	}
	if o.Members == 5 && r.IntN(3) == 0 {
		o.Observers = 1 + r.IntN(2)
	}
	o.ReadOnly = r.IntN(3) > 0
	o.EnforceQuota = r.IntN(3) > 0
	o.LongLog = r.IntN(4) == 0
	if r.IntN(3) == 0 {
		o.Rate = 1 << (20 + r.IntN(5))
		if o.Large = !o.Files && r.IntN(2) == 0; o.Large {
			o.Rate, o.LongLog = 1<<(20+r.IntN(2)), r.IntN(2) == 0
		}
	}
	if r.IntN(3) == 0 {
		o.Late = 1 + r.IntN((o.Members-o.Observers-1)/2)
	}
	o.DiskFirst = r.IntN(4) == 0
	o.Disk = time.Duration(r.IntN(4)) * time.Millisecond
	return o
}

// Report is the result of a run.
type Report struct {
	Options
	History *History
	Virtual time.Duration
	Faults  Counts // by kind
	Checked Counts
	Reached map[spec.Pair]time.Duration // steps in kinds of states, and when each was first taken
}

// Failed reports whether a promise was broken.
func (r *Report) Failed() bool { return len(r.History.Violations) > 0 }

const (
	tick       = 500 * time.Millisecond
	usualDelay = 2 * time.Millisecond
)

type sim struct {
	opts       Options
	h          *History
	net        *memnet.Network
	peers      map[uint64]string
	members    []*member
	shared     *lockedRand   // for choices that several goroutines make
	done       chan struct{} // closed when the clients are to stop
	faultsOver chan struct{} // closed when no new faults are to start
	wg         sync.WaitGroup
	clients    []*client    // guarded by h.mu; the first has the id 1
	delay      atomic.Int64 // longest delay of a message

	perturbed *perturb.Run // perturbs the order in which the members' goroutines run

	lagClients

	steps steps

	reconfigurer *client // client of the fault that changes who votes; guarded by voting
	voting       sync.Mutex

	disks   sync.RWMutex // held while a member has lost its disk, and shared while members or votes change
	foreign sync.Mutex   // guards others, and is held while a member has the data of one of them
	others  []*member    // of another cluster

	disturbances
}

// lagClients are the clients of the fault that makes a member lag. lagging guards them.
type lagClients struct {
	writer  *client // writes much
	watcher *client // watches that on the lagging member
	lagging sync.Mutex
}

// disturbances are the faults of a run: which there are, and when they did what. mu guards
// them.
type disturbances struct {
	mu        sync.Mutex
	cuts      map[[2]string]int // how many faults cut the way from one host to another
	spans     map[trouble][]*span
	calmUntil time.Duration  // no fault begins before
	frozen    map[string]int // how many faults keep a host from using the network
	faults    map[string]int // how many there were, by name
	active    int            // faults that have not ended
}

// trouble is what was wrong in a span of the run.
type trouble int

const (
	wayCut        trouble = iota // nothing got from one host to another, or to anyHost
	roundSlow                    // round trips took longer than an election timeout allows
	diskSlow                     // a member's disk was slow
	memberStuck                  // a member could do nothing
	processPaused                // a member's process was paused
	otherFault                   // there was a fault that does more than make a member stuck
	memberOut                    // a member was down, or had lost its disk
	votesChange                  // members or votes changed, or no cluster could be formed yet
)

// span is a period of the run; Until is 0 while it lasts. from names the member, if it is about one.
type span struct {
	from, to  string
	At, Until time.Duration
}

const anyHost = "*"

// lockedRand is a random source that is safe for concurrent use.
type lockedRand struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (l *lockedRand) IntN(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.r.IntN(n)
}

func (s *sim) stream(i int) *rand.Rand {
	return rand.New(&forked{rand.NewPCG(s.opts.Seed, uint64(i)), uint64(i), s.opts.Forks, s.h.now})
}

// forked is a source of random numbers, which goes on with another seed from each fork on.
type forked struct {
	*rand.PCG
	i     uint64
	forks []Fork // those to come
	now   func() time.Duration
}

func (f *forked) Uint64() uint64 {
	for len(f.forks) > 0 && f.now() >= f.forks[0].At {
		f.PCG, f.forks = rand.NewPCG(f.forks[0].Seed, f.i), f.forks[1:]
	}
	return f.PCG.Uint64()
}

func (s *sim) over() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// sleep waits for d, or until the clients are to stop.
func (s *sim) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.done:
	}
}

// member is one member of the cluster, with the servers that it runs one after another.
type member struct {
	s    *sim
	id   uint64
	name string
	mem  *storage.Memory
	dir  string
	join bool // it was removed once, and must join to come back

	condition
	back func() // ends its span of memberOut; only for the claim's owner

	ahead  atomic.Int64 // by how much its clock is ahead of the run's time
	clocks *rand.Rand   // only for the claim's owner

	mu       sync.Mutex
	srv      *lockkeeper.Server // nil while it is down
	listener net.Listener
	mayStop  bool          // it may stop by itself: its disk is full, or it was removed
	mayNot   time.Time     // since when it may not any more
	claimed  bool          // reserved by a fault; see claim
	gone     chan struct{} // closed when srv is stopped
	faults   []*storeFault
}

// condition is why a member may not be what the others take it for.
type condition struct {
	changing atomic.Bool // a fault is changing its membership or its vote
	absent   atomic.Bool // it has never run
	wrong    atomic.Bool // it has the data of another cluster's member
	misled   atomic.Bool // it has stopped because its only voter has
	removed  atomic.Bool // it has stopped because it was removed
}

func memberHost(id int) string { return fmt.Sprintf("host%d", id) }
func clientAddr(id int) string { return memberHost(id) + ":2181" }

// asMember is how a reconfig names a member.
func (m *member) asMember(votes bool) string {
	role := "observer"
	if votes {
		role = "participant"
	}
	return fmt.Sprintf("server.%d=%s:8000:%s", m.id, m.s.peers[m.id], role)
}

// votes reports whether the member has a vote, unless a fault has changed that.
func (m *member) votes() bool { return int(m.id) <= m.s.opts.Members-m.s.opts.Observers }

// logHandler records those of a member's log messages that the checks need.
type logHandler struct {
	s  *sim
	id uint64
}

func (l logHandler) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (l logHandler) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l logHandler) WithGroup(string) slog.Handler                    { return l }
func (l logHandler) Handle(_ context.Context, r slog.Record) error {
	h := l.s.h
	if r.Message == "session expired" {
		e := Expiry{At: h.now(), By: l.id}
		r.Attrs(func(a slog.Attr) bool {
			switch a.Key {
			case "session":
				n, _ := strconv.ParseUint(a.Value.String(), 0, 64)
				e.Session = int64(n)
			case "timeoutMs":
				e.Timeout = time.Duration(a.Value.Int64()) * time.Millisecond
			}
			return true
		})
		h.mu.Lock()
		h.Expiries = append(h.Expiries, e)
		h.mu.Unlock()
		return nil
	}
	if strings.HasPrefix(r.Message, "the leader does not receive this member's touches") {
		h.mu.Lock()
		h.Unheard = append(h.Unheard, Moment{h.now(), l.id})
		h.mu.Unlock()
	}
	if r.Message == "leader" {
		h.mu.Lock()
		h.LeaderChanges = append(h.LeaderChanges, h.now())
		h.mu.Unlock()
	}
	if r.Level >= slog.LevelWarn || r.Message == "leader" {
		text := r.Message
		r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
		h.fault("member %d says: %s", l.id, text)
	}
	return nil
}

// start opens the member's server. The caller must have claimed the member.
func (m *member) start() (err error) {
	m.s.perturbed.As(m.name, func() { err = m.open() })
	return err
}

func (m *member) open() error {
	m.removed.Store(false)
	if m.s.over() {
		return nil // a fault has not ended in time
	}
	if m.clocks.IntN(3) == 0 {
		m.setClock()
	}
	c := m.s.config(m)
	*testhooks.In(&c) = testhooks.Hooks{Memory: m.mem, Network: m.s.net.Host(m.name), TimeOfDay: m.timeOfDay, Observer: &recorder{s: m.s, h: m.s.h, member: m.id, lost: true}, Probes: cluster.Probes{DiskFirst: m.s.opts.DiskFirst, Trace: spec.Follow(m.id, m.s.h.now, m.s.steps.take)}}
	srv, err := lockkeeper.Open(c)
	if err != nil {
		if m.wrong.Load() {
			m.s.h.fault("member %d does not start: %v", m.id, err)
			return nil
		}
		m.s.h.violate("start", "member %d: %v", m.id, err)
		return err
	}
	listener, err := m.s.net.Host(m.name).Listen(clientAddr(int(m.id)))
	if err != nil {
		m.s.h.violate("start", "member %d: %v", m.id, err)
		return err
	}
	gone := make(chan struct{})
	m.mu.Lock()
	m.srv, m.listener, m.gone = srv, listener, gone
	m.mu.Unlock()
	if m.wrong.Load() && m.s.opts.ReadOnly {
		listener.Close() // until it meets another member it cannot know, and would answer read-only clients
	} else {
		m.s.wg.Go(func() { m.serve(listener, srv) })
	}
	wrong := m.wrong.Load() // that fault may be over when watch looks
	m.s.wg.Go(func() { m.watch(srv, gone, wrong) })
	if m.back != nil {
		m.back()
	}
	return nil
}

func (s *sim) config(m *member) lockkeeper.Config {
	c := lockkeeper.Config{
		ID: m.id, DataDir: m.dir, TickTime: tick, ElectionTimeout: m.s.opts.ElectionTimeout,
		Limits:                 lockkeeper.Limits{MaxSessionTimeout: time.Minute, MaxOutstanding: m.s.opts.MaxOutstanding, SnapshotBytes: m.s.snapshotBytes()},
		ContainerCheckInterval: 10 * time.Second,
		Features:               lockkeeper.Features{ReadOnly: m.s.opts.ReadOnly, EnforceQuota: m.s.opts.EnforceQuota, Reconfig: true},
		Auth:                   lockkeeper.Auth{SuperDigest: zk.DigestACL(zk.PermAll, superUser, secretOf(superUser))[0].ID},
		Logger:                 slog.New(logHandler{m.s, m.id}),
	}
	if m.join {
		other := m.id
		for other == m.id || s.members[other-1].absent.Load() {
			other = other%uint64(len(s.members)) + 1
		}
		c.Join, c.PeerAddr, c.JoinAsObserver = s.peers[other], s.peers[m.id], !m.votes()
	} else {
		for _, x := range s.members {
			c.Peers = append(c.Peers, lockkeeper.Peer{ID: x.id, Addr: s.peers[x.id], Observer: !x.votes()})
		}
	}
	return c
}

func (m *member) timeOfDay() time.Time { return time.Now().Add(time.Duration(m.ahead.Load())) }

// setClock sets the member's clock: mostly some seconds off, sometimes right, or off by
// hours or years.
func (m *member) setClock() {
	off := time.Duration(m.clocks.Int64N(int64(5 * time.Second)))
	switch m.clocks.IntN(8) {
	case 0:
		off = 0
	case 1:
		off *= 3600
	case 2:
		off *= 300_000_000
	}
	if m.clocks.IntN(2) == 0 {
		off = -off
	}
	h := m.s.h
	h.mu.Lock()
	defer h.mu.Unlock()
	m.ahead.Store(int64(off))
	h.Clocks = append(h.Clocks, Clock{m.id, h.now(), off})
}

// watch reports a server that stops by itself. wrong is whether it was started with another cluster's disk.
func (m *member) watch(srv *lockkeeper.Server, gone chan struct{}, wrong bool) {
	select {
	case <-gone:
		return
	case <-srv.Done():
		err := srv.Err()
		// By stop, or it was killed, and has noticed that before its end.
		if err == lockkeeper.ErrClosed || errors.Is(err, errCrashed) {
			return
		}
		m.s.h.fault("member %d stops: %v", m.id, err)
		m.removed.Store(errors.Is(err, lockkeeper.ErrRemoved))
		m.mu.Lock()
		mayStop := m.mayStop || time.Since(m.mayNot) < time.Second // this goroutine may have slept meanwhile
		m.mu.Unlock()
		if wrong {
			return
		}
		// Whoever is the only voter left cannot be told from most of them.
		if voters := slices.DeleteFunc(srv.Members(), func(p lockkeeper.Peer) bool { return p.Observer }); len(voters) == 1 && strings.Contains(err.Error(), "the data directory of another") && m.s.members[voters[0].ID-1].wrong.Load() {
			m.misled.Store(true)
			return
		}
		if !mayStop {
			m.s.h.violate("fault", "member %d stops by itself: %v", m.id, err)
		} else if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, lockkeeper.ErrRemoved) {
			m.s.h.violate("fault", "member %d stops without naming its fault: %v", m.id, err)
		}
	}
}

func (m *member) serve(listener net.Listener, srv *lockkeeper.Server) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		m.s.wg.Go(func() { srv.ServeConn(c) })
	}
}

// stopTime is how long a server that is stopped may take to answer requests.
const stopTime = 3 * time.Second

// stop ends the server: by Shutdown, or by a crash, after which it writes and sends
// nothing.
func (m *member) stop(crash bool) {
	m.mu.Lock()
	srv, listener := m.srv, m.listener
	m.srv = nil
	if srv != nil {
		close(m.gone)
	}
	m.mu.Unlock()
	if srv == nil {
		return
	}
	m.s.noteSilence(m, m.s.h.now()) // the leader does not learn what it heard last
	m.back = m.s.beginSpan(memberOut, m.name)
	var err error
	if crash {
		m.s.net.Kill(m.name)
		m.s.cutAll(m.name, 1)
		err = testhooks.Of(srv).Kill()
		m.s.net.Kill(m.name)
		m.s.cutAll(m.name, -1)
	} else {
		listener.Close()
		ctx, cancel := context.WithTimeout(context.Background(), stopTime)
		if err = srv.Shutdown(ctx); err == context.DeadlineExceeded {
			err = srv.Close() // waits for the disk: the next run writes to the same memory
		}
		cancel()
		m.s.net.Kill(m.name)
	}
	if err != nil {
		m.s.h.violate("stop", "member %d: %v", m.id, err)
	}
}

func (m *member) server() *lockkeeper.Server {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.srv
}

// leader returns the member that leads, or nil.
func (s *sim) leader() *member {
	for _, m := range s.members {
		if srv := m.server(); srv != nil && srv.Role() == lockkeeper.RoleLeader {
			return m
		}
	}
	return nil
}

// cut adds to the number of faults that cut the way from one host to another.
func (s *sim) cut(from, to string, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := [2]string{from, to}
	was := s.cuts[k] > 0
	s.cuts[k] += by
	is := s.cuts[k] > 0
	if was == is {
		return
	}
	s.net.Cut(from, to, is)
	if is {
		s.spans[wayCut] = append(s.spans[wayCut], &span{from: from, to: to, At: s.h.now()})
		return
	}
	for _, c := range slices.Backward(s.spans[wayCut]) {
		if c.from == from && c.to == to && c.Until == 0 {
			c.Until = s.h.now()
			break
		}
	}
}

// noteSilence records that the others did not hear from a member since some time.
func (s *sim) noteSilence(m *member, since time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spans[wayCut] = append(s.spans[wayCut], &span{from: m.name, to: anyHost, At: since, Until: s.h.now()})
}

// beginSpan begins a span. The function that it returns ends the span.
func (s *sim) beginSpan(what trouble, from string) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := &span{from: from, At: s.h.now()}
	s.spans[what] = append(s.spans[what], x)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		x.Until = s.h.now()
	}
}

// cutAll cuts a host from all others.
func (s *sim) cutAll(host string, by int) {
	s.h.mu.Lock()
	n := len(s.clients)
	s.h.mu.Unlock()
	for _, m := range s.members {
		if m.name != host {
			s.cut(host, m.name, by)
			s.cut(m.name, host, by)
		}
	}
	for i := 1; i <= n; i++ {
		s.cut(host, clientHost(i), by)
		s.cut(clientHost(i), host, by)
	}
}

// Run runs a cluster and checks its history. It must be called in a synctest bubble,
// unless it runs in real time. See also [Report.Linearize].
func Run(o Options) *Report {
	s := &sim{
		opts: o, h: newHistory(), net: memnet.New(), peers: map[uint64]string{},
		done: make(chan struct{}), faultsOver: make(chan struct{}),
		disturbances: disturbances{spans: map[trouble][]*span{}, cuts: map[[2]string]int{}, faults: map[string]int{}, frozen: map[string]int{}},
	}
	s.delay.Store(int64(usualDelay))
	s.steps = steps{h: s.h, world: spec.NewWorld()}
	s.perturbed = perturb.Begin(o.Seed)
	defer s.perturbed.End()
	if where, longest := s.perturbed.Hot(); perturb.Woven() {
		s.h.fault("goroutines often sleep up to %v at %v", longest, where)
	}
	// In a run that hangs all goroutines wait, so virtual time gets here at once.
	hang := time.AfterFunc(o.For+time.Hour, func() { panic(fmt.Sprintf("sim: seed %d hangs", o.Seed)) })
	defer hang.Stop()
	s.shared = &lockedRand{r: s.stream(2)}
	jitter := &lockedRand{r: s.stream(3)}
	s.net.SetDelay(func(from, to string) time.Duration {
		return time.Duration(1 + jitter.IntN(int(s.delay.Load())))
	})
	for i := 1; i <= s.opts.Members; i++ {
		s.peers[uint64(i)] = memberHost(i) + ":7000"
	}
	for i := 1; i <= s.opts.Members; i++ {
		m := &member{s: s, id: uint64(i), name: memberHost(i), clocks: s.stream(100 + i)}
		m.setClock()
		if o.Dir == "" {
			m.mem = storage.NewMemory()
			m.setFaults()
		} else {
			m.dir = filepath.Join(o.Dir, m.name)
		}
		s.members = append(s.members, m)
		for id := range s.peers {
			if id != m.id {
				s.net.SetBandwidth(m.name, memberHost(int(id)), o.Rate)
			}
		}
	}
	for id := o.Members - o.Observers - o.Late + 1; id <= o.Members-o.Observers; id++ {
		m := s.members[id-1]
		m.absent.Store(true)
		m.claimed, m.back = true, s.beginSpan(memberOut, m.name)
	}
	started := s.beginSpan(votesChange, "") // until then a majority may be unable to form the cluster
	for _, m := range s.members {
		if !m.absent.Load() && m.start() != nil {
			return s.report()
		}
	}
	if o.Late > 0 {
		for deadline := time.Now().Add(20 * time.Second); s.leader() == nil && time.Now().Before(deadline); {
			time.Sleep(100 * time.Millisecond)
		}
		if s.leader() == nil { // a cluster is formed only by all of its members
			for _, m := range s.members {
				if m.absent.Swap(false) {
					m.start()
					m.release()
				}
			}
		}
	}
	started()
	if s.setUp() {
		s.perturbed.Stir()
		s.work()
		s.wg.Go(s.countConns)
		if o.Late > 0 {
			s.wg.Go(s.startLate)
		}
		if !o.Quiet {
			s.wg.Go(s.makeFaults)
			s.wg.Go(s.jumpClocks)
		}
		time.Sleep(o.For)
		close(s.faultsOver)
		s.perturbed.Calm()
		s.recovery()
	} else {
		close(s.done)
	}
	for _, m := range s.members {
		m.stop(false)
	}
	s.wg.Wait()
	return s.report()
}

func (s *sim) report() *Report {
	return &Report{Options: s.opts, History: s.h, Virtual: s.h.now(), Faults: s.faults, Checked: s.check(), Reached: s.steps.world.Reached}
}

// recovery checks that the cluster recovers after the faults.
func (s *sim) recovery() {
	deadline := time.Now().Add(2*longest + time.Minute) // a fault may be a long absence, and then a long silence
	for !s.idle() && time.Now().Before(deadline) {
		time.Sleep(100 * time.Millisecond)
	}
	if !s.idle() {
		s.h.violate("recovery", "faults do not end: %v", s.claimedMembers())
	}
	began, acked := time.Now(), s.answered()
	for s.answered() < acked+50 && time.Since(began) < time.Minute {
		time.Sleep(100 * time.Millisecond)
	}
	if s.answered() < acked+50 {
		s.h.violate("recovery", "only %d requests were answered in the minute after the last fault", s.answered()-acked)
	}
	// A member that joined late gets its vote when it has the log, which takes up to two minutes
	// over the narrowest links.
	for deadline := time.Now().Add(3 * time.Minute); !s.settled() && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(5 * time.Second) // for sessions to end and watches to fire without faults
	s.h.WorkEnded = s.h.now()
	close(s.done)
	s.compareMembers()
	s.h.Stats, s.h.StatsZxid = s.stats()
	s.h.Sessions, s.h.End = s.sessions(), s.h.now()
}

func (s *sim) idle() bool {
	s.mu.Lock()
	active := s.active
	s.mu.Unlock()
	return active == 0 && len(s.claimedMembers()) == 0
}

func (s *sim) claimedMembers() (busy []uint64) {
	for _, m := range s.members {
		m.mu.Lock()
		if m.claimed || m.srv == nil {
			busy = append(busy, m.id)
		}
		m.mu.Unlock()
	}
	return busy
}

func (s *sim) answered() (n int) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	for _, o := range s.h.Ops {
		if o.Ret > 0 && o.Code != 11 {
			n++
		}
	}
	return n
}

// compareMembers waits until all members have applied the same entries, and compares their
// states.
func (s *sim) compareMembers() {
	type state struct {
		index, digest uint64
		check         error
	}
	var all []state
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		all = all[:0]
		same := true
		for _, m := range s.members {
			var x state
			if srv := m.server(); srv != nil {
				testhooks.Of(srv).View(func(v *fsm.View) { x = state{v.Index(), v.Digest(), v.Check()} })
			}
			all = append(all, x)
			same = same && x.index == all[0].index
		}
		if !same {
			continue
		}
		for i, x := range all {
			if x.digest != all[0].digest {
				s.h.violate("agreement", "member %d has digest %x at index %d, but member 1 has %x", i+1, x.digest, x.index, all[0].digest)
			}
			if x.check != nil {
				s.h.violate("check", "member %d: %v", i+1, x.check)
			}
		}
		return
	}
	s.h.violate("recovery", "members are not at the same index 2 minutes after the last fault: %+v", all)
}

// stats returns the stats of quotas, by path, as the first member has them, and its zxid.
func (s *sim) stats() (all map[string]string, zxid int64) {
	all = map[string]string{}
	if srv := s.members[0].server(); srv != nil {
		testhooks.Of(srv).View(func(v *fsm.View) {
			zxid = v.Zxid()
			for _, path := range quotaPaths {
				if n := v.Tree().Lookup(statsOf(path)); n != nil {
					all[path] = string(n.Record().Data)
				}
			}
		})
	}
	return all, zxid
}

// ask asks a member to change the cluster.
func (s *sim) ask(by *member, q request.Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := request.Ask(ctx, s.net.Host("operator"), s.peers[by.id], q)
	return err
}
