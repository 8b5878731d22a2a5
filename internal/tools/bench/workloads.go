package bench

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Workload is a kind of load.
type Workload struct {
	Name string
	Says string // what one operation is
	// Once means that it is measured in one turn only, without warming up, because what it
	// measures is not the same again in the same process.
	Once bool
	// Needs names what is missing for this workload on t, if anything.
	Needs func(t *Target) string
	// Run opens sessions, prepares, and calls Run.Measured once. It does not have to
	// delete znodes below Run.Root.
	Run func(r *Run) error
}

// All returns all workloads in the order in which they are measured: first what needs a
// server without much load before it, and at the end what may restart the server.
func All() []Workload {
	all := []Workload{{
		Name: "idle", Says: "opens one of many sessions, which then do nothing; memory for each",
		Once: true, Run: idle,
		Needs: needs("the server's process id", func(t *Target) bool { return len(t.PIDs) > 0 }),
	}}
	shaped := func(name, says string, run func(r *Run, s shape) error, shapes ...shape) {
		for _, s := range shapes {
			all = append(all, Workload{
				Name: fmt.Sprintf("%s-%dx%d", name, s.sessions, s.outstanding), Says: says,
				Run: func(r *Run) error { return run(r, s) },
			})
		}
	}
	sized := func(name, says string, run func(r *Run, sessions int) error, sizes ...int) {
		for _, n := range sizes {
			all = append(all, Workload{Name: name + "-" + strconv.Itoa(n), Says: says, Run: func(r *Run) error { return run(r, n) }})
		}
	}
	one, some, many := shape{1, 1}, shape{16, 1}, shape{64, 16}
	shaped("create", "creates a znode of 128 bytes", create, one, some, many)
	shaped("set", "sets the 128 bytes of a znode", set, one, some, many)
	shaped("delete", "deletes a znode", remove, one, some, many)
	shaped("read", "reads the 128 bytes of a znode", read, one, many)
	shaped("mixed", "nine reads for each set", mixed, many)
	shaped("sync", "waits until the server has what the leader had", syncs, one)
	sized("lock", "takes and releases a lock of its own with a stock client", stockLocks, 1, 32)
	sized("handover", "the time from the delete by the holder of a lock until the next one knows that it holds it", handOver, 1, 8, 64)
	sized("fanout", "changes a znode that all sessions watch, until the last one knows", fanOut, 1000)
	all = append(all, Workload{
		Name: "elsewhere", Says: "a set by one member, and at once a read of it from another; how many of the reads do not show it yet",
		Needs: needs("a cluster", func(t *Target) bool { return len(t.Addrs) > 1 }), Run: elsewhere,
	})
	sized("churn", "opens and closes a session, with its connection", churn, 32)
	all = append(all, Workload{
		Name: "snapshots", Says: "sets one of many znodes, with 64x16, while the server takes snapshots; and beside that a lone writer, 1x1",
		Once: true, Run: snapshots,
	})
	return append(all, Workload{
		Name: "znodes", Says: "creates one of many znodes of 100 bytes; memory for each, and the time of a restart with them",
		Once: true, Run: znodes,
	})
}

// needs says what a target lacks that has it not.
func needs(what string, has func(t *Target) bool) func(t *Target) string {
	return func(t *Target) string {
		if has(t) {
			return ""
		}
		return what
	}
}

// shape says how many sessions send how many requests before they wait for a reply.
type shape struct{ sessions, outstanding int }

// frame is a request that is encoded once. Only its xid and, if it is numbered, the digits
// at the end of its path differ.
type frame struct {
	bytes []byte
	last  int // offset of the path's last digit
}

// digits ends the path of a numbered request, whose number is at most most.
const (
	digits = "00000000"
	most   = 99_999_999
)

func fixed(op proto.OpCode, body proto.Record) frame {
	return frame{bytes: rawclient.Request(nil, 0, op, body)}
}

// numbered encodes a request whose path ends with digits.
func numbered(op proto.OpCode, body proto.Record) frame {
	f := fixed(op, body)
	f.last = bytes.Index(f.bytes, []byte("/"+digits)) + len(digits)
	return f
}

// append appends the request with this xid and, if it is numbered, number to b.
func (f *frame) append(b []byte, xid int32, number int) []byte {
	at := len(b)
	b = append(b, f.bytes...)
	binary.BigEndian.PutUint32(b[at+4:], uint32(xid))
	for i := at + f.last; number > 0; number /= 10 {
		b[i] = byte('0' + number%10)
		i--
	}
	return b
}

var data = bytes.Repeat([]byte("x"), DataBytes)

func createFrame(parent string, data []byte) frame {
	return numbered(proto.OpCreate, &proto.CreateRequest{Path: parent + "/" + digits, Data: data, ACL: proto.OpenACL})
}

func deleteFrame(parent string) frame {
	return numbered(proto.OpDelete, &proto.PathVersion{Path: parent + "/" + digits, Version: proto.AnyVersion})
}

func setFrame(parent string) frame {
	return numbered(proto.OpSetData, &proto.SetDataRequest{Path: parent + "/" + digits, Data: data, Version: proto.AnyVersion})
}

func readFrame(parent string) frame {
	return numbered(proto.OpGetData, &proto.PathWatch{Path: parent + "/" + digits})
}

// request appends the n-th request of a session, for n from 0, or nothing if there are no more.
type request func(b []byte, xid int32, n int) []byte

// load opens sessions, prepares, and sends the requests of each session, as the shape says.
func (r *Run) load(s shape, prepare func(clients []*rawclient.Client) error, requests func(session int) request) error {
	return r.withSessions(s.sessions, prepare, func(clients []*rawclient.Client) error { return r.pipelined(s, clients, requests) })
}

// pipelined sends requests on every session, as the shape says. If a connection is lost,
// its requests have failed, and the session is replaced.
func (r *Run) pipelined(s shape, clients []*rawclient.Client, requests func(session int) request) error {
	return r.Measured(s.sessions, func(i int, w *Worker) {
		r.pipeline(w, s.outstanding, &clients[i], i, requests(i))
	})
}

// pipeline sends the requests of session i, as many at a time as may be outstanding.
func (r *Run) pipeline(w *Worker, outstanding int, client **rawclient.Client, i int, request request) {
	n := 0
	for {
		asked, answered := n, n
		err := (*client).Pipeline(outstanding, func(b []byte, xid int32) []byte {
			if !w.More() {
				return b
			}
			before := len(b)
			if b = request(b, xid, n); len(b) > before {
				n++
				asked++
			}
			return b
		}, func(f *rawclient.Frame, sent time.Time) error {
			answered++
			if f.Code != proto.OK {
				w.Fail(f.Code)
			} else {
				w.Done(time.Since(sent))
			}
			return nil
		})
		if err == nil {
			return
		}
		w.fail(fmt.Errorf("connection lost: %w", err), int64(max(asked-answered, 1)))
		if *client = r.replace(*client, i); *client == nil {
			return
		}
	}
}

// withSessions calls run with n sessions that all see what prepare has done.
func (r *Run) withSessions(n int, prepare, run func(clients []*rawclient.Client) error) error {
	clients, err := r.openAll(n)
	if err != nil {
		return err
	}
	defer func() { r.endAll(clients) }()
	return steps(
		func() error { return prepare(clients) },
		func() error { return r.syncAll(clients) },
		r.ctx.Err,
		func() error { return run(clients) },
	)
}

func steps(all ...func() error) error {
	for _, step := range all {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// parents creates a znode for each session, and waits until the session sees it.
func (r *Run) parents(clients []*rawclient.Client) error {
	if err := r.numberedParents(clients[0], len(clients)); err != nil {
		return err
	}
	return r.syncAll(clients)
}

func (r *Run) numberedParents(c *rawclient.Client, n int) error {
	for i := range n {
		if _, err := c.Create(r.parent(i), nil, 0); err != nil {
			return err
		}
	}
	return nil
}

func (r *Run) parent(i int) string { return r.Root + "/" + strconv.Itoa(i) }

// fill creates n znodes of data below parent.
func (r *Run) fill(c *rawclient.Client, parent string, n int, until time.Time) (created int, err error) {
	f := createFrame(parent, data)
	err = c.Pipeline(64, func(b []byte, xid int32) []byte {
		if created == n || created > 0 && (r.Stopped() || time.Now().After(until)) {
			return b
		}
		created++
		return f.append(b, xid, created-1)
	}, replied)
	return created, err
}

// forever is a time that does not come.
func forever() time.Time { return time.Now().Add(24 * time.Hour) }

// replied is for requests that must succeed and are not measured.
func replied(f *rawclient.Frame, _ time.Time) error {
	if f.Code != proto.OK {
		return f.Code
	}
	return nil
}

func create(r *Run, s shape) error {
	return r.load(s, r.parents, func(session int) request {
		f := createFrame(r.parent(session), data)
		return func(b []byte, xid int32, n int) []byte { return f.append(b, xid, n) }
	})
}

// ownZnodes is how many znodes each session sets in turn.
const ownZnodes = 16

func set(r *Run, s shape) error {
	prepare := func(clients []*rawclient.Client) error {
		if err := r.parents(clients); err != nil {
			return err
		}
		return r.fillAll(clients, func(int) int { return ownZnodes }, forever(), nil)
	}
	return r.load(s, prepare, func(session int) request {
		f := setFrame(r.parent(session))
		return func(b []byte, xid int32, n int) []byte { return f.append(b, xid, n%ownZnodes) }
	})
}

// fillAll creates so many znodes below the parent of each session, in all sessions at the same time:
// one that waits may expire.
func (r *Run) fillAll(clients []*rawclient.Client, znodes func(session int) int, until time.Time, created []int) error {
	var all sync.WaitGroup
	errs := make([]error, len(clients))
	for i, c := range clients {
		all.Go(func() {
			n, err := r.fill(c, r.parent(i), znodes(i), until)
			if errs[i] = err; created != nil {
				created[i] = n
			}
		})
	}
	all.Wait()
	return cmp.Or(errs...)
}

// mostDeletes is more deletes than an outstanding request of a server can do in a second.
const mostDeletes = 10_000

// remove deletes znodes. It creates about as many as can be deleted in the time, and at
// least one for each session.
func remove(r *Run, s shape) error {
	created := make([]int, s.sessions)
	prepare := func(clients []*rawclient.Client) error {
		if err := r.parents(clients); err != nil {
			return err
		}
		until := time.Now().Add(r.limit)
		enough := 1 + int(mostDeletes*r.limit.Seconds())*s.outstanding
		return r.fillAll(clients, func(i int) int { return min(r.share(i, s.sessions), enough) }, until, created)
	}
	return r.load(s, prepare, func(session int) request {
		f := deleteFrame(r.parent(session))
		return func(b []byte, xid int32, n int) []byte {
			if n == created[session] {
				return b
			}
			return f.append(b, xid, n)
		}
	})
}

const readZnodes = 1000

func (r *Run) library(clients []*rawclient.Client) error {
	_, err := r.fill(clients[0], r.Root, readZnodes, forever())
	return err
}

// spread returns which znode the n-th request of a session is for. Sessions start at
// different ones and visit all, since 7 does not divide their number.
func spread(session, n int) int { return (session*31 + n*7) % readZnodes }

func read(r *Run, s shape) error {
	return r.load(s, r.library, func(session int) request {
		f := readFrame(r.Root)
		return func(b []byte, xid int32, n int) []byte { return f.append(b, xid, spread(session, n)) }
	})
}

func mixed(r *Run, s shape) error {
	return r.load(s, r.library, func(session int) request {
		reads, sets := readFrame(r.Root), setFrame(r.Root)
		return func(b []byte, xid int32, n int) []byte {
			if n%10 == 9 {
				return sets.append(b, xid, spread(session, n))
			}
			return reads.append(b, xid, spread(session, n))
		}
	})
}

func syncs(r *Run, s shape) error {
	f := fixed(proto.OpSync, &proto.Path{Path: r.Root})
	return r.load(s, r.syncAll, func(int) request {
		return func(b []byte, xid int32, _ int) []byte { return f.append(b, xid, 0) }
	})
}

// elsewhere sets a znode through one server and, as soon as it has the reply, reads it from another, for all
// pairs of servers in turn. Nobody promises that the read shows what was written, but programs rely on it.
func elsewhere(r *Run) error {
	n := len(r.Target.Addrs)
	path := r.Root + "/x"
	prepare := func(clients []*rawclient.Client) error { _, err := clients[0].Create(path, data, 0); return err }
	return r.withSessions(n, prepare, func(clients []*rawclient.Client) error {
		unseen, pair := 0, 0
		err := r.Measured(1, func(_ int, w *Worker) {
			for w.More() {
				by := pair % n
				to := (by + 1 + pair/n%(n-1)) % n
				pair++
				began := time.Now()
				written, err := clients[by].Set(path, data)
				if err != nil {
					w.Fail(err)
					return
				}
				read, err := clients[to].Get(path, false)
				if err != nil {
					w.Fail(err)
					return
				}
				if read.Stat.Version < written.Version {
					unseen++
				}
				w.Done(time.Since(began))
			}
		})
		if pair > 0 {
			r.result.UnseenPercent = round(100 * float64(unseen) / float64(pair))
		}
		return err
	})
}

// fanOut changes a znode that n sessions watch. The watches of the next change are set
// within the measured part too, so its processor time includes them.
func fanOut(r *Run, n int) error {
	path := r.Root + "/watched"
	prepare := func(clients []*rawclient.Client) error { _, err := clients[n].Create(path, data, 0); return err }
	return r.withSessions(n+1, prepare, func(clients []*rawclient.Client) error {
		writer := clients[n]
		return r.Measured(1, func(_ int, w *Worker) {
			for w.More() {
				took, err := fanOutOnce(path, writer, clients[:n])
				if err != nil {
					w.Fail(err)
					return
				}
				w.Done(took)
			}
		})
	})
}

// fanOutOnce returns the time from sending a change until the last of the clients knows.
func fanOutOnce(path string, writer *rawclient.Client, clients []*rawclient.Client) (time.Duration, error) {
	var set, told sync.WaitGroup
	times, errs := make([]time.Time, len(clients)), make([]error, len(clients))
	set.Add(len(clients))
	for i, c := range clients {
		told.Go(func() {
			_, errs[i] = c.Get(path, true)
			set.Done()
			if errs[i] == nil {
				errs[i] = event(c, path)
			}
			times[i] = time.Now()
		})
	}
	set.Wait()
	began := time.Now()
	_, err := writer.Set(path, data)
	if err != nil { // the clients would wait for nothing
		for _, c := range clients {
			c.Close()
		}
	}
	told.Wait()
	var last time.Duration
	for i := range clients {
		err = cmp.Or(err, errs[i])
		last = max(last, times[i].Sub(began))
	}
	return last, err
}

func event(c *rawclient.Client, path string) error {
	for {
		for len(c.Events) > 0 {
			e := c.Events[0]
			if c.Events = c.Events[1:]; e.Path == path {
				return nil
			}
		}
		f, err := c.Read()
		if err != nil {
			return err
		}
		e, ok := f.Event()
		if !ok {
			return fmt.Errorf("reply to request %d, expected an event", f.Xid)
		}
		c.Events = append(c.Events, e)
	}
}

func churn(r *Run, n int) error {
	return r.Measured(n, func(i int, w *Worker) {
		for w.More() {
			began := time.Now()
			c, err := r.open(i)
			if err == nil {
				if err = c.CloseSession(); err == nil {
					w.Done(time.Since(began))
				}
				r.forget(c.Conn)
				if tcp, ok := c.Conn.(interface{ SetLinger(sec int) error }); ok {
					tcp.SetLinger(0) // so that the port can be used again
				}
				c.Close()
			}
			if err != nil {
				w.Fail(err)
			}
		}
	})
}

func idle(r *Run) error {
	n := r.o.IdleSessions
	r.ops = n
	r.limit = max(r.limit, time.Minute) // all are opened, however short other measurements are
	clients := make([]*rawclient.Client, n)
	defer func() { r.endAll(clients) }()
	before, err := r.Target.usage()
	if err != nil {
		return err
	}
	var next atomic.Int64
	err = r.Measured(setupParallel, func(_ int, w *Worker) {
		for w.More() {
			i := int(next.Add(1)) - 1
			began := time.Now()
			c, err := r.open(i)
			if err != nil {
				w.Fail(err)
				r.Stop()
				return
			}
			clients[i] = c
			w.Done(time.Since(began))
		}
	})
	if err != nil || len(r.times) == 0 {
		return err
	}
	return r.itemMemory(before, len(r.times))
}

// itemMemory notes the memory that n sessions or znodes take.
func (r *Run) itemMemory(before usage, n int) error {
	select {
	case <-time.After(r.o.settle):
	case <-r.ctx.Done():
		return nil
	}
	after, err := r.Target.usage()
	if err != nil || !after.measured {
		return err
	}
	r.result.MemoryBytes = after.memory
	r.result.BytesPerItem = float64(after.memory-before.memory) / float64(n)
	return nil
}

const (
	znodeBytes   = 100
	znodeParents = 100 // so that a list of children fits into a frame
)

// znodes creates many znodes. If the target can be restarted, it then measures how long a
// restart takes until the znodes can be read.
func znodes(r *Run) error {
	s := shape{min(16, r.o.Znodes), 64}
	before, err := r.Target.usage()
	if err != nil {
		return err
	}
	r.ops = r.o.Znodes
	r.limit = max(r.limit, 10*time.Minute)
	small := bytes.Repeat([]byte("x"), znodeBytes)
	prepare := func(clients []*rawclient.Client) error { return r.numberedParents(clients[0], znodeParents) }
	err = r.withSessions(s.sessions, prepare, func(clients []*rawclient.Client) error {
		frames := make([]frame, znodeParents)
		for i := range frames {
			frames[i] = createFrame(r.parent(i), small)
		}
		return r.pipelined(s, clients, func(session int) request {
			return func(b []byte, xid int32, n int) []byte {
				number := n*s.sessions + session
				return frames[number%znodeParents].append(b, xid, number)
			}
		})
	})
	created := len(r.times)
	if err != nil || created == 0 || r.ctx.Err() != nil {
		return err
	}
	if err := r.itemMemory(before, created); err != nil {
		return err
	}
	if r.Target.Restart == nil {
		return nil
	}
	began := time.Now()
	pids, err := r.Target.Restart(r.ctx)
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	if pids != nil {
		r.Target.PIDs = pids
	}
	if err := r.awaitZnodes(created); err != nil {
		return fmt.Errorf("after the restart: %w", err)
	}
	r.result.RestartSeconds = time.Since(began).Seconds()
	return nil
}

// With snapshotWrites, a server that takes a snapshot after a certain number of bytes or of writes
// takes at least three. One that waits until its log is as long as its data needs snapshotTurns
// writes for each znode.
const (
	snapshotWrites = 400_000
	snapshotTurns  = 4
)

// snapshotQuickly is how long the workload takes when time is short. Then there are fewer
// snapshots.
const snapshotQuickly = 2 * time.Second

// snapshots fills the tree, and then has many sessions set znodes all over it, so that the server
// takes snapshots. Beside them, a lone writer does the same. Its times are reported on their own.
func snapshots(r *Run) error {
	s, znodes := shape{64, 16}, r.o.Znodes
	all := s.sessions + 1
	if r.limit = max(r.limit, 10*time.Minute); r.o.Budget > 0 {
		r.limit = snapshotQuickly
	}
	r.ops = znodes
	prepare := func(clients []*rawclient.Client) error {
		if err := r.parents(clients); err != nil {
			return err
		}
		return r.fillAll(clients, func(i int) int { return r.share(i, all) }, forever(), nil)
	}
	return r.withSessions(all, prepare, func(clients []*rawclient.Client) error {
		if r.ops = max(snapshotTurns*znodes, snapshotWrites); r.o.Ops < snapshotWrites {
			r.ops = r.o.Ops
		}
		frames := make([]frame, all)
		for i := range frames {
			frames[i] = setFrame(r.parent(i))
		}
		return r.beside(s, clients, func(session int) request {
			return func(b []byte, xid int32, n int) []byte {
				number := (n*all + session) * scatter % znodes
				return frames[number%all].append(b, xid, number/all)
			}
		})
	})
}

// scatter is a prime number. Multiples of it are all over the tree.
const scatter = 7919

// beside is like pipelined. The last of the clients is one more: a lone writer, which ends after
// the others.
func (r *Run) beside(s shape, clients []*rawclient.Client, requests func(session int) request) error {
	var lone []time.Duration
	var others atomic.Int64
	others.Store(int64(s.sessions))
	err := r.Measured(s.sessions+1, func(i int, w *Worker) {
		if i < s.sessions {
			r.pipeline(w, s.outstanding, &clients[i], i, requests(i))
			if others.Add(-1) == 0 {
				r.Stop()
			}
			return
		}
		w.left = math.MaxInt
		r.pipeline(w, 1, &clients[i], i, requests(i))
		lone, w.times = w.times, nil
	})
	slices.Sort(lone)
	r.result.LoneP50, r.result.LoneP999, r.result.LoneMax = us(quantile(lone, 0.5)), us(quantile(lone, 0.999)), us(quantile(lone, 1))
	return err
}

// restartPatience is how long a server may take to start, which only decides when the
// measurement is given up.
const restartPatience = 5 * time.Minute

// awaitZnodes waits until the server serves, and checks that it has all znodes.
func (r *Run) awaitZnodes(want int) error {
	var c *rawclient.Client
	for deadline := time.Now().Add(restartPatience); ; {
		var err error
		// It gives up soon: a server that starts may accept connections that it never serves.
		if c, err = r.openWithin(0, 2*time.Second); err == nil {
			break
		}
		if r.ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
	defer r.end(c)
	c.Timeout = frameTimeout
	have := 0
	for i := range znodeParents {
		s, err := c.Exists(r.parent(i), false)
		if err != nil {
			return err
		}
		have += int(s.NumChildren)
	}
	if have != want {
		return fmt.Errorf("%d znodes, created %d", have, want)
	}
	return nil
}
