package fsm

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// effect is what must be true of a command's effects whatever the tree contains.
type effect struct {
	zxids   int64 // number of zxids that the command uses
	drop    bool  // the connection must be closed
	nothing bool  // the command changes nothing
	write   bool  // the command is a client's write that is not refused because of its session
}

// entry is one entry of a history.
type entry struct {
	index, term uint64
	bytes       []byte
	effects     []effect // of its commands
	text        []string // describes each command
}

// client is a session whose state the generator keeps track of.
type client struct {
	id       int64
	password session.Password
	owner    session.Conn
	alive    bool
	ids      []byte
}

// history generates random entries. It keeps track of sessions, to predict the effects of
// commands, but not of the tree.
type history struct {
	*rand.Rand
	clients []*client
	index   uint64
	term    uint64
	time    int64
	conns   uint64
	batch   uint64
}

func newHistory(seed uint64) *history {
	return &history{Rand: rand.New(rand.NewPCG(seed, 1)), term: 1, time: 1_700_000_000_000}
}

func pick[T any](h *history, from ...T) T { return from[h.IntN(len(from))] }

var someIDs = []proto.ID{
	{Scheme: proto.SchemeIP, ID: "10.0.0.1"},
	{Scheme: proto.SchemeDigest, ID: "u:Jq7wMyA/w2Vd5WIDAKdu4OIIFEQ="},
	{Scheme: proto.SchemeDigest, ID: "bob:ikIaKsbtGweaHnb/jKn7OHqbunM="},
	{Scheme: proto.SchemeSuper},
	{Scheme: proto.SchemeX509, ID: "CN=ann"},
	{Scheme: proto.SchemeSASL, ID: "super"},
}

func (h *history) identities() []byte {
	ids := []proto.ID{someIDs[0]}
	for _, id := range someIDs[1:] {
		if h.IntN(5) == 0 {
			ids = append(ids, id)
		}
	}
	return AppendIDs(nil, ids)
}

// next generates the next entry, with up to eight commands.
func (h *history) next() entry {
	h.index += 1 + uint64(h.IntN(3)) // Raft's own entries leave gaps
	if h.IntN(40) == 0 {
		h.term += 1 + uint64(h.IntN(2))
	}
	h.time += int64(h.IntN(50))
	h.batch++
	origin := 1 + uint64(h.IntN(3))
	e := entry{index: h.index, term: h.term}
	b := BeginEntry(nil)
	n := 1 + h.IntN(8)
	for range n {
		c, f, text := h.command(origin)
		b = AppendCommand(b, c)
		e.effects = append(e.effects, f)
		e.text = append(e.text, text)
	}
	settings := Settings(0)
	if h.IntN(4) == 0 {
		settings = NoTTL
	}
	if h.IntN(2) == 0 {
		settings |= X509
	}
	if h.IntN(2) == 0 {
		settings |= SASL
	}
	if h.IntN(3) > 0 {
		settings |= EnforceQuota
	}
	e.bytes = EndEntry(b, &Envelope{Origin: origin, Batch: h.batch, Time: h.time, Settings: settings, Count: n})
	return e
}

// command generates a command for an entry of the given origin.
func (h *history) command(origin uint64) (c *Command, f effect, text string) {
	roll := h.IntN(100)
	if len(h.clients) == 0 || roll < 5 {
		cl := &client{id: int64(len(h.clients) + 1), alive: true, ids: h.identities()}
		h.conns++
		cl.owner = session.Conn{Server: origin, Number: h.conns}
		for i := range cl.password {
			cl.password[i] = byte(h.Uint32())
		}
		h.clients = append(h.clients, cl)
		return OpenSession(h.conns, cl.id, 1000+h.Int32N(9000), cl.password), effect{zxids: 1}, fmt.Sprint("open ", cl.id)
	}
	cl := pick(h, h.clients...)
	for range 100 { // prefer sessions that exist and whose connection is on this server
		if cl.alive && cl.owner.Server == origin || h.IntN(100) == 0 {
			break
		}
		cl = pick(h, h.clients...)
	}
	switch {
	case roll < 9:
		h.conns++
		password, wrong := slices.Clone(cl.password[:]), h.IntN(4) == 0
		if wrong {
			password = password[:h.IntN(len(password))]
		}
		c = ResumeSession(h.conns, cl.id, 1000+h.Int32N(9000), password)
		if !cl.alive || wrong {
			return c, effect{nothing: true}, fmt.Sprint("refused resume of ", cl.id)
		}
		cl.owner = session.Conn{Server: origin, Number: h.conns}
		cl.ids = h.identities()
		return c, effect{}, fmt.Sprint("resume ", cl.id)
	case roll < 12:
		owner := cl.owner
		if h.IntN(3) == 0 {
			owner.Number++
		}
		c = ExpireSession(&session.Session{ID: cl.id, Owner: owner}, 0)
		if !cl.alive || owner != cl.owner {
			return c, effect{nothing: true}, fmt.Sprint("refused expiry of ", cl.id)
		}
		cl.alive = false
		return c, effect{zxids: 1}, fmt.Sprint("expiry of ", cl.id)
	case roll < 16:
		path := h.path()
		return Reap(path), effect{zxids: 1}, "reap " + path
	}
	c = &Command{Session: cl.id, Conn: cl.owner.Number, Cxid: h.Int32(), IDs: cl.ids}
	moved := cl.owner.Server != origin
	if h.IntN(20) == 0 {
		c.Conn++
		moved = true
	}
	switch {
	case roll < 18:
		c.Op = proto.OpCloseSession
		text = "close"
		f = effect{zxids: 1} // even if the session has moved
	case roll < 20:
		c.Op, c.Body = proto.OpSync, jute.AppendString(nil, h.path())
		text = "sync"
		f = effect{nothing: true}
	default:
		c.Op, c.Body, text = h.write()
		f = effect{zxids: 1, drop: moved, nothing: moved, write: !moved}
		d := jute.NewDecoder(c.Body)
		if proto.OpByCode(c.Op).Request().Decode(&d); d.Err() != nil && c.Op != proto.OpMulti && !moved {
			f.zxids = 0
		}
	}
	if !cl.alive {
		f = effect{nothing: true, drop: true}
	} else if c.Op == proto.OpCloseSession {
		cl.alive = false
	}
	return c, f, fmt.Sprintf("%s by %d", text, cl.id)
}

// path returns one of only a few paths, so that operations affect each other.
func (h *history) path() string {
	p := "/" + pick(h, "a", "b", "c")
	for h.IntN(2) == 0 {
		p += "/" + pick(h, "x", "y", "z-0000000000", "z-0000000001")
	}
	if h.IntN(6) == 0 {
		p = "/zookeeper/quota" + pick(h, "/a", "/b", "/a/x", "", "/zookeeper") + pick(h, "", "/zookeeper_limits", "/zookeeper_stats")
	}
	if h.IntN(25) == 0 {
		p = pick(h, "", "/", "/zookeeper", "/zookeeper/config", "/a//b", "/a/", "a", "/a/.", "/\x00")
	}
	return p
}

func (h *history) acl() []proto.ACL {
	switch h.IntN(8) {
	case 0:
		return []proto.ACL{{Perms: h.Int32N(32), ID: pick(h, someIDs...)}}
	case 1:
		return []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeAuth}}, {Perms: proto.PermRead, ID: proto.OpenACL[0].ID}}
	case 2:
		return []proto.ACL{}
	}
	return proto.OpenACL
}

func (h *history) version() int32 { return pick[int32](h, -1, -1, -1, 0, 1, 2, -2) }

func (h *history) data() []byte {
	switch h.IntN(10) {
	case 0, 1:
		return nil
	case 2, 3:
		return []byte(pick(h, "count=1,bytes=5", "countHardLimit=3", "count=x", "byteHardLimit=40=;zz=1"))
	}
	return make([]byte, h.IntN(20))
}

func (h *history) create() proto.CreateRequest {
	r := proto.CreateRequest{Path: h.path(), Data: h.data(), ACL: h.acl(), Flags: int32(h.IntN(4))}
	if r.Flags&proto.FlagSequential != 0 {
		r.Path += "/z-"
	}
	if h.IntN(20) == 0 {
		r.Flags = h.Int32N(9) - 1
	}
	return r
}

// write generates a write that a client could send. Some are truncated.
func (h *history) write() (op proto.OpCode, body []byte, text string) {
	op, r := h.simple()
	if h.IntN(5) == 0 {
		var m proto.MultiRequest
		for range h.IntN(6) {
			op, r := h.simple()
			if op == proto.OpSetACL {
				op, r = proto.OpCheck, &proto.PathVersion{Path: h.path(), Version: h.version()}
			}
			m.Ops = append(m.Ops, proto.MultiOp{Op: op, Request: r})
		}
		op, r = proto.OpMulti, &m
	}
	body = r.Append(nil)
	if h.IntN(40) == 0 {
		body = body[:h.IntN(len(body))]
	}
	return op, body, fmt.Sprintf("%s %+v", proto.OpByCode(op).Name, r)
}

func (h *history) simple() (proto.OpCode, proto.Record) {
	switch h.IntN(12) {
	case 0, 1, 2, 3:
		r := h.create()
		return pick(h, proto.OpCreate, proto.OpCreate2), &r
	case 4:
		r := h.create()
		return proto.OpCreateContainer, &r
	case 5:
		r := proto.CreateTTLRequest{CreateRequest: h.create(), TTL: h.Int64N(200)}
		r.Flags = pick(h, proto.FlagTTL, proto.FlagTTLSequential, r.Flags)
		return proto.OpCreateTTL, &r
	case 6, 7, 8:
		return proto.OpDelete, &proto.PathVersion{Path: h.path(), Version: h.version()}
	case 9, 10:
		return proto.OpSetData, &proto.SetDataRequest{Path: h.path(), Data: h.data(), Version: h.version()}
	}
	return proto.OpSetACL, &proto.SetACLRequest{Path: h.path(), ACL: h.acl(), Version: h.version()}
}
