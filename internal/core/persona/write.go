package persona

import (
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Write returns the write to propose for one that a client has sent: the same one, or one that
// the newest line carries out and answers as the persona's line does the client's.
func (p *Persona) Write(op proto.OpCode, body []byte) (proto.OpCode, []byte) {
	if p == nil {
		return op, body
	}
	row := proto.OpByCode(op)
	if row == nil || row.InMulti != proto.OpMulti && op != proto.OpMulti && op != proto.OpSetACL {
		return op, body // no line treats it differently
	}
	d := jute.NewDecoder(body)
	if op == proto.OpMulti {
		if older, ok := p.multi(&d); ok {
			return op, older
		}
		return unreadable()
	}
	r := row.Request()
	if r.Decode(&d); d.Err() != nil {
		if p.Does(FreeUnreadable) {
			return op, body
		}
		return unreadable()
	}
	switch p.older(r) {
	case fails:
		return unreadable()
	case changed:
		return op, r.Append(nil)
	}
	return op, body
}

// unreadable returns a write that fails with MarshallingError and consumes a zxid: a multi
// without an end.
func unreadable() (proto.OpCode, []byte) { return proto.OpMulti, nil }

// verdict says what becomes of a request.
type verdict int

const (
	same    verdict = iota
	changed         // the record was changed
	fails           // with MarshallingError
)

// older changes a request into the one that stands for it in the newest line.
func (p *Persona) older(r proto.Record) (v verdict) {
	switch r := r.(type) {
	case *proto.CreateRequest:
		return p.create(r)
	case *proto.CreateTTLRequest:
		return p.create(&r.CreateRequest)
	case *proto.SetACLRequest:
		if r.ACL == nil && !p.Does(NullACL) && strings.HasPrefix(r.Path, "/") {
			return fails
		}
		return p.acl(&r.ACL)
	}
	return same
}

// known reports whether the newest line knows a mode.
func known(flags int32) bool {
	return flags >= proto.FlagPersistent && flags <= proto.FlagTTLSequential
}

func (p *Persona) create(r *proto.CreateRequest) (v verdict) {
	// Every line knows the modes up to that of a sequential ephemeral.
	if (r.Flags < proto.FlagPersistent || r.Flags > proto.FlagEphemeralSeq) && !p.Does(CreateModes) {
		// It fails with BadArguments, but only if nothing is wrong with the ACL and the parent:
		// so does a znode with this name.
		if i := strings.LastIndexByte(r.Path, '/'); i >= 0 && !strings.Contains(r.Path, "\x00") {
			r.Path = r.Path[:i] + "/."
		}
		r.Flags, v = proto.FlagPersistent, changed
	}
	if r.ACL == nil && !p.Does(NullACL) && known(r.Flags) && strings.Contains(r.Path, "/") && !strings.Contains(r.Path, "\x00") {
		return fails
	}
	return max(v, p.acl(&r.ACL))
}

// noAddress is an id of scheme ip that no line accepts.
const noAddress = "-"

// acl replaces addresses that the line does not accept, and puts entries in the line's order.
func (p *Persona) acl(list *[]proto.ACL) verdict {
	v := p.addresses(list)
	isAuth := func(a proto.ACL) bool { return a.Scheme == proto.SchemeAuth }
	if p.Does(AuthInPlace) || !slices.ContainsFunc(*list, isAuth) {
		return v
	}
	last := slices.DeleteFunc(slices.Clone(*list), func(a proto.ACL) bool { return !isAuth(a) })
	*list = append(slices.DeleteFunc(slices.Clone(*list), isAuth), last...)
	return changed
}

func (p *Persona) addresses(list *[]proto.ACL) verdict {
	refused := func(a proto.ACL) bool {
		return a.Scheme == proto.SchemeIP &&
			(!p.Does(IPv6InACL) && strings.Contains(a.ID.ID, ":") || !p.Does(IPMasks) && strings.Contains(a.ID.ID, "/"))
	}
	if !slices.ContainsFunc(*list, refused) {
		return same
	}
	*list = slices.Clone(*list) // it may be shared
	for i, a := range *list {
		if refused(a) {
			(*list)[i].ID.ID = noAddress
		}
	}
	return changed
}

// multi returns the body of the multi that stands for one. It returns false if the multi fails
// with MarshallingError.
func (p *Persona) multi(d *jute.Decoder) (body []byte, ok bool) {
	whole := d.Rest()
	all := same
	var ops []proto.MultiOp
	for {
		op, done := proto.OpCode(d.Int()), d.Bool()
		d.Int()
		if d.Err() != nil {
			return nil, false
		}
		if done {
			break
		}
		row := proto.OpByCode(op)
		if row == nil || row.InMulti != proto.OpMulti || !p.KnowsOp(op) {
			return nil, false
		}
		r := row.Request()
		if r.Decode(d); d.Err() != nil {
			return nil, false
		}
		v := same
		if !p.Does(MultiModes) {
			op, v = p.part(op, r)
		}
		v = max(v, p.older(r))
		if v == fails {
			return nil, false
		}
		all = max(all, v)
		ops = append(ops, proto.MultiOp{Op: op, Request: r})
	}
	if all == same {
		return whole, true
	}
	return (&proto.MultiRequest{Ops: ops}).Append(nil), true
}

// unreadableACL fails with MarshallingError.
var unreadableACL = []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeWorld, ID: jute.Null}}}

// part changes a create in a multi into the one that stands for it since [MultiModes].
func (p *Persona) part(op proto.OpCode, r proto.Record) (proto.OpCode, verdict) {
	c, ok := r.(*proto.CreateRequest)
	if !ok {
		return op, same
	}
	v := same
	switch {
	case !p.Does(CreateModes): // create sees to the mode
	case c.Flags > proto.FlagContainer && known(c.Flags):
		// The mode of a TTL znode without a TTL: the whole multi fails with MarshallingError
		// when it comes to this create.
		c.Path, c.Flags, c.ACL, v = "/-", proto.FlagPersistent, unreadableACL, changed
	case !known(c.Flags):
		// A create that fails with BadArguments, and whose mode can be decoded.
		c.Flags, c.Path, v = proto.FlagPersistent, "", changed
	case c.Flags == proto.FlagContainer:
		op = proto.OpCreateContainer
	case op != proto.OpCreate && c.Flags < proto.FlagContainer:
		op, v = proto.OpCreate, changed
	}
	if c.ACL == nil {
		c.ACL, v = []proto.ACL{}, changed
		if c.Path != "" && !p.Does(NullACL) {
			c.ACL = unreadableACL
		}
	}
	return op, v
}
