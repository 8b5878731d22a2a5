package membership

import (
	"slices"

	"github.com/lockkeeper/lockkeeper/proto"
)

// without returns the list without the member with the given id.
func without(all []proto.Peer, id uint64) []proto.Peer {
	return slices.DeleteFunc(slices.Clone(all), func(x proto.Peer) bool { return x.ID == id })
}
