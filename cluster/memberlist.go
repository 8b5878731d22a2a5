package cluster

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/proto"
)

func infos(c raft.Configuration) (members []proto.Peer) {
	for _, s := range c.Servers {
		members = append(members, proto.Peer{ID: memberID(s.ID), Addr: string(s.Address), Observer: s.Suffrage != raft.Voter})
	}
	slices.SortFunc(members, func(a, b proto.Peer) int { return cmp.Compare(a.ID, b.ID) })
	return members
}

// without returns a function that removes a member from a list.
func without(id uint64) func([]proto.Peer) []proto.Peer {
	return func(all []proto.Peer) []proto.Peer {
		return slices.DeleteFunc(all, func(x proto.Peer) bool { return x.ID == id })
	}
}

// serverID is Raft's id for a server.
func serverID(id uint64) raft.ServerID { return raft.ServerID(strconv.FormatUint(id, 10)) }

// memberID is the inverse of serverID; it returns 0 for an empty id.
func memberID(id raft.ServerID) uint64 {
	n, _ := strconv.ParseUint(string(id), 10, 64)
	return n
}
