package engine

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// loneTransport is the transport of a standalone server. It delivers a single
// message, TimeoutNow, which makes Raft start an election at once instead of first
// waiting for a leader.
type loneTransport struct {
	*raft.InmemTransport
	incoming chan raft.RPC
}

func newLoneTransport(addr raft.ServerAddress) *loneTransport {
	_, t := raft.NewInmemTransport(addr)
	incoming := make(chan raft.RPC, 1)
	incoming <- raft.RPC{
		Command:  &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}},
		RespChan: make(chan raft.RPCResponse, 1),
	}
	return &loneTransport{t, incoming}
}

func (t *loneTransport) Consumer() <-chan raft.RPC { return t.incoming }

// LoneAddress takes the place of an address for a standalone server, which has none.
func LoneAddress(id uint64) string { return fmt.Sprintf("server-%d", id) }
