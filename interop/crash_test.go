//go:build interop

package interop

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

const (
	defaultKills = 100
	leastKills   = 25
	crashLanes   = 4 // connections that create at the same time
	crashWindow  = 16
	crashRoot    = "/crash"
	crashAlive   = crashRoot + "/alive"
)

// TestKilledServer, with each log store, kills the server with kill -9 in the middle of a stream of
// creates, again and again, on one data directory. After each restart
//
//   - every acknowledged znode exists, with its data and the zxid in the reply;
//   - no znode exists that was not sent, and those of one connection have no gap: a
//     prefix of each stream has survived;
//   - nothing of earlier rounds has changed;
//   - no zxid that a client has seen is used again, and srvr agrees;
//   - a session from before the first kill can still be resumed, and owns its ephemeral
//     znode.
//
// While the server is down, `lockkeeper check` must succeed. In some rounds the server is
// killed again while it starts.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	kills := defaultKills
	if s := os.Getenv(envKills); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil {
			t.Fatalf("%s: %v", envKills, err)
		}
	}
	for _, store := range storage.LogStores {
		t.Run(string(store), func(t *testing.T) {
			t.Parallel()
			c := newCrash(t, "--log-store", string(store))
			for n := range kills {
				if os.Getenv(envKills) == "" && n >= leastKills && time.Since(c.began) > longer(15*time.Second, 45*time.Second) {
					break
				}
				c.start()
				c.verify()
				c.stream(func() { time.Sleep(c.moment(60 * time.Millisecond)) })
				c.check()
			}
			c.finish()
		})
	}
}

// crash is one run of the test: a data directory and what must be in it.
type crash struct {
	t      *testing.T
	random *rand.Rand
	dir    string
	flags  []string // of the server
	began  time.Time

	server     *lockkeeper
	keeper     proto.ConnectReply // survives all kills
	conn       *rawclient.Client  // the keeper's connection to this server
	shown      int64              // the highest zxid that any client has seen
	rounds     []*crashRound
	startKills int
}

func newCrash(t *testing.T, flags ...string) *crash {
	c := &crash{t: t, random: seeded(t), dir: t.TempDir(), began: time.Now()}
	if keep := os.Getenv(envKeep); keep != "" {
		var err error
		if c.dir, err = os.MkdirTemp(keep, strings.ReplaceAll(t.Name(), "/", "-")+"-"); err != nil {
			t.Fatal(err)
		}
		t.Logf("the data directory stays at %s", c.dir)
	}
	c.flags = append(flags, "--data", c.dir)
	return c
}

// finish checks everything once more.
func (c *crash) finish() {
	c.t.Helper()
	c.start()
	c.verify()
	var sent, acked, kept int
	for _, r := range c.rounds {
		c.verifyRound(r, true)
		for _, l := range r.lanes {
			sent, acked, kept = sent+l.sent, acked+len(l.acked), kept+len(l.kept)
		}
	}
	c.server.Stop()
	c.check()
	c.t.Logf("%d kills in streams and %d in starts: %d creates sent, %d acknowledged, %d kept; %v",
		len(c.rounds), c.startKills, sent, acked, kept, time.Since(c.began).Round(time.Millisecond))
	if acked == 0 || sent == acked {
		c.t.Error("no kill happened during a stream: this run tests nothing")
	}
}

// crashRound is one stream of creates that a kill ended.
type crashRound struct {
	number int
	dir    string
	floor  int64 // every zxid of this round is higher
	lanes  []*lane
}

// lane is the creates of one connection in a round. Their names are numbered from 0.
type lane struct {
	dir    string
	number int
	sent   int           // creates that may have been sent, even partly
	acked  []int64       // the zxids of the acknowledged ones, which are the first
	err    error         // a wrong answer
	pause  time.Duration // before each create

	seen bool
	kept []int64 // czxids of the znodes found after the kill
}

func (l *lane) path(i int) string { return fmt.Sprintf("%s/%d-%08d", l.dir, l.number, i) }

// crashData returns the data of a znode: usually a few dozen bytes, sometimes several
// disk blocks.
func crashData(path string) []byte {
	h := fnv.New32a()
	h.Write([]byte(path))
	n := 1 + h.Sum32()%8
	if h.Sum32()%101 == 0 {
		n = 1000
	}
	return bytes.Repeat([]byte(path), int(n))
}

func (c *crash) fatalf(format string, args ...any) {
	c.t.Helper()
	c.t.Fatalf("round %d: %s", len(c.rounds), fmt.Sprintf(format, args...))
}

// start starts the server on the directory. Sometimes it first starts it and kills it
// before it is ready.
func (c *crash) start() {
	c.t.Helper()
	previous := c.server
	if len(c.rounds) > 0 && c.random.IntN(8) == 0 {
		c.startKills++
		half := execLockkeeper(c.t, c.flags...)
		select {
		case <-time.After(c.moment(40 * time.Millisecond)):
		case <-half.exited:
			c.fatalf("the server does not start again: %v", half.state)
		}
		half.Kill()
		half.quiet = true
		c.check()
	}
	c.server = startLockkeeper(c.t, c.flags...)
	if previous != nil {
		previous.quiet = true
	}
}

func (c *crash) moment(limit time.Duration) time.Duration {
	return time.Duration(c.random.Int64N(int64(limit)))
}

// show records a zxid that a client has seen.
func (c *crash) show(zxid int64) { c.shown = max(c.shown, zxid) }

// verify checks the tree after a restart, in the keeper's session.
func (c *crash) verify() {
	c.t.Helper()
	if zxid := serverZxid(c.t, c.server.addr); zxid < c.shown {
		c.fatalf("after the restart srvr shows zxid %#x, but clients have seen %#x", zxid, c.shown)
	}
	conn, err := dialRaw(c.server.addr, 40*time.Second, c.shown, c.keeper)
	if err != nil {
		c.fatalf("the session of before the kill, having seen zxid %#x: %v", c.shown, err)
	}
	if c.conn != nil {
		c.conn.Close()
	}
	c.conn = conn
	c.t.Cleanup(func() { conn.Close() })
	if c.keeper.SessionID == 0 {
		c.keeper = conn.Session
		c.create(crashRoot, nil, 0)
		c.create(crashAlive, nil, proto.FlagEphemeral)
		return
	}
	if conn.Session.SessionID != c.keeper.SessionID {
		c.fatalf("resumed session %#x, the server answers with %#x", c.keeper.SessionID, conn.Session.SessionID)
	}
	var s proto.Stat
	if c.ask(proto.OpExists, &proto.PathWatch{Path: crashAlive}, &s); s.EphemeralOwner != c.keeper.SessionID {
		c.fatalf("%s belongs to session %#x, want %#x", crashAlive, s.EphemeralOwner, c.keeper.SessionID)
	}
	last := len(c.rounds) - 1
	c.verifyRound(c.rounds[last], false)
	if last > 0 {
		c.verifyRound(c.rounds[c.random.IntN(last)], false)
	}
}

// ask sends a request that must succeed and decodes its reply.
func (c *crash) ask(op proto.OpCode, body, reply proto.Record) {
	c.t.Helper()
	f, err := c.conn.Call(op, body, reply)
	if err == nil {
		err = c.see(&f)
	}
	if err != nil {
		c.fatalf("%v: %v", body, err)
	}
}

func (c *crash) create(path string, data []byte, flags int32) {
	c.t.Helper()
	c.ask(proto.OpCreate, &proto.CreateRequest{Path: path, Data: data, ACL: proto.OpenACL, Flags: flags}, nil)
}

// see records the zxid of a reply, which may not be below one that a client has seen.
func (c *crash) see(f *rawclient.Frame) error {
	if f.Zxid < c.shown {
		return fmt.Errorf("an answer shows zxid %#x after clients have seen %#x", f.Zxid, c.shown)
	}
	c.show(f.Zxid)
	return nil
}

// verifyRound compares the znodes of a round with the requests and replies of its lanes.
// It reads the data of every znode the first time, and if read is set.
func (c *crash) verifyRound(r *crashRound, read bool) {
	c.t.Helper()
	var children proto.ChildrenReply
	c.ask(proto.OpGetChildren, &proto.PathWatch{Path: r.dir}, &children)
	names := slices.Sorted(slices.Values(children.Names))
	for _, l := range r.lanes {
		prefix := fmt.Sprintf("%d-", l.number)
		count := 0
		for _, name := range names {
			if !strings.HasPrefix(name, prefix) {
				continue
			}
			// The names are sorted, so each must be the next.
			if path := r.dir + "/" + name; path != l.path(count) {
				c.fatalf("found %s where %s should be: %d sent, %d acknowledged", path, l.path(count), l.sent, len(l.acked))
			}
			count++
		}
		if count < len(l.acked) {
			c.fatalf("lost: %s was acknowledged with zxid %#x and is gone", l.path(count), l.acked[count])
		}
		if count > l.sent {
			c.fatalf("%s is there and was never sent", l.path(count-1))
		}
		if l.seen && count != len(l.kept) {
			c.fatalf("%s: %d znodes, there were %d after its kill", l.path(0), count, len(l.kept))
		}
		if read || !l.seen {
			c.readLane(r, l, count)
		}
		names = slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, prefix) })
	}
	if len(names) > 0 {
		c.fatalf("never sent: %q in %s", names, r.dir)
	}
}

// readLane reads the znodes of a lane, pipelined, and checks data and czxid.
func (c *crash) readLane(r *crashRound, l *lane, count int) {
	c.t.Helper()
	var kept []int64
	previous, next := r.floor, 0
	err := c.conn.Pipeline(64, func(b []byte, xid int32) []byte {
		if next == count {
			return b
		}
		next++
		return rawclient.Request(b, xid, proto.OpGetData, &proto.PathWatch{Path: l.path(next - 1)})
	}, func(f *rawclient.Frame, _ time.Time) error {
		path := l.path(len(kept))
		var got proto.DataReply
		if err := cmp.Or(c.see(f), f.Decode(&got)); err != nil || f.Code != proto.OK {
			return fmt.Errorf("%s: %v, %v", path, f.Code, err)
		}
		czxid := got.Stat.Czxid
		switch {
		case !bytes.Equal(got.Data, crashData(path)):
			return fmt.Errorf("%s holds %d bytes which are not those that were sent", path, len(got.Data))
		case len(kept) < len(l.acked) && czxid != l.acked[len(kept)]:
			return fmt.Errorf("%s was acknowledged with zxid %#x, its czxid is %#x", path, l.acked[len(kept)], czxid)
		case czxid <= previous:
			return fmt.Errorf("%s has czxid %#x, which is not above %#x", path, czxid, previous)
		}
		previous, kept = czxid, append(kept, czxid)
		return nil
	})
	if err != nil {
		c.fatalf("reading %s: %v", l.dir, err)
	}
	if l.seen && !slices.Equal(kept, l.kept) {
		c.fatalf("%s: other czxids than after its kill", l.path(0))
	}
	l.kept, l.seen = kept, true
}

// stream runs all lanes, and kills the server when until returns.
func (c *crash) stream(until func()) {
	c.t.Helper()
	r := &crashRound{number: len(c.rounds), dir: fmt.Sprintf("%s/%04d", crashRoot, len(c.rounds))}
	c.create(r.dir, nil, 0)
	r.floor = c.shown
	c.rounds = append(c.rounds, r)

	var lanes sync.WaitGroup
	for i := range crashLanes {
		conn, err := dialRaw(c.server.addr, 10*time.Second, c.shown, proto.ConnectReply{})
		if err != nil {
			c.fatalf("lane %d: %v", i, err)
		}
		l := &lane{dir: r.dir, number: i}
		r.lanes = append(r.lanes, l)
		window := 1 + c.random.IntN(crashWindow)
		lanes.Go(func() { l.run(conn, window) })
	}
	until()
	c.server.Kill()
	lanes.Wait()

	// No two creates may have the same zxid.
	used := make(map[int64]string)
	for _, l := range r.lanes {
		if l.err != nil {
			c.fatalf("lane %d: %v", l.number, l.err)
		}
		for i, zxid := range l.acked {
			if other, ok := used[zxid]; ok {
				c.fatalf("%s and %s have the same zxid %#x", l.path(i), other, zxid)
			}
			used[zxid] = l.path(i)
			if zxid <= r.floor {
				c.fatalf("%s has zxid %#x after clients have seen %#x", l.path(i), zxid, r.floor)
			}
			c.show(zxid)
		}
	}
}

// run creates znodes until the connection ends, with up to window outstanding requests.
func (l *lane) run(conn *rawclient.Client, window int) {
	defer conn.Close()
	err := conn.Pipeline(window, func(b []byte, xid int32) []byte {
		time.Sleep(l.pause)
		path := l.path(l.sent)
		l.sent++
		return rawclient.Request(b, xid, proto.OpCreate, &proto.CreateRequest{Path: path, Data: crashData(path), ACL: proto.OpenACL})
	}, func(f *rawclient.Frame, _ time.Time) error {
		var created proto.PathReply
		if err := f.Decode(&created); err != nil || f.Code != proto.OK || created.Path != l.path(len(l.acked)) {
			return fmt.Errorf("the create of %s is answered with %v and %q", l.path(len(l.acked)), f.Code, created.Path)
		}
		l.acked = append(l.acked, f.Zxid)
		return nil
	})
	if !connectionEnded(err) { // it was not killed
		l.err = err
	}
}

// check runs 'lockkeeper check' on the files of the dead server.
func (c *crash) check() {
	c.t.Helper()
	checkDir(c.t, c.dir)
}
