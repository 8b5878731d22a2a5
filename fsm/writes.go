package fsm

import (
	"errors"
	"fmt"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// write carries out an operation in the current transaction: it decodes the request from d,
// appends the reply to m.out and returns the code.
type write func(m *Machine, op proto.OpCode, d *jute.Decoder) proto.Code

// writes has the function for each operation of class Write, except closeSession, which do
// handles itself, and sync, which answer handles.
var writes = map[proto.OpCode]write{
	proto.OpCreate:          create,
	proto.OpCreate2:         create,
	proto.OpCreateContainer: create,
	proto.OpCreateTTL:       create,
	proto.OpDelete:          remove,
	proto.OpSetData:         setData,
	proto.OpSetACL:          setACL,
	proto.OpMulti:           multi,
	proto.OpReconfig:        reconfig,
}

// known reports whether do knows an operation.
func known(op proto.OpCode) bool {
	switch op {
	case proto.OpCreateSession, proto.OpCloseSession, proto.OpSync, proto.OpDeleteContainer,
		OpResumeSession, OpExpireSession, OpNothing, OpDescribe, OpPutBack, OpIdentify, OpRestored:
		return true
	}
	return writes[op] != nil
}

func unknownOperation(op proto.OpCode) error {
	return fmt.Errorf("%w: unknown operation %d", ErrVersion, op)
}

// do carries out one command. It returns an error if it does not know the command or cannot
// decode it.
func (m *Machine) do(e *Envelope, c *Command) (Result, error) {
	if !known(c.Op) { // whether its session exists or not: members that know it have another state then
		return Result{}, unknownOperation(c.Op)
	}
	d := jute.NewDecoder(c.Body)
	conn := session.Conn{Server: e.Origin, Number: c.Conn}
	switch c.Op {
	case proto.OpCreateSession:
		return m.openSession(&d, conn)
	case OpResumeSession:
		return m.resumeSession(&d, conn)
	case proto.OpSync, OpNothing:
		return m.answer(c), nil
	case OpDescribe:
		servers, _ := proto.ParseServers(string(c.Body)) // nil if it is invalid
		var was int64
		fmt.Sscanf(string(c.Body), "version=%x\n", &was)
		m.describe(servers, was)
		return Result{Zxid: m.zxid}, nil
	case OpPutBack:
		return m.putBack(&d)
	case OpIdentify:
		id := uint64(d.Long())
		if d.Err() != nil {
			return Result{}, fmt.Errorf("%w: identify", ErrEntry)
		}
		if m.cluster == 0 {
			m.cluster = id
		}
		return Result{Zxid: m.zxid}, nil
	case OpRestored:
		m.restored(e.Time)
		return Result{Zxid: m.zxid}, nil
	case OpExpireSession:
		owner, term := session.Conn{Server: uint64(d.Long()), Number: uint64(d.Long())}, uint64(d.Long())
		if d.Err() != nil {
			return Result{}, fmt.Errorf("%w: expireSession", ErrEntry)
		}
		if s := m.sessions.Get(c.Session); s == nil || s.Owner != owner || term != 0 && term != m.term {
			return Result{Zxid: m.zxid, Code: proto.SessionMoved}, nil
		}
		return m.closeSession(c.Session), nil
	case proto.OpDeleteContainer:
		path := d.String()
		if d.Err() != nil {
			return Result{}, fmt.Errorf("%w: deleteContainer", ErrEntry)
		}
		r := Result{Zxid: m.begin()}
		r.Code = m.tree.Reap(&m.txn, path)
		return r, nil
	}

	s := m.sessions.Get(c.Session)
	if s == nil {
		return Result{Zxid: m.zxid, Code: proto.SessionExpired, Drop: true}, nil
	}
	// As in ZooKeeper, closeSession does not check the session's owner
	// (PrepRequestProcessor). A client that closes its session means it, even if another
	// connection has resumed it.
	if c.Op == proto.OpCloseSession {
		return m.closeSession(c.Session), nil
	}
	r := Result{Zxid: m.begin()} // a write that fails has a zxid too (PrepRequestProcessor)
	if s.Owner != conn {
		r.Code, r.Drop = proto.SessionMoved, true
		return r, nil
	}
	m.txn.IDs = m.identities(c.IDs)
	m.in = d // otherwise each command would allocate a decoder
	r.Code = writes[c.Op](m, c.Op, &m.in)
	if err := m.in.Err(); err != nil && (c.Op != proto.OpMulti || errors.Is(err, jute.ErrNull)) {
		// ZooKeeper 3.9 decodes a request before it allocates a zxid, so a malformed one
		// has none; but most malformed multis have one.
		m.zxid--
		r.Zxid = m.zxid
	}
	return r, nil
}

// answer carries out a command for which [Command.ReadOnly] returns true. It changes
// nothing but m.out, to which it appends the reply.
func (m *Machine) answer(c *Command) Result {
	r := Result{Zxid: m.zxid}
	if c.Op != proto.OpSync {
		return r
	}
	// As in ZooKeeper, sync does not check the session's owner (PrepRequestProcessor). If
	// its connection no longer owns the session, the server has closed that connection.
	if m.sessions.Get(c.Session) == nil {
		r.Code, r.Drop = proto.SessionExpired, true
		return r
	}
	var p proto.Path
	d := jute.NewDecoder(c.Body)
	if p.Decode(&d); d.Err() != nil {
		r.Code = proto.MarshallingError
		return r
	}
	m.out = p.Append(m.out)
	return r
}

func (m *Machine) openSession(d *jute.Decoder, owner session.Conn) (Result, error) {
	id, timeout, password := d.Long(), d.Int(), d.Buffer()
	if d.Err() != nil || len(password) != proto.PasswordLen {
		return Result{}, fmt.Errorf("%w: createSession", ErrEntry)
	}
	s := m.sessions.Open(session.Session{ID: id, Timeout: timeout, Password: session.Password(password), Owner: owner})
	m.txn.Changes = append(m.txn.Changes, proto.Change{Kind: proto.SessionOpened, Session: s.ID})
	return Result{Zxid: m.begin(), Session: s}, nil
}

func (m *Machine) resumeSession(d *jute.Decoder, owner session.Conn) (Result, error) {
	id, timeout, password := d.Long(), d.Int(), d.Buffer()
	if d.Err() != nil {
		return Result{}, fmt.Errorf("%w: resumeSession", ErrEntry)
	}
	s := m.sessions.Resume(id, password, timeout, owner)
	if s == nil {
		return Result{Zxid: m.zxid, Code: proto.SessionExpired}, nil
	}
	m.txn.Changes = append(m.txn.Changes, proto.Change{Kind: proto.SessionResumed, Session: s.ID})
	return Result{Zxid: m.zxid, Session: s}, nil
}

// restOfRecords decodes the znodes at the end of a putBack.
func restOfRecords(d *jute.Decoder) (records []znode.Record, err error) {
	if d.Err() != nil {
		return nil, fmt.Errorf("%w: putBack", ErrEntry)
	}
	for b := d.Rest(); len(b) > 0; {
		var r znode.Record
		if r, b, err = znode.DecodeRecord(b); err != nil {
			return nil, fmt.Errorf("%w: putBack: %v", ErrEntry, err)
		}
		records = append(records, r)
	}
	return records, nil
}

// edit carries out an [Edit].
func (m *Machine) edit(d *jute.Decoder) (Result, error) {
	below := d.Bool()
	var remove []string
	for n := d.Int(); n > 0 && d.Err() == nil; n-- {
		remove = append(remove, d.String())
	}
	records, err := restOfRecords(d)
	if err != nil {
		return Result{}, err
	}
	r := Result{Zxid: m.begin()}
	m.tree.Edit(&m.txn, remove, below, records)
	return r, nil
}

func (m *Machine) putBack(d *jute.Decoder) (Result, error) {
	n := d.Int()
	if n == editsOnly {
		return m.edit(d)
	}
	stay := map[int64]bool{}
	for ; n > 0 && d.Err() == nil; n-- {
		stay[d.Long()] = true
	}
	records, err := restOfRecords(d)
	if err != nil {
		return Result{}, err
	}
	r := Result{Zxid: m.begin()}
	alive := func(id int64) bool { return stay[id] && m.sessions.Get(id) != nil }
	m.tree.PutBack(&m.txn, records, alive)
	for s := range m.sessions.All() {
		if !stay[s.ID] { // it has no ephemerals left
			m.sessions.Close(s.ID)
			m.txn.Changes = append(m.txn.Changes, proto.Change{Kind: proto.SessionClosed, Session: s.ID})
		}
	}
	return r, nil
}

func create(m *Machine, op proto.OpCode, d *jute.Decoder) proto.Code {
	r := proto.CreateTTLRequest{TTL: -1}
	if op == proto.OpCreateTTL {
		r.Decode(d)
	} else {
		r.CreateRequest.Decode(d)
	}
	if d.Err() != nil {
		return proto.MarshallingError
	}
	return m.create(op, &r.CreateRequest, r.TTL)
}

func (m *Machine) create(op proto.OpCode, r *proto.CreateRequest, ttl int64) proto.Code {
	path, n, code := m.tree.Create(&m.txn, op, r, ttl)
	if code != proto.OK {
		return code
	}
	m.out = jute.AppendString(m.out, path)
	if op == proto.OpCreate {
		return proto.OK
	}
	return m.appendStat(n, proto.OK)
}

// appendStat appends the Stat of n to the reply if code, which it returns, is OK.
func (m *Machine) appendStat(n *znode.Node, code proto.Code) proto.Code {
	if code == proto.OK {
		s := n.Stat()
		m.out = s.Append(m.out)
	}
	return code
}

func remove(m *Machine, _ proto.OpCode, d *jute.Decoder) proto.Code {
	var r proto.PathVersion
	if r.Decode(d); d.Err() != nil {
		return proto.MarshallingError
	}
	return m.tree.Delete(&m.txn, r.Path, r.Version)
}

func setData(m *Machine, _ proto.OpCode, d *jute.Decoder) proto.Code {
	var r proto.SetDataRequest
	if r.Decode(d); d.Err() != nil {
		return proto.MarshallingError
	}
	return m.setData(&r)
}

func (m *Machine) setData(r *proto.SetDataRequest) proto.Code {
	return m.appendStat(m.tree.SetData(&m.txn, r))
}

func setACL(m *Machine, _ proto.OpCode, d *jute.Decoder) proto.Code {
	var r proto.SetACLRequest
	if r.Decode(d); d.Err() != nil {
		return proto.MarshallingError
	}
	return m.appendStat(m.tree.SetACL(&m.txn, &r))
}

// multi applies all of its operations or none. Usually it returns OK in either case, since the
// reply has a code for each operation.
func multi(m *Machine, _ proto.OpCode, d *jute.Decoder) proto.Code {
	var r proto.MultiRequest
	if r.Decode(d); d.Err() != nil {
		return proto.MarshallingError
	}
	for _, op := range r.Ops { // ZooKeeper checks this before all else (getPendingChanges)
		if pathOf(op) == jute.Null {
			return proto.MarshallingError
		}
	}
	failed, code := 0, proto.OK
	ok := m.tree.Multi(&m.txn, func() bool {
		for i, op := range r.Ops {
			applyCreateFlags(&op)
			if code = m.doPart(op); code != proto.OK {
				failed = i
				return false
			}
		}
		return true
	})
	if !ok {
		if m.out = m.out[:0]; code == proto.MarshallingError {
			// A null id in an ACL or an unreadable quota fails the whole request
			// (PrepRequestProcessor).
			return code
		}
		for i := range r.Ops {
			switch {
			case i < failed:
				m.out = proto.AppendMultiError(m.out, proto.OK)
			case i == failed:
				m.out = proto.AppendMultiError(m.out, code)
			default:
				m.out = proto.AppendMultiError(m.out, proto.RuntimeInconsistency)
			}
		}
	}
	m.out = proto.AppendMultiEnd(m.out)
	return proto.OK
}

func pathOf(op proto.MultiOp) string {
	switch r := op.Request.(type) {
	case *proto.CreateRequest:
		return r.Path
	case *proto.CreateTTLRequest:
		return r.Path
	case *proto.SetDataRequest:
		return r.Path
	case *proto.PathVersion:
		return r.Path
	}
	return ""
}

// applyCreateFlags changes the opcode of a create in a multi to the one that its flags imply
// (Op.Create, since ZooKeeper 3.8.2): with the container flag it creates a container, and
// createTTL without a TTL flag is a plain create.
func applyCreateFlags(op *proto.MultiOp) {
	if r, ok := op.Request.(*proto.CreateTTLRequest); ok && r.Flags != proto.FlagTTL && r.Flags != proto.FlagTTLSequential {
		*op = proto.MultiOp{Op: proto.OpCreate, Request: &r.CreateRequest}
	}
	if r, ok := op.Request.(*proto.CreateRequest); ok && r.Flags == proto.FlagContainer {
		op.Op = proto.OpCreateContainer
	}
}

// doPart carries out one operation of a multi.
func (m *Machine) doPart(op proto.MultiOp) proto.Code {
	result := op.Op
	if result == proto.OpCreateContainer || result == proto.OpCreateTTL {
		result = proto.OpCreate2 // in results, ZooKeeper's type of every create with a Stat
	}
	m.out = proto.AppendMultiResult(m.out, result)
	switch r := op.Request.(type) {
	case *proto.CreateRequest:
		return m.create(op.Op, r, -1)
	case *proto.CreateTTLRequest:
		return m.create(op.Op, &r.CreateRequest, r.TTL)
	case *proto.SetDataRequest:
		return m.setData(r)
	case *proto.PathVersion:
		if op.Op == proto.OpCheck {
			return m.tree.CheckVersion(&m.txn, r.Path, r.Version)
		}
		return m.tree.Delete(&m.txn, r.Path, r.Version)
	}
	return proto.MarshallingError // cannot happen: the decoder accepts no other record
}
