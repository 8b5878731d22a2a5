// Package locks recognises the locks of ZooKeeper's clients by the names of their znodes,
// and finds out who holds a lock, who waits for it, and what is wrong with it. It knows the
// recipes of go-zookeeper, Curator and kazoo, and those of package lock.
//
// It is a function of what a caller has read: the test kit and the console give it the
// state of a server, and the command what any server told it.
package locks

import (
	"cmp"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Sequence returns the number that the server has appended to the name of a sequential
// znode.
func Sequence(name string) (int, bool) {
	const digits = 10
	if len(name) < digits {
		return 0, false
	}
	n, err := strconv.ParseUint(name[len(name)-digits:], 10, 63)
	return int(n), err == nil
}

// Shared reports whether the name of a znode, or its path, asks for a lock that several
// sessions may hold at the same time: kazoo's and Curator's read locks.
func Shared(name string) bool {
	return strings.Contains(name, "__rlock__") || strings.Contains(name, "__READ__")
}

// Compare orders the contenders for a lock: by their numbers, and if these are equal,
// which recreating the directory can cause, by the zxid of their creation.
func Compare(number, czxid, otherNumber, otherCzxid int64) int {
	return cmp.Or(cmp.Compare(number, otherNumber), cmp.Compare(czxid, otherCzxid))
}

// use is what a name asks for.
type use int

const (
	unknown    use = iota // it is sequential, nothing more is known
	exclusive             // a mutex, or the write lock of a kazoo or Curator read/write lock
	read                  // a read lock
	write                 // a write lock of a recipe that gives it a name of its own
	leadership            // Curator's LeaderLatch
	lease                 // one of the places of Curator's semaphore
)

// name is what the name of a znode says.
type name struct {
	use    use
	client Client
	id     string // by which the client finds its znode again; "" if the recipe has none
	odd    bool   // something precedes the mark that no known library puts there
	number int64
}

// Client is a library whose names are recognised.
type Client string

// The libraries. Package lock uses the names of go-zookeeper.
const (
	GoZooKeeper Client = "go-zookeeper"
	Curator     Client = "curator"
	Kazoo       Client = "kazoo"
)

// marks are the parts of names before the number. Before a mark without underscores at both
// ends there is nothing, or something that ends in "-"; before one of kazoo's there is anything.
// Whoever looks for one of these marks waits for such a znode, whatever comes before the mark,
// and whether or not it is ephemeral.
var marks = []mark{
	{"lock-", exclusive, false}, {"__READ__", read, false}, {"__WRIT__", write, false},
	{"__lock__", exclusive, true}, {"__rlock__", read, true},
	{"latch-", leadership, false}, {"lease-", lease, false},
}

type mark struct {
	text  string
	use   use
	kazoo bool
}

// find returns the mark in a name, with what is before it and the number behind it; nil if there
// is none.
func find(text string) (m *mark, prefix string, number int64) {
	for j := range marks {
		m := &marks[j]
		i := strings.LastIndex(text, m.text)
		if i < 0 {
			continue
		}
		prefix := text[:i]
		number, ok := suffix(text[i+len(m.text):])
		if ok && (m.kazoo || prefix == "" || strings.HasSuffix(prefix, "-")) {
			return m, prefix, number
		}
	}
	return nil, "", 0
}

// parse returns what a name says. ok is false if it is not the name of a sequential znode.
func parse(text string) (n name, ok bool) {
	if m, prefix, number := find(text); m != nil {
		n := name{use: m.use, number: number}
		id, protected := strings.CutPrefix(strings.TrimSuffix(prefix, "-"), "_c_")
		switch {
		case m.kazoo && hexadecimal(prefix):
			n.client, n.id = Kazoo, prefix
		case m.kazoo || !protected:
		case hexadecimal(id):
			n.client, n.id = GoZooKeeper, id
		case uuid.MatchString(id):
			n.client, n.id = Curator, id
		}
		n.odd = n.client == "" && prefix != ""
		return n, true
	}
	number, ok := Sequence(text)
	return name{number: int64(number)}, ok
}

var uuid = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// hexadecimal reports whether text is 32 digits, as libraries make them of a UUID.
func hexadecimal(text string) bool {
	return len(text) == 32 && strings.Trim(text, "0123456789abcdef") == ""
}

// suffix returns the number that is all of a text, as servers write it with %010d. ZooKeeper
// counts in 32 bits, and goes on with -2147483648 after 2147483647; lockkeeper counts on. Both
// come after all smaller numbers.
func suffix(text string) (number int64, ok bool) {
	const digits = 10
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < math.MinInt32 || len(text) < digits || text[0] == '+' || len(text) > digits && strings.TrimPrefix(text, "-")[0] == '0' {
		return 0, false
	}
	if n < 0 {
		n += 1 << 32
	}
	return n, true
}

// Entry is a znode in the queue of a lock, as far as its name tells.
type Entry struct {
	Name   string
	Shared bool // it lets other shared ones hold the lock at the same time

	number int64
}

// Queue returns which of the children of a directory are in the queue of its lock, in order. With
// leases, it returns the leases of a semaphore instead.
func Queue(children []string, leases bool) (all []Entry) {
	for _, child := range children {
		if n, ok := parse(child); ok && n.use != unknown && (n.use == lease) == leases {
			all = append(all, Entry{child, n.use == read, n.number})
		}
	}
	slices.SortFunc(all, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// Interesting reports whether a znode with this name may be the entry of a session in a
// lock's queue, so that Find needs it in the directory.
func Interesting(name string) bool {
	_, ok := parse(name)
	return ok || Lease(name)
}
