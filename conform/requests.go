package conform

import (
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// request is an operation with its record, nil if it has none. It may be a part of a multi.
type request = proto.MultiOp

func req(op proto.OpCode, body proto.Record) request { return request{Op: op, Request: body} }

// raw is a request's body that need not be valid; see [body].
type raw []byte

func (r raw) Append(b []byte) []byte { return append(b, r...) }
func (raw) Decode(*jute.Decoder)     {}

// opCreate and the following functions make requests. The ACL of a create is open.
func opCreate(path string, data []byte, flags int32) request {
	return opMake(proto.OpCreate, path, data, flags)
}

// opMake is opCreate for another operation that creates.
func opMake(op proto.OpCode, path string, data []byte, flags int32) request {
	return req(op, &proto.CreateRequest{Path: path, Data: data, ACL: proto.OpenACL, Flags: flags})
}

func opCreateACL(path string, data []byte, acl []proto.ACL, flags int32) request {
	return req(proto.OpCreate, &proto.CreateRequest{Path: path, Data: data, ACL: acl, Flags: flags})
}

func opTTL(path string, flags int32, ttl int64) request {
	return req(proto.OpCreateTTL, &proto.CreateTTLRequest{CreateRequest: proto.CreateRequest{Path: path, ACL: proto.OpenACL, Flags: flags}, TTL: ttl})
}

func opDelete(path string, version int32) request {
	return req(proto.OpDelete, &proto.PathVersion{Path: path, Version: version})
}

func opSet(path string, data []byte, version int32) request {
	return req(proto.OpSetData, &proto.SetDataRequest{Path: path, Data: data, Version: version})
}

func opCheck(path string, version int32) request {
	return req(proto.OpCheck, &proto.PathVersion{Path: path, Version: version})
}

func opSetACL(path string, acl []proto.ACL, version int32) request {
	return req(proto.OpSetACL, &proto.SetACLRequest{Path: path, ACL: acl, Version: version})
}

func opExists(path string) request { return opRead(proto.OpExists, path) }
func opGet(path string) request    { return opRead(proto.OpGetData, path) }

func opChildren(path string) request  { return opRead(proto.OpGetChildren, path) }
func opChildren2(path string) request { return opRead(proto.OpGetChildren2, path) }

// opRead makes a request of any of the four operations before it.
func opRead(op proto.OpCode, path string) request { return req(op, &proto.PathWatch{Path: path}) }

// watching makes one of those requests set a watch.
func watching(q request) request {
	q.Request.(*proto.PathWatch).Watch = true
	return q
}

func opGetACL(path string) request { return opPath(proto.OpGetACL, path) }
func opSync(path string) request   { return opPath(proto.OpSync, path) }

func opPath(op proto.OpCode, path string) request { return req(op, &proto.Path{Path: path}) }

func opAddWatch(path string, mode int32) request {
	return req(proto.OpAddWatch, &proto.PathType{Path: path, Type: mode})
}

func opCheckWatches(path string, watcher int32) request {
	return req(proto.OpCheckWatches, &proto.PathType{Path: path, Type: watcher})
}

func opRemoveWatches(path string, watcher int32) request {
	return req(proto.OpRemoveWatches, &proto.PathType{Path: path, Type: watcher})
}

func opMulti(parts ...request) request { return req(proto.OpMulti, &proto.MultiRequest{Ops: parts}) }

func opMultiRead(parts ...request) request {
	return req(proto.OpMultiRead, &proto.MultiReadRequest{Ops: parts})
}
