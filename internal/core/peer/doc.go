// Package peer connects the members of a cluster. A [Port] accepts connections from other members and opens
// connections to them. Each begins with a [Hello], which names its kind, and the caller's cluster and id. A port refuses
// strangers and members of other clusters. What goes over a connection is up to the handler of its kind ([Port.Serve]).
//
// [Network] is how members reach each other: [TCP], with or without TLS, or what a test has instead.
//
// [Conns] are the connections of Raft's messages: they are closed when the other side has been silent for too long, and give
// signs of life themselves.
//
// Goroutines: [Port.Start] starts one that accepts connections, and that one starts one for each; they end after
// [Port.Close], and [Port.Wait] waits for them. A connection whose hello does not come is closed after timing.HelloTimeout,
// or sooner if there are too many. [Conns.Run] ends with the port. The locks of this package are held for moments, but a
// Conn's turn while a frame is written, and no other lock is taken meanwhile.
package peer
