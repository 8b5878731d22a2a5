// Package releases knows which releases of ZooKeeper do what, where that has changed
// since 3.8.0 and a client can see it. The checks of package conform, the differences
// that package differ allows, and the recordings of package golden, which are of
// Debian's 3.8.0, all go by it. What is older, such as the release that brought an
// operation, is said by each check itself.
//
// A constant is a range of versions as [Version.In] reads it.
package releases

const (
	// The header of an event has the zxid of the change. Before that it has -1.
	EventZxid   = ">=3.9"
	NoEventZxid = ">=3.0 <3.9"

	// exists needs READ on a znode that exists, also to watch it.
	ExistsNeedsRead    = ">=3.8.4 <3.9 | >=3.9.2"
	ExistsNeedsNothing = ">=3.0 <3.8.4 | >=3.9 <3.9.2"

	// A connection is told of a change only if it may READ the znode (CVE-2024-23944).
	// Debian's 3.8.0 has this without the row above.
	EventsNeedRead    = ">=3.8.4 <3.9 | >=3.9.2 | debian"
	EventsNeedNothing = ">=3.6 <3.8.4 !debian | >=3.9 <3.9.2"

	// A create2 in a multi is answered as such. Before that it is answered as a create.
	Create2InMulti  = ">=3.8.2"
	Create2AsCreate = ">=3.6 <3.8.2"

	// In a multi the mode of a create decides what it makes, whatever its opcode; a
	// mode that does not exist, a null ACL and a null path make the whole multi
	// unreadable (ZOOKEEPER-4026). Before that they fail one by one.
	MultiReadsModes  = ">=3.8.2"
	MultiChecksModes = ">=3.6 <3.8.2"

	// A check outside of a multi is refused. Before that it may hang the connection.
	CheckAloneRefused = ">=3.8.5 <3.9 | >=3.9.3"

	// A handshake without the readOnly byte is answered without it.
	ShortHandshake = ">=3.0 <3.9 | >=3.9.3"

	// An ACL of scheme ip takes IPv6.
	IPv6InACL   = ">=3.9.4"
	NoIPv6InACL = ">=3.5 <3.9.4"

	// Watches of several modes on one znode stand side by side. Before that one
	// overwrites the other.
	WatchesSideBySide = ">=3.9"
	WatchesOverwrite  = ">=3.6 <3.9"

	// checkWatches and removeWatches know the types of persistent watches.
	PersistentTypes   = ">=3.9"
	NoPersistentTypes = ">=3.6 <3.9"

	// checkWatches looks at its own connection's watches only, and answers
	// NoWatcher for what is no path.
	CheckOwnWatches = ">=3.9"
	CheckAnyWatches = ">=3.5 <3.9"

	// A write that cannot be read takes no zxid.
	UnreadableTakesNone = ">=3.9"
	UnreadableTakesZxid = "<3.9"

	// A client's deleteContainer is carried out. Before that it is refused.
	ClientsDeleteContainers = ">=3.9"
)
