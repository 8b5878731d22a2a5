package proto

import "github.com/lockkeeper/lockkeeper/jute"

// OpCode is the type of a request or operation (ZooDefs.OpCode).
type OpCode int32

// ZooKeeper's opcodes. Clients never send OpCreateSession: the server proposes it when
// a client connects.
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
	OpError                OpCode = -1 // in the reply to a multi, the type of a failed result
)

// Class says how the server processes a request.
type Class int

const (
	// Write requests are replicated, and answered when this server has applied them.
	Write Class = iota + 1
	// Read requests are answered from this server's own copy of the state.
	Read
	// Connection requests concern only the connection: ping, auth, sasl.
	Connection
	// Part operations exist only inside a multi.
	Part
)

// Record is a part of a message that can be encoded and decoded, such as the body of a
// request or reply.
type Record interface {
	// Append appends the encoding of the record to b.
	Append(b []byte) []byte
	// Decode reads the record from d, which keeps the error if there is one. The
	// record's buffers may alias d's input.
	Decode(d *jute.Decoder)
}

// Op describes an operation. It is a row of the table [Ops].
type Op struct {
	Code    OpCode
	Name    string        // ZooKeeper's name
	Short   string        // abbreviated name for the four-letter word cons (Request.op2String)
	Class   Class         // how the server processes it
	InMulti OpCode        // which multi it is allowed in: OpMulti, OpMultiRead or 0
	Request func() Record // returns a new request record
	Reply   func() Record // returns a new reply record; nil if a reply has no body
}

func rec[T any, P interface {
	*T
	Record
}]() func() Record {
	return func() Record { return P(new(T)) }
}

// Ops is the table of the operations that the server knows, in order of their opcodes.
// The server answers any other request with Unimplemented and closes the connection
// (UnimplementedRequestProcessor).
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
	{OpGetEphemerals, "getEphemerals", "GETE", Read, 0, rec[Path](), rec[ChildrenReply]()},
	{OpGetAllChildrenNumber, "getAllChildrenNumber", "GETACN", Read, 0, rec[Path](), rec[IntReply]()},
	{OpSetWatches2, "setWatches2", "STW2", Read, 0, rec[SetWatches2Request](), nil},
	{OpAddWatch, "addWatch", "ADDW", Read, 0, rec[PathType](), rec[IntReply]()},
	{OpWhoAmI, "whoAmI", "HOMI", Read, 0, rec[Empty](), rec[WhoAmIReply]()},
}

// OpByCode returns the operation with the given opcode, or nil if the server does not
// know it.
func OpByCode(c OpCode) *Op {
	if c >= 0 && int(c) < len(opIndex) {
		return opIndex[c]
	}
	if c == OpCloseSession {
		return &Ops[0]
	}
	return nil
}

// opIndex maps the positive opcodes to their rows. It is an array rather than a map
// because every request uses it.
var opIndex = func() (index [128]*Op) {
	for i := range Ops {
		if c := Ops[i].Code; c >= 0 {
			index[c] = &Ops[i]
		}
	}
	return index
}()
