// Package server is the client port: it speaks ZooKeeper's protocol with any
// number of connections, keeps each one's order, and answers the four-letter
// words.
//
// The order rule: replies leave in the order of their requests; a read runs
// after every earlier write of its connection is applied here and before any
// later one is. Thus a connection's requests stand in one queue (pipeline.go).
// A read that finds the queue empty is answered by the reader itself; one that
// does not is run by the applier, right behind the write that it waited for.
//
// Each connection has two goroutines: its reader, which [Server.ServeConn] is,
// and its writer (outbox.go). What is queued for a client that does not read is
// bounded; then its connection is closed. It never holds up anybody else.
package server
