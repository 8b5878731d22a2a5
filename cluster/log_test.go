package cluster

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
)

func TestOfConnection(t *testing.T) {
	reset := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	for err, want := range map[error]bool{
		reset: true,
		errors.New("msgpack decode error [pos 0]: " + reset.Error()): true,
		raft.ErrTransportShutdown:                                    true,
		raft.ErrLogNotFound:                                          false,
		errors.New("EOF in snapshot"):                                false,
	} {
		if ofConnection(err) != want {
			t.Errorf("%v: %v", err, !want)
		}
	}
}
