package zkdata

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// Node is a znode with what ZooKeeper stores of it (DataNode, StatPersisted).
type Node struct {
	Data                        []byte // nil for null
	ACL                         []proto.ACL
	Czxid, Mzxid, Pzxid         int64
	Ctime, Mtime                int64 // ms since the epoch
	Version, Cversion, Aversion int32 // Cversion is the number of children ever created
	// Owner is the session of an ephemeral, [ContainerOwner], or what [TTLOwner] returns; see
	// [State.Kind].
	Owner int64

	noACL  int64 // if not 0, the snapshot names the ACL by this number, and does not have it
	digest uint64
}

// ContainerOwner is the owner of containers (EphemeralType.CONTAINER_EPHEMERAL_OWNER).
const ContainerOwner = -1 << 63

const (
	extendedMask = 0xff << 56       // set in owners that are no sessions
	featureMask  = 0xffff << 40     // which feature it is: 0 is a TTL
	maxTTL       = int64(1)<<40 - 1 // ms
)

// TTLOwner returns the owner of a znode with a TTL in ms, between 1 and 2^40-1.
func TTLOwner(ttl int64) int64 { return int64(-1)<<56 | ttl }

// State is a tree of znodes with the sessions, at one transaction. It is not safe for concurrent
// use.
type State struct {
	Zxid     int64           // of the last transaction
	Sessions map[int64]int32 // timeouts in ms

	nodes  map[string]*Node // by path; the root's is "/"
	owned  map[int64]map[string]struct{}
	digest uint64 // sum of the digests of all znodes (AdHash)

	// A snapshot may hold a part of the transactions up to exactAt: only from there on are digests
	// comparable.
	exactAt     int64
	exactDigest uint64
	noDigest    bool // the snapshot does not say from where on digests are comparable

	digests    int // how many digests were compared
	firstWrong int64
	// doubtful is the zxid of the snapshot's digest if that was wrong. The server notes a digest after
	// the changes, so the snapshot may have those of the next transaction already. Then
	// the digest after that one is right.
	doubtful int64
}

// NewState returns the state of a new server.
func NewState() *State {
	s := emptyState()
	s.put("/", &Node{Data: []byte{}, ACL: proto.OpenACL})
	s.put("/zookeeper", &Node{Data: []byte{}, ACL: proto.OpenACL})
	s.put("/zookeeper/quota", &Node{Data: []byte{}, ACL: proto.OpenACL})
	s.AddConfig()
	return s
}

func emptyState() *State {
	return &State{Sessions: map[int64]int32{}, nodes: map[string]*Node{}, owned: map[int64]map[string]struct{}{}}
}

// ConfigPath is the path of the znode with the members.
const ConfigPath = "/zookeeper/config"

// AddConfig adds the znode that releases before 3.5 do not have, as later ones do when they start
// with data of those (DataTree.addConfigNode). If it is there, AddConfig does nothing.
func (s *State) AddConfig() {
	if s.nodes[ConfigPath] == nil && s.nodes["/zookeeper"] != nil {
		s.put(ConfigPath, &Node{Data: []byte{}, ACL: []proto.ACL{{Perms: proto.PermRead, ID: proto.OpenACL[0].ID}}, Aversion: -1})
	}
}

// Len returns the number of znodes.
func (s *State) Len() int { return len(s.nodes) }

// Get returns a znode, which the caller must not change, or nil.
func (s *State) Get(path string) *Node { return s.nodes[path] }

// All returns the znodes by their paths, in no particular order. The caller must not change them.
func (s *State) All() iter.Seq2[string, *Node] { return maps.All(s.nodes) }

// Paths returns the paths of all znodes, parents before their children.
func (s *State) Paths() []string { return slices.Sorted(maps.Keys(s.nodes)) }

// Kind returns the kind of a znode. What looks like a TTL is a session if there is one with that id,
// which a server with id 255 may have.
func (s *State) Kind(n *Node) znode.Kind {
	_, session := s.Sessions[n.Owner]
	switch {
	case n.Owner == 0:
		return znode.Persistent
	case n.Owner == ContainerOwner:
		return znode.Container
	case !session && uint64(n.Owner)&extendedMask == extendedMask && n.Owner&featureMask == 0:
		return znode.TTL
	}
	return znode.Ephemeral
}

// TTL returns the TTL in ms of a znode of kind [znode.TTL].
func (n *Node) TTL() int64 { return n.Owner & maxTTL }

func (s *State) put(path string, n *Node) {
	if old := s.nodes[path]; old != nil {
		s.forget(path, old)
	}
	s.nodes[path] = n
	n.digest = digestOf(path, n)
	s.digest += n.digest
	if n.Owner != 0 && n.Owner != ContainerOwner {
		if s.owned[n.Owner] == nil {
			s.owned[n.Owner] = map[string]struct{}{}
		}
		s.owned[n.Owner][path] = struct{}{}
	}
}

// forget removes what put has noted about a znode.
func (s *State) forget(path string, n *Node) {
	s.digest -= n.digest
	if owned := s.owned[n.Owner]; owned != nil {
		if delete(owned, path); len(owned) == 0 {
			delete(s.owned, n.Owner)
		}
	}
}

// edit changes a znode, but not its owner.
func (s *State) edit(path string, n *Node, change func()) {
	s.digest -= n.digest
	change()
	n.digest = digestOf(path, n)
	s.digest += n.digest
}

// digestOf returns a znode's part of the digest (DigestCalculator, version 2).
func digestOf(path string, n *Node) uint64 {
	var d digester
	return d.of(path, n)
}

// digester computes digests of znodes, and keeps its buffer for the next one.
type digester struct{ buf []byte }

func (d *digester) of(path string, n *Node) uint64 {
	switch {
	case strings.HasPrefix(path, "/zookeeper/"):
		return 0
	case path == "/":
		path = ""
	}
	d.buf = append(d.buf[:0], path...)
	sum := crc32.ChecksumIEEE(d.buf)
	sum = crc32.Update(sum, crc32.IEEETable, n.Data)
	at := d.buf[:0]
	for _, v := range [...]int64{n.Czxid, n.Mzxid, n.Pzxid, n.Ctime, n.Mtime} {
		at = binary.BigEndian.AppendUint64(at, uint64(v))
	}
	for _, v := range [...]int32{n.Version, n.Cversion, n.Aversion} {
		at = binary.BigEndian.AppendUint32(at, uint32(v))
	}
	d.buf = binary.BigEndian.AppendUint64(at, uint64(n.Owner))
	return uint64(crc32.Update(sum, crc32.IEEETable, d.buf))
}

// parent returns the path of a znode's parent; path is not the root's.
func parent(path string) string { return cmp.Or(path[:strings.LastIndexByte(path, '/')], "/") }

// create carries out a create. What exists stays, but gets the ACL, which a fuzzy snapshot may not
// have. In either case the parent learns of its new child (DataTree.createNode, and
// setCversionPzxid for a create of what exists).
func (s *State) create(t *Txn, h *Txn, owner int64) {
	up := parent(t.Path)
	p := s.nodes[up]
	if p == nil {
		return // it is deleted later
	}
	if n := s.nodes[t.Path]; n != nil {
		n.ACL, n.noACL = t.ACL, 0
	} else {
		s.put(t.Path, &Node{
			Data: t.Data, ACL: t.ACL, Czxid: h.Zxid, Mzxid: h.Zxid, Pzxid: h.Zxid, Ctime: h.Time, Mtime: h.Time, Owner: owner,
		})
	}
	cversion := t.ParentCversion
	if cversion == -1 { // of a release before 3.4
		cversion = p.Cversion + 1
	}
	if cversion > p.Cversion {
		s.edit(up, p, func() { p.Cversion, p.Pzxid = cversion, h.Zxid })
	}
}

// remove deletes a znode. If a fuzzy snapshot does not have it, the parent still learns of it.
func (s *State) remove(path string, zxid int64) {
	if path == "/" {
		return
	}
	up := parent(path)
	p := s.nodes[up]
	if p == nil {
		return
	}
	if zxid > p.Pzxid {
		s.edit(up, p, func() { p.Pzxid = zxid })
	}
	if n := s.nodes[path]; n != nil {
		s.forget(path, n)
		delete(s.nodes, path)
	}
}

// Apply applies a transaction. What is done already, because the snapshot was fuzzy, is ignored.
// The error means that a path cannot be one of a znode.
func (s *State) Apply(t *Txn) error {
	failed := t.Op == proto.OpMulti && slices.ContainsFunc(t.Ops, func(t Txn) bool { return t.Op == proto.OpError })
	ops := []Txn{*t}
	if failed {
		ops = nil
	} else if t.Op == proto.OpMulti {
		ops = t.Ops
	}
	for i := range ops {
		if err := s.apply(&ops[i], t); err != nil {
			return err
		}
	}
	s.Zxid = max(s.Zxid, t.Zxid)
	if t.Zxid == s.exactAt {
		s.compareExact()
	} else if t.Zxid > s.exactAt && t.HasDigest && !s.noDigest {
		s.digests++
		s.doubtful = 0
		if s.digest != t.Digest && s.firstWrong == 0 {
			s.firstWrong = t.Zxid
		}
	}
	return nil
}

// Written returns the zxid at which the server was when it had written the snapshot, as far as the snapshot
// says so. The state may have a part of the transactions up to there.
func (s *State) Written() int64 { return max(s.Zxid, s.exactAt) }

// compareExact compares the digest of the snapshot.
func (s *State) compareExact() {
	s.digests++
	if s.digest != s.exactDigest {
		s.doubtful = s.exactAt
	}
}

// Digests returns how often the digest that ZooKeeper has stored with a transaction was compared
// with that of the state, and the zxid where they differed first; 0 if they never did. Releases
// before 3.6 store none.
func (s *State) Digests() (compared int, wrong int64) {
	if wrong = s.firstWrong; wrong == 0 && s.doubtful == s.Zxid { // no transaction comes after it
		wrong = s.doubtful
	}
	return s.digests, wrong
}

// apply carries out one operation of the transaction h.
func (s *State) apply(t, h *Txn) error {
	paths := t.Paths
	switch t.Op {
	case proto.OpCreateSession, proto.OpCloseSession, proto.OpError: // have no Path
	default:
		paths = []string{t.Path}
	}
	for _, path := range paths {
		if !strings.HasPrefix(path, "/") {
			return fmt.Errorf("%q is not the path of a znode", path)
		}
	}
	switch t.Op {
	case proto.OpCreateSession:
		s.Sessions[h.Session] = t.Timeout
	case proto.OpCloseSession:
		delete(s.Sessions, h.Session)
		for _, path := range t.Paths {
			s.remove(path, h.Zxid)
		}
		for _, path := range slices.Sorted(maps.Keys(s.owned[h.Session])) {
			s.remove(path, h.Zxid)
		}
	case proto.OpCreate, proto.OpCreate2:
		owner := int64(0)
		if t.Ephemeral {
			owner = h.Session
		}
		s.create(t, h, owner)
	case proto.OpCreateContainer:
		s.create(t, h, ContainerOwner)
	case proto.OpCreateTTL:
		s.create(t, h, TTLOwner(t.TTL))
	case proto.OpDelete, proto.OpDeleteContainer:
		s.remove(t.Path, h.Zxid)
	case proto.OpSetData, proto.OpReconfig:
		if n := s.nodes[t.Path]; n != nil {
			s.edit(t.Path, n, func() { n.Data, n.Version, n.Mzxid, n.Mtime = t.Data, t.Version, h.Zxid, h.Time })
		}
	case proto.OpSetACL:
		if n := s.nodes[t.Path]; n != nil {
			s.edit(t.Path, n, func() { n.ACL, n.noACL, n.Aversion = t.ACL, 0, t.Version })
		}
	}
	return nil // check and error change nothing
}

// Finish completes the state after the last transaction. It deletes the ephemerals of sessions that
// do not exist, as ZooKeeper does when it starts (ZooKeeperServer.loadData), and returns their
// paths. The error says what is wrong with a znode: it has no parent, or its ACL is missing.
func (s *State) Finish() (deleted []string, err error) {
	for owner, paths := range s.owned {
		for path := range paths {
			if _, exists := s.Sessions[owner]; !exists && s.Kind(s.nodes[path]) == znode.Ephemeral {
				deleted = append(deleted, path)
			}
		}
	}
	slices.Sort(deleted)
	for _, path := range deleted {
		s.remove(path, s.Zxid)
	}
	s.AddConfig()
	if s.nodes["/"] == nil {
		return nil, fmt.Errorf("there is no root")
	}
	for path, n := range s.nodes {
		switch {
		case path != "/" && s.nodes[parent(path)] == nil:
			return nil, fmt.Errorf("%s has no parent", path)
		case n.noACL != 0:
			return nil, fmt.Errorf("%s has the ACL with number %d, which the snapshot does not have, and no transaction after it sets one", path, n.noACL)
		}
	}
	return deleted, nil
}
