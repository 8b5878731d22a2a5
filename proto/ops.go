package proto

import "github.com/lockkeeper/lockkeeper/jute"

// OpCode is the type of a request (ZooDefs.OpCode).
type OpCode int32

// The opcodes of client requests, and the two internal ones that ZooKeeper
// numbers too (createSession, closeSession).
const (
	OpCreate               OpCode = 1
	OpDelete               OpCode = 2
	OpExists               OpCode = 3
	OpGetData              OpCode = 4
	OpSetData              OpCode = 5
	OpGetACL               OpCode = 6
	OpSetACL               OpCode = 7
	OpGetChildren          OpCode = 8
	OpSync                 OpCode = 9
	OpPing                 OpCode = 11
	OpGetChildren2         OpCode = 12
	OpCheck                OpCode = 13
	OpMulti                OpCode = 14
	OpCreate2              OpCode = 15
	OpReconfig             OpCode = 16
	OpCheckWatches         OpCode = 17
	OpRemoveWatches        OpCode = 18
	OpCreateContainer      OpCode = 19
	OpDeleteContainer      OpCode = 20
	OpCreateTTL            OpCode = 21
	OpMultiRead            OpCode = 22
	OpAuth                 OpCode = 100
	OpSetWatches           OpCode = 101
	OpSASL                 OpCode = 102
	OpGetEphemerals        OpCode = 103
	OpGetAllChildrenNumber OpCode = 104
	OpSetWatches2          OpCode = 105
	OpAddWatch             OpCode = 106
	OpWhoAmI               OpCode = 107
	OpCreateSession        OpCode = -10
	OpCloseSession         OpCode = -11
	OpError                OpCode = -1 // the type of a failed result in a multi reply
)

// Class says which way a request takes through the server.
type Class int

const (
	// Write goes through the replicated log and is answered when it is applied.
	Write Class = iota + 1
	// Read is answered from the tree of this server.
	Read
	// Connection concerns the connection alone: ping, auth, sasl.
	Connection
	// Part is an operation that exists only inside a multi.
	Part
)

// Record is a request or reply body that can be written and read back.
type Record interface {
	// Append appends the record's encoding to b.
	Append(b []byte) []byte
	// Decode reads the record; errors stay in d. Buffers may alias d's input.
	Decode(d *jute.Decoder)
}

// Op is one row of the table of operations: all that is known of an opcode
// before its handler is looked up.
type Op struct {
	Code    OpCode
	Name    string        // ZooKeeper's name
	Short   string        // the name in the four-letter word cons (Request.op2String, cut to 4)
	Class   Class         // which way it takes
	InMulti OpCode        // the multi that may carry it: OpMulti, OpMultiRead or 0
	Request func() Record // a new request record
	Reply   func() Record // a new reply record, nil if a good reply has no body
}

func rec[T any, P interface {
	*T
	Record
}]() func() Record {
	return func() Record { return P(new(T)) }
}

// Ops is the table of the operations that this server knows, in order of their
// numbers. A request of any other type is answered Unimplemented, and the
// connection is closed (UnimplementedRequestProcessor).
var Ops = []Op{
	{OpCloseSession, "closeSession", "CLOS", Write, 0, rec[Empty](), nil},
	{OpCreate, "create", "CREA", Write, OpMulti, rec[CreateRequest](), rec[PathReply]()},
	{OpDelete, "delete", "DELE", Write, OpMulti, rec[PathVersion](), nil},
	{OpExists, "exists", "EXIS", Read, 0, rec[PathWatch](), rec[Stat]()},
	{OpGetData, "getData", "GETD", Read, OpMultiRead, rec[PathWatch](), rec[DataReply]()},
	{OpSetData, "setData", "SETD", Write, OpMulti, rec[SetDataRequest](), rec[Stat]()},
	{OpGetACL, "getACL", "GETA", Read, 0, rec[Path](), rec[ACLReply]()},
	{OpSetACL, "setACL", "SETA", Write, 0, rec[SetACLRequest](), rec[Stat]()},
	{OpGetChildren, "getChildren", "GETC", Read, OpMultiRead, rec[PathWatch](), rec[ChildrenReply]()},
	{OpSync, "sync", "SYNC", Write, 0, rec[Path](), rec[Path]()},
	{OpPing, "ping", "PING", Connection, 0, rec[Empty](), nil},
	{OpGetChildren2, "getChildren2", "GETC", Read, 0, rec[PathWatch](), rec[Children2Reply]()},
	{OpCheck, "check", "CHEC", Part, OpMulti, rec[PathVersion](), nil},
	{OpMulti, "multi", "MULT", Write, 0, rec[MultiRequest](), rec[MultiReply]()},
	{OpCreate2, "create2", "CREA", Write, OpMulti, rec[CreateRequest](), rec[PathStatReply]()},
	{OpReconfig, "reconfig", "RECO", Write, 0, rec[ReconfigRequest](), rec[DataReply]()},
	{OpCheckWatches, "checkWatches", "CHKW", Read, 0, rec[PathType](), nil},
	{OpRemoveWatches, "removeWatches", "REMW", Read, 0, rec[PathType](), nil},
	{OpCreateContainer, "createContainer", "CREA", Write, OpMulti, rec[CreateRequest](), rec[PathStatReply]()},
	{OpCreateTTL, "createTTL", "CREA", Write, OpMulti, rec[CreateTTLRequest](), rec[PathStatReply]()},
	{OpMultiRead, "multiRead", "MLTR", Read, 0, rec[MultiReadRequest](), rec[MultiReply]()},
	{OpAuth, "auth", "AUTH", Connection, 0, rec[AuthRequest](), nil},
	{OpSetWatches, "setWatches", "SETW", Read, 0, rec[SetWatchesRequest](), nil},
	{OpSASL, "sasl", "SASL", Connection, 0, rec[SASLRequest](), rec[SASLReply]()},
	{OpGetEphemerals, "getEphemerals", "GETE", Read, 0, rec[Path](), rec[StringsReply]()},
	{OpGetAllChildrenNumber, "getAllChildrenNumber", "GETACN", Read, 0, rec[Path](), rec[IntReply]()},
	{OpSetWatches2, "setWatches2", "STW2", Read, 0, rec[SetWatches2Request](), nil},
	{OpAddWatch, "addWatch", "ADDW", Read, 0, rec[PathType](), rec[IntReply]()},
	{OpWhoAmI, "whoAmI", "HOMI", Read, 0, rec[Empty](), rec[WhoAmIReply]()},
}

// OpByCode is the row of an opcode, or nil if the server does not know it.
func OpByCode(c OpCode) *Op {
	if c >= 0 && int(c) < len(opIndex) {
		return opIndex[c]
	}
	if c == OpCloseSession {
		return &Ops[0]
	}
	return nil
}

// opIndex is a direct look-up of the positive opcodes, on the path of every request.
var opIndex = func() (index [128]*Op) {
	for i := range Ops {
		if c := Ops[i].Code; c >= 0 {
			index[c] = &Ops[i]
		}
	}
	return index
}()
