//go:build interop

// Package interop runs lockkeeper as its users do: the binary in a process of
// its own, stock clients, a real Redis behind the lock, and kill -9. It holds
// tests only, all behind the build tag interop. What they need is installed by
// setup.sh; what is missing fails a test and never skips one.
package interop
