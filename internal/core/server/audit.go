package server

import (
	"bytes"
	"net"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// AuditEvent is what the audit log has of a change, or of an attempt. An empty field is not shown.
type AuditEvent struct {
	Session   int64  // 0 for none
	User      string // empty for what this server does by itself
	IP        string
	Operation string
	Path      string
	Type      string // of a znode to create: persistent, ephemeral_sequential and so on
	ACL       string // of setAcl
	Result    string // success, failure or invoked
}

const (
	auditSuccess = "success"
	auditFailure = "failure"
	// auditUnknown is the result of a write that was proposed and of which this server cannot know
	// what has become. ZooKeeper logs nothing of such a write; it has the word for stopping a server.
	auditUnknown = "invoked"

	auditMulti  = "multiOperation"
	auditSetACL = "setAcl"
	auditEnd    = "ephemeralZNodeDeletionOnSessionCloseOrExpire"
)

// createModes are the names of the create flags (CreateMode).
var createModes = []string{"persistent", "ephemeral", "persistent_sequential", "ephemeral_sequential", "container",
	"persistent_with_ttl", "persistent_sequential_with_ttl"}

// auditedOps are the operations that the log has (AuditHelper).
var auditedOps = []proto.OpCode{proto.OpCreate, proto.OpCreate2, proto.OpCreateContainer, proto.OpCreateTTL, proto.OpDelete,
	proto.OpSetData, proto.OpSetACL, proto.OpMulti}

// audited is the fsm.Waiter of a client's write when there is an audit log.
type audited struct {
	*conn
	op   proto.OpCode
	body []byte // the request's, for itself
	who  *identity
}

// waiter returns the fsm.Waiter of a write that c is about to propose.
func (c *conn) waiter(op proto.OpCode, body []byte, who *identity) fsm.Waiter {
	if c.s.cfg.Audit == nil || !slices.Contains(auditedOps, op) {
		return c
	}
	return &audited{c, op, bytes.Clone(body), who}
}

// Done implements fsm.Waiter. It logs what was done also if the client is gone.
func (w *audited) Done(v *fsm.View, r *fsm.Result) {
	if r.Drop || r.Code != proto.OK {
		w.log(auditFailure, nil)
	} else {
		w.log(auditSuccess, r.Body)
	}
	w.conn.Done(v, r)
}

// Lost implements fsm.Waiter.
func (w *audited) Lost() {
	w.log(auditUnknown, nil)
	w.conn.Lost()
}

// log logs the write with the body of its reply, which is nil unless it was done. A request that cannot
// be read is not logged, as in ZooKeeper, except for a multi.
func (w *audited) log(result string, reply []byte) {
	e := AuditEvent{Result: result}
	if w.op == proto.OpMulti {
		if result == auditSuccess {
			w.logMulti(reply)
		} else {
			e.Operation = auditMulti
			w.audit(w.who, e)
		}
		return
	}
	request := proto.OpByCode(w.op).Request()
	d := jute.NewDecoder(w.body)
	if request.Decode(&d); d.Err() != nil {
		return
	}
	describe(&e, request)
	if e.Operation == "create" {
		if e.Type == "" {
			return
		}
		if d := jute.NewDecoder(reply); result == auditSuccess {
			e.Path = d.String() // with the number of a sequential znode
		}
	}
	w.audit(w.who, e)
}

// describe sets what a request says. Type stays empty if its create flags are none.
func describe(e *AuditEvent, request proto.Record) {
	if ttl, ok := request.(*proto.CreateTTLRequest); ok {
		request = &ttl.CreateRequest
	}
	switch q := request.(type) {
	case *proto.CreateRequest:
		e.Operation, e.Path = "create", q.Path
		if q.Flags >= 0 && int(q.Flags) < len(createModes) {
			e.Type = createModes[q.Flags]
		}
	case *proto.PathVersion:
		e.Operation, e.Path = "delete", q.Path
	case *proto.SetDataRequest:
		e.Operation, e.Path = "setData", q.Path
	case *proto.SetACLRequest:
		e.Operation, e.Path, e.ACL = auditSetACL, q.Path, aclText(q.ACL)
	}
}

// logMulti logs each part of a multi that was done, but only once that one was not. As in ZooKeeper, the type
// is missing of a znode that has another path than the request, and of those with a TTL.
func (w *audited) logMulti(reply []byte) {
	var request proto.MultiRequest
	var done proto.MultiReply
	for record, body := range map[proto.Record][]byte{&request: w.body, &done: reply} {
		d := jute.NewDecoder(body)
		if record.Decode(&d); d.Err() != nil {
			return
		}
	}
	types := map[string]string{}
	for _, part := range request.Ops {
		var e AuditEvent
		if describe(&e, part.Request); e.Operation == "create" && part.Op != proto.OpCreateTTL {
			types[e.Path] = e.Type
		}
	}
	for i, part := range request.Ops {
		e := AuditEvent{Result: auditSuccess}
		switch {
		case i >= len(done.Results) || done.Results[i].Op == proto.OpError:
			w.audit(w.who, AuditEvent{Operation: auditMulti, Result: auditFailure})
			return
		case part.Op == proto.OpCheck:
			continue
		}
		describe(&e, part.Request)
		if e.Operation == "create" {
			switch r := done.Results[i].Reply.(type) {
			case *proto.PathReply:
				e.Path = r.Path
			case *proto.PathStatReply:
				e.Path = r.Path
			}
			e.Type = types[e.Path]
		}
		w.audit(w.who, e)
	}
}

// Reconfigured returns the event of a change of the members that was asked for, whichever way, and what the log says
// of it. err is nil if the change was made, and the outcome is unknown if unsure is true.
func Reconfigured(err error, unsure bool) (e AuditEvent, said string) {
	e.Operation = "reconfig"
	switch {
	case unsure:
		e.Result, said = auditUnknown, "a change of the members was asked for, and may have been made"
	case err != nil:
		e.Result, said = auditFailure, "a change of the members was asked for, and refused"
	default:
		e.Result, e.Path, said = auditSuccess, znode.ConfigPath, "the members were changed on request"
	}
	return e, said
}

// auditReconfig logs a reconfig. If ok is false, its outcome is unknown.
func (c *conn) auditReconfig(q *request, code proto.Code, ok bool) {
	var err error
	if code != proto.OK {
		err = code
	}
	e, said := Reconfigured(err, !ok)
	c.audit(q.who, e)
	args := []any{"user", users(q.who.ids)}
	if err != nil && ok {
		args = append(args, "error", err)
	}
	var asked proto.ReconfigRequest
	d := jute.NewDecoder(q.body)
	if asked.Decode(&d); d.Err() == nil {
		args = append(args, "joining", asked.Joining.Text(), "leaving", asked.Leaving.Text(), "members", asked.NewMembers.Text(), "version", asked.ConfigID)
	}
	c.warn(said, args...)
}

// Asker returns the address and the user of whoever has connected to another port than the clients', as the audit log has those
// of a client: the user is the address and, if they have proved one, the subject of a certificate, which is in DER. A nil
// address is this process's own.
func Asker(addr net.Addr, subject []byte) (ip, user string) {
	if addr == nil {
		return inProcess[0].ID, ""
	}
	ip = addr.String()
	if tcp, ok := addr.(*net.TCPAddr); ok {
		ip = hostAddress(tcp)
	}
	user = ip
	if name, err := distinguishedName(subject); err == nil && name != "" {
		user += "," + name
	}
	return ip, user
}

func (c *conn) audit(who *identity, e AuditEvent) {
	if c.s.cfg.Audit == nil {
		return
	}
	if e.Path == jute.Null {
		e.Path = ""
	}
	e.Session, e.User, e.IP = c.session, users(who.ids), c.addr
	if e.IP == "" { // a connection in memory
		e.IP = inProcess[0].ID
	}
	c.s.cfg.Audit(e)
}

// users returns the names of a client's identities (AuthUtil.getUsers).
func users(ids []proto.ID) string {
	var names []string
	for _, id := range ids {
		name := id.ID
		switch id.Scheme {
		case proto.SchemeSuper: // nobody's provider
			continue
		case proto.SchemeDigest:
			name, _, _ = strings.Cut(name, ":")
		}
		if strings.TrimSpace(name) != "" {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// aclText formats an ACL as ZKUtil.aclToString does, with nothing between the entries.
func aclText(acl []proto.ACL) string {
	var b strings.Builder
	for _, a := range acl {
		for _, text := range []string{a.Scheme, a.ID.ID} {
			if text == jute.Null {
				text = "null"
			}
			b.WriteString(text + ":")
		}
		b.WriteString(proto.PermLetters(a.Perms))
	}
	return b.String()
}

// auditEnded logs the ephemeral znodes that went with a session. Every member does, for the sessions of all,
// but not of changes from before this server first served clients.
func (s *Server) auditEnded(changes []proto.Change) {
	if s.cfg.Audit == nil || !s.opened.Load() {
		return
	}
	ended := map[int64]bool{}
	for i := range changes {
		if changes[i].Kind == proto.SessionClosed {
			ended[changes[i].Session] = true
		}
	}
	for i := range changes {
		if c := &changes[i]; c.Kind == proto.NodeDeleted && ended[c.Session] {
			s.cfg.Audit(AuditEvent{Session: c.Session, Operation: auditEnd, Path: c.Path, Result: auditSuccess})
		}
	}
}
