package locks

import (
	"cmp"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Kind is what a lock is for.
type Kind string

// The kinds of locks. An election by a mutex, such as kazoo's or that of Curator's
// LeaderSelector, looks like a mutex.
const (
	Mutex     Kind = "mutex"
	ReadWrite Kind = "read/write"
	Semaphore Kind = "semaphore"
	Election  Kind = "election"
	Unknown   Kind = "unknown" // ephemeral and sequential children of another recipe
)

// Node is a child of a znode, with a part of its Stat.
type Node struct {
	Name    string
	Owner   int64 // the Stat's ephemeralOwner
	Czxid   int64
	Ctime   int64 // ms since the epoch
	Version int32
	Length  int32 // of the data
}

// ephemeral reports whether the znode belongs to a session.
func (n *Node) ephemeral() bool { return IsSession(n.Owner) }

// IsSession reports whether the ephemeralOwner of a Stat is a session. Containers and TTL
// znodes have other numbers there (ZooKeeper's EphemeralType).
func IsSession(owner int64) bool {
	return owner != 0 && owner != math.MinInt64 && uint64(owner)>>56 != 0xff
}

// Directory is a znode that may be a lock.
type Directory struct {
	Data  []byte // only that of a kazoo semaphore matters
	Nodes []Node // those of its children whose names are Interesting, in any order
}

// Contender is the entry of a session in the queue of a lock.
type Contender struct {
	Path    string
	Session int64 // 0 if the znode is not ephemeral, so that it stays until somebody deletes it
	Token   int64 // fencing token: the zxid that created the znode
	Since   int64 // when that was, in ms since the epoch
	Version int32 // of the znode's data
	Shared  bool  // it lets other shared ones hold the lock at the same time
	Length  int32 // of the znode's data
	// Data is text for the data, by which many clients say who they are. Find does not know it.
	Data string

	name name
}

// Odd says what is unusual about an entry: who is behind it may wait for ever. It is "" for what
// the known libraries make.
func (c *Contender) Odd() string {
	switch {
	case c.Session == 0:
		return "it is not ephemeral, so it stays until somebody deletes it"
	case c.name.odd:
		return "no known library makes such names"
	}
	return ""
}

// Lock is a lock that somebody holds or waits for.
type Lock struct {
	Path    string
	Kind    Kind
	Client  Client      // whose names the znodes have; "" if they are of several or unknown
	Slots   int         // how many may hold a semaphore; 0 if the server does not know it
	Holders []Contender // in order; several only of a read lock or a semaphore
	Queue   []Contender // who waits, in order
}

// All returns the holders and those who wait, in order.
func (l *Lock) All() []Contender { return slices.Concat(l.Holders, l.Queue) }

// Find returns the locks among these directories, given by path, in the order of their
// paths. Directories that are empty must be given, too. If any is set, the other ephemeral and
// sequential children of a directory count as a lock, too, of an unknown kind and beside the
// one of the same path.
func Find(dirs map[string]*Directory, any bool) (found []Lock) {
	for _, at := range slices.Sorted(maps.Keys(dirs)) {
		up, base := dirs[path.Dir(at)], path.Base(at)
		if up != nil && (base == "locks" || base == "leases") && ofLeases(dirs[path.Join(path.Dir(at), "leases")]) {
			continue // a part of a semaphore
		}
		if semaphore, ok := strings.CutSuffix(at, KazooQueue); ok && dirs[semaphore] != nil {
			continue
		}
		var l Lock
		if leases := dirs[path.Join(at, "leases")]; ofLeases(leases) {
			l = curatorSemaphore(at, leases, dirs[path.Join(at, "locks")])
		} else if queue := dirs[at+KazooQueue]; queue != nil {
			l = kazooSemaphore(at, dirs[at], queue)
		}
		if len(l.Holders)+len(l.Queue) == 0 {
			l = queued(contenders(at, dirs[at]))
		}
		others := Lock{}
		if any {
			others = queued(entries(at, dirs[at], func(n *Node, name name) bool { return name.use == unknown && n.ephemeral() }))
		}
		for _, l := range []Lock{l, others} {
			if all := l.All(); len(all) > 0 {
				l.Path, l.Client = at, clientOf(all)
				found = append(found, l)
			}
		}
	}
	return found
}

// contenders returns the entries of a directory in the order of the queue, which is that of
// [Queue]. Leases are in a queue of their own.
func contenders(at string, dir *Directory) []Contender {
	all := entries(at, dir, func(_ *Node, name name) bool { return name.use != unknown && name.use != lease })
	if len(all) == 0 {
		all = entries(at, dir, func(_ *Node, name name) bool { return name.use == lease })
	}
	return all
}

// entries returns those of the sequential children of a directory that count, in order.
func entries(at string, dir *Directory, counts func(*Node, name) bool) (all []Contender) {
	for i := range dir.Nodes {
		n := &dir.Nodes[i]
		if name, ok := parse(n.Name); ok && counts(n, name) {
			all = append(all, contender(at, n, name))
		}
	}
	slices.SortFunc(all, func(a, b Contender) int {
		return cmp.Or(cmp.Compare(a.name.number, b.name.number), cmp.Compare(a.Path, b.Path))
	})
	return all
}

func contender(at string, n *Node, name name) Contender {
	c := Contender{Path: path.Join(at, n.Name), Token: n.Czxid, Since: n.Ctime, Version: n.Version, Length: n.Length, Shared: name.use == read, name: name}
	if n.ephemeral() {
		c.Session = n.Owner
	}
	return c
}

// queued returns the lock with one queue. The first of the queue holds it; if that one is
// shared, so do the shared ones that follow it.
func queued(all []Contender) (l Lock) {
	kinds := map[use]Kind{exclusive: Mutex, read: ReadWrite, write: ReadWrite, leadership: Election, lease: Semaphore}
	for i := range all {
		kind := cmp.Or(kinds[all[i].name.use], Unknown)
		if l.Kind == "" || l.Kind == Mutex && kind == ReadWrite || l.Kind == Unknown {
			l.Kind = kind
		}
	}
	n := holders(len(all), func(i int) bool { return all[i].Shared })
	l.Holders, l.Queue = all[:n:n], all[n:]
	return l
}

// holders returns how many entries at the head of a queue of n hold its lock.
func holders(n int, shared func(i int) bool) int {
	held := min(1, n)
	for held > 0 && held < n && shared(0) && shared(held) {
		held++
	}
	return held
}

// ofLeases reports whether the directory can be that of the leases of Curator's
// InterProcessSemaphoreV2, "leases". Beside it is "locks", the queue for the next lease.
func ofLeases(dir *Directory) bool {
	if dir == nil {
		return false
	}
	for i := range dir.Nodes {
		if n, _ := parse(dir.Nodes[i].Name); n.use != lease {
			return false
		}
	}
	return true
}

// curatorSemaphore returns a semaphore of Curator. A client locks the mutex "locks", adds
// its lease, and keeps the mutex until there are few enough leases. So only the newest
// lease can be one that waits, which it does if its session has the mutex.
func curatorSemaphore(at string, leaseDir, queue *Directory) Lock {
	leases := contenders(path.Join(at, "leases"), leaseDir)
	l := Lock{Kind: Semaphore, Holders: leases}
	if queue != nil {
		l.Queue = contenders(path.Join(at, "locks"), queue)
	}
	if n := len(leases); n > 0 && len(l.Queue) > 0 && leases[n-1].Session == l.Queue[0].Session && leases[n-1].Token > l.Queue[0].Token {
		l.Holders, l.Queue[0] = leases[:n-1], leases[n-1]
	}
	return l
}

// KazooQueue is the suffix that turns the path of a kazoo semaphore into that of the
// directory in which its clients queue. The children of the semaphore itself are the leases,
// ephemerals named by a UUID, and its data is the number of slots.
const KazooQueue = "-__lock__"

// Lease reports whether a znode with this name may be a lease of a kazoo semaphore, so that
// Find needs the data of its directory.
func Lease(name string) bool { return hexadecimal(name) }

func kazooSemaphore(at string, dir, queue *Directory) Lock {
	l := Lock{Kind: Semaphore, Queue: contenders(at+KazooQueue, queue)}
	for i := range dir.Nodes {
		if n := &dir.Nodes[i]; Lease(n.Name) && n.ephemeral() {
			l.Holders = append(l.Holders, contender(at, n, name{use: lease, client: Kazoo, id: n.Name}))
		}
	}
	slices.SortFunc(l.Holders, func(a, b Contender) int { return cmp.Compare(a.Token, b.Token) })
	l.Slots, _ = strconv.Atoi(strings.TrimSpace(string(dir.Data)))
	return l
}

func clientOf(all []Contender) Client {
	for i := range all {
		if all[i].name.client != all[0].name.client {
			return ""
		}
	}
	return all[0].name.client
}

// Holds reports whether an entry is one of the holders.
func (l *Lock) Holds(c *Contender) bool {
	return slices.ContainsFunc(l.Holders, func(h Contender) bool { return h.Path == c.Path })
}
