// Package interop tests lockkeeper as its users run it: the binary in a process of its
// own, unmodified clients, a real Redis protected by the lock, kill -9, and ZooKeeper
// servers to compare with. It contains only tests, which need the build tag interop. It
// is a module of its own, so that its dependencies do not appear in the go.mod of an
// embedder. setup.sh installs the programs that the tests need; a missing one fails a
// test.
package interop
