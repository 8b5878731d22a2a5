// Package server is the client port: it speaks ZooKeeper's protocol on any number
// of connections, keeps the requests of each connection in order, and answers the
// four-letter words.
//
// Replies are sent in the order of the requests. A read sees every earlier write
// of its connection and no later one. To ensure that, the requests of a connection
// that wait for the log, and the reads behind them, form one queue (pipeline.go).
// If the queue is empty, the connection's reader goroutine answers a read itself.
// Otherwise the read is parked in the queue, and the applier (the goroutine that
// applies log entries) runs it right after the write that it waited for.
//
// Each connection has a goroutine that reads (conn.go). While there is something to
// send, it has another one that writes (outbox.go). While its client is idle, a
// connection has no buffers, and its reader has the smallest stack. If a client does
// not read its replies and more than a limit is queued for it, its connection is
// closed; it never delays other connections.
package server
