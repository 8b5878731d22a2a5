// Package lockkeeper embeds a ZooKeeper-compatible lock coordinator: a server
// of the znode tree, sessions and watches that stock ZooKeeper clients talk to.
package lockkeeper
