//go:build !linux && unix

package main

// awaitEnd returns when a process has ended.
func awaitEnd(pid int) { pollEnd(pid) }
