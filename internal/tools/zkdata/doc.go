// Package zkdata reads and writes the files of ZooKeeper's data directory: snapshots and
// transaction logs, as releases 3.4 to 3.9 write them (FileSnap, FileTxnLog).
//
// [ReadSnapshot] makes a [State] from a snapshot, and [NewLog] reads the transactions of a log,
// which [State.Apply] applies. A snapshot of ZooKeeper is fuzzy: the server goes on while it
// writes one, so the snapshot may have a part of what the log after it repeats. Apply therefore
// ignores what is done already, as ZooKeeper does when it starts.
//
// Nothing that is damaged gets into a State unnoticed: all parts have checksums, and an error names
// the offset in the file. Two things are not errors, because a crash of the server leaves
// them: an incomplete transaction at the end of a log, and zeros after the last one. A log that
// ends without zeros is no error either, but [Log.Cut] says so.
//
// The package reads from readers and writes to writers; which files there are is up to the caller.
package zkdata
