// Package proto defines ZooKeeper's client protocol: the request and reply records
// (as in ZooKeeper's zookeeper.jute), the table of operations [Ops], error codes and
// event types. It keeps no state, and has nothing to do with protocol buffers.
//
// This package promises no compatibility: any version of lockkeeper may change it.
package proto
