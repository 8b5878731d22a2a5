package differ

import (
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/core/persona"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

func request(xid int32, op proto.OpCode) *frame { return (&frame{Op: op}).int(xid).int(int32(op)) }

// connect returns a handshake for a new session. If readOnly is nil, the handshake has
// no readOnly byte.
func connect(lastZxid int64, timeout int32, readOnly *bool) *frame {
	f := (&frame{}).int(0).long(lastZxid).int(timeout).long(0).buffer(make([]byte, proto.PasswordLen))
	if readOnly != nil {
		f.bool(*readOnly)
	}
	return f
}

func auth(xid int32, scheme string, data []byte) *frame {
	return request(xid, proto.OpAuth).int(0).str(scheme).buffer(data)
}

func create(op proto.OpCode, xid int32, p part, data []byte, acl part, flags int32, ttl *int64) *frame {
	f := request(xid, op).part(p).buffer(data).bytes(acl.Bytes).int(flags)
	if ttl != nil {
		f.long(*ttl)
	}
	return f
}

func aclList(entries ...proto.ACL) part { return part{Bytes: proto.AppendACL(nil, entries)} }

func entry(perms int32, scheme, id string) proto.ACL {
	return proto.ACL{Perms: perms, ID: proto.ID{Scheme: scheme, ID: id}}
}

func digestID(user string) string {
	sum := sha1.Sum([]byte(user))
	name, _, _ := strings.Cut(user, ":")
	return name + ":" + base64.StdEncoding.EncodeToString(sum[:])
}

// cleaner gives the run's control connection all permissions, so that it can delete everything.
var cleaner = entry(proto.PermAll, proto.SchemeDigest, digestID(controlUser))

func openACL() part { return aclList(proto.OpenACL...) }

// generator makes the steps of one round. It does not see replies; it knows the state of
// the endpoints only as far as its own steps determine it.
type generator struct {
	*rand.Rand
	avoid    map[string]bool // masks in use
	avoided  map[string]int
	without  []string
	super    string
	persona  *persona.Persona // of the older of the two versions
	steps    []step
	frames   int
	conns    int // number of connections opened so far
	sessions []*genSession
	numbered int // number of sessions opened so far
}

type genSession struct {
	n     int
	conn  int // 0 if the session has none
	since int // the step at which it lost its connection
	xid   int32
}

// generate returns the steps of one round, with about that many frames.
func generate(seed uint64, frames int, p *persona.Persona, masks map[string]bool, avoided map[string]int, without []string, super string) []step {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0x6c6f636b)), persona: p, avoid: masks, avoided: avoided, without: without, super: super}
	for range 3 {
		g.openSession()
	}
	for g.frames < frames {
		g.step()
	}
	return g.steps
}

// may reports whether requests that a mask prevents may be made, and counts if not.
func (g *generator) may(mask string) bool {
	if g.avoid[mask] {
		g.avoided[mask]++
		return false
	}
	return true
}

func (g *generator) chance(percent float64) bool { return g.Float64()*100 < percent }

func pick[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }

func (g *generator) add(s step) {
	g.steps = append(g.steps, s)
	g.frames += len(s.Frames)
}

func (g *generator) step() {
	for _, s := range g.sessions { // reconnect before a session could expire
		if s.conn == 0 && len(g.steps)-s.since > 100 {
			g.resume(s)
			return
		}
	}
	if g.chance(2.5) {
		g.life()
		return
	}
	var alive []*genSession
	for _, s := range g.sessions {
		if s.conn != 0 {
			alive = append(alive, s)
		}
	}
	if len(alive) == 0 {
		g.openSession()
		return
	}
	s := pick(g, alive...)
	switch {
	case g.chance(1):
		g.ending(s)
	case g.chance(2):
		g.authStep(s)
	case g.chance(35):
		st := step{Kind: send, Conn: s.conn}
		for range 2 + g.IntN(14) {
			f := g.request(s)
			if g.chance(1) && g.may("overtaking") {
				f = auth(g.xid(s), "digest", []byte(g.user()))
			}
			st.Frames = append(st.Frames, *f)
			if g.last(&st) {
				break
			}
		}
		g.add(st)
	default:
		g.add(step{Kind: send, Conn: s.conn, Frames: []frame{*g.request(s)}})
	}
}

// last reports whether no request may follow right after the last request of a step.
func (g *generator) last(st *step) bool {
	f := &st.Frames[len(st.Frames)-1]
	return (f.Op == proto.OpSetACL || f.Odd) && !g.may("pipelined")
}

func (g *generator) life() {
	if len(g.sessions) < 2 || len(g.sessions) < 6 && g.chance(25) {
		g.openSession()
		return
	}
	s := pick(g, g.sessions...)
	switch {
	case s.conn == 0:
		g.resume(s)
	case g.chance(30):
		g.add(step{Kind: cut, Conn: s.conn})
		s.conn, s.since = 0, len(g.steps)
	case g.chance(40):
		g.resume(s) // while the old connection is open
	case g.chance(50):
		g.closeSession(s)
	case g.chance(30):
		g.wrong(s)
	default:
		g.oddHandshake()
	}
}

func (g *generator) newConn() int {
	g.conns++
	return g.conns
}

func (g *generator) timeout() int32 {
	return pick[int32](g, 30000, 30000, 30000, 35000, 40000, 100000, 1<<31-1)
}

func (g *generator) openSession() {
	g.numbered++
	s := &genSession{n: g.numbered, conn: g.newConn()}
	f := connect(0, g.timeout(), g.readOnly())
	if g.chance(10) { // any password and any protocol version are allowed
		f = (&frame{}).int(pick[int32](g, 0, 1, -7)).long(0).int(g.timeout()).long(0).buffer(g.password(nil, []byte{}, []byte("x"), make([]byte, 100)))
	}
	g.behind(s, step{Kind: open, Conn: s.conn, Session: s.n, Frames: []frame{*f}})
	g.sessions = append(g.sessions, s)
}

// password returns one of the passwords, the first of which is null.
func (g *generator) password(all ...[]byte) []byte {
	p := pick(g, all...)
	if p == nil && !g.may("null-password") {
		return all[1]
	}
	return p
}

func (g *generator) readOnly() *bool {
	if g.chance(30) {
		return nil
	}
	v := g.chance(10)
	return &v
}

// behind adds a step with a handshake, sometimes with requests right after it.
func (g *generator) behind(s *genSession, st step) {
	if g.chance(20) {
		for range 1 + g.IntN(3) {
			st.Frames = append(st.Frames, *g.request(s))
			if g.last(&st) {
				break
			}
		}
	}
	g.add(st)
}

func (g *generator) handshake(s *genSession, delta int, wrong bool) *frame {
	f := (&frame{}).int(0)
	if g.chance(50) || delta > 0 {
		f.part(part{Kind: zxid, N: delta})
	} else {
		f.long(0)
	}
	f.int(g.timeout()).part(part{Kind: sessionID, N: s.n}).part(part{Kind: password, N: s.n, Off: wrong})
	if ro := g.readOnly(); ro != nil {
		f.bool(*ro)
	}
	return f
}

func (g *generator) resume(s *genSession) {
	s.conn = g.newConn()
	g.behind(s, step{Kind: open, Conn: s.conn, Session: s.n, Frames: []frame{*g.handshake(s, -g.IntN(3), false)}})
}

// closeSession closes a session, sometimes with requests before it in the same step. It
// adds none after it, because whether they are answered is up to chance.
func (g *generator) closeSession(s *genSession) {
	st := step{Kind: send, Conn: s.conn, Closes: true}
	for g.chance(30) && (len(st.Frames) == 0 || !g.last(&st)) {
		st.Frames = append(st.Frames, *g.request(s))
	}
	if n := len(st.Frames); n > 0 && g.last(&st) {
		st.Frames = st.Frames[:n-1]
	}
	st.Frames = append(st.Frames, *g.odd(request(g.xid(s), proto.OpCloseSession), 0))
	g.add(st)
	g.sessions = slices.DeleteFunc(g.sessions, func(x *genSession) bool { return x == s })
	if g.chance(50) { // it cannot be resumed
		g.add(step{Kind: open, Conn: g.newConn(), Session: s.n, Frames: []frame{*g.handshake(s, 0, false)}})
	}
}

func (g *generator) wrong(s *genSession) {
	st := step{Kind: open, Conn: g.newConn(), Session: s.n, Frames: []frame{*g.handshake(s, 0, true)}}
	if !g.may("wrong-password") {
		st.Alone = true
		s.conn, s.since = 0, len(g.steps)
	}
	g.add(st)
	if s.conn == 0 {
		g.resume(s)
	}
}

// oddHandshake opens a connection whose handshake fails, or a session that is closed at once.
func (g *generator) oddHandshake() {
	c := g.newConn()
	g.numbered++
	switch g.IntN(5) {
	case 0: // ahead of the server
		f := (&frame{}).int(0).part(part{Kind: zxid, N: 1 << 20}).int(30000).long(0).buffer(make([]byte, 16)).bool(false)
		g.add(step{Kind: open, Conn: c, Session: g.numbered, Frames: []frame{*f}, Ends: true})
	case 1: // cut short
		f := connect(0, 30000, nil)
		f.Cut = 1 + g.IntN(40)
		g.add(step{Kind: open, Conn: c, Session: g.numbered, Frames: []frame{*f}, Ends: true})
	case 2: // an impossible length
		f := (&frame{Raw: true}).int(pick[int32](g, -1, -2, 1<<20, 1<<30)).bytes(make([]byte, 40))
		g.add(step{Kind: open, Conn: c, Session: g.numbered, Frames: []frame{*f}, Ends: true})
	case 3: // a session that does not exist
		f := (&frame{}).int(0).long(0).int(30000).long(pick[int64](g, 1, -1, 1<<60)).buffer(g.password(nil, make([]byte, 16), []byte("short"))).bool(false)
		g.add(step{Kind: open, Conn: c, Session: g.numbered, Frames: []frame{*f}})
	default:
		f := connect(0, pick[int32](g, 0, -1, 1, 3999, 4001, -1<<31), g.readOnly()).bytes(make([]byte, g.IntN(2)*3))
		g.add(step{Kind: open, Conn: c, Session: g.numbered, Frames: []frame{*f}})
		g.add(step{Kind: send, Conn: c, Frames: []frame{*request(1, proto.OpCloseSession)}, Closes: true})
	}
}

func (g *generator) ending(s *genSession) {
	st := step{Kind: send, Conn: s.conn}
	switch g.IntN(5) {
	case 0: // a length above the limit, or a negative one
		st.Ends = true
		st.Frames = []frame{*(&frame{Raw: true}).int(pick[int32](g, -1, -100, -1<<31, 0x100000, 1<<31-1, 0x73727672)).bytes(make([]byte, 12))}
	case 1: // shorter than a header
		st.Ends = true
		st.Frames = []frame{*(&frame{}).bytes(make([]byte, g.IntN(8)))}
	case 2: // of an unknown type
		op := pick(g, append(wire.UnknownOps, proto.OpError)...)
		st.Frames = []frame{*request(g.xid(s), op).bytes(make([]byte, g.IntN(20)))}
		if f := g.any(s); !g.persona.KnowsOp(f.Op) {
			st.Frames = []frame{*f}
		}
	case 3:
		switch {
		case g.chance(40) && g.may("create-session"):
			st.Frames = []frame{*request(g.xid(s), proto.OpCreateSession).int(30000)}
		case g.chance(40) && g.may("check-alone"):
			st.Frames = []frame{*request(g.xid(s), proto.OpCheck).part(g.path()).int(-1)}
		case g.may("delete-container"):
			st.Frames = []frame{*request(g.xid(s), proto.OpDeleteContainer).part(g.path())}
		default:
			return
		}
	default: // an identity that cannot be
		f := auth(g.xid(s), pick(g, "world", "auth", "super", "x509", "sasl", "nope", "", "Digest"), []byte("u:p"))
		switch g.IntN(6) {
		case 0:
			f = request(g.xid(s), proto.OpAuth).int(0).int(-1).buffer([]byte("u:p"))
		case 1:
			f.Cut, st.Ends = 1+g.IntN(10), true
		}
		st.Frames = []frame{*f}
	}
	g.add(st)
	s.conn, s.since = 0, len(g.steps)
}

var users = []string{"u:p", "u:p", "bob:pw", "bob:pw", "eve:x:y", "nocolon", "", "\xff\xfe:p", "ü:\x00", "\U0001f600:p"}

// user returns a user. It has a character above U+FFFF only if the mask for that is off,
// because ZooKeeper cannot store one in a multi.
func (g *generator) user() string {
	user := pick(g, users...)
	if strings.ContainsRune(user, '\U0001f600') && !g.may("astral") {
		return users[0]
	}
	return user
}

func (g *generator) authStep(s *genSession) {
	user := g.user()
	if g.super != "" && g.chance(20) {
		user = g.super
	}
	f := auth(pick(g, -4, g.xid(s)), "digest", []byte(user))
	switch {
	case g.chance(10):
		f = auth(g.xid(s), "ip", pick(g, nil, []byte("1.2.3.4")))
	case g.chance(3): // null is refused
		g.add(step{Kind: send, Conn: s.conn, Frames: []frame{*auth(g.xid(s), "digest", nil)}})
		s.conn, s.since = 0, len(g.steps)
		return
	case g.chance(15):
		f = request(g.xid(s), proto.OpSASL).buffer(pick(g, []byte{}, []byte("token")))
	}
	g.add(step{Kind: send, Conn: s.conn, Frames: []frame{*f}})
}

// xid returns mostly the next xid. It never returns -1, the xid of events.
func (g *generator) xid(s *genSession) int32 {
	if g.chance(3) {
		return pick[int32](g, 0, -2, -4, -8, -100, 7, 1<<31-1)
	}
	s.xid++
	return s.xid
}

var names = []string{"a", "b", "c", "p", "pq"}

// path returns a path, mostly a valid one. Names that start with p are for znodes that
// not everyone may read.
func (g *generator) path() part {
	switch x := g.Float64() * 100; {
	case x < 2:
		return part{Kind: path, Path: "~"}
	case x < 35:
		return part{Kind: path, Path: "~/" + pick(g, names...)}
	case x < 70:
		return part{Kind: path, Path: "~/" + pick(g, names...) + "/" + pick(g, names...)}
	case x < 82:
		return part{Kind: path, Path: "~/" + pick(g, names[:2]...) + "/" + pick(g, names...) + "/" + pick(g, names...)}
	case x < 95:
		return part{Kind: newest, N: g.IntN(5)}
	case x < 96:
		return part{Kind: path, Path: "~/" + pick(g, "é", "日本", "a b", "...", ".a", "a\u00a0b", "\u200b", "\ue000", "\uffef")}
	}
	return g.badPath()
}

func (g *generator) badPath() part {
	if g.chance(10) {
		return part{Bytes: jute.AppendInt(nil, pick[int32](g, -1, -1, -2, -1<<31, 1<<30))} // null, or an impossible length
	}
	p := pick(g, "", "a", "~/", "~//a", "~/a/", "~/a//b", "~/.", "~/..", "~/./a", "~/a/../b", "~/a\x00b", "~/\x01", "~/a\x1fb", "~/\x7f",
		"~/\u0085", "~/\ud7ff", "~/\uf8ff", "~/\ufff0", "~/\uffff", "~/\U0001f600", "~/\xff\xfe", "~/a\xc3", "~/\xed\xa0\x80", "/zookeeper//quota", "//", "~/"+strings.Repeat("x", 300))
	if strings.ContainsAny(p, "\x1f\x7f\u009f\uf8ff\ufff0\uffff") && !g.may("odd-names") {
		p = "~/."
	}
	return part{Kind: path, Path: p}
}

// mode returns the only mode of watches to use on a path while the mask watch-modes is on.
func (g *generator) mode(p part) int {
	if p.Kind != path {
		return 0
	}
	h := fnv.New32a()
	h.Write([]byte(p.Path))
	return int(h.Sum32()>>7) % 3
}

func (g *generator) watch(p part, op proto.OpCode) bool {
	if !g.chance(40) {
		return false
	}
	if g.mode(p) != 0 && !g.may("watch-modes") {
		return false
	}
	return op != proto.OpExists || !secret(p) || g.may("exists-watch")
}

// secret reports whether a path is for znodes that not everyone may read.
func secret(p part) bool {
	return p.Kind != path || strings.Contains(p.Path, "/p")
}

func (g *generator) data() []byte {
	switch x := g.Float64() * 100; {
	case x < 8:
		return nil
	case x < 16:
		return []byte{}
	case x < 90:
		return []byte(fmt.Sprintf("data %d", g.IntN(1000)))
	case x < 98:
		return make([]byte, g.IntN(300))
	case x < 99.8:
		return make([]byte, g.IntN(20_000))
	}
	return make([]byte, 100_000+g.IntN(900_000))
}

func (g *generator) version() int32 {
	switch x := g.Float64() * 100; {
	case x < 70:
		return -1
	case x < 90:
		return int32(g.IntN(3))
	}
	return pick[int32](g, -2, 5, 100, 1<<31-1, -1<<31)
}

func (g *generator) perms() int32 {
	return pick[int32](g, proto.PermAll, proto.PermAll, proto.PermRead, proto.PermRead|proto.PermCreate, proto.PermAll&^proto.PermRead, proto.PermAll&^proto.PermWrite,
		proto.PermAll&^proto.PermCreate, proto.PermAll&^proto.PermDelete, proto.PermAdmin, 0, -1, 32, 63)
}

// acl returns an ACL that may be invalid. It always gives the control connection all
// permissions.
func (g *generator) acl(p part) part {
	if g.chance(65) {
		return openACL()
	}
	entries := []proto.ACL{}
	if !secret(p) || !g.may("event-read") {
		entries = append(entries, entry(proto.PermRead, proto.SchemeWorld, proto.Anyone))
	}
	for range g.IntN(3) + 1 {
		e := entry(g.perms(), "", "")
		switch g.IntN(9) {
		case 0, 1:
			e.ID = proto.ID{Scheme: proto.SchemeWorld, ID: proto.Anyone}
		case 2, 3:
			e.ID = proto.ID{Scheme: proto.SchemeDigest, ID: digestID(pick(g, "u:p", "bob:pw", "eve:x:y", "nobody:here"))}
		case 4, 5:
			e.ID = proto.ID{Scheme: proto.SchemeAuth, ID: pick(g, "", "u:p", "x")}
		case 6:
			e.ID = proto.ID{Scheme: proto.SchemeIP, ID: pick(g, "127.0.0.1", "127.0.0.0/8", "10.0.0.1", "0.0.0.0/0", "127.0.0.1/32", "127.0.0.1/31")}
		case 7:
			e.ID = proto.ID{Scheme: pick(g, "world", "digest", "ip", "sasl", "x509", "super", "nope", ""), ID: pick(g, "nobody", "a:b:c", ":h", "u:", "a:", "::", "", "localhost", "1.2.3.4/33", "1.2.3", "1.2.3.4/x", "1.2.3.4/", "256.1.1.1", "1.2.3.4/-1", "1.2.3.4/+8", "1.2.3.4/08", "01.2.3.4", " 1.2.3.4", "u:\U0001f600")}
		default:
			e.ID = proto.ID{Scheme: proto.SchemeIP, ID: pick(g, "::1", "::1/128", "fe80::/10", "::ffff:127.0.0.1", "::1/129", "::g", "1::2::3", "fe80::1%lo")}
		}
		if e.Scheme == proto.SchemeIP && strings.Contains(e.ID.ID, ":") && !g.may("ip6-acl") {
			continue
		}
		entries = append(entries, e)
		if g.chance(10) {
			entries = append(entries, e)
		}
	}
	entries = append(entries, cleaner)
	if g.chance(4) {
		return part{Bytes: jute.AppendInt(nil, pick[int32](g, -1, 0, -2, -1<<31, 1<<30, 3))}
	}
	list := aclList(entries...)
	if g.chance(4) && g.may("event-read") { // a null scheme, a null id
		b := jute.AppendInt(jute.AppendInt(nil, 2), 31)
		if g.chance(50) && g.may("null-scheme") {
			b = jute.AppendString(jute.AppendInt(b, -1), "x")
		} else {
			b = jute.AppendInt(jute.AppendString(b, pick(g, "auth", "world", "digest", "ip")), -1)
		}
		list = part{Bytes: cleaner.Append(b)}
	}
	return list
}

// odd makes some requests too short, by at most cutMost bytes, or too long.
func (g *generator) odd(f *frame, cutMost int) *frame {
	switch {
	case cutMost > 0 && g.chance(1.5):
		f.Cut = 1 + g.IntN(cutMost)
	case g.chance(1.5):
		f.bytes(make([]byte, 1+g.IntN(9)))
	}
	return f
}

// creation returns the opcode of a create and a function that appends its body.
func (g *generator) creation(inMulti bool) (op proto.OpCode, body func(f *frame) *frame) {
	p := g.path()
	flags := pick[int32](g, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4)
	if flags == 2 || flags == 3 {
		p = part{Kind: path, Path: pick(g, "~/", "~/s-", "~/a/s-", "~/a/", "~/b/lock-", "~/b/c/x", "~/p/s-", "~//", "s")}
	}
	op = pick(g, proto.OpCreate, proto.OpCreate, proto.OpCreate, proto.OpCreate2, proto.OpCreate2, proto.OpCreateContainer, proto.OpCreateTTL)
	if g.chance(3) {
		flags = pick[int32](g, 5, 6, 7, -1, 100, 1<<31-1)
	}
	if p.Path == "~" { // a sequential znode would be outside the run's root
		p.Path = "~/a"
	}
	data, acl := g.data(), g.acl(p)
	if inMulti {
		null := bytes.Contains(acl.Bytes, []byte{255, 255, 255, 255})
		p = g.inMulti(p)
		if null && !g.may("null-in-multi") {
			null, acl = false, openACL()
		}
		if (flags < 0 || flags > 3 || null || op == proto.OpCreateContainer) && !g.may("multi-create") {
			flags, acl = flags&3, openACL()
			if op == proto.OpCreateContainer {
				op = proto.OpCreate2
			}
		}
	}
	var ttl *int64
	if op == proto.OpCreateTTL {
		flags = pick[int32](g, 5, 5, 6)
		v := int64(3_600_000)
		if g.chance(20) {
			v = pick[int64](g, 0, -1, -2, proto.MaxTTL, proto.MaxTTL+1, 1<<62)
		}
		if g.chance(10) { // not with a TTL of -1: ZooKeeper would crash and could not start again
			flags, v = pick[int32](g, 0, 1, 2, 3, 4, 7), pick[int64](g, 0, 1, 1000, 1<<62)
		}
		ttl = &v
		if flags == 6 && g.chance(80) {
			p = part{Kind: path, Path: pick(g, "~/t-", "~/b/t-")}
		}
	}
	return op, func(f *frame) *frame {
		f.Odd = f.Odd || op == proto.OpCreateContainer && (flags == 1 || flags == 3)
		f.part(p).buffer(data).bytes(acl.Bytes).int(flags)
		if ttl != nil {
			f.long(*ttl)
		}
		return f
	}
}

// request returns a request that has exactly one reply and does not end the connection, as one
// with an operation does that the older version does not know.
func (g *generator) request(s *genSession) *frame {
	for {
		if f := g.any(s); g.persona.KnowsOp(f.Op) {
			return f
		}
	}
}

func (g *generator) any(s *genSession) *frame {
	xid := g.xid(s)
	begin := func(op proto.OpCode) *frame { return request(xid, op) }
	switch x := g.IntN(1000); {
	case x < 230:
		op, body := g.creation(false)
		return g.odd(body(begin(op)), 20)
	case x < 330:
		return g.odd(begin(proto.OpDelete).part(g.deletable()).int(g.version()), 20)
	case x < 400:
		p := g.path()
		return g.odd(begin(proto.OpExists).part(p).bool(g.watch(p, proto.OpExists)), 20)
	case x < 480:
		p := g.path()
		return g.odd(begin(proto.OpGetData).part(p).bool(g.watch(p, proto.OpGetData)), 20)
	case x < 570:
		return g.odd(begin(proto.OpSetData).part(g.path()).buffer(g.data()).int(g.version()), 20)
	case x < 600:
		return g.odd(begin(proto.OpGetACL).part(g.path()), 20)
	case x < 640:
		p := g.path()
		return g.odd(begin(proto.OpSetACL).part(p).bytes(g.acl(p).Bytes).int(g.version()), 20)
	case x < 680:
		p := g.path()
		return g.odd(begin(proto.OpGetChildren).part(p).bool(g.watch(p, proto.OpGetChildren)), 20)
	case x < 720:
		p := g.path()
		return g.odd(begin(proto.OpGetChildren2).part(p).bool(g.watch(p, proto.OpGetChildren2)), 20)
	case x < 735:
		return g.odd(begin(proto.OpGetAllChildrenNumber).part(g.path()), 20)
	case x < 755:
		p := g.path()
		if g.chance(50) {
			p = part{Bytes: jute.AppendString(nil, pick(g, "/", "", " ", "/d", "/zookeeper"))}
		}
		return g.odd(begin(proto.OpGetEphemerals).part(p), 20)
	case x < 770:
		return g.odd(begin(proto.OpSync).part(g.path()), 20)
	case x < 840:
		return g.odd(g.multi(begin(proto.OpMulti)), 30)
	case x < 865:
		return g.odd(g.multiRead(begin(proto.OpMultiRead)), 30)
	case x < 895:
		return g.odd(g.watches(begin), 20)
	case x < 925:
		p := g.path()
		mode := g.IntN(2)
		if g.mode(p) != mode+1 && !g.may("watch-modes") {
			if mode = g.mode(p) - 1; mode < 0 {
				mode = 2
			}
		}
		if p.Kind == literal && !g.may("null-watch") {
			p = part{Kind: path, Path: "~"}
		}
		m := int32(mode)
		if g.chance(5) {
			m = pick[int32](g, -1, 2, 100)
		}
		return g.odd(begin(proto.OpAddWatch).part(p).int(m), 20)
	case x < 955:
		return g.setWatches(begin)
	case x < 965:
		return g.odd(begin(proto.OpWhoAmI), 0)
	case x < 970:
		return g.odd(begin(proto.OpReconfig).str("").str("").str("").long(pick[int64](g, -1, 0)), 20)
	case x < 985 && !slices.Contains(g.without, "quotas") && g.may("quotas"):
		return g.quota(begin)
	case x < 990:
		return g.outside(begin)
	}
	return g.odd(begin(proto.OpPing), 0)
}

// deletable returns a path for a delete. Among system znodes it chooses only those that cannot be deleted.
func (g *generator) deletable() part {
	if g.chance(2) {
		all := []string{"/", "/zookeeper", "/zookeeper/quota"}
		if g.may("config-node") {
			all = append(all, "/zookeeper/config")
		}
		return part{Kind: path, Path: pick(g, all...)}
	}
	p := g.path()
	if p.Kind == path && p.Path == "~" {
		return part{Kind: path, Path: "~/a"}
	}
	return p
}

// inMulti returns p, or another path if a mask does not allow p in a multi.
func (g *generator) inMulti(p part) part {
	if p.Kind == literal && !(g.may("multi-create") && g.may("null-in-multi")) {
		return part{Kind: path, Path: "~/a"}
	}
	return p
}

func multiHeader(f *frame, op proto.OpCode) *frame { return f.int(int32(op)).bool(false).int(-1) }

func multiEnd(f *frame) *frame { return f.int(-1).bool(true).int(-1) }

func (g *generator) multi(f *frame) *frame {
	for range g.IntN(6) {
		// With a second large value the frame could exceed the limit, and that ends the
		// connection.
		if f.literals() > 20_000 {
			break
		}
		switch x := g.IntN(100); {
		case x < 40:
			op, body := g.creation(true)
			body(multiHeader(f, op))
		case x < 60:
			multiHeader(f, proto.OpDelete).part(g.inMulti(g.deletable())).int(g.version())
		case x < 80:
			multiHeader(f, proto.OpSetData).part(g.inMulti(g.path())).buffer(g.data()).int(g.version())
		case x < 98:
			multiHeader(f, proto.OpCheck).part(g.inMulti(g.path())).int(g.version())
		default: // an operation that is not allowed in a multi
			op := pick(g, proto.OpGetData, proto.OpMulti, proto.OpSetACL, proto.OpSync, proto.OpPing, 0, 1000, proto.OpCloseSession)
			multiHeader(f, op).part(g.path()).int(0)
		}
	}
	return multiEnd(f)
}

func (g *generator) multiRead(f *frame) *frame {
	for range g.IntN(5) {
		op := pick(g, proto.OpGetData, proto.OpGetChildren)
		if g.chance(4) {
			op = pick(g, proto.OpCreate, proto.OpExists, proto.OpCheck, proto.OpDelete)
		}
		multiHeader(f, op).part(g.path()).bool(g.chance(20))
	}
	return multiEnd(f)
}

func (g *generator) watches(begin func(proto.OpCode) *frame) *frame {
	op := pick(g, proto.OpCheckWatches, proto.OpRemoveWatches)
	p := g.path()
	t := pick[int32](g, 1, 2, 3)
	if g.mode(p) != 0 && !g.may("watch-modes") {
		op = proto.OpCheckWatches
	}
	if g.chance(30) && g.may("watcher-types") {
		t = pick[int32](g, 4, 5)
	}
	if g.chance(5) {
		t = pick[int32](g, 0, -1, 6, 100)
	}
	return begin(op).part(p).int(t)
}

func (g *generator) setWatches(begin func(proto.OpCode) *frame) *frame {
	op, lists := proto.OpSetWatches, 3
	if g.chance(50) {
		op, lists = proto.OpSetWatches2, 5
	}
	f := begin(op)
	if g.chance(70) {
		f.part(part{Kind: zxid, N: -g.IntN(30)})
	} else {
		f.long(pick[int64](g, 0, -1, 1<<62))
	}
	for i := range lists {
		if g.chance(3) {
			n := pick[int32](g, -1, -2, -1<<31, 1<<30)
			if n == -1 && !g.may("null-in-setwatches") {
				n = -2
			}
			f.int(n)
			continue
		}
		var paths []part
		for range g.IntN(3) {
			p := g.path()
			if p.Kind == literal && !g.may("null-in-setwatches") {
				continue
			}
			if g.mode(p) != max(0, i-2) && !g.may("watch-modes") {
				continue
			}
			paths = append(paths, p)
		}
		f.int(int32(len(paths)))
		for _, p := range paths {
			f.part(p)
		}
	}
	return g.odd(f, 20)
}

func (g *generator) quota(begin func(proto.OpCode) *frame) *frame {
	at := "^" + pick(g, "", "/a", "/a", "/a/b", "/b")
	p := part{Kind: path, Path: at + pick(g, "", "/zookeeper_limits", "/zookeeper_stats", "/zookeeper_stats")}
	limits := []byte(fmt.Sprintf("count=%d,bytes=%d", g.IntN(10)-1, g.IntN(100)-1))
	switch g.IntN(5) {
	case 0, 1:
		return plain(begin(proto.OpCreate), p, limits)
	case 2:
		return begin(proto.OpSetData).part(p).buffer(limits).int(-1)
	case 3:
		return begin(proto.OpDelete).part(p).int(-1)
	}
	return begin(proto.OpGetData).part(p).bool(false)
}

func plain(f *frame, p part, data []byte) *frame {
	return f.part(p).buffer(data).bytes(openACL().Bytes).int(0)
}

// outside returns a request about a znode outside the run's root, which must not change it.
func (g *generator) outside(begin func(proto.OpCode) *frame) *frame {
	p := part{Kind: path, Path: pick(g, "/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota", "/zookeeper/nope")}
	switch g.IntN(6) {
	case 0:
		return begin(proto.OpExists).part(p).bool(false)
	case 1:
		return begin(proto.OpGetData).part(p).bool(false)
	case 2:
		return begin(proto.OpGetACL).part(p)
	case 3:
		return begin(proto.OpGetChildren2).part(p).bool(false)
	case 4: // only the super user may write the configuration
		if g.super != "" || !g.may("config-node") {
			p.Path = "/zookeeper//"
		} else {
			p.Path = "/zookeeper/config"
		}
		return begin(proto.OpSetData).part(p).buffer([]byte("x")).int(-1)
	}
	return plain(begin(proto.OpCreate), part{Kind: path, Path: pick(g, "/", "/zookeeper", "/zookeeper/quota")}, nil)
}
