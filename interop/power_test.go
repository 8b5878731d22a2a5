//go:build interop

package interop

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	library "github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/overlay"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

const (
	// envPower sets how long TestPowerLoss tests each kind of cluster.
	envPower = "LOCKKEEPER_INTEROP_POWER"

	powerTime    = 4 * time.Second
	powerLanes   = 3
	powerOps     = 60
	powerTick    = 10 * time.Second
	powerSession = 200 * time.Second // longer than a life (see power)
	powerRoot    = "/power"
)

// smallSnapshots makes a server take snapshots so often that a short test has some.
var smallSnapshots = edit{"config.go", "setDefault(&c.Limits.SnapshotBytes, 16<<20)", "setDefault(&c.Limits.SnapshotBytes, 32<<10)"}

// smallSegments has a server fill segments of its log in a short test.
var smallSegments = edit{"internal/core/storage/wal.go", "segmentSize = 8 << 20", "segmentSize = 48 << 10"}

// noSync removes the syncs of the log.
var noSync = map[storage.LogStore]edit{
	storage.BoltDB: {"internal/core/storage/bolt.go", "MsgpackUseNewTimeFormat: true,", "MsgpackUseNewTimeFormat: true, NoSync: true,"},
	storage.WAL: {"internal/core/storage/walfiles.go", "func (f segmentFiles) Create(", `func (f segmentFiles) OpenWriter(dir, name string) (types.WritableFile, error) {
	file, err := f.FS.OpenWriter(dir, name)
	return unsynced{file}, err
}

type unsynced struct{ types.WritableFile }

func (unsynced) Sync() error { return nil }

func (f segmentFiles) Create(dir, name string, size uint64) (types.WritableFile, error) {
	file, err := f.create(dir, name, size)
	return unsynced{file}, err
}

func (f segmentFiles) create(`},
}

// neededSyncs are the files and directories that must be synced, relative to the data
// directory.
var neededSyncs = map[storage.LogStore][]string{
	storage.BoltDB: {
		"", "/1", "/1/meta.json.tmp", "/1/raft", "/1/raft/raft.db", "/1/raft/snapshots",
		"/1/raft/snapshots/[^/]*", "/1/raft/snapshots/[^/]*/state.bin", "/1/raft/snapshots/[^/]*/meta.json",
	},
	storage.WAL: {
		"", "/1", "/1/meta.json.tmp", "/1/raft", "/1/raft/wal", "/1/raft/wal/stable.db", "/1/raft/wal/[^/]*.wal", "/1/raft/wal/[^/]*.wal.tmp",
		"/1/raft/snapshots", "/1/raft/snapshots/[^/]*", "/1/raft/snapshots/[^/]*/state.bin", "/1/raft/snapshots/[^/]*/meta.json",
	},
}

type edit = overlay.Edit

// buildEdited builds lockkeeper with edited source files. It does not modify the
// repository.
func buildEdited(dir string, edits ...edit) (binary string, err error) {
	if dir, err = os.MkdirTemp(dir, "edited-"); err != nil {
		return "", err
	}
	files, err := overlay.Apply("..", edits...)
	if err != nil {
		return "", err
	}
	list, err := overlay.Write("..", dir, files)
	if err != nil {
		return "", err
	}
	binary = filepath.Join(dir, "lockkeeper")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-overlay", list, "-o", binary, "./cmd/lockkeeper")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return binary, nil
}

// powerBinary returns the binary that these tests run.
var powerBinary = sync.OnceValues(func() (string, error) { return buildEdited(scratch, smallSnapshots, smallSegments) })

var check = testkit.Check

func must[T any](v T, err error) func(t testing.TB) T { return testkit.Must(v, err) }

// powerOp is a request of a lane, and the change that it makes.
type powerOp struct {
	code  proto.OpCode
	path  string
	data  []byte
	flags int32
	saw   map[*powerLane]counted // of a read: how many requests of other lanes it has shown
}

// powerLane is a client with a session and a directory of its own. Its requests are done
// in order, so a prefix of them survives.
type powerLane struct {
	dir     string
	session proto.ConnectReply
	ops     []powerOp
	sent    int
	kept    int  // how many requests sent in an earlier life have survived
	open    bool // whether the session was acknowledged in an earlier life
	err     error
}

// drawOps chooses a lane's requests at random: creates, also of ephemeral znodes, writes
// to one znode, deletes, and sometimes a closeSession.
func (l *powerLane) drawOps(r *rand.Rand) {
	register := l.dir + "/register"
	l.ops = []powerOp{{code: proto.OpCreate, path: l.dir}, {code: proto.OpCreate, path: register, data: []byte("first")}}
	var there []string
	for len(l.ops) < powerOps {
		data := make([]byte, 1+r.IntN(2000))
		if r.IntN(20) == 0 {
			data = make([]byte, 30_000)
		}
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		switch n := r.IntN(10); {
		case n < 4:
			l.ops = append(l.ops, powerOp{code: proto.OpSetData, path: register, data: data})
		case n < 6 && len(there) > 0:
			i := r.IntN(len(there))
			l.ops = append(l.ops, powerOp{code: proto.OpDelete, path: there[i]})
			there = slices.Delete(there, i, i+1)
		default:
			op := powerOp{code: proto.OpCreate, path: fmt.Sprintf("%s/%03d", l.dir, len(l.ops)), data: data}
			if r.IntN(4) == 0 {
				op.flags = proto.FlagEphemeral
			}
			there = append(there, op.path)
			l.ops = append(l.ops, op)
		}
	}
	if r.IntN(3) == 0 {
		l.ops = append(l.ops, powerOp{code: proto.OpCloseSession})
	}
}

// run sends the requests, with up to window of them outstanding, until all are answered
// or the connection ends.
func (l *powerLane) run(c *rawclient.Client, window int) {
	defer c.Close()
	for answered := 0; answered < len(l.ops); answered++ {
		for l.sent < len(l.ops) && l.sent < answered+window {
			op := &l.ops[l.sent]
			l.sent++
			if _, err := c.Send(op.code, op.body()); err != nil {
				return
			}
		}
		f, err := c.Read()
		if err != nil {
			return
		}
		if f.Code != proto.OK || f.Xid != int32(answered+1) {
			l.err = fmt.Errorf("%s: request %d is answered as %d with %v", l.dir, answered+1, f.Xid, f.Code)
			return
		}
	}
}

func (op *powerOp) body() proto.Record {
	switch op.code {
	case proto.OpCreate:
		return &proto.CreateRequest{Path: op.path, Data: op.data, ACL: proto.OpenACL, Flags: op.flags}
	case proto.OpSetData:
		return &proto.SetDataRequest{Path: op.path, Data: op.data, Version: proto.AnyVersion}
	case proto.OpDelete:
		return &proto.PathVersion{Path: op.path, Version: proto.AnyVersion}
	}
	return nil
}

// powerZnode is the compared part of a znode.
type powerZnode struct {
	data  string
	owner int64
}

// do applies a request to the lane's znodes.
func (l *powerLane) do(op *powerOp, znodes map[string]powerZnode) {
	switch op.code {
	case proto.OpCreate:
		z := powerZnode{data: string(op.data)}
		if op.flags&proto.FlagEphemeral != 0 {
			z.owner = l.session.SessionID
		}
		znodes[op.path] = z
	case proto.OpSetData:
		znodes[op.path] = powerZnode{data: string(op.data)}
	case proto.OpDelete:
		delete(znodes, op.path)
	case proto.OpCloseSession:
		maps.DeleteFunc(znodes, func(_ string, z powerZnode) bool { return z.owner != 0 })
	}
}

// look reads the lane's znodes.
func (l *powerLane) look(c *rawclient.Client) (map[string]powerZnode, error) {
	znodes := map[string]powerZnode{}
	read := func(path string) error {
		r, err := c.Get(path, false)
		znodes[path] = powerZnode{string(r.Data), r.Stat.EphemeralOwner}
		return err
	}
	var children proto.ChildrenReply
	_, err := c.Call(proto.OpGetChildren, &proto.PathWatch{Path: l.dir}, &children)
	if err == proto.NoNode {
		return znodes, nil
	}
	if err == nil {
		err = read(l.dir)
	}
	for _, name := range children.Names {
		if err == nil {
			err = read(l.dir + "/" + name)
		}
	}
	return znodes, err
}

// count returns after how many of the lane's requests these znodes exist, as a range,
// because the end of a session may undo earlier requests. It is an error if fewer
// requests are done than were acknowledged.
func (l *powerLane) count(found map[string]powerZnode, acked int) (c counted, err error) {
	znodes := map[string]powerZnode{}
	lost := -1
	ok := false
	for n := 0; ; n++ {
		if maps.Equal(found, znodes) {
			switch {
			case n < acked:
				lost = n
			case !ok:
				c, ok = counted{n, n}, true
			default:
				c.most = n
			}
		}
		if n == l.sent {
			break
		}
		l.do(&l.ops[n], znodes)
	}
	switch {
	case ok:
		return c, nil
	case lost >= 0:
		return c, fmt.Errorf("lost: of the requests of %s only the first %d are done, but %d were acknowledged", l.dir, lost, acked)
	}
	return c, fmt.Errorf("the znodes of %s do not match any prefix of its %d requests, of which %d were acknowledged", l.dir, l.sent, acked)
}

type counted struct{ fewest, most int }

// layout is a kind of cluster to test.
type layout struct {
	name    string
	members int
	peers   bool // the members have peer ports
}

var (
	alone = layout{"alone", 1, false}
	one   = layout{"cluster of one", 1, true}
	three = layout{"cluster of three", 3, true}
)

// power is a cluster that goes through several lives, each of which ends with a power failure.
type power struct {
	t      *testing.T
	random *rand.Rand
	layout
	store  storage.LogStore
	binary string
	peers  map[uint64]string

	lanes  []*powerLane
	made   int   // number of lanes so far, including those of which nothing survived
	base   image // the directories at the start of this life
	dir    string
	now    *disk // the disk after all processes of this life
	events []event
	began  int      // the first event of the last process
	inject []string // flags for strace
	losses []string // ways of a power failure to choose from
	states int
	snaps  int // number of states whose log starts after a snapshot
}

func newPower(t *testing.T, r *rand.Rand, l layout, store storage.LogStore) *power {
	t.Helper()
	binary, err := powerBinary()
	check(t, err)
	p := &power{t: t, random: r, layout: l, store: store, binary: binary, losses: losses, base: image{}, peers: map[uint64]string{}}
	for i := range l.members {
		p.peers[uint64(i+1)] = freeAddr(t)
	}
	return p
}

// newDir returns the directory of a new lane.
func (p *power) newDir() string {
	p.made++
	return fmt.Sprintf("%s-%d", powerRoot, p.made)
}

func (p *power) data(dir string, i int) string { return filepath.Join(dir, fmt.Sprint(i+1)) }

// begin starts a life.
func (p *power) begin() {
	p.t.Helper()
	p.dir = p.t.TempDir()
	p.events = nil
	p.now = newDisk(p.base)
	check(p.t, p.base.write(p.dir))
}

// start starts the cluster and returns the addresses for its clients, or none if it ended
// at once.
func (p *power) start() (*traced, []string) {
	p.t.Helper()
	var peers []string
	for id, addr := range p.peers {
		peers = append(peers, fmt.Sprintf("%d=%s", id, addr))
	}
	var addrs []string
	var script strings.Builder
	command := func(i int) []string {
		addr := "127.0.0.1:0"
		if p.members > 1 {
			addr = freeAddr(p.t)
		}
		addrs = append(addrs, addr)
		c := []string{p.binary, "serve", "--listen", addr, "--data", p.data(p.dir, i), "--log-store", string(p.store), "--tick-time", powerTick.String(), "--id", fmt.Sprint(i + 1)}
		if p.layout.peers {
			c = append(c, "--peers", strings.Join(peers, ","))
		}
		return c
	}
	if p.members == 1 {
		s := startTraced(p.t, p.inject, command(0)...)
		if addr := s.serving(); addr != "" {
			return s, []string{addr}
		}
		return s, nil
	}
	// One strace traces all members, which gives one order of all their calls.
	for i := range p.members {
		fmt.Fprintf(&script, "%s &\n", strings.Join(command(i), " "))
	}
	script.WriteString("wait\n")
	s := startTraced(p.t, p.inject, "sh", "-c", script.String())
	if s.serving() == "" {
		p.t.Fatalf("the cluster does not start\n%s", s.stderr)
	}
	return s, addrs
}

// connect opens a session on one of the members.
func (p *power) connect(addrs []string) (*rawclient.Client, error) {
	for end := time.Now().Add(startDeadline); ; time.Sleep(10 * time.Millisecond) {
		addr := addrs[p.random.IntN(len(addrs))]
		nc, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			var c *rawclient.Client
			if c, err = rawclient.Open(nc, powerSession); err == nil {
				return c, nil
			}
		}
		if time.Now().After(end) || p.members == 1 {
			return nil, err
		}
	}
}

// process runs the members once: clients check what survived of their earlier writes, and
// write. Then all members are killed, or they stop by themselves.
func (p *power) process() *traced {
	t := p.t
	t.Helper()
	s, addrs := p.start()
	var running sync.WaitGroup
	if addrs != nil {
		p.reader(addrs)
		for range powerLanes {
			l := &powerLane{dir: p.newDir()}
			c, err := p.connect(addrs)
			if err != nil {
				if p.inject == nil {
					t.Fatal(err)
				}
				break
			}
			l.session = c.Session
			p.lanes = append(p.lanes, l)
			l.drawOps(p.random)
			window := 1 + p.random.IntN(8)
			running.Go(func() { l.run(c, window) })
		}
		if p.inject == nil && p.random.IntN(3) > 0 { // otherwise wait for all replies
			time.Sleep(time.Duration(p.random.Int64N(int64(600 * time.Millisecond))))
		} else {
			running.Wait()
		}
	}
	if p.inject != nil {
		return s
	}
	s.kill()
	running.Wait()
	p.ended(s)
	return s
}

// ended applies the events of processes that have ended.
func (p *power) ended(s *traced) {
	p.t.Helper()
	for _, l := range p.lanes {
		check(p.t, l.err)
	}
	events := s.end(p.dir)
	for i := range events {
		if err := p.now.do(&events[i], p.dir); err != nil {
			p.t.Fatalf("%v: %v", &events[i], err)
		}
	}
	late, err := p.now.reconcile(p.dir)
	check(p.t, err)
	p.began = len(p.events)
	p.events = slices.Concat(p.events, events, late)
}

// killInSync goes back to a random moment of the last process at which a sync of a file
// whose path ends in name was running, and kills the process then. The next one reads what
// that process had written, durable or not.
func (p *power) killInSync(name string) {
	p.t.Helper()
	var syncs []int
	for i := p.began; i < len(p.events); i++ {
		if e := &p.events[i]; e.kind == evSync && strings.HasSuffix(e.path, name) {
			syncs = append(syncs, i+1)
		}
	}
	m := p.first()
	m.forward(syncs[p.random.IntN(len(syncs))])
	died := event{kind: evDied}
	check(p.t, m.do(&died, p.dir))
	p.events = append(slices.Clone(p.events[:m.next]), died)
	p.now = m.disk
	p.lanes = slices.DeleteFunc(p.lanes, func(l *powerLane) bool { return !m.open[l] })
	check(p.t, os.RemoveAll(p.dir))
	check(p.t, os.Mkdir(p.dir, 0o700))
	check(p.t, p.now.lost(func(c *change) *change { return c }).write(p.dir))
}

// reader reads the znodes of this life's lanes. What it reads counts as acknowledged,
// because a client has seen it.
func (p *power) reader(addrs []string) {
	t := p.t
	t.Helper()
	c, err := p.connect(addrs)
	if err != nil && p.inject != nil {
		return
	}
	check(t, err)
	defer c.Close()
	r := &powerLane{dir: p.newDir(), session: c.Session}
	saw := map[*powerLane]counted{}
	for _, l := range p.lanes {
		found, err := l.look(c)
		if err != nil && p.inject != nil {
			return
		}
		check(t, err)
		if saw[l], err = l.count(found, 0); err != nil {
			t.Fatal(err)
		}
	}
	f, err := c.Call(proto.OpExists, &proto.PathWatch{Path: "/"}, nil)
	if err != nil && p.inject != nil {
		return
	}
	check(t, err)
	r.ops = make([]powerOp, f.Xid) // reads
	r.ops[f.Xid-1].saw = saw
	r.sent = len(r.ops)
	p.lanes = append(p.lanes, r)
}

// moment is a point in a life.
type moment struct {
	*disk
	p       *power
	next    int                // index of the next event
	acked   map[*powerLane]int // number of acknowledged requests
	sent    map[*powerLane]int // number of requests that may be done
	open    map[*powerLane]bool
	streams map[string]*replies
}

// replies is the data that a server sends on a connection.
type replies struct {
	data   []byte
	parsed int
	lane   *powerLane
	other  bool // not a client's connection
}

// first returns the moment at the start of a life.
func (p *power) first() *moment {
	m := &moment{disk: newDisk(p.base), p: p, acked: map[*powerLane]int{}, sent: map[*powerLane]int{}, open: map[*powerLane]bool{}, streams: map[string]*replies{}}
	for _, l := range p.lanes {
		m.acked[l], m.sent[l], m.open[l] = l.kept, l.sent, l.open
	}
	return m
}

// forward advances to the moment before event i.
func (m *moment) forward(i int) {
	for ; m.next < i; m.next++ {
		e := &m.p.events[m.next]
		switch e.kind {
		case evReply:
			m.reply(e)
		default:
			check(m.p.t, m.do(e, m.p.dir))
		}
	}
}

// reply processes a part of a server's replies.
func (m *moment) reply(e *event) {
	r := m.streams[e.socket]
	if r == nil {
		r = &replies{}
		m.streams[e.socket] = r
	}
	if r.other {
		return
	}
	if r.data = append(r.data, e.data...); e.size > 0 {
		r.data = r.data[:len(r.data)-int(e.size)]
	}
	for len(r.data) >= r.parsed+4 {
		size := int(binary.BigEndian.Uint32(r.data[r.parsed:]))
		if r.lane == nil && size > 100 {
			r.other = true
			return
		}
		if len(r.data) < r.parsed+4+size {
			return
		}
		d := jute.NewDecoder(r.data[r.parsed+4:][:size])
		r.parsed += 4 + size
		if r.lane == nil {
			var c proto.ConnectReply
			c.Decode(&d)
			for _, l := range m.p.lanes {
				if c.SessionID != 0 && l.session.SessionID == c.SessionID {
					r.lane = l
				}
			}
			if r.other = d.Err() != nil || r.lane == nil; r.other {
				return
			}
			m.open[r.lane] = true
			continue
		}
		var h proto.ReplyHeader
		h.Decode(&d)
		n := int(h.Xid)
		if n < 1 || n > len(r.lane.ops) || h.Code != proto.OK && r.lane.ops[n-1].code != 0 {
			m.p.t.Fatalf("%s is answered %+v", r.lane.dir, h)
		}
		m.acked[r.lane] = n
		for l, c := range r.lane.ops[n-1].saw {
			m.acked[l], m.sent[l] = c.fewest, c.most
		}
	}
}

// verdict describes the directories after a power failure.
type verdict struct {
	kept      map[*powerLane]int
	snapshots int // number of members whose log starts after a snapshot
}

// unused calls open again for up to ten seconds while the directory seems to be in use. A process that another test is starting
// has the files of this one open for a moment, with their locks.
func unused[T any](open func() (T, error)) (x T, err error) {
	for range 100 {
		if x, err = open(); !errors.Is(err, library.ErrInUse) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return x, err
}

// judge starts the cluster with the directories in dir, as a power failure has left them.
// It must start, have everything that was acknowledged, and of the other requests a
// prefix.
func (p *power) judge(dir string, m *judged) (v *verdict, err error) {
	v = &verdict{kept: map[*powerLane]int{}}
	late := (p.members - 1) / 2 // how many members may not have made their files when a client gets a reply
	for i := range p.members {
		if !m.complete {
			break
		}
		if _, err := os.Stat(filepath.Join(p.data(dir, i), "meta.json")); errors.Is(err, os.ErrNotExist) && late > 0 {
			late--
			continue
		}
		r, err := unused(func() (*storage.Report, error) { return storage.Check(p.data(dir, i)) })
		if err != nil {
			return nil, fmt.Errorf("lockkeeper check: %w", err)
		}
		if r.SnapshotIndex > 0 && r.FirstIndex > 1 {
			v.snapshots++
		}
	}
	network := memnet.New()
	var servers []*library.Server
	defer func() {
		for _, s := range servers {
			err = errors.Join(err, s.Close())
		}
	}()
	for i := range p.members {
		cfg := library.Config{ID: uint64(i + 1), DataDir: p.data(dir, i), TickTime: powerTick}
		if p.layout.peers {
			for id, addr := range p.peers {
				cfg.Peers = append(cfg.Peers, library.Peer{ID: id, Addr: addr})
			}
			cfg.ElectionTimeout = 300 * time.Millisecond
			testhooks.In(&cfg).Network = network.Host("127.0.0.1")
		}
		s, err := unused(func() (*library.Server, error) { return library.Open(cfg) })
		if err != nil {
			return nil, fmt.Errorf("it does not start: %w", err)
		}
		servers = append(servers, s)
	}
	for _, s := range servers {
		ctx, cancel := context.WithTimeout(context.Background(), startDeadline)
		err := s.Wait(ctx)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("it does not serve: %w", err)
		}
	}
	for end := time.Now().Add(startDeadline); ; time.Sleep(20 * time.Millisecond) {
		// On a busy machine, a cluster member may close its clients' connections.
		err := p.examine(servers[0], m, v)
		if err == nil {
			return v, nil
		}
		cut := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe)
		if !cut || p.members == 1 || time.Now().After(end) {
			return nil, err
		}
	}
}

// examine checks the state of a running server for judge.
func (p *power) examine(server *library.Server, m *judged, v *verdict) error {
	nc, err := server.Dial("", "", 0)
	if err != nil {
		return err
	}
	c, err := rawclient.Open(nc, powerSession)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, l := range m.lanes {
		found, err := l.lane.look(c)
		if err != nil {
			return err
		}
		n, err := l.lane.count(found, l.acked)
		if err != nil {
			return err
		}
		if n.fewest > l.sent {
			return fmt.Errorf("%[2]d requests of %[1]s are done, but after an earlier power failure clients saw only %[3]d", l.lane.dir, n.fewest, l.sent)
		}
		v.kept[l.lane] = n.fewest
		if !l.open {
			continue
		}
		if nc, err = server.Dial("", "", 0); err != nil {
			return err
		}
		again, err := rawclient.Resume(nc, l.lane.session)
		if err == nil {
			again.Close()
		}
		last := len(l.lane.ops) - 1
		closes := l.sent > last && l.lane.ops[last].code == proto.OpCloseSession
		switch {
		case closes && l.acked > last && err != rawclient.ErrRefused:
			return fmt.Errorf("the closed session of %s can be resumed: %v", l.lane.dir, err)
		case closes && n.most > last && err == rawclient.ErrRefused:
			v.kept[l.lane] = last + 1
		case err != nil:
			return fmt.Errorf("lost: the session of %s: %w", l.lane.dir, err)
		}
	}
	// Sequential, since that of a connection that was cut may still be there.
	if _, err := c.Create(powerRoot+"-again", nil, proto.FlagEphemeralSeq); err != nil {
		return fmt.Errorf("it cannot be written: %w", err)
	}
	return nil
}

// judged is the part of a moment that judge needs.
type judged struct {
	lanes    []laneMoment
	complete bool // a client got a reply, so the directories of a majority must be complete
	when     string
}

type laneMoment struct {
	lane        *powerLane
	acked, sent int
	open        bool
}

func (m *moment) judged(how string) *judged {
	j := &judged{when: fmt.Sprintf("before event %d of %d (%v)", m.next, len(m.p.events), how)}
	if m.next < len(m.p.events) {
		j.when = fmt.Sprintf("before event %d of %d, %v (%s)", m.next, len(m.p.events), &m.p.events[m.next], how)
	}
	for _, l := range m.p.lanes {
		if l.sent == 0 {
			continue
		}
		j.lanes = append(j.lanes, laneMoment{l, m.acked[l], m.sent[l], m.open[l]})
		j.complete = j.complete || m.open[l]
	}
	return j
}

// search simulates power failures at random moments of this life, at event from or later,
// until the time is over. It returns the first fault.
func (p *power) search(from int, until time.Time) error {
	p.t.Helper()
	var mu sync.Mutex
	var fault error
	var judges sync.WaitGroup
	places := make(chan struct{}, 4*p.members-2) // three members mostly wait for an election
	for fault == nil && time.Now().Before(until) {
		m := p.first()
		var moments []int
		for range 50 {
			moments = append(moments, from+p.random.IntN(len(p.events)-from+1))
		}
		slices.Sort(moments)
		for _, i := range moments {
			m.forward(i)
			how, keep := m.loss(p.random, p.losses)
			left, j := m.lost(keep), m.judged(how)
			places <- struct{}{}
			mu.Lock()
			over := fault != nil || time.Now().After(until)
			mu.Unlock()
			if over {
				<-places
				break
			}
			p.states++
			judges.Go(func() {
				defer func() { <-places }()
				v, err := p.try(left, j)
				mu.Lock()
				defer mu.Unlock()
				if err != nil && fault == nil {
					fault = err
				}
				if v != nil && v.snapshots > 0 {
					p.snaps++
				}
			})
		}
		judges.Wait()
	}
	return fault
}

// searchStart simulates a power failure at each moment of the first start, which creates
// all files. The last change is torn, and earlier changes survive.
func (p *power) searchStart() error {
	m := p.first()
	for i := 0; i < len(p.events) && !m.judged("").complete; i++ {
		for range 4 {
			n := 0
			left := m.lost(func(c *change) *change {
				if n++; n == len(m.pending) {
					return torn(c, p.random)
				}
				return c
			})
			p.states++
			if _, err := p.try(left, m.judged("the last change is torn")); err != nil {
				return err
			}
		}
		m.forward(i + 1)
	}
	return nil
}

// try calls judge with an image in a temporary directory.
func (p *power) try(left image, j *judged) (*verdict, error) {
	dir, err := os.MkdirTemp(memoryDir(), "lockkeeper-power-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := left.write(dir); err != nil {
		return nil, err
	}
	v, err := p.judge(dir, j)
	if err == nil {
		return v, nil
	}
	if keep := os.Getenv(envKeep); keep != "" {
		kept, e := os.MkdirTemp(keep, "power-")
		if e == nil {
			e = left.write(kept)
		}
		err = fmt.Errorf("%w (the directories are in %s: %v)", err, kept, e)
	}
	return nil, fmt.Errorf("power failure %s: %w", j.when, err)
}

// memoryDir returns a directory in memory, if there is one, because what is judged need not be durable.
func memoryDir() string {
	const shm = "/dev/shm"
	if info, err := os.Stat(shm); err == nil && info.IsDir() {
		return shm
	}
	return scratch
}

// lose ends a life with a power failure in its last third. The next life starts with what survives.
func (p *power) lose() error {
	m := p.first()
	n := len(p.events)
	m.forward(n - p.random.IntN(n/3))
	how, keep := m.loss(p.random, p.losses)
	left, j := m.lost(keep), m.judged(how)
	v, err := p.try(left, j)
	if err != nil {
		return err
	}
	p.base = left
	p.lanes = slices.DeleteFunc(p.lanes, func(l *powerLane) bool { return v.kept[l] == 0 })
	for _, l := range p.lanes {
		l.kept, l.sent, l.open = v.kept[l], v.kept[l], m.open[l]
	}
	return nil
}

// run runs several lives of several processes each, and returns the first fault. The
// searches share the time equally.
func (p *power) run(lives, processes int, long time.Duration) error {
	p.t.Helper()
	for life := range lives {
		p.begin()
		for n := range processes {
			p.process()
			if n < processes-1 && p.random.IntN(2) == 0 {
				p.killInSync("")
			}
		}
		if life == 0 && p.layout == alone {
			if err := p.searchStart(); err != nil {
				return err
			}
		}
		if err := p.search(0, time.Now().Add(long/time.Duration(lives))); err != nil {
			return err
		}
		if life < lives-1 {
			if err := p.lose(); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestPowerLoss records in one order all changes that servers make to their files and all
// their replies. From that it computes what the directories may contain if the power
// fails at any moment: everything that was synced, and any part of the rest, with writes
// torn between sectors. With each such directory, the servers must start, every request
// that was acknowledged by then must be done, of the others a prefix, and sessions must
// be resumable unless they were closed. In between, the servers are killed and restarted,
// take snapshots, and continue with what a power failure has left, or with what a process
// that was killed in a sync has written.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	long := powerLength(t)
	for _, l := range []struct {
		layout
		store            storage.LogStore
		lives, processes int
	}{
		{alone, storage.WAL, 2, 3}, {one, storage.WAL, 1, 2}, {three, storage.WAL, 1, 2},
		{alone, storage.BoltDB, 2, 3}, {three, storage.BoltDB, 1, 2},
	} {
		t.Run(l.name+", "+string(l.store), func(t *testing.T) {
			t.Parallel() // the tests mostly wait for the disk and for elections
			r := seeded(t)
			states, snapshots := 0, 0
			for end := time.Now().Add(long); ; {
				p := newPower(t, r, l.layout, l.store)
				check(t, p.run(l.lives, l.processes, min(long, time.Minute)))
				states, snapshots = states+p.states, snapshots+p.snaps
				// On a busy machine the time may be over before a log was compacted.
				if over := time.Since(end); over > 0 && snapshots > 0 || over > time.Minute {
					break
				}
			}
			t.Logf("%d states, %d of them with a log that was compacted after a snapshot", states, snapshots)
			if snapshots == 0 {
				t.Error("no log was compacted after a snapshot: this run tests less than it should")
			}
		})
	}
}

// TestPowerLossIsFound checks that TestPowerLoss can fail: with a server that does not
// sync its log, with one that does not sync what a killed one has left, and without each
// kind of sync in the trace of a correct server.
func TestPowerLossIsFound(t *testing.T) {
	atNight(t)
	t.Parallel()
	for _, store := range storage.LogStores {
		t.Run(string(store), func(t *testing.T) { testPowerLossIsFound(t, store) })
	}
	t.Run("what a killed process left is not synced", func(t *testing.T) {
		findLoss(t, storage.WAL, "", true, smallSnapshots, smallSegments,
			edit{"internal/core/storage/directory.go", "if err := syncFound(dir, disk.files(dir)); err != nil {", "if err := error(nil); err != nil {"})
	})
}

// findLoss runs an edited server until a power failure shows a fault with want in its
// message. With killed, it kills the server in a sync and starts it again.
func findLoss(t *testing.T, store storage.LogStore, want string, killed bool, edits ...edit) {
	binary, err := buildEdited(t.TempDir(), edits...)
	check(t, err)
	r, states := seeded(t), 0
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
		p := newPower(t, r, alone, store)
		p.binary = binary
		if !killed {
			p.losses = []string{"nothing"}
		}
		p.begin()
		from, long := 0, 5*time.Second
		if p.process(); killed {
			p.killInSync("/raft/wal") // after making a segment
			from, long = p.began, time.Second
		}
		p.process()
		for until := time.Now().Add(long); time.Now().Before(until); {
			if err := p.search(from, until); err != nil && strings.Contains(err.Error(), want) {
				t.Logf("found: %v", err)
				return
			}
		}
		states += p.states
	}
	t.Fatalf("it made no difference in %d states", states)
}

func testPowerLossIsFound(t *testing.T, store storage.LogStore) {
	t.Run("the log is not synced", func(t *testing.T) {
		edits := []edit{smallSnapshots, smallSegments, noSync[store]}
		if store == storage.WAL { // both are of one file
			edits = []edit{smallSnapshots, noSync[store]}
		}
		findLoss(t, store, "lost: ", false, edits...) // most faults are directories with which no server starts
	})
	p := newPower(t, seeded(t), alone, store)
	p.losses = []string{"nothing", "everything", "names"}
	p.begin()
	without := func(path string) []event {
		needed := regexp.MustCompile("^" + p.dir + path + "$")
		return slices.DeleteFunc(slices.Clone(p.events), func(e event) bool {
			return (e.kind == evSync || e.kind == evSynced) && needed.MatchString(e.path)
		})
	}
	unused := func(path string) bool { return len(without(path)) == len(p.events) }
	for n := 0; n < 2 || n < 20 && slices.ContainsFunc(neededSyncs[store], unused); n++ {
		p.process() // on a busy machine, a process may be killed before its first snapshot
	}
	events := p.events
	for _, path := range neededSyncs[store] {
		t.Run(path, func(t *testing.T) {
			p.t, p.states, p.events = t, 0, events
			if unused(path) {
				t.Fatal("there was no such sync")
			}
			p.events = without(path)
			if err := p.search(0, time.Now().Add(time.Minute)); err == nil {
				t.Errorf("the missing sync made no difference in %d states", p.states)
			} else {
				t.Logf("found: %v", err)
			}
		})
	}
}

// TestSyncFails makes one sync of a server fail. The server must stop and report the
// fault, except if the sync was that of a snapshot or of a segment in reserve, which it can do without. After a
// restart it must have everything that it acknowledged, even if the power fails then or
// has failed since.
func TestSyncFails(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	end := time.Now().Add(powerLength(t))
	failures, ended := 0, 0
	for n := 0; n < 4 || time.Now().Before(end); n++ {
		p := newPower(t, r, alone, storage.LogStores[n%2])
		p.begin()
		if n%4 > 1 {
			p.process()
		}
		before := len(p.events)
		// Strace counts the calls of each thread separately.
		p.inject = []string{"-e", fmt.Sprintf("inject=fsync,fdatasync:error=EIO:when=%d", 1+r.IntN(40))}
		s := p.process()
		killed := false
		select {
		case <-s.exited:
		case <-time.After(2 * time.Second):
			killed = true
			s.kill()
		}
		p.ended(s)
		fault := slices.IndexFunc(p.events[before:], func(e event) bool { return e.kind == evSynced && e.failed })
		if fault < 0 {
			continue
		}
		failures++
		fault += before
		// Nothing that was acknowledged is in a snapshot that is not complete, or in a file that the log does not use yet.
		path := p.events[fault].path
		spare := strings.Contains(path, "snapshots") || strings.HasSuffix(path, "reserve.wal.tmp")
		said := s.stderr.String()
		switch {
		case killed && !spare:
			t.Fatalf("%v, and the server goes on\n%s", &p.events[fault], said)
		case !killed:
			ended++
			if s.cmd.ProcessState.ExitCode() <= 0 || !strings.Contains(said, p.dir) || !strings.Contains(said, "input/output error") {
				t.Fatalf("%v, and the server ends with %v:\n%s", &p.events[fault], s.cmd.ProcessState, said)
			}
		}
		m := p.first()
		m.forward(len(p.events))
		there, err := readImage(p.dir)
		check(t, err)
		if _, err := p.try(there, m.judged("it is not lost")); err != nil {
			t.Fatalf("%v: %v", &p.events[fault], err)
		}
		if err := p.search(fault, time.Now().Add(time.Second)); err != nil {
			t.Fatalf("%v: %v", &p.events[fault], err)
		}
	}
	t.Logf("%d syncs failed, %d servers ended", failures, ended)
	if ended == 0 {
		t.Error("no failed sync stopped a server: this run tests nothing")
	}
}

func powerLength(t *testing.T) time.Duration {
	t.Helper()
	long := powerTime
	if s := os.Getenv(envPower); s != "" {
		var err error
		if long, err = time.ParseDuration(s); err != nil {
			t.Fatalf("%s: %v", envPower, err)
		}
	}
	return long
}
