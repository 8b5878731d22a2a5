package proto

import (
	"errors"

	"github.com/lockkeeper/lockkeeper/jute"
)

// ErrMulti marks an operation that the multi at hand may not carry.
var ErrMulti = errors.New("proto: operation not allowed in this multi")

// MultiOp is one operation of a multi: its opcode and its own request record.
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

func decodeMultiOps(d *jute.Decoder, carrier OpCode) []MultiOp {
	var ops []MultiOp
	for {
		op, done := OpCode(d.Int()), d.Bool()
		d.Int() // err: means nothing in a request
		if d.Err() != nil || done {
			return ops
		}
		row := OpByCode(op)
		if row == nil || row.InMulti != carrier {
			d.Fail(ErrMulti)
			return nil
		}
		r := row.Request()
		if r.Decode(d); d.Err() != nil {
			return nil
		}
		// Here and nowhere else ZooKeeper looks at the mode and the ACL while it
		// reads (since 3.8.2); a TTL mode needs createTTL.
		if c, ok := r.(*CreateRequest); ok {
			switch {
			case c.Flags < FlagPersistent || c.Flags > FlagContainer:
				d.Fail(ErrMulti)
				return nil
			case c.ACL == nil:
				d.Fail(jute.ErrNull)
				return nil
			}
		}
		ops = append(ops, MultiOp{op, r})
	}
}

// Append appends the record's encoding to b.
func (r *MultiRequest) Append(b []byte) []byte { return appendMultiOps(b, r.Ops) }

// Decode reads the record; an operation that multi may not carry is an error, a
// create of an unknown mode too.
func (r *MultiRequest) Decode(d *jute.Decoder) { r.Ops = decodeMultiOps(d, OpMulti) }

// Append appends the record's encoding to b.
func (r *MultiReadRequest) Append(b []byte) []byte { return appendMultiOps(b, r.Ops) }

// Decode reads the record; an operation that multiRead may not carry is an error.
func (r *MultiReadRequest) Decode(d *jute.Decoder) { r.Ops = decodeMultiOps(d, OpMultiRead) }

// AppendMultiResult appends the header of a good result, which its reply record follows.
func AppendMultiResult(b []byte, op OpCode) []byte { return appendMultiHeader(b, op, false, OK) }

// AppendMultiError appends a result without a reply: the code of the operation
// that failed, OK for one before it that was rolled back, and
// RuntimeInconsistency for one after it. The code stands in it twice, and
// clients read either.
func AppendMultiError(b []byte, code Code) []byte {
	return jute.AppendInt(appendMultiHeader(b, OpError, false, code), int32(code))
}

// AppendMultiEnd appends the marker that ends the list.
func AppendMultiEnd(b []byte) []byte { return appendMultiHeader(b, OpError, true, -1) }

// MultiResult is one result in a MultiReply.
type MultiResult struct {
	Op    OpCode // OpError if the operation failed or was rolled back
	Code  Code
	Reply Record // nil without a body
}

// MultiReply is the reply to multi and multiRead (MultiResponse).
type MultiReply struct{ Results []MultiResult }

// Append appends the record's encoding to b.
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

// Decode reads the record.
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
