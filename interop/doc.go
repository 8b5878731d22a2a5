// Package interop runs lockkeeper as its users do: the binary in a process of
// its own, stock clients, a real Redis behind the lock, kill -9, and real
// ZooKeeper servers to compare with. It holds tests only, built with the tag
// interop; without it the package is empty. It is a module of its own, so that
// whoever embeds lockkeeper sees nothing of what only they import. What they need is installed by
// setup.sh; what is missing fails a test and never skips one.
package interop
