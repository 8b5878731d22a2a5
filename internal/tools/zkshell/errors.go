package zkshell

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Exit codes, as zkCli has them.
const (
	exitOK       = 0
	exitFailed   = 1
	exitNotFound = 127 // no such command
)

// cliError is an error of a command: a line for the user.
type cliError struct {
	text string
	exit int
	code proto.Code // what the server answered, or 0
}

func (e *cliError) Error() string { return e.text }

// Unwrap returns the server's code, if there is one.
func (e *cliError) Unwrap() error {
	if e.code == 0 {
		return nil
	}
	return e.code
}

// usage is the error for wrong arguments.
func usage(text string) error { return &cliError{text: text, exit: exitFailed} }

// codes are the texts that differ from proto's names (KeeperException.getCodeMessage).
var codes = map[proto.Code]string{
	codeConnectionLoss: "ConnectionLoss", -3: "DataInconsistency", -7: "OperationTimeout", -100: "APIError",
	proto.NotEmpty: "Directory not empty", proto.SessionExpired: "Session expired", proto.SessionMoved: "Session moved",
	proto.NotReadOnly: "Not a read-only call", codeLocalSession: "Ephemeral node on local session",
	proto.NoWatcher: "No such watcher", proto.ReconfigDisabled: "Reconfig is disabled",
	proto.SessionClosedRequireSASLAuth: "Session closed because client failed to authenticate",
	proto.QuotaExceeded:                "Quota has exceeded", proto.ThrottledOp: "Op throttled due to high load",
}

// codeLocalSession is the answer to the creation of an ephemeral znode in a local session,
// which lockkeeper does not have.
const codeLocalSession proto.Code = -120

// keeperText is the general text for a code (KeeperException.getMessage). Without a path,
// path is "".
func keeperText(code proto.Code, path string) string {
	text, ok := codes[code]
	if !ok {
		text = code.String()
	}
	if text = "KeeperErrorCode = " + text; path != "" {
		text += " for " + path
	}
	return text
}

// noPath is the path in errors of requests without one. It is what Java prints.
const noPath = "null"

// wrap turns an error of the client into the text that zkCli prints (CliWrapperException).
// It does not change an error that has its text already.
func wrap(err error, path string) error {
	if errors.As(err, new(*cliError)) {
		return err
	}
	var code proto.Code
	if !errors.As(err, &code) {
		switch {
		case err == nil:
			return nil
		case errors.Is(err, context.Canceled):
			return usage("interrupted")
		}
		return usage(err.Error())
	}
	formats := map[proto.Code]string{
		proto.NoNode:                  "Node does not exist: %s",
		proto.NoChildrenForEphemerals: "Ephemerals cannot have children: %s",
		proto.NodeExists:              "Node already exists: %s",
		proto.NotEmpty:                "Node not empty: %s",
		proto.NotReadOnly:             "Not a read-only call: %s",
		proto.InvalidACL:              "Acl is not valid : %s",
		proto.NoAuth:                  "Insufficient permission : %s",
		proto.BadArguments:            "Arguments are not valid : %s",
		proto.BadVersion:              "version No is not valid : %s",
		proto.QuotaExceeded:           "Quota has exceeded : %s",
	}
	text := ""
	switch format, ok := formats[code]; {
	case ok:
		text = fmt.Sprintf(format, path)
	case code == proto.ReconfigInProgress:
		text = "Another reconfiguration is in progress -- concurrent reconfigs not supported (yet)"
	case code == proto.NewConfigNoQuorum:
		text = "No quorum of new config is connected and up-to-date with the leader of last commmitted config - try invoking reconfiguration after new servers are connected and synced"
	case path == noPath:
		text = keeperText(code, "")
	default:
		text = keeperText(code, path)
	}
	return &cliError{text: text, exit: exitFailed, code: code}
}
