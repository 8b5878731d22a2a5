// Package proto holds ZooKeeper's words: its records, Stat and ACL, the table
// of opcodes, error codes and event types, laid out as zookeeper.jute lays them.
//
// It has nothing to do with protocol buffers. Numbers never change, and a new
// operation is one row in [Ops]. Nothing here keeps state.
//
// This package promises no compatibility: any version of lockkeeper may change it.
package proto
