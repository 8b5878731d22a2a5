// Package zklog writes transaction logs as ZooKeeper does (FileTxnLog), for tests.
package zklog

import (
	"hash/adler32"

	"github.com/lockkeeper/lockkeeper/internal/tools/zkdata"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// File returns a log with these transactions, and that many zeros after them.
func File(zeros int, txns ...zkdata.Txn) []byte {
	b := jute.AppendLong(jute.AppendInt([]byte("ZKLG"), 2), 0)
	for i := range txns {
		b = append(b, Entry(Body(&txns[i]))...)
	}
	return append(b, make([]byte, zeros)...)
}

// Entry returns a transaction in a log, given its body.
func Entry(body []byte) []byte {
	b := jute.AppendBuffer(jute.AppendLong(nil, int64(adler32.Checksum(body))), body)
	return append(b, 'B')
}

// Body returns the encoding of a transaction. A closeSession without Paths is as before 3.6; Paths
// that are empty, but not nil, are stored. A create with a ParentCversion of -1 is as before 3.4.
func Body(t *zkdata.Txn) []byte {
	b := jute.AppendInt(jute.AppendLong(nil, t.Session), t.Cxid)
	b = jute.AppendInt(jute.AppendLong(jute.AppendLong(b, t.Zxid), t.Time), int32(t.Op))
	b = appendRecord(b, t)
	if t.HasDigest {
		b = jute.AppendLong(jute.AppendInt(b, 2), int64(t.Digest))
	}
	return b
}

func appendRecord(b []byte, t *zkdata.Txn) []byte {
	node := func() { b = proto.AppendACL(jute.AppendBuffer(jute.AppendString(b, t.Path), t.Data), t.ACL) }
	switch t.Op {
	case proto.OpCreateSession:
		b = jute.AppendInt(b, t.Timeout)
	case proto.OpCloseSession:
		if t.Paths != nil {
			b = jute.AppendStrings(b, t.Paths)
		}
	case proto.OpCreate, proto.OpCreate2:
		node()
		if b = jute.AppendBool(b, t.Ephemeral); t.ParentCversion != -1 {
			b = jute.AppendInt(b, t.ParentCversion)
		}
	case proto.OpCreateContainer:
		node()
		b = jute.AppendInt(b, t.ParentCversion)
	case proto.OpCreateTTL:
		node()
		b = jute.AppendLong(jute.AppendInt(b, t.ParentCversion), t.TTL)
	case proto.OpDelete, proto.OpDeleteContainer:
		b = jute.AppendString(b, t.Path)
	case proto.OpSetData, proto.OpReconfig:
		b = jute.AppendInt(jute.AppendBuffer(jute.AppendString(b, t.Path), t.Data), t.Version)
	case proto.OpSetACL:
		b = jute.AppendInt(proto.AppendACL(jute.AppendString(b, t.Path), t.ACL), t.Version)
	case proto.OpCheck:
		b = jute.AppendInt(jute.AppendString(b, t.Path), t.Version)
	case proto.OpError:
		b = jute.AppendInt(b, t.Err)
	case proto.OpMulti:
		b = jute.AppendInt(b, int32(len(t.Ops)))
		for _, op := range t.Ops {
			b = jute.AppendBuffer(jute.AppendInt(b, int32(op.Op)), appendRecord(nil, &op))
		}
	}
	return b
}
