package membership

import (
	"slices"

	"github.com/lockkeeper/lockkeeper/proto"
)

// without returns a function that removes a member from a list.
func without(id uint64) func([]proto.Peer) []proto.Peer {
	return func(all []proto.Peer) []proto.Peer {
		return slices.DeleteFunc(all, func(x proto.Peer) bool { return x.ID == id })
	}
}
