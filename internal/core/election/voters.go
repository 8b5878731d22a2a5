package election

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Find returns the member with the given id, or nil.
func Find(members []proto.Peer, id uint64) *proto.Peer {
	for i := range members {
		if members[i].ID == id {
			return &members[i]
		}
	}
	return nil
}

// CountVoters counts the members that have a vote.
func CountVoters(members []proto.Peer) (n int) {
	for _, x := range members {
		if !x.Observer {
			n++
		}
	}
	return n
}

// Without returns the list without the member with the given id.
func Without(members []proto.Peer, id uint64) []proto.Peer {
	return slices.DeleteFunc(slices.Clone(members), func(x proto.Peer) bool { return x.ID == id })
}

// Named lists members for messages.
func Named(members []proto.Peer) string {
	var list []string
	for _, x := range members {
		list = append(list, fmt.Sprintf("server %d at %s", x.ID, x.Addr))
	}
	return strings.Join(list, ", ")
}
