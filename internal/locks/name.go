// Package locks recognises the locks of ZooKeeper's clients by the names of their znodes,
// and finds out who holds a lock, who waits for it, and what is wrong with it. It knows the
// recipes of go-zookeeper, Curator and kazoo, and those of package lock.
//
// It is a function of what a caller has read: the test kit and the console give it the
// state of a server, and the command what any server told it.
package locks

import (
	"cmp"
	"regexp"
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
	number int
}

// Client is a library whose names are recognised.
type Client string

// The libraries. Package lock uses the names of go-zookeeper.
const (
	GoZooKeeper Client = "go-zookeeper"
	Curator     Client = "curator"
	Kazoo       Client = "kazoo"
)

const uuid = `[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`

// Names as the libraries make them. ZooKeeper numbers a znode with at least ten characters.
var (
	protected  = regexp.MustCompile(`^(?:_c_([0-9a-f]{32}|` + uuid + `)-)?(lock-|latch-|lease-|__READ__|__WRIT__)(-?\d{10,})$`)
	ofKazoo    = regexp.MustCompile(`^([0-9a-f]{32})(__lock__|__rlock__)(-?\d{10,})$`)
	kazooLease = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

var uses = map[string]use{
	"lock-": exclusive, "latch-": leadership, "lease-": lease, "__READ__": read, "__WRIT__": write,
	"__lock__": exclusive, "__rlock__": read,
}

// parse returns what a name says. ok is false if it is not the name of a sequential znode.
func parse(text string) (n name, ok bool) {
	match, client := protected.FindStringSubmatch(text), Curator
	switch {
	case match == nil:
		match, client = ofKazoo.FindStringSubmatch(text), Kazoo
	case len(match[1]) == 32:
		client = GoZooKeeper
	case match[1] == "": // made without protection; several clients can do that
		client = ""
	}
	if match != nil {
		number, err := strconv.Atoi(match[3])
		return name{uses[match[2]], client, match[1], number}, err == nil
	}
	number, ok := Sequence(text)
	return name{number: number}, ok
}

// Interesting reports whether a znode with this name may be the entry of a session in a
// lock's queue, so that Find needs it in the directory.
func Interesting(name string) bool {
	_, ok := parse(name)
	return ok || kazooLease.MatchString(name)
}
