// Package znode implements the tree of znodes. It is deterministic: the same operations
// give the same tree, the same changes and the same digest on every replica.
//
// An operation runs in a [Txn], which has its zxid and time and collects its changes. If
// several errors apply to an operation, it fails with the one that ZooKeeper returns
// (PrepRequestProcessor).
//
// A tree may have millions of znodes, so a node takes about 100 bytes besides its name and
// data: nodes are elements of arrays (slots), other parts of the tree refer to them by
// number, and a path is stored only once for all children of a znode.
//
// A [Tree] has no lock. Lookups may run concurrently with each other, but not with an
// operation or [Tree.Snapshot]. A [Snapshot] never changes, so it may be read at any time.
//
// This package promises no compatibility: any version of lockkeeper may change it.
package znode
