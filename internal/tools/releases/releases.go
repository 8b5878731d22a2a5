// Package releases lists the changes in ZooKeeper since 3.8.0 that a client can see, and
// the releases that have each of them, some also in older lines. The checks of package conform, the differences
// that package differ allows and the recordings of package golden, which are of Debian's
// 3.8.0, depend on it. For older changes, such as the release that introduced an
// operation, each check states the versions itself.
//
// A constant is a range of versions in the syntax of [Version.In].
package releases

const (
	// The header of an event has the zxid of the change. Before that it has -1.
	EventZxid   = ">=3.9"
	NoEventZxid = ">=3.0 <3.9"

	// exists needs READ on a znode that exists, also to watch it.
	ExistsNeedsRead    = ">=3.8.4 <3.9 | >=3.9.2"
	ExistsNeedsNothing = ">=3.0 <3.8.4 | >=3.9 <3.9.2"

	// A connection gets an event only if it has READ on the znode (CVE-2024-23944).
	// Debian's 3.8.0 has this, but not the change above.
	EventsNeedRead    = ">=3.8.4 <3.9 | >=3.9.2 | debian"
	EventsNeedNothing = ">=3.6 <3.8.4 !debian | >=3.9 <3.9.2"

	// A create2 in a multi has a result of type create2. Before that, its type is create.
	Create2InMulti  = ">=3.7.2 <3.8 | >=3.8.2"
	Create2AsCreate = ">=3.5 <3.7.2 | >=3.8 <3.8.2"

	// In a multi the mode of a create decides what kind of znode it creates, whatever its
	// opcode. An unknown mode, a null ACL or a null path makes the whole multi undecodable
	// (ZOOKEEPER-4026). Before that, only the operation fails.
	MultiReadsModes  = ">=3.7.2 <3.8 | >=3.8.2"
	MultiChecksModes = ">=3.5 <3.7.2 | >=3.8 <3.8.2"

	// A check outside of a multi is refused. Before that, the connection may hang.
	CheckAloneRefused = ">=3.8.5 <3.9 | >=3.9.3"

	// The answer to a handshake without the readOnly byte has no such byte, either.
	ShortHandshake = ">=3.0 <3.9 | >=3.9.3"

	// ACL entries of scheme ip may have IPv6 addresses.
	IPv6InACL   = ">=3.9.4"
	NoIPv6InACL = ">=3.5 <3.9.4"

	// Watches of several modes on one znode coexist. Before that, one replaces the other.
	WatchesSideBySide = ">=3.9"
	WatchesOverwrite  = ">=3.6 <3.9"

	// checkWatches and removeWatches know the types of persistent watches.
	PersistentTypes   = ">=3.9"
	NoPersistentTypes = ">=3.6 <3.9"

	// checkWatches finds only the watches of its own connection, and answers NoWatcher for
	// an invalid path.
	CheckOwnWatches = ">=3.5 <3.6 | >=3.9"
	CheckAnyWatches = ">=3.6 <3.9"

	// A write that cannot be decoded consumes no zxid.
	UnreadableTakesNone = ">=3.9"
	UnreadableTakesZxid = "<3.9"

	// A deleteContainer from a client is carried out. Before that, it is refused.
	ClientsDeleteContainers = ">=3.9"
)
