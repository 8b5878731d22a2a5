package migrate

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/tools/zkdata"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// Machine returns the state as lockkeeper has it. The sessions have the passwords that ZooKeeper has
// given their clients. What had to be changed is noted in f.
func Machine(s *zkdata.State, f *Found) (*fsm.Machine, error) {
	if s.Zxid > lastZxid {
		return nil, fmt.Errorf("zxid 0x%x leaves too few epochs above it", s.Zxid)
	}
	children := map[string]int64{}
	for path := range s.All() {
		if path != znode.Root {
			children[path[:strings.LastIndexByte(path, '/')]]++
		}
	}
	nodes := znode.NewRestorer()
	fixed, firstFixed := 0, ""
	for path, n := range s.All() {
		r := znode.Record{
			Path: path, Data: n.Data, ACL: n.ACL, Czxid: n.Czxid, Mzxid: n.Mzxid, Pzxid: n.Pzxid, Ctime: n.Ctime, Mtime: n.Mtime,
			Creates: int64(uint32(n.Cversion)), // which goes on below zero when it overflows
			Version: n.Version, Aversion: n.Aversion, Kind: s.Kind(n),
		}
		switch r.Kind {
		case znode.Ephemeral:
			r.Owner = n.Owner
		case znode.TTL:
			r.Owner = n.TTL()
		}
		if now := children[strings.TrimSuffix(path, "/")]; r.Creates < now && !alwaysThere(path) {
			if fixed++; fixed == 1 || path < firstFixed {
				firstFixed = path
			}
			r.Creates = now
		}
		if err := nodes.Add(&r); err != nil {
			return nil, err
		}
	}
	if fixed > 0 {
		f.note("%d znodes had more children than were ever created below them, by their cversion, which was raised; the first is %s", fixed, firstFixed)
	}
	var sessions []session.Session
	for id, timeout := range s.Sessions {
		sessions = append(sessions, session.Session{ID: id, Timeout: timeout, Password: session.ZooKeeperPassword(id)})
	}
	return fsm.Import(s.Zxid, nodes, sessions)
}

// lastZxid leaves room for the epochs that [fsm.Machine.Restart] skips, and many more.
const lastZxid = (1<<31 - 1<<20) << 32

// alwaysThere reports whether every tree has the znode, without a transaction that has created it.
func alwaysThere(path string) bool {
	return path == znode.Root || path == znode.SystemPath || path == znode.QuotaPath || path == znode.ConfigPath
}

// Moment is the state of a server at one moment, which does not change: a [fsm.Snapshot].
type Moment interface {
	Zxid() int64
	Term() uint64
	Sessions() session.List
	Clustered() bool // it has members
	Len() int        // how many znodes there are
	Append(b []byte, i int) []byte
	Intact() error
}

// Made is the state of lockkeeper as ZooKeeper has it, with what ZooKeeper cannot take over, or not without being told so.
type Made struct {
	zkdata.Content
	Znodes      int
	Strangers   []int64 // the sessions with passwords that ZooKeeper does not accept
	TTLs        int     // znodes with a TTL
	LongestData int     // of a znode, in bytes
}

// ForZooKeeper returns the state as ZooKeeper has it, for a server that begins a new epoch, and for the command snapshot. It does not
// copy the state: the result reads m each time that it is written, and until ctx ends. Besides that it has eight bytes for each znode,
// the timeouts of sessions, and each different ACL.
func ForZooKeeper(ctx context.Context, m Moment) (*Made, error) {
	if err := m.Intact(); err != nil {
		return nil, err
	}
	c := &Made{Content: zkdata.Content{Sessions: map[int64]int32{}}, Znodes: m.Len()}
	c.Zxid = (max(m.Zxid()>>32, int64(m.Term())) + 1) << 32
	if c.Zxid <= 0 {
		return nil, fmt.Errorf("no zxid is above 0x%x", m.Zxid())
	}
	for x := range m.Sessions().All() {
		if uint64(x.ID)>>56 == 0xff || x.ID == zkdata.ContainerOwner {
			return nil, fmt.Errorf("ZooKeeper cannot have the session %s: it takes such an owner for a container or a TTL", session.FormatID(x.ID))
		}
		c.Sessions[x.ID] = x.Timeout
		if x.Password != session.ZooKeeperPassword(x.ID) {
			c.Strangers = append(c.Strangers, x.ID)
		}
	}
	// The znodes in the order of how deep they are have parents before their children.
	order, depths := make([]int32, m.Len()), make([]int32, m.Len())
	for i := range order {
		order[i] = int32(i)
	}
	each := func(f func(i int32, r *znode.Record) error) error {
		var b []byte
		var r znode.Record // one for all, so that a large state makes little garbage
		for k, i := range order {
			if k%1024 == 0 && ctx.Err() != nil {
				return context.Cause(ctx)
			}
			b = m.Append(b[:0], int(i))
			var err error
			if r, _, err = znode.DecodeRecord(b); err != nil {
				return err
			}
			if err := f(i, &r); err != nil {
				return err
			}
		}
		return nil
	}
	limits, parents := []string{}, map[string]bool{}
	err := each(func(i int32, r *znode.Record) error {
		if r.Creates > math.MaxInt32 {
			return fmt.Errorf("ZooKeeper cannot have %s: it has had %d children, more than fit into its cversion", r.Path, r.Creates)
		}
		if strings.HasPrefix(r.Path, znode.QuotaPath+limitsName) {
			parents[r.Path[:strings.LastIndexByte(r.Path, '/')]] = true
			if strings.HasSuffix(r.Path, limitsName) {
				limits = append(limits, r.Path)
			}
		}
		if r.Path != znode.Root {
			depths[i] = int32(strings.Count(r.Path, "/"))
		}
		if r.Kind == znode.TTL {
			c.TTLs++
		}
		c.LongestData = max(c.LongestData, len(r.Data))
		c.ACLs.Add(r.ACL)
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(limits)
	for _, path := range limits {
		if !parents[path] {
			return nil, fmt.Errorf("ZooKeeper does not start with %s: it takes it for a quota on the root. Delete it first", path)
		}
	}
	slices.SortFunc(order, func(i, k int32) int { return cmp.Or(cmp.Compare(depths[i], depths[k]), cmp.Compare(i, k)) })
	c.Nodes = func(write func(path string, n *zkdata.Node) error) error {
		var n zkdata.Node
		return each(func(_ int32, r *znode.Record) error {
			n = nodeOf(r, m, c.Zxid)
			return write(r.Path, &n)
		})
	}
	return c, nil
}

// limitsName ends the path of what ZooKeeper takes for the limits of a quota, if it has no children. A quota on the root
// stops it at every start (DataTree.traverseNode).
const limitsName = "/zookeeper_limits"

// nodeOf returns a znode as ZooKeeper has it. Its data is that of r.
func nodeOf(r *znode.Record, m Moment, zxid int64) zkdata.Node {
	n := zkdata.Node{
		Data: r.Data, ACL: r.ACL, Czxid: r.Czxid, Mzxid: r.Mzxid, Pzxid: r.Pzxid, Ctime: r.Ctime, Mtime: r.Mtime,
		Version: r.Version, Cversion: int32(r.Creates), Aversion: r.Aversion,
	}
	switch r.Kind {
	case znode.Ephemeral:
		n.Owner = r.Owner
	case znode.Container:
		n.Owner = zkdata.ContainerOwner
	case znode.TTL:
		n.Owner = zkdata.TTLOwner(r.Owner)
	}
	if r.Path == znode.ConfigPath && m.Clustered() {
		n.Data, n.Mzxid = []byte{}, zxid // the members are lockkeeper's
	}
	return n
}
