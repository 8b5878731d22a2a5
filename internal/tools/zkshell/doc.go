// Package zkshell is a shell for any server that speaks ZooKeeper's protocol: the
// commands of ZooKeeper's zkCli (package org.apache.zookeeper.cli and ZooKeeperMain) with
// their options, output, error messages and exit codes, and a few more, such as export and
// import. docs/zk.md lists what differs.
//
// A [Shell] has one session, which one goroutine keeps alive and reconnects (client.go).
// Connect starts that goroutine, and Close stops it and waits for it. Watch events are
// printed by that goroutine, everything else by the caller's.
package zkshell
