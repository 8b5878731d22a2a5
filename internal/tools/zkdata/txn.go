package zkdata

import (
	"errors"
	"fmt"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Txn is a transaction of a log, or an operation of a multi, which has only Op and the fields
// that come after Time.
type Txn struct {
	Op      proto.OpCode
	Session int64
	Cxid    int32
	Zxid    int64
	Time    int64 // ms since the epoch

	Path           string
	Data           []byte
	ACL            []proto.ACL
	Ephemeral      bool
	ParentCversion int32 // -1 if it is not known
	TTL            int64 // ms
	Version        int32 // that the znode gets, or that is checked
	Timeout        int32 // ms, of a createSession
	Err            int32
	Paths          []string // that a closeSession deletes; releases before 3.6 store none
	Ops            []Txn    // of a multi

	HasDigest bool
	Digest    uint64 // of the tree after the transaction
}

// digestLen is the length of a digest after a transaction: a version and the digest.
const digestLen = 4 + 8

// digestVersion is the version of digests that can be compared. Another one is ignored, as
// ZooKeeper does.
const digestVersion = 2

var errTrailing = errors.New("unknown data after the transaction: it may be of a newer ZooKeeper")

// decodeTxn decodes a transaction of a log (SerializeUtils.deserializeTxn). Its buffers alias b.
func decodeTxn(b []byte) (t Txn, err error) {
	d := jute.NewDecoder(b)
	t = Txn{Session: d.Long(), Cxid: d.Int(), Zxid: d.Long(), Time: d.Long(), Op: proto.OpCode(d.Int())}
	if d.Err() != nil {
		return t, d.Err()
	}
	if t.Op == proto.OpCloseSession && withoutPaths(d) {
		// It is of a release before 3.6, or of one that was told not to store paths.
	} else if err := t.decode(&d); err != nil {
		return t, err
	}
	if len(d.Rest()) == digestLen {
		version, digest := d.Int(), d.Long()
		t.HasDigest, t.Digest = version == digestVersion, uint64(digest)
	}
	if len(d.Rest()) > 0 {
		return t, errTrailing
	}
	return t, d.Err()
}

// withoutPaths reports whether a closeSession has no list of paths, but at most a digest. A list
// of the same length as a digest has one path of four bytes, and so begins with 1.
func withoutPaths(d jute.Decoder) bool {
	rest := len(d.Rest())
	return rest == 0 || rest == digestLen && d.Int() == digestVersion
}

// decode decodes what comes after the header.
func (t *Txn) decode(d *jute.Decoder) error {
	path := func() { t.Path = d.String() }
	node := func() {
		path()
		t.Data = d.Buffer()
		if t.ACL = proto.DecodeACL(d); t.ACL == nil {
			t.ACL = proto.OpenACL // as ReferenceCountedACLCache.convertAcls
		}
	}
	switch t.Op {
	case proto.OpCreateSession:
		t.Timeout = d.Int()
	case proto.OpCloseSession:
		t.Paths = d.Strings()
	case proto.OpCreate, proto.OpCreate2:
		node()
		t.Ephemeral = d.Bool()
		if t.ParentCversion = -1; t.Op == proto.OpCreate2 || len(d.Rest()) >= 4 { // CreateTxnV0 has none
			t.ParentCversion = d.Int()
		}
	case proto.OpCreateContainer:
		node()
		t.ParentCversion = d.Int()
	case proto.OpCreateTTL:
		node()
		t.ParentCversion, t.TTL = d.Int(), d.Long()
		if d.Err() == nil && (t.TTL < 1 || t.TTL > maxTTL) {
			return fmt.Errorf("a TTL of %d ms", t.TTL)
		}
	case proto.OpDelete, proto.OpDeleteContainer:
		path()
	case proto.OpSetData, proto.OpReconfig:
		path()
		t.Data, t.Version = d.Buffer(), d.Int()
	case proto.OpSetACL:
		path()
		if t.ACL = proto.DecodeACL(d); t.ACL == nil {
			t.ACL = proto.OpenACL
		}
		t.Version = d.Int()
	case proto.OpCheck:
		path()
		t.Version = d.Int()
	case proto.OpError:
		t.Err = d.Int()
	case proto.OpMulti:
		for n := d.Count(4 + 4); n > 0 && d.Err() == nil; n-- {
			op := Txn{Op: proto.OpCode(d.Int())}
			body := d.Buffer()
			if d.Err() != nil {
				break
			}
			switch op.Op {
			case proto.OpCreate, proto.OpCreate2, proto.OpCreateContainer, proto.OpCreateTTL, proto.OpDelete, proto.OpDeleteContainer,
				proto.OpSetData, proto.OpCheck, proto.OpError:
			default:
				return fmt.Errorf("a multi with an operation of type %d", op.Op)
			}
			part := jute.NewDecoder(body)
			if err := op.decode(&part); err != nil {
				return err
			}
			if len(part.Rest()) > 0 {
				return errTrailing
			}
			t.Ops = append(t.Ops, op)
		}
	default:
		return fmt.Errorf("a transaction of type %d, which is not known", t.Op)
	}
	return d.Err()
}
