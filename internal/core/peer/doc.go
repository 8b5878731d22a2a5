// Package peer connects the members of a cluster. A [Port] accepts connections from other members and opens
// connections to them. Each begins with a [Hello], which says of which kind the connection is, and from which
// cluster and member it comes; a member of another cluster, and a stranger, is refused. What goes over a connection is
// up to the handler of its kind ([Port.Serve]).
//
// [Network] is how members reach each other: [TCP], with or without TLS, or what a test has instead.
//
// Goroutines: Port.Start starts one that accepts, and that one for each connection; they end after [Port.Close], and
// [Port.Wait] waits for them. A connection that says nothing is closed after timing.HelloTimeout, or sooner if too many do.
// The locks of this package are held for moments, and no other lock is taken meanwhile.
package peer
