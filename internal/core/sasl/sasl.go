// Package sasl is the server's side of SASL (RFC 4422), as far as ZooKeeper has it: the
// server's configuration decides on the mechanism, and a connection is authenticated at most once.
//
// The mechanism here is DIGEST-MD5. ZooKeeper's other one, GSSAPI, is in internal/tools/gssapi,
// because it needs a library that not every program with a server should contain.
package sasl

import "errors"

// Exchange is the state of one connection's authentication. It is not safe for concurrent use.
type Exchange interface {
	// Step takes a token of the client and returns the answer. After an error, User still
	// returns what it returned before.
	Step(token []byte) (answer []byte, err error)
	// User returns the name of the user who has authenticated; false as long as none has.
	User() (name string, ok bool)
}

// ErrUnanswered is in the errors after which ZooKeeper closes the connection without an
// answer. All other errors tell the client that it is not authenticated.
var ErrUnanswered = errors.New("no answer")
