package fsm

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// Import returns the state with these znodes and sessions, which come from servers that are not
// lockkeeper's. zxid is that of their last transaction. The quotas are counted again, and
// /zookeeper/config is emptied, since the members that it names are none of a cluster of lockkeeper.
// Before servers use the state, call [Machine.Restart].
func Import(zxid int64, nodes *znode.Restorer, sessions []session.Session) (*Machine, error) {
	m := NewMachine()
	tree, err := nodes.Tree()
	if err != nil {
		return nil, err
	}
	for _, path := range []string{znode.SystemPath, znode.ConfigPath, znode.QuotaPath} {
		if tree.Lookup(path) == nil {
			return nil, fmt.Errorf("fsm: there is no %s", path)
		}
	}
	tree.Recount()
	m.tree, m.zxid = tree, zxid
	for _, s := range sessions {
		if s.ID == 0 || m.sessions.Get(s.ID) != nil {
			return nil, fmt.Errorf("fsm: session %#x cannot exist, or occurs twice", uint64(s.ID))
		}
		m.sessions.Open(s)
	}
	if len(tree.Lookup(znode.ConfigPath).Record().Data) > 0 {
		m.begin()
		tree.SetConfig(&m.txn, []byte{})
	}
	return m, m.Check()
}
