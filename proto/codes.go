package proto

import "strconv"

// Code is the error code in a reply header (KeeperException.Code). It implements
// error, which must not be used with OK.
type Code int32

// The codes that a server sends. ZooKeeper's clients use other codes internally.
const (
	OK                           Code = 0
	SystemError                  Code = -1
	RuntimeInconsistency         Code = -2
	MarshallingError             Code = -5
	Unimplemented                Code = -6
	BadArguments                 Code = -8
	UnknownSession               Code = -12
	NewConfigNoQuorum            Code = -13
	ReconfigInProgress           Code = -14
	NoNode                       Code = -101
	NoAuth                       Code = -102
	BadVersion                   Code = -103
	NoChildrenForEphemerals      Code = -108
	NodeExists                   Code = -110
	NotEmpty                     Code = -111
	SessionExpired               Code = -112
	InvalidACL                   Code = -114
	AuthFailed                   Code = -115
	SessionMoved                 Code = -118
	NotReadOnly                  Code = -119
	NoWatcher                    Code = -121
	ReconfigDisabled             Code = -123
	SessionClosedRequireSASLAuth Code = -124 // an authentication scheme is enforced, not necessarily SASL
	QuotaExceeded                Code = -125
	ThrottledOp                  Code = -127
)

var codeNames = map[Code]string{
	OK: "Ok", SystemError: "SystemError", RuntimeInconsistency: "RuntimeInconsistency",
	MarshallingError: "MarshallingError", Unimplemented: "Unimplemented", BadArguments: "BadArguments",
	UnknownSession: "UnknownSession", NewConfigNoQuorum: "NewConfigNoQuorum", ReconfigInProgress: "ReconfigInProgress", NoNode: "NoNode", NoAuth: "NoAuth", BadVersion: "BadVersion",
	NoChildrenForEphemerals: "NoChildrenForEphemerals", NodeExists: "NodeExists", NotEmpty: "NotEmpty",
	SessionExpired: "SessionExpired", InvalidACL: "InvalidACL", AuthFailed: "AuthFailed",
	SessionMoved: "SessionMoved", NotReadOnly: "NotReadOnly", NoWatcher: "NoWatcher",
	ReconfigDisabled: "ReconfigDisabled", SessionClosedRequireSASLAuth: "SessionClosedRequireSaslAuth", QuotaExceeded: "QuotaExceeded", ThrottledOp: "ThrottledOp",
}

// String returns ZooKeeper's name of the code, or its number if it has none.
func (c Code) String() string {
	if s, ok := codeNames[c]; ok {
		return s
	}
	return strconv.Itoa(int(c))
}

func (c Code) Error() string { return c.String() }
