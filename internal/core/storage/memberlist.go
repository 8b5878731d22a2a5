package storage

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Peers returns the servers of a configuration of Raft's, sorted by id, with nothing that only clients are told.
func Peers(c raft.Configuration) (members []proto.Peer) {
	for _, s := range c.Servers {
		members = append(members, proto.Peer{ID: MemberID(s.ID), Addr: string(s.Address), Observer: s.Suffrage != raft.Voter})
	}
	slices.SortFunc(members, func(a, b proto.Peer) int { return cmp.Compare(a.ID, b.ID) })
	return members
}

// Configuration is the inverse of [Peers].
func Configuration(members []proto.Peer) (c raft.Configuration) {
	for _, x := range members {
		s := raft.Server{ID: ServerID(x.ID), Address: raft.ServerAddress(x.Addr)}
		if x.Observer {
			s.Suffrage = raft.Nonvoter
		}
		c.Servers = append(c.Servers, s)
	}
	return c
}

// ServerID is Raft's id for a server.
func ServerID(id uint64) raft.ServerID { return raft.ServerID(strconv.FormatUint(id, 10)) }

// MemberID is the inverse of [ServerID]; it returns 0 for an empty id.
func MemberID(id raft.ServerID) uint64 {
	n, _ := strconv.ParseUint(string(id), 10, 64)
	return n
}
