package sim

import (
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/tools/stock"
	"github.com/lockkeeper/lockkeeper/proto"
)

// The znodes that clients work on.
const (
	registers = 3
	locks     = 2
)

// quotaPaths are the paths that may have quotas. The first one always has one.
var quotaPaths = []string{"/quota/a", "/quota/b", "/quota"}

func limitsOf(path string) string { return "/zookeeper/quota" + path + "/zookeeper_limits" }
func statsOf(path string) string  { return "/zookeeper/quota" + path + "/zookeeper_stats" }

// limits returns the data of a limits znode. A limit of -1 means none. The tag makes the
// data unique.
func limits(count, bytes, countHard, bytesHard int, tag string) string {
	return fmt.Sprintf("count=%d,bytes=%d;countHardLimit=%d;byteHardLimit=%d;%s=0", count, bytes, countHard, bytesHard, tag)
}

const noStats = "count=0,bytes=0" // the members replace it with what they count

func register(i int) string { return fmt.Sprintf("/reg/%d", i) }

// setUp waits for the cluster and creates the znodes that the clients need.
func (s *sim) setUp() bool {
	c := s.newClient(10 * time.Second)
	defer c.drop()
	missing := []string{"/reg", "/locks", "/seq", "/eph", "/multi", "/multi/a", "/multi/b", "/stock", "/ttl", "/bursts", "/owned", "/bulk", "/quota", "/quota/a", "/quota/b",
		"/zookeeper/quota/quota", "/zookeeper/quota/quota/a", "/zookeeper/quota/quota/b", statsOf(quotaPaths[0]), limitsOf(quotaPaths[0])}
	for i := range registers {
		missing = append(missing, register(i))
	}
	for i := range locks {
		missing = append(missing, fmt.Sprintf("/locks/%d", i))
	}
	deadline := time.Now().Add(time.Minute)
	for len(missing) > 0 {
		if time.Now().After(deadline) {
			s.h.violate("start", "the cluster does not serve after a minute")
			return false
		}
		if err := c.connect(); err != nil {
			continue
		}
		tag := c.tag()
		switch missing[0] {
		case statsOf(quotaPaths[0]):
			tag = noStats
		case limitsOf(quotaPaths[0]):
			tag = limits(-1, -1, 5, 200, tag)
		}
		if o := c.do(&Op{Code: proto.OpCreate, Path: missing[0], Tag: tag}); o.OK() || o.Known() && o.Err == proto.NodeExists {
			missing = missing[1:]
		}
	}
	return true
}

func (s *sim) work() {
	r := s.stream(5)
	timeout := func() time.Duration { return 4*time.Second + time.Duration(r.IntN(6000))*time.Millisecond }
	startOne := func(timeout time.Duration, act func(c *client)) {
		c := s.newClient(timeout)
		s.wg.Go(func() {
			defer c.drop()
			for !s.over() {
				act(c)
			}
		})
	}
	start := func(n int, act func(c *client)) {
		for range n {
			startOne(timeout(), act)
		}
	}
	start(4, connected((*client).lock))
	start(3, connected((*client).registers))
	start(1, connected((*client).sequence))
	start(3, (*client).ephemerals)
	start(3, connected((*client).watches))
	start(2, connected((*client).multis))
	for range 2 {
		s.stockLock()
	}
	start(1, connected((*client).ttls))
	start(2, connected((*client).bursts))
	start(2, connected((*client).owners))
	startOne(45*time.Second, connected((*client).read))
	s.writer, s.watcher = s.newClient(timeout()), s.newClient(timeout())
	late := func() time.Duration { return 1500*time.Millisecond + time.Duration(r.IntN(2500))*time.Millisecond }
	for range 2 {
		startOne(late(), (*client).late)
	}
	start(2, connected((*client).quotas))
	s.reconfigurer = s.newClient(10 * time.Second)
	if s.opts.ReadOnly {
		start(2, (*client).readOnly)
	}
	if s.opts.Large {
		start(1, connected((*client).bulk))
	}
}

// connected has a client act only when it has a connection.
func connected(act func(c *client)) func(c *client) {
	return func(c *client) {
		if c.connect() == nil {
			act(c)
		}
	}
}

func (c *client) pause(most time.Duration) {
	c.s.sleep(time.Duration(c.rng.Float64() * float64(most) * c.s.opts.Pace))
}

// move sometimes leaves the connection, and the session continues on another one.
func (c *client) move() {
	if n := c.rng.IntN(60); n < 2 {
		c.leave(n == 0)
	}
}

// leave leaves the connection. It closes it, or connects to some server first and closes
// the old connection later.
func (c *client) leave(closes bool) {
	if closes {
		c.drop()
		return
	}
	if old := c.conn; old != nil {
		c.conn = nil
		if c.connect() == nil && c.rng.IntN(2) == 0 {
			// The session has moved, so this must not be done.
			old.start(&Op{Code: proto.OpSetData, Origin: Origin{Client: c.id}, Path: register(c.rng.IntN(registers)), Tag: c.tag(), Version: -1})
		}
		c.s.wg.Go(func() {
			select {
			case <-time.After(time.Second):
				old.start(&Op{Code: proto.OpExists, Origin: Origin{Client: c.id}, Path: register(0), Unsynced: true}) // its server has most likely applied that
				c.s.sleep(100 * time.Millisecond)
			case <-old.gone:
			}
			old.end()
		})
	}
}

// registers writes and reads znodes, sometimes without waiting for replies.
func (c *client) registers() {
	var last *Op
	for range 1 + c.rng.IntN(4) {
		path := register(c.rng.IntN(registers))
		switch c.rng.IntN(6) {
		case 0, 1:
			last = c.send(&Op{Code: proto.OpSetData, Path: path, Tag: c.tag(), Version: -1})
		case 2:
			o := c.do(&Op{Code: proto.OpGetData, Path: path, Unsynced: true})
			if !o.OK() {
				return
			}
			last = c.send(&Op{Code: proto.OpSetData, Path: path, Tag: c.tag(), Version: o.GotVersion + max(0, c.rng.Int32N(8)-5)}) // a later version, sometimes
		case 3:
			last = c.send(&Op{Code: proto.OpGetData, Path: path, Unsynced: true})
		case 4:
			c.send(&Op{Code: proto.OpSync, Path: path})
			last = c.send(&Op{Code: proto.OpGetData, Path: path})
		case 5:
			last = c.send(&Op{Code: proto.OpExists, Path: path, Unsynced: true})
		}
	}
	<-last.done
	c.move()
	c.pause(300 * time.Millisecond)
}

// sequence creates sequential znodes, and deletes some.
func (c *client) sequence() {
	if o := c.do(&Op{Code: proto.OpCreate, Path: "/seq/n-", Tag: c.tag(), Flags: proto.FlagSequential}); o.OK() && c.rng.IntN(2) == 0 {
		c.do(&Op{Code: proto.OpDelete, Path: o.GotPath, Version: -1})
	}
	c.move()
	c.pause(500 * time.Millisecond)
}

// ephemerals creates ephemeral znodes in sessions that end in different ways.
func (c *client) ephemerals() {
	c.lazy = c.rng.IntN(2) == 0
	if c.connect() != nil {
		return
	}
	for range 1 + c.rng.IntN(5) {
		c.do(&Op{Code: proto.OpCreate, Path: fmt.Sprintf("/eph/e%d-", c.id), Tag: c.tag(), Flags: proto.FlagEphemeralSeq})
		c.pause(500 * time.Millisecond)
	}
	for range c.rng.IntN(30) {
		if c.connect() != nil {
			return
		}
		c.do(&Op{Code: proto.OpGetChildren, Path: "/eph", Unsynced: true})
		c.move()
		c.pause(c.timeout / 4)
	}
	switch c.rng.IntN(3) {
	case 0: // close the session
		if c.connect() == nil {
			c.do(&Op{Code: proto.OpCloseSession})
			c.forget()
		}
	case 1: // let it expire
		c.drop()
		c.s.sleep(c.timeout + time.Duration(c.rng.Int64N(int64(c.timeout))))
	default: // abandon it for a new one
		c.forget()
	}
}

// read reads often, in a session with a timeout so long that a member need not ask the
// leader before it answers.
func (c *client) read() {
	c.do(&Op{Code: proto.OpExists, Path: register(c.rng.IntN(registers)), Unsynced: true})
	c.s.sleep(time.Duration(c.rng.Float64() * math.Sqrt(c.s.opts.Pace) * float64(500*time.Millisecond)))
	if c.rng.IntN(200) == 0 {
		c.leave(true)
	}
}

// late is silent until its timeout is over, give or take a tick. Then it sends a
// request, or resumes its session on another connection, or both.
func (c *client) late() {
	c.mute = true
	if c.connect() != nil {
		return
	}
	c.do(&Op{Code: proto.OpCreate, Path: fmt.Sprintf("/eph/l%d-", c.id), Tag: c.tag(), Flags: proto.FlagEphemeralSeq})
	for range 1 + c.rng.IntN(5) {
		if c.connect() != nil {
			return
		}
		last := c.do(&Op{Code: proto.OpGetData, Path: register(0), Unsynced: true})
		if !last.Known() {
			continue
		}
		way := c.rng.IntN(4)
		if way == 0 {
			c.drop()
		}
		around := last.CallAt + c.timeout + time.Duration(c.rng.Int64N(int64(2*tick))) - tick
		c.s.sleep(around - c.s.h.now())
		switch old := c.conn; {
		case way == 1:
			c.leave(false)
		case way > 1 && old != nil:
			op := &Op{Code: proto.OpPing, Unsynced: true}
			if c.rng.IntN(2) == 0 {
				op = &Op{Code: proto.OpSetData, Path: register(c.rng.IntN(registers)), Tag: c.tag(), Version: -1}
			}
			c.send(op)
			if way == 3 {
				c.leave(false)
			} else {
				<-op.done
			}
		}
	}
	c.pause(200 * time.Millisecond)
}

// watches sets watches, and creates and deletes znodes.
func (c *client) watches() {
	if c.rng.IntN(2) == 0 {
		for range 1 + c.rng.IntN(6) {
			o := &Op{Watch: true, Unsynced: true}
			switch c.rng.IntN(4) {
			case 0:
				o.Code, o.Path = proto.OpGetData, register(c.rng.IntN(registers))
			case 1:
				o.Code, o.Path = proto.OpExists, fmt.Sprintf("/reg/x%d", c.rng.IntN(3))
			case 2:
				o.Code, o.Path = proto.OpGetChildren, []string{"/eph", "/seq", "/locks/0", "/reg"}[c.rng.IntN(4)]
			case 3:
				o.Code, o.Path = proto.OpExists, register(c.rng.IntN(registers))
			}
			if c.conn == nil {
				return
			}
			c.send(o)
		}
	}
	path := fmt.Sprintf("/reg/x%d", c.rng.IntN(3))
	if c.rng.IntN(2) == 0 {
		c.do(&Op{Code: proto.OpCreate, Path: path, Tag: c.tag()})
	} else {
		c.do(&Op{Code: proto.OpDelete, Path: path, Version: c.rng.Int32N(3) - 1})
	}
	c.awaitEvent(time.Duration(c.rng.IntN(1000)) * time.Millisecond)
	c.pause(200 * time.Millisecond)
	switch c.rng.IntN(20) {
	case 0, 1:
		c.leave(c.rng.IntN(4) > 0)
		c.pause(500 * time.Millisecond)
	case 2:
		if c.id%3 == 0 && c.conn != nil { // few clients, since these get many events
			o := &Op{Code: proto.OpAddWatch, Recursive: c.rng.IntN(2) == 0, Unsynced: true}
			o.Path = []string{"/reg", "/reg/x0", "/reg/x1", "/seq", "/multi"}[c.rng.IntN(5)]
			c.send(o)
		}
	}
}

// ttls creates TTL znodes and containers, which the members delete.
func (c *client) ttls() {
	switch c.rng.IntN(4) {
	case 0, 1:
		o := c.do(&Op{Code: proto.OpCreateTTL, Path: "/ttl/t-", Tag: c.tag(), Flags: proto.FlagTTLSequential, TTL: time.Duration(1+c.rng.IntN(20_000)) * time.Millisecond})
		if o.OK() && c.rng.IntN(2) == 0 {
			c.pause(2 * time.Second)
			c.do(&Op{Code: proto.OpSetData, Path: o.GotPath, Tag: c.tag(), Version: -1})
		}
	case 2:
		dir, child := fmt.Sprintf("/ttl/c%d", c.tags), fmt.Sprintf("/ttl/c%d/x", c.tags)
		c.do(&Op{Code: proto.OpCreateContainer, Path: dir, Tag: c.tag(), Flags: proto.FlagContainer})
		c.do(&Op{Code: proto.OpCreate, Path: child, Tag: c.tag()})
		c.pause(2 * time.Second)
		c.do(&Op{Code: proto.OpDelete, Path: child, Version: -1})
		if c.rng.IntN(2) == 0 { // give it a child again, if it still exists
			c.s.sleep(time.Duration(c.rng.IntN(25)) * time.Second / 2)
			c.do(&Op{Code: proto.OpCreate, Path: child, Tag: c.tag()})
			c.s.sleep(15 * time.Second)
			c.do(&Op{Code: proto.OpDelete, Path: child, Version: -1})
		}
	case 3:
		c.do(&Op{Code: proto.OpGetChildren, Path: "/ttl", Unsynced: true})
	}
	c.move()
	c.pause(time.Second)
}

// bursts sends many writes without waiting, and often leaves before the answers come.
// The writes that are done must be the first ones.
func (c *client) bursts() {
	var all []*Op
	for range 5 + c.rng.IntN(60) {
		all = append(all, &Op{Code: proto.OpSetData, Path: "/bursts", Tag: c.tag(), Version: -1})
	}
	if c.rng.IntN(2) == 0 {
		first := c.rng.IntN(len(all)) // so that they go into two entries of the log
		c.sendAll(all[:first]...)
		c.s.sleep(time.Duration(c.rng.Int64N(int64(20 * time.Millisecond))))
		c.sendAll(all[first:]...)
	} else { // a few at a time, so that some arrive while others wait for a leader
		for left := all; len(left) > 0; {
			n := min(1+c.rng.IntN(3), len(left))
			c.sendAll(left[:n]...)
			left = left[n:]
			c.s.sleep(time.Duration(c.rng.Int64N(int64(300 * time.Millisecond))))
		}
	}
	switch c.rng.IntN(3) {
	case 0:
		c.s.sleep(time.Duration(c.rng.Int64N(int64(20 * time.Millisecond))))
		c.leave(c.rng.IntN(2) == 0)
	case 1:
		<-all[c.rng.IntN(len(all))].done
		c.leave(c.rng.IntN(2) == 0)
	default:
		<-all[len(all)-1].done
	}
	c.pause(2 * time.Second)
}

// largest is how many bytes the largest entries have. A request has at most 1 MiB.
const largest = 900_000

// bulk writes data of all sizes.
func (c *client) bulk() {
	c.do(&Op{Code: proto.OpSetData, Path: "/bulk", Tag: c.tag(), Pad: int(math.Exp(c.rng.Float64() * math.Log(largest))), Version: -1})
	if c.rng.IntN(4) == 0 && c.conn != nil {
		c.do(&Op{Code: proto.OpGetData, Path: "/bulk", Unsynced: true})
	}
	c.pause(2 * time.Second)
}

// multis sends multis that change two znodes, and create and delete others. Some fail
// at their last operation.
func (c *client) multis() {
	tag, version := c.tag(), int32(-1)
	if c.rng.IntN(2) == 0 {
		o := c.do(&Op{Code: proto.OpGetData, Path: "/multi/a", Unsynced: true})
		if !o.OK() {
			return
		}
		version = o.GotVersion
	}
	parts := []Part{
		{proto.OpCheck, "/multi/a", "", version},
		{proto.OpSetData, "/multi/a", tag, -1},
		{proto.OpSetData, "/multi/b", tag, -1},
	}
	x := fmt.Sprintf("/multi/x%d", c.rng.IntN(3))
	create, remove := Part{proto.OpCreate, x, tag, 0}, Part{proto.OpDelete, x, "", -1}
	switch c.rng.IntN(5) {
	case 0:
		parts = append(parts, create)
	case 1:
		parts = append([]Part{remove}, parts...)
	case 2: // leaves nothing
		parts = append(parts, create, remove)
	case 3:
		parts = append(parts, create, remove, Part{proto.OpCheck, "/multi/b", "", version + 1 + c.rng.Int32N(3)})
	}
	c.do(&Op{Code: proto.OpMulti, Tag: tag, More: parts})
	c.move()
	c.pause(400 * time.Millisecond)
}

// owners works on znodes that belong to one of two users or to everybody, as one of
// these users or as none.
func (c *client) owners() {
	if c.conn.user == "" && c.rng.IntN(3) > 0 {
		c.do(&Op{Code: proto.OpAuth, User: fmt.Sprintf("user%d", c.rng.IntN(2)), Unsynced: true})
	}
	path := fmt.Sprintf("/owned/%d", c.rng.IntN(3))
	child := path + "/x"
	switch c.rng.IntN(8) {
	case 0, 1:
		c.do(&Op{Code: proto.OpCreate, Path: path, Tag: c.tag(), Owner: []string{"", "user0", "user1"}[c.rng.IntN(3)]})
	case 2:
		c.do(&Op{Code: proto.OpDelete, Path: path, Version: c.rng.Int32N(3) - 1})
	case 3:
		c.do(&Op{Code: proto.OpSetData, Path: path, Tag: c.tag(), Version: c.rng.Int32N(3) - 1})
	case 4:
		c.do(&Op{Code: proto.OpGetData, Path: path, Unsynced: true})
	case 5:
		c.do(&Op{Code: proto.OpGetChildren, Path: path, Unsynced: true})
	case 6:
		c.do(&Op{Code: proto.OpCreate, Path: child, Tag: c.tag()})
	case 7:
		tag := c.tag()
		c.do(&Op{Code: proto.OpMulti, Tag: tag, More: []Part{
			{proto.OpCreate, "/owned/y", tag, 0}, {proto.OpDelete, child, "", -1}, {proto.OpDelete, "/owned/y", "", 0},
		}})
	}
	c.move()
	c.pause(300 * time.Millisecond)
}

// quotas writes znodes that have quotas, and changes the quotas.
func (c *client) quotas() {
	path := quotaPaths[c.rng.IntN(2)]
	child := func() string { return fmt.Sprintf("%s/x%d", path, c.rng.IntN(5)) }
	data := func() string { return c.tag() + strings.Repeat(".", c.rng.IntN(60)) }
	limit := func() string {
		l := []int{-1, -1, -1, -1}
		for i, most := range []int{10, 400, 10, 400} {
			if c.rng.IntN(2) == 0 {
				l[i] = c.rng.IntN(most)
			}
		}
		return limits(l[0], l[1], l[2], l[3], c.tag())
	}
	switch c.rng.IntN(12) {
	case 0, 1, 2:
		c.do(&Op{Code: proto.OpCreate, Path: child(), Tag: data()})
	case 3:
		c.do(&Op{Code: proto.OpCreate, Path: path + "/e-", Tag: data(), Flags: proto.FlagEphemeralSeq})
	case 4:
		c.do(&Op{Code: proto.OpDelete, Path: child(), Version: -1})
	case 5, 6:
		c.do(&Op{Code: proto.OpSetData, Path: child(), Tag: data(), Version: c.rng.Int32N(3) - 1})
	case 7: // what is left of the quota before the multi counts for each operation
		x, tag := child(), data()
		parts := []Part{{proto.OpCreate, x, tag, 0}, {proto.OpSetData, path, tag, -1}, {proto.OpCreate, child(), tag, 0}}
		switch c.rng.IntN(4) {
		case 0:
			parts = append(parts, Part{proto.OpDelete, x, "", -1})
		case 1:
			parts = append([]Part{{proto.OpSetData, limitsOf(path), limit(), -1}}, parts...)
		}
		c.do(&Op{Code: proto.OpMulti, Tag: tag, More: parts})
	case 8:
		c.do(&Op{Code: proto.OpSetData, Path: limitsOf(path), Tag: limit(), Version: -1})
	case 9:
		c.do(&Op{Code: proto.OpGetData, Path: statsOf(quotaPaths[c.rng.IntN(3)]), Unsynced: true})
	case 10: // the first path always keeps its quota
		path = quotaPaths[1+c.rng.IntN(2)]
		if c.rng.IntN(2) == 0 {
			c.do(&Op{Code: proto.OpCreate, Path: statsOf(path), Tag: noStats})
		}
		c.do(&Op{Code: proto.OpCreate, Path: limitsOf(path), Tag: limit()})
	case 11:
		path = quotaPaths[1+c.rng.IntN(2)]
		c.do(&Op{Code: proto.OpDelete, Path: []string{limitsOf(path), statsOf(path)}[c.rng.IntN(2)], Version: -1})
	}
	c.move()
	c.pause(600 * time.Millisecond)
}

// readOnly accepts read-only connections to members without a majority, and moves
// between these and others, with its session if it has one.
func (c *client) readOnly() {
	c.acceptsReadOnly = true
	if c.conn != nil && c.conn.dead() && c.rng.IntN(2) == 0 {
		c.try(c.conn.log.Server) // it has lost or regained its majority
	}
	if c.connect() != nil {
		return
	}
	if c.rng.IntN(3) == 0 {
		c.do(&Op{Code: proto.OpCreate, Path: fmt.Sprintf("/eph/r%d-", c.id), Tag: c.tag(), Flags: proto.FlagEphemeralSeq})
	}
	switch path := register(c.rng.IntN(registers)); c.rng.IntN(6) {
	case 0:
		c.do(&Op{Code: proto.OpSetData, Path: path, Tag: c.tag(), Version: -1})
	case 1:
		c.send(&Op{Code: proto.OpSync, Path: path})
		c.do(&Op{Code: proto.OpGetData, Path: path})
	case 2:
		c.do(&Op{Code: proto.OpExists, Path: path, Watch: true, Unsynced: true})
	case 3:
		c.do(&Op{Code: proto.OpGetChildren, Path: "/eph", Watch: c.rng.IntN(2) == 0, Unsynced: true})
	default:
		c.do(&Op{Code: proto.OpGetData, Path: path, Unsynced: true})
	}
	switch {
	case c.conn.dead():
	case c.conn.log.ReadOnly && c.rng.IntN(8) == 0: // look for a member with a majority
		c.leave(c.rng.IntN(2) == 0)
	case c.rng.IntN(40) == 0 && !c.conn.log.ReadOnly:
		c.forget() // so that it connects without a session
	default:
		c.move()
	}
	c.pause(400 * time.Millisecond)
}

// lock takes a lock by ZooKeeper's recipe, holds it and releases it.
func (c *client) lock() {
	dir := fmt.Sprintf("/locks/%d", c.rng.IntN(locks))
	id := c.tag()
	session := c.session.SessionID
	mine := ""
	var czxid int64
	// again connects if needed, and reports whether the session is still the same.
	again := func() bool { return c.connect() == nil && c.session.SessionID == session }
	o := c.do(&Op{Code: proto.OpCreate, Path: dir + "/" + id + "-lock-", Tag: id, Flags: proto.FlagEphemeralSeq})
	if o.OK() {
		mine = o.GotPath
	}
	begun := time.Now()
	var span *Span
	for span == nil {
		if !again() {
			return
		}
		o := c.do(&Op{Code: proto.OpGetChildren, Path: dir, Unsynced: true})
		if !o.OK() {
			continue
		}
		names := o.GotChildren
		slices.SortFunc(names, func(a, b string) int { return strings.Compare(sequenceOf(a), sequenceOf(b)) })
		at := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, id+"-") })
		switch {
		case at < 0 && mine == "":
			// The create was lost, or is still on its way. It must not be done after
			// this session's next write.
			return
		case at < 0:
			// The session has ended, and the client will learn that when it reconnects, or
			// the ephemeral was lost.
			if s := c.do(&Op{Code: proto.OpSync, Path: dir}); s.OK() {
				if e := c.do(&Op{Code: proto.OpExists, Path: mine, Unsynced: true}); e.Known() && e.Err == proto.NoNode {
					c.s.h.violate("ephemerals", "client %d: %s was deleted, but session %x lives", c.id, mine, session)
					return
				}
			}
			continue
		}
		mine = dir + "/" + names[at]
		if at == 0 {
			e := c.do(&Op{Code: proto.OpExists, Path: mine, Unsynced: true})
			if !e.OK() {
				continue
			}
			czxid = e.GotCzxid
			span = &Span{Client: c.id, Session: session, Timeout: c.timeout, Lock: dir, Path: mine, Czxid: czxid, Zxid: o.Zxid, At: o.RetAt, CallAt: o.CallAt}
			c.s.h.mu.Lock()
			c.s.h.Spans = append(c.s.h.Spans, span)
			c.s.h.mu.Unlock()
			break
		}
		before := dir + "/" + names[at-1]
		e := c.do(&Op{Code: proto.OpExists, Path: before, Watch: true, Unsynced: true})
		if e.OK() {
			c.awaitEvent(30 * time.Second)
		}
		if time.Since(begun) > 5*time.Minute || c.s.over() {
			return
		}
	}
	for range c.rng.IntN(6) {
		if !again() {
			return
		}
		c.do(&Op{Code: proto.OpSetData, Path: register(0), Tag: c.tag(), Version: -1})
		c.move()
		c.pause(400 * time.Millisecond)
	}
	c.s.h.mu.Lock()
	span.Until = c.s.h.now()
	c.s.h.mu.Unlock()
	for again() {
		if o := c.do(&Op{Code: proto.OpDelete, Path: mine, Version: -1}); o.Known() {
			break
		}
	}
	c.pause(200 * time.Millisecond)
}

// sequenceOf returns the number at the end of a sequential znode's name.
func sequenceOf(name string) string { return name[max(0, len(name)-10):] }

// tolerant is a connection whose writes do not fail: only reads report that it has
// ended. If a write fails, go-zookeeper answers the request twice, and blocks forever
// if nobody receives the second answer, as when Close has given up.
type tolerant struct{ net.Conn }

func (c tolerant) Write(p []byte) (int, error) {
	if _, err := c.Conn.Write(p); err != nil {
		c.Close()
	}
	return len(p), nil
}

// stockLock makes a stock client take a lock again and again.
func (s *sim) stockLock() {
	c := s.newClient(0)
	dial := func(_, address string, timeout time.Duration) (net.Conn, error) {
		nc, err := c.dial("host"+strings.TrimPrefix(address, "127.0.0."), timeout)
		return tolerant{nc}, err
	}
	var addrs []string
	for _, m := range s.members {
		addrs = append(addrs, fmt.Sprintf("127.0.0.%d:2181", m.id)) // otherwise it would ask a resolver
	}
	s.wg.Go(func() {
		for !s.over() {
			conn, events, err := zk.Connect(addrs, 6*time.Second, zk.WithDialer(dial), zk.WithLogger(stock.Quiet{}),
				zk.WithMaxBufferSize(64<<10), zk.WithMaxConnBufferSize(64<<10)) // by default each connection takes 3 MB
			if err != nil {
				s.h.violate("stock", "%v", err)
				return
			}
			s.wg.Go(func() {
				for range events { // until Close
				}
			})
			s.stockSession(c, conn)
			conn.Close()
		}
	})
}

// stockSession takes and releases a lock a few times in one session of a stock client.
func (s *sim) stockSession(c *client, conn *zk.Conn) {
	for range 10 {
		l := zk.NewLock(conn, "/stock", zk.WorldACL(zk.PermAll))
		locked := make(chan error, 1)
		s.wg.Go(func() { locked <- l.LockWithData([]byte(c.tag())) })
		select {
		case err := <-locked:
			if err != nil {
				s.sleep(100 * time.Millisecond)
				return
			}
		case <-time.After(2 * time.Minute):
			return // the caller's Close ends the attempt
		case <-s.done:
			return
		}
		c.pause(500 * time.Millisecond)
		s.sleep(1)
		if l.Unlock() != nil || s.over() {
			return
		}
	}
}
