package proto

import (
	"errors"

	"github.com/lockkeeper/lockkeeper/jute"
)

// ErrMulti means that a multi contains an operation or a create mode that is not
// allowed in it.
var ErrMulti = errors.New("proto: operation not allowed in this multi")

// MultiOp is one operation of a multi.
type MultiOp struct {
	Op      OpCode
	Request Record
}

// MultiRequest is the body of multi (MultiOperationRecord).
type MultiRequest struct{ Ops []MultiOp }

// MultiReadRequest is the body of multiRead.
type MultiReadRequest struct{ Ops []MultiOp }

func appendMultiHeader(b []byte, op OpCode, done bool, code Code) []byte {
	return jute.AppendInt(jute.AppendBool(jute.AppendInt(b, int32(op)), done), int32(code))
}

func appendMultiOps(b []byte, ops []MultiOp) []byte {
	for _, o := range ops {
		b = o.Request.Append(appendMultiHeader(b, o.Op, false, -1))
	}
	return AppendMultiEnd(b)
}

// decodeMultiOps reads the operations of a request of the given kind, multi or multiRead.
func decodeMultiOps(d *jute.Decoder, kind OpCode) []MultiOp {
	var ops []MultiOp
	for {
		op, done := OpCode(d.Int()), d.Bool()
		d.Int() // the error code, which has no meaning in a request
		if d.Err() != nil || done {
			return ops
		}
		row := OpByCode(op)
		if row == nil || row.InMulti != kind {
			d.Fail(ErrMulti)
			return nil
		}
		r := row.Request()
		if r.Decode(d); d.Err() != nil {
			return nil
		}
		// Only in a multi does ZooKeeper (since 3.8.2) check a create's mode and ACL
		// while it decodes the request. The TTL modes are allowed only in createTTL. The
		// order matters, because a null ACL is the only one of these errors that consumes
		// no zxid.
		if c, ok := r.(*CreateRequest); ok {
			switch {
			case c.Flags < FlagPersistent || c.Flags > FlagTTLSequential:
				d.Fail(ErrMulti)
				return nil
			case c.ACL == nil:
				d.Fail(jute.ErrNull)
				return nil
			case c.Flags > FlagContainer:
				d.Fail(ErrMulti)
				return nil
			}
		}
		ops = append(ops, MultiOp{op, r})
	}
}

func (r *MultiRequest) Append(b []byte) []byte { return appendMultiOps(b, r.Ops) }

// Decode reads the record. An operation that is not allowed in multi, or a create with
// an unknown mode, is [ErrMulti].
func (r *MultiRequest) Decode(d *jute.Decoder) { r.Ops = decodeMultiOps(d, OpMulti) }

func (r *MultiReadRequest) Append(b []byte) []byte { return appendMultiOps(b, r.Ops) }

// Decode reads the record. An operation that is not allowed in multiRead is [ErrMulti].
func (r *MultiReadRequest) Decode(d *jute.Decoder) { r.Ops = decodeMultiOps(d, OpMultiRead) }

// AppendMultiResult appends the header of a successful result. The reply record, if the
// operation has one, must follow.
func AppendMultiResult(b []byte, op OpCode) []byte { return appendMultiHeader(b, op, false, OK) }

// AppendMultiError appends a result without a reply record. If one operation of a multi
// fails, its code is the error, that of the operations before it is OK (they were rolled
// back), and that of the operations after it is RuntimeInconsistency. The encoding has
// the code twice, since some clients read the first and some the second.
func AppendMultiError(b []byte, code Code) []byte {
	return jute.AppendInt(appendMultiHeader(b, OpError, false, code), int32(code))
}

// AppendMultiEnd appends the marker that ends a list of operations or results.
func AppendMultiEnd(b []byte) []byte { return appendMultiHeader(b, OpError, true, -1) }

// MultiResult is the result of one operation in a [MultiReply].
type MultiResult struct {
	Op    OpCode // OpError if the operation failed or was rolled back
	Code  Code
	Reply Record // nil if there is none
}

// MultiReply is the reply to multi and multiRead (MultiResponse).
type MultiReply struct{ Results []MultiResult }

func (r *MultiReply) Append(b []byte) []byte {
	for _, res := range r.Results {
		if res.Op == OpError {
			b = AppendMultiError(b, res.Code)
			continue
		}
		b = AppendMultiResult(b, res.Op)
		if res.Reply != nil {
			b = res.Reply.Append(b)
		}
	}
	return AppendMultiEnd(b)
}

func (r *MultiReply) Decode(d *jute.Decoder) {
	r.Results = nil
	for {
		res := MultiResult{Op: OpCode(d.Int())}
		done := d.Bool()
		res.Code = Code(d.Int())
		if d.Err() != nil || done {
			return
		}
		if res.Op == OpError {
			res.Code = Code(d.Int())
		} else if row := OpByCode(res.Op); row == nil || row.InMulti == 0 {
			d.Fail(ErrMulti)
			return
		} else if row.Reply != nil {
			res.Reply = row.Reply()
			res.Reply.Decode(d)
		}
		r.Results = append(r.Results, res)
	}
}
