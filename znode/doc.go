// Package znode is the tree of znodes: the same operations give the same tree,
// the same changes and the same digest, on every replica.
//
// Every operation takes its zxid and time from its [Txn], leaves all its
// effects in the Txn's changes, and is checked in ZooKeeper's order of
// precedence (PrepRequestProcessor). A [Snapshot] once taken never changes.
//
// A Tree has no lock: operations and [Tree.Snapshot] need it for themselves,
// look-ups may run together, and a Snapshot may be read beside everything.
//
// This package promises no compatibility: any version of lockkeeper may change it.
package znode
